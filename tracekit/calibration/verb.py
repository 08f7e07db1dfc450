"""``calibrate`` as one call: whatever a profile can be made from, or a profile to be checked, by the options of the verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracekit.calibration.measured import calibrate as calibrate_engine
from tracekit.calibration.sources import SourceRequest, Written, calibrate_source
from tracekit.errors import UsageError, shown_path
from tracekit.trust import check_profile
from tracekit.work_manifest import beside, input_file, write_work_manifest

__all__ = ["calibrate"]

Progress = Callable[[int, int, str], None]
_CHECKS = ("split", "configs")
_FITS = ("kind", "prior", "model", "cases", "run", "repeats", "device", "hardware", "tensor_parallel", "dtype", "kv_dtype")
_OF_A_SOURCE = ("kind", "sets", "policy", "prior", "hardware", "tensor_parallel", "dtype", "kv_dtype")
_NAMES = {"kind": "as", "sets": "set", "prior": "profile", "run": "from"}


def calibrate(
    source: str | None = None, *, kind: str | None = None, sets: Sequence[str] = (), policy: str | None = None,
    prior: str | None = None, hardware: str | None = None, tensor_parallel: int | None = None, dtype: str | None = None,
    kv_dtype: str | None = None, check: str | None = None, split: str | None = None, configs: str | Path | None = None,
    engine: str = "torch", model: str | None = None, cases: Sequence[str] = (), run: str | None = None,
    out: str | Path | None = None, repeats: int | None = None, device: str | None = None, seed: int = 0,
    db: str | Path = "tracekit.duckdb", progress: Progress | None = None,
) -> Written:  # fmt: skip
    """A latency profile from ``source`` (a trace with latencies, a log, a model's config), from the recorded ``run``, or measured
    on ``engine``: a ``SourceReport`` or ``CalibrationReport``. With ``check`` the trust that profile deserves on the trace
    ``source``: a ``TrustReport``. ``out``: where the profile is written. Errors: ``UsageError``,
    ``InputError``, ``ConfigError``."""
    given = dict(locals())
    if out is not None and not Path(out).resolve().parent.is_dir():
        raise UsageError(f"--out {shown_path(out)}: no such folder; expected a file in one that exists")
    if out is not None and Path(out).is_dir():
        raise UsageError(f"--out {shown_path(out)}: a folder; expected a file")
    if run is not None and source is not None:
        raise UsageError("SOURCE and --from: two ways to say what is fitted; expected one of them")
    report = _fitted(given) if check is None else _checked(given)
    if out is not None:
        report.write(out)
        read = [("source", source), ("policy", policy), ("prior", prior), ("profile", check), ("configs", configs)]
        inputs = [input_file(role, file) for role, file in read if file is not None]
        write_work_manifest(beside(Path(out)), "calibrate", given=given, rests_on={"seed": seed},
                            result=report.profile.to_toml(), inputs=inputs)  # fmt: skip
    return report


def _fitted(given: dict[str, Any]) -> Written:
    for name in _CHECKS:
        if given[name] is not None:
            raise UsageError(f"--{name}: says how a profile is checked; expected --check PROFILE too")
    if given["run"] is None and given["source"] is None:
        return _measured(given)
    for name in ("cases", "repeats", "device"):
        if given[name]:
            raise UsageError(f"--{name} and a source: it is fitted as it was recorded; expected one of them")
    source, kind = (given["source"], given["kind"]) if given["run"] is None else (given["run"], "run")
    names = ("policy", "prior", "model", "hardware", "tensor_parallel", "dtype", "kv_dtype", "db", "seed", "progress")
    request = SourceRequest(source=source, sets=tuple(given["sets"] or ()), **{name: given[name] for name in names})
    return calibrate_source(request, kind)


def _measured(given: dict[str, Any]) -> Written:
    for name in _OF_A_SOURCE:
        if given[name]:
            raise UsageError(f"{_option(name)}: says how a source is read; expected a SOURCE too")
    options = {name: given[name] for name in ("model", "repeats", "device", "seed", "progress")}
    return calibrate_engine(cases=given["cases"] or (), **options)


def _checked(given: dict[str, Any]) -> Written:
    for name in _FITS:
        if given[name]:
            raise UsageError(f"{_option(name)} and --check: nothing is fitted; expected one of them")
    options = {name: given[name] for name in ("policy", "split", "configs", "seed", "db", "progress")}
    return check_profile(given["check"], given["source"], sets=given["sets"] or (), **options)


def _option(name: str) -> str:
    return "--" + _NAMES.get(name, name).replace("_", "-")
