"""Whether the calibrated simulator puts scheduler settings into the order in which the torch engine puts them, on this CPU.

``python -m benchmarks.rank_agreement [--json] [--requests N] [--utilisation U] [--rounds N] [--repeats N] [--quick]``. The
engine is calibrated (exact batches and a short replay of groups), then a trace that the calibration has not seen is replayed
under 24 settings: seats x token budget x longest prefill chunk. Kendall's tau and the regret of the predicted best, for the mean
E2E latency and other objectives. In a round one engine for each setting runs, all of them in turns and each forward pass several
times (``benchmarks/turns.py``); the median of the rounds counts, all brought to one level. How far one half of the rounds agrees
with the other is the yardstick: no prediction can agree with a noisy engine better than it agrees with itself; and rounds drawn
again, with replacement, say how far the figures can be trusted. The least of 24 noisy figures is too low, and a regret held
against it too high: *held out* chooses the observed best by all rounds but one and compares in that one, in turn. One thread on
one core, its CPU time the clock.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.figures import Figure, Report, run_main
from benchmarks.unseen import CPU, Ran, calibrated_here, clock, config_of, engine_runs, settled, simulated
from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency

__all__ = ["OBJECTIVES", "agreement", "held_out_regret", "main", "measure", "middle", "objectives", "redrawn", "settings"]

SEATS, BUDGETS, CHUNKS = (2, 4, 8, 16), (96, 192, 512), (0, 48)
OBJECTIVES = ("e2e_mean", "ttft_mean", "ttft_p90", "tpot_mean", "makespan")
"""The first one is what the targets are for."""
TAU, REGRET = 0.8, 3.0


def settings(quick: bool = False) -> dict[str, SchedulerConfig]:
    """The configurations, by what distinguishes them; ``quick``: six of them."""
    found = {}
    for seats, budget, chunk in product(SEATS, BUDGETS, CHUNKS):
        name = f"{seats} seats, budget {budget}, {f'chunks of {chunk}' if chunk else 'no chunk limit'}"
        changes = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "long_prefill_token_threshold": chunk}
        found[name] = replace(config_of(CPU), **changes)
    return dict(list(found.items())[::4]) if quick else found


def objectives(ran: Ran) -> dict[str, float]:
    """What a setting is judged by, ns; less is better."""
    rows, done = ran.iterations, ran.outcomes
    tpot = done["tpot_ns"][done["output_tokens"] > 1]
    return {
        "e2e_mean": float(done["e2e_ns"].mean()), "ttft_mean": float(done["ttft_ns"].mean()),
        "ttft_p90": float(np.percentile(done["ttft_ns"], 90)), "tpot_mean": float(tpot.mean()),
        "makespan": float(rows["start_ns"][-1] + rows["duration_ns"][-1] - done["arrival_ns"].min()),
    }  # fmt: skip


def agreement(one: list[dict[str, float]], other: list[dict[str, float]], name: str) -> tuple[float, float]:
    """Kendall's tau of both, and the regret of ``one``'s best by ``other``'s figures."""
    from tracekit.trust import kendall_tau, regret_of

    first, second = [each[name] for each in one], [each[name] for each in other]
    return kendall_tau(first, second), regret_of(first, second)


def measure(given: argparse.Namespace) -> Report:
    if hasattr(os, "sched_setaffinity"):  # a thread that moves leaves its caches behind
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model, options, calibrated = calibrated_here(quick=given.quick, wall=False)
    return _report(model, options, calibrated.profile.latency, given)


def _report(model: Any, options: Any, latency: Latency, given: argparse.Namespace) -> Report:
    source = settled(latency, given.requests, given.utilisation)
    configs = settings(given.quick)
    predicted = [objectives(simulated(latency, source, each)) for each in configs.values()]
    chosen = list(configs.values())
    rounds = [
        [objectives(each) for each in engine_runs(model, options, source, chosen, given.repeats)] for _ in range(given.rounds)
    ]
    notes = [
        f"{len(configs)} settings, {source.total} requests unseen by the calibration; tiny, float32, one thread; {clock()}, the"
        f" fastest of {given.repeats} of each forward pass, the median of {given.rounds} rounds"
    ]
    return Report(
        benchmark="rank_agreement", figures=_figures(predicted, rounds), notes=notes + _notes(list(configs), predicted, rounds)
    )


