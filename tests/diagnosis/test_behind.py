"""One cause hides another: what is felt only without the first is told as well, with a change on top of the first one's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.cli.main import main
from tracekit.diagnosis import RunData
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import confirmed
from tracekit.diagnosis.proof import prove
from tracekit.generators.recipe import build_case
from tracekit.replay import replay
from tracekit.store import Store, sql

HELD = {**CHAT, "client": {"max_in_flight": 3}}
"""A client with three slots in front of an engine with four seats, where about ten are wanted."""


def test_seats_behind_a_client_that_holds_back(tmp_path: Path) -> None:
    data = RunData.replayed(setup_of_recipe(HELD, tmp_path, slo="ttft=700ms", sets=("max_num_seqs=4",)))
    bare = diagnose(data)
    assert [each.id for each in bare.findings] == ["CLIENT_LIMIT"]
    wide = prove(data, bare, workers=1, behind=False)
    assert [each.id for each in wide.findings] == ["CLIENT_LIMIT"]
    first, hidden = prove(data, bare, workers=1).findings[:2]
    assert hidden.id == "QUEUE_SEATS" and "client.max_in_flight" in hidden.what and "no longer hidden" in hidden.because
    slots = confirmed(first)
    assert slots is not None and first.excess_ns + hidden.excess_ns <= bare.excess_ns
    proof = confirmed(hidden)
    assert proof is not None and proof.change.sets[: len(slots.change.sets)] == slots.change.sets
    assert proof.change.knob == "max_num_seqs" and proof.change.sets[-1].startswith("max_num_seqs=")
    assert all(each.sets == slots.change.sets for each in hidden.evidence) and hidden.where.iterations == ()


def test_its_numbers_come_out_of_the_run_that_their_command_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(HELD), "utf-8")
    built, db = build_case(recipe, tmp_path / "built"), str(tmp_path / "t.duckdb")
    replay(str(built.trace), db=db, engine="sim", policy=str(built.policy), profile=str(built.profile), slo="ttft=700ms",
           sets=("max_num_seqs=4",), diagnose=False)  # fmt: skip
    assert main(["diagnose", "1", "--json", "--jobs", "1", "--db", db]) == 0
    first, hidden = json.loads(capsys.readouterr().out)["findings"][:2]
    assert {each["replay"] for each in first["evidence"]} == {None}
    (command,) = {each["replay"] for each in hidden["evidence"]}
    assert main([*shlex.split(command.format(run=1))[1:], "--db", db]) == 0
    asked = [each for each in hidden["evidence"] if each["sql"] is not None]
    assert {each["metric"] for each in asked} >= {"block[seats]", "kv max"}
    for each in asked:
        ((value,),) = sql(Store(db), each["sql"].format(run=2)).rows
        assert value == pytest.approx(each["value"], rel=1e-5), each["metric"]


def test_nothing_is_sought_where_the_change_leaves_nothing(tmp_path: Path) -> None:
    for name, slo in (("slo", "ttft=700ms"), ("none", None)):
        (tmp_path / name).mkdir()
        data = RunData.replayed(setup_of_recipe(CHAT, tmp_path / name, slo=slo))
        found = diagnose(data)
        assert prove(data, found, workers=1) == prove(data, found, workers=1, behind=False)
