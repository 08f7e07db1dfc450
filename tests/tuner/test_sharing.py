"""What workers share: claims under the worst interleaving, and traces that are read the same from memory as from the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState

from tests.traces.samples import samples
from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.store import Store
from tracekit.store.files import read_json
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tuner import tune
from tuner.claims import FileClaims
from tuner.plan import TunePlan
from tuner.shipping import ShippedTraces, pack_traces
from tuner.study import TuneStudy, open_study


class Interrupted(FileClaims):
    """Claims before which something else happens once."""

    def __init__(self, folder: Path, before: Callable[[], None]) -> None:
        super().__init__(folder)
        self._before: Callable[[], None] | None = before

    def take(self, trial: int) -> bool:
        before, self._before = self._before, None
        if before is not None:
            before()
        return super().take(trial)


@pytest.fixture
def planned(bursts: str, tmp_path: Path) -> tuple[TunePlan, Path]:
    """A study that nobody has begun."""
    tune(bursts, slo="stall=60ms", windows=2, holdout=0, workers=1, dry_run=True, db=tmp_path / "a.duckdb")
    (folder,) = (Store(tmp_path / "a.duckdb").folder / "tune").iterdir()
    document = read_json(folder / "plan.json")
    assert document is not None
    return TunePlan.from_dict(document), folder


def test_a_trial_told_while_another_looks_for_orphans_is_not_taken_over(planned: tuple[TunePlan, Path]) -> None:
    """One lists the trials under way; another tells its own and lets go of it; only then does the first try to take it."""
    plan, folder = planned
    one = open_study(plan, folder, None)
    one.first()
    asked = one.ask(9)
    assert asked is not None

    def tells() -> None:
        one.tell(asked, [1.0])

    two = TuneStudy(open_study(plan, folder, None).study, plan, Interrupted(folder / "claims", tells))
    other = two.ask(9)
    assert other is not None and other.number != asked.number
    assert one.study.trials[asked.number].state == TrialState.COMPLETE
    assert two.under_way() == 1


def test_whoever_dies_is_replaced_and_whoever_lives_is_not(planned: tuple[TunePlan, Path]) -> None:
    plan, folder = planned
    one, two, three = (open_study(plan, folder, None) for _ in range(3))
    one.first()
    asked = one.ask(9)
    assert asked is not None and two.orphan() is None and two.under_way() == 1
    for file in one._claims._held.values():  # type: ignore[attr-defined]
        file.close()  # as the operating system does when a process ends
    orphan = two.orphan()
    assert orphan is not None and (orphan.number, orphan.point) == (asked.number, asked.point)
    assert three.orphan() is None and three.under_way() == 1


def test_many_at_once_never_have_the_same_trial(planned: tuple[TunePlan, Path]) -> None:
    plan, folder = planned
    studies = [open_study(plan, folder, None) for _ in range(4)]
    studies[0].first()
    numbers: list[int] = []

    def works(study: TuneStudy) -> None:
        while (asked := study.ask(24)) is not None:
            numbers.append(asked.number)
            study.tell(asked, [float(asked.number)])

    threads = [threading.Thread(target=works, args=(study,)) for study in studies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(24))
    assert not studies[0].under_way()


SLICES = [
    Slice(), Slice(limit=2), Slice(where="output_tokens > 3"), Slice(thin=(1, 2), seed=3), Slice(rate_scale=2.5),
    Slice(window_ns=(0, 10**15), lead_in_ns=10**9), Slice(sessions="start_together"),
]  # fmt: skip


def same(one: TraceSource, other: TraceSource) -> None:
    """Every attribute, to the last bit."""
    assert set(vars(one)) == set(vars(other))
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            assert value.dtype == vars(other)[name].dtype and np.array_equal(value, vars(other)[name]), name
        else:
            assert value == vars(other)[name], name


def test_a_trace_is_the_same_from_memory_as_from_the_database(tmp_path: Path) -> None:
    """Every third format, whole and in parts: sessions, prefix runs, tenants. What was not sent is not there."""
    store = Store(tmp_path / "a.duckdb")
    numbers = []
    for name, files in list(samples().items())[::3]:
        for at, text in enumerate(files[:2]):
            path = tmp_path / f"{name}{at}.{'parquet' if name.endswith('parquet') else 'txt'}"
            path.write_bytes(text)
            try:
                with store.write("load a trace") as con:
                    numbers.append(load_trace(con, [str(path)], fmt=name).trace)
            except InputError:
                with store.write("load a trace") as con:  # lengths only
                    numbers.append(load_trace(con, [str(path)], fmt=name, arrival="poisson:rate=5").trace)
    sent = [number for number in numbers if number is not None]
    kept = sent[1:]
    shipped = ShippedTraces(pack_traces(store, [*kept, kept[0]]))
    compared = 0
    with store.read() as con, shipped.read() as there:
        for number in kept:
            for part in SLICES:
                found = []
                for each in (con, there):
                    try:
                        found.append(TraceSource.from_database(each, number, part))
                    except TracekitError as error:
                        found.append(str(error))
                if isinstance(found[0], str):
                    assert found[0] == found[1]
                else:
                    same(*found)
                    compared += 1
        with pytest.raises(UsageError, match="not in this database"):
            TraceSource.from_database(there, sent[0])
    assert compared > 3 * len(kept)
