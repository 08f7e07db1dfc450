"""A beginning that all prompts share, which the trace does not tell: found by who lost their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibration.serving import SETS, Load, served
from tracekit.calibration.observed.fit import ObservedFit, fit_observed, source_of
from tracekit.calibration.observed.limits import Limit
from tracekit.calibration.observed.report import profile_from, report_of
from tracekit.calibration.observed.settings import Known, known_settings
from tracekit.calibration.observed.shared_prefix import fitted_prefix
from tracekit.traces.load import read_trace

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
    assert limit is not None and limit.value == found.shared_prefix == planted
    profile = profile_from(found, known, None, "t")
    assert profile.fit.get("shared_prefix", 0) == planted
    assert KNOB not in profile.fit["settings"]  # a fact of the trace: no policy takes it
    again = source_of(read_trace(str(tmp_path / "t.jsonl")), known)
    assert fitted_prefix(profile, again) == planted  # what a check and a diagnosis of the same trace take
    again.name = "another"
    assert fitted_prefix(profile, again) == 0
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
    assert limit_of(found) is None and found.shared_prefix == 0
