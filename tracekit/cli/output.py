"""What verbs print: one JSON document, a Rich table on a terminal, plain aligned text in a pipe.

Text from traces and databases is escaped: no control character of it reaches a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["emit", "emit_run", "note", "print_json", "print_table", "print_text", "safe", "table_text", "write_out"]

_KEEP = frozenset("\n\t")


def safe(value: object) -> str:
    """``value`` as one line of text, control characters escaped; ``None`` is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    text = str(value)
    return text if text.isprintable() else _escaped(text, frozenset())


def _escaped(text: str, keep: frozenset[str]) -> str:
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def write_out(text: str) -> None:
    """Write to standard output at once; whatever the terminal cannot encode is replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def note(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(_escaped(text, frozenset()) + "\n")
    sys.stderr.flush()


def print_json(document: object) -> None:
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    text = orjson.dumps(document, default=_plain, option=options).decode()
    # JSON lets marks through that turn the direction of text or hide it: they are escaped as well
    plain = text.isascii() and "\x7f" not in text
    write_out((text if plain else "".join(map(_json_safe, text))) + "\n")


def _json_safe(char: str) -> str:
    if char.isprintable() or char == "\n":
        return char
    return "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le")).cast("H"))


def _plain(value: object) -> Any:
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def print_text(text: str) -> None:
    """Several lines of text, escaped but for line breaks and tabs."""
    write_out(_escaped(text, _KEEP).rstrip("\n") + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", empty: str = "nothing") -> None:
    """A Rich table on a terminal, aligned text in a pipe. Numbers are right-aligned; no rows: the line ``empty``."""
    data = [list(row) for row in rows]
    if not data:
        write_out(empty + "\n")
    elif sys.stdout.isatty():
        _rich_table(columns, data, title)
    else:
        write_out(table_text(columns, data))


def _numeric(data: list[list[object]], at: int) -> bool:
    return all(isinstance(row[at], int | float) or row[at] is None for row in data)


def table_text(columns: Sequence[str], data: list[list[object]]) -> str:
    """Aligned plain text, two spaces between columns, a head line first."""
    cells = [[safe(column) for column in columns], *[[safe(value) for value in row] for row in data]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    right = [_numeric(data, i) for i in range(len(columns))]
    lines = []
    for row in cells:
        line = "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def _rich_table(columns: Sequence[str], data: list[list[object]], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) if title else None, title_justify="left", box=None, header_style="bold")
    for at, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if _numeric(data, at) else "left", overflow="fold")
    for row in data:
        table.add_row(*(escape(safe(value)) for value in row))
    Console().print(table)


def emit(document: object, as_json: bool, render: Callable[[], None]) -> None:
    """Print ``document`` as JSON, or let ``render`` print it for a person."""
    if as_json:
        print_json(document)
    else:
        render()


def emit_run(run: int, state: str, matrix: dict[str, Any], as_json: bool, markdown: bool = False,
             verdict: Sequence[str] = ()) -> None:  # fmt: skip
    """The acceptance matrix of a run, as text, as Markdown, or within a JSON document that names the run; the verdict after
    it."""
    if as_json:
        said = {"verdict": list(verdict)} if verdict else {}
        print_json({"schema": "tracekit.run/1", "run": run, "state": state, "matrix": matrix, **said})
        return
    from tracekit.metrics import render_markdown, render_text

    text = render_markdown(matrix) if markdown else render_text(matrix)
    print_text("\n".join([text.rstrip("\n"), "", *verdict]) if verdict else text)
