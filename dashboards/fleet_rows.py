"""Several engines of one run side by side: load over time, how even it is, queues beside idle engines, and with separate pools
where first tokens wait and what the link does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.time_sums import between, covered
from tracekit.diagnosis import RunData
from tracekit.metrics.pools import stage_shares
from tracekit.store import code_names

__all__ = [
    "Heat",
    "Imbalance",
    "LinkUse",
    "Stages",
    "Together",
    "heats_of",
    "imbalance_of",
    "link_of",
    "stages_of",
    "together_of",
]

BINS = 240
SLOWEST = 0.1
MOST_CLASSES = 6
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]


class Heat(NamedTuple):
    """A level of every engine over time: ``values`` of shape (engines, bins), means over a bin's time (``kv``: over its busy
    time, a share of the engine's blocks, NaN where it is idle). ``edges_s``: one more than bins. ``most``: the scale that all
    share."""

    what: str
    unit: str
    engines: tuple[str, ...]
    edges_s: Floats
    values: Floats
    most: float


class Imbalance(NamedTuple):
    """Requests on the fullest engine of a pool over the mean of the pool (1: even), by bin; NaN where the pool is empty.
    ``mean``: weighted by the requests there; ``whole``: of the tokens served over the whole run."""

    pool: str
    engines: int
    edges_s: Floats
    ratio: Floats
    mean: float
    whole: float


class Together(NamedTuple):
    """Seconds in which an engine of the pool had a queue while another one, up and running nothing, was idle; of ``span_s``.
    ``lost_s``: idle engine-seconds in them."""

    pool: str
    queue_s: float
    both_s: float
    lost_s: float
    span_s: float


class Stages(NamedTuple):
    """Mean TTFT of a group of requests, and the seconds of it by stage, in order; they sum to it."""

    group: str
    n: int
    ttft_s: float
    seconds: tuple[tuple[str, float], ...]


class LinkUse(NamedTuple):
    """KV that was moved. ``moving``, ``asking``: transfers under way and waiting, means over each bin; ``gb_per_s``: moved in it.
    ``break_even``: bandwidth (GB/s) at which moving a token's KV takes as long as computing it did on the prefill engines."""

    transfers: int
    broken_off: int
    moved_gb: float
    cached_share: float | None
    effective_gb_per_s: float | None
    wait_s: float
    edges_s: Floats
    moving: Floats
    asking: Floats
    gb_per_s: Floats
    break_even: float | None
    kb_per_token: float | None


def heats_of(data: RunData) -> tuple[Heat, ...]:
    """Waiting, running and KV; empty for one engine, or where iterations were not kept."""
    if not data.has_iterations or len(_engines(data)) < 2:
        return ()
    edges = _edges(data)
    found = []
    for what, unit in (("waiting", "requests"), ("running", "requests"), ("kv", "share of the blocks")):
        values = np.array([_level(data, replica, what, edges) for replica in range(len(_engines(data)))])
        known = values[~np.isnan(values)]
        most = 1.0 if what == "kv" else float(known.max(initial=0.0))
        found.append(Heat(what, unit, _engines(data), edges / 1e9, values, most))
    return tuple(found)


def imbalance_of(data: RunData) -> tuple[Imbalance, ...]:
    """One entry a pool of several engines."""
    if not data.has_iterations:
        return ()
    edges, found = _edges(data), []
    for pool, members in _pools(data):
        if len(members) < 2:
            continue
        on = np.array([_level(data, each, "waiting", edges) + _level(data, each, "running", edges) for each in members])
        mean = on.mean(axis=0)
        ratio = np.divide(on.max(axis=0), mean, out=np.full(mean.shape, np.nan), where=mean > 0)
        there = ~np.isnan(ratio)
        weighted = float(np.average(ratio[there], weights=mean[there])) if there.any() else float("nan")
        tokens = np.array([_tokens(data, each) for each in members], float)
        found.append(
            Imbalance(pool, len(members), edges / 1e9, ratio, weighted, float(tokens.max() / max(tokens.mean(), 1e-12)))
        )
    return tuple(found)


