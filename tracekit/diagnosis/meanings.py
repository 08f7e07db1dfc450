"""What the numbers of a finding are, in words for somebody who has not read their definitions (``signals.py`` has those).

The unit of a number says what it is a part of; the words say which part.
"""

from __future__ import annotations

import re

__all__ = ["meaning_of"]

_LIMITS = {
    "budget": "the token budget was spent",
    "seats": "all seats (max_num_seqs) were taken",
    "kv": "KV blocks were short",
    "gate": "a rule held it back: an interval, a window, a preemption before",
}
_STAGES = {
    "queue": "waiting in the queue",
    "P queue": "waiting for a prefill engine",
    "P compute": "computing the prompt",
    "transfer wait": "waiting for the link",
    "transfer": "the KV's way over the link",
    "D queue": "waiting for a decode engine",
}
_MEANINGS = {
    "q_share95": "the slowest 5 % of the requests waited in the queue",
    "fill_w": "used while requests waited",
    "kv p50": "in use, median over iterations",
    "kv p95": "in use, 95th percentile over iterations",
    "kv max": "the most that was in use",
    "stall_max": "the longest time between two tokens of an answer",
    "recompute": "computed again after a preemption",
    "preempt/req": "preemptions, on average",
    "preempt_max": "the most preemptions",
    "victims_max": "the most preemptions at once",
    "readmitted at once": "taken up again within three iterations",
    "running max": "the most that ran at a time",
    "waiting max": "the most that waited at a time",
    "seats taken": "all seats (max_num_seqs) were taken",
    "served": "output, from the first arrival to the last token",
    "prefill rate": "prompts computed, from the first arrival to the last token",
    "arrivals cv": "how unevenly requests come: deviation of the gaps over their mean, 1 is pure chance",
    "dispersion": "how bunched requests come, 1 is pure chance",
    "dispersion at worst": "how bunched requests come, at the scale where it shows most, 1 is pure chance",
    "waits of worst fifth": "by those that came in the worst fifth of the seconds",
    "dispatch": "held back by the client",
    "max_tokens / output p99": "how far answers may grow beyond nearly all that do",
    "left below align": "less of the budget was left than chunks are aligned to",
    "decode only": "iterations computed no prompt",
    "iterations full": "with a queue, and more than 90 % of the budget used",
    "iterations half full": "with a queue, and about half of the budget used",
    "prefill runs": "the longest row without a token for an answer under way",
    "fixed share": "an empty iteration takes it too",
    "at the server": "at the server at a time, on average",
    "offered/capacity": "work that comes over work that can be done",
    "waits inside long prefills": "passed while a long prompt was computed",
    "time of long prefills": "spent on long prompts",
    "long prompts": "with a long prompt",
    "longest output": "the longest answer",
    "evicted while decoding": "of requests that were answering already",
    "streams stalled": "stood still at least once while answering",
    "stalled": "answers stood still, all requests together",
    "long iterations": "with a prompt that made begun answers wait longer than a token gap may take",
    "refused for a rule": "by a rule about chunks, not by the budget's size",
    "hit": "found in the prefix cache",
    "hit_ideal": "one cache that forgets nothing would find",
    "replicas per prefix": "that hold the same prefix",
    "inverted": "passed while a less urgent one held a place",
    "behind less urgent": "passed behind a less urgent one",
    "urgent": "belong to urgent requests",
    "overtaken": "came later than those that waited",
    "longest wait": "the longest time in the queue",
    "passed over": "that were overtaken",
    "in flight at the limit": "the client's limit of requests in flight was reached",
    "in flight unlimited": "in flight without a limit",
    "bandwidth": "moved by the link while it moves anything",
    "queued beside idle": "another engine stood idle",
    "decoding together": "that answer at a time, where most tokens are made",
    "time per token": "between tokens with so many together",
    "time per token alone": "between tokens of a request alone",
    "for others' prompts": "taken by others' prompts",
}
"""Read after the value and its unit: ``88.1 % of TTFT``: the slowest 5 % of the requests waited in the queue."""


def meaning_of(metric: str) -> str:
    """In words; empty for a number that has none."""
    known = _MEANINGS.get(metric)
    if known is not None:
        return known
    inside = re.fullmatch(r"(block|stage|slope)\[(.+)\]", metric)
    if inside is None:
        pool, _, what = metric.rpartition(" ")
        return f"the {pool} engines computed, on average" if pool and what == "busy" else ""
    kind, name = inside.groups()
    if kind == "block":
        return f"the first in the queue was refused: {_LIMITS[name]}" if name in _LIMITS else ""
    if kind == "stage":
        return _STAGES.get(name, "")
    return f"mean time to the first token of what came in quarter {name} of the run"
