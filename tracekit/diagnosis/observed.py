"""What can be said of a trace that brings its own latencies, and no iterations: where the time went as far as its columns tell,
who was there together, which limits show as plateaus, and which findings cannot be made.

``seen = observe(source)``. Times are ns on the trace's clock; -1: unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.attribution import Attribution
from tracekit.diagnosis.levels import Levels, Lives, Plateau, levels_of, plateau_of

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["Limit", "Observed", "observe", "parts_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_ITERATIONS = "the trace has no iterations, and so no reason why anybody was kept waiting"
_NEEDS: dict[str, tuple[str, ...]] = {
    "QUEUE_SEATS": ("queue", "e2e"),
    "QUEUE_KV": ("queue", "e2e"),
    "HOL_LONG_PROMPT": ("queue", "ttft"),
    "STARVATION": ("queue", "priority"),
    "BURST": (),
    "OVERLOAD": ("ttft",),
    "CLIENT_LIMIT": ("e2e",),
    "NONE": ("ttft",),
}
"""What each finding needs of an observed trace, besides arrivals and lengths."""
_NEVER: dict[str, str] = {
    "QUEUE_BUDGET": _ITERATIONS,
    "CHUNK_TOO_SMALL": _ITERATIONS,
    "CHUNK_TOO_LARGE": _ITERATIONS,
    "UNDERUSED_BUDGET": _ITERATIONS,
    "ADMISSION_STRICT": "what admission reserved is not in the trace",
    "ADMISSION_LAX": "preemptions are not in the trace",
    "PREEMPTION_STORM": "preemptions are not in the trace",
    "PREFILL_STALLS_DECODE": "gaps between tokens are not in the trace, only their mean",
    "PREFIX_MISS": "what the cache gave is not in the trace",
    "PD_IMBALANCE": "stages between engines are not in the trace",
    "KV_TRANSFER": "stages between engines are not in the trace",
}
_STILL, _FULL, _MOSTLY = 0.15, 0.85, 0.8
_WORDS = {
    "queue": "queue times", "ttft": "times to first token", "tpot": "times per token", "e2e": "times to the last token",
    "priority": "priorities",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limit:
    """``what``: ``seats``, ``kv``, ``count`` (of how many run, for whatever reason), or ``None``: cannot be told, or none.
    ``share``: of the time in which somebody waited; ``because``: one sentence."""

    what: str | None
    share: float
    because: str


@dataclass(frozen=True, kw_only=True)
class Observed:
    """``attribution``: by request of the source. ``has``: latency columns there; ``disabled``: findings that cannot be made of
    this trace, each with the reason."""

    attribution: Attribution
    lives: Lives
    has: tuple[str, ...]
    disabled: dict[str, str]

    @cached_property
    def levels(self) -> Levels | None:
        """``None`` where the ends of requests are not known."""
        return levels_of(self.lives) if "e2e" in self.has else None

    def plateaus(self) -> tuple[Plateau, ...]:
        """Levels that stand still while somebody waits: ``running`` speaks for a limit of seats, ``tokens`` for one of KV;
        ``in_flight``, over all the time in which anybody is there, for one at the client. The stillest first."""
        levels = self.levels
        if levels is None:
            return ()
        found = [plateau_of("in_flight", levels.in_flight, levels, levels.in_flight > 0)]
        if "queue" in self.has:
            found += [plateau_of(name, getattr(levels, name), levels, levels.waiting > 0) for name in ("running", "tokens")]
        return tuple(sorted((each for each in found if each.of_ns), key=lambda each: each.spread))

    def limit(self, seats: int | None = None, kv_tokens: int | None = None) -> Limit:
        """Which limit kept people waiting. With the engine's ``seats`` or KV size known: the one that was reached in most of the
        time in which somebody waited. Without: what stood still meanwhile."""
        levels = self.levels
        if levels is None or "queue" not in self.has:
            return Limit(None, 0.0, "queue times and ends are not both told: who ran and who waited is not known")
        waits = levels.waiting > 0
        total = int(levels.length_ns[waits].sum())
        if not total:
            return Limit(None, 0.0, "nobody waited")
        if seats is None and kv_tokens is None:
            return self._still()

        def reached(level: Ints | Floats, bound: float) -> float:
            return float(levels.length_ns[waits & (level >= bound)].sum() / total)

        at_seats = 0.0 if seats is None else reached(levels.running, 0.98 * seats)
        at_kv = 0.0 if kv_tokens is None else reached(levels.tokens, _FULL * kv_tokens)
        if max(at_seats, at_kv) < _MOSTLY:
            return Limit(
                None, max(at_seats, at_kv), f"seats were taken in {at_seats:.0%}, KV was full in {at_kv:.0%} of the waiting"
            )
        if min(at_seats, at_kv) >= _MOSTLY:
            return Limit(None, min(at_seats, at_kv), "seats and KV were both at their limit: they cannot be told apart")
        name, share = ("seats", at_seats) if at_seats > at_kv else ("kv", at_kv)
        return Limit(name, share, f"at its limit in {share:.0%} of the time in which somebody waited")

    def _still(self) -> Limit:
        by = {each.what: each for each in self.plateaus()}
        running, tokens = by["running"], by["tokens"]
        if running.spread > _STILL >= tokens.spread and self._residents >= 2:
            return Limit("kv", tokens.share, f"{tokens.value:,.0f} tokens stood still while how many ran did not")
        if tokens.spread > _STILL >= running.spread:
            return Limit("count", running.share, f"{running.value:.0f} ran, whatever they held: seats, or an equal share each")
        why = "both" if max(running.spread, tokens.spread) <= _STILL else "neither"
        return Limit(None, 0.0, f"{why} of how many ran and what they held stood still: the engine's settings would tell")

    @property
    def _residents(self) -> float:
        """How many requests the held tokens were of, in effect: 1 where one held nearly all. Over the time of waiting."""
        levels, lives = self.levels, self.lives
        assert levels is not None
        seen = lives.whole
        edges = levels.at_ns
        squares = np.zeros(len(edges) + 1)
        held = (lives.prompt + lives.output / 2.0)[seen]
        np.add.at(squares, np.searchsorted(edges, lives.scheduled[seen]), held**2)
        np.add.at(squares, np.searchsorted(edges, lives.end[seen]), -(held**2))
        level = np.cumsum(squares)[: len(edges) - 1]
        waits = (levels.waiting > 0) & (level > 0)
        effective = levels.tokens[waits] ** 2 / level[waits]
        return float(np.average(effective, weights=levels.length_ns[waits])) if waits.any() else 0.0

    def waited_through(self, rows: Flags) -> Floats:
        """Per request: ns that the requests of ``rows`` (a mask) spent waiting to be scheduled while it was computing its
        prompt; each of them counts. Who has the most may be whom they waited for."""
        lives = self.lives
        waits = rows & lives.whole & (lives.scheduled > lives.arrival)
        edges = np.unique(np.concatenate((lives.arrival[waits], lives.scheduled[waits])))
        if not len(edges):
            return np.zeros(len(rows))
        steps = np.bincount(np.searchsorted(edges, lives.arrival[waits]), minlength=len(edges))
        steps = steps - np.bincount(np.searchsorted(edges, lives.scheduled[waits]), minlength=len(edges))
        waiting = np.cumsum(steps)[:-1]
        passed = np.concatenate(([0.0], np.cumsum(waiting * np.diff(edges).astype(np.float64))))
        through = np.interp(lives.first, edges, passed) - np.interp(lives.scheduled, edges, passed)
        found: Floats = np.where(lives.whole, through, 0.0)
        return found


def observe(source: TraceSource) -> Observed:
    """What ``source`` itself says of its requests."""
    columns = {part: getattr(source, f"obs_{part}_ns") for part in ("queue", "ttft", "tpot", "e2e")}
    known = {part: values for part, values in columns.items() if values is not None and bool((values >= 0).any())}
    total = source.total
    queue, ttft, tpot, e2e = (known.get(part, np.full(total, -1, np.int64)) for part in ("queue", "ttft", "tpot", "e2e"))
    output = source.output_tokens.astype(np.int64)
    counted = np.where((tpot >= 0) & (output > 1), tpot * np.maximum(output - 1, 0), -1)
    later = np.where((e2e >= 0) & (ttft >= 0), np.maximum(e2e - ttft, 0), np.where(ttft >= 0, counted, -1))
    end = np.where(e2e >= 0, e2e, np.where((ttft >= 0) & (later >= 0), ttft + later, -1))
    has = tuple(known) if bool((e2e >= 0).any()) or not bool((end >= 0).any()) else (*known, "e2e")
    arrival = source.arrival_ns.astype(np.int64)

    def moment(after: Ints) -> Ints:
        return np.where(after >= 0, arrival + after, -1)

    lives = Lives(arrival, moment(queue), moment(ttft), moment(end), source.prompt_tokens.astype(np.int64), output)
    turns = source.parent is not None and bool((source.parent >= 0).any())
    return Observed(
        attribution=parts_of(queue, ttft, later, end), lives=lives, has=has,
        disabled=_disabled(has, source.priority is not None, turns=turns),
    )  # fmt: skip


def parts_of(queue: Ints, ttft: Ints, later: Ints, end: Ints) -> Attribution:
    """Queue, prefill and decode where they are told, from times since the arrival (``later``: since the first token; ns, -1:
    unknown); ``not_explained`` is of requests without a first token."""
    waited = np.where((queue >= 0) & (ttft >= 0), np.minimum(queue, ttft), 0)
    mixed = np.where(ttft >= 0, ttft, 0)
    unknown = np.where(ttft < 0, np.maximum(end, 0), 0)
    told = queue >= 0
    first = np.stack([waited, np.where(told, mixed - waited, 0), np.where(told, 0, mixed), np.zeros_like(ttft), unknown], axis=1)
    after = np.zeros_like(first)
    after[:, 3] = np.maximum(later, 0)
    parts = ("queue", "prefill", "queue_or_prefill", "decode", "not_explained")
    keep = [k for k in range(len(parts)) if first[:, k].any() or after[:, k].any()]
    names = tuple(parts[k] for k in keep)
    return Attribution(names, first[:, keep], after[:, keep], first.sum(axis=1), after.sum(axis=1))


def _disabled(has: tuple[str, ...], priority: bool, *, turns: bool) -> dict[str, str]:
    there = {*has, *(("priority",) if priority else ())}
    found = dict(_NEVER)
    for finding, needs in _NEEDS.items():
        missing = [_WORDS[name] for name in needs if name not in there]
        if missing:
            found[finding] = f"the trace has no {' and no '.join(missing)}"
        elif turns and finding in ("BURST", "CLIENT_LIMIT"):
            found[finding] = "turns come when the one before has ended, so how they bunch is not the clients' doing alone"
    return dict(sorted(found.items()))
