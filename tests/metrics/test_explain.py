"""The story of one request on small tables written by hand: every figure by value."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pytest

from replay_engine.tables import (
    DECISIONS,
    ITERATIONS,
    OUTCOMES,
    PREEMPTIONS,
    PREFILL_ENTRIES,
    SPANS,
    Decision,
    OutcomeReason,
)
from replay_engine.types import Phase, Refusal
from tests.metrics.runs import database
from tracekit.errors import UsageError
from tracekit.explain import explain, render_explain

WAIT, PREFILL, DECODE, STALLED = Phase.queued, Phase.prefill, Phase.decode, Phase.stalled
KV = Refusal.kv_free


def tables() -> duckdb.DuckDBPyConnection:
    """Eight iterations of 10 ns (the sixth: 70 ns); request 5 arrives at 5, waits, prefills twice, decodes, stalls, decodes."""
    iterations = np.zeros(8, ITERATIONS)
    iterations["iteration"] = np.arange(8)
    iterations["duration_ns"] = [10, 10, 10, 10, 10, 70, 10, 10]
    iterations["start_ns"] = np.cumsum(iterations["duration_ns"]) - iterations["duration_ns"]
    iterations["head_request"] = [-1, 4, 5, -1, -1, -1, -1, -1]
    iterations["head_refused_by"] = [0, KV, Refusal.max_num_seqs, 0, 0, 0, 0, 0]
    iterations["decode_seqs"] = [1, 2, 3, 2, 2, 3, 2, 3]
    iterations["prefill_tokens"] = [0, 0, 0, 64, 40, 500, 300, 0]
    iterations["prefill_seqs"] = [0, 0, 0, 1, 2, 1, 1, 0]
    spans = np.array(
        [
            (-1, 2, 5, 30, 5, WAIT, KV),
            (3, 4, 30, 50, 5, PREFILL, 0),
            (5, 5, 50, 120, 5, DECODE, 0),
            (6, 6, 120, 130, 5, STALLED, Refusal.token_budget),
            (7, 7, 130, 140, 5, DECODE, 0),
        ],
        SPANS,
    )
    entries = np.array([(3, 5, 64, 64, 0), (4, 5, 20, 84, 0), (4, 9, 20, 20, 0), (5, 8, 500, 500, 0)], PREFILL_ENTRIES)
    outcome = np.zeros(2, OUTCOMES)
    outcome["request"] = [5, 6]
    outcome["arrival_ns"] = 5
    outcome[0] = (25, 45, 45.0, 135, 70, 0, 5, 140, 5, 84, 3, 0, 0, 0, 0, 0, 0, False)
    outcome[1] = (-1, -1, np.nan, -1, -1, -1, 9, -1, 6, 10**6, 0, 0, 0, -1, 1, 1, 0, False)
    decisions = np.array(
        [
            (12, 3, 2, 5, Decision.hold, OutcomeReason.client_slot),
            (12, -1, -1, 5, Decision.admit, 0),
            (9, 8, 6, 6, Decision.reject, OutcomeReason.queue_requests),
            (9, 2000, 1500, 6, Decision.reject, OutcomeReason.ttft_unreachable),
        ],
        DECISIONS,
    )
    return database(
        {
            "iterations": iterations,
            "spans": spans,
            "prefill_entries": entries,
            "outcomes": outcome,
            "preemptions": np.zeros(0, PREEMPTIONS),
            "decisions": decisions,
        }
    )


def test_the_wait_by_reason_and_by_head() -> None:
    story = explain(tables(), 1, 5)
    wait = story["parts"][0]
    assert wait["waited_for"] == {
        "by_reason": {
            "kv_free": {"ns": 10, "iterations": 1},
            "max_num_seqs": {"ns": 10, "iterations": 1},
            "under_way": {"ns": 5, "iterations": 1},
        },
        "as_head_ns": 10,
        "behind": [{"request": 4, "ns": 10}],
        "no_iteration_ns": 0,
    }


def test_prefill_chunks_tokens_and_gaps() -> None:
    story = explain(tables(), 1, 5)
    chunks = story["parts"][1]["prefill_chunks"]
    assert [(c["iteration"], c["query_len"], c["other_prefill_tokens"]) for c in chunks] == [(3, 64, 0), (4, 20, 20)]
    assert [part.get("tokens") for part in story["parts"]] == [None, None, 1, None, 1]
    first, second = story["longest_gaps"]
    assert (first["gap_ns"], first["token"], first["iteration"], first["across"]) == (70, 2, 5, [])
    assert first["prefilled"] == [{"request": 8, "query_len": 500, "kv_len": 500}]
    assert (second["gap_ns"], second["token"], second["across"]) == (20, 3, ["stalled"])


def test_parts_sum_to_e2e_and_a_hole_is_told() -> None:
    con = tables()
    check = explain(con, 1, 5)["check"]
    assert (check["sum_of_parts_ns"], check["e2e_ns"], check["difference_ns"], check["holds"]) == (135, 135, 0, True)
    con.execute("DELETE FROM spans WHERE phase = 'stalled'")
    story = explain(con, 1, 5)
    assert (story["check"]["difference_ns"], story["check"]["touching"], story["check"]["holds"]) == (-10, False, False)
    text = render_explain(story)
    assert "OFF BY -10 ns" in text
    assert "FAILED" in text


def test_the_text_tells_it_all() -> None:
    story = explain(tables(), 1, 5)
    assert json.loads(json.dumps(story, allow_nan=False)) == story
    text = render_explain(story)
    for piece in (
        "Request 5 of run 1: finished",
        "head of queue refused: kv_free: 10 ns in 1 iteration",
        "behind the refused request 4 (10 ns)",
        "iteration 3: prefill chunk of 64 tokens (KV then 64) in 10 ns",
        "[token_budget]",
        "largest prefill chunks in it: request 8 (500 tokens)",
        "5 parts sum to 135 ns, E2E is 135 ns: exact",
    ):
        assert piece in text


def test_a_rejected_request_has_a_short_story() -> None:
    text = render_explain(explain(tables(), 1, 6))
    assert "rejected (prompt too long)" in text
    assert "Before the engine: turned away at +0 ns: queue_requests, 8 against 6" in text
    assert "ttft_unreachable, 2 us against 1.5 us" in text
    held = render_explain(explain(tables(), 1, 5))
    assert "Before the engine: held back by the client, sent at +7 ns: 3 ns for one of its 2 slots" in held
    assert "Before the engine: let in at +7 ns\n" in held


def test_what_cannot_be_told_is_one_line() -> None:
    con = tables()
    with pytest.raises(UsageError, match="run 1 has no request 77; expected 5 to 6"):
        explain(con, 1, 77)
    with pytest.raises(UsageError, match="the run has no requests"):
        explain(con, 2, 5)
    con.execute("DELETE FROM spans")
    with pytest.raises(UsageError, match="keeps no spans"):
        explain(con, 1, 5)
