"""A run as Markdown for a ticket: the verdict and what to do first, then the figures, then the whole matrix folded away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.diagnosis.wording import figure_text
from tracekit.metrics import render_markdown
from tracekit.metrics.headline import headline
from tracekit.metrics.wording import printable, share, span_text
from tracekit.run_policy import run_flags

__all__ = ["ticket"]

EVIDENCE = 3
_SPECIAL = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|#~"} | {"&": "&amp;"})


def ticket(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    """The ticket of a ``runs`` row with a matrix and, where it was diagnosed, its verdict document. Ends in a line break."""
    return "\n".join(_lines(row, verdict)) + "\n"


def _lines(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> Iterator[str]:
    named = f" {_safe(row['name'])}" if row.get("name") else ""
    yield f"## Run {row['run']}{named}: {_safe(row['trace_name'])}"
    yield ""
    if verdict is None:
        yield f"No diagnosis is recorded: `tracekit diagnose {row['run']}` says why the tail is as it is."
    else:
        yield f"**{_safe(verdict['verdict'])}**"
        left = verdict["unexplained"]
        yield ""
        yield (f"{span_text(verdict['excess_s'] * 1e9)} of request time in excess ({_safe(verdict['basis'])}),"
               f" {share(left['share'])} of it not explained.")  # fmt: skip
    yield ""
    for label, text in headline(row["matrix"]):
        yield f"- **{label}**: {_safe(text)}" if label else f"  - {_safe(text)}"
    flags = run_flags(row)
    if flags is not None:
        yield f"- **Policy**: {f'`{flags}`' if flags else 'the defaults of the engine'}"
    for warning in () if verdict is None else verdict["warnings"]:
        yield f"- **Beware**: {_safe(warning)}"
    for rank, finding in enumerate(() if verdict is None else verdict["findings"], 1):
        yield from _finding(rank, finding)
    yield ""
    yield "<details><summary>The whole matrix</summary>"
    yield ""
    yield render_markdown(row["matrix"]).replace("\n## ", "\n#### ").replace("# Acceptance matrix", "### Acceptance matrix", 1)
    yield "</details>"


def _finding(rank: int, finding: Mapping[str, Any]) -> Iterator[str]:
    under = f", a consequence of {_safe(finding['under'])}" if finding["under"] else ""
    yield ""
    yield f"### {rank}. {_safe(finding['id'])}: {_safe(finding['name'])}{under}"
    yield ""
    yield _safe(finding["what"])
    yield ""
    yield (f"- explains {share(finding['share_of_excess'])} of the excess ({span_text(finding['excess_s'] * 1e9)});"
           f" confidence {finding['confidence']}: {_safe(finding['because'])}")  # fmt: skip
    for each in finding["evidence"][:EVIDENCE]:
        bound = "" if each["threshold"] is None else f" (held against {figure_text(each['threshold'], each['unit'])})"
        unit = "" if each["unit"] in ("ns", "s", "share", "") else f" {each['unit']}"
        yield f"- {_safe(each['metric'])} {figure_text(each['value'], each['unit'])}{_safe(unit)}{bound}"
    if finding["not"]:
        yield f"- it is not: {'; '.join(map(_safe, finding['not']))}"
    for change in finding["recommend"]:
        yield from _change(change)


def _change(change: Mapping[str, Any]) -> Iterator[str]:
    done = change["replayed"]
    told = "not replayed" if done is None else f"{done['outcome']}: {done['reason']}"
    flags = " ".join(change["flags"].get("vllm", ()))
    moved = f"{change['knob']} {change['old']} → {change['new']}" if change["new"] else change["knob"]
    yield f"- **change**: {_safe(moved)}{f' (`{flags}`)' if flags else ''}; {_safe(told)}"
    if change["price"]:
        yield f"- price: {_safe(change['price'])}"


def _safe(text: object) -> str:
    """Text of a trace or a policy so that it is shown as it is: no mark-up, no line break, no control character."""
    return printable(str(text)).translate(_SPECIAL)
