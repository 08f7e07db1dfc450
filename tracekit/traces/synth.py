"""Seeded traces of our own: bursts, log-normal lengths, shared prefixes, tenants. Same arguments, same bytes.

``python -m tracekit.traces.synth OUT [--requests N] [--seed N]`` writes one; without options it is the shipped example.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import orjson

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["DEMO_TENANTS", "Columns", "Tenant", "continue_trace", "main", "synthesise", "write_azure_csv", "write_jsonl"]

Ints = npt.NDArray[np.int64]
BLOCK_TOKENS = 16
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One sender: its share of the requests, how its arrivals cluster, how long its prompts and answers are.

    ``cv`` is the coefficient of variation of its inter-arrival times (1: Poisson, above: bursts). ``burst`` is a part of the
    trace (begin and end as shares of its length) into which ``burst_share`` of its requests fall. Lengths in tokens are
    log-normal with these medians and sigmas. ``groups`` prefixes of ``prefix_tokens`` are shared by its requests.
    """

    name: str
    slo_class: str
    share: float
    cv: float = 1.0
    burst: tuple[float, float] | None = None
    burst_share: float = 0.0
    input_median: float = 500.0
    input_sigma: float = 0.8
    output_median: float = 150.0
    output_sigma: float = 0.7
    groups: int = 1
    prefix_tokens: int = 0
    max_tokens: int = 1024
    priority: int = 0


DEMO_TENANTS = (
    Tenant(name="chat", slo_class="interactive", share=0.60, cv=1.5, input_median=450, output_median=140, groups=6,
           prefix_tokens=320),
    Tenant(name="assistant", slo_class="interactive", share=0.25, cv=2.5, input_median=1400, input_sigma=0.6, output_median=220,
           groups=3, prefix_tokens=1024),
    Tenant(name="reports", slo_class="batch", share=0.10, cv=2.0, burst=(0.45, 0.62), burst_share=0.8, input_median=4500,
           input_sigma=0.5, output_median=350, groups=12, prefix_tokens=2048, max_tokens=2048, priority=1),
)  # fmt: skip
"""Two interactive tenants and one that sends long documents, most of them in one burst."""


@dataclass(slots=True, kw_only=True)
class Columns:
    """A trace as columns of one length, in arrival order. ``runs`` has per request its [position, first id, length] lists."""

    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    tenant: list[str] = field(default_factory=list)
    slo_class: list[str | None] = field(default_factory=list)
    max_tokens: Ints | None = None
    priority: Ints | None = None
    block_tokens: int | None = None
    runs: list[list[list[int]]] | None = None
    session_id: list[str] | None = None
    turn: Ints | None = None
    think_ns: list[int | None] | None = None
    """From the end of the turn before; ``None`` at first turns."""

    def __len__(self) -> int:
        return len(self.arrival_ns)


def synthesise(requests: int = 2000, *, seconds: float | None = None, seed: int = 0,
               tenants: Sequence[Tenant] = DEMO_TENANTS) -> Columns:  # fmt: skip
    """``requests`` requests over ``seconds`` (default: 6.67 a second). Errors: ``UsageError`` for an impossible request."""
    if requests < 1 or (seconds is not None and seconds <= 0) or not tenants:
        raise UsageError(f"{requests} requests of {len(tenants)} tenants in {seconds} s: expected at least one of each")
    length_ns = round((requests * 0.15 if seconds is None else seconds) * SECOND)
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = _shares(requests, [tenant.share for tenant in tenants])
    arrivals = np.concatenate([_arrivals(tenant, n, length_ns, rng) for tenant, n in zip(tenants, counts, strict=True)])
    who = np.repeat(np.arange(len(tenants)), counts)
    prefix, own = _prompts(tenants, who, rng)
    outputs = np.concatenate([_lengths(t.output_median, t.output_sigma, n, rng) for t, n in zip(tenants, counts, strict=True)])
    limits = np.array([tenant.max_tokens for tenant in tenants])[who]
    order = np.argsort(arrivals, kind="stable")
    group = np.array([rng.integers(tenants[int(t)].groups) for t in who])
    return _ordered(tenants, order, arrivals, who, prefix, own, np.minimum(outputs, limits), limits, group)


def _ordered(tenants: Sequence[Tenant], order: Ints, arrivals: Ints, who: Ints, prefix: Ints, own: Ints, outputs: Ints,
             limits: Ints, group: Ints) -> Columns:  # fmt: skip
    arrivals, who, prefix, own, group = arrivals[order], who[order], prefix[order], own[order], group[order]
    return Columns(
        arrival_ns=arrivals - arrivals[0],
        input_tokens=prefix + own,
        output_tokens=outputs[order],
        tenant=[tenants[t].name for t in who.tolist()],
        slo_class=[tenants[t].slo_class for t in who.tolist()],
        max_tokens=limits[order],
        priority=np.array([tenant.priority for tenant in tenants])[who],
        block_tokens=BLOCK_TOKENS,
        runs=_runs(tenants, who, group, prefix, prefix + own),
    )


def _shares(total: int, shares: list[float]) -> list[int]:
    edges = np.rint(np.cumsum(shares) / sum(shares) * total).astype(int)
    return [int(n) for n in np.diff(edges, prepend=0)]


