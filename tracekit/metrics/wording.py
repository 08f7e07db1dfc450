"""How the matrix's values read: times, shares, counts and compound fields as text for a terminal or Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.metrics.fields import MatrixField, is_missing
from tracekit.metrics.slo import PARTS

__all__ = ["Line", "count", "field_lines", "limits_text", "printable", "share", "span_text"]

Line = tuple[str, str | list[str]]
"""A label and its value; a list of cells for a distribution (mean, P50, P95, P99, max, n)."""


def printable(text: object) -> str:
    """Foreign text on one line, control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def count(value: float) -> str:
    """A count or a plain number: thousands separated, three significant digits below 100."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 100):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float) -> str:
    """A share as a percentage; what is not quite none or all does not read as such."""
    percent = 100 * value
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return f"{percent:.3f} %"
    return f"{percent:.1f} %"


def span_text(ns: float) -> str:
    """A time in the unit that reads best, three significant digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size * 0.9995:
            value = ns / size
            return f"{value:,.0f} {unit}" if abs(value) >= 99.95 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns" if float(ns).is_integer() or abs(ns) >= 100 else f"{ns:.3g} ns"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _scalar(kind: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return printable(value)
    if kind == "text":
        return str(value)
    form = {"ns": span_text, "share": share, "bytes": _bytes}.get(kind, count)
    return form(value)


def _distribution(kind: str, row: Mapping[str, Any]) -> list[str]:
    form = span_text if kind == "dist_ns" else count
    flagged = set(row["small_n"])
    cells = [form(row["mean"])]
    cells += [form(row[name]) + ("*" if name in flagged else "") for name in ("p50", "p95", "p99")]
    return [*cells, form(row["max"]), count(row["n"])]


def field_lines(spec: MatrixField, value: Any) -> Iterator[Line]:
    """The lines of one field: one, or a heading and its parts."""
    if is_missing(value):
        yield spec.label, f"- ({printable(value['reason'])})"
    elif spec.kind in ("dist_ns", "dist_tokens"):
        yield spec.label, _distribution(spec.kind, value)
    elif spec.kind != "object":
        yield spec.label, _scalar(spec.kind, value)
    else:
        yield from _object_lines(spec, value)


def _object_lines(spec: MatrixField, value: Any) -> Iterator[Line]:
    if spec.section == "observed" or spec.name == "fitted":
        yield from (_fitted if spec.name == "fitted" else _comparison)(spec.label, value)
    elif spec.name in ("by_tenant", "by_class"):
        yield spec.label, f"{len(value)} groups"
        for name, row in value.items():
            yield f"  {printable(name)}", _group(row)
    elif spec.name == "refusals":
        yield spec.label, "time (share of refused time), iterations"
        for name, row in value.items():
            yield f"  {name}", f"{span_text(row['ns'])} ({share(row['share'])}), {row['iterations']:,} iterations"
    elif spec.name == "by_replica":
        yield spec.label, "requests; busy, tokens computed, KV high-water"
        for name, row in value.items():
            figures = f"{share(row['busy_share'])}, {row['tokens']:,} tokens, {share(row['kv_high_water_share'])}"
            yield f"  {name}", f"{row['requests']:,}; {figures}"
    elif spec.name == "stage_shares":
        yield spec.label, "share"
        for name, part in value.items():
            yield f"  {name}", share(part)
    elif spec.name == "by_kind":
        yield spec.label, "events; computed again, on the link, stood still"
        for name, row in value.items():
            moved = f"{row['recomputed_tokens']:,} tokens, {span_text(row['link_ns'])}, {span_text(row['stood_still_ns'])}"
            yield f"  {name}", f"{row['events']:,}; {moved}"
    elif spec.section == "fairness":
        yield spec.label, f"{printable(value['tenant'])}: {share(value['share'])} ({value['requests']:,} requests)"
    elif spec.name == "front_door.quotas":
        yield spec.label, f"{len(value)} tenants"
        for name, row in value.items():
            yield f"  {printable(name)}", ", ".join(f"{knob} {_plain(limit)}" for knob, limit in row.items())
    elif spec.name == "order.reserved":
        kept = [f"priority {row['priority']}: {row['seqs']:,} seats, {row['blocks']:,} blocks" for row in value]
        yield spec.label, "; ".join(kept)
    elif isinstance(value, list):
        yield spec.label, f"{len(value)}"
        for at, item in enumerate(value, 1):
            yield f"  {at}", printable(item)
    else:
        yield spec.label, _one_line(spec.name, value)


