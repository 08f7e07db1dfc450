"""Waits that no scheduler ends: at the client, and on the link between prefill and decode."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.pd_rules import LINK_GB_PER_S
from tracekit.diagnosis.claim import PROMPT, QUEUE, Claim, change, percent, round_up, scaled, seconds
from tracekit.diagnosis.detect.load import limit_weight
from tracekit.diagnosis.finding import Change, Evidence
from tracekit.diagnosis.signals import evidence, fact, stage
from tracekit.diagnosis.view import View

__all__ = ["busy_evidence", "client_limit", "kv_transfer"]

Rows = npt.NDArray[np.void]


def client_limit(view: View) -> Claim | None:
    """The client holds requests back: they wait for one of its slots before the server sees them."""
    slots = view.data.policy.rules.client.max_in_flight
    held = view.parts.first["dispatch"]
    if slots is None or not held.any():
        return None
    share, engine = stage(view, "dispatch"), view.data.policy.scheduler
    full = _share_full(view, slots)
    capacity = view.capacity
    room = int(min(capacity.at_a_time().values())) if capacity else engine.max_num_seqs
    proposal = max(2 * slots, min(3 * slots, int(0.6 * room)))
    proposal = round_up(proposal, 10) if proposal > 64 else proposal
    more = _more_slots(view, slots, proposal)
    return Claim(
        id="CLIENT_LIMIT",
        what=f"{percent(share)} of the time to the first token passes at the client, which never has more than"
        f" {slots} requests in"
        f" flight; the server's own queue takes {percent(stage(view, *QUEUE))}",
        first={"dispatch": limit_weight(view)},
        evidence=(
            evidence(view, "dispatch", 0.5),
            fact("in flight at the limit", full, "of the run", 0.5, note=f"share of the run with {slots} requests at the server"),
            evidence(view, "at the server", note="rate x residence (Little's law)"),
            evidence(view, "running max", note=f"of {engine.max_num_seqs} seats"),
            evidence(view, "kv p95"),
        ),
        is_not=(
            f"QUEUE_SEATS: never more than {int(view.data.iterations['running'].max(initial=0))} of {engine.max_num_seqs} seats"
            " are taken",
        ),
        changes=(more,) if proposal > slots else (),
        tempting=(scaled(view, "max_num_seqs", 2, "requests wait, so more could run"),),
        because="the hold is logged request by request",
    )


def _share_full(view: View, slots: int) -> float:
    """Share of the run in which the client has all its slots in flight."""
    rows, held = view.data.outcomes, view.parts.first["dispatch"]
    begin, end = np.sort(rows["arrival_ns"] + held), np.sort(rows["arrival_ns"] + np.maximum(rows["e2e_ns"], 0))
    moments = np.unique(np.concatenate([begin, end]))
    there = np.searchsorted(begin, moments, "right") - np.searchsorted(end, moments, "right")
    length = np.diff(moments)
    return float(length[there[:-1] >= slots].sum() / max(int(length.sum()), 1))


def kv_transfer(view: View) -> Claim | None:
    """KV takes its time from the engines that prefill to those that decode."""
    moves = view.data.tables["transfers"]
    done = moves[(moves["bytes"] > 0) & (moves["end_ns"] > moves["start_ns"]) & (moves["start_ns"] >= 0)]
    if not len(done):
        return None
    wait, move, compute = stage(view, "transfer_wait"), stage(view, "transfer"), stage(view, *PROMPT)
    length = (done["end_ns"] - done["start_ns"]).astype(np.float64)
    bandwidth = float(done["bytes"].sum() / length.sum())
    better = _faster(view, done, bandwidth)
    if better is None:
        return None
    pd = view.data.policy.rules.pd
    return Claim(
        id="KV_TRANSFER",
        what=f"{percent(wait + move)} of the time to the first token is spent on moving KV at {bandwidth:.3g} GB/s"
        f" ({percent(wait)} waiting for the link, {percent(move)} moving); prefill takes {percent(compute)}",
        first={"transfer_wait": 1.0, "transfer": 1.0},
        evidence=(
            fact("stage[transfer wait]", wait, "of TTFT", 0.3),
            fact("stage[transfer]", move, "of TTFT"),
            fact("stage[P compute]", compute, "of TTFT"),
            fact(
                "bandwidth",
                bandwidth,
                "GB/s",
                float(better.new),
                sql="SELECT sum(bytes) / sum(end_ns - start_ns) FROM transfers WHERE run = {run} AND bytes > 0",
                note=f"of the slower half of transfers {_half(done, length):.3g} times that of the other",
            ),
            *busy_evidence(view),
        ),
        is_not=(f"PD_IMBALANCE: prefill queues take {percent(stage(view, *QUEUE))} of the time to the first token",),
        changes=(better,),
        tempting=(
            change("pd.prefill", pd.prefill, pd.prefill + 1, "prompts take long, so more engines could compute them"),
            change("pd.decode", pd.decode, pd.decode + 1, "decode engines are busy"),
        ),
        because=f"{len(done)} transfers were timed ({seconds(float(length.mean()))} each)",
    )


def _half(done: Rows, length: npt.NDArray[np.float64]) -> float:
    """Bandwidth of the larger half of the transfers over that of the smaller half: near 1, the link is just slow."""
    large = done["bytes"] > np.median(done["bytes"])
    if not large.any() or large.all():
        return 1.0
    return float((done["bytes"][large].sum() / length[large].sum()) / (done["bytes"][~large].sum() / length[~large].sum()))


def busy_evidence(view: View) -> tuple[Evidence, ...]:
    """How busy the engines of either pool are, on average and each."""
    rows, pd = view.data.outcomes, view.data.policy.rules.pd
    length = max(int(rows["last_token_ns"].max()) - int(rows["arrival_ns"].min()), 1)
    found = []
    for pool, numbers in (("P", range(pd.prefill)), ("D", range(pd.prefill, pd.prefill + pd.decode))):
        each = [float(view.data.iterations["duration_ns"][view.data.iterations["replica"] == k].sum()) / length for k in numbers]
        text = "/".join(f"{value:.2f}" for value in sorted(each, reverse=True))
        found.append(fact(f"{pool} busy", float(np.mean(each)) if each else 0.0, "of the run", note=text))
    return tuple(found)


def _more_slots(view: View, slots: int, proposal: int) -> Change:
    capacity = view.capacity
    gain = "" if capacity is None else f"about {percent(capacity.served(proposal) / capacity.served(slots) - 1)} more is served; "
    return change(
        "client.max_in_flight",
        slots,
        proposal,
        "the wait is for one of the client's slots, not for the server",
        price=f"{gain}what waits at the client today then runs, or waits, at the server: tokens come a little slower",
        outside=True,
        tolerated=0.3,
    )


def _faster(view: View, done: Rows, bandwidth: float) -> Change | None:
    """A link on which moving KV takes a tenth of what prefill does; ``None`` where this one is not slow."""
    bytes_each = float(done["bytes"].mean())
    rest_s = sum(float(view.parts.first[name].mean()) for name in PROMPT) / 1e9
    needed = bytes_each / 1e9 / max(0.1 * rest_s, 1e-6)
    faster = max([rate for rate in (LINK_GB_PER_S["rdma"],) if rate >= needed] or [float(round_up(needed, 10))])
    if faster < 2 * bandwidth:
        return None
    at_ten = bytes_each / (10e9 * bandwidth)
    return change(
        "kv_link.gb_per_s",
        round(bandwidth, 3),
        faster,
        "the transfer is what is waited for",
        outside=True,
        price=f"another connector or transport; at {10 * bandwidth:.3g} GB/s a prompt's KV would still take {at_ten * 1e3:.3g} ms"
        f" beside {rest_s * 1e3:.3g} ms of prefill, at {faster:.3g} GB/s {bytes_each / faster / 1e6:.3g} ms",
    )
