"""The matrix's view of separate prefill and decode pools: where first tokens wait, how busy each pool is, what the link moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TransferEnd
from replay_engine.types import Phase, RequestState
from tracekit.metrics.distributions import missing
from tracekit.metrics.inputs import MatrixInputs, Totals

__all__ = ["NAMES", "pools_section"]

Rows = npt.NDArray[np.void]
NAMES = (
    "split", "prefill_router", "decode_router", "prefill_busy_share", "decode_busy_share", "stage_shares", "transfers",
    "moved_gb", "link_gb_per_s", "link_wait_ns", "cached_share", "broken_off", "pool_faults",
)  # fmt: skip
_ONE = "no separate pools: see --pd"
_ROWS = "needs --events full"
_STAGES = {
    Phase.dispatch: "other", Phase.queued: "prefill queue", Phase.transfer_wait: "transfer wait", Phase.transfer: "transfer",
    Phase.decode_queue: "decode queue",
}  # fmt: skip


def pools_section(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    """``rows``: the counted outcomes. Shares of busy time are of the engines' run, means over each pool's engines."""
    pd, totals = inputs.rules.pd, inputs.by_replica
    if not pd.prefill:
        return dict.fromkeys(NAMES, missing(_ONE))
    planned = ", ".join(part for part in (pd.fail and f"fail {pd.fail}", pd.slow and f"slow {pd.slow}") if part)
    return {
        "split": f"{pd.prefill}:{pd.decode}",
        "prefill_router": pd.prefill_router,
        "decode_router": pd.decode_router,
        "prefill_busy_share": _busy(totals[: pd.prefill], totals),
        "decode_busy_share": _busy(totals[pd.prefill :], totals),
        "stage_shares": missing(_ROWS) if inputs.pool_spans is None else stage_shares(inputs.pool_spans, rows, pd.prefill),
        **_moves(inputs.transfers),
        "pool_faults": planned or missing("none was planned: see --fail and --slow"),
    }


def _busy(pool: Any, totals: Any) -> float:
    ran: list[Totals] = [each for each in totals if each.iterations]
    run_ns = max(each.last_end_ns for each in ran) - min(each.first_start_ns for each in ran) if ran else 0
    return sum(each.busy_ns for each in pool) / (run_ns * len(pool)) if run_ns else 0.0


def stage_shares(spans: Rows, outcomes: Rows, prefill: int) -> Any:
    """Shares of the mean TTFT of finished requests, by stage: what each was doing until its first token. Sums to 1."""
    done = outcomes[(outcomes["state"] == RequestState.finished) & (outcomes["ttft_ns"] >= 0)]
    if not done.size:
        return missing("no counted request has a first token")
    first = np.full(int(max(spans["request"].max(initial=0), done["request"].max())) + 1, -1, np.int64)
    first[done["request"]] = done["arrival_ns"] + done["ttft_ns"]
    until = np.minimum(spans["end_ns"], first[spans["request"]])
    spent = np.maximum(until - spans["start_ns"], 0) * (first[spans["request"]] >= 0)
    names = np.array([_STAGES.get(Phase(code), "other") for code in range(len(Phase))], dtype=object)[spans["phase"]]
    computes = np.isin(spans["phase"], [Phase.prefill, Phase.prefill_wait])
    names[computes & (spans["replica"] < prefill)] = "prefill"
    names[computes & (spans["replica"] >= prefill)] = "first decode iteration"
    total = int(done["ttft_ns"].sum())
    order = ("prefill queue", "prefill", "transfer wait", "transfer", "decode queue", "first decode iteration", "other")
    return {name: float(spent[names == name].sum()) / total for name in order}


def _moves(transfers: Rows | None) -> dict[str, Any]:
    names = ("transfers", "moved_gb", "link_gb_per_s", "link_wait_ns", "cached_share", "broken_off")
    if transfers is None:
        return dict.fromkeys(names, missing(_ROWS))
    done = transfers[transfers["ended"] == TransferEnd.done]
    lasted = int((done["end_ns"] - done["start_ns"]).sum())
    blocks, cached = int(done["blocks"].sum()), int(done["hit_blocks"].sum())
    none = missing("nothing was moved")
    return {
        "transfers": len(done),
        "moved_gb": float(done["bytes"].sum()) / 1e9,
        "link_gb_per_s": float(done["bytes"].sum()) / lasted if lasted else none,
        "link_wait_ns": float((done["start_ns"] - done["asked_ns"]).mean()) if len(done) else none,
        "cached_share": cached / (blocks + cached) if blocks + cached else none,
        "broken_off": len(transfers) - len(done),
    }
