"""A profile from the statistics that vLLM logs every ten seconds: throughputs, how many run, KV usage.

While requests run all the time, an iteration gives each of them a token, so that running / generation throughput is the mean
length of the iterations of an interval: by the clock, host time and all, and whole under asynchronous scheduling too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from replay_engine.profile import load_profile
from tracekit.calibration.interval_fit import Intervals, fit_intervals, report_intervals
from tracekit.calibration.looking import unreadable
from tracekit.calibration.sources import SourceReport, SourceRequest
from tracekit.calibration.vllm_header import LogFacts, read_facts
from tracekit.errors import InputError, shown, shown_path

if TYPE_CHECKING:
    import polars as pl

__all__ = ["calibrate_vllm_stats", "intervals_of_stats"]

NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
KEYS = {
    "prompt": r"Avg prompt throughput: " + NUMBER, "generation": r"Avg generation throughput: " + NUMBER,
    "running": r"Running: " + NUMBER, "waiting": r"Waiting: " + NUMBER, "usage": r"KV cache usage: " + NUMBER,
    "hits": r"(?:^|, )Prefix cache hit rate: " + NUMBER,
}  # fmt: skip
ENGINE = r"Engine ([0-9]+)"
HEADER_BYTES = 1 << 20


def calibrate_vllm_stats(request: SourceRequest) -> SourceReport:
    """``InputError``: no such line, or too few that tell a time; ``ConfigError``: a setting, or a fit that beats the prior's
    card."""
    lines = _read(request.source)
    with Path(request.source).open(encoding="utf-8", errors="replace") as file:
        facts = read_facts(file.read(HEADER_BYTES).splitlines(), request.sets)
    rows = intervals_of_stats(lines, facts)
    prior = load_profile(request.prior) if request.prior is not None else None
    latency, terms = fit_intervals(rows, prior, file=shown_path(request.source))
    notes = []
    if facts.kv_tokens is None:
        lacks = "the size of the KV cache is not known; expected the start of the log, or --set num_gpu_blocks=N"
        notes.append(f"KV reads cannot be told apart: {lacks}")
    hits = lines["hits"].fill_null(0.0).to_numpy()
    if float(hits.max()) >= 1:
        notes.append(f"up to {hits.max():.0f} % of prompt tokens came from the prefix cache: b is a LOWER BOUND")
    return report_intervals("vllm-stats", "ten-second lines of vLLM", rows, latency, terms, prior, notes)


def _read(source: str) -> pl.DataFrame:
    import polars as pl

    try:
        text = pl.read_csv(source, has_header=False, separator="\x01", quote_char=None, schema={"line": pl.String},
                           encoding="utf8-lossy", truncate_ragged_lines=True)  # fmt: skip
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(unreadable(source, error), file=shown(source, 200), expected="a log of vLLM") from None
    line = pl.col("line")
    lines = text.filter(line.str.contains("Avg generation throughput: ", literal=True)).select(
        engine=line.str.extract(ENGINE).fill_null("0"),
        **{name: line.str.extract(pattern).cast(pl.Float64) for name, pattern in KEYS.items()},
    )  # fmt: skip
    if not lines.height:
        raise InputError("no statistics line", file=shown(source, 200),
                         expected="Avg prompt throughput: ..., Avg generation throughput: ..., Running: ...")  # fmt: skip
    return lines


def intervals_of_stats(lines: pl.DataFrame, facts: LogFacts) -> Intervals:
    """Each line and the one before it of the same engine; a broken line ends an interval and begins none."""
    found = []
    for part in lines.partition_by("engine", maintain_order=True):
        value = {name: part[name].to_numpy().astype(np.float64) for name in KEYS if name != "hits"}
        before, after = value["running"][:-1], value["running"][1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            took = (before + after) / 2 / value["generation"][1:] * 1e9
            tokens = value["prompt"][1:] * took / 1e9
        size = np.nan if facts.kv_tokens is None else facts.kv_tokens
        usage = (value["usage"][:-1] + value["usage"][1:]) / 200 * size
        kv = np.maximum(usage - (before + after) / 2 * (facts.block_size - 1) / 2, 0.0)
        found.append((took, tokens, before, after, kv))
    columns = [np.concatenate(each) for each in zip(*found, strict=True)]
    return Intervals.of(*columns)
