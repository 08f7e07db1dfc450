"""Own policies by entry point: the example package as if installed, wrong answers refused, a replay under them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.plugins import EngineView, PluginError, RunningView, available, load_plugin, plugin_name
from replay_engine.policy import build_policy
from replay_engine.profile import Latency, Profile
from replay_engine.rules import Order, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import Request, RequestBatch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_policy"
PLANTED = Profile(name="planted", latency=Latency(a_ns=1e6, b_ns=2e4, d_ns=1e4), synthetic=True)
VIEW = EngineView(now_ns=0, running=1, seats=8, waiting=1, free_blocks=10, usable_blocks=100, block_size=16, budget_left=100)
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(entry points, source of own.py)``: a package as pip leaves it, on ``sys.path``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(points: str, source: str = "") -> None:
        info = tmp_path / "own-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tracekit.policies]\n{points}\n")
        if source:
            (tmp_path / "own.py").write_text(source)

    yield put
    for name in ("own", "own_policy"):
        sys.modules.pop(name, None)


@pytest.fixture
def example(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped example, registered with what its own pyproject says."""
    import tomllib

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["tracekit.policies"]
    monkeypatch.syspath_prepend(str(EXAMPLE))
    install("\n".join(f"{name} = {where}" for name, where in points.items()), "")


def request_of(index: int = 0, prompt: int = 10, most: int | None = None, arrival: int = 0) -> Request:
    return Request(
        index=index, request_id=str(index), arrival_ns=arrival, prompt_tokens=prompt, output_tokens=5, max_tokens=most
    )  # fmt: skip


@pytest.mark.usefixtures("example")
def test_the_example_is_found_and_answers() -> None:
    assert (available("order"), available("admit"), available("victim")) == (("least_work",), ("half_full",), ("youngest",))
    key = load_plugin("order", "plugin:least_work")
    assert (key(request_of(prompt=100, most=10)), key(request_of(prompt=100))) == (140, 1124)
    admit = load_plugin("admit", "half_full")
    assert admit(request_of(prompt=16), VIEW)
    assert not admit(request_of(prompt=17), VIEW)
    victim = load_plugin("victim", "youngest")
    assert victim([RunningView(request_of(arrival=at), 1, 0, 1, times) for at, times in ((5, 0), (9, 1), (7, 0))]) == 2


class Burst:
    total = 60

    def batches(self) -> Iterator[RequestBatch]:
        rng = np.random.default_rng(5)
        n = self.total
        yield RequestBatch(
            index=np.arange(n),
            arrival_ns=np.sort(rng.integers(0, 500_000_000, n)),
            prompt_tokens=rng.integers(1, 400, n),
            output_tokens=rng.integers(1, 200, n),
            priority=np.zeros(n, np.int64),
            max_tokens=rng.integers(200, 300, n),
        )


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_replay_under_the_example_loses_nobody(asynchronous: bool) -> None:
    sets = ["num_gpu_blocks=80", "max_model_len=1000", "max_num_seqs=8", f"async_scheduling={asynchronous}"]
    policy = build_policy(PLANTED, EXAMPLE / "own_policy.toml", sets)
    assert policy.rules.order.by == "plugin:least_work"
    sink = MemorySink()
    executor = SimExecutor(PLANTED.latency, asynchronous=asynchronous)
    replay = Replay(Burst(), policy.scheduler, executor, sink, rules=policy.rules)
    assert replay.run() == "finished"
    ended = sink.table("outcomes")
    assert sorted(ended["request"].tolist()) == list(range(Burst.total))
    assert set(ended["state"].tolist()) == {0}
    batch = next(Burst().batches())
    assert np.array_equal(ended["output_tokens"][np.argsort(ended["request"])], batch.output_tokens)
    # who has less work waits less, on the whole: the key is in force
    work = batch.prompt_tokens + 4 * batch.max_tokens
    wait = ended["queue_ns"][np.argsort(ended["request"])]
    late = np.flatnonzero(wait > 0)[10:]
    assert np.corrcoef(work[late], wait[late])[0, 1] > 0.5


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("order", "def f(request): return 'first'", "answered first; expected a number, or a tuple of numbers"),
        ("order", "def f(request): return float('nan')", "answered nan; expected a number"),
        ("order", "def f(request): return ()", r"answered \(\); expected a number"),
        ("order", "def f(request): return 1 / 0", "ZeroDivisionError: division by zero, for request 0"),
        ("admit", "def f(request, view): return None", "answered None; expected True or False"),
        ("victim", "def f(running): return len(running)", "answered 1; expected an index of the 1 running"),
        ("victim", "def f(running): return True", "answered True; expected an index"),
    ],
)
def test_a_wrong_answer_is_an_error_that_names_the_plugin(kind: str, source: str, reason: str, install: Install) -> None:
    install(f"{kind}.mine = own:f", source)
    function: Callable[..., object] = load_plugin(kind, "mine")  # type: ignore[call-overload]
    arguments = {"order": (request_of(),), "admit": (request_of(), VIEW), "victim": ([RunningView(request_of(), 1, 0, 1, 0)],)}
    with pytest.raises(PluginError, match=rf"plugin:mine: {reason}") as caught:
        function(*arguments[kind])
    assert "\n" not in str(caught.value)


def test_keys_of_different_shape_cannot_be_compared(install: Install) -> None:
    install("order.mine = own:f", "def f(request): return (1, 2) if request.index else 1")
    key = load_plugin("order", "mine")
    assert key(request_of(0)) == 1
    with pytest.raises(PluginError, match="expected as many numbers for every request"):
        key(request_of(1))


@pytest.mark.parametrize(
    ("points", "source", "reason"),
    [
        ("order.mind = own:f", "def f(r): return 1", "no such plugin; did you mean mind"),
        ("victim.mine = own:f", "def f(r): return 1", "no such plugin; no installed package registers order.NAME"),
        ("order.mine = own:g", "", "own:g: ModuleNotFoundError"),
        ("order.mine = own:g", "def f(r): return 1", "own:g: AttributeError"),
        ("order.mine = own:f", "f = 3", "own:f is no function"),
        ("order.mine = own:f", "def f(): return 1", "too many positional arguments; expected a function of one argument"),
        ("order.mine = own:f", "raise RuntimeError('no\\nway')", r"RuntimeError: no\\nway"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(points: str, source: str, reason: str, install: Install) -> None:
    install(points, source)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_plugin("order", "plugin:mine")
    assert str(caught.value).startswith("order.by = plugin:mine: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_plugin_ends_the_replay_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="plugin:nobodys: no such plugin"):
        build_policy(PLANTED, sets=["order.by=plugin:nobodys"])
    rules = Rules(order=Order(by="plugin:nobodys"))
    with pytest.raises(PluginError, match="plugin:nobodys: no such plugin"):
        Replay(Burst(), SchedulerConfig(), SimExecutor(PLANTED.latency, asynchronous=True), MemorySink(), rules=rules)


def test_names() -> None:
    assert plugin_name("plugin:x") == "x"
    assert plugin_name("fcfs") is None
    assert plugin_name(None) is None
