"""What an iteration's grants add up to: entries of the plan, and who samples, joins the decode set, or is done."""

from __future__ import annotations

from replay_engine.state import State
from replay_engine.types import BatchPlan, PrefillEntry, SeqState, Sequence

__all__ = ["advance", "drain", "settle"]

_DRAIN = int(SeqState.DRAIN)


def advance(state: State, plan: BatchPlan, grants: list[tuple[Sequence, int]]) -> None:
    """Count the explicit grants as computed; whoever has all known tokens samples one and decodes from here, or ends."""
    entries: list[PrefillEntry] = []
    sampled: list[Sequence] = []
    ending: list[Sequence] = []
    seqs = tokens = qk = recomputed = 0
    for seq, n in grants:
        context = seq.comp
        comp = seq.comp = context + n
        again = min(comp, seq.lost_high) - context
        again = again if again > 0 else 0
        entries.append(PrefillEntry(seq, n, comp, again, not seq.chunk))
        if seq.chunk:
            seqs += 1
            tokens += n
            qk += n * context + n * n // 2
            recomputed += again
        else:
            plan.decode_seqs += 1
            plan.decode_kv += comp
            state.decodes.beside(comp, plan.iteration)
        if again:
            seq.recomputed_tokens += again
        if comp == seq.nt:
            sampled.append(seq)
            if state.shares is not None:
                state.shares.sampled(seq, plan.iteration, comp != seq.total)
            settle(state, seq, plan.iteration, ending)
        else:
            seq.chunk = True
            state.loose[seq.ticket] = seq
    plan.prefill, plan.prefill_seqs = entries, seqs
    plan.prefill_tokens, plan.prefill_qk, plan.recomputed_tokens = tokens, qk, recomputed
    if sampled:
        plan.sampled = sampled
    if ending:
        plan.finishing = sorted([*plan.finishing, *ending], key=_ticket) if plan.finishing else ending


def settle(state: State, seq: Sequence, iteration: int, ending: list[Sequence]) -> None:
    """An explicit sequence has all its known tokens computed in ``iteration``: it decodes from here, or is one of ``ending``."""
    state.loose.pop(seq.ticket, None)
    seq.chunk = False
    if seq.comp == seq.total:
        seq.state = _DRAIN
        ending.append(seq)
    else:
        state.decodes.join(seq, iteration)
        state.pool.joined(seq)
        state.joined.append(seq)


def drain(state: State, iteration: int) -> list[Sequence]:
    """Members of the decode set whose last token ``iteration`` computes leave it, in ticket order."""
    gone = state.decodes.retire(iteration)
    counted, left = state.counted, state.pool.left
    for seq in gone:
        seq.state = _DRAIN
        if not counted:
            left(seq)
    state.left += gone
    return gone


def _ticket(seq: Sequence) -> int:
    return seq.ticket
