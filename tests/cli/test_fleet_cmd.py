"""``replay --replicas`` from outside: what is recorded of a fleet, shown, explained, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tracekit.store import Store

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "demo_trace.jsonl.gz")
FLEET = [
    "--limit", "1500", "--replicas", "3", "--router", "least_tokens", "--fail", "replica1@60s:30s", "--fail", "replica2@200s",
    "--slow", "replica0@100s:2x:20s",
]  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("fleet") / "a.duckdb")
    assert main(["replay", DEMO, *FLEET, "--slo", "ttft=500ms,tpot=50ms", "--name", "fleet", "--db", path]) == 0
    return path


def ask(db: str, query: str) -> list[tuple[object, ...]]:
    with Store(Path(db)).read() as con:
        return con.execute(query).fetchall()


def test_every_table_names_its_replica(db: str) -> None:
    assert ask(db, "SELECT DISTINCT replica FROM iterations ORDER BY 1") == [(0,), (1,), (2,)]
    assert ask(db, "SELECT count(*), count(DISTINCT request), min(replica) >= 0 FROM outcomes") == [(1500, 1500, True)]
    assert ask(db, "SELECT count(*) FROM iterations WHERE replica = 2 AND start_ns > 201e9") == [(0,)]
    down = "SELECT count(*) FROM iterations WHERE replica = 1 AND start_ns BETWEEN 60e9 + 1e9 AND 90e9"
    assert ask(db, down) == [(0,)]
    overlap = """SELECT count(*) FROM (SELECT start_ns, lag(start_ns + duration_ns) OVER (PARTITION BY replica ORDER BY iteration)
                 AS ended FROM iterations) WHERE start_ns < ended"""
    assert ask(db, overlap) == [(0,)]


def test_a_routing_decision_has_a_row_per_replica_seen(db: str) -> None:
    rows = "SELECT request, attempt, count(*) AS seen, sum(chosen::INTEGER) AS chosen FROM routing GROUP BY ALL"
    assert ask(db, f"SELECT DISTINCT chosen FROM ({rows})") == [(1,)]
    assert ask(db, f"SELECT max(seen) FROM ({rows})") == [(3,)]
    least = """SELECT count(*) FROM routing c JOIN routing o USING (run, request, attempt)
               WHERE c.chosen AND NOT o.chosen AND o.tokens < c.tokens"""
    assert ask(db, least) == [(0,)]
    again = ask(db, "SELECT sum(retries) FROM outcomes")[0][0]
    assert again == ask(db, "SELECT count(*) FROM decisions WHERE decision = 'route' AND reason = 'replica_failed'")[0][0]
    assert isinstance(again, int) and again > 0
    assert ask(db, "SELECT DISTINCT replica FROM decisions") == [(None,)]


def test_spans_of_all_attempts_sum_to_e2e(db: str) -> None:
    query = """SELECT count(*) FROM (SELECT request, sum(end_ns - start_ns) AS spent FROM spans GROUP BY request) s
               JOIN outcomes o USING (request) WHERE o.state = 'finished' AND spent <> e2e_ns"""
    assert ask(db, query) == [(0,)]


def test_the_matrix_has_every_replica(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["show", "fleet", "--db", db, "--json"]) == 0
    matrix = json.loads(capfd.readouterr().out)["matrix"]
    fleet = matrix["fleet"]
    assert (fleet["replicas"], fleet["router"]) == (3, "least_tokens")
    assert sum(row["requests"] for row in fleet["by_replica"].values()) == matrix["counted"]["requests"]
    assert sum(row["iterations"] for row in fleet["by_replica"].values()) == matrix["time"]["iterations"]
    assert fleet["retried"] > 0 and fleet["imbalance_requests"] >= 1
    assert matrix["knobs"]["fleet.fail"] == "replica1@60s:30s,replica2@200s"
    assert main(["show", "fleet", "--db", db]) == 0
    shown = capfd.readouterr().out
    assert "Replicas" in shown
    assert f"Fleet   3 replicas, least_tokens: busiest {fleet['imbalance_busy']:.2f} of the mean" in shown
    assert f"{fleet['retried']:,} requests sent again" in shown


def test_explain_follows_a_request_over_replicas(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    request = ask(db, "SELECT min(request) FROM outcomes WHERE retries > 0 AND state = 'finished'")[0][0]
    capfd.readouterr()
    assert main(["explain", "fleet", str(request), "--db", db]) == 0
    text = capfd.readouterr().out
    assert text.count("on replica ") >= 2 and "attempt 2; the router saw" in text and text.rstrip().endswith("exact")


def test_without_events_the_figures_are_the_same(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    def matrix(*options: str) -> dict[str, dict[str, object]]:
        capfd.readouterr()
        assert main(["replay", "demo_trace", *FLEET, "--slo", "ttft=500ms", "--db", db, "--json", *options]) == 0
        found: dict[str, dict[str, object]] = json.loads(capfd.readouterr().out)["matrix"]
        return found

    full, outcomes, none = matrix(), matrix("--events", "outcomes"), matrix("--events", "none")
    for part in ("fleet", "ends", "time", "throughput", "slo"):
        assert full[part] == outcomes[part] == none[part], part


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "0"], "fleet.replicas = 0: expected a number of at least 1"),
        (["--replicas", "2", "--router", "best"], "fleet.router = best: unknown; expected one of round_robin"),
        (["--replicas", "2", "--router", "weighted(1)"], "expected weighted(w1,...) with 2 weights"),
        (["--replicas", "2", "--fail", "replica5@1s"], "no such replica; expected replica0 to replica1"),
        (["--replicas", "2", "--slow", "replica1@1s"], "not a fault; expected replica2@60s:2x"),
        (["--replicas", "2", "--set", "pd.prefill=1", "--set", "pd.decode=1"], "the pools have their own numbers of engines"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", DEMO, *options]) == 2
    error = capfd.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