def _arrivals(tenant: Tenant, n: int, length_ns: int, rng: np.random.Generator) -> Ints:
    """Gamma inter-arrival times over the whole trace, and over the burst for its part of them; in microseconds of trace."""
    in_burst = round(n * tenant.burst_share) if tenant.burst is not None else 0
    begin, end = tenant.burst or (0.0, 1.0)
    parts = ((n - in_burst, 0.0, 1.0), (in_burst, begin, end))
    out = [_spread(count, tenant.cv, rng) * (to - at) * length_ns + at * length_ns for count, at, to in parts if count]
    return np.rint(np.concatenate([*out, np.zeros(0)]) / 1000).astype(np.int64) * 1000


def _spread(n: int, cv: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    gaps = rng.gamma(1 / cv**2, cv**2, n + 1)
    times = np.cumsum(gaps)
    shares: npt.NDArray[np.float64] = times[:-1] / times[-1]
    return shares


def _lengths(median: float, sigma: float, n: int, rng: np.random.Generator) -> Ints:
    return np.maximum(np.rint(rng.lognormal(np.log(median), sigma, n)).astype(np.int64), 1)


def _prompts(tenants: Sequence[Tenant], who: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Tokens of each prompt's shared prefix and of its own part."""
    prefix = np.array([tenant.prefix_tokens for tenant in tenants])[who]
    own = np.concatenate([_lengths(t.input_median, t.input_sigma, int((who == i).sum()), rng) for i, t in enumerate(tenants)])
    return prefix, np.minimum(own, 120_000)


def _runs(tenants: Sequence[Tenant], who: Ints, group: Ints, prefix: Ints, total: Ints) -> list[list[list[int]]]:
    """The shared prefix's blocks, then blocks that nobody else has; ids in order of first appearance."""
    first_id = 0
    known: dict[tuple[int, int], int] = {}
    out: list[list[list[int]]] = []
    for t, g, shared_tokens, tokens in zip(who.tolist(), group.tolist(), prefix.tolist(), total.tolist(), strict=True):
        shared, blocks = shared_tokens // BLOCK_TOKENS, -(-tokens // BLOCK_TOKENS)
        runs = []
        if shared:
            if (t, g) not in known:
                known[t, g] = first_id
                first_id += shared
            runs.append([0, known[t, g], shared])
        if blocks > shared:
            runs.append([shared, first_id, blocks - shared])
            first_id += blocks - shared
        out.append(runs)
    return out


def write_jsonl(columns: Columns, path: str | Path) -> None:
    """Canonical JSON lines; gzipped (without a time stamp, so that equal traces are equal bytes) where the name ends in .gz."""
    rows = {
        "arrival_ns": columns.arrival_ns.tolist(),
        "input_tokens": columns.input_tokens.tolist(),
        "output_tokens": columns.output_tokens.tolist(),
        "tenant": columns.tenant,
        "class": columns.slo_class,
        "max_tokens": None if columns.max_tokens is None else columns.max_tokens.tolist(),
        "priority": None if columns.priority is None else columns.priority.tolist(),
        "block_tokens": None if columns.block_tokens is None else [columns.block_tokens] * len(columns),
        "prefix_runs": columns.runs,
        "session_id": columns.session_id,
        "turn": None if columns.turn is None else columns.turn.tolist(),
        "think_ns": columns.think_ns,
    }
    given = {name: values for name, values in rows.items() if values}
    data = b"".join(orjson.dumps(dict(zip(given, row, strict=True))) + b"\n" for row in zip(*given.values(), strict=True))
    if str(path).endswith(".gz"):
        data = gzip.compress(data, compresslevel=9, mtime=0)
    Path(path).write_bytes(data)


def continue_trace(base: TraceSource, requests: int, seed: int = 0) -> Columns:
    """The first ``requests`` requests of ``base`` continued: its gaps and its (input, output) pairs resampled."""
    rng = np.random.Generator(np.random.PCG64(seed))
    more = max(requests - base.total, 0)
    gaps = np.diff(base.arrival_ns) if base.total > 1 else np.full(1, SECOND, np.int64)
    later = base.arrival_ns[-1] + np.cumsum(rng.choice(gaps, more))
    pairs = rng.integers(base.total, size=more)
    return Columns(
        arrival_ns=np.concatenate([base.arrival_ns, later])[:requests],
        input_tokens=np.concatenate([base.prompt_tokens, base.prompt_tokens[pairs]])[:requests],
        output_tokens=np.concatenate([base.output_tokens, base.output_tokens[pairs]])[:requests],
    )


def write_azure_csv(columns: Columns, path: str | Path) -> None:
    """In the layout of the Azure 2023 trace, from 2023-11-16 18:15:46 on (arrivals to the 100 ns)."""
    start = np.datetime64("2023-11-16T18:15:46.000000000", "ns")
    stamps = np.datetime_as_string(start + columns.arrival_ns.astype("timedelta64[ns]"), unit="ns")
    rows = zip(stamps.tolist(), columns.input_tokens.tolist(), columns.output_tokens.tolist(), strict=True)
    text = "".join(f"{stamp[:10]} {stamp[11:27]},{prompt},{output}\n" for stamp, prompt, output in rows)
    Path(path).write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{text}", encoding="ascii")


def main(argv: list[str] | None = None) -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(prog="python -m tracekit.traces.synth", description="A seeded synthetic trace.")
    parser.add_argument("out", help="file to write, .jsonl or .jsonl.gz")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, help="length of the trace (default: 6.67 requests a second)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    write_jsonl(synthesise(options.requests, seconds=options.seconds, seed=options.seed), options.out)


if __name__ == "__main__":
    main()
