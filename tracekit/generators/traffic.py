"""Traffic by a spec: every tenant draws from a generator of its own, so that one tenant's settings never move another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError
from tracekit.generators.prefixes import BLOCK_TOKENS, PromptBlocks
from tracekit.generators.spec import Spec, TenantSpec
from tracekit.traces.synth import Columns

__all__ = ["LengthPool", "generate"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LONGEST_PROMPT = 1 << 20
ANSWER_S_PER_TOKEN, ANSWER_S = 0.02, 0.5
"""How long an answer is taken to last where a later turn needs a recorded arrival; a replay waits for the answer itself."""


class LengthPool(Protocol):
    """Pairs of lengths of a real trace, to be drawn from."""

    @property
    def prompt_tokens(self) -> Ints: ...

    @property
    def output_tokens(self) -> Ints: ...


@dataclass(slots=True)
class _Drawn:
    """One tenant's requests: ``session`` and ``turn`` number them within the tenant, ``think_s`` is 0 at first turns."""

    arrival_s: Floats
    own_tokens: Ints
    output_tokens: Ints
    session: Ints
    turn: Ints
    think_s: Floats
    group: Ints


def generate(spec: Spec, pool: LengthPool | None = None) -> Columns:
    """The traffic in arrival order. With ``pool``, (input, output) pairs are resampled from it instead of drawn.

    Errors: ``UsageError`` where nothing comes within the spec's seconds.
    """
    counts = _counts(spec)
    drawn = [
        _draw(tenant, counts[at], spec.seconds, pool, np.random.Generator(np.random.PCG64([spec.seed, at])))
        for at, tenant in enumerate(spec.tenants)
    ]
    if not sum(len(each.arrival_s) for each in drawn):
        raise UsageError(f"synth: no request comes within {spec.seconds} s; expected more seconds, or a higher rate")
    return _merged(spec, drawn)


def _counts(spec: Spec) -> list[int | None]:
    if spec.requests is None:
        return [None] * len(spec.tenants)
    edges = np.rint(np.cumsum([tenant.share for tenant in spec.tenants]) * spec.requests).astype(int)
    return [int(n) for n in np.diff(edges, prepend=0)]


def _draw(tenant: TenantSpec, n: int | None, seconds: float | None, pool: LengthPool | None,
          rng: np.random.Generator) -> _Drawn:  # fmt: skip
    starts = tenant.arrival.up_to(rng, seconds) if n is None and seconds is not None else tenant.arrival.times(rng, n or 0)
    turns = np.ones(len(starts), np.int64)
    if tenant.sessions is not None and len(starts):
        turns = np.maximum(np.rint(tenant.sessions.turns.draw(rng, len(starts))).astype(np.int64), 1)
        if n is not None:
            # as many sessions as it takes, the last one cut
            used = int(np.searchsorted(np.cumsum(turns), n)) + 1
            starts, turns = starts[:used], turns[:used]
            turns[-1] -= max(int(turns.sum()) - n, 0)
    total = int(turns.sum())
    session = np.repeat(np.arange(len(starts)), turns)
    turn = np.arange(total) - np.repeat(np.cumsum(turns) - turns, turns)
    own, output = _lengths(tenant, total, pool, rng)
    think = np.zeros(total) if tenant.sessions is None else tenant.sessions.think.draw(rng, total)
    think[turn == 0] = 0.0
    group = rng.integers(max(tenant.groups, 1), size=len(starts))[session] if total else session
    arrival = _recorded(starts[session] if total else starts, output, session, turn, think)
    return _Drawn(arrival, own, output, session, turn, think, group)


def _lengths(tenant: TenantSpec, n: int, pool: LengthPool | None, rng: np.random.Generator) -> tuple[Ints, Ints]:
    if pool is not None:
        pairs = rng.integers(len(pool.prompt_tokens), size=n)
        own, output = pool.prompt_tokens[pairs], pool.output_tokens[pairs]
    else:
        own, output = (np.rint(kind.draw(rng, n)) for kind in (tenant.input, tenant.output))
    own = np.clip(own, 1, LONGEST_PROMPT).astype(np.int64)
    return own, np.clip(output, 1, tenant.max_tokens or LONGEST_PROMPT).astype(np.int64)


