"""The whole description: of a loaded trace or of files, and of a slice beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracekit.describe.arrivals import arrival_numbers
from tracekit.describe.labels import label_numbers, observed_numbers, session_numbers
from tracekit.describe.rows import Rows
from tracekit.errors import UsageError, shown
from tracekit.slices import slice_of
from tracekit.traces.reuse import ReuseCurve, reuse_curve
from tracekit.traces.slicing import WHOLE, Slice
from tracekit.traces.tally import Tally
from tracekit.traces.windows import representative_windows, window_length_s

if TYPE_CHECKING:
    import duckdb

__all__ = ["describe", "describe_trace"]

CAP_SHARE = 0.001
PARTS = (0.5, 0.9, 0.99)


def describe(
    inputs: str | Sequence[str], *, window: str | None = None, where: str | None = None, thin: str | None = None,
    by: str | None = None, limit: int | None = None, rate_scale: float = 1.0, spread_ticks: bool = False, seed: int = 0,
    window_length: int | None = None, mapping: Sequence[str] = (), trace_format: str | None = None, arrival: str | None = None,
    cached: Literal["inside", "outside"] | None = None, db: str | Path = "tracekit.duckdb",
) -> dict[str, Any]:  # fmt: skip
    """A loaded trace by its name in ``db``, or files, which are read and not kept. ``window_length``: seconds of a representative
    window. Errors: ``UsageError``, ``InputError``.
    """
    options = {"window": window, "where": where, "thin": thin, "by": by, "limit": limit, "rate_scale": rate_scale,
               "spread_ticks": spread_ticks, "seed": seed}  # fmt: skip
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    with _opened(names, db, mapping, trace_format, {"arrival": arrival, "cached": cached}) as (con, trace):
        head = con.execute("SELECT span_ns, t0_ns FROM traces WHERE trace = ?", [trace]).fetchall()[0]
        return describe_trace(con, trace, slice_of(options, head[0], head[1]), window_s=window_length)


@contextmanager
def _opened(names: list[str], db: str | Path, mapping: Sequence[str], trace_format: str | None,
            load_options: dict[str, Any]) -> Iterator[tuple[duckdb.DuckDBPyConnection, int]]:  # fmt: skip
    import duckdb

    from tracekit.store import Store
    from tracekit.traces.load import load_trace
    from tracekit.traces.stored import stored_number

    store = Store(db)
    if len(names) == 1 and not Path(names[0]).exists() and store.exists():
        with store.read() as con:
            number = stored_number(con, names[0])
            if number is not None:
                yield con, number
                return
    with TemporaryDirectory(prefix="tracekit-describe-") as folder, duckdb.connect(str(Path(folder, "t.duckdb"))) as con:
        con.execute("SET memory_limit = '1GB'")
        report = load_trace(con, names, mapping=list(mapping), fmt=trace_format, **load_options)
        assert report.trace is not None
        yield con, report.trace


def describe_trace(con: duckdb.DuckDBPyConnection, trace: int, part: Slice = WHOLE, *,
                   window_s: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Trace number ``trace`` of ``con``: facts, numbers, representative windows, warnings; ``slice`` beside ``whole``."""
    facts = _facts(con, trace)
    whole, tally = _numbers(Rows(con, trace), facts)
    document: dict[str, Any] = {"schema": "tracekit.describe/1", "trace": facts, "whole": whole, "slice": None}
    if not part.is_whole:
        rows = Rows.of_slice(con, trace, part, facts["time_resolution_ns"])
        said = {"options": _said(part), "weight": rows.weight, "thinned_by": rows.by}
        document["slice"] = {**said, **_numbers(rows, facts)[0]}
    windowed = whole["arrivals"]["rate_refused"] is None
    length = window_s or window_length_s(tally.span_ns, tally.n)
    windows = representative_windows(tally.seconds(), tally.span_ns, length, tally.first_ns) if windowed else []
    document["windows"] = [window.as_dict() for window in windows]
    document["warnings"] = [*facts.pop("warnings"), *_remarks(whole, tally)]
    if not windows:
        why = "there is no rate" if not windowed else f"none of {length} s with 20 requests in it"
        document["warnings"].append(f"no representative windows: {why}")
    return document


