"""The cases of trouble as somebody would have observed them: relabelled, shuffled, exported as plain CSV, diagnosed from that.

    python -m benchmarks.cases_observed FILE.md [--case D01 ...]

Each case is told three times: by its latencies alone; with the settings an operator knows (seats, KV blocks); and with all
settings and the profile, replayed beside. Right is a cause that the file expects, or, where it expects none, that nothing waits.
``cannot tell, because`` is no error; a cause that is not the case's is. Exit code 1 where one is named.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.case_file import parse_cases
from benchmarks.case_setups import built_setup
from replay_engine.policy import Policy
from tracekit.diagnosis.observed_run import ObservedReport, diagnose_trace
from tracekit.diagnosis.observed_text import observed_headline
from tracekit.diagnosis.run_data import RunData
from tracekit.errors import TracekitError
from tracekit.generators.recipe import build_case

__all__ = ["WAYS", "export_observed", "main", "observed_reports", "scored"]

WAYS = ("alone", "with settings", "beside a replay")


def observed_reports(recipe: Path, folder: Path) -> dict[str, ObservedReport]:
    """What each of ``WAYS`` says of a recipe, which is built in ``folder``. Errors: ``TracekitError`` of the recipe."""
    built = build_case(recipe, folder / "built")
    data = RunData.replayed(built_setup(built, "base"))
    trace = export_observed(data, folder / "seen.csv")
    told = {"alone": diagnose_trace(str(trace)), "with settings": diagnose_trace(str(trace), sets=_settings(data.policy))}
    beside = diagnose_trace(str(trace), policy=str(built.policy), profile=str(built.profile), prove_iterations=None)
    return told | {"beside a replay": beside}


def export_observed(data: RunData, path: Path, seed: int = 0) -> Path:
    """What a gateway would have logged of a run: arrival, lengths, queue time, TTFT, E2E, and the priority where there are some.
    Rows stand in the order of ends, and labels mean nothing."""
    rows, source = data.outcomes, data.source
    labels = np.random.default_rng(seed).permutation(len(rows))
    order = np.argsort(rows["last_token_ns"], kind="stable")
    priority = source.priority if source.priority is not None and len(np.unique(source.priority)) > 1 else None
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        head = ["request_id", "arrival_s", "input_tokens", "output_tokens", "queue_time_s", "ttft_s", "e2e_s"]
        out.writerow([*head, "priority"] if priority is not None else head)
        for k in order.tolist():
            row = rows[k]
            moments = [f"{row[name] / 1e9:.6f}" if row[name] >= 0 else "" for name in ("queue_ns", "ttft_ns", "e2e_ns")]
            line = [f"q{labels[k]}", f"{row['arrival_ns'] / 1e9:.6f}", row["prompt_tokens"], row["output_tokens"], *moments]
            out.writerow([*line, int(priority[row["request"]])] if priority is not None else line)
    return path


def _settings(policy: Policy) -> tuple[str, ...]:
    """What an operator would say of the engine."""
    config = policy.scheduler
    return (f"max_num_seqs={config.max_num_seqs}", f"num_gpu_blocks={config.num_gpu_blocks}", f"block_size={config.block_size}",
            f"max_model_len={config.max_model_len}", f"max_num_batched_tokens={config.max_num_batched_tokens}")  # fmt: skip


def scored(report: ObservedReport, expected: tuple[str, ...]) -> str:
    """``right``, ``cannot tell`` or ``WRONG``. ``expected``: the causes of the case, ``NONE`` for none."""
    named = [each.id for each in report.diagnosis.findings]
    roots = [each.id for each in report.diagnosis.findings if each.under is None]
    if named:
        return "right" if named[0] in expected and set(roots) <= set(expected) else "WRONG"
    said = observed_headline(report)
    if "nothing is wrong" in said or "no limit binds there" in said:
        return "right" if "NONE" in expected else "cannot tell" if "no limit binds there" in said else "WRONG"
    return "cannot tell"


def main(argv: list[str] | None = None) -> int:
    """Every case of a file."""
    parser = argparse.ArgumentParser(prog="benchmarks.cases_observed", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("file", type=Path)
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    options = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    for case in parse_cases(options.file.read_text(encoding="utf-8")):
        if options.case and case.name not in options.case:
            continue
        with TemporaryDirectory() as folder:
            recipe = Path(folder) / f"{case.name}.yaml"
            recipe.write_text(case.recipe, encoding="utf-8")
            try:
                told = observed_reports(recipe, Path(folder))
            except TracekitError as error:
                print(f"{case.name}: {error}")
                counts["any", "WRONG"] += 1
                continue
        for way, report in told.items():
            score = scored(report, case.ids)
            counts[way, score] += 1
            print(f"{case.name} {way:16} {score:12} expected {', '.join(case.ids)}: {observed_headline(report)}")
    for way in WAYS:
        print(f"{way}: " + ", ".join(f"{counts[way, score]} {score}" for score in ("right", "cannot tell", "WRONG")))
    return int(not counts or any(counts[key] for key in counts if key[1] == "WRONG"))


if __name__ == "__main__":
    sys.exit(main())
