"""The executor that computes: plans in, measured iterations out.

``submit`` packs the plan, sends it in one copy and enqueues the forward pass; ``wait`` takes the result of that iteration, by
which time the next one may be under way. Nothing in between waits for the device: a decode's input is the token that the
iteration before sampled, still on the device; times are read from events that have long passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.failure import EngineFailure
from replay_engine.handover import GIVE
from replay_engine.torch_engine.batch import Layout, PersistentBatch, TableSizes, emptied
from replay_engine.torch_engine.clocks import DeviceClock
from replay_engine.torch_engine.engine_rows import EAGER, GRAPH, LATE, PADDED, Note
from replay_engine.torch_engine.graphs import DecodeBuckets
from replay_engine.torch_engine.iteration import NOT_FINITE, IterationPass
from replay_engine.torch_engine.outputs import TokenLog
from replay_engine.torch_engine.staging import Staging
from replay_engine.torch_engine.swapping import Swapper
from replay_engine.types import BatchPlan, IterationResult

if TYPE_CHECKING:
    from replay_engine.torch_engine.engine_pool import EnginePool

__all__ = ["TorchExecutor"]

_now = time.perf_counter_ns
FLUSH_NS = 250_000_000
"""Whoever follows a replay sees it within this time."""


def _nothing() -> None:
    """Nobody follows."""


class TorchExecutor:
    """Runs plans of a scheduler whose pool is ``pool``; iterations are submitted and waited for in order, two in flight at most.

    ``poison``: blocks that hold nothing valid are filled with NaN before every forward pass. ``tokens``: the sampled tokens are
    kept there. ``notes`` has what the loop does not know of an iteration, by its number, until ``EngineSink`` takes it.
    """

    def __init__(
        self,
        run: IterationPass,
        batch: PersistentBatch,
        pool: EnginePool,
        buckets: DecodeBuckets | None,
        staging: Staging,
        swapper: Swapper | None,
        *,
        asynchronous: bool,
        poison: bool,
        keep_tokens: bool,
    ) -> None:
        self.notes: dict[int, Note] = {}
        self.tokens = TokenLog() if keep_tokens else None
        self.late = 0
        """Compilations and captures after the clock started; whoever watches for them counts here."""
        self.given: dict[int, int] | None = None
        """On a prefill engine: first tokens of what is to be handed over, by request, until somebody takes them."""
        self.prompt_ns = 0
        """Host time spent on making up prompts, which a server is sent: no part of any iteration."""
        self._pass, self._batch, self._pool, self._buckets = run, batch, pool, buckets
        self._staging, self._swapper = staging, swapper
        self._asynchronous, self._poison = asynchronous, poison
        self._device = DeviceClock(run.model.device)
        self._last: Layout | None = None
        """Of the iteration before, whose packed buffer lies on the device."""
        self._schedule_ns = 0
        self._flush: Callable[[], None] = _nothing
        self._flushed_ns = _now()
        self._failure: EngineFailure | None = None

    def renew(self, pool: EnginePool) -> None:
        """Forget every sequence: a scheduler that knows none goes on with ``pool``. Nothing may be under way."""
        self._pool = pool
        self._batch = emptied(self._batch)
        if self._swapper is not None:
            self._swapper = self._swapper.emptied()
        if self.given is not None:
            self.given = {}
        if self._poison:
            self._pass.pool.poison_all()

    def told(self, request: int, token: int) -> None:
        """``request`` goes on here behind ``token``, which another engine has sampled."""
        self._batch.told[request] = token

    def watch(self, schedule: Callable[[int], BatchPlan], flush: Callable[[], None]) -> Callable[[int], BatchPlan]:
        """``schedule``, timed: its host time is part of the iteration it decides. ``flush`` is called a few times a second."""
        self._flush = flush

        def timed(now: int = 0) -> BatchPlan:
            began = _now()
            plan = schedule(now)
            self._schedule_ns = _now() - began
            return plan

        return timed

    def submit(self, plan: BatchPlan) -> _Iteration:
        """Enqueue ``plan``. What goes wrong is said by ``wait``, when its turn has come."""
        iteration = _Iteration(self, plan, self._schedule_ns)
        if self._failure is None:
            try:
                self._enqueue(plan, iteration)
            except (RuntimeError, MemoryError) as error:
                self._fail(plan.iteration, error)
        return iteration

    def _fail(self, iteration: int, error: BaseException) -> None:
        words = " ".join(str(error).split()) or type(error).__name__
        self._failure = EngineFailure(iteration, words if len(words) <= 300 else words[:299] + "…")

    def _enqueue(self, plan: BatchPlan, iteration: _Iteration) -> None:
        began, made_up, late = _now(), self.prompt_ns, self.late
        batch = self._batch
        if self._swapper is not None:
            with torch.inference_mode():
                self._swapper.out(plan, batch, iteration)
        batch.follow(plan)
        if batch.sizes is not self._pass.tables.sizes:
            self._grow(batch.sizes)
        void = sorted(set(self._pool.take_void())) if self._poison else []
        decodes = len(batch.order)
        bucket = self._buckets.fit(decodes) if self._buckets is not None and decodes and not plan.prefill else None
        layout = batch.lay_out(plan, decodes if bucket is None else bucket, void)
        iteration.longest = batch.longest(plan)
        size = layout.size
        if not size and not plan.loading:
            return
        again, self._last = layout is self._last, layout
        if not again:
            batch.pack(plan, layout, void, self._staging.array(size))
        iteration.prepared_ns = _now() - began - (self.prompt_ns - made_up)
        self._device.start()
        tokens = self._compute(0 if again else size, layout, plan, bucket, iteration)
        if tokens is not None:
            self._device.stop()
            if self.tokens is not None:
                iteration.sampling = batch.sampling(plan)
            iteration.tokens = self._staging.read_back(tokens)
            iteration.computes = True
        if self.late != late:
            iteration.mode = LATE
        iteration.submitted_ns = _now() - began - (self.prompt_ns - made_up)

    @torch.inference_mode()
    def _compute(
        self, size: int, layout: Layout, plan: BatchPlan, bucket: int | None, iteration: _Iteration
    ) -> torch.Tensor | None:
        """Everything of an iteration that runs on the device: ``size`` elements are packed for it, 0: as for the one before."""
        if size:
            packed = self._staging.send(size, keep=0 if bucket is None else 4 * bucket)
            self._pass.update(packed, layout)
        else:
            packed = self._staging.advance(layout.decodes, layout.padding)
        if self._swapper is not None:
            self._swapper.back(plan, iteration)
        if not layout.tokens:
            return None
        if bucket is not None and self._buckets is not None:
            iteration.padded = layout.padding
            iteration.mode = GRAPH + bucket if self._buckets.captured else PADDED
            return self._staging.land(self._buckets.run(bucket))
        if layout.entries:
            return self._staging.land(self._pass.mixed(packed, layout))
        return self._staging.land(self._pass.decode(packed, layout.decodes, layout.decode_blocks))

    @torch.inference_mode()
    def _grow(self, sizes: TableSizes) -> None:
        self._pass.tables.grow(sizes)
        if self._buckets is not None and self._buckets.captured:
            self.late += 1
            self._buckets.capture()

    def finish(self, iteration: _Iteration) -> IterationResult:
        """The result of ``iteration``, waited for."""
        began = _now()
        if began - self._flushed_ns > FLUSH_NS:
            self._flushed_ns = began
            self._flush()
            began = _now()
        if self._failure is not None and self._failure.iteration <= iteration.plan.iteration:
            raise self._failure
        copied = self._swapper.measured(iteration) if self._swapper is not None else 0
        if not iteration.computes:
            self._note(iteration, iteration.submitted_ns, began)
            return IterationResult(copied, 0, 0)
        tokens = self._tokens(iteration)
        if NOT_FINITE in tokens.tolist():  # a reduction of numpy is 50 us where the caches are cold
            self._failure = EngineFailure(iteration.plan.iteration, "a hidden state is not finite (NaN or infinite)")
            raise self._failure
        if self.given is not None:
            sampled = iteration.plan.sampled
            first = tokens[len(tokens) - len(sampled) :].tolist()
            self.given |= {seq.index: token for seq, token in zip(sampled, first, strict=True) if seq.handover == GIVE}
        device = self._device.read()
        submit = iteration.submitted_ns
        if not self._staging.cuda:  # there is no device apart: the computing was part of submitting
            submit = max(submit - device, 0)
        self._note(iteration, submit, began)
        # Synchronous: what the host does before the device starts, then the device. Asynchronous: the longer one counts.
        if self._asynchronous:
            host = iteration.schedule_ns + submit
            return IterationResult(max(device, host), device, host)
        host = iteration.schedule_ns + iteration.prepared_ns
        return IterationResult(device + host, device, host)

    def _note(self, iteration: _Iteration, submit: int, began: int) -> None:
        self.notes[iteration.plan.iteration] = (
            iteration.mode, iteration.padded, iteration.schedule_ns, submit, _now() - began, iteration.longest
        )  # fmt: skip

    def _tokens(self, iteration: _Iteration) -> npt.NDArray[np.int64]:
        assert iteration.tokens is not None
        try:
            tokens = iteration.tokens()
        except RuntimeError as error:
            self._fail(iteration.plan.iteration, error)
            assert self._failure is not None
            raise self._failure from None
        if iteration.sampling is not None and self.tokens is not None:
            self.tokens.add(iteration.sampling, tokens[: len(iteration.sampling)])
        return tokens[: len(tokens) - iteration.padded] if iteration.padded else tokens


class _Iteration:
    """An iteration under way."""

    __slots__ = (
        "computes", "copies", "executor", "longest", "mode", "padded", "plan", "prepared_ns", "sampling", "schedule_ns",
        "submitted_ns", "tokens",
    )  # fmt: skip

    def __init__(self, executor: TorchExecutor, plan: BatchPlan, schedule_ns: int) -> None:
        self.executor = executor
        self.plan = plan
        self.schedule_ns = schedule_ns
        self.prepared_ns = self.submitted_ns = self.longest = 0
        self.computes = False
        self.mode, self.padded = EAGER, 0
        self.tokens: Callable[[], npt.NDArray[np.int64]] | None = None
        self.sampling: npt.NDArray[np.int32] | None = None
        self.copies: object = None

    def wait(self) -> IterationResult:
        return self.executor.finish(self)
