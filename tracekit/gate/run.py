"""``gate``: what ``tracekit gate`` runs and what a notebook calls. Its verdict is in a file before the process ends, whatever
becomes of its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replay_engine.config import ConfigError
from tracekit import __version__
from tracekit.diagnosis.wording import headline
from tracekit.errors import TracekitError, UsageError, shown, shown_path
from tracekit.fingerprint import code_digest, rests_on
from tracekit.gate.baseline import Baseline, Mismatch, baseline_document, mismatches, read_baseline
from tracekit.gate.limits import Gate, parse_gates
from tracekit.gate.replays import Replays
from tracekit.gate.report import SCHEMA, junit_xml, markdown_of, text_of
from tracekit.gate.resampling import stretches_of
from tracekit.gate.subject import subject_of
from tracekit.gate.verdict import EXIT_CODES, MOST, Judgement, judge_gates, most_seeds, overall, seeds_of
from tracekit.jobs import Job
from tracekit.notify import error_line
from tracekit.store import Store
from tracekit.store.files import write_json
from tracekit.work_manifest import beside, input_file, write_work_manifest

if TYPE_CHECKING:
    import polars as pl

__all__ = ["GateReport", "gate"]

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The verdict (``passed``, ``failed``, ``inconclusive``), its exit code, the document (``gate.json``) and its text."""

    verdict: str
    exit_code: int
    document: dict[str, Any]
    text: str

    def gates(self) -> pl.DataFrame:
        """A row per gate: its verdict, the figure here and in the baseline, and the change with its 95 % interval."""
        import polars as pl

        names = ("gate", "status", "value", "base", "change", "low", "high", "scale", "draws", "why")
        rows = [{name: row[name] for name in names} for row in self.document["gates"]]
        return pl.DataFrame(rows, infer_schema_length=None)


def gate(
    inputs: str | Sequence[str], *, gates: Sequence[str] = (), baseline: str | Path | None = None, allow_mismatch: bool = False,
    write_baseline: str | Path | None = None, seeds: int = 5, gate_file: str | Path | None = "gate.json",
    junit: str | Path | None = None, github_summary: bool = False, profile: str | None = None,
    policy: str | None = None, sets: Sequence[str] = (), slo: str | None = None, goodput: str | None = None,
    window: str | None = None, warmup: str | None = None, limit: int | None = None, rate_scale: float = 1.0,
    where: str | None = None, thin: str | None = None, by: str | None = None, spread_ticks: bool = False,
    sessions: str | None = None, seed: int = 0, mapping: Sequence[str] = (), trace_format: str | None = None,
    arrival: str | None = None, cached: Literal["inside", "outside"] | None = None, on_error: str = "skip",
    max_dropped: str | float | None = None, dedupe: bool = False, accept_degraded: bool = False, replicas: int | None = None,
    pd: str | None = None, router: str | None = None, fail: Sequence[str] = (), slow: Sequence[str] = (),
    db: str | Path = "tracekit.duckdb", progress: Progress | None = None, say: Say | None = None,
) -> GateReport:  # fmt: skip
    """Hold a recorded run (its number, its name, ``last``) or a trace, replayed with the options of ``replay``, against limits.

    ``gates``: as ``ttft_p99<=2s``, ``tpot_p99<=+5%`` (against ``baseline``), ``no:OVERLOAD``. ``seeds``: draws of traffic and
    noise. The verdict is in ``gate_file`` before this returns or raises. Errors: ``UsageError``, ``InputError``, ``ConfigError``.
    """
    return _gated(locals())


