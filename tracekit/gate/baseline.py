"""A baseline: the figures that a later replay is held against, and digests of all that they rest on. A file to be committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit import __version__
from tracekit.errors import InputError, UsageError, shown, shown_path
from tracekit.experiments.knobs import differing, knob_text
from tracekit.fingerprint import code_digest, digest_of, rests_on
from tracekit.gate.metrics import METRICS, Figure, Figures
from tracekit.gate.replays import Replays
from tracekit.replay import Setup
from tracekit.store.files import read_json

__all__ = ["SCHEMA", "Baseline", "Mismatch", "baseline_document", "mismatches", "read_baseline"]

SCHEMA = "tracekit.baseline/1"
DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline file: what its figures rest on, the figures of the traffic as it is, and of each draw by its seed."""

    file: str
    rests_on: Mapping[str, Any]
    made_by: Mapping[str, Any]
    plain: Figures
    draws: Mapping[int, Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Something that the baseline rests on and the replay does not: which, and both in words."""

    part: str
    baseline: str
    here: str

    @property
    def text(self) -> str:
        return f"{self.part}: {self.baseline} in the baseline, {self.here} here"


def baseline_document(
    replays: Replays, seeds: Sequence[int], plain: Mapping[str, Figure], findings: Sequence[str]
) -> dict[str, Any]:
    """The file, from replays that are done (those that are not yet are done now). ``plain``: the figures of the traffic as it is,
    which have no noise and are the same on both sides."""
    drawn = [replays.drawn(seed).figures for seed in seeds]
    figures = {}
    for name in METRICS:
        figures[name] = {"value": _digits(plain[name].value), "n": plain[name].n, "reason": plain[name].reason,
                         "draws": [_digits(each[name].value) for each in drawn]}  # fmt: skip
    noise = {"prefill": _digits(replays.sigma_prefill), "decode": _digits(replays.sigma_decode), "from": replays.noise_from}
    return {
        "schema": SCHEMA,
        "made_by": {"tracekit": __version__, "code": code_digest(), "noise": noise},
        "rests_on": rests_on(replays.setup),
        "seeds": list(seeds),
        "figures": figures,
        "findings": list(findings),
    }


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def read_baseline(file: str | Path) -> Baseline:
    """The baseline in ``file``. ``InputError`` where it is none, or of another version."""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"--baseline {shown_path(file)}: no such file; --write-baseline {shown_path(file)} makes one")
    found = read_json(path)
    if found is None or found.get("schema") != SCHEMA:
        given = "no JSON document" if found is None else f"schema {shown(found.get('schema'))}"
        raise InputError(f"not a baseline: {given}", file=str(file), expected=f"schema {SCHEMA}, as --write-baseline writes it")
    try:
        figures, seeds = found["figures"], [int(seed) for seed in found["seeds"]]
        plain = {name: Figure(value=row["value"], n=row["n"], reason=row["reason"]) for name, row in figures.items()}
        draws = {seed: {name: Figure(value=row["draws"][at]) for name, row in figures.items()} for at, seed in enumerate(seeds)}
        return Baseline(file=str(file), rests_on=found["rests_on"], made_by=found["made_by"], plain=plain, draws=draws)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"a baseline that is not whole: {type(error).__name__} {shown(error)}", file=str(file)) from None


def mismatches(baseline: Baseline, setup: Setup, seeds: Sequence[int]) -> list[Mismatch]:
    """Every difference between what the baseline rests on and what is replayed here. A trace counts by its requests, a profile by
    its numbers, whatever they are called."""
    here, there = rests_on(setup), baseline.rests_on
    found = []
    for part, decides in (("trace", "digest"), ("profile", "digest"), ("engine", "version"), ("slo", None),
                          ("accept_degraded", None)):  # fmt: skip
        mine, theirs = here[part], there.get(part)
        if digest_of(_part(mine, decides)) != digest_of(_part(theirs, decides)):
            found.append(Mismatch(part=part, baseline=_words(theirs), here=_words(mine)))
    knobs = dict(there.get("policy") or {})
    for knob in differing(knobs, here["policy"]):
        if knob != "engine_version":
            before, after = knob_text(knobs.get(knob)), knob_text(here["policy"].get(knob))
            found.append(Mismatch(part=f"policy {knob}", baseline=before, here=after))
    if any(seed not in baseline.draws for seed in seeds):
        has = f"{min(baseline.draws)} to {max(baseline.draws)}" if baseline.draws else "none"
        found.append(Mismatch(part="seeds", baseline=has, here=f"{min(seeds)} to {max(seeds)}"))
    return found


def _part(value: Any, name: str | None) -> Any:
    return value.get(name) if name is not None and isinstance(value, Mapping) else value


def _words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "none" if value is None else shown(value, 200)
    named = [shown(value[name], 200) for name in ("name", "version", "digest") if value.get(name)]
    return " ".join(named) or shown(dict(value), 200)
