"""What a request takes before the engine and after it, where a profile knows: counted at a client or gateway.

``[fit]`` of a profile fitted to such latencies has ``ingress_ns`` (from sending a request to the engine, and a first token's way
back, which no latency tells apart) and ``egress_ns`` (from the last token to the end of the answer). A replay with it counts at
the client: requests reach the engine by ``ingress_ns`` later, and outcomes and spans have both as phases of their own, so that
spans still partition a request's time. The engine's own clock, iterations and tokens are as they were, and the wait in its queue
counts from when a request reaches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay_engine.tables import SPANS, with_replica
from replay_engine.types import Phase, RequestBatch, RequestState

if TYPE_CHECKING:
    from replay_engine.profile import Profile
    from replay_engine.rules import Rules
    from replay_engine.types import EventSink, RequestSource

__all__ = ["Delivery", "DeliverySink", "DeliverySource", "delivery_note", "delivery_of"]

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Constant times of every request, ns."""

    ingress_ns: int = 0
    egress_ns: int = 0

    def __bool__(self) -> bool:
        return self.ingress_ns > 0 or self.egress_ns > 0


def delivery_of(profile: Profile, rules: Rules) -> Delivery:
    """What ``profile`` says; nothing where it counts on the engine's clock, or where the client itself holds requests back
    (its slots turn around at the engine)."""
    fit = profile.fit
    if fit.get("counting") == "engine" or rules.client.max_in_flight is not None:
        return Delivery()
    return Delivery(ingress_ns=_ns(fit.get("ingress_ns")), egress_ns=_ns(fit.get("egress_ns")))


def _ns(value: object) -> int:
    known = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    return max(round(float(value)), 0) if known and isinstance(value, int | float) else 0


def delivery_note(profile: Profile, rules: Rules) -> str | None:
    """One line for the head of a replay; ``None``: nothing is added."""
    there = delivery_of(profile, rules)
    if not there:
        return None
    before, after = there.ingress_ns / 1e6, there.egress_ns / 1e6
    parts = [f"TTFT and E2E count {before:,.3f} ms before the engine (ingress)"] if before else []
    parts += [f"E2E counts {after:,.3f} ms after it (egress)"] if after else []
    names = [name for name, ms in (("ingress_ns", before), ("egress_ns", after)) if ms]
    return f"profile: {' and '.join(parts)}, as it was fitted; {' and '.join(names)} = 0 in its [fit] leaves that out"


class DeliverySource:
    """A ``RequestSource`` whose requests reach the engine by ``ingress_ns`` after they were sent; what follows an answer is sent
    when the answer is there."""

    def __init__(self, source: RequestSource, there: Delivery) -> None:
        self._source, self._there = source, there

    @property
    def total(self) -> int:
        return self._source.total

    def batches(self) -> Iterator[RequestBatch]:
        for batch in self._source.batches():
            yield self._moved(batch)

    def _moved(self, batch: RequestBatch) -> RequestBatch:
        by, back = self._there.ingress_ns, self._there.egress_ns
        child = np.zeros(len(batch.index), np.bool_) if batch.parent is None else batch.parent >= 0
        cancel = batch.cancel_ns
        if cancel is not None:  # of a child it counts from its release, which moves too
            cancel = np.where((cancel >= 0) & ~child, cancel + by, cancel)
        think = batch.think_ns
        if think is not None:
            think = np.where(child, think + by + back, think)
        arrival = np.where(batch.arrival_ns >= 0, batch.arrival_ns + by, batch.arrival_ns)
        return replace(batch, arrival_ns=arrival, cancel_ns=cancel, think_ns=think)


class DeliverySink:
    """Turns the engine's outcomes into the client's, and adds the spans of the way there and back (``spans``: whether they are
    recorded)."""

    def __init__(self, sink: EventSink, there: Delivery, *, spans: bool) -> None:
        self._sink, self._there, self._spans = sink, there, spans

    def append(self, table: str, rows: Rows) -> None:
        if table != "outcomes":
            self._sink.append(table, rows)
            return
        by, back = self._there.ingress_ns, self._there.egress_ns
        sent = rows["state"] != RequestState.unreleased
        whole = sent & (rows["e2e_ns"] >= 0)
        if self._spans:
            arrived, last = rows["arrival_ns"][sent], rows["last_token_ns"][whole]
            self._add(rows[sent], Phase.ingress, arrived - by, arrived)
            self._add(rows[whole], Phase.egress, last, last + back)
        moved = rows.copy()
        moved["arrival_ns"][sent] -= by
        moved["ttft_ns"][sent & (rows["ttft_ns"] >= 0)] += by
        moved["e2e_ns"][whole] += by + back
        several = whole & (rows["output_tokens"] > 1)
        moved["tpot_ns"][several] += back / (rows["output_tokens"][several] - 1)
        self._sink.append("outcomes", moved)

    def _add(self, rows: Rows, phase: Phase, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        layout = with_replica(SPANS) if "replica" in (rows.dtype.names or ()) else SPANS
        chosen = end > begin
        spans = np.zeros(int(chosen.sum()), layout)
        spans["start_iteration"] = spans["end_iteration"] = -1
        spans["start_ns"], spans["end_ns"] = begin[chosen], end[chosen]
        spans["request"], spans["phase"] = rows["request"][chosen], int(phase)
        if "replica" in (layout.names or ()):
            spans["replica"] = rows["replica"][chosen]
        if len(spans):
            self._sink.append("spans", spans)
