"""Prefill and decode on separate engines against engines that do both: capacity of the same cards, and the link it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.studies.replays import PROFILE, engine, replayed
from benchmarks.studies.report import Cell, Claim, Study, Table
from benchmarks.studies.traffic import Traffic, poisson
from replay_engine.config import SchedulerConfig
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.pd_rules import KvLinkRules, Pd
from replay_engine.rules import Batching, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink

__all__ = ["Effort", "Regime", "attained", "capacity", "lengths", "study", "together"]

CARDS = 4
TARGET = 0.9
LONGEST = 48_000
CHUNKS = (256, 384, 512, 2048)
BANDWIDTHS = (0.5, 2.0, 5.0, 10.0, 25.0, 50.0, 450.0)
LENGTHS = (500, 1000, 2000, 4000, 8000, 16000)
WHOLE = "whole prompts first"


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Median prompt and output (tokens), and the SLO: TTFT and TPOT, s. ``times``: so many times the requests, where they come
    so fast that few would be a burst and no load."""

    name: str
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float
    times: int = 1


REGIMES = (
    Regime(name="long prompts, few tokens", prompt=8000, output=24, ttft_s=0.4, tpot_s=0.0085),
    Regime(name="long prompts", prompt=8000, output=64, ttft_s=0.4, tpot_s=0.010),
    Regime(name="documents", prompt=4000, output=100, ttft_s=0.25, tpot_s=0.0125),
    Regime(name="chat", prompt=1000, output=200, ttft_s=0.25, tpot_s=0.010, times=6),
    Regime(name="long answers", prompt=250, output=300, ttft_s=0.25, tpot_s=0.0125, times=6),
)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """``cards`` in every setting; a capacity is bisected ``rounds`` times, and looked for up to ``most`` requests/s a card."""

    cards: int
    rounds: int
    most: float


def lengths(requests: int, prompt: int, output: int) -> Traffic:
    """Log-normal lengths with these medians (sigma 0.3 and 0.5), all there at the start."""
    rng = np.random.Generator(np.random.PCG64(5))
    drawn = (np.rint(rng.lognormal(np.log(median), sigma, requests)) for median, sigma in ((prompt, 0.3), (output, 0.5)))
    prompts, outputs = drawn
    return Traffic(
        arrival_ns=np.zeros(requests, np.int64), prompt=np.clip(prompts, 16, 2.5 * prompt).astype(np.int64),
        output=np.clip(outputs, 2, 5 * output).astype(np.int64),
    )  # fmt: skip


def _engine(budget: int = 8192, **knobs: bool) -> SchedulerConfig:
    return engine(
        max_num_batched_tokens=budget, max_num_seqs=min(budget, 256), max_model_len=LONGEST, async_scheduling=True, **knobs
    )


def together(traffic: Traffic, cards: int, config: SchedulerConfig, rules: Rules) -> npt.NDArray[np.void]:
    """Outcomes of ``cards`` engines that prefill and decode, requests given to them in turn."""
    found = []
    for card in range(cards):
        own = np.arange(traffic.total) % cards == card
        part = Traffic(arrival_ns=traffic.arrival_ns[own], prompt=traffic.prompt[own], output=traffic.output[own])
        found.append(replayed(part, config, rules).outcomes)
    return np.concatenate(found)


def apart(traffic: Traffic, prefill: int, decode: int, gb_per_s: float) -> npt.NDArray[np.void]:
    """Outcomes of separate pools; the transfers of a prefill engine queue on its link."""
    sink = MemorySink()
    rules = Rules(pd=Pd(prefill=prefill, decode=decode), kv_link=KvLinkRules(gb_per_s=gb_per_s, latency_s=0.0005, concurrent=1))
    assert PROFILE.model is not None
    config = _engine()
    run = PdReplay(
        traffic, {"prefill": config, "decode": config}, [_executor(config) for _ in range(prefill + decode)], sink, rules=rules,
        mode="outcomes", kv_block_bytes=int(PROFILE.model.kv_bytes_per_token * config.block_size),
    )  # fmt: skip
    if (how := run.run()) != "finished":
        raise RuntimeError(f"the replay ended {how}: no study")
    return sink.table("outcomes")


def _executor(config: SchedulerConfig) -> SimExecutor:
    return SimExecutor(PROFILE.latency, asynchronous=config.async_scheduling)


def attained(outcomes: npt.NDArray[np.void], regime: Regime) -> float:
    """Share of requests within both parts of the SLO; one token has no TPOT to miss."""
    good = (outcomes["ttft_ns"] <= regime.ttft_s * 1e9) & ~(outcomes["tpot_ns"] > regime.tpot_s * 1e9)
    return float(np.mean(good))


