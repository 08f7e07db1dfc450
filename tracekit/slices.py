"""Which part of a trace is taken: what the options of a command say, the lead-in of a window, and the lines that tell it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tracekit.errors import UsageError, shown
from tracekit.metrics.slo import parse_duration_ns
from tracekit.traces.sessions import RELATIVE_DEFAULT, parse_sessions
from tracekit.traces.slicing import By, Slice

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from replay_engine.profile import Profile
    from tracekit.traces.source import TraceSource

__all__ = ["check_slice", "lead_in_ns", "parse_thin", "parse_window", "slice_lines", "slice_of"]

MISSING = "unknown"
LEAD_IN_NS = 60_000_000_000
_EXPECTED = "expected FROM:TO, as 10m:20m from the trace's start, or two absolute times; an empty side is the trace's own end"


def slice_of(given: Mapping[str, Any], span_ns: int, t0_ns: int | None) -> Slice:
    """The slice that a command's options ``window limit rate_scale where thin by spread_ticks sessions seed`` say, without a
    lead-in."""
    window, by = given.get("window"), given.get("by")
    if by is not None and by not in ("session", "prefix", "request"):
        raise UsageError(f"--by {shown(by)}: expected session, prefix or request")
    return Slice(
        window_ns=parse_window(window, span_ns, t0_ns) if window else None,
        limit=given.get("limit"),
        rate_scale=given.get("rate_scale", 1.0),
        where=given.get("where"),
        thin=parse_thin(given["thin"]) if given.get("thin") else None,
        by=cast("By | None", by),
        spread_ticks=bool(given.get("spread_ticks")),
        sessions=_sessions(given.get("sessions")),
        seed=given.get("seed", 0),
        isl_scale=given.get("isl_scale", 1.0),
        osl_scale=given.get("osl_scale", 1.0),
        burst_scale=given.get("burst_scale", 1.0),
    )


def check_slice(given: Mapping[str, Any]) -> None:
    """What can be said of these options before the trace is there: that they can be read. Errors: ``UsageError``."""
    slice_of({**given, "window": None}, 0, None)
    window = given.get("window")
    if window and not any(_moment(window[:at], 0, 0) is not None and _moment(window[at + 1 :], 0, 0) is not None
                          for at, char in enumerate(window) if char == ":"):  # fmt: skip
        raise UsageError(f"--window {shown(window)}: not a window; {_EXPECTED}")


def parse_thin(text: str) -> tuple[int, int]:
    """``1/64`` as (1, 64). Errors: ``UsageError``."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
    if match is None or not 0 < int(match[1]) < int(match[2]):
        raise UsageError(f"--thin {shown(text)}: expected a share below one, as 1/64")
    return int(match[1]), int(match[2])


def slice_lines(source: TraceSource) -> Iterator[str]:
    """What a person must know of the slice that is replayed, a line each."""
    part = source.part
    if part.window_ns is not None:
        yield f"window: a lead-in of up to {part.lead_in_ns / 1e9:.0f} s before it is replayed and not counted"
    if part.where is not None:
        yield f"where: only the requests for which {shown(part.where, 200)} holds"
    if part.thin is not None:
        whole = {"session": "sessions, each whole", "prefix": "prefix groups, each whole", "request": "requests"}
        yield f"thin: {part.thin[0]} of {part.thin[1]} {whole[source.by or 'request']}; each stands for {source.weight:.4g}"
    if part.spread_ticks:
        yield f"spread: arrivals are spread inside ticks of {source.tick_ns / 1e9:g} s by seed {part.seed}"
    yield from _burst_lines(source)
    yield from _length_lines(source)
    yield from _session_lines(source)
    if source.left_out:
        yield f"{source.left_out:,} requests of the trace are left out: they failed or were cancelled in it, or have no tokens"


def _sessions(text: str | None) -> str | None:
    if text is not None:
        parse_sessions(text)
    return text


def _burst_lines(source: TraceSource) -> Iterator[str]:
    """What became of the arrivals' evenness."""
    if source.part.burst_scale != 1.0:
        before, after = (MISSING if each is None else f"{each:.2f}" for each in source.gap_cv)
        yield (f"bursts: gaps between arrivals to the power {source.part.burst_scale:g}, the same requests in the same order over"
               f" the same time; the gaps' coefficient of variation goes from {before} to {after}"
               " (0 even, 1 as by chance)")  # fmt: skip


