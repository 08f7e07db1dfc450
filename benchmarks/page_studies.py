"""Studies whose values are known, written as the tuner writes them, for benchmarks and tests of the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.jobs import Job
from tracekit.store import Store

__all__ = ["made_study", "many_rows", "trial_row"]

KNOBS = [
    {"name": "max_num_batched_tokens", "levels": [1024, 2048, 4096, 8192], "ordered": True, "when": None},
    {"name": "max_num_seqs", "levels": [64, 128, 256], "ordered": True, "when": None},
    {"name": "order.by", "levels": ["engine", "shortest_first"], "ordered": False, "when": None},
]
GOODPUT = [{"name": "goodput", "direction": "maximize", "unit": "requests/s"}]


def trial_row(number: int, value: float | None, point: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A line of ``trials.jsonl``; a trial without a value has failed."""
    state = more.pop("state", "complete" if value is not None else "fail")
    tails = {"ttft_p99": 1e9 + 1e7 * number, "tpot_p99": 5e7, "longest_gap_p99": 2e8, "e2e_p99": 4e9}
    row = {
        "number": number, "state": state, "role": None, "point": point, "values": [value] if state == "complete" else [],
        "estimate": value, "feasible": True, "reason": None if value is not None else "its KV does not fit", "took_s": 0.1,
        "attainment": 0.5, "windows": 3, "iterations": 100, "tails_ns": tails,
    }  # fmt: skip
    return {**row, **more}


def made_study(store: Store, rows: list[dict[str, Any]], *, key: str = "0123456789abcdef", **more: Any) -> Path:
    """A study of ``rows``; its job has finished unless ``job`` names another."""
    if "job" not in more:
        job = Job.create(store.folder, "tune", {"argv": ["tracekit", "tune"]})
        job.begin()
        job.finish({"exit_code": 0})
        more["job"] = job.id
    answer = more.pop("answer", None)
    folder = store.folder / "tune" / key
    folder.mkdir(parents=True)
    windows = [{"begin_ns": at, "end_ns": at + 10, "requests": 5} for at in (0, 20, 40)]
    document = {
        "schema": "tracekit.study/1", "study": key, "trace": "made up", "traffic": ["made up"], "windows": windows,
        "slo": {"default": {"ttft_ns": 1_050_000_000, "tpot_ns": 60_000_000}, "class": {}, "tenant": {}}, "profile": "h100",
        "objectives": GOODPUT, "target": 0.9, "space": {"knobs": KNOBS, "engines": 1}, "seed": 0, "trials": len(rows),
        "current": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "order.by": "engine"}, **more,
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(document))
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if answer is not None:
        (folder / "answer.json").write_text(json.dumps(answer))
    return folder


def many_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Trials with values over the whole space, repeated and shaken; every eleventh is pruned, every hundredth fails."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        at = [int(rng.integers(len(knob["levels"]))) for knob in KNOBS]  # type: ignore[arg-type]
        point = {knob["name"]: knob["levels"][place] for knob, place in zip(KNOBS, at, strict=True)}  # type: ignore[index]
        value = 1.0 + at[0] + 0.5 * at[1] + 0.25 * at[2] + 0.05 * float(rng.random())
        state = "pruned" if number % 11 == 10 else "complete"
        row = trial_row(number, None if number % 100 == 99 else value, point, **({"state": state} if number % 100 != 99 else {}))
        row["tails_ns"] = {
            "ttft_p99": 4e9 / value,
            "tpot_p99": 1e7 * value + 2e7 * rng.random(),
            "longest_gap_p99": 2e8,
            "e2e_p99": 4e9,
        }
        rows.append(row)
    return rows
