"""One cause hides another: what is felt only without the first is told as well, with a change on top of the first one's."""

from __future__ import annotations

from pathlib import Path

from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import confirmed
from tracekit.diagnosis.proof import prove

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
    assert all(each.sql is None for each in hidden.evidence) and hidden.where.iterations == ()


def test_nothing_is_sought_where_the_change_leaves_nothing(tmp_path: Path) -> None:
    for name, slo in (("slo", "ttft=700ms"), ("none", None)):
        (tmp_path / name).mkdir()
        data = RunData.replayed(setup_of_recipe(CHAT, tmp_path / name, slo=slo))
        found = diagnose(data)
        assert prove(data, found, workers=1) == prove(data, found, workers=1, behind=False)
