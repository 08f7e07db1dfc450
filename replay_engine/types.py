"""The types at the engine's seams: requests in, plans to an executor, results back, events out.

Time is int64 nanoseconds on the engine clock, lengths are tokens, KV is counted in blocks.
Hot-path records are plain (not frozen) slotted classes: a frozen dataclass costs five times as much to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "NEVER",
    "BatchPlan",
    "Displaced",
    "EventSink",
    "Executor",
    "IterationResult",
    "Pending",
    "Phase",
    "PrefillEntry",
    "PrefixRuns",
    "Refusal",
    "Request",
    "RequestBatch",
    "RequestSource",
    "RequestState",
    "SeqState",
    "Sequence",
    "Watching",
]

NEVER = 1 << 62
"""Later than any event, in ns."""


class Refusal(IntEnum):
    """Why the head of the waiting queue was not admitted in an iteration. Codes are stored; append only."""

    none = 0
    token_budget = 1
    max_num_seqs = 2
    reserved_seqs = 3
    kv_free = 4
    kv_full_isl = 5
    kv_watermark = 6
    kv_output_reserve = 7
    reserved_blocks = 8
    after_preemption = 9
    prefill_interval = 10
    no_chunking = 11
    prefill_limit = 12
    batch_window = 13
    host_pool = 14
    link = 15
    in_flight = 16
    replica_failed = 17  # of a span: the wait after the request's replica failed


class Phase(IntEnum):
    """What a request is doing during a span. Codes are stored; append only."""

    dispatch = 0
    ingress = 1
    queued = 2
    prefill = 3
    prefill_wait = 4
    decode = 5
    stalled = 6
    preempted = 7
    swapped = 8
    paused = 9
    transfer_wait = 10
    transfer = 11
    decode_queue = 12
    batch_hold = 13
    egress = 14


class RequestState(IntEnum):
    """The one state every request ends in. Codes are stored; append only."""

    finished = 0
    rejected = 1
    timed_out = 2
    cancelled = 3
    failed = 4
    unreleased = 5


class Displaced(IntEnum):
    """What became of a preempted sequence's KV. Codes are stored; append only."""

    recompute = 0
    swap = 1
    pause = 2
    evicted = 3  # a paused one whose KV had to go after all


class SeqState(IntEnum):
    """Where a sequence stands in the scheduler (``ARCHITECTURE.md``, "O(changes)")."""

    WAIT = 0  # in the waiting queue, holds nothing
    LOOSE = 1  # running with explicit counters: prefilling, or a decode that missed an iteration
    DECODE = 2  # member of the standing decode set: counters implied by the iteration number
    DRAIN = 3  # every token scheduled: the last one not yet returned, or the place held until its batch ends
    GONE = 4
    PAUSED = 5  # in the waiting queue without a seat, its KV kept
    SWAPPED = 6  # in the waiting queue, its KV on the host
    LOADING = 7  # has seat and blocks again, its KV on the way back
    FETCHING = 8  # has blocks and no seat, its KV on the way from the engine that computed it
    FETCHED = 9  # in the waiting queue without a seat, its KV there
    HELD = 10  # done here, its blocks kept until its KV has been copied


@dataclass(slots=True, kw_only=True)
class PrefixRuns:
    """A prompt's prefix identity: runs of consecutive block ids at the trace's own granularity.

    ``runs`` holds ``(position, first_id, length)`` in trace blocks of ``block_tokens`` tokens; ids are
    chained: an equal id means an equal whole prefix up to and including that block.
    ``shared_blocks`` leading trace blocks also occur in another request of the trace (an upper bound);
    blocks after them can never be hit by anyone else.
    """

    block_tokens: int
    runs: tuple[tuple[int, int, int], ...]
    shared_blocks: int


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as the engine sees it. ``output_tokens`` is the length the replay forces."""

    index: int
    request_id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    arrival_order: float | None = None
    """What ``priority`` order compares between equal priorities; ``None``: ``arrival_ns``."""
    prefix: PrefixRuns | None = None
    cancel_ns: int | None = None
    tenant: int = -1
    """Code of the tenant, -1: unknown (all unknown ones are one tenant)."""
    deadline_ns: int | None = None
    predicted_tokens: int | None = None
    parent: int | None = None
    """Index of the request whose completion releases this one; then ``arrival_ns`` is the earliest moment for it (-1: any), and
    ``cancel_ns`` and ``deadline_ns`` count from its release. At the release all three become moments."""
    think_ns: int = 0
    """Time between the parent's completion and the release."""
    degraded: bool = False
    """The front door cut the answer."""
    attempt: int = 0
    """How often it was sent again because its replica had failed."""
    expires_ns: int = NEVER
    """A last token after this moment comes too late: the request has timed out."""


