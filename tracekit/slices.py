"""Which part of a trace is replayed: windows, their lead-in, and what of it counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from tracekit.errors import UsageError, shown
from tracekit.metrics.slo import parse_duration_ns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from replay_engine.profile import Profile

__all__ = ["lead_in_ns", "parse_window"]

LEAD_IN_NS = 60_000_000_000
_EXPECTED = "expected FROM:TO, as 10m:20m from the trace's start, or two absolute times; an empty side is the trace's own end"


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
        return max(LEAD_IN_NS, round(2 * observed))
    if prompt is None:
        return LEAD_IN_NS
    cost = profile.latency
    prefill = max(cost.floor_ns, cost.a_ns + cost.b_ns * prompt) + cost.c_ns * prompt * prompt / 2
    token = max(cost.floor_ns, cost.a_ns) + cost.d_ns + cost.e_ns * (prompt + output / 2) + cost.h0_ns
    return max(LEAD_IN_NS, int(np.ceil(2 * (prefill + output * token))))
