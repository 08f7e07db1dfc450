"""A profile from the batch lines of an SGLang log, as a sample: of decodes each fortieth batch or so is printed.

A decode line tells the tokens a second since the last one, so that running x accepted / throughput is the mean length of the
iterations between: it counts where no prefill batch was printed among them and as many requests run at both ends. A prefill line
tells the tokens a second of the batch before it: it counts where that one left requests waiting, since the next batch is then a
prefill at once. Both are times of the clock, host time and all, and are whole under SGLang's overlapping scheduler too. Keys are
read one by one: their order and company change with the release.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.fit import FEWEST
from replay_engine.calibration.outcome import calibrate_samples, profile_of
from replay_engine.calibration.samples import EAGER_MODE, Samples
from replay_engine.profile import load_profile
from tracekit.calibration.looking import unreadable
from tracekit.calibration.report import CalibrationReport
from tracekit.calibration.sources import NO_CARD, SourceRequest
from tracekit.errors import InputError, shown_path

if TYPE_CHECKING:
    import polars as pl

__all__ = ["batch_lines", "calibrate_sglang_log", "samples_of_batches"]

Column = npt.NDArray[np.float64]
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
KEYS = {
    "running": r"#running-req: " + NUMBER, "queue": r"#queue-req: " + NUMBER, "kv": r"#(?:full )?token: " + NUMBER,
    "gen": r"gen throughput \(token/s\): " + NUMBER, "accept": r"accept len: " + NUMBER, "seqs": r"#new-seq: " + NUMBER,
    "tokens": r"#new-token: " + NUMBER, "input": r"input throughput \(token/s\): " + NUMBER,
}  # fmt: skip
RANK = r"DP([0-9]+)"
ALIKE = 0.1
"""By how much the running requests at both ends of an interval may differ."""


def calibrate_sglang_log(request: SourceRequest) -> CalibrationReport:
    """``InputError``: no batch line, or too few that tell a time; ``ConfigError``: a fit that beats the prior's card."""
    lines = batch_lines(Path(request.source))
    samples = samples_of_batches(lines)
    if len(samples) < FEWEST:
        raise InputError(f"{len(samples)} batches that tell how long they took", file=shown_path(request.source),
                         expected=f"{FEWEST} or more decode lines without prefill between, or prefills with a queue")  # fmt: skip
    prior = load_profile(request.prior) if request.prior is not None else None
    note = f"fitted: least squares of {len(samples)} batch lines of an SGLang log, means of the iterations between them"
    found = calibrate_samples(samples, sources={"device": f"{note}; host time within", "host": "0: within the device's numbers"})
    physical = prior is not None and not prior.synthetic
    profile = profile_of(
        found, name="sglang-log", kind="fitted to a sample of batch lines of SGLang", model=prior.model if prior else None,
        hardware=prior.hardware if prior else None, peaks=physical,
    )  # fmt: skip
    decodes = int(np.count_nonzero(samples.seqs))
    notes = [
        f"read: {lines.height:,} batch lines, a sample of what ran; {decodes:,} stretches between decode lines and"
        f" {len(samples) - decodes:,} prefill batches tell how long they took",
        "times are of the log's clock: host time is within floor, a, b and d, not in h0",
        "a prefill batch's prompts are taken for alike and computed at once: c is rough",
    ]
    notes += [NO_CARD] if prior is None else []
    return CalibrationReport(profile=profile, found=found, notes=notes)


def batch_lines(file: Path) -> pl.DataFrame:
    """The batch lines of a log. ``InputError``: not readable, or none in it."""
    import polars as pl

    try:
        text = pl.read_csv(file, has_header=False, separator="\x01", quote_char=None, schema={"line": pl.String},
                           encoding="utf8-lossy", truncate_ragged_lines=True)  # fmt: skip
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(unreadable(file, error), file=str(file), expected="a log of SGLang") from None
    line = pl.col("line")
    lines = text.filter(line.str.contains(r"\b(?:Decode|Prefill) batch,")).select(
        decode=line.str.contains("Decode batch,", literal=True), rank=line.str.extract(RANK).fill_null("0"),
        **{name: line.str.extract(pattern).cast(pl.Float64) for name, pattern in KEYS.items()},
    )  # fmt: skip
    if not lines.height:
        raise InputError("no batch line", file=str(file), expected="Decode batch, ... and Prefill batch, ... lines")
    return lines


def samples_of_batches(lines: pl.DataFrame) -> Samples:
    """The decode intervals and prefill batches that tell a time."""
    parts = [_of_rank(part) for part in lines.partition_by("rank", maintain_order=True)]
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found.banded()


def _of_rank(lines: pl.DataFrame) -> Samples:
    before, decode = lines.shift(1), lines["decode"].to_numpy()
    was_decode = before["decode"].fill_null(False).to_numpy()
    value = {name: lines[name].to_numpy() for name in KEYS}
    last = {name: before[name].to_numpy() for name in KEYS}
    running, accepted = value["running"], np.where(np.isnan(value["accept"]), 1.0, value["accept"])
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = np.where(decode, running * accepted / value["gen"], last["tokens"] / value["input"]) * 1e9
    steady = decode & was_decode & (np.abs(running - last["running"]) <= ALIKE * running) & (running > 0)
    queued = ~decode & ~was_decode & (last["queue"] > 0) & (last["tokens"] > 0)
    use = (steady | queued) & np.isfinite(taken) & (taken > 0)
    nothing, count = np.zeros(len(decode)), len(decode)
    seqs = np.where(decode, (running + np.nan_to_num(last["running"])) / 2, 0.0)
    kv = np.where(decode, (np.nan_to_num(value["kv"]) + np.nan_to_num(last["kv"])) / 2, 0.0)
    tokens = np.where(decode, 0.0, np.nan_to_num(last["tokens"]))
    # a prefill batch's prompts are taken for alike, and computed at once
    qk = np.where(decode, 0.0, tokens**2 / (2 * np.maximum(np.nan_to_num(last["seqs"]), 1.0)))
    whole = Samples(
        device_ns=taken, host_ns=np.full(count, np.nan), tokens=tokens, qk=qk, seqs=seqs, kv=kv, running=seqs, changes=nothing,
        padded=nothing, above=nothing, weight=np.ones(count), mode=np.full(count, EAGER_MODE), shape=np.full(count, ""),
    )  # fmt: skip
    return whole.part(use)
