"""``load --shared-prefix``: a beginning that all prompts share, said of a trace that has no block hashes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from replay_engine.policy import build_policy
from replay_engine.profile import load_profile
from tracekit.calibration.observed.replays import Replayer
from tracekit.calibration.observed.shared_prefix import begin_alike
from tracekit.cli.main import main
from tracekit.store import Store
from tracekit.traces.said_prefix import Beginning
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

__all__: list[str] = []
PROMPTS = [5, 16, 40, 90, 100, 130, 400, 33]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"arrival_s": k / 50, "input_tokens": n, "output_tokens": 30} for k, n in enumerate(PROMPTS * 5)]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))  # sorted by the loader


def loaded(name: str) -> TraceSource:
    with Store("tracekit.duckdb").read() as con:
        number = con.execute("SELECT trace FROM traces WHERE name = ?", [name]).fetchall()[0][0]
        return TraceSource.from_database(con, number, Slice())


@pytest.mark.parametrize("tokens", [16, 100, 1000])
def test_every_prompt_has_whole_blocks_of_it_and_a_replay_shares_them(tokens: int) -> None:
    assert main(["load", "t.jsonl", "--name", "plain"]) == 0
    assert main(["load", "t.jsonl", "--shared-prefix", str(tokens), "--name", "alike"]) == 0
    there, plain = loaded("alike"), loaded("plain")
    assert plain.run_offsets is None and there.run_offsets is not None
    lengths = np.zeros(there.total, np.int64)
    lengths[np.diff(there.run_offsets) > 0] = there.run_len
    assert (lengths == np.minimum(there.prompt_tokens, tokens) // 16).all() and (there.shared_blocks == lengths).all()
    begin_alike(plain, Beginning(tokens), 16)  # what a fit takes for the same
    profile = load_profile("h100")
    policy = build_policy(profile, None, ("num_gpu_blocks=60", "max_num_seqs=64", "max_model_len=900"))
    one, other = (Replayer(source, policy).run(profile.latency) for source in (there, plain))
    assert (one.last == other.last).all() and (one.kv_used == other.kv_used).all()
    apart = Replayer(loaded("plain"), policy).run(profile.latency)
    assert int(apart.waiting.sum()) > int(one.waiting.sum())


@pytest.mark.parametrize(("tokens", "after"), [(24, 3), (5, 12), (100, 20), (16, 400)])
def test_a_mean_after_the_first_requests_comes_out_and_nobody_before_has_any(tokens: int, after: int) -> None:
    assert main(["load", "t.jsonl", "--name", "plain"]) == 0
    assert main(["load", "t.jsonl", "--shared-prefix", f"{tokens}@{after}", "--name", "some"]) == 0
    there, plain = loaded("some"), loaded("plain")
    begin_alike(plain, Beginning(tokens, after), 16)  # what a fit takes for the same
    lengths = [np.zeros(source.total, np.int64) for source in (there, plain)]
    for length, source in zip(lengths, (there, plain), strict=True):
        if source.run_offsets is not None and source.run_len is not None:
            length[np.diff(source.run_offsets) > 0] = source.run_len
    assert (lengths[0] == lengths[1]).all() and not lengths[0][:after].any()
    long = there.prompt_tokens[after:] // 16 > tokens // 16  # the others lie in it whole
    assert (lengths[0][after:][~long] <= there.prompt_tokens[after:][~long] // 16).all()
    given = Beginning(tokens, after).blocks(np.full(1000, 4000, np.int64), 16)
    assert given.sum() * 16 == pytest.approx(tokens * (1000 - after), abs=16) and np.ptp(given[after:]) <= 1


def test_read_otherwise_it_is_another_trace(capfd: pytest.CaptureFixture[str]) -> None:
    for said in ("", "64", "128", "79", "64@5"):
        assert main(["load", "t.jsonl", *(["--shared-prefix", said] if said else []), "--json"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.replace("}\n{", "}\n\n{").split("\n\n") if line.strip()]
    assert [each["trace"] for each in found] == [1, 2, 3, 2, 4]
    assert "begin with the same 64 tokens" in " ".join(found[1]["warnings"])


def test_what_cannot_be_said_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    row = {"arrival_s": 0.5, "input_tokens": 40, "output_tokens": 3, "hash_ids": [1, 2, 3], "block_tokens": 16}
    Path("h.jsonl").write_text(json.dumps(row) + "\n")
    for args, words in (
        (["load", "h.jsonl", "--shared-prefix", "64"], "h.jsonl says itself which blocks prompts share; expected it left out"),
        (["load", "t.jsonl", "--shared-prefix", "15"], "whole blocks are shared; expected 16 tokens or more"),
        (["load", "t.jsonl", "--shared-prefix", "0@7"], "whole blocks are shared; expected 16 tokens or more"),
        *((["load", "t.jsonl", "--shared-prefix", said], f"--shared-prefix {said}: expected a whole number of tokens, or TOKENS@")
          for said in ("many", "16@", "16@0", "@4", "-16", "1.5", "16@4@5", "9999999999")),
        (["replay", "t.jsonl", "--set", "trace.shared_prefix=64"], "tracekit load FILE --shared-prefix N"),
    ):
        assert main(args) == 2
        err = capfd.readouterr().err
        assert words in err and err.count("\n") == 1
    assert main(["traces", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["traces"] == []  # nothing half written