def capacity(replay: Callable[[float], npt.NDArray[np.void]], regime: Regime, effort: Effort, low: float = 0.125) -> float:
    """The highest rate (requests/s) at which the target is attained: doubled from ``low``, then bisected. 0: not even there.

    The same requests and random numbers at every rate.
    """

    def good(rate: float) -> bool:
        return attained(replay(rate), regime) >= TARGET

    if not good(low):
        return 0.0
    while 2 * low <= effort.most and good(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(effort.rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class _Rival:
    """The best engines that do both, and those that put whole prompts first; requests/s a card."""

    whole: float
    chunked: float
    budget: int


def _rival(traffic: Traffic, regime: Regime, effort: Effort) -> _Rival:
    cards = effort.cards

    def rate_of(config: SchedulerConfig, rules: Rules) -> float:
        return capacity(lambda rate: together(_at(traffic, rate * cards), cards, config, rules), regime, effort)

    whole = rate_of(_engine(LONGEST, enable_chunked_prefill=False), Rules(batching=Batching(step="prefill_first")))
    chunked = {budget: rate_of(_engine(budget), Rules()) for budget in CHUNKS}
    best = max(chunked, key=lambda budget: chunked[budget])
    return _Rival(whole=whole, chunked=chunked[best], budget=best)


def _at(traffic: Traffic, rate: float) -> Traffic:
    return Traffic(arrival_ns=poisson(traffic.total, rate), prompt=traffic.prompt, output=traffic.output)


def _apart_rate(traffic: Traffic, regime: Regime, effort: Effort, prefill: int, gb_per_s: float) -> float:
    cards = effort.cards
    return capacity(lambda rate: apart(_at(traffic, rate * cards), prefill, cards - prefill, gb_per_s), regime, effort)


def _best_split(traffic: Traffic, regime: Regime, effort: Effort, gb_per_s: float = 50.0) -> tuple[int, float]:
    """Prefill engines of the best split of the cards, and its capacity, requests/s a card."""
    rates = {prefill: _apart_rate(traffic, regime, effort, prefill, gb_per_s) for prefill in range(1, effort.cards)}
    best = max(rates, key=lambda prefill: rates[prefill])
    return best, rates[best]


def _regimes(requests: int, effort: Effort) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for regime in REGIMES:
        traffic = lengths(requests * regime.times, regime.prompt, regime.output)
        rival = _rival(traffic, regime, effort)
        split, rate = _best_split(traffic, regime, effort)
        rows.append((
            f"{regime.name}: {regime.prompt:,} in, {regime.output} out, TTFT {regime.ttft_s * 1e3:g} ms,"
            f" TPOT {regime.tpot_s * 1e3:g} ms",
            rival.whole, f"{rival.chunked:.3g} (budget {rival.budget:,})", f"{rate:.3g} ({split}:{effort.cards - split})",
            _ratio(rate, rival.whole), _ratio(rate, rival.chunked), traffic.total,
        ))  # fmt: skip
    columns = ("traffic and SLO", WHOLE, "best chunks", "apart (P:D)", "apart / whole first", "apart / best chunks", "n")
    return Table(title=f"Capacity, requests/s a card, {effort.cards} cards, link 50 GB/s", columns=columns, rows=rows)


def _ratio(rate: float, other: float) -> float | None:
    return rate / other if other else None


def _grid(requests: int, effort: Effort, prompts: tuple[int, ...]) -> list[Table]:
    """Ratios over bandwidth (columns) and prompt length (rows), against whole prompts first and against the best chunks."""
    against: tuple[list[tuple[Cell, ...]], list[tuple[Cell, ...]]] = ([], [])
    for prompt in prompts:
        unloaded = _executor(_engine()).predict(prompt, prompt * prompt // 2, 0, 0, 1, 0)[0] / 1e9
        regime = Regime(name="grid", prompt=prompt, output=32, ttft_s=0.05 + 2 * unloaded, tpot_s=0.010)
        traffic = lengths(requests * max(1, 4000 // prompt), regime.prompt, regime.output)
        rival = _rival(traffic, regime, effort)
        split, _ = _best_split(traffic, regime, effort)
        rates = [_apart_rate(traffic, regime, effort, split, gb) for gb in BANDWIDTHS]
        for rows, other in zip(against, (rival.whole, rival.chunked), strict=True):
            named = f"{prompt:,} ({split}:{effort.cards - split}, TTFT {regime.ttft_s * 1e3:.0f} ms)"
            rows.append((named, *(_ratio(rate, other) for rate in rates), traffic.total))
    columns = ("prompt tokens", *(f"{gb:g} GB/s" for gb in BANDWIDTHS), "n")
    said = "Capacity apart over that of engines with {}; 32 tokens out, TPOT 10 ms"
    titles = (said.format(WHOLE), said.format("the best chunks"))
    return [Table(title=title, columns=columns, rows=rows) for title, rows in zip(titles, against, strict=True)]


def _numbers(cells: Sequence[Cell]) -> list[float]:
    return [float(cell) for cell in cells if isinstance(cell, int | float)]


def _claims(regimes: Table, whole: Table, chunks: Table) -> list[Claim]:
    """From the tables: regimes by row, then ratios over bandwidth by prompt length, against either rival."""
    at_50 = BANDWIDTHS.index(50.0) + 1
    over_whole = _numbers([regimes.rows[1][4]])
    over_chunks = _numbers([row[at_50] for row in chunks.rows])
    others = _numbers([row[5] for row in regimes.rows[-2:]])
    slow = _numbers([row[1] for row in whole.rows])
    long, best = max(over_whole, default=0.0), max(over_chunks, default=0.0)
    return [
        Claim(text=f"{REGIMES[1].name}: at least 1.3 times that of whole prompts first", value=long, met=long >= 1.3),
        Claim(text="at the best prompt length and 50 GB/s: more than the best chunks", value=best, met=best > 1.0),
        Claim(text=f"{REGIMES[-2].name} and {REGIMES[-1].name}: 1.0 or less, best chunks", value=max(others, default=0.0),
              met=max(others, default=0.0) <= 1.0),
        Claim(text="at 0.5 GB/s: 1.0 or less at every prompt length, whole prompts first", value=max(slow, default=0.0),
              met=max(slow, default=0.0) <= 1.0),
    ]  # fmt: skip


def study(
    requests: int = 240, cards: int = CARDS, rounds: int = 3, prompts: tuple[int, ...] = LENGTHS, most: float = 1024.0
) -> Study:  # fmt: skip
    """``requests`` at every rate tried, on ``cards`` cards in every setting."""
    effort = Effort(cards=cards, rounds=rounds, most=most)
    table, grid = _regimes(requests, effort), _grid(requests, effort, prompts)
    return Study(
        name="pd",
        title="Prefill and decode apart: where it pays, and the link it takes",
        source="DistServe (Zhong et al., OSDI 2024): on the same cards separate prefill and decode serve up to 7.4 times the"
        " requests within TTFT and TPOT at 90 % attainment, against engines that put whole prompts first (vLLM of its time)."
        " It calls that rate goodput; here it is capacity.",
        setup=(
            f"{cards} H100, Llama-3.1-8B, simulated, asynchronous scheduling in every engine; {requests} requests, log-normal"
            " lengths with the medians named, Poisson arrivals, the same random numbers for every setting and rate.",
            "Together: requests in turn to engines that do both, whole prompts first (`batching.step = prefill_first`) or vLLM's"
            f" chunks with the best token budget of {', '.join(f'{budget:,}' for budget in CHUNKS)}.",
            "Apart: the best split of the same cards; each prefill engine's transfers queue on its own link, 0.5 ms latency;"
            " the first token is the decode engine's, after the transfer.",
            "Capacity: the highest rate at which 90 % of the requests meet both parts of the SLO.",
        ),
        tables=[table, *grid],
        claims=_claims(table, *grid),
        reading=READING,
    )  # fmt: skip


READING: tuple[str, ...] = (
    "Agrees: against whole prompts first, which is what was measured then, separate pools serve 1.3 to 2.2 times the requests"
    " on the same cards at every prompt length, as long as the link keeps up. (Published up to 7.4 times, with other models and"
    " SLOs, and with parallelism chosen for each phase.)",
    "Does not: against vLLM's chunks with the best token budget most of that is gone. Apart wins for prompts from 4,000 tokens"
    " on with short answers, by a tenth to a third at 50 GB/s, and loses everywhere else: chats and long answers reach 0.6 of"
    " what the same cards do together. Up to some 250 prompt tokens ride along with a decode iteration for next to nothing on"
    " this card, so that small chunks keep TPOT at little cost; and of two pools made of whole cards one has idle time.",
    "The boundary runs from 5 GB/s a prefill engine at 500 tokens over 10 GB/s at 1,000 and 2,000 to 25 GB/s from 4,000 on"
    " (against whole prompts first); against the best chunks it is 25 to 50 GB/s from 4,000 on, and nowhere below. An engine"
    " that prefills computes some 6 GB of KV a second: a link of less than that falls behind whatever the SLO, and one of"
    " twice that still takes a good part of a tight TTFT.",
    "Holds for this card and model (128 KiB of KV a token), splits of four cards, and SLOs close to what an idle engine reaches."
    " Capacities are found to a step of 9 %.",
)
