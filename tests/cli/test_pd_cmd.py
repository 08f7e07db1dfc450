"""``replay --pd`` from outside: what is recorded of separate pools, shown, explained, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tracekit.store import Store

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "demo_trace.jsonl.gz")
POOLS = [
    "--limit", "800", "--pd", "2:2", "--router", "P=least_tokens,D=round_robin", "--set", "kv_link.gb_per_s=5",
    "--set", "kv_link.concurrent=1", "--set", "decode.max_num_seqs=64", "--set", "prefill.max_num_batched_tokens=4096",
    "--fail", "P1@20s:10s", "--fail", "link@30s:20s", "--fail", "D1@60s:5s", "--slow", "D0@50s:2x:5s",
]  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("pools") / "a.duckdb")
    assert main(["replay", DEMO, *POOLS, "--slo", "ttft=500ms,tpot=50ms", "--name", "pools", "--db", path]) == 0
    return path


def ask(db: str, query: str) -> list[tuple[object, ...]]:
    with Store(Path(db)).read() as con:
        return con.execute(query).fetchall()


def matrix(db: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["show", "1", "--json", "--db", db]) == 0
    document = json.loads(capsys.readouterr().out)
    found: dict[str, dict[str, object]] = document.get("matrix", document)
    return found


def test_requests_end_on_decode_engines_and_every_phase_is_there(db: str) -> None:
    assert ask(db, "SELECT count(*), count(DISTINCT request), min(replica), max(replica) FROM outcomes") == [(800, 800, 2, 3)]
    assert ask(db, "SELECT DISTINCT state::VARCHAR FROM outcomes") == [("finished",)]
    phases = {row[0] for row in ask(db, "SELECT DISTINCT phase::VARCHAR FROM spans")}
    assert {"queued", "prefill", "transfer_wait", "transfer", "decode_queue", "decode"} <= phases
    spent = """SELECT count(*) FROM (SELECT request, sum(end_ns - start_ns) AS spent FROM spans GROUP BY request) s
               JOIN outcomes o USING (request) WHERE spent <> e2e_ns"""
    assert ask(db, spent) == [(0,)]


def test_the_first_lines_say_where_the_time_to_first_token_went(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    stages = matrix(db, capsys)["pools"]["stage_shares"]
    assert isinstance(stages, dict) and sum(stages.values()) == pytest.approx(1)
    assert main(["show", "1", "--db", db]) == 0
    shown = capsys.readouterr().out
    assert "P/D     2:2: prefill engines " in shown and "mean TTFT was prefill queue " in shown and "Fleet " not in shown


def test_every_iteration_has_its_own_pools_budget_and_blocks(db: str) -> None:
    own_values = "SELECT replica, min(budget), max(budget), min(kv_total), count(*) - count(kv_total) FROM iterations GROUP BY 1"
    rows = ask(db, own_values)
    own = {row[0]: row[1:3] for row in rows}
    assert own[0] == own[1] == (4096, 4096) and own[2] == own[3] and own[2] != (4096, 4096) and None not in own[2]
    assert all(total and not unknown for *_, total, unknown in rows)
    with_one_cap = "SELECT count(*) FROM iterations WHERE prefill_tokens + decode_seqs > budget OR kv_used > kv_total"
    assert ask(db, with_one_cap) == [(0,)]


def test_transfers_are_rows(db: str) -> None:
    assert ask(db, "SELECT count(*) >= 800, min(source), max(source), min(target), max(target) FROM transfers") == [
        (True, 0, 1, 2, 3)
    ]
    assert ask(db, "SELECT count(*) FROM transfers WHERE start_ns < asked_ns OR end_ns < start_ns") == [(0,)]
    down = "SELECT count(*) FROM transfers WHERE ended = 'done' AND start_ns < 50e9 AND end_ns > 30e9"
    assert ask(db, down) == [(0,)]  # the link was down
    moved = """SELECT count(*) FROM transfers t JOIN spans s ON s.request = t.request AND s.phase = 'transfer'
               AND s.start_ns = t.start_ns WHERE t.ended = 'done'"""
    assert ask(db, moved)[0][0] == ask(db, "SELECT count(*) FROM transfers WHERE ended = 'done'")[0][0]


def test_the_matrix_says_where_first_tokens_wait(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    pools = matrix(db, capsys)["pools"]
    shares = pools["stage_shares"]
    assert isinstance(shares, dict) and sum(shares.values()) == pytest.approx(1.0)
    assert shares["transfer wait"] > 0.1 and shares["prefill"] > 0
    assert pools["split"] == "2:2" and 0 < float(str(pools["link_gb_per_s"])) <= 5.0
    assert ask(db, "SELECT count(*) FROM transfers WHERE ended = 'done'") == [(pools["transfers"],)]
    text = main(["show", "1", "--db", db])
    assert text == 0 and "Prefill and decode pools" in capsys.readouterr().out


def test_a_story_goes_over_both_pools(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "1", "5", "--db", db]) == 0
    told = capsys.readouterr().out
    assert "transfer" in told and "decode_queue" in told.replace(" ", "_")
    assert main(["explain", "1", "5", "--json", "--db", db]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert [part["phase"] for part in parts][-1] == "decode"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pd", "2"], "--pd 2: expected numbers of prefill and decode engines, as 2:6"),
        (["--pd", "0:2"], "--pd 0:2: expected numbers"),
        (["--pd", "1:1", "--replicas", "2"], "--pd and --replicas"),
        (["--pd", "1:1", "--router", "X=round_robin"], "--router X=round_robin: expected a router a pool"),
        (["--pd", "1:1", "--router", "P=fastest"], "pd.prefill_router = fastest: unknown"),
        (["--pd", "1:1", "--fail", "replica0@60s"], "not a fault of separate pools"),
        (["--pd", "1:1", "--fail", "P1@60s"], "no such engine; expected P0 to P0"),
        (["--pd", "1:1", "--set", "batching.mode=static"], "pd.prefill = 1 with batching.mode = static"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", DEMO, *options, "--db", str(tmp_path / "a.duckdb")]) == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_a_router_for_both_pools_or_one_of_them(tmp_path: Path) -> None:
    from tracekit.pools import pd_sets

    given = {"pd": "3:1", "replicas": None, "fail": (), "slow": ()}
    assert pd_sets({**given, "router": "power_of_two"}) == [
        "pd.prefill=3", "pd.decode=1", "pd.prefill_router=power_of_two", "pd.decode_router=power_of_two",
    ]  # fmt: skip
    assert pd_sets({**given, "router": "P=weighted(1,2,3), D=round_robin"})[2:] == [
        "pd.prefill_router=weighted(1,2,3)", "pd.decode_router=round_robin",
    ]  # fmt: skip


def test_a_comparison_names_only_the_pools_own_knobs(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", DEMO, "--limit", "800", "--slo", "ttft=500ms,tpot=50ms", "--name", "together", "--db", db]) == 0
    capsys.readouterr()
    assert main(["compare", "together", "pools", "--db", db, "--json"]) in (0, 4)
    knobs = {each["knob"]: each for each in json.loads(capsys.readouterr().out)["knobs"]}
    pooled = {name for name in knobs if name.startswith("pools.")}
    assert pooled == {"pools.decode.max_num_seqs", "pools.prefill.max_num_batched_tokens"} | {
        name
        for name in pooled
        if name.endswith(("num_gpu_blocks", "prefill.max_num_seqs"))  # derived from those
    }
    assert "pd.prefill" in knobs
