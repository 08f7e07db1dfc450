"""Generated traffic has the rates, bursts, lengths, tenants, prefixes and sessions that were asked for; same seed, same bytes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit.errors import TracekitError, UsageError
from tracekit.generators import generate, read_spec, spec_of
from tracekit.generators.arrivals import parse_process
from tracekit.generators.distributions import parse_distribution
from tracekit.traces.load import read_trace
from tracekit.traces.synth import Columns, write_jsonl


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize(("text", "cv"), [("poisson:rate=4", 1.0), ("gamma:rate=4,cv=3", 3.0), ("gamma:4,0.3", 0.3)])
def test_renewal_processes(text: str, cv: float) -> None:
    times = parse_process(text, "arrival").times(rng(), 40_000)
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(4, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_bursts_have_the_mean_rate_and_silence_between_them() -> None:
    times = parse_process("onoff:rate=5,on=10s,off=40s", "arrival").up_to(rng(), 50_000)
    assert len(times) / 50_000 == pytest.approx(5, rel=0.06)
    counts = np.bincount(times.astype(int))
    assert counts.var() / counts.mean() > 10
    assert (counts == 0).mean() > 0.6
    assert (np.diff(times) >= 0).all()


def test_the_day_has_its_peak() -> None:
    times = parse_process("diurnal:rate=1,depth=0.9,period=1h,peak=15m", "arrival").up_to(rng(), 72_000)
    assert len(times) / 72_000 == pytest.approx(1, rel=0.03)
    quarter = np.bincount((times % 3600 // 900).astype(int))
    assert quarter[1] + quarter[0] > 2.5 * (quarter[2] + quarter[3])


def test_distributions() -> None:
    assert parse_distribution(512, "input").draw(rng(), 3).tolist() == [512] * 3
    assert set(parse_distribution("uniform:3,5", "input").draw(rng(), 500).tolist()) == {3, 4, 5}
    drawn = parse_distribution("lognormal:median=500,sigma=0.5,min=100,max=2000", "input").draw(rng(), 20_000)
    assert np.median(drawn) == pytest.approx(500, rel=0.02)
    assert drawn.min() >= 100 and drawn.max() <= 2000
    assert parse_distribution("geometric:mean=4", "turns").draw(rng(), 20_000).mean() == pytest.approx(4, rel=0.05)
    assert parse_distribution("exponential:mean=10s", "think").draw(rng(), 20_000).mean() == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"arival": "poisson:rate=5"}, "arival: unknown; expected one of arrival"),
        ({"arrival": "weekly:rate=5"}, "no such arrival process"),
        ({"arrival": "gamma:rate=5,cvv=2"}, "cvv: not expected here"),
        ({"arrival": "poisson:rate=-5"}, "at least 0"),
        ({"arrival": "onoff:rate=5,on=0,off=1"}, "on, off and period above 0"),
        ({"input": "lognormal:median=x"}, "not a number"),
        ({"input": "lognormal:sigma=1"}, "do not fit together"),
        ({"input": "uniform:9,3"}, "do not fit together"),
        ({"input": "normal:3"}, "no such distribution"),
        ({"requests": 0}, "requests = 0"),
        ({"seconds": "nan"}, "not a number"),
        ({"tenants": [{"share": -1}]}, "share"),
        ({"prefix": {"groups": 3}}, "groups and tokens"),
        ({"sessions": {"turns": 0}}, "at least 1"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_spec_is_one_line(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(given)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_requests_seconds_and_rate() -> None:
    columns = generate(spec_of({"requests": 3000, "seconds": 600}))
    assert len(columns) == 3000
    assert columns.arrival_ns[-1] / 1e9 == pytest.approx(600, rel=0.06)
    assert len(generate(spec_of({"seconds": 300, "arrival": "poisson:rate=10"}))) == pytest.approx(3000, rel=0.06)


TENANTS = """
requests = 4000
seed = 5
arrival = "gamma:rate=20,cv=2"
[[tenants]]
name = "chat"
share = 3
class = "interactive"
input = "lognormal:median=300,sigma=0.5,min=10,max=4000"
output = "uniform:50,100"
prefix = { groups = 4, tokens = 160 }
[[tenants]]
name = "agent"
share = 1
input = 200
output = 40
sessions = { turns = "geometric:mean=5", think = "fixed:3" }
prefix = { groups = 2, tokens = 64 }
"""


def spec_file(tmp_path: Path, text: str = TENANTS) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return path


def test_tenants_prefixes_and_sessions(tmp_path: Path) -> None:
    columns = generate(read_spec(spec_file(tmp_path)))
    assert len(columns) == 4000
    assert columns.tenant.count("agent") == 1000
    assert (np.diff(columns.arrival_ns) >= 0).all()
    assert columns.runs is not None and columns.block_tokens == 16
    for tokens, runs in zip(columns.input_tokens.tolist(), columns.runs, strict=True):
        assert sum(run[2] for run in runs) == -(-tokens // 16)
        assert [run[0] for run in runs] == list(itertools.accumulate([0, *(run[2] for run in runs)]))[:-1]
    heads = {tuple(runs[0][1:2]) for runs, tenant in zip(columns.runs, columns.tenant, strict=True) if tenant == "chat"}
    assert len(heads) == 4
    check_sessions(columns)


def check_sessions(columns: Columns) -> None:
    """A turn's prompt is the one before, its answer, and 200 tokens more; its full blocks begin with those of the one before."""
    assert columns.session_id is not None and columns.turn is not None
    assert columns.think_ns is not None and columns.runs is not None
    last: dict[str, int] = {}
    for k, session in enumerate(columns.session_id):
        if columns.tenant[k] != "agent":
            continue
        before = last.get(session)
        if before is None:
            assert columns.turn[k] == 0 and columns.think_ns[k] is None
        else:
            assert columns.turn[k] == columns.turn[before] + 1
            assert columns.think_ns[k] == 3 * 10**9
            assert columns.input_tokens[k] == columns.input_tokens[before] + columns.output_tokens[before] + 200
            full = int(columns.input_tokens[before]) // 16
            assert ids(columns.runs[k])[:full] == ids(columns.runs[before])[:full]
        last[session] = k
    assert len(last) == pytest.approx(200, rel=0.3)


