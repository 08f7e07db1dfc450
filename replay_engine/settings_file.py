"""Reading and writing the small TOML files people edit by hand: policies and profiles."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from replay_engine.config import ConfigError

__all__ = ["file_name", "locate", "nearest", "one_line", "parse_toml", "render_toml", "with_nested"]


def one_line(value: object, limit: int = 80) -> str:
    """``value`` for an error message: control characters escaped, clipped to ``limit`` characters."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(path: object) -> str:
    """``path`` for an error message: control characters escaped, and whole, since half a path finds no file."""
    return one_line(path, 4096)


def nearest(name: str, names: Iterable[str]) -> str:
    """The known names most like ``name``, as the tail of an error message."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The document as a dict. ``where`` names the file in the one-line error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = one_line(error, 200)
        place = re.search(r"\(at line (\d+), column (\d+)\)", reason)
        spot = f", line {place[1]}, column {place[2]}" if place else ""
        reason = re.sub(r"\s*\(at (line \d+, column \d+|end of document)\)", "", reason)
        raise ConfigError(f"{where}{spot}: not TOML: {reason}; expected lines like max_num_seqs = 128") from None


def locate(text: str, table: str, key: str, where: str) -> str:
    """``where`` with the line on which ``key`` of ``[table]`` stands, for error messages."""
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = header[1].replace('"', "").replace("'", "")
            if current == (f"{table}.{key}" if table else key):
                return f"{where}, line {number}"
        elif current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return f"{where}, line {number}"
    return where


def render_toml(document: Mapping[str, Any]) -> str:
    """TOML text of nested dicts of plain values, scalars before tables. ``None`` is left out: TOML has no null."""
    lines: list[str] = []
    _render(document, (), lines)
    return "\n".join(lines).strip() + "\n"


def with_nested(table: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """``table`` with ``value`` under the keys of ``path``; what stands in the way and is no table is replaced."""
    changed = dict(table)
    if len(path) == 1:
        changed[path[0]] = value
    else:
        inner = changed.get(path[0], {})
        changed[path[0]] = with_nested(inner if isinstance(inner, Mapping) else {}, path[1:], value)
    return changed


def _render(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and not _is_tables(value)}
    if path and plain:
        lines += ["", "[" + ".".join(_key(p) for p in path) + "]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items() if value is not None]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _render(value, (*path, key), lines)
        elif _is_tables(value):
            for each in value:
                lines += ["", "[[" + ".".join(_key(p) for p in (*path, key)) + "]]"]
                lines += [f"{_key(name)} = {_value(item)}" for name, item in each.items() if item is not None]


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + '"'
