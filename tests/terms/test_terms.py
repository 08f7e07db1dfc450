"""The reports of others, by value: worked out by hand on a few requests, and with numpy over every single token of real runs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from replay_engine.types import Phase, RequestState
from tests.exports.conftest import Runs, runs  # noqa: F401
from tracekit.cli.main import main
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.stored import load_run_data
from tracekit.errors import UsageError
from tracekit.metrics.gaps import TokenGaps
from tracekit.metrics.slo import UNLIMITED
from tracekit.store import Store
from tracekit.terms import TOOLS, Seen, in_terms_of, seen_of
from tracekit.traces.load import load_trace

MS = 1_000_000
NONE = np.empty(0, np.int64)


def whole(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def by_hand(**changes: Any) -> Seen:
    """Finished: A (5 tokens, one late), B (one token), C (3 tokens, slow). D ended in an error, E was cancelled."""
    gaps = TokenGaps(
        step_ns=whole(10 * MS, 20 * MS), weight=whole(3, 2), runs=np.empty((0, 3), np.int64), single_ns=whole(110 * MS),
        single_request=whole(0),
    )  # fmt: skip
    given: dict[str, Any] = {
        "sent_ns": whole(0, 0, 0, 0, 0) * MS, "ttft_ns": whole(100, 50, 400, -1, 80) * MS,
        "e2e_ns": whole(240, 50, 440, -1, -1) * MS, "prompt": whole(10, 20, 30, 40, 50), "output": whole(5, 1, 3, 0, 2),
        "finished": np.array([True, True, True, False, False]), "cancelled": np.array([False, False, False, False, True]),
        "asked": ("ttft", "tpot"), "limit_ns": {"ttft": whole(*[200 * MS] * 5), "tpot": whole(*[35 * MS] * 5)},
        "unknown_parts": (), "gaps": gaps, "window_ns": 2000 * MS,
    }  # fmt: skip
    return Seen(**{**given, **changes})


def figures(seen: Seen, tool: str) -> dict[str, float | None]:
    return {each.name: each.value for each in in_terms_of(seen, tool).terms}


def test_vllm_by_hand() -> None:
    found = figures(by_hand(), "vllm")
    expected = {
        "completed": 3, "failed": 2, "duration": 2.0, "total_input_tokens": 60, "total_output_tokens": 9,
        "request_throughput": 1.5, "output_throughput": 4.5, "total_token_throughput": 34.5,
        "request_goodput": 1.0,  # A and B: one token is good
        "mean_ttft_ms": 550 / 3, "median_ttft_ms": 100.0, "p99_ttft_ms": 100 + 0.98 * 300,
        "mean_tpot_ms": 27.5, "median_tpot_ms": 27.5, "std_tpot_ms": 7.5, "p99_tpot_ms": 20 + 0.99 * 15,
        "mean_itl_ms": (3 * 10 + 2 * 20 + 110) / 6, "median_itl_ms": 15.0, "p99_itl_ms": 20 + 0.95 * 90,
        "mean_e2el_ms": 730 / 3, "p99_e2el_ms": 240 + 0.98 * 200,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    late = np.array([10, 10, 10, 20, 20, 110])
    assert found["std_itl_ms"] == pytest.approx(float(late.std()))


def test_guidellm_by_hand() -> None:
    found = figures(by_hand(), "guidellm")
    per_token = {48.0: 5, 50.0: 1, 440 / 3: 3}  # from the start, first token included; by tokens
    expected = {
        "request_totals.successful": 3, "request_totals.incomplete": 1, "request_totals.errored": 1,
        "requests_per_second.mean": 1.5, "output_tokens_per_second.mean": 4.5, "tokens_per_second.mean": 34.5,
        "request_latency.mean": 0.73 / 3, "request_latency.p50": 0.24, "request_latency.p99": 0.44,
        "time_to_first_token_ms.p50": 100.0, "time_to_first_token_ms.p90": 400.0,
        "time_per_output_token_ms.mean": sum(value * n for value, n in per_token.items()) / 9,
        "time_per_output_token_ms.p50": 48.0, "time_per_output_token_ms.p90": 440 / 3,
        "inter_token_latency_ms.mean": (35 * 4 + 20 * 2) / 6, "inter_token_latency_ms.p50": 35.0,
        "goodput.requests_per_second": 0.5, "goodput.attainment": 1 / 3,  # A of A, C and the error; B undetermined
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_aiperf_by_hand() -> None:
    found = figures(by_hand(), "aiperf")
    expected = {
        "request_count": 3, "error_request_count": 2, "time_to_first_token.avg": 550 / 3, "time_to_first_token.min": 50.0,
        "time_to_first_token.max": 400.0, "request_latency.p50": 240.0, "inter_token_latency.avg": 27.5,
        "inter_token_latency.std": 7.5, "inter_chunk_latency.max": 110.0, "inter_chunk_latency.p50": 15.0,
        "output_token_throughput_per_user.max": 50.0, "output_sequence_length.avg": 3.0, "request_throughput": 1.5,
        "good_request_count": 1, "goodput": 0.5, "good_request_fraction": 1 / 5,  # A alone: B has no such latency
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_one_token_is_good_bad_or_neither() -> None:
    one = by_hand(finished=np.array([False, True, False, False, False]), cancelled=np.zeros(5, np.bool_), gaps=None)
    assert figures(one, "vllm")["request_goodput"] == 0.5
    assert figures(one, "aiperf")["good_request_count"] == 0
    assert figures(one, "guidellm")["goodput.attainment"] == 0  # four errors are what is left to divide by
    alone = Seen(**{name: (value[1:2] if isinstance(value, np.ndarray) else value) for name, value in
                    ((name, getattr(by_hand(), name)) for name in Seen.__slots__)} |
                 {"gaps": None, "limit_ns": {part: each[1:2] for part, each in by_hand().limit_ns.items()}})  # fmt: skip
    assert figures(alone, "guidellm")["goodput.attainment"] is None
    assert figures(alone, "vllm")["p99_itl_ms"] is None
    assert figures(alone, "vllm")["mean_tpot_ms"] is None


def test_a_limit_that_a_request_does_not_have_is_met() -> None:
    loose = by_hand(limit_ns={"ttft": whole(*[UNLIMITED] * 5), "tpot": whole(*[UNLIMITED] * 5)})
    assert figures(loose, "vllm")["request_goodput"] == 1.5
    assert figures(loose, "aiperf")["good_request_count"] == 3
    assert figures(loose, "guidellm")["goodput.attainment"] == 3 / 4


def test_without_an_slo_goodput_has_a_reason() -> None:
    for tool, name in (("vllm", "request_goodput"), ("guidellm", "goodput.attainment"), ("aiperf", "good_request_fraction")):
        (term,) = [each for each in in_terms_of(by_hand(asked=()), tool).terms if each.name == name]
        assert term.value is None and term.note == "no SLO was given"
    assert "no SLO on stall" in in_terms_of(by_hand(unknown_parts=("stall",)), "vllm").notes[-1]
    with pytest.raises(UsageError, match="no such tool"):
        in_terms_of(by_hand(), "llmperf")


def tokens_of(data: RunData) -> dict[int, list[int]]:
    """When every token of every finished, counted request came, read off spans and iterations one by one. Where nothing is
    preempted a request's first token is where its prefill ends, and each iteration of a decode span gives one."""
    ends = {(int(row["replica"]), int(row["iteration"])): int(row["start_ns"] + row["duration_ns"]) for row in data.iterations}
    numbers: dict[int, list[int]] = {}
    for replica, number in ends:
        numbers.setdefault(replica, []).append(number)
    found: dict[int, list[int]] = {}
    for row in data.outcomes:
        if row["state"] == RequestState.finished and data.counted[row["request"]]:
            found[int(row["request"])] = [int(row["arrival_ns"] + row["ttft_ns"])]
    for span in data.spans:
        if span["phase"] == Phase.decode and int(span["request"]) in found:
            replica = int(span["replica"])
            mine = [n for n in numbers[replica] if span["start_iteration"] <= n <= span["end_iteration"]]
            found[int(span["request"])] += [ends[replica, n] for n in sorted(mine)]
    return found


