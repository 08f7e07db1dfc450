"""What a diagnosis says in words: titles of causes, times, shares, the one sentence at the top."""

from __future__ import annotations

from tracekit.diagnosis.finding import Change, Diagnosis, Finding, Proof, Unnamed, confirmed
from tracekit.metrics.wording import share, span_text

__all__ = ["besides", "change_text", "figure_text", "finding_ids", "headline", "recommended", "title"]

_TITLES = {
    "QUEUE_BUDGET": "waiting because every iteration's token budget is spent",
    "QUEUE_SEATS": "waiting because all seats are taken",
    "QUEUE_KV": "waiting because KV blocks are short",
    "HOL_LONG_PROMPT": "short requests wait behind long prompts",
    "PREFILL_STALLS_DECODE": "running streams stand still while prompts are computed",
    "PREEMPTION_STORM": "work is evicted and computed again and again",
    "ADMISSION_LAX": "more is let in than the memory holds",
    "ADMISSION_STRICT": "too little is let in, the memory is idle",
    "STARVATION": "requests that should go first are passed over",
    "BATCH_TOO_LARGE": "so many decode together that each token comes too late",
    "CHUNK_TOO_SMALL": "iterations are too small, their fixed cost dominates",
    "CHUNK_TOO_LARGE": "single iterations are too long",
    "PREFIX_MISS": "prefixes could be reused and are not",
    "BURST": "requests come in bunches",
    "OVERLOAD": "more is asked than the engine can do",
    "UNDERUSED_BUDGET": "token budget is left over while requests wait",
    "CLIENT_LIMIT": "the wait is before the server",
    "PD_IMBALANCE": "engines are not equally busy",
    "KV_TRANSFER": "moving KV takes most of the time",
    "ROUTING_IMBALANCE": "routing imbalance",
}
CALM = 0.2
"""A share of the excess that no finding explains: beyond, it is said before anything is recommended."""

LARGE = 0.1
"""Of all the time that requests took: an effect without a name that takes as much is part of the verdict."""


def finding_ids() -> tuple[str, ...]:
    """Every cause that a diagnosis can name."""
    return tuple(_TITLES)


def title(name: str) -> str:
    """A finding's id in words."""
    return _TITLES.get(name, name.lower().replace("_", " "))


def change_text(change: Change) -> str:
    return f"{change.knob} {change.old} -> {change.new}" if change.old or change.new else change.knob


def recommended(finding: Finding) -> tuple[Change, Proof | None] | None:
    """What may be shown as advice: the change that a replay confirmed, with its proof; or, where nothing was replayed, the first
    proposal with ``None``. Nothing where the replays refuted what was proposed."""
    proof = confirmed(finding)
    if proof is not None:
        return proof.change, proof
    tried = [each for each in finding.proofs if each.change in finding.changes and each.outcome != "not replayed"]
    return None if tried or not finding.changes else (finding.changes[0], None)


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one sentence."""
    causes = [each for each in diagnosis.findings if each.under is None]
    if not causes and diagnosis.excess_ns > 0 and diagnosis.unexplained_ns > CALM * diagnosis.excess_ns and not _calm(diagnosis):
        return f"what is slow ({span_text(diagnosis.excess_ns)} in excess) is not explained by anything that is looked for here"
    if not causes:
        calm = next((each for each in diagnosis.remarks if each.startswith("nothing is wrong")), "nothing is wrong")
        effect = besides(diagnosis)
        return calm if effect is None else f"{calm}; and yet {effect.what}"
    text = f"{causes[0].id}: {causes[0].what}"
    if len(causes) > 1:
        text += f"; also {', '.join(each.id for each in causes[1:3])}"
    return text


def besides(diagnosis: Diagnosis) -> Unnamed | None:
    """The largest effect without a name, where it is large enough to stand in the verdict."""
    effects = () if diagnosis.expected is None else diagnosis.expected.unnamed
    return effects[0] if effects and effects[0].share >= LARGE else None


def _calm(diagnosis: Diagnosis) -> bool:
    return any(each.startswith("nothing is wrong") for each in diagnosis.remarks)


def figure_text(value: float | None, unit: str) -> str:
    """A figure in its unit: ns as a readable time, shares as percentages."""
    if value is None:
        return "-"
    if unit == "ns":
        return span_text(value)
    if unit == "share":
        return share(value)
    if unit == "s":
        return span_text(value * 1e9)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
