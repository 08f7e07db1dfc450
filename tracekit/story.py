"""The story of a request as text: its parts in order, why it waited, its longest gaps, and the check of the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.metrics.wording import count, printable, share, span_text

__all__ = ["render_explain"]

Part = Mapping[str, Any]
_DECISIONS = {
    "admit": "let in", "reject": "turned away", "degrade": "let in, its answer cut", "hold": "held back by the client, sent",
    "give_up": "given up",
}  # fmt: skip
_TIMES = ("ttft_unreachable", "queue_timeout", "timeout")
"""Reasons whose figures are times."""
_REASONS = {
    "under_way": "iteration already under way",
    "none": "nobody refused: others were being admitted",
}


def render_explain(story: Mapping[str, Any]) -> str:
    """Plain text; print it without interpreting markup."""
    lines = [*_head(story), ""]
    arrival = story["outcome"]["arrival_ns"]
    lines += [f"Before the engine: {_decision_text(row, arrival)}" for row in story["decisions"]]
    sent = [(row["attempt"], row["at_ns"]) for row in story["routing"]]
    for key in sorted(set(sent)):  # with separate pools a request is sent to an engine of either
        lines += _routing_lines([row for row, own in zip(story["routing"], sent, strict=True) if own == key], arrival)
    homes: list[int] = []
    for part in story["parts"]:
        if part["replica"] is not None and part["replica"] not in homes[-1:]:
            homes.append(part["replica"])
            lines += [f"on replica {homes[-1]}"] if story["routing"] else []
        lines += _part_lines(part, arrival)
    if story["longest_gaps"]:
        lines += ["", "Longest gaps between tokens"]
        lines += [f"  {line}" for gap in story["longest_gaps"] for line in _gap_lines(gap)]
    lines += _preemption_lines(story["preemptions"])
    return "\n".join([*lines, "", *_check_lines(story)]) + "\n"


def _decision_text(row: Mapping[str, Any], arrival: int) -> str:
    what = _DECISIONS.get(row["decision"], row["decision"])
    text = f"{what} at +{span_text(max(row['at_ns'] - arrival, 0))}"
    if row["reason"] == "none":
        return text
    if row["reason"] == "client_slot":
        return f"{text}: {span_text(row['value'])} for one of its {row['bound']:,} slots"
    if row["reason"] == "replica_failed":
        return f"{text}: replica {row['value']} failed, to replica {row['bound']}"
    if row["value"] is None:
        return f"{text}: {row['reason']}"
    show = span_text if row["reason"] in _TIMES else count
    return f"{text}: {row['reason']}, {show(row['value'])} against {show(row['bound'])}"


def _routing_lines(rows: list[Mapping[str, Any]], arrival: int) -> Iterator[str]:
    """Where a request was sent, and what the router saw of each replica it looked at."""
    chosen = next(row["replica"] for row in rows if row["chosen"])
    again = f", attempt {rows[0]['attempt'] + 1}" if rows[0]["attempt"] else ""
    yield f"Sent to replica {chosen} at +{span_text(max(rows[0]['at_ns'] - arrival, 0))}{again}; the router saw"
    for row in rows:
        hit = "" if row["hit_blocks"] is None else f", {row['hit_blocks']:,} blocks of this prefix sent there before"
        load = f"{row['requests']:,} requests open, {row['tokens']:,} tokens, {row['free_blocks']:,} free blocks{hit}"
        yield f"  replica {row['replica']}: {load}"


def _time(ns: int | None) -> str:
    return "-" if ns is None else span_text(ns)


def _head(story: Mapping[str, Any]) -> Iterator[str]:
    own = story["outcome"]
    state = own["state"].replace("_", " ") + ("" if own["reason"] == "none" else f" ({own['reason'].replace('_', ' ')})")
    yield f"Request {story['request']} of run {story['run']}: {printable(state)}"
    cached = own["cached_tokens"]
    hit = "" if not cached else f" ({cached:,} from the prefix cache)"
    tokens = f"{own['prompt_tokens']:,} prompt tokens{hit}, {own['output_tokens']:,} output tokens"
    times = "once" if own["retries"] == 1 else f"{own['retries']:,} times"
    sent = f", sent again {times}" if own["retries"] else ""
    yield f"  {tokens}, arrived at {own['arrival_ns']:,} ns{sent}"
    tpot = "-" if own["tpot_ns"] is None else span_text(own["tpot_ns"])
    yield (
        f"  queue {_time(own['queue_ns'])}, TTFT {_time(own['ttft_ns'])}, TPOT {tpot}, E2E {_time(own['e2e_ns'])},"
        f" longest gap {_time(own['max_gap_ns'])}"
    )
    whole = sum(story["by_phase_ns"].values())
    if whole:
        spent = sorted(story["by_phase_ns"].items(), key=lambda item: -item[1])
        yield "  " + ", ".join(f"{name} {share(ns / whole)}" for name, ns in spent)


def _part_lines(part: Part, arrival: int) -> Iterator[str]:
    reason = "" if part["reason"] == "none" else f"  [{part['reason']}]"
    where = ""
    if part["start_iteration"] is not None and part["start_iteration"] >= 0:
        first, last = part["start_iteration"], part["end_iteration"]
        where = f"iteration {first:,}" if first == last else f"iterations {first:,} to {last:,}"
    elif part["iterations"]:
        where = f"{part['iterations']:,} iterations"
    yield f"+{span_text(part['start_ns'] - arrival):<9} {part['phase']:<13} {span_text(part['length_ns']):>9}  {where}{reason}"
    if "waited_for" in part:
        yield from (f"{'':13}{line}" for line in _wait_lines(part["waited_for"]))
    for chunk in part.get("prefill_chunks", ()):
        again = f", {chunk['recompute']:,} of them again" if chunk["recompute"] else ""
        beside = f"; {chunk['other_prefill_tokens']:,} prefill tokens of others" if chunk["other_prefill_tokens"] else ""
        yield (
            f"{'':13}iteration {chunk['iteration']:,}: prefill chunk of {chunk['query_len']:,} tokens{again}"
            f" (KV then {chunk['kv_len']:,}) in {span_text(chunk['duration_ns'])}{beside}"
        )
    if part.get("tokens"):
        mean = part["length_ns"] / part["tokens"]
        engine = part["engine"]
        others = f"{engine['decode_seqs_mean']:.1f} sequences decoding, {engine['prefill_tokens']:,} prefill tokens beside it"
        yield f"{'':13}{part['tokens']:,} tokens, {span_text(mean)} each on average; {others}"


def _wait_lines(waited: Mapping[str, Any]) -> Iterator[str]:
    for name, row in waited["by_reason"].items():
        count = row["iterations"]
        text = _REASONS.get(name, f"head of queue refused: {name}")
        yield f"{text}: {span_text(row['ns'])} in {count:,} iteration{'s' if count != 1 else ''}"
    if waited["no_iteration_ns"] > 0:
        yield f"no iteration ran: {span_text(waited['no_iteration_ns'])}"
    if waited["as_head_ns"]:
        yield f"stood at the head itself for {span_text(waited['as_head_ns'])}"
    if waited["behind"]:
        heads = ", ".join(f"request {row['request']} ({span_text(row['ns'])})" for row in waited["behind"])
        yield f"behind the refused {heads}"


def _gap_lines(gap: Mapping[str, Any]) -> Iterator[str]:
    across = "" if not gap["across"] else f" across {', '.join(gap['across'])}"
    yield f"{span_text(gap['gap_ns'])} before token {gap['token']:,}{across}: iteration {gap['iteration']:,}"
    yield (
        f"  that iteration took {span_text(gap['duration_ns'])}: {gap['decode_seqs']:,} decoding,"
        f" {gap['prefill_tokens']:,} prefill tokens of {gap['prefill_seqs']:,}, {gap['preempted']:,} preempted"
    )
    if gap["prefilled"]:
        chunks = ", ".join(f"request {row['request']} ({row['query_len']:,} tokens)" for row in gap["prefilled"])
        yield f"  largest prefill chunks in it: {chunks}"


def _preemption_lines(preemptions: list[Mapping[str, Any]]) -> Iterator[str]:
    if preemptions:
        yield ""
        yield "Preemptions"
    for row in preemptions:
        if row["restored_ns"] is None:
            cost = "never restored"
        else:
            cost = f"stood still for {span_text(row['restored_ns'] - row['preempted_ns'])}"
        yield (
            f"  iteration {row['iteration']:,}: lost {row['lost_tokens']:,} computed tokens,"
            f" {row['recomputed_tokens']:,} computed again, {row['hit_tokens']:,} found in the prefix cache; {cost}"
        )


def _check_lines(story: Mapping[str, Any]) -> Iterator[str]:
    check = story["check"]
    count = len(story["parts"])
    if check["e2e_ns"] is None:
        yield f"Check: {count} parts sum to {check['sum_of_parts_ns']:,} ns; the request has no E2E (it did not finish)"
    else:
        verdict = "exact" if check["difference_ns"] == 0 else f"OFF BY {check['difference_ns']:,} ns"
        yield f"Check: {count} parts sum to {check['sum_of_parts_ns']:,} ns, E2E is {check['e2e_ns']:,} ns: {verdict}"
    if not check["touching"] or not check["starts_at_arrival"]:
        yield "Check FAILED: the parts do not touch or do not start at the arrival"
