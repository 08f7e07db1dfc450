"""Several real engines on one device and one clock: the model shared, KV apart, the tokens everybody's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")

from replay_engine.fleet.driver import FleetReplay  # noqa: E402
from replay_engine.fleet.faults import Fault  # noqa: E402
from replay_engine.fleet.routers import make_router  # noqa: E402
from replay_engine.types import RequestState  # noqa: E402
from tests.engine.traffic import Row, RowSource  # noqa: E402
from tests.fleet.fleets import FleetSink  # noqa: E402
from tests.torch_engine.engines import BLOCK, config_of, engine_for, replay_rows, starting, tokens_by_engine  # noqa: E402
from tests.torch_engine.test_replay_cmd import REQUESTS, rows, run, trace  # noqa: E402, F401
from tracekit.errors import UsageError  # noqa: E402

ROWS = [Row(1_000_000, 17 + 3 * i, 5 + i, group=i % 2, shared=3) for i in range(12)]


def fleet(
    router: str, asynchronous: bool, faults: tuple[Fault, ...] = ()
) -> tuple[Any, FleetSink, list[dict[int, list[int]]], FleetReplay]:
    """How it ended, the rows, every engine's tokens by request, and the replay."""
    config = config_of(num_gpu_blocks=30, max_model_len=96, async_scheduling=asynchronous)
    engines = [engine_for(ROWS, config) for _ in range(2)]
    sink = FleetSink()
    executors = [engine.executor for engine in engines]
    made = make_router(router, 2, seed=0, blocks=config.usable_blocks)
    replay = FleetReplay(RowSource(ROWS, BLOCK), config, executors, made, sink, own=starting(engines), faults=faults)
    state = replay.run()
    return state, sink, tokens_by_engine(engines), replay


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("router", ["round_robin", "least_tokens"])
def test_tokens_do_not_depend_on_the_replica(router: str, asynchronous: bool) -> None:
    state, sink, tokens, _ = fleet(router, asynchronous)
    assert state == "finished"
    assert tokens[0] | tokens[1] == replay_rows(ROWS, config_of()).tokens
    iterations = sink.table("iterations")
    assert set(iterations["replica"].tolist()) == {0, 1}
    assert (iterations["submit_ns"] > 0).all()
    assert sorted(sink.table("outcomes")["request"].tolist()) == list(range(len(ROWS)))


def test_a_failing_engine_ends_the_fleet_s_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay_engine.torch_engine.iteration import IterationPass

    calls = [0]
    mixed = IterationPass.mixed

    def broken(self: IterationPass, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 7:
            raise RuntimeError("CUDA error: device-side assert triggered\nmore lines")
        return mixed(self, *given)

    monkeypatch.setattr(IterationPass, "mixed", broken)
    state, sink, _, replay = fleet("round_robin", True)
    assert state == "failed"
    assert "CUDA error: device-side assert triggered more lines" in str(replay.failure)
    assert len(sink.table("iterations")) > 0
    outcomes = sink.table("outcomes")
    came = outcomes["request"].tolist()
    assert sorted(came) == list(range(len(came))), "whoever had come has ended, once; who was still to come is not written"
    assert RequestState.failed in outcomes["state"]


def test_replicas_by_command(trace: Path) -> None:  # noqa: F811
    report = run(trace, replicas=2, router="round_robin")
    assert report.state == "finished"
    assert rows(trace, "SELECT DISTINCT replica, mode FROM iterations ORDER BY replica") == [(0, "eager"), (1, "eager")]
    assert rows(trace, "SELECT count(DISTINCT request) FROM outcomes WHERE state = 'finished'") == [(REQUESTS,)]
    with pytest.raises(UsageError, match="--slow: a real engine is as fast as it is"):
        run(trace, replicas=2, slow=("replica1@1s:2x",))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_replica_that_fails_comes_back_with_nothing(asynchronous: bool) -> None:
    """Requests sent again get their own tokens, on whatever engine they end."""
    faults = tuple(Fault(replica=i % 2, at_ns=4_000_000 * (i + 1), until_ns=4_000_000 * (i + 2)) for i in range(4))
    state, sink, tokens, _ = fleet("round_robin", asynchronous, faults)
    assert state == "finished"
    outcomes = sink.table("outcomes")
    assert sorted(outcomes["request"].tolist()) == list(range(len(ROWS)))
    assert outcomes["retries"].sum() > 0
    wanted = replay_rows(ROWS, config_of()).tokens
    for outcome in outcomes:
        request = int(outcome["request"])
        got, whole = tokens[int(outcome["replica"])][request], wanted[request]
        assert got[len(got) - len(whole) :] == whole


def test_a_replica_that_fails_by_command(trace: Path) -> None:  # noqa: F811
    report = run(trace, replicas=2, router="round_robin", fail=("replica1@30ms:100ms",))
    assert report.state == "finished"
    assert rows(trace, "SELECT count(DISTINCT request) FROM outcomes WHERE state = 'finished'") == [(REQUESTS,)]