@dataclass(slots=True, kw_only=True)
class RequestBatch:
    """Requests in arrival order, as columns of one length ``n``.

    ``index`` int64 (dense, ascending), ``arrival_ns`` int64, ``prompt_tokens`` and ``output_tokens`` int64,
    ``priority`` int64, ``max_tokens`` int64 with -1 for unknown, ``cancel_ns`` int64 with -1 for never
    (``None``: nobody cancels); ``tenant`` codes, ``deadline_ns`` and ``predicted_tokens`` likewise. ``request_id`` may be
    ``None``: then the index in decimal.
    ``parent`` is the index of the request that releases this one, -1 for none, and ``think_ns`` the time after its completion. A
    root comes in the order of arrivals, and all that depends on it right after it, each after its parent; see ``Request``.
    Prefix runs are ragged: request ``i`` owns rows ``run_offsets[i]:run_offsets[i+1]`` of ``run_pos``,
    ``run_first`` and ``run_len`` (int64), and ``shared_blocks[i]``; ``run_offsets`` is ``None`` without identity.
    """

    index: npt.NDArray[np.int64]
    arrival_ns: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    max_tokens: npt.NDArray[np.int64]
    request_id: SequenceOf[str] | None = None
    cancel_ns: npt.NDArray[np.int64] | None = None
    tenant: npt.NDArray[np.int32] | None = None
    deadline_ns: npt.NDArray[np.int64] | None = None
    predicted_tokens: npt.NDArray[np.int64] | None = None
    parent: npt.NDArray[np.int64] | None = None
    think_ns: npt.NDArray[np.int64] | None = None
    block_tokens: int = 0
    run_offsets: npt.NDArray[np.int64] | None = None
    run_pos: npt.NDArray[np.int64] | None = None
    run_first: npt.NDArray[np.int64] | None = None
    run_len: npt.NDArray[np.int64] | None = None
    shared_blocks: npt.NDArray[np.int64] | None = None


class RequestSource(Protocol):
    """Where requests come from: column batches in arrival order, so that no trace is held whole as objects."""

    @property
    def total(self) -> int:
        """Number of requests that ``batches`` will yield."""
        ...

    def batches(self) -> Iterator[RequestBatch]: ...


class PrefillEntry(NamedTuple):
    """Explicitly computed tokens of one sequence in one iteration.

    ``query_len`` tokens are computed; the KV length afterwards is ``kv_len`` (context + query_len).
    ``recompute`` of them had been computed before a preemption. ``decode``: a decode that missed an iteration and is not
    a member of the standing set (again) yet; it counts as a decode.
    """

    seq: Sequence
    query_len: int
    kv_len: int
    recompute: int
    decode: bool


class Sequence:
    """The scheduler's mutable view of a request. Compared by identity.

    While ``state`` is DECODE the counters ``comp`` and ``nt`` are implied by the iteration number: read them through
    ``DecodeSet.computed``. ``nt`` counts known tokens plus the one in flight.
    """

    __slots__ = (
        "admit_iteration", "admit_ns", "arrival_order", "blocks", "cached_tokens", "chunk", "comp", "fetch_hit", "first_token_ns",
        "handover", "index", "joined_stack", "keys", "last_token_ns", "leaves_at", "lost_high", "max_gap_ns", "nblocks",
        "nreg", "nt", "num_preemptions", "origin", "output_limit", "past_preemptions", "phase", "phase_iteration", "phase_reason",
        "phase_start_ns", "priority", "prompt_tokens", "queue_ns", "queue_reason", "queued_ns", "ready_ns",
        "recomputed_tokens", "request", "request_id", "reserved_tokens", "share", "stalled_mark", "stalled_ns", "state",
        "straight", "ticket", "total",
    )  # fmt: skip

    index: int
    state: int
    admit_iteration: int
    admit_ns: int
    queued_ns: int
    queue_reason: int
    share: Any

    def __init__(self, request: Request, output_limit: int) -> None:
        self.request = request
        self.index = request.index
        self.request_id = request.request_id
        self.prompt_tokens = self.nt = request.prompt_tokens
        self.output_limit = output_limit
        self.total = request.prompt_tokens + output_limit - 1
        self.priority = request.priority
        order = request.arrival_order
        self.arrival_order: float = request.arrival_ns if order is None else order
        self.state = 0
        self.ticket = -1
        self.comp = 0
        self.chunk = True
        self.origin = 0
        self.leaves_at = -1
        self.nblocks = self.nreg = 0
        self.blocks: Any = None
        self.keys: Any = None
        self.num_preemptions = self.past_preemptions = 0
        self.ready_ns = -1
        self.handover = 0
        self.fetch_hit = 0
        self.reserved_tokens = 0
        self.lost_high = 0
        self.recomputed_tokens = 0
        self.cached_tokens = -1
        self.phase = 2
        self.phase_reason = 17 if request.attempt else 0
        self.phase_iteration = -1
        self.phase_start_ns = request.arrival_ns
        self.straight = 0
        self.queue_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1
        self.joined_stack = 0
        self.max_gap_ns = -1
        self.stalled_ns = 0
        self.stalled_mark = 0


