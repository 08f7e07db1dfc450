"""Prompts under way in one iteration of a stretch: granted and computed without a plan.

What the running pass decides where every explicit sequence is a prompt that gets its chunk, none computes again what it lost,
and blocks suffice: each by the cap and by what the budget leaves. Of such an iteration only who samples is to be written.
"""

from __future__ import annotations

from replay_engine.advancing import settle
from replay_engine.kv_counted import Grant
from replay_engine.state import State
from replay_engine.types import BatchPlan, Phase, PrefillEntry, Sequence

__all__ = ["compute_chunks", "grant_chunks"]

_PREFILL = int(Phase.prefill)


def grant_chunks(state: State, growing: dict[int, Sequence]) -> tuple[list[Grant] | None, int]:
    """The chunks of all explicit sequences in iteration ``state.it``, in running order, with their blocks, and the budget left;
    blocks are handed out, also to the ``growing`` members of the decode set. ``None``, and nothing done: the running pass has to
    decide (``State.plain`` holds)."""
    decodes, size, pool, loose = state.decodes, state.size, state.pool, state.loose
    cap = state.cap() if state.threshold else 0
    spare, newest, free = state.budget - decodes.count, decodes.newest, pool.free - len(growing)
    taken: list[Grant] = []
    for ticket in sorted(loose) if len(loose) > 1 else loose:
        seq = loose[ticket]
        comp = seq.comp
        tokens = seq.nt - comp
        if 0 < cap < tokens:
            tokens = cap
        if tokens > spare:
            if ticket < newest:
                return None, 0
            tokens = spare
        if tokens <= 0 or seq.phase != _PREFILL or seq.lost_high > comp:
            return None, 0
        blocks = -(-(comp + tokens) // size) - seq.nblocks
        blocks = blocks if blocks > 0 else 0
        spare -= tokens
        free -= blocks
        taken.append((seq, tokens, blocks))
    if free < 0:
        return None, 0
    pool.advance(growing, decodes.buckets[(state.it + state.fill_offset) % size], state.it, taken)
    return taken, spare


def compute_chunks(
    state: State, taken: list[Grant], ending: list[Sequence], *, entries: bool
) -> tuple[int, int, list[Sequence], BatchPlan | None]:
    """Count ``taken`` as computed; whoever has all of its prompt samples a token and decodes from here, or ends.

    Tokens, their attention work, ``ending`` with those who end here too, in running order, and what there is to be written:
    who samples, and with ``entries`` each chunk."""
    it, shares, tokens, qk = state.it, state.shares, 0, 0
    sampled: list[Sequence] = []
    done: list[Sequence] = []
    for seq, n, _ in taken:
        context = seq.comp
        comp = seq.comp = context + n
        tokens += n
        qk += n * context + n * n // 2
        if comp == seq.nt:
            sampled.append(seq)
            if shares is not None:
                shares.sampled(seq, it, comp != seq.total)
            settle(state, seq, it, done)
    if done:
        ending = sorted([*ending, *done], key=_ticket) if ending else done
    if not sampled and not entries:
        return tokens, qk, ending, None
    plan = BatchPlan()
    plan.sampled = sampled
    if entries:
        plan.prefill = [PrefillEntry(seq, n, seq.comp, 0, False) for seq, n, _ in taken]
    return tokens, qk, ending, plan


def _ticket(seq: Sequence) -> int:
    return seq.ticket
