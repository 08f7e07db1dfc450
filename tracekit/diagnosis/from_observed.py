"""What can be named from an observed trace alone: its requests' own latencies and the engine's known settings, no iterations.

It names a cause only where these leave no other reading, and otherwise says why it cannot. Nothing is proposed: to change a knob
and see, replay the trace. Times are ns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import percent
from tracekit.diagnosis.finding import Diagnosis, Evidence, Finding, Where
from tracekit.diagnosis.levels import Levels
from tracekit.diagnosis.observed import Observed, observe

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["diagnose_observed"]

Bools = npt.NDArray[np.bool_]
_WAITED = 0.1
"""Of all the time to first tokens: where less was spent in the queue, no limit is to blame."""
_INSIDE = 0.8
_LONGER, _FEW = 8.0, 0.25
_OVER_SEATS = 1.1
_HELD, _SLOWER = 1.25, 3.5


def diagnose_observed(
    source: TraceSource, *, seen: Observed | None = None, seats: int | None = None, kv_tokens: int | None = None,
    late: Bools | None = None,
) -> Diagnosis:  # fmt: skip
    """The cause of the waits in a trace with queue times; with the engine's ``seats`` and KV tokens where they are known. No
    finding: ``remarks`` say that nothing waits, or why it cannot be told. ``late``: the requests whose waits matter (all)."""
    seen = observe(source) if seen is None else seen
    lives = seen.lives
    matter = lives.whole if late is None else lives.whole & late
    waits = np.where(matter, lives.scheduled - lives.arrival, 0).astype(np.float64)
    first = float(np.where(matter, lives.first - lives.arrival, 0).sum())
    found: Finding | None = None
    if "queue" not in seen.has or "e2e" not in seen.has:
        remark = "cannot tell, because the trace has no queue times, or no ends"
    elif waits.sum() < _WAITED * first:
        waited = percent(float(waits.sum()) / max(first, 1.0))
        remark = f"requests wait {waited} of the time to the first token in the queue: no limit binds there"
    else:
        found, remark = _long_prompts(seen, waits), ""
        if found is None:
            found, remark = _limit(source, seen, waits, seats, kv_tokens)
    if found is not None:
        found = replace(found, share=found.excess_ns / max(float(waits.sum()), 1.0))
    never = tuple(f"{name} cannot be told: {why}" for name, why in seen.disabled.items())
    return Diagnosis(
        findings=() if found is None else (found,),
        excess_ns=round(float(waits.sum())),
        unexplained_ns=round(float(waits.sum())) - (0 if found is None else found.excess_ns),
        basis="time in the queue, as observed",
        remarks=(*((remark,) if remark else ()), *never),
    )


def _long_prompts(seen: Observed, waits: npt.NDArray[np.float64]) -> Finding | None:
    """Short requests that wait nearly only while a few long prompts are computed."""
    prompt, lives = seen.lives.prompt, seen.lives
    long = prompt >= _LONGER * np.median(prompt)
    if not long.any() or long.mean() > _FEW or not waits[~long].any():
        return None
    inside = float(seen.waited_through(~long)[long].sum() / waits[~long].sum())
    busy = _covered(lives.scheduled[long & lives.whole], lives.first[long & lives.whole])
    span = float(lives.end.max() - lives.arrival.min())
    if inside < _INSIDE or inside > 1.2 or busy > 0.5 * span:
        return None
    got = np.where(long, 0.0, waits)
    return _finding(
        seen, "HOL_LONG_PROMPT", got,
        f"{percent(min(inside, 1.0))} of the waiting of the others passes while {int(long.sum())} prompts of"
        f" {int(prompt[long].min())} tokens and more are computed, which is {percent(busy / span)} of the time",
        (Evidence(metric="waits inside long prefills", value=inside, unit="of the others' waiting time", threshold=_INSIDE),
         Evidence(metric="time of long prefills", value=busy / span, unit="of the trace", threshold=0.5)),
        tuple(np.flatnonzero(long).tolist()),
    )  # fmt: skip


def _covered(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> float:
    """The length of the union of stretches, ns."""
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    if not len(begin):
        return 0.0
    opens = np.concatenate(([True], begin[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return float((reach[closes] - begin[opens]).sum())


def _limit(source: TraceSource, seen: Observed, waits: npt.NDArray[np.float64], seats: int | None,
           kv_tokens: int | None) -> tuple[Finding | None, str]:  # fmt: skip
    """Seats or KV, where the settings are known, one of the two was reached, and nothing else reads the same."""
    limit, levels = seen.limit(seats, kv_tokens), seen.levels
    if limit.what not in ("seats", "kv") or levels is None:
        return None, f"cannot tell, because {limit.because}"
    if source.priority is not None and len(np.unique(source.priority)) > 1:
        return None, "cannot tell, because requests have priorities: who was passed over by whom is not in the trace"
    if limit.what == "kv" and (why := _work_done_twice(seen, levels, kv_tokens or 0)):
        return None, why
    if seats is not None and float(levels.running.max()) > _OVER_SEATS * seats:
        return None, f"cannot tell, because up to {int(levels.running.max())} ran at a time, on {seats} seats: several engines"
    if limit.what == "seats" and _grows(seen):
        return None, "cannot tell, because waits grow to the end: too few seats and too much load look the same"
    what = f"seats ({seats})" if limit.what == "seats" else f"KV ({kv_tokens} tokens)"
    evidence = Evidence(metric=f"{limit.what} at the limit", value=limit.share, unit="of the time of waiting", threshold=0.8)
    name = "QUEUE_SEATS" if limit.what == "seats" else "QUEUE_KV"
    return _finding(seen, name, waits, f"while somebody waited the {what} were {limit.because}", (evidence,), ()), ""


def _work_done_twice(seen: Observed, levels: Levels, kv_tokens: int) -> str:
    """Signs of evictions: more held than there is, or prompts, once begun, far slower than the quickest. Else empty."""
    waiting, lives = levels.waiting > 0, seen.lives
    held = float((levels.tokens[waiting] * levels.length_ns[waiting]).sum() / max(int(levels.length_ns[waiting].sum()), 1))
    if held > _HELD * kv_tokens:
        return "cannot tell, because those that ran held more than the KV there is: some were evicted, and why is not told"
    pace = ((lives.first - lives.scheduled) / np.maximum(lives.prompt, 1))[lives.whole]
    quick, usual = (float(np.quantile(pace, q)) for q in (0.1, 0.5))
    if usual > _SLOWER * quick:
        return (f"cannot tell, because prompts, once begun, take {usual / max(quick, 1e-9):.1f} times as long as the quickest:"
                " evictions or others' prompts, which are not told")  # fmt: skip
    return ""


def _grows(seen: Observed) -> bool:
    """Whether waits grow through the whole arrival window, and the window is long against a request's life."""
    lives = seen.lives
    of = np.flatnonzero(lives.whole)
    order = of[np.argsort(lives.arrival[of], kind="stable")]
    quarters = [float((lives.scheduled - lives.arrival)[part].mean()) for part in np.array_split(order, 4) if len(part)]
    served = float((lives.end - lives.scheduled)[of].mean())
    long = float(lives.arrival[of].max() - lives.arrival[of].min()) > 2.5 * served
    return long and len(quarters) == 4 and quarters[3] > 1.3 * quarters[1] and quarters[3] > quarters[2] > quarters[0]


def _finding(
    seen: Observed, name: str, got: npt.NDArray[np.float64], what: str, evidence: tuple[Evidence, ...], culprits: tuple[int, ...]
) -> Finding:  # fmt: skip
    lives = seen.lives
    worst = np.argsort(-got, kind="stable")[:20]
    total = max(float(np.where(lives.whole, lives.scheduled - lives.arrival, 0).sum()), 1.0)
    return Finding(
        id=name, what=what, excess_ns=round(float(got.sum())), share=float(got.sum()) / total, confidence="medium",
        because="observed moments of the requests, and no iterations", evidence=evidence,
        where=Where(t0_ns=int(lives.arrival.min()), t1_ns=int(lives.end.max()), requests=tuple(worst.tolist())),
        culprits=culprits,
    )  # fmt: skip