_EMPTY: tuple[Any, ...] = ()


class BatchPlan:
    """What one iteration computes, plus what changed since the plan before.

    Rare fields are class defaults, so that a plan that only decodes costs seven attributes.
    ``running`` and ``waiting`` are the lengths of the two lists after the decision, ``kv_free`` the free blocks, ``kv_blank``
    those
    of them that hold nothing the prefix cache could give.
    ``prefill`` lists explicit entries in scheduling order; every member of the decode set computes one token;
    ``joined``/``left`` are the set's changes since the last plan (a consumer adds ``joined`` first, then removes ``left``).
    """

    iteration: int
    decode_seqs: int
    decode_kv: int
    running: int
    waiting: int
    kv_free: int
    kv_blank: int
    prefill: SequenceOf[PrefillEntry] = _EMPTY
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_qk: int = 0
    recomputed_tokens: int = 0
    joined: SequenceOf[Sequence] = _EMPTY
    left: SequenceOf[Sequence] = _EMPTY
    admitted: SequenceOf[tuple[Sequence, int, bool]] = _EMPTY
    """Sequences admitted from the queue, in order, with the tokens the prefix cache gave and whether they resume."""
    preempted: SequenceOf[tuple[Sequence, int]] = _EMPTY
    """Sequences that lost their seat in this plan, in order, with the computed tokens they lost (0: swapped or paused)."""
    displaced: SequenceOf[tuple[Sequence, int, int]] = _EMPTY
    """Those of ``preempted`` that did not simply drop their KV, and paused ones that do so now: with the way (``Displaced``)
    and the time its
    copy takes on the link, ns."""
    loading: SequenceOf[tuple[Sequence, int]] = _EMPTY
    """Sequences that got seat and blocks for KV that is on its way back, and the copy's time on the link, ns."""
    fetching: SequenceOf[Sequence] = _EMPTY
    """Sequences that got blocks, and no seat, for KV that is to come from the engine that computed it."""
    link_ns: int = 0
    """Copies this iteration cannot start without."""
    scheduling: bool = True
    """Whether this iteration pays the scheduling cost (static batching pays it once a batch)."""
    starved: SequenceOf[Sequence] = _EMPTY
    """Running sequences that got no token in this iteration although they had tokens to compute."""
    starved_by: int = 1
    """Why, as a ``Refusal`` code."""
    sampled: SequenceOf[Sequence] = _EMPTY
    """Sequences of ``prefill`` whose last known token is computed here: they sample a token."""
    finishing: SequenceOf[Sequence] = _EMPTY
    """Sequences whose last token this iteration samples, in scheduling order."""
    refused_by: int = 0
    refused: Sequence | None = None
    refused_need: int = 0
    """Blocks the refused head wants, reserve included, for the ``kv_*`` reasons."""
    refused_again: bool = False
    """The head stands refused from an earlier look; ``refused_need`` is as of then."""
    hit_tokens: int = 0
    evicted: int = 0
    walked: bool = False
    """Whether the literal per-sequence loop decided this iteration."""

    @property
    def total_tokens(self) -> int:
        return self.prefill_tokens + self.decode_seqs


class IterationResult:
    """How long an iteration took. ``device_ns`` and ``host_ns`` are parts (they overlap when scheduling is asynchronous)."""

    __slots__ = ("device_ns", "duration_ns", "host_ns", "tokens")

    def __init__(self, duration_ns: int, device_ns: int, host_ns: int, tokens: Any = None) -> None:
        self.duration_ns = duration_ns
        self.device_ns = device_ns
        self.host_ns = host_ns
        self.tokens = tokens


class Pending(Protocol):
    """An iteration under way."""

    def wait(self) -> IterationResult: ...


class Executor(Protocol):
    """Runs plans. Two-phase from day one: ``submit`` may return before the work is done."""

    def submit(self, plan: BatchPlan) -> Pending: ...


@runtime_checkable
class Watching(Protocol):
    """An executor whose iterations take their time: it times the scheduler (the loop calls what it returns in place of
    ``schedule``), and calls ``flush`` now and then, so that who follows the run sees what has been logged."""

    def watch(self, schedule: Callable[[int], BatchPlan], flush: Callable[[], None]) -> Callable[[int], BatchPlan]: ...


class EventSink(Protocol):
    """Where events go. ``rows`` is a structured array of the table's dtype in ``replay_engine.tables``; it is only valid
    during the call (the writer reuses its buffer)."""

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None: ...
