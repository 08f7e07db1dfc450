"""Damaged files of every format: no error but ours, no hang, and every row accounted for."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.traces.mutate import mutant
from tests.traces.samples import samples
from tracekit.errors import InputError, TracekitError
from tracekit.traces.arrange import arrange
from tracekit.traces.formats import MODULES, ReadOptions, detect, format_named
from tracekit.traces.inputs import open_sources
from tracekit.traces.load import read_trace
from tracekit.traces.stage import Stage

TOTAL = 20_000
BY_SQL = ("azure2023", "azure2024", "burstgpt6", "burstgpt8", "inferencex", "vidur", "tenant_csv", "lengths_csv", "generic_csv",
          "generic_parquet")  # fmt: skip
"""Formats that DuckDB reads, all in one way: dearer by an order of magnitude, so they get fewer of the inputs."""
BY_SQL_EACH = 100
SECONDS_EACH = 10.0
SAMPLES = samples()


def _share(name: str) -> int:
    others = len(MODULES) - len(BY_SQL)
    return BY_SQL_EACH if name in BY_SQL else -(-(TOTAL - BY_SQL_EACH * len(BY_SQL)) // others)


@pytest.fixture(scope="module")
def stages() -> Iterator[list[Stage]]:
    """One stage for all inputs, replaced when a reader has left it half done."""
    held: list[Stage] = []
    yield held
    for stage in held:
        stage.__exit__()


def _fresh(stages: list[Stage]) -> Stage:
    while stages:
        stages.pop().__exit__()
    stage = Stage()
    stage.con.execute("SET threads = 1")
    stages.append(stage)
    return stage


def _is_one_line(error: TracekitError) -> None:
    assert str(error).isprintable(), "control characters in a message"


def _reconciles(stage: Stage) -> None:
    stage.flush()
    assert stage.read == stage.kept + stage.dropped.total()
    assert stage.one("SELECT count(*) FROM stage")[0] == stage.kept
    assert len(stage.rejects) <= 1000
    runs = stage.runs()
    if runs is not None:
        assert not len(runs[0]) or int(runs[0].max()) < stage.kept
        assert not len(runs[3]) or int(runs[3].min()) > 0


@pytest.mark.parametrize("name", MODULES)
def test_damaged_inputs_of(name: str, stages: list[Stage], tmp_path: Path) -> None:
    path = tmp_path / "input"
    stage = _fresh(stages)
    read = refused = 0
    for i in range(_share(name)):
        random = Random(f"{name}-{i}")
        path.write_bytes(mutant(random.choice(SAMPLES[name]), random))
        began = time.perf_counter()
        before = stage.read
        try:
            with open_sources(path) as sources:
                chosen = format_named(name) if i % 3 else detect(sources[0], mapped=False)[0]
                chosen.read(sources[0], stage, ReadOptions())
            read += 1
        except TracekitError as error:
            _is_one_line(error)
            refused += 1
            stage = _fresh(stages) if stage.read != before else stage
        except Exception as error:
            pytest.fail(f"input {i} of {name}: {type(error).__name__}: {error}")
        assert time.perf_counter() - began < SECONDS_EACH, f"input {i} of {name}"
        if i % 100 == 99:
            _reconciles(stage)
            _arranges(stage)
            stage = _fresh(stages)
    _reconciles(stage)
    assert read > 5, "mutations leave inputs readable"


def test_every_format_has_its_share() -> None:
    assert set(MODULES) == set(SAMPLES)
    assert sum(map(_share, MODULES)) >= TOTAL


def _arranges(stage: Stage) -> None:
    """What hundreds of damaged files left in one stage becomes a trace."""
    try:
        arranged = arrange(stage, "inputs")
    except InputError:
        return
    table = arranged.arrivals(0).read_all()
    assert table.num_rows == stage.kept
    arrival = table["arrival_ns"].to_numpy()
    assert (np.diff(arrival) >= 0).all()
    assert int(arrival[0]) == 0
    extras = arranged.extras(0)
    assert extras is None or extras.read_all().num_rows <= stage.kept


def test_damaged_files_through_the_whole_loader(tmp_path: Path) -> None:
    """The same from the file on: archives, detection, report."""
    path = tmp_path / "input"
    for i in range(150):
        random = Random(i)
        data = random.choice(SAMPLES[random.choice(MODULES)])
        packed = random.random() < 0.3
        path.write_bytes(mutant(gzip.compress(data), random) if packed else mutant(data, random))
        try:
            report = read_trace(path).report
        except TracekitError as error:
            _is_one_line(error)
            continue
        assert report.rows_read == report.rows_kept + sum(report.rows_dropped.values())
        reasons = {reject.reason for reject in report.rejects}
        assert sum(report.rows_dropped[reason] for reason in reasons) * 2 <= report.rows_read
