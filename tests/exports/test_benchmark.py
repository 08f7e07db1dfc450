"""The benchmark of exports at a tiny size."""

from __future__ import annotations

import json

import pytest

from benchmarks import export


def test_the_benchmark_measures(capsys: pytest.CaptureFixture[str]) -> None:
    export.main(["--json", "--requests", "120", "--page-requests", "150"])
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {"perfetto_s", "perfetto_mb", "csv_s", "parquet_s", "html_s", "html_mb", "python_reference"} == set(figures)
    assert figures["perfetto_s"]["note"].endswith("events") and "120 requests" in figures["perfetto_s"]["note"]
    assert 1.1 < figures["html_mb"]["value"] < 3