def together_of(data: RunData) -> tuple[Together, ...]:
    """Exact, from the iterations' starts and ends; an engine that has failed is not idle."""
    if not data.has_iterations:
        return ()
    rows = data.iterations
    begin, end = int(rows["start_ns"].min()), int((rows["start_ns"] + rows["duration_ns"]).max())
    down = _down(data)
    found = []
    for pool, members in _pools(data):
        if len(members) < 2:
            continue
        spans = [_busy(data, each) for each in members]
        gone = [[(max(a, begin), min(b, end)) for a, b in down.get(each, ()) if a < end and b > begin] for each in members]
        times = np.unique(
            np.concatenate([*(s for three in spans for s in three[:2]), *(np.ravel(g) for g in gone), [begin, end]])
        )
        times = times[(times >= begin) & (times <= end)].astype(np.int64)
        length = np.diff(times)
        queued, idle = np.zeros(len(length), bool), np.zeros(len(length), np.int64)
        for (start, stop, waiting), own in zip(spans, gone, strict=True):
            queued |= covered(times, start[waiting > 0], stop[waiting > 0])
            free = ~covered(times, start, stop)
            if own:
                free &= ~covered(times, np.array([a for a, _ in own]), np.array([b for _, b in own]))
            idle += free
        both = queued & (idle > 0)
        lost = float((length * idle)[both].sum()) / 1e9
        found.append(Together(pool, length[queued].sum() / 1e9, length[both].sum() / 1e9, lost, (end - begin) / 1e9))
    return tuple(found)


def stages_of(data: RunData) -> tuple[Stages, ...]:
    """Of separate pools: all finished counted requests, the slowest tenth of them, and each of a few classes."""
    prefill = data.policy.rules.pd.prefill
    if not prefill or not data.has_iterations:
        return ()
    finished = code_names("outcomes", "state").index("finished")
    rows = data.outcomes[data.counted[data.outcomes["request"]]]
    rows = rows[(rows["state"] == finished) & (rows["ttft_ns"] >= 0)]
    if not len(rows):
        return ()
    slow = np.sort(np.argsort(-rows["ttft_ns"], kind="stable")[: max(int(len(rows) * SLOWEST), 1)])
    groups = [("all", rows), (f"slowest {100 * SLOWEST:.0f} %", rows[slow])]
    labels = data.labels("class")
    codes = np.full(len(rows), -1) if labels is None else labels.codes[rows["request"]]
    names = {} if labels is None else {labels.names[code]: code for code in np.unique(codes).tolist() if code >= 0}
    if 1 < len(names) <= MOST_CLASSES:
        groups += [(f"class {name}", rows[codes == names[name]]) for name in sorted(names)]
    found = []
    for group, part in groups:
        shares, mean = stage_shares(data.spans, part, prefill), float(part["ttft_ns"].mean()) / 1e9
        found.append(Stages(group, len(part), mean, tuple((name, share * mean) for name, share in shares.items())))
    return tuple(found)


