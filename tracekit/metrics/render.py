"""The matrix for people: text for a terminal and Markdown, every field in both, the answer first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tracekit.metrics.fields import FIELDS, SECTIONS, field_value
from tracekit.metrics.headline import headline
from tracekit.metrics.wording import Line, field_lines, printable

__all__ = ["render_markdown", "render_text"]

_COLUMNS = ("mean", "P50", "P95", "P99", "max", "n")
_CELL = 10
_FLAG = "* a percentile of too few values: P99 wants 1,000 or more"


def _section_lines(matrix: Mapping[str, Any], section: str) -> Iterator[Line]:
    for spec in FIELDS:
        if spec.section == section:
            yield from field_lines(spec, field_value(matrix, spec))


def _title(matrix: Mapping[str, Any]) -> str:
    run = matrix["run"]
    known = [f"{what} {printable(run[what])}" for what in ("name", "trace") if not isinstance(run[what], Mapping)]
    return ", ".join(["Acceptance matrix", *known]).replace("name ", "run ", 1)


def render_text(matrix: Mapping[str, Any]) -> str:
    """Plain text without markup or colour, for any terminal. Names are escaped; print it without interpreting markup."""
    lines = [_title(matrix), ""]
    lines += [f"{label:<8}{printable(text)}" for label, text in headline(matrix)]
    flagged = False
    bodies = {section: list(_section_lines(matrix, section)) for section in SECTIONS}
    notes = _notes(value for body in bodies.values() for _, value in body)
    for section, title in SECTIONS.items():
        body = bodies[section]
        width = max(24, *(len(label) for label, _ in body)) + 2
        tabular = any(isinstance(value, list) for _, value in body)
        heads = "".join(f"{name:>{_CELL}}" for name in _COLUMNS) if tabular else ""
        lines += ["", f"{title:<{width + 2}}{heads}".rstrip()]
        for label, value in body:
            cells = notes.get(value, value) if isinstance(value, str) else "".join(f"{cell:>{_CELL}}" for cell in value)
            flagged |= not isinstance(value, str) and "*" in cells
            lines.append(f"  {label:<{width}}{cells}")
    flagged |= any("*" in label for body in bodies.values() for label, _ in body)
    lines += ["", *(f"{mark[2:]} {value[3:-1]}" for value, mark in notes.items())] if notes else []
    return "\n".join([*lines, "", _FLAG] if flagged else lines) + "\n"


def _notes(values: Iterable[str | list[str]]) -> dict[str, str]:
    """Why several fields have no value, said once at the end: what stands for it in its place."""
    missing = Counter(value for value in values if isinstance(value, str) and value.startswith("- (") and value.endswith(")"))
    return {value: f"- [{n}]" for n, value in enumerate((value for value, count in missing.items() if count > 1), 1)}


def render_markdown(matrix: Mapping[str, Any]) -> str:
    """The same as Markdown: the answer as a list, then a table per section."""
    lines = [f"# {_escape(_title(matrix))}", ""]
    for label, text in headline(matrix):
        lines.append(f"- **{label}**: {_escape(text)}" if label else f"  - {_escape(text)}")
    for section, title in SECTIONS.items():
        body = list(_section_lines(matrix, section))
        lines += ["", f"## {title}", ""]
        dists = [(label, value) for label, value in body if isinstance(value, list)]
        plain = [(label, value) for label, value in body if isinstance(value, str)]
        if dists:
            lines += [f"| | {' | '.join(_COLUMNS)} |", f"|---{'|---:' * len(_COLUMNS)}|"]
            lines += [f"| {_escape(label)} | {' | '.join(_escape(cell) for cell in cells)} |" for label, cells in dists]
        if dists and plain:
            lines.append("")
        if plain:
            lines += ["| | |", "|---|---|", *(f"| {_label(label)} | {_escape(value)} |" for label, value in plain)]
    return "\n".join([*lines, "", _escape(_FLAG)]) + "\n"


def _label(label: str) -> str:
    # leading blanks mark a part of the field above
    return f"&nbsp;&nbsp;{_escape(label.strip())}" if label.startswith("  ") else _escape(label)


def _escape(text: str) -> str:
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{char}" if char in "\\|`*[]" else char for char in text)