@pytest.mark.parametrize("kind", ["tight", "fleet"])
def test_every_token_of_a_real_run(runs: Runs, kind: str) -> None:  # noqa: F811
    data = load_run_data(runs.store, str(getattr(runs, kind)))
    assert not data.outcomes["preemptions"].any()
    tokens = tokens_of(data)
    rows = {int(row["request"]): row for row in data.outcomes}
    assert {request: len(each) for request, each in tokens.items()} == {r: int(rows[r]["output_tokens"]) for r in tokens}
    start = {request: int(rows[request]["arrival_ns"]) for request in tokens}
    ttft = np.array([each[0] - start[r] for r, each in tokens.items()]) / MS
    e2e = np.array([each[-1] - start[r] for r, each in tokens.items()]) / MS
    gaps = np.concatenate([np.diff(each) for each in tokens.values()]) / MS
    several = {r: each for r, each in tokens.items() if len(each) > 1}
    tpot = np.array([(each[-1] - each[0]) / (len(each) - 1) for each in several.values()]) / MS
    seen = seen_of(data)
    vllm, aiperf, guidellm = (figures(seen, tool) for tool in ("vllm", "aiperf", "guidellm"))
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", gaps), ("e2el", e2e)):
        expected = [values.mean(), np.median(values), values.std(), np.percentile(values, 99)]
        assert [vllm[f"{each}_{name}_ms"] for each in ("mean", "median", "std", "p99")] == pytest.approx(expected)
    for name, values in (("time_to_first_token", ttft), ("request_latency", e2e), ("inter_token_latency", tpot),
                         ("inter_chunk_latency", gaps)):  # fmt: skip
        told = [aiperf[f"{name}.{each}"] for each in ("avg", "min", "max", "p99", "p90", "std")]
        expected = [values.mean(), values.min(), values.max(), *np.percentile(values, (99, 90)), values.std()]
        assert told == pytest.approx(expected)
    since_start = np.repeat([each / len(tokens[r]) for r, each in zip(tokens, e2e, strict=True)],
                            [len(each) for each in tokens.values()])  # fmt: skip
    between = np.repeat(tpot, [len(each) - 1 for each in several.values()])
    for name, values in (("time_per_output_token_ms", since_start), ("inter_token_latency_ms", between)):
        assert guidellm[f"{name}.mean"] == pytest.approx(values.mean())
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            ordered = np.sort(values)
            assert guidellm[f"{name}.{label}"] == pytest.approx(ordered[math.ceil(share * len(ordered)) - 1], rel=1e-9)