def _fitted(label: str, value: Mapping[str, Any]) -> Iterator[Line]:
    """Figures in one line, each table and each text in one of its own; the trust has its field."""
    long = {key: item for key, item in value.items() if isinstance(item, Mapping) or _is_text(item)}
    yield label, ", ".join(f"{printable(key)} {_plain(item)}" for key, item in value.items() if key not in long)
    for key, item in long.items():
        if key == "trust":
            continue
        if isinstance(item, Mapping):
            told = ", ".join(f"{printable(name)} {_plain(part)}" for name, part in item.items())
        else:
            told = "; ".join(printable(part) for part in ([item] if isinstance(item, str) else item))
        yield f"  {printable(key)}", told or "none"


def _is_text(item: Any) -> bool:
    texts = [item] if isinstance(item, str) else item if isinstance(item, list) else []
    return any(isinstance(part, str) and " " in part for part in texts)


def _one_line(name: str, value: Mapping[str, Any]) -> str:
    if name == "attainment":
        return _attainment(value)
    if name == "limits":
        return limits_text(value)
    if name == "stalled_ns":
        return (
            f"{span_text(value['total'])} in {value['requests']:,} of {value['n']:,} requests, at most {span_text(value['max'])}"
            f" (beyond {span_text(value['threshold_ns'])}: {value['rule']})"
        )
    return ", ".join(f"{printable(key)} {_plain(item)}" for key, item in value.items())


def _plain(item: Any) -> str:
    if isinstance(item, list):
        span = len(item) == 2 and all(isinstance(part, int | float) for part in item)
        return (" to " if span else ", ").join(_plain(part) for part in item)
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, Mapping):
        return ", ".join(f"{printable(key)} {_plain(part)}" for key, part in item.items())
    return count(item) if isinstance(item, int | float) and not isinstance(item, bool) else printable(item)


def _attainment(value: Mapping[str, Any]) -> str:
    if is_missing(value):
        return f"- ({value['reason']})"
    return f"{share(value['share'])} ({share(value['low'])} to {share(value['high'])}), {value['met']:,} of {value['n']:,}"


def _group(row: Mapping[str, Any]) -> str:
    rates = f"{count(row['goodput_requests_per_s'])} req/s, {count(row['goodput_tokens_per_s'])} tok/s"
    return f"{_attainment(row['attainment'])}; goodput {rates}"


def limits_text(limits: Mapping[str, Any]) -> str:
    """The SLO in words."""
    pieces = [_parts(limits["default"])] if limits["default"] else []
    for kind in ("class", "tenant"):
        pieces += [f"{kind} {printable(name)}: {_parts(own)}" for name, own in limits[kind].items()]
    if limits["request_columns"]:
        pieces.append(f"per request: {', '.join(name[:-3] for name in limits['request_columns'])}")
    return "; ".join(pieces)


def _parts(own: Mapping[str, Any]) -> str:
    given = [(part, own[f"{part}_ns"]) for part in PARTS if f"{part}_ns" in own]
    return ", ".join(f"{part} none" if limit is None else f"{part} <= {span_text(limit)}" for part, limit in given)


def _comparison(label: str, value: Mapping[str, Any]) -> Iterator[Line]:
    relative = value["median_abs_relative_error"]
    median = "" if is_missing(relative) else f" ({share(relative)})"
    yield label, f"median absolute error {span_text(value['median_abs_error_ns'])}{median}, n {value['n']:,}"
    flagged = set(value["small_n"])
    for name in ("mean", "p50", "p90", "p99"):
        error = value["relative_error"][name]
        apart = f"- ({error['reason']})" if is_missing(error) else f"{100 * error:+.1f} %"
        flag = "*" if name in flagged else ""
        pair = f"replayed {span_text(value['replayed'][name])}, observed {span_text(value['observed'][name])}"
        yield f"  {name.upper() if name != 'mean' else name}{flag}", f"{pair}: {apart}"
