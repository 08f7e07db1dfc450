"""Planted faults: the drawing knows of no diagnosis, a draw is a fault indeed, and what is counted is what was said."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from benchmarks.planted import examined, scores
from benchmarks.planted_draws import FAULTY, HEALTHY, draw_planted
from benchmarks.planted_faults import FAULTS, NAMES, SINGLE_ENGINE, plant
from benchmarks.planted_loads import KINDS, draw_load
from benchmarks.planted_replay import setup_of
from tracekit.diagnosis.wording import title

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("module", ["planted_loads", "planted_faults", "planted_draws", "planted_replay"])
def test_the_drawing_knows_of_no_diagnosis(module: str) -> None:
    tree = ast.parse((BENCHMARKS / f"{module}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else (
            [each.name for each in node.names] if isinstance(node, ast.Import) else [])  # fmt: skip
        assert not [name for name in names if "diagnosis" in name or name == "benchmarks.planted"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_its_service_and_is_one(fault: str) -> None:
    kinds, _ = FAULTS[fault]
    assert set(kinds) <= set(KINDS) and NAMES[fault]
    load = draw_load(np.random.Generator(np.random.PCG64(5)), kinds[0])
    before = repr(load.recipe)
    planted = plant(np.random.Generator(np.random.PCG64(6)), load, load.recipe, fault)
    assert repr(load.recipe) == before
    setup_of(load.recipe, None)
    if planted != load.recipe:  # one prefill engine cannot be routed to unfairly
        assert setup_of(planted, None).source.total > 0
    else:
        assert fault == "weighted prefill router"


def test_names_are_those_of_findings() -> None:
    assert set(NAMES) == set(FAULTS) and set(SINGLE_ENGINE) <= set(FAULTS)
    assert all(title(name) != name for names in NAMES.values() for name in names)


def test_a_draw_is_kept_only_if_the_fault_makes_the_misses() -> None:
    one, again = draw_planted(3, 1, "client limit"), draw_planted(3, 1, "client limit")
    assert one.recipe == again.recipe and one.misses == again.misses
    assert one.misses >= FAULTY and one.healthy_misses <= HEALTHY and one.run.misses == one.misses


def test_one_is_examined() -> None:
    row = examined("single", 3, "client limit")
    assert row["faults"] == ["client limit"] and row["right_first"] == (row["names"][:1] == ["CLIENT_LIMIT"])
    assert "planted: client limit" in row["text"] and row["headline"] in row["text"]
    assert row["right_first"] and row["confirmed"][0]["better"]


def test_what_is_counted() -> None:
    rows = [
        {"kind": "single", "faults": ["few seats"], "names": ["QUEUE_SEATS"], "right_first": True, "all_named": True,
         "discarded": 2, "confirmed": [{"id": "QUEUE_SEATS", "better": True}]},
        {"kind": "single", "faults": ["burst"], "names": [], "right_first": False, "all_named": False, "discarded": 0,
         "confirmed": []},
        {"kind": "double", "faults": ["few seats", "burst"], "names": ["BURST"], "right_first": True, "all_named": False,
         "discarded": 1, "confirmed": [{"id": "BURST", "better": False}]},
        {"kind": "healthy", "faults": [], "names": [], "right_first": True, "all_named": True, "discarded": 0, "confirmed": []},
    ]  # fmt: skip
    found = scores(rows)
    shares = {name: (each["share"], each["n"]) for name, each in found["scores"].items()}
    assert shares == {"right first": (0.6667, 3), "both named": (0.0, 1), "silent": (1.0, 1), "still better": (0.5, 2)}
    assert found["by fault"]["burst"] == {"n": 1, "right first": 0, "said instead": {"nothing": 1}}
    assert found["right cause confirmed by replay"] == {"share": 0.5, "n": 2} and found["discarded draws"] == 3
