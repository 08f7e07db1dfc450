"""Who loses and who wins by a change: groups of requests, single requests, and the tails of their latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.metrics import evaluate_slo
from tuner.cells import Cell, replay_record
from tuner.windows import WindowSources

__all__ = ["who_loses"]

FEW = 20
"""A group needs so many requests in all windows together to be spoken of."""
TAILS = {"ttft_p99_ns": "ttft_ns", "tpot_p99_ns": "tpot_ns", "longest_gap_p99_ns": "max_gap_ns", "e2e_p99_ns": "e2e_ns"}
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Seen:
    """Counted requests of one window: who met their SLO, their latencies, and which groups they belong to."""

    met: Bools
    latencies: Mapping[str, npt.NDArray[np.int64]]
    groups: list[tuple[str, str, Bools]]


def who_loses(before: Sequence[Cell], after: Sequence[Cell], sources: WindowSources) -> dict[str, Any]:
    """``before`` and ``after``: the same windows under two policies. ``groups``: attainment by tenant, class and prompt size,
    the worst loss first; ``lost`` and ``won``: requests that met their SLO only before, only after; ``tails``: P99s."""
    pairs = [(_seen(one, sources), _seen(two, sources)) for one, two in zip(before, after, strict=True)]
    lost = sum(int((a.met & ~b.met).sum()) for a, b in pairs)
    won = sum(int((~a.met & b.met).sum()) for a, b in pairs)
    totals: dict[tuple[str, str], list[int]] = {}
    for a, b in pairs:
        for kind, name, mask in a.groups:
            entry = totals.setdefault((kind, name), [0, 0, 0])
            for at, amount in enumerate((mask, mask & a.met, mask & b.met)):
                entry[at] += int(amount.sum())
    groups: list[dict[str, Any]] = [
        {"kind": kind, "name": name, "n": n, "before": had / n, "after": has / n}
        for (kind, name), (n, had, has) in totals.items() if n >= FEW
    ]  # fmt: skip
    groups.sort(key=lambda group: group["after"] - group["before"])
    return {"lost": lost, "won": won, "n": sum(len(a.met) for a, _ in pairs), "groups": groups, "tails": _tails(pairs)}


def _seen(cell: Cell, sources: WindowSources) -> _Seen:
    record, state = replay_record(cell, sources)
    inputs = record.inputs(state)
    assert inputs.counted is not None
    total = len(inputs.counted)
    slo = evaluate_slo(inputs, inputs.outcomes)
    met = np.zeros(total, np.bool_)
    if not isinstance(slo, str):
        met[inputs.outcomes["request"][slo.met]] = True
    latencies = {}
    for name, column in TAILS.items():
        latencies[name] = np.full(total, -1, np.int64)
        latencies[name][inputs.outcomes["request"]] = inputs.outcomes[column]
    prompts = sources.get(cell.window, cell.rate).prompt_tokens
    kept = inputs.counted
    groups = [(kind, name, mask[kept]) for kind, name, mask in _groups(inputs, prompts)]
    return _Seen(met[kept], {name: values[kept] for name, values in latencies.items()}, groups)


def _groups(inputs: Any, prompts: npt.NDArray[np.int64]) -> list[tuple[str, str, Bools]]:
    found: list[tuple[str, str, Bools]] = []
    for kind, labels in (("tenant", inputs.tenants), ("class", inputs.classes)):
        if labels is not None:
            found += [(kind, name, labels.codes == code) for code, name in enumerate(labels.names)]
    found.append(("prompt", "up to 1,024 tokens", prompts <= 1024))
    found.append(("prompt", "1,025 to 8,192 tokens", (prompts > 1024) & (prompts <= 8192)))
    found.append(("prompt", "above 8,192 tokens", prompts > 8192))
    return found


def _tails(pairs: Sequence[tuple[_Seen, _Seen]]) -> dict[str, Any]:
    tails: dict[str, Any] = {}
    for name in TAILS:
        both = []
        for side in (0, 1):
            values = np.concatenate([pair[side].latencies[name] for pair in pairs])
            values = values[values >= 0]
            both.append({"value": float(np.percentile(values, 99)) if len(values) else None, "n": len(values)})
        tails[name] = {"before": both[0], "after": both[1]}
    return tails
