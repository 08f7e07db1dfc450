"""Every gate of a command judged: on the first seeds, and where a limit on a change is not surely kept, once more on others.

Both looks are shown. Where the limit lies within the interval of all their draws, more are taken until it does not, or until
there are ``MOST`` times as many as at first: a change whose size hangs on a burst that few draws have is not missed because the
first few had none, and one below the limit is not failed because they had many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.gate.baseline import Baseline
from tracekit.gate.judging import Judged, Status, judge_absolute, judge_change, judge_finding
from tracekit.gate.limits import Gate
from tracekit.gate.metrics import Figure
from tracekit.gate.replays import Replays

__all__ = ["EXIT_CODES", "MOST", "Judgement", "judge_gates", "most_seeds", "overall", "seeds_of"]

EXIT_CODES: dict[Status, int] = {"passed": 0, "failed": 1, "inconclusive": 4}
MOST = 8
"""How many times the first draws a gate may take in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One gate with its verdict. ``first`` and ``again``: on the first seeds and on the others, where it was judged twice; then
    ``verdict`` is that of all of them."""

    gate: Gate
    verdict: Judged
    first: Judged | None = None
    again: Judged | None = None

    def to_dict(self) -> dict[str, Any]:
        gate = self.gate
        twice = {"first": self.first, "again": self.again}
        return {
            "gate": gate.text, "kind": gate.kind, "metric": gate.metric or None, "finding": gate.finding or None,
            "limit": None if gate.kind == "finding" else gate.limit, "implied": gate.implied, **self.verdict.to_dict(),
            **{name: None if each is None else each.to_dict() for name, each in twice.items()},
        }  # fmt: skip


def seeds_of(seed: int, count: int) -> tuple[list[int], list[int]]:
    """The seeds of the first draws, and those of the second."""
    return list(range(seed, seed + count)), list(range(seed + count, seed + 2 * count))


def most_seeds(seed: int, count: int) -> list[int]:
    """Every seed that a gate may come to draw by; a baseline has them all."""
    return list(range(seed, seed + MOST * count))


def judge_gates(gates: Sequence[Gate], replays: Replays, baseline: Baseline | None, seed: int, count: int, *,
                paired: bool) -> list[Judgement]:  # fmt: skip
    """``paired``: the baseline's draws are of the same traffic."""
    first, other = seeds_of(seed, count)
    return [_judged(gate, replays, baseline, first, other, paired) for gate in gates]


def _judged(gate: Gate, replays: Replays, baseline: Baseline | None, first: list[int], other: list[int],
            paired: bool) -> Judgement:  # fmt: skip
    if gate.kind == "finding":
        return Judgement(gate=gate, verdict=_finding(gate, replays, first))
    if not gate.against_baseline:
        return Judgement(gate=gate, verdict=_absolute(gate, replays, first))
    assert baseline is not None
    once = _change(gate, replays, baseline, first, paired)
    if (once.status == "passed" and once.settled) or gate.two_sided or not once.draws or not paired:
        return Judgement(gate=gate, verdict=once)
    again = _change(gate, replays, baseline, other, paired)
    seeds = first + other
    verdict = _change(gate, replays, baseline, seeds, paired)
    for more in _more(baseline, seeds):
        if verdict.settled:
            break
        seeds = seeds + more
        verdict = _change(gate, replays, baseline, seeds, paired)
    return Judgement(gate=gate, verdict=verdict, first=once, again=again)


def _more(baseline: Baseline, seeds: list[int]) -> Iterator[list[int]]:
    """Further seeds, as many at a time as there were first, as far as the baseline has draws of them."""
    count = len(seeds) // 2
    for begin in range(seeds[0] + 2 * count, seeds[0] + MOST * count, count):
        found = [seed for seed in range(begin, begin + count) if seed in baseline.draws]
        if found:
            yield found


def _absolute(gate: Gate, replays: Replays, seeds: list[int]) -> Judged:
    name, here = gate.metric, replays.plain().figures[gate.metric]
    if gate.figure.counts or here.value is None:
        return judge_absolute(gate, here, [], [])
    noisy = [replays.noisy(seed).figures[name] for seed in seeds]
    like = [replays.drawn(seed).figures[name] for seed in seeds]
    return judge_absolute(gate, here, noisy, like)


def _change(gate: Gate, replays: Replays, baseline: Baseline, seeds: list[int], paired: bool) -> Judged:
    name = gate.metric
    here, base = replays.plain().figures[name], baseline.plain.get(name, _absent(name))
    if gate.two_sided or here.value is None or base.value is None:
        return judge_change(gate, here, base, [])
    mine = [replays.drawn(seed).figures[name] for seed in seeds]
    if paired:
        return judge_change(gate, here, base, [(baseline.draws[at][name], own) for at, own in zip(seeds, mine, strict=True)])
    return judge_change(gate, here, base, None, ([each[name] for each in baseline.draws.values()], mine))


def _absent(name: str) -> Figure:
    return Figure(value=None, reason="the version that wrote it did not know it")


def _finding(gate: Gate, replays: Replays, seeds: list[int]) -> Judged:
    plain = replays.plain()
    assert plain.diagnosis is not None and plain.findings is not None
    share = {each.id: each.share for each in plain.diagnosis.findings}
    draws = [replays.drawn(seed).findings or () for seed in seeds]
    return judge_finding(gate, plain.findings, draws, share)


def overall(judgements: Sequence[Judgement]) -> Status:
    """One failure fails all; nothing passes where something is inconclusive."""
    found = {each.verdict.status for each in judgements}
    return "failed" if "failed" in found else "inconclusive" if "inconclusive" in found else "passed"
