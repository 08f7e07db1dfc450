"""Manifests of work that is no replay: what lies in them, and what ``replay --from`` says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracekit.cli.main import main
from tracekit.fingerprint import digest_of

SLO = ["--slo", "ttft=500ms,tpot=50ms"]
SMALL = ["--requests", "120", "--arrival", "poisson:rate=20", "--input", "lognormal:median=300,sigma=0.6", "--output",
         "lognormal:median=20,sigma=0.5", "--seed", "3"]  # fmt: skip
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
          "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
          "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One piece of work of every kind, and where its manifest must lie."""
    folder = tmp_path_factory.mktemp("work")
    trace, db, base, gate = (str(folder / name) for name in ("t.jsonl", "a.duckdb", "base.json", "gate.json"))
    model = str(folder / "config.json")
    Path(model).write_text(json.dumps(CONFIG))
    assert main(["synth", trace, *SMALL]) == 0
    beside = ["--db", db, "--gate-file", gate, "--seeds", "2", "--seed", "0"]
    assert main(["gate", trace, *SLO, "--write-baseline", base, *beside]) == 0
    assert main(["gate", trace, *SLO, "--gate", "tpot_p50<=+9%", "--baseline", base, *beside]) == 0
    assert main(["replay", trace, *SLO, "--db", db]) == 0
    assert main(["diagnose", "last", "--no-prove", "--db", db]) == 0
    windows = ["--windows", "1", "--length", "3s", "--db", db]
    assert main(["experiment", trace, "--vary", "max_num_seqs=64,8", *SLO, "--jobs", "1", *windows]) in (0, 4)
    assert main(["capacity", trace, *SLO, *windows]) == 0
    assert main(["tune", trace, *SLO, "--trials", "2", "--workers", "1", "--holdout", "1", *windows]) == 0
    assert main(["calibrate", model, "--hardware", "h100", "--out", str(folder / "paper.toml")]) == 0
    kept = folder / "a.duckdb.d"
    return {
        "gate": folder / "gate.manifest.json", "diagnose": kept / "runs" / "1" / "diagnosis-1.manifest.json",
        "experiment": kept / "experiments" / "1.manifest.json", "calibrate": folder / "paper.manifest.json",
        "capacity": next((kept / "tune").glob("capacity-*")) / "manifest.json",
        "tune": next(path for path in (kept / "tune").iterdir() if not path.name.startswith("capacity")) / "manifest.json",
    }  # fmt: skip


KINDS = ("gate", "diagnose", "experiment", "capacity", "tune", "calibrate")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_the_work_rests_on(made: dict[str, Path], kind: str) -> None:
    found = read(made[kind])
    assert (found["schema"], found["verb"]) == ("tracekit.work-manifest/1", kind)
    assert set(found["versions"]) >= {"tracekit", "code", "python", "numpy", "duckdb"}
    assert found["rests_on"]
    assert found["results"]["document"]
    assert found["host"]["cores"] >= 1


def test_a_gates_manifest_names_its_inputs_seeds_and_result(made: dict[str, Path]) -> None:
    found = read(made["gate"])
    assert [each["role"] for each in found["inputs"]] == ["trace", "baseline"]
    assert found["options"]["gates"] == ["tpot_p50<=+9%"]
    assert (found["options"]["seeds"], found["options"]["seed"]) == (2, 0)
    assert found["rests_on"]["trace"]["requests"] == 120
    assert found["results"]["document"] == digest_of(read(made["gate"].with_name("gate.json")))


@pytest.mark.parametrize("kind", KINDS)
def test_replay_from_it_says_which_command_to_run(made: dict[str, Path], kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--from", str(made[kind]), "--db", str(made["gate"].with_name("b.duckdb"))]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert f"of tracekit {kind}, which replay does not repeat; run: " in lines[0]
    assert "not as it was" not in lines[0]


def test_it_says_which_input_has_changed(made: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    document = read(made["gate"])
    document["command"] = "tracekit gate t.jsonl --gate 'tpot_p50<=+9%'"
    document["inputs"][1]["sha256"] = "0" * 16
    (tmp_path / "gate.manifest.json").write_text(json.dumps(document))
    assert main(["replay", "--from", str(tmp_path / "gate.manifest.json")]) == 2
    said = capfd.readouterr().err.strip()
    base = document["inputs"][1]["file"]
    assert said.endswith(f"run: tracekit gate t.jsonl --gate 'tpot_p50<=+9%' ({base}: not as it was then)")


def test_no_password_of_a_database_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tracekit.work_manifest import write_work_manifest

    address = "postgresql://me:secret@host/db"
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/tracekit", "tune", "t.jsonl", f"--storage={address}"])
    write_work_manifest(tmp_path / "m.json", "tune", given={"storage": address, "seed": 0}, rests_on={"key": "k"}, result={})
    text = (tmp_path / "m.json").read_text()
    assert "secret" not in text
    assert "somewhere" not in text
    assert read(tmp_path / "m.json")["options"] == {"seed": 0}
    assert read(tmp_path / "m.json")["command"] == "tracekit tune t.jsonl --storage=postgresql://host/db"