def _length_lines(source: TraceSource) -> Iterator[str]:
    """What became of prompts, outputs and shared prefixes at other lengths."""
    part = source.part
    if not part.scales_lengths:
        return
    yield (f"lengths: prompts x{part.isl_scale:g}, outputs x{part.osl_scale:g}; latencies that the trace observed are of its own"
           " lengths and left out")  # fmt: skip
    if source.run_offsets is None:
        return
    if part.isl_scale > 1:
        yield ("prefixes: what is added to a prompt stands at its end and is nobody else's, so the prefix hashes break there: the"
               " same blocks are shared as before, by longer prompts")  # fmt: skip
    elif part.isl_scale < 1:
        yield ("prefixes: a prompt keeps its first blocks only, so the prefix hashes break where it is cut: what was shared"
               " behind that is shared no more")  # fmt: skip
    if part.osl_scale != 1 and source.parent is not None:
        yield "prefixes: outputs are of another length than the next turn's prompt has room for; it does not grow with them"


def _session_lines(source: TraceSource) -> Iterator[str]:
    kind, said = source.placement.kind, source.part.sessions
    if kind == "as_recorded":
        yield "sessions: every turn arrives at its recorded time, whether or not the one before it is done (as_recorded)"
    elif kind == "start_together":
        yield "sessions: all start at one instant; a turn follows the completion of the one before it"
    elif kind == "poisson":
        why = "they have no common clock; --sessions says otherwise" if said is None else "as said"
        yield f"sessions: placed by {said or RELATIVE_DEFAULT} ({why}); a turn follows the completion of the one before it"
    elif source.parent is not None:
        yield ("sessions: they start as recorded, and a turn follows the completion of the one before it and its think time"
               " (--sessions as_recorded: its recorded time)")  # fmt: skip


def parse_window(text: str, span_ns: int, t0_ns: int | None) -> tuple[int, int]:
    """``FROM:TO`` in ns from the trace's start, the end excluded. ``t0_ns``: the start as UTC ns, for absolute times."""
    for at, char in enumerate(text):
        if char != ":":
            continue
        low, high = _moment(text[:at], t0_ns, 0), _moment(text[at + 1 :], t0_ns, span_ns + 1)
        if low is not None and high is not None:
            if high <= low:
                raise UsageError(f"--window {shown(text)}: ends before it begins; {_EXPECTED}")
            return low, high
    raise UsageError(f"--window {shown(text)}: not a window; {_EXPECTED}")


def _moment(text: str, t0_ns: int | None, default: int) -> int | None:
    text = text.strip()
    if not text:
        return default
    if text == "0":
        return 0
    try:
        return parse_duration_ns(text)
    except UsageError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if t0_ns is None:
        raise UsageError(f"--window {shown(text)}: the trace has no absolute times; expected times from its start, as 10m:20m")
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _SECOND
    return seconds * 1_000_000_000 + moment.microsecond * 1000 - t0_ns


_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)


def lead_in_ns(con: DuckDBPyConnection, trace: int, profile: Profile) -> int:
    """Traffic before a window that is replayed and not counted: 60 s, or twice the mean residence time if that is longer.

    Residence: the observed end-to-end latency, else what the profile says of the mean request alone on the engine.
    """
    row = con.execute("SELECT avg(obs_e2e_ns), avg(input_tokens), avg(output_tokens) FROM requests WHERE trace = ?", [trace])
    observed, prompt, output = row.fetchall()[0]
    if observed is not None:
        return max(LEAD_IN_NS, int(2 * observed))
    if prompt is None:
        return LEAD_IN_NS
    cost = profile.latency
    prefill = max(cost.floor_ns, cost.a_ns + cost.b_ns * prompt) + cost.c_ns * prompt * prompt / 2
    token = max(cost.floor_ns, cost.a_ns) + cost.d_ns + cost.e_ns * (prompt + output / 2) + cost.h0_ns
    return max(LEAD_IN_NS, int(np.ceil(2 * (prefill + output * token))))
