"""The requests of the studies: published lengths and arrivals where the files are at hand, else synthetic ones that say so."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestBatch

__all__ = ["TRACES", "Traffic", "chat_lengths", "poisson", "tenant_trace", "uniform_lengths"]

Ints = npt.NDArray[np.int64]
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
TENANTS = "vtc_arena_27clients.derived.csv"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests as columns; a request source. Arrivals in ns, lengths in tokens; ``limit``: the largest output, -1 not known."""

    arrival_ns: Ints
    prompt: Ints
    output: Ints
    limit: Ints | None = None
    tenant: npt.NDArray[np.int32] | None = None
    said: str = ""

    @property
    def total(self) -> int:
        """Requests."""
        return len(self.prompt)

    def batches(self) -> Iterator[RequestBatch]:
        """All at once: studies are small."""
        yield RequestBatch(
            index=np.arange(self.total, dtype=np.int64),
            arrival_ns=self.arrival_ns,
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            priority=np.zeros(self.total, np.int64),
            max_tokens=np.full(self.total, -1, np.int64) if self.limit is None else self.limit,
            tenant=self.tenant,
        )

    def at_rate(self, per_s: float, seed: int = 0) -> Traffic:
        """The same requests with Poisson arrivals of this rate; the same random numbers for every rate."""
        return replace(self, arrival_ns=poisson(self.total, per_s, seed))

    def faster(self, factor: float) -> Traffic:
        """The same arrivals, ``factor`` times as fast."""
        return replace(self, arrival_ns=np.rint(self.arrival_ns / factor).astype(np.int64))


def poisson(requests: int, per_s: float, seed: int = 0) -> Ints:
    """Arrival times, ns."""
    gaps = np.random.Generator(np.random.PCG64(seed)).exponential(1.0, requests)
    return np.rint(np.cumsum(gaps) / per_s * 1e9).astype(np.int64)


def uniform_lengths(requests: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 1) -> Traffic:
    """Lengths uniform between two bounds, all there at the start."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return Traffic(
        arrival_ns=np.zeros(requests, np.int64),
        prompt=rng.integers(*prompt, requests, endpoint=True),
        output=rng.integers(*output, requests, endpoint=True),
        said=f"prompts uniform {prompt[0]} to {prompt[1]} tokens, outputs {output[0]} to {output[1]}",
    )


def chat_lengths(requests: int, name: str, longest: int, stand_in: tuple[float, float]) -> Traffic:
    """Published pairs of lengths (the first so many of at most ``longest`` tokens), all there at the start. Without the file:
    log-normal ones with the medians ``stand_in``."""
    path = TRACES / name
    if path.is_file():
        with open(path, encoding="utf-8", newline="") as file:
            pairs = [
                (int(float(row["num_prefill_tokens"])), int(float(row["num_decode_tokens"]))) for row in csv.DictReader(file)
            ]
        kept = [pair for pair in pairs if min(pair) > 0 and sum(pair) <= longest][:requests]
        prompt, output = (np.array(column, np.int64) for column in zip(*kept, strict=True))
        said = f"lengths of {name}"
    else:
        rng = np.random.Generator(np.random.PCG64(2))
        prompt, output = (
            np.clip(np.rint(rng.lognormal(np.log(median), 1.0, requests)), 1, longest // 2).astype(np.int64)
            for median in stand_in
        )
        said = f"SYNTHETIC lengths ({name} is not here), log-normal with medians {stand_in[0]:g} and {stand_in[1]:g}"
    return Traffic(
        arrival_ns=np.zeros(len(prompt), np.int64), prompt=prompt, output=output, said=f"{said}, at most {longest} tokens"
    )


def tenant_trace(requests: int | None = None) -> Traffic:
    """The 27 tenants of the fair-serving artifact at their own arrivals; without the file a synthetic trace as skewed."""
    path = TRACES / TENANTS
    if path.is_file():
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))[:requests]
        names = sorted({row["adapter_dir"] for row in rows})
        code = {name: at for at, name in enumerate(names)}
        return Traffic(
            arrival_ns=np.rint(np.array([float(row["req_time"]) for row in rows]) * 1e9).astype(np.int64),
            prompt=np.array([int(row["prompt_len"]) for row in rows]),
            output=np.array([int(row["output_len"]) for row in rows]),
            tenant=np.array([code[row["adapter_dir"]] for row in rows], np.int32),
            said=f"{TENANTS}: {len(rows):,} requests of {len(names)} tenants",
        )
    count = requests or 1500
    rng = np.random.Generator(np.random.PCG64(3))
    return Traffic(
        arrival_ns=poisson(count, 2.5),
        prompt=np.clip(np.rint(rng.lognormal(np.log(40), 1.4, count)), 1, 1000).astype(np.int64),
        output=np.clip(np.rint(rng.lognormal(np.log(211), 0.8, count)), 1, 1000).astype(np.int64),
        tenant=np.minimum(rng.geometric(0.18, count) - 1, 26).astype(np.int32),
        said=f"SYNTHETIC ({TENANTS} is not here): {count:,} requests of 27 tenants, as skewed",
    )
