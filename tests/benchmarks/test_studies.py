"""The studies at tiny sizes: they run, say where their claims come from, and measure what they say they measure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies import batching, chunking, fairness, paging, pd, service, traffic
from benchmarks.studies.__main__ import STUDIES, main
from benchmarks.studies.replays import engine, highest, replayed
from benchmarks.studies.report import Claim, Study, Table, document, markdown
from replay_engine.rules import Order, Rules
from tests.engine.policy_runs import knobs, tell
from tests.engine.test_fairness import widest_gap
from tests.engine.traffic import Row

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "batching": lambda: batching.study(requests=64, rounds=1),
    "chunking": lambda: chunking.study(requests=40),
    "fairness": lambda: fairness.study(requests=150, factor=20.0),
    "paging": lambda: paging.study(requests=60),
    "pd": lambda: pd.study(requests=8, cards=2, rounds=0, prompts=(8000,), most=0.25),
}


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_runs(name: str) -> None:
    study = TINY[name]()
    assert study.name == name
    assert study.claims and study.reading and "20" in study.source
    for table in study.tables:
        assert table.columns[-1] == "n"
        assert all(len(row) == len(table.columns) and row[-1] > 0 for row in table.rows)  # type: ignore[operator]
    assert json.loads(json.dumps(document(study)))["schema"] == "tracekit.study/1"
    assert markdown(study).startswith(f"# {study.title}\n")


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_its_page_is_of_this_study(name: str) -> None:
    page = (ROOT / "docs" / "studies" / f"{name}.md").read_text(encoding="utf-8")
    study = TINY[name]()
    assert page.startswith(f"# {study.title}\n\n<!-- made by: python -m benchmarks.studies {name} --markdown -->")
    assert study.source in page
    assert all(paragraph in page for paragraph in study.reading)
    assert "SYNTHETIC" not in page
    assert f"({name}.md)" in (ROOT / "docs" / "studies" / "README.md").read_text(encoding="utf-8")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["paging", "--json", "--requests", "30"])
    assert json.loads(capsys.readouterr().out)["name"] == "paging"
    main(["paging", "--requests", "30"])
    assert re.search(r"\| paged \|", capsys.readouterr().out)


def test_a_claim_that_does_not_come_out_is_said() -> None:
    study = Study(
        name="x", title="X", source="s", setup=(), tables=[Table(title="t", columns=("a", "n"), rows=[("b", 12345)])],
        claims=[Claim(text="c", value=0.123, met=False)],
    )  # fmt: skip
    assert "| c | 0.123 | NO |" in markdown(study)
    assert "| b | 12,345 |" in markdown(study)


def test_the_highest_rate_need_not_hold_below() -> None:
    found = highest([1.0, 2.0, 4.0, 8.0], lambda rate: 1.5 <= rate <= 5.0, 20)
    assert found == pytest.approx(5.0, rel=1e-3)
    assert highest([1.0, 2.0], lambda rate: False, 3) == 0
    assert highest([1.0, 2.0], lambda rate: True, 3) == 2


def test_service_is_measured_as_the_tests_of_fairness_measure_it() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    rows = [Row(0, int(p), int(o), tenant=int(t)) for p, o, t in rng.integers(1, 40, (60, 3)) % [40, 40, 3] + [1, 1, 0]]
    told = tell(rows, knobs(max_num_seqs=6, num_gpu_blocks=41, max_model_len=160), Rules(order=Order(by="fair")))
    assert told.outcomes["preemptions"].sum() > 0
    prompt, tenant = np.array([row.prompt for row in rows]), np.array([row.tenant for row in rows], np.int32)
    rate = service.served(told.spans(), prompt, tenant, (1.0, 2.0))
    expected = told.service(1.0, 2.0)
    for code, own in expected.items():
        length = min(len(own), rate.shape[1])
        assert rate[code][:length].tolist() == own[:length].tolist()
        assert rate[code].sum() == own.sum()
    waits = service.backlogged(told.spans(), told.iterations, tenant, rate.shape[1])
    assert service.widest_gap(rate, waits) == widest_gap(told, Order())


def test_without_the_files_synthetic_traffic_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(traffic, "TRACES", tmp_path)
    made = traffic.chat_lengths(50, "lengths_sharegpt_predicted.csv", 2048, (100, 280))
    assert made.total == 50 and "SYNTHETIC" in made.said
    tenants = traffic.tenant_trace(200)
    assert tenants.tenant is not None and len(set(tenants.tenant.tolist())) > 5 and "SYNTHETIC" in tenants.said
    assert replayed(tenants.faster(10.0), engine()).requests == 200
