"""Every request's life as spans that touch: written when a request changes what it is doing, never per token.

Spans start and end on iteration boundaries (or at the arrival, or when KV moves) and partition arrival to last token to the
nanosecond. ``decode`` holds only while its sequence is served in every iteration. Nearly all wait, prefill, decode and end: their
rows are written in one go; whatever else happens first writes those pending (``straight``: that many).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from replay_engine.gaps import GapClock
from replay_engine.handover import GIVE
from replay_engine.outcomes import write_absent, write_early, write_finished
from replay_engine.plain_admission import Entry, Fetched
from replay_engine.rows import RowBuffer
from replay_engine.straight import write_pending, write_straight
from replay_engine.tables import OutcomeReason
from replay_engine.types import BatchPlan, Displaced, Phase, PrefillEntry, Refusal, RequestState, Sequence

__all__ = ["SpanTracker"]

_QUEUED, _PREFILL, _WAIT, _DECODE, _STALLED, _PREEMPTED, _SWAPPED, _PAUSED, _TRANSFER, _HOLD, _DISPATCH = (
    int(p)
    for p in (
        Phase.queued, Phase.prefill, Phase.prefill_wait, Phase.decode, Phase.stalled, Phase.preempted, Phase.swapped,
        Phase.paused, Phase.transfer, Phase.batch_hold, Phase.dispatch,
    )
)  # fmt: skip
_AWAY = {int(Displaced.recompute): _PREEMPTED, int(Displaced.swap): _SWAPPED, int(Displaced.pause): _PAUSED}
_ENDED, _EVICTED, _AFTER_PREEMPTION = -1, int(Displaced.evicted), int(Refusal.after_preemption)


class SpanTracker:
    """Turns plans into spans, outcomes, and preemption rows. ``start`` and ``end`` are an iteration's times.

    A plan may be recorded after the next one is made: nothing is read here from what the scheduler may have changed since."""

    __slots__ = (
        "_gaps", "_kept", "_open", "_outcomes", "_preemptions", "_refused_before", "_spans", "batch_answers",
        "keep_outcomes", "keep_spans",
    )  # fmt: skip

    def __init__(
        self, spans: RowBuffer, outcomes: RowBuffer, preemptions: RowBuffer, gaps: GapClock, *,
        keep_spans: bool, keep_outcomes: bool,
    ) -> None:  # fmt: skip
        self._spans = spans
        self._outcomes = outcomes
        self._preemptions = preemptions
        self._gaps = gaps
        self._open: dict[int, list[int]] = {}
        """Preemptions not restored yet, by request: both iterations and times, lost, recomputed, hit, way, time on the link."""
        self._refused_before = 0
        self._kept = spans if keep_spans else None
        self.keep_spans, self.keep_outcomes, self.batch_answers = keep_spans, keep_outcomes, False

    def changes(self, plan: BatchPlan, start: int, end: int) -> None:
        """What ``plan`` changed for its sequences. The gap clock has not ticked for this iteration yet."""
        it, gaps = plan.iteration, self._gaps
        self.upset(plan, start)
        for seq, cached, resumed in plan.admitted:
            self._admit(seq, it, start, cached, resumed)
        self._fetch(plan.loading, it, start)
        for entry in plan.prefill:
            self._served(entry, it, start)
        gaps.tick(end - start)
        mark = gaps.fold()
        for seq in plan.sampled:
            self._token(seq, it, end, mark)
        for seq in plan.finishing:
            self._finish(seq, it, end)

    def flush(self) -> None:
        """Deliver buffered rows. Preemptions still open stay open."""
        for rows in (self._spans, self._outcomes, self._preemptions):
            rows.flush()

    def finished(self, ending: SequenceOf[Sequence], it: int, end: int) -> None:
        """``ending`` got their last token at ``end``. The gap clock has ticked for this iteration."""
        bare = not self.keep_outcomes and not self.batch_answers
        for seq in ending:
            if bare and seq.straight == 2:
                seq.straight, seq.phase, seq.last_token_ns = 0, _ENDED, end
            else:
                self._finish(seq, it, end)

    def entered(
        self, entries: SequenceOf[Entry], it: int, start: int, end: int, fetched: SequenceOf[Fetched], plan: BatchPlan | None
    ) -> None:
        """``entries`` were admitted, and computed their first tokens; ``fetched`` wait for their KV; ``plan`` has what explicit
        sequences of the running list did. The gap clock has ticked for this iteration."""
        gaps, refused = self._gaps, self._refused_before
        mark = gaps.fold()
        back: list[Sequence] = []
        for seq, tokens, cached in entries:
            if seq.phase != _QUEUED:
                self._admit(seq, it, start, cached, seq.num_preemptions > 0)
                if seq.index in self._open:
                    self._open[seq.index][5] += max(min(cached + tokens, seq.lost_high) - cached, 0)
                back.append(seq)
                continue
            self._first_admission(seq, it, start, refused)
            if seq.comp == seq.nt:
                seq.first_token_ns = seq.last_token_ns = seq.phase_start_ns = end
                seq.phase, seq.phase_iteration, seq.straight = _DECODE, it + 1, 2
                seq.joined_stack, seq.stalled_mark = mark, gaps.stalled
        self._fetch(fetched, it, start)
        if plan is not None:
            for entry in plan.prefill:
                self._served(entry, it, start)
            for seq in plan.sampled:
                self._token(seq, it, end, mark)
        for seq in back:
            if seq.comp == seq.nt:
                self._token(seq, it, end, mark)

    def upset(self, plan: BatchPlan, start: int) -> None:
        """Who lost seat or token in ``plan``. The gap clock has not ticked for this iteration yet."""
        if plan.preempted or plan.displaced:
            self._displace(plan, plan.iteration, start)
        for seq in plan.starved:
            self._passed_over(seq, plan.iteration, start, plan.starved_by)

    def note_refusal(self, code: int) -> None:
        """Why the queue head stood refused in the iteration just logged: the reason of a wait that ends in the next one."""
        self._refused_before = code

    def _close(self, seq: Sequence, iteration: int, at: int) -> None:
        if seq.straight:
            write_pending(self._kept, seq)
        if self.keep_spans:
            first = seq.phase_iteration
            self._spans.add(first, iteration, seq.phase_start_ns, at, seq.index, seq.phase, seq.phase_reason)

    def between(self, seq: Sequence, phase: Phase, at: int) -> None:
        """``seq`` does something else from ``at`` on, which is in no iteration."""
        self._turn(seq, int(phase), 0, at)
        seq.phase_iteration = -1

    def _turn(self, seq: Sequence, phase: int, iteration: int, at: int, reason: int = 0) -> None:
        """``seq`` does something else from ``iteration`` (which starts at ``at``) on."""
        self._close(seq, iteration - 1, at)
        seq.phase, seq.phase_iteration, seq.phase_start_ns, seq.phase_reason = phase, iteration, at, reason

    def _fetch(self, back: SequenceOf[Fetched], it: int, start: int) -> None:
        for seq, copy_ns in back:
            away = self._open[seq.index]
            away[1], away[3], away[8] = it, start, away[8] + copy_ns
            self._turn(seq, _TRANSFER, it, start)

    def _admit(self, seq: Sequence, it: int, start: int, cached: int, resumed: bool) -> None:
        if seq.phase in (_ENDED, _SWAPPED):
            return
        if seq.phase == _QUEUED:
            self._first_admission(seq, it, start, self._refused_before)
        elif seq.phase == _PAUSED:
            away = self._open[seq.index]
            away[1], away[3] = it, start
            self._turn(seq, _PREFILL, it, start, _AFTER_PREEMPTION)
        elif resumed:
            self._turn(seq, _PREFILL, it, start, _AFTER_PREEMPTION)
            row = self._open.get(seq.index)
            if row is not None:
                row[1], row[3], row[6] = it, start, cached
        else:
            self._turn(seq, _PREFILL, it, start)

    @staticmethod
    def _first_admission(seq: Sequence, it: int, start: int, refused: int) -> None:
        seq.queue_ns, seq.queued_ns = start - seq.request.arrival_ns, seq.phase_start_ns
        seq.queue_reason = refused or seq.phase_reason
        seq.admit_iteration = seq.phase_iteration = it
        seq.admit_ns = seq.phase_start_ns = start
        seq.phase, seq.phase_reason, seq.straight = _PREFILL, 0, 1

    def _displace(self, plan: BatchPlan, it: int, start: int) -> None:
        ways = {seq: (how, copy_ns) for seq, how, copy_ns in plan.displaced if how != _EVICTED}
        for seq, lost in plan.preempted:
            how, copy_ns = ways.get(seq, (0, 0))
            self._preempt(seq, lost, it, start, how, copy_ns)
        for seq, how, lost in plan.displaced:
            if how == _EVICTED and seq.phase == _PAUSED:
                self._turn(seq, _PREEMPTED, it, start)
                self._open[seq.index][4] += lost

    def _preempt(self, seq: Sequence, lost: int, it: int, start: int, how: int, copy_ns: int) -> None:
        if seq.phase == _ENDED:  # its last token was in flight: nothing to restore
            self._preemptions.add(it, -1, start, -1, -1, copy_ns, seq.index, lost, 0, 0, how)
            return
        if seq.phase == _DECODE:
            self._leave_set(seq, start)
        if seq.phase != _AWAY[how]:
            self._turn(seq, _AWAY[how], it, start)
        self._restored(seq, -1)
        self._open[seq.index] = [it, -1, start, -1, lost, 0, 0, how, copy_ns]

    def _restored(self, seq: Sequence, end: int) -> None:
        row = self._open.pop(seq.index, None)
        if row is not None:
            it, back_it, at, back, lost, again, hit, how, copy_ns = row
            self._preemptions.add(it, back_it, at, back, end, copy_ns, seq.index, lost, again, hit, how)

    def _passed_over(self, seq: Sequence, it: int, start: int, reason: int) -> None:
        if seq.phase == _DECODE:
            self._leave_set(seq, start)
            self._turn(seq, _STALLED, it, start, reason)
        elif seq.phase in (_PREFILL, _TRANSFER):
            self._turn(seq, _WAIT, it, start, reason)

    def _leave_set(self, seq: Sequence, at: int) -> None:
        """The last token came at ``at``, the end of the iteration before."""
        gaps = self._gaps
        seq.max_gap_ns = max(seq.max_gap_ns, gaps.longest_since(seq.joined_stack))
        seq.stalled_ns += gaps.stalled - seq.stalled_mark
        seq.last_token_ns = at

    def _served(self, entry: PrefillEntry, it: int, start: int) -> None:
        seq = entry.seq
        if entry.recompute:
            row = self._open.get(seq.index)
            if row is not None:
                row[5] += entry.recompute
        if seq.phase in (_WAIT, _TRANSFER):
            self._turn(seq, _PREFILL, it, start, _AFTER_PREEMPTION if seq.index in self._open else 0)
        elif seq.phase == _STALLED:
            self._turn(seq, _DECODE, it, start)

    def _token(self, seq: Sequence, it: int, end: int, mark: int) -> None:
        """An explicit sequence has sampled a token at ``end``; if it goes on it is a member of the set from then on."""
        if seq.phase == _ENDED:
            return
        gaps = self._gaps
        if seq.first_token_ns < 0:
            seq.first_token_ns = end
        else:
            gap = end - seq.last_token_ns
            if gap > seq.max_gap_ns:
                seq.max_gap_ns = gap
            seq.stalled_ns += gaps.excess(gap)
        seq.last_token_ns = end
        if seq.phase == _PREFILL:
            if seq.straight:
                seq.phase, seq.phase_iteration, seq.phase_start_ns, seq.phase_reason, seq.straight = _DECODE, it + 1, end, 0, 2
            else:
                self._turn(seq, _DECODE, it + 1, end)
            if self._open:
                self._restored(seq, end)
        seq.joined_stack = mark
        seq.stalled_mark = gaps.stalled

    def _finish(self, seq: Sequence, it: int, end: int) -> None:
        if seq.phase == _ENDED:
            return
        if seq.phase == _DECODE and seq.phase_start_ns < end:
            self._leave_set(seq, end)
            if seq.straight == 2:
                write_straight(self._kept, seq, it, end)
            else:
                self._close(seq, it, end)
        elif seq.straight:
            write_pending(self._kept, seq)
        seq.phase = _ENDED
        if self.batch_answers:
            seq.phase, seq.phase_iteration, seq.phase_start_ns, seq.phase_reason = _HOLD, it + 1, end, 0
            return
        if self.keep_outcomes and seq.handover != GIVE:
            write_finished(self._outcomes, seq, end, stalls=self._gaps.threshold is not None)

    def answer(self, ended: SequenceOf[Sequence], it: int, at: int) -> None:
        """Batches that answer as a whole: ``ended`` get all their tokens at ``at``, when the batch ends."""
        for seq in ended:
            if seq.phase != _HOLD:
                continue
            self._close(seq, it, at)
            seq.phase = _ENDED
            seq.first_token_ns = seq.last_token_ns = at
            seq.max_gap_ns, seq.stalled_ns = 0 if seq.output_limit > 1 else -1, 0
            write_finished(self._outcomes, seq, at, stalls=self._gaps.threshold is not None)

    def end_early(self, seq: Sequence, at: int, it: int, state: RequestState | None, reason: OutcomeReason, outputs: int) -> None:
        """``seq`` ends at ``at`` without its last token, having produced ``outputs``; ``None``: it starts again elsewhere."""
        if seq.phase == _ENDED:
            return
        if seq.phase == _DECODE:
            self._leave_set(seq, at)
        self._restored(seq, -1)
        self._close(seq, it, at)
        seq.phase = _ENDED
        if state is not None:
            write_early(self._outcomes, seq, state, reason, outputs, stalls=self._gaps.threshold is not None)

    def never_started(self, index: int, at: int, prompt: int, state: RequestState, reason: OutcomeReason, again: int = 0) -> None:
        """A request that came ``at`` and no engine saw, or none since it was sent for the ``again``-th time."""
        write_absent(self._outcomes, index, at, prompt, state, reason, again)

    def dispatched(self, index: int, arrival: int, at: int) -> None:
        """The client held a request back from its arrival to ``at``."""
        if self.keep_spans:
            self._spans.add(-1, -1, arrival, at, index, _DISPATCH, 0)