def _facts(con: duckdb.DuckDBPyConnection, trace: int) -> dict[str, Any]:
    columns = ("name", "source_format", "t0_ns", "t0_zone_assumed", "span_ns", "time_resolution_ns", "arrival_kind",
               "block_tokens", "hash_scope", "hash_rounding", "obs_clock",
               "rows_read", "rows_kept", "rows_dropped", "warnings")  # fmt: skip
    rows = con.execute(f"SELECT {', '.join(columns)} FROM traces WHERE trace = ?", [trace]).fetchall()
    if not rows:
        raise UsageError(f"trace {shown(trace)}: not in this database")
    facts = dict(zip(columns, rows[0], strict=True))
    files = con.execute("SELECT list_transform(source_files, lambda f: f.name) FROM traces WHERE trace = ?", [trace])
    return {**facts, "rows_dropped": dict(facts["rows_dropped"] or {}), "files": files.fetchall()[0][0]}


def _numbers(rows: Rows, facts: dict[str, Any]) -> tuple[dict[str, Any], Tally]:
    tally, prompts = Tally(), []
    hashed = facts["block_tokens"] is not None
    for batch in rows.batches():
        tally.add(batch.arrival_ns, batch.input_tokens, batch.output_tokens)
        if hashed:
            prompts.append(batch.input_tokens)
    if not tally.n:
        raise UsageError("the slice holds no request; expected a wider window or a looser condition")
    observed = observed_numbers(rows)
    runs = rows.runs() if hashed else None
    prefix = None if runs is None else prefix_numbers(reuse_curve(runs, np.concatenate(prompts), facts["block_tokens"]))
    return {
        "requests": tally.n,
        "arrivals": arrival_numbers(tally, facts["arrival_kind"]),
        "input_tokens": tally.input_tokens.summary(),
        "output_tokens": tally.output_tokens.summary(),
        "prefix": prefix,
        "sessions": session_numbers(rows),
        "observed": observed,
        **label_numbers(rows),
    }, tally


def prefix_numbers(curve: ReuseCurve) -> dict[str, Any]:
    """Shares of prompt tokens that a prefix cache gives, unbounded and by size in blocks and tokens."""
    size = curve.block_tokens
    points = [{"cache_blocks": blocks, "cache_tokens": blocks * size, "share": share, "share_last_half": half}
              for blocks, share, half in curve.points()]  # fmt: skip
    return {
        "block_tokens": size,
        "blocks": curve.references,
        "distinct_blocks": curve.distinct,
        "reseen_share": curve.reseen / curve.references if curve.references else 0.0,
        "share_unbounded": curve.share(None),
        "share_unbounded_last_half": curve.share(None, last_half=True),
        "by_cache_size": points,
        "tokens_for": {f"{part:.0%}": curve.blocks_for(part) * size for part in PARTS},
        "rule": "LRU over blocks, requests one after the other, nothing pinned: an upper bound of what an engine gets",
    }


def _said(part: Slice) -> dict[str, Any]:
    said = {name: getattr(part, name) for name in ("window_ns", "limit", "rate_scale", "where", "thin", "by", "spread_ticks")}
    return {name: value for name, value in said.items() if value not in (None, False, 1.0)} | {"seed": part.seed}


def _remarks(whole: dict[str, Any], tally: Tally) -> Iterator[str]:
    """What the numbers give away of the trace as a recording."""
    holes = whole["arrivals"]["holes"]
    if holes:
        yield (f"the trace has a hole of {holes[0]['length_s']:,.1f} s at {holes[0]['at_s']:,.1f} s"
               + (f" and {len(holes) - 1} more" if len(holes) > 1 else ""))  # fmt: skip
    values, counts = tally.output_tokens.table()
    if len(values) > 1 and counts[-1] >= max(5, CAP_SHARE * tally.n) and counts[-1] > 3 * counts[-2]:
        yield f"{counts[-1]:,} answers have exactly the largest length, {values[-1]:,} tokens: a cap of the source"
    for name, lengths in (("input", tally.input_tokens), ("output", tally.output_tokens)):
        zeros = lengths.summary().get("zeros", 0)
        if zeros:
            yield f"{zeros:,} requests have no {name} tokens: they failed in the source, and are not replayed"