def ids(runs: list[list[int]]) -> list[int]:
    return [i for _, first, length in runs for i in range(first, first + length)]


def test_same_seed_same_bytes_and_it_loads(tmp_path: Path) -> None:
    spec = read_spec(spec_file(tmp_path))
    for name in ("a", "b"):
        write_jsonl(generate(spec), tmp_path / f"{name}.jsonl.gz")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    other = generate(read_spec(spec_file(tmp_path), {"seed": 6}))
    assert not np.array_equal(other.input_tokens, generate(spec).input_tokens)
    trace = read_trace(tmp_path / "a.jsonl.gz")
    assert (trace.report.rows_kept, trace.report.rows_dropped, trace.report.format) == (4000, {}, "canonical_jsonl")
    assert trace.extras is not None
    think = trace.extras["think_ns"].drop_null().unique().to_pylist()
    assert think == [3 * 10**9]
    # one tenant's settings do not move another's
    changed = generate(read_spec(spec_file(tmp_path, TENANTS.replace("input = 200", "input = 300"))))
    chat = [k for k, tenant in enumerate(changed.tenant) if tenant == "chat"]
    plain = generate(spec)
    as_before = [n for n, t in zip(plain.input_tokens.tolist(), plain.tenant, strict=True) if t == "chat"]
    assert changed.input_tokens[chat].tolist() == as_before


def test_resampled_from_a_trace(tmp_path: Path) -> None:
    class Pool:
        prompt_tokens = np.array([10, 20, 30], np.int64)
        output_tokens = np.array([1, 2, 3], np.int64)

    columns = generate(spec_of({"requests": 500}), Pool())
    pairs = set(zip(columns.input_tokens.tolist(), columns.output_tokens.tolist(), strict=True))
    assert pairs == {(10, 1), (20, 2), (30, 3)}


def test_a_broken_spec_file_is_one_line(tmp_path: Path) -> None:
    for text in ("requests = ", "[x", "\x00"):
        with pytest.raises(TracekitError) as caught:
            read_spec(spec_file(tmp_path, text))
        assert "\n" not in str(caught.value)
    with pytest.raises(TracekitError, match="cannot be read"):
        read_spec(tmp_path / "none.toml")
