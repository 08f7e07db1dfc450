"""A table by column says what its rows say, however it is asked, and a spool is cut into columns exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.tables import TABLES, with_replica
from tracekit.columns import Columns, as_rows
from tracekit.diagnosis.run_data import LAYOUTS, tidy
from tracekit.store import SpoolSink, read_spool, spool_columns

LAYOUT = TABLES["iterations"]


def rows_of(count: int, layout: np.dtype[np.void] = LAYOUT, seed: int = 0) -> npt.NDArray[np.void]:
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, layout)
    for name in layout.names or ():
        rows[name] = rng.integers(0, 100, count)
    return rows


@given(st.integers(0, 40), st.data())
def test_parts_of_a_table_by_column_are_those_of_its_rows(count: int, data: st.DataObject) -> None:
    rows = rows_of(count)
    table = Columns.of(rows)
    low, high = data.draw(st.integers(-45, 45)), data.draw(st.integers(-45, 45))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    places = np.array(data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=5 if count else 0)), np.int64)
    for which in (slice(low, high), slice(None, None, 3), mask, places):
        part = table[which]
        assert len(part) == part.size == len(rows[which])
        assert np.array_equal(np.asarray(part), rows[which])
        assert np.array_equal(part["start_ns"], rows[which]["start_ns"])
        assert np.array_equal(part[1:]["waiting"], rows[which][1:]["waiting"])
    assert [row.item() for row in table] == rows.tolist()
    if count:
        assert table[count - 1].item() == rows[-1].item()
    with pytest.raises(ValueError, match="no field of name"):
        table["nothing"]


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 9000])
def test_a_spool_by_column_is_its_rows(tmp_path: Path, count: int) -> None:
    rows = rows_of(count, seed=count)
    sink = SpoolSink(tmp_path / "spool", {})
    sink.append("iterations", rows)
    sink.close()
    found = spool_columns(sink.folder, "iterations", (("start_ns", "duration_ns", "no column of it"),))
    assert len(found) == count and found.dtype == LAYOUT
    assert np.array_equal(np.asarray(found), read_spool(sink.folder, "iterations"))
    with (sink.folder / "iterations.rows").open("r+b") as file:
        file.truncate(count * LAYOUT.itemsize // 2)
    assert np.array_equal(found["duration_ns"], rows["duration_ns"])  # what was cut stays


@pytest.mark.parametrize("layout", [LAYOUT, with_replica(LAYOUT)])
def test_iterations_are_put_in_order(layout: np.dtype[np.void]) -> None:
    rows = rows_of(500, layout)
    found = tidy("iterations", rows)
    assert isinstance(found, Columns) and found.dtype == LAYOUTS["iterations"]
    wanted = np.zeros(500, LAYOUTS["iterations"])
    for name in layout.names or ():
        wanted[name] = rows[name]
    wanted = wanted[np.lexsort((wanted["iteration"], wanted["replica"]))]
    assert np.array_equal(np.asarray(found), wanted)
    again = tidy("iterations", as_rows(found))
    assert np.array_equal(np.asarray(again), wanted)
