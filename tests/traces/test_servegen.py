"""Requests from per-client statistics: counts per window, burstiness, lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tracekit.errors import InputError, UsageError
from tracekit.generators.servegen import read_client, servegen
from tracekit.traces.load import read_trace
from tracekit.traces.synth import write_jsonl

TRACE = "0,0.5,1.0,Gamma,1.0,2.0\n600,0.0,0.0,,,\n1200,2.0,4.0,Weibull,0.5,0.2\n1800,1.0,0.5,Weibull,2.1,1.1\n"
DATASET = (
    '{"0": {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{7: 1.0}"}, "21600": {},'
    ' "1200": {"text_tokens": "{10: 1.0}", "image_tokens": "{5: 0.5, 15: 0.5}", "output_tokens": "{1: 0.5, 3: 0.5}"}}'
)


@pytest.fixture
def client(write: Callable[..., Path]) -> tuple[Path, Path]:
    return write(TRACE, "c7-trace.csv"), write(DATASET, "c7-dataset.json")


def test_windows_have_their_requests_and_lengths(client: tuple[Path, Path], tmp_path: Path) -> None:
    columns = servegen([client], seed=1)
    assert len(columns) == 300 + 0 + 1200 + 600
    again = servegen([client], seed=1)
    assert (columns.arrival_ns == again.arrival_ns).all()
    assert (columns.input_tokens == again.input_tokens).all()
    assert set(columns.tenant) == {"c7"}
    first, later = columns.input_tokens[:300], columns.input_tokens[300:]
    assert set(first.tolist()) == {100, 300}
    assert first.mean() == pytest.approx(250, rel=0.05)
    assert set(later.tolist()) == {15, 25}
    assert set(columns.output_tokens[300:].tolist()) == {1, 3}
    write_jsonl(columns, tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl").report.rows_kept == 2100


def test_the_gaps_have_the_windows_variation(write: Callable[..., Path]) -> None:
    for family, cv in (("Gamma", 2.0), ("Weibull", 2.0), ("Weibull", 0.5)):
        files = write(f"0,100,{cv},{family},1,1\n600,0,0,,,\n", "a-trace.csv"), write(DATASET, "a.json")
        gaps = np.diff(servegen([files], seed=3).arrival_ns)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_a_part_of_the_time_and_several_clients(client: tuple[Path, Path], write: Callable[..., Path]) -> None:
    part = servegen([client], seconds=600, start_s=1200)
    assert len(part) == 1200
    assert part.arrival_ns[0] == 0
    assert (np.diff(part.arrival_ns) >= 0).all()
    other = write("0,1.0,1.0,Gamma,1,1\n600,0.0,,,,\n", "d8-trace.csv"), client[1]
    both = servegen([client, other], seconds=600)
    assert [both.tenant.count(name) for name in ("c7", "d8")] == [300, 600]
    with pytest.raises(UsageError, match="no request between"):
        servegen([client], seconds=100, start_s=700)
    with pytest.raises(UsageError, match="expected seconds above 0"):
        servegen([client], seconds=0)


def test_literals_are_parsed_and_never_run(write: Callable[..., Path], client: tuple[Path, Path]) -> None:
    for text in ("__import__('os').system('true')", "{1: 1.0", "[1]", "{-1: 1.0}", "{1: -1.0}", "{1: 0.0}"):
        path = write('{"0": {"input_tokens": "%s", "output_tokens": "{1: 1.0}"}}' % text, "bad.json")  # noqa: UP031
        with pytest.raises(InputError, match=r"not a histogram|no window has lengths"):
            read_client(client[0], path)
    with pytest.raises(InputError, match=r"line 2.*not a window"):
        read_client(write("0,1,1,Gamma,1,1\nx,1,1,Gamma,1,1\n", "bad.csv"), client[1])
    with pytest.raises(InputError, match="not a ServeGen data set"):
        read_client(client[0], client[0])


@pytest.mark.parametrize(
    ("name", "rate", "lengths"),
    [
        ("language_m-small_chunk-16", 1.41, (915, 22.7)),
        ("language_m-small_chunk-19", 17.7, (471, 46.2)),
        ("reason_deepseek-r1_chunk-15", 0.39, (16_095, 1_337)),
        ("multimodal_mm-image_chunk-12", 1.28, (2_112, 232)),
    ],
)
def test_public_clients(shared: Callable[[str], Path], name: str, rate: float, lengths: tuple[float, float]) -> None:
    files = shared(f"servegen/{name}-trace.csv"), shared(f"servegen/{name}-dataset.json.gz")
    client = read_client(*files)
    active = client.rate[client.rate > 0]
    assert active.mean() == pytest.approx(rate, rel=0.01)
    begin = float(client.begin_s[np.argmax(client.rate > 0)])
    seconds = 86_400 if rate < 10 else 7200
    columns = servegen([files], start_s=begin, seconds=seconds, seed=1)
    inside = (client.begin_s >= begin) & (client.begin_s < begin + seconds)
    assert len(columns) == pytest.approx((client.rate * client.step_s)[inside].sum(), rel=0.001)
    assert float(columns.input_tokens.mean()) == pytest.approx(lengths[0], rel=0.35)
    assert float(columns.output_tokens.mean()) == pytest.approx(lengths[1], rel=0.5)