def _gated(given: dict[str, Any]) -> GateReport:
    files = _Files(given)
    files.clear()
    try:
        if given["seeds"] < 2:
            raise UsageError(f"--seeds {given['seeds']}: expected at least 2, or there is nothing to measure the noise with")
        limits = parse_gates(given["gates"], baseline=given["baseline"] is not None)
        if not limits and given["write_baseline"] is None:
            raise UsageError("no --gate is given: nothing to hold the replay against; expected one, as --gate 'ttft_p99<=2s'")
        before = None if given["baseline"] is None else read_baseline(given["baseline"])
        store = Store(given["db"])
        job = Job.adopt() or Job.create(store.folder, "gate", {"argv": list(sys.orig_argv)})
        with job.accounted(interrupted="interrupted; nothing was gated"):
            report = _Work(given, limits, before, store, job).report()
        files.write(report.document)
        files.write_manifest(report.document)
        job.finish({"exit_code": report.exit_code})
    except (TracekitError, ConfigError) as error:
        code = error.exit_code if isinstance(error, TracekitError) else 2
        files.write(_failed(error_line(error), code))
        raise
    except Exception as error:
        files.write(_failed(f"internal error: {type(error).__name__}: {shown(error, 300)}", 5))
        raise
    return report


def _failed(error: str, code: int) -> dict[str, Any]:
    return {"schema": SCHEMA, "verdict": "error", "exit_code": code, "error": error, "gates": [], "notes": [], "diagnosis": "",
            "counts": {}, "findings": []}  # fmt: skip


class _Files:
    """Where the verdict goes besides the terminal."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._gate = None if given["gate_file"] is None else Path(given["gate_file"])
        self._junit = None if given["junit"] is None else Path(given["junit"])
        summary = os.environ.get(SUMMARY_VARIABLE) if given["github_summary"] else None
        self._summary = None if not summary else Path(summary)
        self._manifest = None if self._gate is None else beside(self._gate)
        self._given = given
        if given["github_summary"] and not summary and given["say"] is not None:
            given["say"](f"--github-summary: {SUMMARY_VARIABLE} is not set: this is no step of a GitHub job, nothing is written")

    def clear(self) -> None:
        """What an earlier gate left must not pass for this one's."""
        for path in (self._gate, self._junit, self._manifest):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise UsageError(f"{shown(str(path.parent), 400)}: no such folder; expected a file in an existing one")
            path.unlink(missing_ok=True)

    def write_manifest(self, document: dict[str, Any]) -> None:
        """What the verdict rests on, beside it."""
        if self._manifest is None:
            return
        given = self._given
        named = [given["inputs"]] if isinstance(given["inputs"], str) else list(given["inputs"])
        read = [*(("trace", name) for name in named), *((role, given[role]) for role in ("baseline", "policy", "profile"))]
        inputs = [input_file(role, name) for role, name in read if name is not None]
        write_work_manifest(self._manifest, "gate", given=given, rests_on=document["rests_on"], result=document, inputs=inputs)

    def write(self, document: dict[str, Any]) -> None:
        if self._gate is not None:
            write_json(self._gate, document)
        if self._junit is not None:
            self._junit.write_text(junit_xml(document, document["findings"]), encoding="utf-8")
        if self._summary is not None:
            with self._summary.open("a", encoding="utf-8") as file:
                file.write(markdown_of(document))