def _figures(predicted: list[dict[str, float]], rounds: list[list[dict[str, float]]]) -> dict[str, Figure]:
    observed = middle(rounds)
    figures: dict[str, Figure] = {}
    for name in OBJECTIVES:
        tau, regret = agreement(predicted, observed, name)
        own, own_regret = ("one round", "one round") if len(rounds) < 2 else _of_itself(rounds, name)
        head = name == OBJECTIVES[0]
        figures[f"{name}_tau"] = Figure(
            value=tau, unit="", target=TAU if head else None, reference=f"the halves of the engine's rounds agree: {own}"
        )
        figures[f"{name}_regret"] = Figure(
            value=100 * regret, unit="%", target=REGRET if head else None, at_most=True,
            reference=f"one half's best by the other half: {own_regret}",
        )  # fmt: skip
    first = OBJECTIVES[0]
    if len(rounds) > 2:
        figures["e2e_mean_regret_held_out"] = Figure(
            value=100 * held_out_regret(predicted, rounds, first), unit="%", target=REGRET, at_most=True,
            reference=f"the best of {len(rounds) - 1} rounds in the one left out, in turn",
        )  # fmt: skip
    values = [each[first] for each in observed]
    figures["spread"] = Figure(value=max(values) / min(values), unit="x", reference=f"worst over best by {first}, observed")
    errors = [abs(a[first] / b[first] - 1) for a, b in zip(predicted, observed, strict=True)]
    figures["error"] = Figure(value=100 * float(np.median(errors)), unit="%", reference=f"median error of {first} over settings")
    return figures


def _notes(names: list[str], predicted: list[dict[str, float]], rounds: list[list[dict[str, float]]]) -> list[str]:
    first, observed = OBJECTIVES[0], middle(rounds)
    best = min(zip(predicted, names, strict=True), key=lambda each: each[0][first])[1]
    true = min(zip(observed, names, strict=True), key=lambda each: each[0][first])[1]
    notes = [f"predicted best: {best}; observed best: {true}"]
    if len(rounds) < 2:
        return notes
    tau, regret = redrawn(predicted, rounds, first)
    notes.append(
        f"rounds drawn again, 90 % of {first}: tau {tau[0]:.3f} to {tau[1]:.3f}, regret {regret[0]:.1%} to {regret[1]:.1%}"
    )
    own_tau, own_regret = agreement(*_halves(rounds), first)
    if 100 * own_regret > REGRET or own_tau < TAU:
        notes.append(
            f"the engine's own rounds agree at tau {own_tau:.2f} and {own_regret:.1%} regret over {len(rounds)} rounds: the"
            " targets lie below its noise here, and no prediction can be held to them; more --rounds, or a quiet machine"
        )
    return notes


def _halves(rounds: list[list[dict[str, float]]]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    return middle(rounds[::2]), middle(rounds[1::2])


def _of_itself(rounds: list[list[dict[str, float]]], name: str) -> tuple[str, str]:
    tau, regret = agreement(*_halves(rounds), name)
    return f"{tau:.3f}", f"{regret:.1%}"


Range = tuple[float, float]


def redrawn(
    predicted: list[dict[str, float]], rounds: list[list[dict[str, float]]], name: str, draws: int = 400
) -> tuple[Range, Range]:
    """Kendall's tau and the regret, each from the 5th to the 95th percentile over ``draws`` of as many rounds with replacement.
    A round is drawn whole: what is compared was measured side by side."""
    draw = np.random.default_rng(0)
    found = [
        agreement(predicted, middle([rounds[at] for at in draw.integers(0, len(rounds), len(rounds))]), name)
        for _ in range(draws)
    ]
    low, high = np.percentile(np.array(found), (5, 95), axis=0).tolist()
    return (low[0], high[0]), (low[1], high[1])


def middle(rounds: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Per setting, the median of each objective over the rounds, all brought to one level first: a slow minute falls on all
    settings of a round alike, and the median of rounds of several levels would compare one setting's fast round with another's
    slow one. Where an objective is 0 somewhere, its rounds are taken as they are."""
    found: list[dict[str, float]] = [{} for _ in rounds[0]]
    for name in rounds[0][0]:
        values = np.array([[each[name] for each in one] for one in rounds])
        if (values > 0).all():
            level = np.exp(np.log(values).mean(axis=1, keepdims=True))
            values = values / level * float(np.median(level))
        for setting, value in zip(found, np.median(values, axis=0).tolist(), strict=True):
            setting[name] = value
    return found


def held_out_regret(predicted: list[dict[str, float]], rounds: list[list[dict[str, float]]], name: str) -> float:
    """What the predicted best costs more than the observed best, which is chosen by all rounds but one, in that one; the mean of
    all. Below zero where the prediction chose better than the other rounds did."""
    chosen = min(range(len(predicted)), key=lambda at: predicted[at][name])
    found = []
    for out, one in enumerate(rounds):
        others = middle(rounds[:out] + rounds[out + 1 :])
        best = min(range(len(others)), key=lambda at: others[at][name])
        found.append(one[chosen][name] / one[best][name] - 1)
    return float(np.mean(found))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=120, help="length of the trace (default 120)")
    parser.add_argument(
        "--utilisation", type=float, default=0.9, help="share of the time that the default setting is busy (default 0.9)"
    )
    parser.add_argument("--rounds", type=int, default=4, help="how often the engine runs each setting (default 4)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each forward pass is computed (default 3)")
    parser.add_argument("--quick", action="store_true", help="six settings, few batches and a short replay to calibrate from")


def main(argv: list[str] | None = None) -> None:
    run_main("rank_agreement", "Simulator and torch engine: do they rank settings alike?", measure, argv, _options)


if __name__ == "__main__":
    main()
