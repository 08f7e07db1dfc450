"""A trace that was loaded is fitted by its name, whatever its columns are called, by the clock that somebody names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from replay_engine.profile import Profile, load_profile
from tests.calibration.serving import PLANTED, SETS, Load, served
from tests.calibration.test_outside_terms import MAPPED, WAY, at_the_client
from tracekit.calibration.observed.settings import said_of
from tracekit.calibration.observed.shared_prefix import fitted_on
from tracekit.cli.main import main
from tracekit.diagnosis.observed_run import diagnose_trace
from tracekit.errors import UsageError
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

KNOWN = [word for each in SETS for word in ("--set", each)]


def fitted(arguments: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> Profile:
    assert main(["calibrate", *arguments, *KNOWN, "--out", str(out), "--json"]) == 0
    capsys.readouterr()
    return load_profile(out)


def test_by_its_name_as_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, db = tmp_path / "served.jsonl", str(tmp_path / "db.duckdb")
    served(file, Load(requests=60))
    assert main(["load", str(file), "--name", "mine", "--db", db]) == 0
    from_file = fitted([str(file)], tmp_path / "f.toml", capsys)
    by_name = fitted(["mine", "--db", db], tmp_path / "n.toml", capsys)
    assert by_name.latency == from_file.latency
    assert by_name.fit == from_file.fit
    assert by_name.name == "mine-observed"


def test_columns_of_any_name_and_the_clock_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway's own columns, mapped when the trace is loaded: the way back to the client is fitted as planted. Where nobody
    says whose clock it was, that is said, and the way back is none."""
    engine, db = tmp_path / "engine.jsonl", str(tmp_path / "db.duckdb")
    run = served(engine, Load(requests=240, output=60.0))
    file = at_the_client(tmp_path, run, read_trace(str(engine)))
    assert main(["load", str(file), "--name", "mine", "--db", db, *(word for each in MAPPED for word in ("--map", each))]) == 0
    told = fitted(["mine", "--db", db, "--set", "trace.clock=gateway"], tmp_path / "told.toml", capsys)
    assert told.fit["egress_ns"] == pytest.approx(WAY.after, rel=0.1)
    assert told.latency.floor_ns == pytest.approx(PLANTED.floor_ns, rel=0.05)
    assert "(gateway clock)" in told.provenance["kind"]
    silent = fitted(["mine", "--db", db], tmp_path / "silent.toml", capsys)
    assert silent.fit["egress_ns"] == 0
    assert any(line.startswith("egress is 0: nobody said whose clock it was") for line in silent.fit["left_out"])
    assert main(["calibrate", "mine", "--check", str(tmp_path / "told.toml"), "--db", db, "--set", "trace.clock=gateway"]) == 0
    out = capsys.readouterr().out
    assert "verdict: good for milliseconds" in out and "observed latencies are by the gateway's clock" in out


def test_a_clock_that_is_none_and_a_name_of_two_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"trace\.clock=mine: expected one of server, gateway, client"):
        said_of(["trace.clock=mine"])
    file, db = tmp_path / "served.jsonl", str(tmp_path / "db.duckdb")
    served(file, Load(requests=30))
    assert main(["load", str(file), "--name", "both", "--db", db]) == 0
    assert main(["replay", "both", "--engine", "sim", "--name", "both", "--db", db]) == 0
    capsys.readouterr()
    assert main(["calibrate", "both", "--db", db, "--json"]) == 2
    assert "expected --as latencies or --as run" in json.loads(capsys.readouterr().out)["error"]
    for kind in ("run", "latencies"):
        assert main(["calibrate", "both", "--db", db, "--as", kind, "--json"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("name", ["a", "by", "the latencies", "mine", "identified", "mine, 1"])
def test_a_profile_was_fitted_on_a_trace_of_the_whole_name_only(name: str, tmp_path: Path) -> None:
    """A trace called "a" is in every sentence: no check of it is a same-run check for that."""
    file = tmp_path / "served.jsonl"
    served(file, Load(requests=12))
    source = TraceSource.from_loaded(read_trace(str(file), name=name))
    profile = load_profile("h100")
    assert not fitted_on(profile, source)
    other = replace(profile, provenance={"floor_ns": "identified by the latencies of mine too: profile h100, 1 to 2"})
    assert not fitted_on(other, source)
    own = replace(profile, provenance={"floor_ns": f"weak by the latencies of {name}, 1 to 2", "b_ns": "published"})
    assert fitted_on(own, source)


def test_its_diagnosis_takes_the_clock_that_is_said_and_a_database_without_traces_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, db = tmp_path / "served.jsonl", tmp_path / "db.duckdb"
    served(file, Load(requests=60))
    assert main(["load", str(file), "--name", "mine", "--db", str(db)]) == 0
    asked = (("mine", db, ("trace.clock=client",)), ("mine", db, ()), (str(file), db, ("trace.clock=gateway",)))
    assert [diagnose_trace(each, sets=sets, db=where).clock for each, where, sets in asked] == ["client", "server", "gateway"]
    empty = tmp_path / "empty.duckdb"
    duckdb.connect(str(empty)).close()
    (tmp_path / "p.toml").write_text(Profile(name="p", latency=PLANTED, synthetic=True).to_toml())
    for arguments in (["calibrate", "mine", "--check", str(tmp_path / "p.toml")], ["diagnose", "mine", "--observed"],
                      ["describe", "mine"], ["replay", "mine"]):  # fmt: skip
        capsys.readouterr()
        assert main([*arguments, "--db", str(empty)]) == 3
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tracekit: ")]
        assert len(told) == 1 and "mine: no such file" in told[0]
