"""A profile from the iterations of a recorded run."""

from __future__ import annotations

from pathlib import Path

from replay_engine.calibration.outcome import calibrate_samples, profile_of
from replay_engine.calibration.samples import samples_of_rows
from tracekit.calibration.report import CalibrationReport
from tracekit.calibration.sources import SourceRequest
from tracekit.errors import UsageError, shown
from tracekit.store import Store, load_run, resolve_run
from tracekit.store.split_view import PADDED

__all__ = ["calibrate_recorded", "calibrate_run"]

_COLUMNS = (
    "device_ns, host_ns, prefill_tokens, prefill_qk, decode_seqs, decode_kv_tokens, running, admitted, finished, preempted,"
    f" CAST(mode AS VARCHAR) AS mode, COALESCE(padded_tokens, {PADDED}) AS padded_tokens,"
    " COALESCE(decode_longest_tokens, 0) AS decode_longest_tokens"
)


def calibrate_recorded(request: SourceRequest) -> CalibrationReport:
    """The recorded run named by ``request.source``."""
    return calibrate_run(request.source, db=request.db)


def calibrate_run(run: str, *, db: str | Path = "tracekit.duckdb") -> CalibrationReport:
    """Fit the recorded iterations of ``run`` (a number, a name, ``last``).

    Rows do not tell who joined or left the decode set: who was admitted, finished or was preempted stands for them.
    ``UsageError``: no such run, or it kept no iterations. ``ConfigError``: too few of them.
    """
    store = Store(db)
    number = resolve_run(store, run)
    row = load_run(store, number)
    with store.read() as con:
        columns = con.execute(
            f"SELECT {_COLUMNS} FROM iterations WHERE run = ? ORDER BY replica, iteration", [number]
        ).fetchnumpy()
    if not len(columns["device_ns"]):
        raise UsageError(f"run {shown(run)}: run {number} kept no iterations; expected a replay with --events full")
    plain = {name: values.filled(0) if hasattr(values, "filled") else values for name, values in columns.items()}
    samples = samples_of_rows(plain)
    engine = str(row.get("engine") or "an engine")
    name = shown(row.get("name") or f"run {number}")
    note = f"fitted: least squares of {len(samples)} recorded iterations of {name} ({shown(engine)})"
    host = f"{note}; joined and left estimated by admitted, finished and preempted"
    found = calibrate_samples(samples, sources={"device": note, "host": host})
    profile = profile_of(
        found, name=f"run-{number}", kind=f"fitted to the iterations of a recorded run ({shown(engine)})", model=None,
        hardware=None, peaks=False,
    )  # fmt: skip
    return CalibrationReport(profile=profile, found=found)