class _Work:
    """One gate's way from its subject to its document."""

    def __init__(self, given: dict[str, Any], limits: list[Gate], before: Baseline | None, store: Store, job: Job) -> None:
        self.given, self.limits, self.before, self.store, self.job = given, limits, before, store, job
        self.notes: list[str] = []
        self.done = 0
        again = 0 if given["write_baseline"] is None else MOST * given["seeds"]
        self.planned = 1 + given["seeds"] * (any(each.kind == "absolute" for each in limits) + bool(limits)) + again

    def report(self) -> GateReport:
        given = self.given
        setup = subject_of(self.store, {**given, "engine": "sim", "model": None, "events": "full", "name": None}, self._tell)
        first, other = seeds_of(given["seed"], given["seeds"])
        differ = [] if self.before is None else mismatches(self.before, setup, first + other)
        paired = self._allow(differ)
        full = given["write_baseline"] is not None or any(each.metric.startswith("itl") for each in self.limits)
        finding = any(each.kind == "finding" for each in self.limits)
        replays = Replays(setup, "gate", full=full, diagnosed=finding, told=self._told)
        found = judge_gates(self._fitting(paired), replays, self.before, given["seed"], given["seeds"], paired=paired)
        document = self._document(replays, found, differ)
        if given["write_baseline"] is not None:
            self._write_baseline(Path(given["write_baseline"]), replays, most_seeds(given["seed"], given["seeds"]), document)
        text = text_of(document)
        return GateReport(verdict=document["verdict"], exit_code=document["exit_code"], document=document, text=text)

    def _tell(self, line: str) -> None:
        if self.given["say"] is not None:
            self.given["say"](line)

    def _told(self) -> None:
        self.done += 1
        planned = max(self.planned, self.done)
        self.job.progress(self.done, planned, unit="replays")
        if self.given["progress"] is not None:
            self.given["progress"](self.done, planned, "")
        if self.job.cancelled():
            raise KeyboardInterrupt

    def _allow(self, differ: list[Mismatch]) -> bool:
        """Refuse a baseline of something else, unless that is wanted. Whether its draws are of the same traffic."""
        if differ and not self.given["allow_mismatch"]:
            more = f"; and {len(differ) - 1} more" if len(differ) > 1 else ""
            raise UsageError(f"--baseline {shown(str(self.given['baseline']), 200)}: {differ[0].text}{more}; --allow-mismatch"
                             " compares all the same, --write-baseline starts anew")  # fmt: skip
        self.notes += [f"not the baseline's {each.text} (allowed)" for each in differ]
        paired = not any(each.part in ("trace", "seeds") for each in differ)
        if not paired:
            self.notes.append(
                "the traffic is not the baseline's: changes are from one traffic to another, counts are not compared"
            )
        return paired

    def _fitting(self, paired: bool) -> list[Gate]:
        """Without what a baseline of other traffic implies: it has another number of requests."""
        return [each for each in self.limits if paired or not each.implied]

    def _document(self, replays: Replays, found: list[Judgement], differ: list[Mismatch]) -> dict[str, Any]:
        plain, verdict = replays.plain(), overall(found)
        if plain.state != "finished":
            self.notes.append(f"the replay ended early: {plain.state.replace('_', ' ')}")
        if stretches_of(replays.setup.source) is None:
            self.notes.append("too few requests to draw traffic from: draws differ by the noise of iterations only")
        noise = f"iterations with prefill {replays.sigma_prefill:.1%}, without {replays.sigma_decode:.1%} ({replays.noise_from})"
        self.notes.append(f"{self.given['seeds']} draws from seed {self.given['seed']}; noise of an iteration (sigma): {noise}")
        assert plain.diagnosis is not None
        statuses = [each.verdict.status for each in found]
        return {
            "schema": SCHEMA, "verdict": verdict, "exit_code": EXIT_CODES[verdict],
            "counts": {name: statuses.count(name) for name in EXIT_CODES}, "gates": [each.to_dict() for each in found],
            "notes": self.notes, "diagnosis": f"diagnosis: {headline(plain.diagnosis)}",
            "findings": [{"id": each.id, "what": each.what, "share": each.share} for each in plain.diagnosis.findings],
            "mismatches": [{"part": each.part, "baseline": each.baseline, "here": each.here} for each in differ],
            "rests_on": rests_on(replays.setup), "seeds": {"first": self.given["seed"], "draws": self.given["seeds"]},
            "made_by": {"tracekit": __version__, "code": code_digest()}, "state": plain.state,
            "figures": {name: {"value": each.value, "n": each.n, "reason": each.reason} for name, each in plain.figures.items()},
        }  # fmt: skip

    def _write_baseline(self, path: Path, done: Replays, seeds: list[int], document: dict[str, Any]) -> None:
        """Never over limits that were not kept: a baseline that follows every regression guards nothing."""
        verdict = document["verdict"]
        if verdict != "passed":
            self.notes.append(f"{shown_path(path)} is not written: the gate is {verdict}")
            return
        if not path.parent.is_dir():
            raise UsageError(f"--write-baseline {shown_path(path)}: no such folder; expected a file in an existing one")
        replays = Replays(done.setup, "baseline", full=True, told=self._told)
        findings = [each["id"] for each in document["findings"]]
        write_json(path, baseline_document(replays, seeds, done.plain().figures, findings))
        self.notes.append(f"baseline written: {shown_path(path)}, seeds {seeds[0]} to {seeds[-1]}; commit it")
