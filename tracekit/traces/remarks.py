"""What a trace as a whole gives away: latencies that are none, requests that no dense single-model engine stands for, forced
lengths. Rows are marked and counted, never dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.traces.columns import COLUMNS, Column

if TYPE_CHECKING:
    from tracekit.traces.stage import Stage

__all__ = ["STATUS", "observed", "remark", "unmodelled"]

STATUS = (
    "CASE WHEN status IS NULL THEN NULL WHEN lower(status) IN ('ok', 'success', 'succeeded', 'true', '200') THEN 'ok'"
    " WHEN lower(status) IN ('error', 'failed', 'failure', 'false') THEN 'error'"
    " WHEN lower(status) IN ('cancelled', 'canceled', 'abort', 'aborted') THEN 'cancelled'"
    " WHEN lower(status) IN ('timeout', 'timed_out') THEN 'timeout' WHEN lower(status) = 'rejected' THEN 'rejected'"
    " ELSE 'unknown' END"
)
"""The canonical status of a row."""

_MARKS = (
    ("lora", "a LoRA adapter", "adapter", "adapter IS NOT NULL"),
    ("image", "image input", "image_tokens", "image_tokens > 0"),
    ("audio", "audio input", "audio_tokens", "audio_tokens > 0"),
    ("video", "video input", "video_tokens", "video_tokens > 0"),
    ("n", "several answers to one prompt", "n_sequences", "n_sequences > 1"),
)
_SPELLED = {mark: words for mark, words, _, _ in _MARKS} | {"speculative": "speculative decoding"}
_NEVER_INSTANT = ("obs_ttft", "obs_e2e", "obs_tpot")
FORCED = 0.95
CLOSED = 10
"""A load that starts in a tenth of the time that one request takes knows of no answer: it is a burst, not traffic."""


def _has(stage: Stage, name: str) -> bool:
    return COLUMNS[name] in stage.columns


def observed(stage: Stage, column: Column) -> str:
    """SQL of an observed duration as it is stored: NULL for a request that failed, which would look like an instant answer."""
    name = f'"{column.stored}"'
    value = f"nullif({name}, 0)" if column.name in _NEVER_INSTANT else name
    failed = "input_tokens = 0 OR output_tokens = 0"
    if _has(stage, "status"):
        failed += f" OR ({STATUS}) IN ('error', 'timeout', 'rejected')"
        if column.name not in ("obs_ttft", "obs_queue", "obs_prefill"):
            failed += f" OR ({STATUS}) = 'cancelled'"
    return f"CASE WHEN {failed} THEN NULL ELSE {value} END"


def unmodelled(stage: Stage) -> str | None:
    """SQL of the marks of a row, comma-separated (``lora,image``), or ``None`` when the source tells of none."""
    parts = [f"CASE WHEN {test} THEN '{mark}' END" for mark, _, name, test in _MARKS if _has(stage, name)]
    parts += ["unmodelled"] if _has(stage, "unmodelled") else []
    return f"nullif(concat_ws(',', {', '.join(parts)}), '')" if parts else None


def remark(stage: Stage) -> None:
    """Warnings on the staged rows."""
    marks = unmodelled(stage)
    if marks is not None:
        counted = stage.con.execute(
            f"SELECT mark, count(*) FROM (SELECT unnest(string_split({marks}, ',')) AS mark FROM stage) GROUP BY ALL ORDER BY ALL"
        )
        for mark, count in counted.fetchall():
            stage.facts.warn(f"{count} requests with {_SPELLED.get(mark, mark)}: replayed as plain text requests of one model"
                             " (column unmodelled)")  # fmt: skip
    if _has(stage, "status"):
        bad = "s NOT IN ('ok', 'unknown')"
        counted = stage.con.execute(f"SELECT {STATUS} AS s, count(*) FROM stage WHERE {bad} GROUP BY s ORDER BY s")
        for status, count in counted.fetchall():
            stage.facts.warn(f"{count} requests ended as {status} in the source: kept, not replayed")
    if _has(stage, "obs_e2e"):
        rows, span, typical = stage.one("SELECT count(*), max(arrival_ns) - min(arrival_ns), median(obs_e2e_ns) FROM stage")
        if rows > 20 and typical is not None and span * CLOSED < typical and stage.facts.arrival_kind is None:
            stage.facts.arrival_kind = "closed_loop"
            stage.facts.warn(f"all {rows} requests start within {span / 1e6:.0f} ms, and one takes {typical / 1e6:.0f} ms: a load"
                             " generator's burst, whose rate says nothing")  # fmt: skip
    if _has(stage, "max_tokens"):
        forced, known = stage.one("SELECT count(*) FILTER (output_tokens = max_tokens), count(max_tokens) FROM stage")
        if known > 20 and forced > FORCED * known:
            stage.facts.warn(f"{forced} of {known} answers are exactly as long as their limit: forced by a benchmark")
