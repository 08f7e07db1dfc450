"""One run as detectors look at it: the rows, where each request's time went, what was in excess, and the load against
capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestState
from tracekit.diagnosis.capacity import Capacity, capacity_of
from tracekit.diagnosis.finding import Measure
from tracekit.diagnosis.parts import FAMILIES, KINDS, Parts
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.yardstick import Yardstick, alone_ns

__all__ = ["View"]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
OWN = ("prefill", "first_step", "decode")
"""Kinds of time that a request spends on its own work; all others are waits."""


@dataclass(frozen=True)
class View:
    """``data``: the run. Everything else is computed when it is asked for, once. Masks and arrays are per outcome row."""

    data: RunData

    @cached_property
    def yardstick(self) -> Yardstick:
        return Yardstick.of(self.data)

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.data)

    @cached_property
    def counted(self) -> Bools:
        found: Bools = self.data.counted[self.data.outcomes["request"]]
        return found

    @cached_property
    def first_excess(self) -> Floats:
        """Time to the first token beyond what is allowed, ns; of those without one, the time they waited. With an SLO that does
        not ask for it, as much of it as the request is late in all (``e2e``)."""
        rows = self.data.outcomes
        found = self.yardstick.excess(rows, "ttft")[rows["request"]]
        silent = np.isnan(found)
        if silent.any():
            waited = np.sum(list(self.parts.first.values()), axis=0)
            found[silent] = np.maximum(waited - self.yardstick.limits["ttft"][rows["request"]], 0)[silent]
        return self._held(found, ("ttft",))

    @cached_property
    def later_excess(self) -> Floats:
        """Time from the first to the last token beyond what is allowed, or that of the longest gap, the larger, ns."""
        rows, found = self.data.outcomes, np.zeros(len(self.data.outcomes))
        measures: tuple[Measure, ...] = ("gap", "tpot")
        for measure in [each for each in measures if each in self.yardstick.asked] or measures:
            found = np.fmax(found, self.yardstick.excess(rows, measure)[rows["request"]])
        return self._held(found, measures)

    def _held(self, excess: Floats, measures: tuple[Measure, ...]) -> Floats:
        """What of an excess counts: all of it without an SLO, or where that asks for one of ``measures``."""
        rows, asked = self.data.outcomes, self.yardstick.asked
        found: Floats = np.where(self.counted, np.nan_to_num(excess, posinf=0.0), 0.0)
        if not asked or any(each in asked for each in measures):
            return found
        if "e2e" not in asked:
            return np.zeros(len(rows))
        late: Floats = np.minimum(found, np.nan_to_num(self.yardstick.excess(rows, "e2e")[rows["request"]], posinf=0.0))
        return late

    @cached_property
    def excess_ns(self) -> float:
        return float(self.first_excess.sum() + self.later_excess.sum())

    @cached_property
    def first(self) -> dict[str, Floats]:
        """The excess before the first token, shared out over the kinds of waits in proportion to them. Own prefill is only in
        excess where nothing else was waited for."""
        return _shared(self.parts.first, self.first_excess, "prefill")

    @cached_property
    def later(self) -> dict[str, Floats]:
        """The same after it; decoding beside many others is what is left over."""
        return _shared(self.parts.later, self.later_excess, "decode")

    @cached_property
    def capacity(self) -> Capacity | None:
        return capacity_of(self.data)

    @cached_property
    def queued(self) -> Bools:
        """Iterations with a queue."""
        return np.asarray(self.data.iterations["waiting"] > 0)

    @cached_property
    def budget(self) -> Ints:
        """The token budget of each iteration's engine."""
        rows = self.data.iterations
        of = np.array([self.data.engine_of(replica).token_budget for replica in range(int(rows["replica"].max(initial=0)) + 1)])
        found: Ints = of[np.maximum(rows["replica"], 0)]
        return found

    @cached_property
    def usable(self) -> Ints:
        """The KV blocks of each iteration's engine."""
        rows = self.data.iterations
        of = np.array([self.data.engine_of(replica).usable_blocks for replica in range(int(rows["replica"].max(initial=0)) + 1)])
        found: Ints = of[np.maximum(rows["replica"], 0)]
        return found

    @cached_property
    def fill(self) -> Floats:
        """Scheduled tokens of each iteration / its token budget."""
        rows = self.data.iterations
        found: Floats = (rows["prefill_tokens"] + rows["decode_seqs"]) / self.budget
        return found

    @cached_property
    def kv(self) -> Floats:
        """KV in use of each iteration / what there is."""
        found: Floats = self.data.iterations["kv_used"] / self.usable
        return found

    def share_of_queue(self, of: Bools | Floats) -> float:
        """Of the iteration time with a queue, the share that ``of`` (per iteration, 0 to 1) covers."""
        length = self.data.iterations["duration_ns"][self.queued].astype(np.float64)
        return float((length * np.asarray(of, np.float64)[self.queued]).sum() / max(length.sum(), 1.0))

    @cached_property
    def block(self) -> dict[str, float]:
        """Of the iteration time with a queue, the share in which its head was refused for each family's reasons."""
        return {name: self.share_of_queue(self.parts.refused(name)) for name in FAMILIES}

    def classes_of(self, got: Floats) -> tuple[str, ...]:
        """The fewest classes that hold 95 % of ``got`` (per outcome row); empty where that takes all, or there are none."""
        labels = self.data.labels("class")
        if labels is None or len(labels.names) < 2 or not got.any():
            return ()
        codes = labels.codes[self.data.outcomes["request"]]
        held = np.array([float(got[codes == k].sum()) for k in range(len(labels.names))])
        order = np.argsort(-held, kind="stable")
        enough = int(np.searchsorted(np.cumsum(held[order]), 0.95 * got.sum())) + 1
        there = sum(bool((codes == k).any()) for k in range(len(labels.names)))
        return tuple(labels.names[k] for k in order[:enough].tolist()) if enough < there else ()

    def slowest(self, of: Bools, share: float = 0.05) -> Ints:
        """The rows of the slowest of a group by time to first token."""
        rows = np.flatnonzero(of & (self.data.outcomes["ttft_ns"] >= 0))
        order = rows[np.argsort(self.data.outcomes["ttft_ns"][rows], kind="stable")]
        return order[-max(round(len(rows) * share), 1) :]

    @cached_property
    def finished(self) -> Bools:
        return np.asarray(self.data.outcomes["state"] == int(RequestState.finished))

    def rows_of(self, request: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> Ints:
        """The outcome rows of requests."""
        found: Ints = np.searchsorted(self.data.outcomes["request"], request)
        return np.minimum(found, len(self.data.outcomes) - 1)

    def yardstick_alone(self, rows: Bools) -> float:
        """The longest time to the first token that any of the rows would take alone on the idle engine, ns."""
        first = alone_ns(self.data)[0][self.data.outcomes["request"][rows]]
        return float(first.max(initial=0.0))


def _shared(spent: Mapping[str, Ints], excess: Floats, rest: str) -> dict[str, Floats]:
    """``excess`` per kind; what is more than all waits together is ``rest``, a kind of own work."""
    nobody: Floats = np.broadcast_to(np.float64(0), len(excess))
    kinds = [name for name in KINDS if name not in OWN]
    waits = {name: spent[name] for name in kinds if spent[name].any()}
    total = sum(waits.values(), np.zeros(len(excess), np.int64)).astype(np.float64)
    total = np.where(total > 0, total, 1.0)
    spread = np.minimum(excess, total)
    found = {name: each / total * spread for name, each in waits.items()} | {rest: excess - spread}
    return {name: found.get(name, nobody) for name in (*kinds, *OWN)}