def link_of(data: RunData) -> LinkUse | None:
    """``None`` without separate pools, or where nothing was moved."""
    rows = data.tables["transfers"]
    if not data.policy.rules.pd.prefill or not len(rows):
        return None
    done = rows[rows["ended"] == code_names("transfers", "ended").index("done")]
    edges = _edges(data)
    width = np.diff(edges) / 1e9
    moving = between(edges, rows["start_ns"], rows["end_ns"], np.ones(len(rows))) / np.diff(edges)
    asking = between(edges, rows["asked_ns"], rows["start_ns"], np.ones(len(rows))) / np.diff(edges)
    lasted = np.maximum(done["end_ns"] - done["start_ns"], 1)
    moved = between(edges, done["start_ns"], done["start_ns"] + lasted, done["bytes"] / lasted)
    blocks, cached = int(done["blocks"].sum()), int(done["hit_blocks"].sum())
    size = data.engine_of(0).block_size
    per_token = float(done["bytes"].sum()) / (blocks * size) if blocks else None
    prefill = [_busy(data, each) for each in range(data.policy.rules.pd.prefill)]
    busy = sum(int((stop - start).sum()) for start, stop, _ in prefill)
    tokens = sum(_prefilled(data, each) for each in range(data.policy.rules.pd.prefill))
    even = per_token * tokens / busy if per_token is not None and busy and tokens else None
    return LinkUse(
        transfers=len(done),
        broken_off=len(rows) - len(done),
        moved_gb=float(done["bytes"].sum()) / 1e9,
        cached_share=cached / (blocks + cached) if blocks + cached else None,
        effective_gb_per_s=float(done["bytes"].sum()) / float(lasted.sum()) if len(done) else None,
        wait_s=float((rows["start_ns"] - rows["asked_ns"]).mean()) / 1e9,
        edges_s=edges / 1e9,
        moving=moving,
        asking=asking,
        gb_per_s=moved / 1e9 / width,
        break_even=even,
        kb_per_token=None if per_token is None else per_token / 1e3,
    )


def _engines(data: RunData) -> tuple[str, ...]:
    """Every engine of the run by name, those that never ran too."""
    pd, fleet = data.policy.rules.pd, data.policy.rules.fleet
    if pd.prefill:
        return (*(f"P{n}" for n in range(pd.prefill)), *(f"D{n}" for n in range(pd.decode)))
    return tuple(f"replica {n}" for n in range(fleet.replicas))


def _pools(data: RunData) -> list[tuple[str, range]]:
    pd = data.policy.rules.pd
    if pd.prefill:
        return [("prefill", range(pd.prefill)), ("decode", range(pd.prefill, pd.prefill + pd.decode))]
    return [("all replicas", range(data.policy.rules.fleet.replicas))]


def _down(data: RunData) -> dict[int, list[tuple[int, int]]]:
    """When engines were down, by engine, ns."""
    rules: Any = data.policy.rules
    found: dict[int, list[tuple[int, int]]] = {}
    for fault in (*rules.fleet.faults(), *rules.pd.faults()):
        if not fault.factor:
            found.setdefault(fault.replica, []).append((fault.at_ns, fault.until_ns))
    return found


def _own(data: RunData, replica: int) -> Rows:
    rows: Rows = data.iterations[data.iterations["replica"] == replica]
    return rows


def _edges(data: RunData) -> Floats:
    """Of the bins, ns: from the first iteration of any engine to the end of the last."""
    rows = data.iterations
    return np.linspace(float(rows["start_ns"].min()), float((rows["start_ns"] + rows["duration_ns"]).max()), BINS + 1)


def _busy(data: RunData, replica: int) -> tuple[Ints, Ints, Ints]:
    """Starts and ends of an engine's iterations, and who waited in them."""
    own = _own(data, replica)
    return own["start_ns"], own["start_ns"] + own["duration_ns"], own["waiting"]


def _level(data: RunData, replica: int, what: str, edges: Floats) -> Floats:
    own = _own(data, replica)
    start = own["start_ns"]
    stop = start + own["duration_ns"]
    if what != "kv":
        whole: Floats = between(edges, start, stop, own[what].astype(float)) / np.diff(edges)
        return whole
    busy = between(edges, start, stop, np.ones(len(own)))
    held = between(edges, start, stop, own["kv_used"] / data.engine_of(replica).usable_blocks)
    share: Floats = np.divide(held, busy, out=np.full(len(busy), np.nan), where=busy > 0)
    return share


def _tokens(data: RunData, replica: int) -> int:
    own = _own(data, replica)
    return int(own["prefill_tokens"].sum() + own["decode_seqs"].sum())


def _prefilled(data: RunData, replica: int) -> int:
    return int(_own(data, replica)["prefill_tokens"].sum())