def _recorded(start: Floats, output: Ints, session: Ints, turn: Ints, think: Floats) -> Floats:
    """When each turn comes if answers last as long as is usual."""
    wait = np.where(turn == 0, 0.0, think)
    wait[1:] += np.where(turn[1:] > 0, ANSWER_S + ANSWER_S_PER_TOKEN * output[:-1], 0.0)
    into = np.cumsum(wait)
    first = np.flatnonzero(turn == 0)
    recorded: Floats = start + into - (into[first][session] if len(first) else into)
    return recorded


def _merged(spec: Spec, drawn: list[_Drawn]) -> Columns:
    who = np.repeat(np.arange(len(drawn)), [len(each.arrival_s) for each in drawn])
    arrival = np.rint(np.concatenate([each.arrival_s for each in drawn]) * 1e6).astype(np.int64) * 1000
    order = np.argsort(arrival, kind="stable")
    blocks = PromptBlocks()
    rows = [_prompts(tenant, each, at, blocks) for at, (tenant, each) in enumerate(zip(spec.tenants, drawn, strict=True))]
    prompts = np.concatenate([prompt for prompt, _ in rows])
    runs = [run for _, each in rows for run in each]
    columns = Columns(
        arrival_ns=arrival[order] - arrival[order[0]],
        input_tokens=prompts[order],
        output_tokens=np.concatenate([each.output_tokens for each in drawn])[order],
    )
    _label(columns, spec.tenants, who[order].tolist())
    if any(tenant.groups or tenant.sessions for tenant in spec.tenants):
        columns.block_tokens, columns.runs = BLOCK_TOKENS, [runs[k] for k in order.tolist()]
    if any(tenant.sessions for tenant in spec.tenants):
        _link(columns, spec.tenants, drawn, order)
    return columns


def _prompts(tenant: TenantSpec, drawn: _Drawn, number: int, blocks: PromptBlocks) -> tuple[Ints, list[list[list[int]]]]:
    """Whole prompts (prefix, the session so far, the turn's own tokens) and their block runs."""
    added = drawn.own_tokens + np.where(drawn.turn == 0, tenant.prefix_tokens, 0)
    added[1:] += np.where(drawn.turn[1:] > 0, drawn.output_tokens[:-1], 0)
    summed = np.cumsum(added)
    first = np.flatnonzero(drawn.turn == 0)
    before = (summed - added)[first][drawn.session] if len(first) else summed
    prompts = np.minimum(summed - before, LONGEST_PROMPT)
    if not tenant.groups and tenant.sessions is None:
        return prompts, [blocks.alone(tokens) for tokens in prompts.tolist()]
    runs = []
    for tokens, group, session in zip(prompts.tolist(), drawn.group.tolist(), drawn.session.tolist(), strict=True):
        shared = tenant.prefix_tokens if tenant.groups else 0
        own_session = None if tenant.sessions is None else (number, session)
        runs.append(blocks.prompt(tokens, (number, group), shared, own_session))
    return prompts, runs


def _label(columns: Columns, tenants: tuple[TenantSpec, ...], who: list[int]) -> None:
    if any(tenant.name for tenant in tenants):
        columns.tenant = [tenants[t].name or f"tenant-{t + 1}" for t in who]
    if any(tenant.slo_class for tenant in tenants):
        columns.slo_class = [tenants[t].slo_class for t in who]
    if any(tenant.max_tokens for tenant in tenants):
        limits = np.array([tenant.max_tokens or 0 for tenant in tenants])[who]
        columns.max_tokens = np.where(limits > 0, limits, columns.output_tokens)
    if any(tenant.priority is not None for tenant in tenants):
        columns.priority = np.array([tenant.priority or 0 for tenant in tenants])[who]


def _link(columns: Columns, tenants: tuple[TenantSpec, ...], drawn: list[_Drawn], order: Ints) -> None:
    names = [f"s{at}-{session}" for at, each in enumerate(drawn) for session in each.session.tolist()]
    turns = np.concatenate([each.turn for each in drawn])
    think = np.rint(np.concatenate([each.think_s for each in drawn]) * 1e6).astype(np.int64) * 1000
    columns.session_id = [names[k] for k in order.tolist()]
    columns.turn = turns[order]
    pairs = zip(turns[order].tolist(), think[order].tolist(), strict=True)
    columns.think_ns = [None if turn == 0 else wait for turn, wait in pairs]