@pytest.mark.parametrize("kind", ["tight", "preempting", "fleet", "pools"])
def test_goodput_is_the_requests_that_keep_their_limits(runs: Runs, kind: str) -> None:  # noqa: F811
    data = load_run_data(runs.store, str(getattr(runs, kind)))
    rows = data.outcomes[data.counted[data.outcomes["request"]]]
    done = rows[rows["state"] == RequestState.finished]
    tpot = np.nan_to_num(done["tpot_ns"], nan=0.0)
    good = int(((done["ttft_ns"] <= 500 * MS) & (tpot <= 50 * MS)).sum())
    seconds = (rows["last_token_ns"].max() - rows["arrival_ns"].min()) / 1e9
    assert figures(seen_of(data), "vllm")["request_goodput"] == pytest.approx(good / seconds)
    if not (done["output_tokens"] == 1).any():
        assert figures(seen_of(data), "aiperf")["good_request_count"] == good


def test_a_clients_own_limit_is_before_its_clock(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.exports.conftest import demo_rows
    from tracekit.replay import replay

    folder = tmp_path_factory.mktemp("client")
    trace, db = folder / "t.jsonl", str(folder / "t.duckdb")
    trace.write_text("".join(json.dumps(row) + "\n" for row in demo_rows(40)))
    with Store(db).write("load") as con:
        load_trace(con, [str(trace)])
    replay("t", sets=["client.max_in_flight=2"], rate_scale=4.0, db=db, diagnose=False)
    data = load_run_data(Store(db), "last")
    seen = seen_of(data)
    held = seen.sent_ns - data.outcomes["arrival_ns"]
    assert (held > 0).any() and (held >= 0).all()
    assert (seen.ttft_ns == data.outcomes["ttft_ns"] - held).all() and (seen.ttft_ns > 0).all()
    order = np.argsort(seen.sent_ns, kind="stable")
    ends = seen.sent_ns + seen.e2e_ns
    for place, row in enumerate(order):  # never more than two under way, by the client's own clock
        assert (ends[order[:place]] > seen.sent_ns[row]).sum() < 2


@pytest.mark.parametrize("tool", TOOLS)
def test_the_command(runs: Runs, capsys: pytest.CaptureFixture[str], tool: str) -> None:  # noqa: F811
    assert main(["show", "tight", "--as", tool, "--db", str(runs.path)]) == 0
    text = capsys.readouterr().out
    assert TOOLS[tool] in text and "160" in text
    assert main(["show", "tight", "--as", tool, "--json", "--db", str(runs.path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracekit.terms/1" and document["tool"] == tool and document["run"] == runs.tight
    data = load_run_data(runs.store, str(runs.tight))
    assert {name: each["value"] for name, each in document["figures"].items()} == pytest.approx(figures(seen_of(data), tool))


def test_a_run_without_iterations_has_all_but_gaps(runs: Runs) -> None:  # noqa: F811
    found = figures(seen_of(load_run_data(runs.store, str(runs.outcomes_only))), "vllm")
    assert found["p99_itl_ms"] is None and found["p99_ttft_ms"] is not None


@pytest.mark.parametrize("arguments", [["1", "2", "--as", "vllm"], ["1", "--markdown", "--as", "vllm"], ["1", "--as", "x"]])
def test_what_cannot_be_is_said(runs: Runs, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:  # noqa: F811
    assert main(["show", *arguments, "--db", str(runs.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
