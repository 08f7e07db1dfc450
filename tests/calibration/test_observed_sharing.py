"""What prompts begin alike with, which the trace does not tell: found by who lost their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.calibration.serving import SETS, Load, served
from tracekit.calibration.observed.errors import errors_of
from tracekit.calibration.observed.fit import ObservedFit, fit_observed, source_of
from tracekit.calibration.observed.limits import Limit
from tracekit.calibration.observed.report import profile_from, report_of
from tracekit.calibration.observed.settings import Known, known_settings
from tracekit.calibration.observed.shared_prefix import fitted_prefix
from tracekit.calibration.observed.terms import delivered_of
from tracekit.traces.load import read_trace
from tracekit.traces.said_prefix import Beginning

__all__: list[str] = []
KNOB = "trace.shared_prefix"
SMALL = ("max_num_seqs=256", "max_num_batched_tokens=1024", "max_model_len=3500", *SETS[4:])
CROWDED = Load(requests=120, gap_s=0.25, prompt=200.0, output=300.0)


def fitted(
    path: Path, planted: int, sets: tuple[str, ...], load: Load = CROWDED, told: tuple[str, ...] = ()
) -> tuple[Known, ObservedFit]:
    run = served(path, load, sets=(*sets, f"{KNOB}={planted}"))
    if load.output == CROWDED.output:
        assert run.preemptions > 5
    known = known_settings(None, (*sets, *told), None)
    return known, fit_observed(read_trace(str(path)), known, None)


def limit_of(found: ObservedFit) -> Limit | None:
    return next((limit for limit in found.limits if limit.knob == KNOB), None)


@pytest.mark.parametrize(("planted", "seed"), [(0, 5), (0, 6), (0, 7), (16, 5), (160, 5)])
def test_what_all_prompts_begin_with_is_found(tmp_path: Path, planted: int, seed: int) -> None:
    known, found = fitted(tmp_path / "t.jsonl", planted, (*SMALL, "num_gpu_blocks=400"), CROWDED._replace(seed=seed))
    limit = limit_of(found)
    assert limit is not None and limit.value == planted and found.shared_prefix == Beginning(planted)
    profile = profile_from(found, known, None, "t")
    assert profile.fit.get("shared_prefix", 0) == planted
    assert KNOB not in profile.fit["settings"]  # a fact of the trace: no policy takes it
    again = source_of(read_trace(str(tmp_path / "t.jsonl")), known)
    assert fitted_prefix(profile, again) == Beginning(planted)  # what a check and a diagnosis of the same trace take
    again.name = "another"
    assert not fitted_prefix(profile, again)
    rows = next(table for table in report_of(found, known, None, "t").tables if "settings" in table.title).rows
    assert [row[1] for row in rows if row[0] == KNOB] == [str(planted)]


@pytest.mark.parametrize(
    ("sets", "load", "told"),
    [
        ((*SMALL, "num_gpu_blocks=400"), CROWDED, (f"{KNOB}=0",)),
        ((*SMALL, "num_gpu_blocks=400", "enable_prefix_caching=false"), CROWDED, ()),
        ((*SMALL, "num_gpu_blocks=4000"), Load(requests=60, gap_s=0.25, prompt=200.0, output=60.0), ()),
    ],
    ids=["somebody says", "nothing is shared", "memory never full"],
)
def test_where_it_cannot_be_told_or_was_said_nothing_is_tried(
    tmp_path: Path, sets: tuple[str, ...], load: Load, told: tuple[str, ...]
) -> None:
    _, found = fitted(tmp_path / "t.jsonl", 0, sets, load, told)
    assert limit_of(found) is None and not found.shared_prefix


FIRST = 100
BUSY = ("max_num_seqs=256", "max_num_batched_tokens=1024", "max_model_len=9500", *SETS[4:], "num_gpu_blocks=1600")
LONGER = Load(requests=250, gap_s=0.1, prompt=400.0, output=250.0)


def first_fill(path: Path, load: Load) -> int:
    """How many requests have begun when memory is first full."""
    run = served(path, load, sets=BUSY)
    full = run.start[run.kv_used >= 0.97 * 1600][0]
    return int(((run.scheduled >= 0) & (run.scheduled <= full)).sum())


@pytest.mark.parametrize(("planted", "seed"), [(24, 1), (48, 2), (0, 1), (0, 2)])
def test_what_prompts_share_only_once_memory_has_been_full_is_found_and_tells_the_others(
    tmp_path: Path, planted: int, seed: int
) -> None:
    path, load = tmp_path / "t.jsonl", LONGER._replace(seed=seed)
    begun = first_fill(path, load)
    served(path, load, sets=(*BUSY, *((f"{KNOB}={planted}@{begun}",) if planted else ())))
    found, without = (_fitted_first(path, told) for told in ((), (f"{KNOB}=0",)))
    assert found.shared_prefix == (Beginning(planted, begun) if planted else Beginning())
    if planted:
        assert _each(found) < 0.5 * _each(without)
        profile = profile_from(found, known_settings(None, BUSY, None), None, "t")
        assert (profile.fit["shared_prefix"], profile.fit["shared_after"]) == (planted, begun)
        assert fitted_prefix(profile, source_of(read_trace(str(path)), known_settings(None, BUSY, None))) == found.shared_prefix
        assert f"--shared-prefix {planted}@{begun}" in " ".join(profile.fit["left_out"])


def _fitted_first(path: Path, told: tuple[str, ...]) -> ObservedFit:
    loaded = read_trace(str(path))
    used = np.arange(loaded.arrivals.num_rows) < FIRST
    return fit_observed(loaded, known_settings(None, (*BUSY, *told), None), None, used=used)


def _each(found: ObservedFit) -> float:
    """P90 of the error of E2E, request by request, over those that the fit did not look at."""
    best, seen = found.best, found.problem.seen
    errors = errors_of(seen, best.run, best.misfit.counting, delivered_of(best.vector), ~seen.used)
    return next(each.each_p90 for each in errors if each.metric == "e2e")
