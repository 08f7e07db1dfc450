"""The Experiments page by value: a real experiment over two traces, held against its own document."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dashboards.experiment_rows import holds_of, moves_of, read_experiment, read_experiments, series_of
from dashboards.interval_figure import Whisker, interval_figure
from dashboards.pages import experiments
from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.experiments import experiment
from tracekit.store import Store


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RunBook:
    folder = tmp_path_factory.mktemp("experiments")
    traces = []
    for name, arrival, prompt in (("bursts", "gamma:rate=8,cv=2", 2500), ("a.light", "poisson:rate=6", 300)):
        traces.append(str(folder / f"{name}.jsonl"))
        assert main(["synth", traces[-1], "--requests", "120", "--arrival", arrival, "--input",
                     f"lognormal:median={prompt},sigma=0.7", "--output",
                     "lognormal:median=40,sigma=0.5", "--seed", "2"]) == 0  # fmt: skip
    experiment(traces, vary="max_num_seqs=64,16,4", slo="ttft=1s,stall=60ms", windows=3, jobs=1, db=folder / "t.duckdb")
    return RunBook(folder / "t.duckdb")


def test_the_list_and_the_latest(book: RunBook) -> None:
    (row,) = read_experiments(book)
    assert (row.number, row.factor, row.levels, row.traces) == (1, "max_num_seqs", ("64", "16", "4"), ("bursts", "a.light"))
    assert read_experiment(book, None)["experiment"] == read_experiment(book, 1)["experiment"] == 1
    with pytest.raises(UsageError, match="experiment 7: no such experiment"):
        read_experiment(book, 7)


def test_moves_holds_and_windows_are_the_document_s(book: RunBook) -> None:
    document = read_experiment(book, 1)
    moves = moves_of(document)
    assert len(moves) == document["confidence"]["comparisons"] == len(document["changes"])
    for move, row in zip(moves, document["changes"], strict=True):
        assert (move.level, move.trace, move.measure, move.verdict) == (
            row["level"],
            row["trace"],
            row["measure"],
            row["verdict"],
        )
        assert (move.estimate, move.low, move.high) == tuple(row["interval"][name] for name in ("estimate", "low", "high"))
    for held, row in zip(holds_of(document), document["across"], strict=True):
        assert held.holds == row["holds"]
        assert {verdict: len(names) for verdict, names in held.where} == {
            verdict: len(at) for verdict, at in row["where"].items()
        }
    bursts, light = series_of(document)
    assert (bursts.trace, light.trace, bursts.windows) == ("bursts", "a.light", 3)
    own = [row for row in document["replays"] if (row["trace"], row["level"]) == (0, 2)]
    values = [row["figures"]["goodput"]["value"] for row in sorted(own, key=lambda row: row["window"])]
    assert list(bursts.levels[2][1]) == values


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page(book: RunBook, theme: str) -> None:
    options, value, said, error, body = experiments.render(book, "?exp=1", theme)
    assert value == 1 and error == "" and options[0]["label"].startswith("experiment 1 · max_num_seqs = 64, 16, 4")
    assert len(said) == 2
    text = json.dumps(body, default=lambda each: each.to_plotly_json())
    for name in ("ex-windows-0", "ex-windows-1", "ex-level-1", "ex-level-2"):
        assert f'"{name}"' in text
    assert "NaN" not in text and "Where it holds" in text
    assert "no such experiment" in experiments.render(book, "?exp=9", theme)[3]


def test_none_yet(store: Store) -> None:
    assert "no experiment yet" in experiments.render(RunBook(store.path), "", "light")[3]


def test_intervals_are_drawn_as_they_are(tmp_path: Path) -> None:
    rows = [
        Whisker("a", 0.5, 0.25, 1.0, "better"),
        Whisker("b", -0.5, -0.75, -0.1, "worse"),
        Whisker("c", 0.0, None, None, "same"),
    ]
    for theme in (LIGHT, DARK):
        percent, ratio = interval_figure(rows, theme, "x"), interval_figure(rows, theme, "x", ratio=True)
        better, worse, other = ratio["data"]
        np.testing.assert_allclose(
            [better["x"][0], better["error_x"]["array"][0], better["error_x"]["arrayminus"][0]], [1.5, 0.5, 0.25]
        )
        np.testing.assert_allclose([worse["x"][0], worse["error_x"]["arrayminus"][0]], [0.5, 0.25])
        assert other["error_x"]["array"] == [0.0] and other["marker"]["symbol"] == "circle-open"
        assert [trace["x"][0] for trace in percent["data"]] == [50.0, -50.0, 0.0]
        assert ratio["layout"]["xaxis"]["type"] == "log"
