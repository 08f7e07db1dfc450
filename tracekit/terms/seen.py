"""What a load generator sees of a run: when it sent each request, its tokens and its end; nothing of the engine inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase, RequestState
from tracekit.diagnosis.run_data import RunData
from tracekit.errors import UsageError
from tracekit.metrics.fleet import fleet_gaps
from tracekit.metrics.gaps import TokenGaps, token_gaps

__all__ = ["OBJECTIVES", "Seen", "seen_of"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
OBJECTIVES = ("ttft", "tpot", "e2e")
"""The parts of an SLO that their tools know too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Counted requests, arrays by row; times in ns, -1 where there is none.

    ``sent_ns``: when the client let the request go, which is after its own limit of requests in flight. ``ttft_ns`` and
    ``e2e_ns`` from then. ``finished``, ``cancelled``; all others ended in an error. ``limit_ns``: per objective and row;
    ``asked``: the objectives that anybody is held to. ``gaps``: of finished requests, ``None`` where the run keeps no iterations.
    ``window_ns``: first sent to last token.
    """

    sent_ns: Ints
    ttft_ns: Ints
    e2e_ns: Ints
    prompt: Ints
    output: Ints
    finished: Mask
    cancelled: Mask
    limit_ns: dict[str, Ints]
    asked: tuple[str, ...]
    unknown_parts: tuple[str, ...]
    gaps: TokenGaps | None
    window_ns: int

    @property
    def errored(self) -> int:
        """Requests that neither finished nor were given up by the client."""
        return int((~self.finished & ~self.cancelled).sum())


def seen_of(data: RunData) -> Seen:
    """The client's view of a run. ``UsageError``: no counted request got a token."""
    rows = data.outcomes[data.counted[data.outcomes["request"]]]
    rows = rows[rows["state"] != RequestState.unreleased]
    held = _held_back_ns(data, rows["request"])
    spoke = rows["ttft_ns"] >= 0
    if not spoke.any():
        raise UsageError("no counted request got a token: there is nothing that a client would have measured")
    ended = rows["e2e_ns"] >= 0
    sent = rows["arrival_ns"] + held
    finished = rows["state"] == RequestState.finished
    asked = tuple(part for part in OBJECTIVES if part in data.slo_parts)
    return Seen(
        sent_ns=sent,
        ttft_ns=np.where(spoke, rows["ttft_ns"] - held, -1),
        e2e_ns=np.where(ended, rows["e2e_ns"] - held, -1),
        prompt=rows["prompt_tokens"].astype(np.int64),
        output=rows["output_tokens"].astype(np.int64),
        finished=finished,
        cancelled=rows["state"] == RequestState.cancelled,
        limit_ns={part: data.limits_ns(part, rows["request"]) for part in asked},
        asked=asked,
        unknown_parts=tuple(part for part in data.slo_parts if part not in OBJECTIVES),
        gaps=_gaps(data, rows["request"][finished]),
        window_ns=max(int(rows["last_token_ns"].max() - sent.min()), 1),
    )


def _held_back_ns(data: RunData, requests: Ints) -> Ints:
    """How long the client's own limit held each request back, per row."""
    spans = data.spans[data.spans["phase"] == Phase.dispatch]
    held = np.zeros(data.source.total, np.int64)
    np.add.at(held, spans["request"], spans["end_ns"] - spans["start_ns"])
    mine: Ints = held[requests]
    return mine


def _gaps(data: RunData, requests: Ints) -> TokenGaps | None:
    """Gaps between the tokens of these requests alone."""
    if not data.has_iterations:
        return None
    chosen = np.zeros(data.source.total, np.bool_)
    chosen[requests] = True
    rules, tables = data.policy.rules, (data.iterations, data.spans, data.outcomes, chosen)
    if rules.several:
        return fleet_gaps(*tables, first_elsewhere=bool(rules.pd.prefill) and rules.pd.first_token_from == "prefill")
    return token_gaps(*tables)
