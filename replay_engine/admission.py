"""The waiting loop: strict head-of-line admission, and why the head was refused."""

from __future__ import annotations

from replay_engine.fetching import come_in, fetch_refused, start_fetch
from replay_engine.handover import FETCH
from replay_engine.kv_counted import CountedPool
from replay_engine.plugins import EngineView
from replay_engine.preempting import free_idle
from replay_engine.state import State
from replay_engine.types import BatchPlan, Refusal, SeqState, Sequence

__all__ = ["Refused", "admit_waiting", "standing_refusal"]

_LOOSE, _PAUSED, _SWAPPED, _LOADING, _FETCHED = (
    int(s) for s in (SeqState.LOOSE, SeqState.PAUSED, SeqState.SWAPPED, SeqState.LOADING, SeqState.FETCHED)
)
_BUDGET, _SEATS, _INTERVAL, _WHOLE, _TIER_SEATS, _TIER_BLOCKS, _OUTPUT, _PARTIAL, _WINDOW = (
    int(r)
    for r in (
        Refusal.token_budget, Refusal.max_num_seqs, Refusal.prefill_interval, Refusal.no_chunking, Refusal.reserved_seqs,
        Refusal.reserved_blocks, Refusal.kv_output_reserve, Refusal.prefill_limit, Refusal.batch_window,
    )
)  # fmt: skip
_FREE, _FULL_ISL, _WATERMARK = int(Refusal.kv_free), int(Refusal.kv_full_isl), int(Refusal.kv_watermark)
_IN_FLIGHT = int(Refusal.in_flight)
Refused = tuple[int, int]
"""Why the head is not admitted (a ``Refusal`` code, never ``none``), and the blocks it wants, reserve included."""


def admit_waiting(state: State, plan: BatchPlan, spare: int, grants: list[tuple[Sequence, int]]) -> bool:
    """Admit from the head of the queue while ``spare`` budget, seats and blocks last; appends to ``grants``.

    Sets the plan's refusal. Returns whether an admitted sequence still had more than one token to compute
    (what the prefill cadence counts as prefill).
    """
    waiting = state.waiting
    admitted: list[tuple[Sequence, int, bool]] = []
    carries = False
    while waiting:
        seq = waiting.head()
        found = _look(state, plan, seq, spare)
        if found is None:
            continue
        if isinstance(found, tuple):
            if found[0] in (_FREE, _FULL_ISL, _WATERMARK) and free_idle(state, plan, keep=seq):
                continue
            plan.refused_by, plan.refused_need = found
            plan.refused = seq
            break
        fetched = seq.state == _FETCHED
        cached = _enter(state, plan, seq, found)
        admitted.append((seq, cached, seq.num_preemptions > 0))
        if found:
            carries = carries or (seq.chunk and seq.nt - cached > 1 and not fetched)
            grants.append((seq, found))
            spare -= found
    if admitted:
        plan.admitted = admitted
        plan.hit_tokens = sum(entry[1] for entry in admitted)
    return carries


def _look(state: State, plan: BatchPlan, seq: Sequence, spare: int) -> int | Refused | None:
    """The tokens the head may compute now, or why none; ``None``: it has left the queue, to wait for its KV elsewhere."""
    refused = _shut(state, seq, spare)
    if refused is not None:
        return refused
    if seq is state.memo_head and _still_blocked(state):
        plan.refused_again = True
        return _FULL_ISL, state.memo_lack + state.reserve
    if seq.state in (_PAUSED, _SWAPPED):
        return _back(state, seq, spare)
    if seq.state == _FETCHED:
        return 1
    return _fetch(state, plan, seq) if seq.handover == FETCH else _fresh(state, seq, spare)


def standing_refusal(state: State) -> Refused | None:
    """Why the head is refused for certain, without a lookup, if members of the decode set take blocks and nothing else happens.

    A block that is taken lowers the free ones by one, and what the head lacks by at most as much (a promoted copy). ``None``: not
    certain.
    """
    if state.interval > 1 or state.turns is not None or state.gate is not None or state.paused:
        return None
    if state.rules.preemption.to_admit:
        return None
    if state.shares is not None:
        if state.rules.order.aging_s is not None:
            return None
        state.shares.tick = state.it + 1
        if state.handover is not None:
            return None
    head = state.waiting.head()
    refused = _shut(state, head, state.budget - state.decodes.count)
    if refused is None and head is state.memo_head and _still_blocked(state):
        return _FULL_ISL, state.memo_lack + state.reserve
    return _standing_lack(state, head) if refused is None else refused


