"""Who sends, in which sessions, how it ended, and what the source observed: by SQL over the rows that are described."""

from __future__ import annotations

from typing import Any

from tracekit.describe.rows import Rows

__all__ = ["label_numbers", "observed_numbers", "session_numbers"]

TOP = 10
_LABELS = ("tenant", "class", "model", "kind", "adapter", "unmodelled")
_OBSERVED = ("queue", "ttft", "prefill", "decode", "tpot", "e2e")


def _columns(rows: Rows) -> set[str]:
    return {row[0] for row in rows.con.execute("DESCRIBE requests").fetchall()}


def label_numbers(rows: Rows) -> dict[str, Any]:
    """Per label that the trace has: how many values, how many with one request only, the ten largest; and statuses."""
    there = _columns(rows)
    out: dict[str, Any] = {}
    for label in _LABELS:
        if label in there:
            found = _one_label(rows, label)
            if found is not None:
                out[label] = found
    statuses = rows.extras("SELECT coalesce(status, 'not told'), count(*) FROM described GROUP BY 1 ORDER BY 2 DESC, 1")
    out["status"] = dict(statuses)
    return out


def _one_label(rows: Rows, label: str) -> dict[str, Any] | None:
    counted = rows.extras(
        f'SELECT "{label}", count(*), sum(input_tokens), sum(output_tokens) FROM described WHERE "{label}" IS NOT NULL'
        " GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    if not counted:
        return None
    total = sum(row[1] for row in counted)
    largest = [
        {"name": name, "requests": n, "share": n / total, "input_tokens": int(given), "output_tokens": int(made)}
        for name, n, given, made in counted[:TOP]
    ]
    lone = sum(row[1] == 1 for row in counted)
    return {"values": len(counted), "with_one_request": lone, "requests": total, "largest": largest}


def session_numbers(rows: Rows) -> dict[str, Any] | None:
    """Sessions, their lengths and think times; ``None`` where the trace has none."""
    per_session = rows.extras(
        "SELECT count(*), sum(n), median(n), quantile_cont(n, 0.95), max(n), count(*) FILTER (n > 1), median(span),"
        " max(span) FROM (SELECT count(*) AS n, (max(arrival_ns) - min(arrival_ns)) / 1e9 AS span FROM described"
        " WHERE session_id IS NOT NULL GROUP BY session_id)"
    )[0]
    if not per_session[0]:
        return None
    names = ("sessions", "requests", "requests_p50", "requests_p95", "requests_max", "with_more_turns", "span_p50_s",
             "span_max_s")  # fmt: skip
    found: dict[str, Any] = {name: None if value is None else float(value) if name.endswith(("_s", "p50", "p95")) else int(value)
                             for name, value in zip(names, per_session, strict=True)}  # fmt: skip
    think = rows.extras(
        "SELECT count(think_ns), median(think_ns), quantile_cont(think_ns, 0.95), max(think_ns), count(*) FILTER (think_ns < 0),"
        " count(parent_idx) FROM described"
    )[0]
    if think[0]:
        found["think_time_s"] = {"n": think[0], "p50": think[1] / 1e9, "p95": think[2] / 1e9, "max": think[3] / 1e9,
                                 "negative": think[4]}  # fmt: skip
    found["released_by_a_parent"] = int(think[5])
    return found


def observed_numbers(rows: Rows) -> dict[str, dict[str, float]]:
    """Latencies the source observed, in seconds, over the requests of which they are known."""
    there = _columns(rows)
    names = [name for name in _OBSERVED if f"obs_{name}_ns" in there]
    asked = ", ".join(
        f"count(obs_{n}_ns), avg(obs_{n}_ns), quantile_cont(obs_{n}_ns, [0.5, 0.95, 0.99]), max(obs_{n}_ns)" for n in names
    )
    row = rows.extras(f"SELECT {asked} FROM described")[0]
    out: dict[str, dict[str, float]] = {}
    for k, name in enumerate(names):
        n, mean, percentiles, largest = row[4 * k : 4 * k + 4]
        if n:
            p50, p95, p99 = (value / 1e9 for value in percentiles)
            out[name] = {"n": n, "mean": mean / 1e9, "p50": p50, "p95": p95, "p99": p99, "max": largest / 1e9}
    return out
