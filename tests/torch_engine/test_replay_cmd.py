"""``tracekit replay --engine torch`` from outside: the record of a run, and one line for whatever cannot be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")

import duckdb  # noqa: E402

from replay_engine.config import ConfigError  # noqa: E402
from replay_engine.torch_engine.prompts import prompt_ids  # noqa: E402
from replay_engine.types import Request  # noqa: E402
from tests.engine.traffic import Row  # noqa: E402
from tests.torch_engine.engines import config_of, engine_for, run_on  # noqa: E402
from tracekit.errors import UsageError  # noqa: E402
from tracekit.replay import ReplayReport, replay  # noqa: E402

REQUESTS = 10


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    rows = [
        {"arrival_ns": 20_000_000 * i, "input_tokens": 20 + 5 * i, "output_tokens": 4 + i, "prefix_runs": [[0, 7, 1]]}
        for i in range(REQUESTS)
    ]
    path.write_text("".join(json.dumps({**row, "block_tokens": 16}) + "\n" for row in rows))
    return path


def run(trace: Path, **options: Any) -> ReplayReport:
    given = {"engine": "torch", "model": "tiny", "sets": ("max_num_seqs=4", "num_gpu_blocks=200", "max_model_len=256")}
    return replay(str(trace), db=str(trace.parent / "runs.duckdb"), **{**given, **options})


def own_request(index: int) -> Request:
    return Request(index=index, request_id="", arrival_ns=0, prompt_tokens=20 + 5 * index, output_tokens=1)


def rows(trace: Path, query: str) -> list[Any]:
    with duckdb.connect(str(trace.parent / "runs.duckdb"), read_only=True) as con:
        return con.execute(query).fetchall()


def test_a_run_is_recorded_with_what_only_a_real_engine_knows(trace: Path) -> None:
    lines: list[str] = []
    report = run(trace, say=lines.append, slo="ttft=60s")
    assert report.state == "finished"
    assert lines[0].startswith("engine: torch, tiny (float32) on ")
    assert "200 KV blocks" in lines[0]
    matrix = report.matrix
    assert matrix["model"] == {"name": "tiny", "precision": "float32"}
    assert matrix["engine"]["name"] == "torch"
    assert matrix["profile"]["name"]["reason"] == "no profile: durations were measured"
    assert matrix["ends"]["finished"] == REQUESTS
    assert matrix["latency"]["ttft_ns"]["p50"] > 0
    assert rows(trace, "SELECT engine, profile, state FROM runs") == [("torch", None, "finished")]
    modes = rows(trace, "SELECT DISTINCT mode FROM iterations WHERE decode_seqs + prefill_tokens > 0")
    assert modes == [("eager",)]
    assert rows(trace, "SELECT count(*) FROM iterations WHERE schedule_ns + submit_ns + wait_ns IS NULL") == [(0,)]
    assert rows(trace, "SELECT sum(prefix_hit_tokens) FROM iterations")[0][0] > 0, "real hits in a trace without any text"
    tokens = rows(trace, "SELECT sum(output_tokens) FROM outcomes")
    assert tokens == [(sum(4 + i for i in range(REQUESTS)),)]


def test_a_simulated_run_has_no_host_times(trace: Path) -> None:
    run(trace, engine="sim", model=None)
    assert rows(trace, "SELECT DISTINCT mode, padded_tokens, schedule_ns, submit_ns, wait_ns FROM iterations") == [
        ("simulated", 0, None, None, None)
    ]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "tinny"}, ConfigError, "model tinny: no such model; did you mean tiny"),
        ({"profile": "h100"}, UsageError, "--profile h100: this engine measures what iterations take; expected --engine sim"),
        ({"engine": "sim"}, UsageError, "--model tiny: the simulator computes no model; expected --engine torch, or --profile"),
        ({"engine": "gpu", "model": None}, UsageError, "--engine gpu: expected one of auto, sim, torch"),
        ({"sets": ("num_gpu_blocks=90000000",)}, ConfigError, "num_gpu_blocks = 90000000: out of memory, "),
        (
            {"sets": ("batching.kv_allocation=contiguous", "enable_prefix_caching=false")}, ConfigError,
            "batching.kv_allocation = contiguous: the engine pages its KV",
        ),
    ],
    ids=["no such model", "profile", "model for sim", "engine", "out of memory", "contiguous"],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(trace: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        run(trace, **options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_out_of_memory_says_how_many_blocks_fit(trace: Path) -> None:
    with pytest.raises(ConfigError, match=r"[1-9]\d* blocks of 16 tokens fit; expected at most that") as raised:
        run(trace, sets=("num_gpu_blocks=90000000",))
    fit = int(str(raised.value).split(" blocks of 16")[0].rsplit(" ", 1)[1])
    assert 1000 < fit < 90_000_000


def test_a_nan_ends_the_run_and_all_before_is_kept(tmp_path: Path, trace: Path) -> None:
    """A model whose embedding of one token is broken, and a trace in which only a later prompt has that token."""
    transformers = pytest.importorskip("transformers", reason="writes the checkpoint")
    config = transformers.Qwen3Config(
        vocab_size=5000, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config)
    made = [set(prompt_ids(own_request(i), 5000)[16:].tolist()) for i in range(REQUESTS)]
    broken = next(token for token in made[-1] if not any(token in other for other in made[:-1]))
    with torch.no_grad():
        model.get_input_embeddings().weight[broken] = float("nan")
    folder = tmp_path / "broken"
    model.save_pretrained(folder)
    lines: list[str] = []
    report = run(trace, model=str(folder), say=lines.append, sets=("max_num_seqs=1", "num_gpu_blocks=100", "max_model_len=256"))
    assert report.state.startswith("failed at iteration ")
    assert any("failed at iteration" in line and "not finite" in line for line in lines)
    ((state, iterations),) = rows(trace, "SELECT state, iterations FROM runs")
    failed_at = int(state.removeprefix("failed at iteration "))
    assert failed_at > 0
    assert iterations > 0
    (ends,) = rows(trace, "SELECT count(*) FILTER (state = 'finished'), count(*) FILTER (state = 'failed') FROM outcomes")
    assert ends[0] >= 1
    assert rows(trace, "SELECT DISTINCT reason FROM outcomes WHERE state = 'failed'") == [("engine_failed",)]
    assert rows(trace, "SELECT max(iteration) FROM iterations")[0][0] < failed_at


def test_an_interrupt_keeps_all_before() -> None:
    requests = [Row(0, 20, 30) for _ in range(4)]
    config = config_of()
    engine = engine_for(requests, config)
    submit = engine.executor.submit

    def stopped(plan: Any) -> Any:
        if plan.iteration == 9:
            raise KeyboardInterrupt
        return submit(plan)

    engine.executor.submit = stopped  # type: ignore[method-assign]
    ran = run_on(engine, requests, config)
    assert ran.state == "interrupted"
    assert ran.table("iterations")["iteration"].tolist() == list(range(8)), "9 was never submitted, 8 was under way"
    assert (ran.table("outcomes")["output_tokens"] > 0).all()


def test_whoever_follows_sees_the_run_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay_engine.torch_engine import executor as executor_module

    monkeypatch.setattr(executor_module, "FLUSH_NS", 0)
    requests = [Row(0, 20, 30)]
    config = config_of(async_scheduling=False)
    engine = engine_for(requests, config)
    seen: list[int] = []
    submit = engine.executor.submit

    def look(plan: Any) -> Any:
        seen.append(sum(len(chunk) for chunk in sink._chunks.get("iterations", [])))
        return submit(plan)

    engine.executor.submit = look  # type: ignore[method-assign]
    from replay_engine.loop import Replay
    from replay_engine.sinks import MemorySink
    from replay_engine.torch_engine.engine_rows import EngineSink
    from tests.engine.traffic import RowSource

    sink = MemorySink()
    Replay(RowSource(requests), config, engine.executor, EngineSink(sink, engine.executor.notes), pool=engine.pool).run()
    assert seen[10] == 9
