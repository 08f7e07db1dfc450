"""A description as text for a person: short lines, the slice's numbers beside the whole trace's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracekit.errors import shown

__all__ = ["render"]

SECOND = 1e9
LABELS_SHOWN = 5
CURVE_SHOWN = 8


def render(document: dict[str, Any]) -> str:
    """The text of a ``tracekit.describe/1`` document."""
    columns = [document["whole"], *([document["slice"]] if document["slice"] else [])]
    parts = [*_head(document["trace"]), "", *_table(columns), *_prefix(columns[-1]["prefix"]), *_labels(columns[-1])]
    notes = [f"note: {shown(line, 400)}" for line in document["warnings"]]
    return "\n".join([*parts, *_windows(document["windows"]), *notes]) + "\n"


def _head(facts: dict[str, Any]) -> Iterator[str]:
    dropped = facts["rows_read"] - facts["rows_kept"]
    left = f", {dropped:,} rows dropped" if dropped else ""
    yield f"{shown(facts['name'])}: {facts['source_format']}, {facts['rows_kept']:,} requests{left}"
    zone = " (no zone written, taken as UTC)" if facts["t0_zone_assumed"] else ""
    start = f"starts {_date(facts['t0_ns'])}{zone}" if facts["t0_ns"] is not None else "times from a start of their own"
    clock = f"; latencies observed at the {facts['obs_clock']}" if facts["obs_clock"] else ""
    yield f"{start}; times are whole multiples of {_duration(facts['time_resolution_ns'])}{clock}"


def _date(ns: int) -> str:
    import numpy as np

    return str(np.datetime_as_string(np.datetime64(ns, "ns"), unit="ms")).replace("T", " ") + " UTC"


def _duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 1000)):
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns} ns"


def _number(value: float | int | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) < 1:
        return f"{value:.3g}"
    text = f"{value:,.{1 if abs(value) >= 100 else digits}f}"
    return text.rstrip("0").rstrip(".")


def _table(columns: list[dict[str, Any]]) -> Iterator[str]:
    rows: list[tuple[str, list[str]]] = [("requests", [_number(column["requests"]) for column in columns])]
    arrivals = [column["arrivals"] for column in columns]
    for label, key in (("span s", "span_s"), ("rate /s", "rate_per_s"), ("peak in 1 s", "peak_1s"), ("peak in 10 s", "peak_10s"),
                       ("gap CV", "cv"), ("dispersion 1 s", "dispersion_1s"), ("same instant as before", "equal_neighbours"),
                       ("longest gap s", "longest_gap_s")):  # fmt: skip
        rows.append((label, [_number(each[key]) for each in arrivals]))
    for label, key in (("input tokens", "input_tokens"), ("output tokens", "output_tokens")):
        rows.append((label, [_spread(column[key]) for column in columns]))
    for part in ("queue", "ttft", "tpot", "e2e"):
        seen = [column["observed"].get(part) for column in columns]
        if any(seen):
            rows.append((f"observed {part} s", [_spread(each) if each else "-" for each in seen]))
    if len(columns) > 1:
        rows.insert(0, ("", ["whole", "slice"]))
    widths = [max(len(cells[at]) for _, cells in rows) for at in range(len(columns))]
    for label, cells in rows:
        yield f"{label:<24}" + "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    for title, each in zip(("", "slice: "), arrivals, strict=False):
        if each["rate_refused"]:
            yield f"{title}no rate: {each['rate_refused']}"
    if len(columns) > 1 and columns[1]["weight"] != 1.0:
        yield f"slice: thinned by {columns[1]['thinned_by']}, each request stands for {columns[1]['weight']:.4g}"


def _spread(found: dict[str, Any]) -> str:
    parts = [f"mean {_number(round(found['mean'], 3), 1 if found['mean'] >= 10 else 3)}"]
    parts += [f"{name.upper()} {_number(found[name])}" for name in ("p50", "p95", "p99")]
    zeros = f" ({found['zeros']:,} zeros)" if found.get("zeros") else ""
    return " ".join([*parts, f"max {_number(found['max'])}"]) + zeros


def _prefix(prefix: dict[str, Any] | None) -> Iterator[str]:
    if prefix is None:
        return
    yield (f"prefix reuse: {prefix['share_unbounded']:.1%} of the prompt tokens with an unbounded cache"
           f" ({prefix['share_unbounded_last_half']:.1%} over the last half); {prefix['reseen_share']:.1%} of"
           f" {prefix['blocks']:,} blocks of {prefix['block_tokens']} tokens are seen again")  # fmt: skip
    curve = prefix["by_cache_size"]
    step = -(-len(curve) // CURVE_SHOWN)
    yield "  by cache size: " + ", ".join(f"{_tokens(each['cache_tokens'])} {each['share']:.1%}" for each in curve[::-step][::-1])
    yield "  of that: " + ", ".join(f"{part} needs {_tokens(tokens)} tokens" for part, tokens in prefix["tokens_for"].items())


def _tokens(n: int) -> str:
    return f"{n / 1e6:.3g}M" if n >= 1e6 else f"{n / 1e3:.3g}k" if n >= 1e4 else f"{n:,}"


def _labels(numbers: dict[str, Any]) -> Iterator[str]:
    for label in ("tenant", "class", "model", "kind", "adapter", "unmodelled"):
        found = numbers.get(label)
        if found:
            names = ", ".join(f"{shown(each['name'])} {each['share']:.1%}" for each in found["largest"][:LABELS_SHOWN])
            more = f", {found['values'] - LABELS_SHOWN} more" if found["values"] > LABELS_SHOWN else ""
            yield f"{label}: {found['values']:,} ({names}{more})"
    status = numbers["status"]
    if set(status) != {"not told"}:
        yield "status: " + ", ".join(f"{shown(name)} {count:,}" for name, count in status.items())
    sessions = numbers["sessions"]
    if sessions:
        think = sessions.get("think_time_s")
        yield (f"sessions: {sessions['sessions']:,} of P50 {_number(sessions['requests_p50'], 1)} P95"
               f" {_number(sessions['requests_p95'], 1)} max {sessions['requests_max']:,} requests,"
               f" {sessions['with_more_turns']:,} with more than one"
               + (f"; think time P50 {think['p50']:,.1f} s P95 {think['p95']:,.1f} s" if think else ""))  # fmt: skip


def _windows(windows: list[dict[str, Any]]) -> Iterator[str]:
    for window in windows:
        yield (f"{window['kind']:<8} --window {window['option']:<14} {window['requests']:,} requests,"
               f" {window['rate_per_s']:.2f}/s, dispersion {window['dispersion_1s']:.2f} ({window['why']})")  # fmt: skip
