"""A plain per-sequence model of vLLM 0.33's scheduler: the oracle that the engine's scheduler is compared with.

Written for clarity from the description of the semantics. Every sequence is a list of tokens, every iteration looks at every
running sequence, every KV block has an id. Shares nothing with the engine but the configuration and the names of refusals.
"""

from __future__ import annotations

from replay_engine.config import SchedulerConfig, cdiv
from replay_engine.types import Refusal
from tests.oracle.plain_pool import BlockPool, ContentKeys
from tests.oracle.plain_types import TOKEN_STRIDE, Decision, PlainSequence

__all__ = ["PlainWalk"]


class PlainWalk:
    """The scheduler. Call ``add``/``abort``, then ``schedule``, then ``update`` with the decision whose output returned."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.is_priority = config.policy == "priority"
        self.is_current = config.engine_version == "0.33.0"
        self.running: list[PlainSequence] = []
        self.waiting: list[PlainSequence] = []
        self.keys = ContentKeys(config.block_size)
        self.pool = BlockPool(
            config.num_gpu_blocks, caching=config.enable_prefix_caching, split_free_list=config.engine_version != "0.20.0"
        )
        self.executed = 0
        self.last_prefill = -config.prefill_schedule_interval
        self.backlog = False
        self.budget = 0
        self.threshold = 0
        self.hold = False

    def add(self, seq: PlainSequence) -> None:
        seq.prompt_len = seq.nt
        if self.config.enable_prefix_caching:
            self.keys.extend(seq.keys, seq.tokens)
        self.waiting.append(seq)

    def abort(self, seq: PlainSequence) -> bool:
        """Remove ``seq`` at once. False: it was not there any more."""
        if seq.status == "gone":
            return False
        self._remove(seq)
        return True

    def waiting_order(self) -> list[PlainSequence]:
        """The waiting queue in the order in which it is looked at."""
        if not self.is_priority:
            return list(self.waiting)
        return sorted(self.waiting, key=lambda seq: (seq.priority, seq.arrival_time, seq.request_id))

    def schedule(self) -> Decision:
        step = Decision()
        self.budget = self.config.token_budget
        self.threshold = self._threshold()
        self.hold = self._hold()
        evicted_before = self.pool.evicted
        self._schedule_running(step)
        if step.preempted:
            self._refuse(step, Refusal.after_preemption)
        else:
            self._schedule_waiting(step)
            if not self.hold:
                self.backlog = bool(self.waiting)
        step.evicted = self.pool.evicted - evicted_before
        self._advance(step)
        return step

    def update(self, step: Decision) -> tuple[list[str], list[str]]:
        """Return the sampled tokens of ``step``. Ids that got their first token, and ids that finished."""
        first: list[str] = []
        finished: list[str] = []
        for seq in step.samples:
            if seq.status == "gone":
                continue
            seq.tokens.append(seq.output_seed * TOKEN_STRIDE + seq.outputs)
            if self.config.enable_prefix_caching:
                self.keys.extend(seq.keys, seq.tokens)
            if self.config.async_scheduling and seq.status == "running":
                seq.ph -= 1
                self._register(seq, seq.comp - seq.ph)
            if seq.outputs == 1:
                first.append(seq.request_id)
            if seq.nt >= self.config.max_model_len or seq.outputs >= seq.max_tokens:
                finished.append(seq.request_id)
                self._remove(seq)
        return first, finished

    # The running list.

    def _threshold(self) -> int:
        requests = len(self.running) + len(self.waiting)
        threshold = self.config.long_prefill_token_threshold
        if requests <= 1 and self.is_current:
            return 0
        if threshold and self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, self.config.max_num_batched_tokens // requests)
        return threshold

    def _hold(self) -> bool:
        interval = self.config.prefill_schedule_interval
        too_soon = interval > 1 and not self.backlog and self.executed + 1 - self.last_prefill < interval
        return too_soon and any(not seq.chunk for seq in self.running)

    def _clip(self, tokens: int) -> int:
        return min(tokens, self.threshold) if self.threshold else tokens

    def _schedule_running(self, step: Decision) -> None:
        i = 0
        while i < len(self.running) and self.budget > 0:
            seq = self.running[i]
            last_in_flight = seq.ph > 0 and seq.comp + 2 - seq.ph >= seq.prompt_len + seq.max_tokens
            if last_in_flight or (self.hold and seq.chunk):
                i += 1
                continue
            tokens = min(self._clip(seq.left), self.budget, self.config.max_model_len - seq.comp - 1)
            if tokens <= 0:
                i += 1
                continue
            while not self._allocate(seq, tokens):
                victim = self._victim()
                position = self.running.index(victim)
                self._preempt(victim, step)
                if victim is seq:
                    break
                if position < i:
                    i -= 1
            if seq.status == "running":
                step.scheduled[seq] = tokens
                step.carries_prefill |= seq.chunk
                self.budget -= tokens
                i += 1
            elif not (self.is_priority and self.is_current):
                break

    def _victim(self) -> PlainSequence:
        if not self.is_priority:
            return self.running[-1]
        return max(self.running, key=lambda seq: (seq.priority, seq.arrival_time))

    def _preempt(self, victim: PlainSequence, step: Decision) -> None:
        self.running.remove(victim)
        self.budget += step.scheduled.pop(victim, 0)
        step.preempted.append(victim)
        step.lost.append(victim.comp)
        self._free(victim)
        victim.comp = victim.ph = 0
        victim.status = "waiting"
        self.waiting.insert(0, victim)

    # The waiting queue.

    def _schedule_waiting(self, step: Decision) -> None:
        while self.waiting:
            refusal, need = self._try_head(step)
            if refusal:
                self._refuse(step, refusal, need)
                break

    def _try_head(self, step: Decision) -> tuple[Refusal, int]:
        """Admit the head of the queue, or say why not and how many blocks were missing room."""
        config = self.config
        if self.budget <= 0:
            return Refusal.token_budget, 0
        if len(self.running) >= config.seat_limit:
            return Refusal.max_num_seqs, 0
        seq = self.waiting_order()[0]
        hit = self.pool.longest_hit(seq.keys, (seq.nt - 1) // config.block_size)
        cached = len(hit) * config.block_size
        if self.hold and cached < seq.nt - 1:
            return Refusal.prefill_interval, 0
        tokens = self._clip(seq.nt - cached)
        if not config.enable_chunked_prefill and tokens > self.budget:
            return Refusal.no_chunking, 0
        tokens = min(tokens, self.budget)
        refusal, need = self._admission_test(seq, hit, cached + tokens)
        if not refusal:
            self._admit(seq, hit, tokens, step)
        return refusal, need

    def _admission_test(self, seq: PlainSequence, hit: list[int], computed: int) -> tuple[Refusal, int]:
        """Why the blocks do not suffice, and how many were asked for; ``none`` when they do."""
        config = self.config
        spare = int(config.watermark * config.num_gpu_blocks) if self.running else 0
        tests = [(Refusal.kv_full_isl, seq.nt)] if config.scheduler_reserve_full_isl else []
        tests.append((Refusal.kv_free, computed))
        for refusal, length in tests:
            need = max(cdiv(min(length, config.max_model_len), config.block_size) - len(hit), 0) + self.pool.unreferenced(hit)
            if need + spare > len(self.pool.free):
                return (refusal if need > len(self.pool.free) else Refusal.kv_watermark), need + spare
        return Refusal.none, 0

    def _admit(self, seq: PlainSequence, hit: list[int], tokens: int, step: Decision) -> None:
        self.waiting.remove(seq)
        self.pool.adopt(hit)
        seq.blocks = list(hit)
        seq.registered = len(hit)
        seq.comp = len(hit) * self.config.block_size
        seq.status = "running"
        if not self._allocate(seq, tokens):
            raise AssertionError("the admission test promised these blocks")
        step.carries_prefill |= seq.comp < seq.nt - 1
        (step.resumed if seq.admissions else step.admitted).append(seq)
        seq.admissions += 1
        step.cached[seq] = seq.comp
        step.scheduled[seq] = tokens
        self.running.append(seq)
        self.budget -= tokens

    def _refuse(self, step: Decision, why: Refusal, need: int = 0) -> None:
        step.refused_by, step.refused_head, step.refused_need = why, self.waiting_order()[0].request_id, need

    # Blocks and the end of an iteration.

    def _allocate(self, seq: PlainSequence, tokens: int) -> bool:
        length = min(seq.comp + tokens, self.config.max_model_len)
        need = max(cdiv(length, self.config.block_size) - len(seq.blocks), 0)
        if need > len(self.pool.free):
            return False
        seq.blocks += self.pool.take(need)
        self._register(seq, min(seq.comp + tokens, seq.nt))
        return True

    def _register(self, seq: PlainSequence, tokens: int) -> None:
        if self.config.enable_prefix_caching:
            for k in range(seq.registered, tokens // self.config.block_size):
                self.pool.register(seq.blocks[k], seq.keys[k])
                seq.registered = k + 1

    def _free(self, seq: PlainSequence) -> None:
        self.pool.release(seq.blocks)
        seq.blocks = []
        seq.registered = 0

    def _remove(self, seq: PlainSequence) -> None:
        (self.running if seq.status == "running" else self.waiting).remove(seq)
        self._free(seq)
        seq.status = "gone"

    def _advance(self, step: Decision) -> None:
        for seq, tokens in step.scheduled.items():
            if tokens == 1 and seq.left == 1 and seq.has_sampled:
                step.decoding.append(seq.request_id)
            seq.comp += tokens
            seq.chunk = seq.comp < seq.nt + seq.ph
            if not seq.chunk:
                step.samples.append(seq)
                seq.has_sampled = True
                seq.ph += self.config.async_scheduling
        if step.scheduled:
            self.executed += 1
            if step.carries_prefill:
                self.last_prefill = self.executed
