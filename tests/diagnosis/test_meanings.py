"""Every number that a finding may rest on has words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit.diagnosis.detect
from tracekit.diagnosis.meanings import meaning_of
from tracekit.diagnosis.parts import FAMILIES
from tracekit.diagnosis.signals import SIGNALS

DETECTORS = sorted(Path(tracekit.diagnosis.detect.__file__).parent.glob("*.py"))


def named(path: Path) -> Iterator[str]:
    """The names that a module gives its numbers, as far as they are written out."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fact":
            yield from (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant) and len(each.value) > 6)


def test_all_numbers_have_words() -> None:
    found = {name for path in DETECTORS for name in named(path)}
    assert len(found) > 20
    wanted = {*SIGNALS, *found, "q_share95", *(f"slope[{k}]" for k in range(1, 5)), "P busy", "D busy"} - {"slope["}
    assert sorted(name for name in wanted if not meaning_of(name)) == []


@pytest.mark.parametrize("name", ["", "block[none]", "stage[x]", "no such number", "busy"])
def test_an_unknown_number_has_none(name: str) -> None:
    assert meaning_of(name) == ""


def test_a_limit_says_what_was_short() -> None:
    said = {name: meaning_of(f"block[{name}]") for name in FAMILIES}
    assert len(set(said.values())) == len(FAMILIES)
    assert "KV blocks" in said["kv"] and "token budget" in said["budget"]