def _standing_lack(state: State, head: Sequence) -> Refused | None:
    """The blocks that ``head`` lacks, where no cache could give any: a swapped one's, or a whole prompt's that nothing else
    refuses."""
    free, reserve = state.pool.free, state.reserve if state.running else 0
    if head.state == _FETCHED:
        return None
    if head.state == _SWAPPED:
        return (_FREE, head.nblocks + reserve) if head.nblocks > free else None
    plain = state.chunked and state.partial is None and state.align == 1 and not state.reserve_decode and state.full_isl
    if plain and isinstance(state.pool, CountedPool):
        whole = -(-head.nt // state.size)
        return (_FULL_ISL, whole + reserve) if whole > free else None
    return None


def _shut(state: State, seq: Sequence, spare: int) -> Refused | None:
    """Reasons that have nothing to do with the head's size."""
    gate = state.gate
    if gate is not None and not _batch_open(state):
        return _WINDOW, 0
    if spare <= 0:
        return _BUDGET, 0
    running = len(state.running)
    if running >= state.seats:
        return _SEATS, 0
    for tier in state.rules.order.reserved:
        if seq.priority > tier.priority and running >= state.seats - tier.seqs:
            return _TIER_SEATS, 0
    return None


def _batch_open(state: State) -> bool:
    """Static and dynamic batching: whether the head belongs to the batch being formed."""
    gate = state.gate
    assert gate is not None
    if state.running:
        return gate.to_admit > 0
    if state.now < gate.open_ns(len(state.waiting), state.waiting.head().request.arrival_ns):
        return False
    gate.form(len(state.waiting))
    return True


def _fresh(state: State, seq: Sequence, spare: int) -> int | Refused:
    """A head that has no KV of its own: the tokens it may compute now."""
    hit, revived = state.pool.hits(seq)
    cached = hit * state.size
    left = seq.nt - cached
    if state.hold and left > 1:
        return _INTERVAL, 0
    cap = state.cap() if state.threshold else 0
    tokens = cap if 0 < cap < left else left
    if not state.chunked and tokens > spare:
        return _WHOLE, 0
    room = min(spare, spare - state.reserve_decode + state.decodes.count) if state.reserve_decode > state.decodes.count else spare
    tokens = state.aligned(min(tokens, max(room, 0)), left)
    if not tokens:
        return _BUDGET, 0
    if state.partial is not None and tokens < left and _partly_done(state) >= state.partial:
        return _PARTIAL, 0
    until = seq.prompt_tokens + seq.reserved_tokens if state.contiguous else cached + tokens
    need = -(-until // state.size) - hit
    refused = _blocks_refused(state, seq, hit, revived, max(need, 0)) or _own_rules(state, seq, spare)
    return tokens if refused is None else refused


def _partly_done(state: State) -> int:
    """Prompts in progress that this iteration will not have ended."""
    return sum(1 for seq in state.loose.values() if seq.chunk)


def _blocks_refused(state: State, seq: Sequence, hit: int, revived: int, need: int) -> Refused | None:
    free = state.pool.free
    reserve = state.reserve if state.running else 0
    if state.full_isl and not state.contiguous:
        whole = max(-(-seq.nt // state.size) - hit, 0) + revived
        if whole + reserve > free:
            reason = _FULL_ISL if whole > free else _WATERMARK
            _remember(state, seq, whole, reason)
            return reason, whole + reserve
    need += revived
    if need + reserve > free or (state.contiguous and need > state.pool.largest):
        return (_FREE if need > free or state.contiguous else _WATERMARK), need + reserve
    if state.running:
        for tier in state.rules.order.reserved:
            if seq.priority > tier.priority and need + tier.blocks > free:
                return _TIER_BLOCKS, need + tier.blocks
    return None


def _own_rules(state: State, seq: Sequence, spare: int) -> Refused | None:
    """Tests beyond vLLM's; an empty engine admits whatever fits."""
    if not state.running:
        return None
    if state.rules.batching.output_reserve != "none":
        wanted = seq.prompt_tokens + seq.reserved_tokens
        if state.expected + wanted > state.usable * state.size:
            return _OUTPUT, -(-wanted // state.size)
    if state.admit is not None:
        view = EngineView(
            state.now, len(state.running), state.seats, len(state.waiting), state.pool.free, state.usable, state.size, spare
        )
        if not state.admit(seq.request, view):
            return _IN_FLIGHT, 0
    return None


def _fetch(state: State, plan: BatchPlan, seq: Sequence) -> Refused | None:
    """A head whose KV another engine has: blocks for it, or why not."""
    refused = fetch_refused(state, seq)
    if refused is None:
        start_fetch(state, plan, seq)
    else:
        _remember(state, seq, refused[1] - (state.reserve if state.running else 0), refused[0])
    return refused


def _back(state: State, seq: Sequence, spare: int) -> int | Refused:
    """A head that kept its KV, or has it on the host: one token at least follows what it has."""
    swapped = seq.state == _SWAPPED
    left = seq.nt - seq.comp
    if state.hold and left > 1:
        return _INTERVAL, 0
    tokens = min(left, spare)
    held = 0 if swapped else seq.nblocks
    need = seq.nblocks if swapped else max(-(-(seq.comp + tokens) // state.size) - held, 0)
    reserve = state.reserve if state.running and swapped else 0
    if need + reserve > state.pool.free:
        return (_FREE if need > state.pool.free else _WATERMARK), need + reserve
    return 0 if swapped else tokens


def _remember(state: State, seq: Sequence, lack: int, reason: int) -> None:
    """While the same head stays blocked its in-use hits rise only by a registration or by the promotion of a duplicate."""
    if reason == _FULL_ISL and not state.hold and state.chunked:
        state.memo_head = seq
        state.memo_lack = lack
        state.memo_changes = state.pool.changes


def _still_blocked(state: State) -> bool:
    """Whether the remembered head is refused for certain, without a lookup (it would walk the prompt's whole chain)."""
    least = state.memo_lack - (state.pool.changes - state.memo_changes)
    return bool(state.running) and not state.hold and least > state.pool.free


def _enter(state: State, plan: BatchPlan, seq: Sequence, tokens: int) -> int:
    """The head takes its seat and blocks. Returns the tokens the prefix cache gave it."""
    pool = state.pool
    state.waiting.pop()
    state.memo_head = None
    if state.gate is not None:
        state.gate.to_admit -= 1
    if seq.state in (_PAUSED, _SWAPPED):
        return _come_back(state, plan, seq, tokens)
    if seq.state == _FETCHED:
        come_in(state, seq)
        return 0
    pool.adopt(seq)
    cached = seq.nblocks * state.size
    whole = seq.prompt_tokens + seq.reserved_tokens if state.contiguous else cached + tokens
    need = -(-whole // state.size) - seq.nblocks
    if need > 0:
        pool.grow(seq, need)
        seq.nblocks += need
    seq.comp = cached
    if state.shares is not None and seq.cached_tokens < 0:
        state.shares.admitted(seq)
    seq.cached_tokens = max(seq.cached_tokens, 0) + max(cached - seq.lost_high, 0)
    pool.commit(seq, cached + tokens)
    state.seat(seq)
    seq.state = _LOOSE
    seq.chunk = True
    state.loose[seq.ticket] = seq
    return cached


def _come_back(state: State, plan: BatchPlan, seq: Sequence, tokens: int) -> int:
    pool = state.pool
    state.seat(seq)
    if seq.state == _PAUSED:
        del state.paused[seq.index]
        need = max(-(-(seq.comp + tokens) // state.size) - seq.nblocks, 0)
        if need:
            pool.grow(seq, need)
            seq.nblocks += need
        pool.commit(seq, seq.comp + tokens)
        seq.state = _LOOSE
        state.loose[seq.ticket] = seq
        return 0
    pool.grow(seq, seq.nblocks)
    seq.ready_ns, cost = state.host.fetch(seq.nblocks, state.now)
    seq.state = _LOADING
    state.loading.append(seq)
    plan.loading = [*plan.loading, (seq, cost)]
    return 0
