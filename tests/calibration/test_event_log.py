"""Event logs: a recorded run written as one and fitted from it gives what the run gives; what is wrong is one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from replay_engine.profile import load_profile
from tracekit.calibration.event_log import COLUMNS, SCHEMA, write_event_log
from tracekit.cli.main import main
from tracekit.store import Store

COSTS = {"floor_ns": 5e6, "a_ns": 4e6, "b_ns": 3e4, "c_ns": 2.0, "d_ns": 4e4, "e_ns": 50.0}
NEEDED = [each.name for each in COLUMNS if each.needed]


def rows(count: int = 400) -> list[dict[str, Any]]:
    """Iterations as some plug-in would write them, device times from ``COSTS``."""
    draw = np.random.default_rng(3)
    found = []
    for number in range(count):
        seqs = int(draw.integers(1, 60))
        kv, tokens = seqs * int(draw.integers(100, 4000)), int(draw.integers(1, 2000)) if number % 3 == 0 else 0
        qk = tokens * int(draw.integers(0, 3000)) + tokens * tokens // 2
        base = max(COSTS["floor_ns"], COSTS["a_ns"] + COSTS["b_ns"] * tokens)
        device = base + COSTS["c_ns"] * qk + COSTS["d_ns"] * seqs + COSTS["e_ns"] * kv
        found.append({
            "iteration": number, "device_ns": int(device), "host_ns": 900_000, "prefill_tokens": tokens, "prefill_qk": qk,
            "decode_seqs": seqs, "decode_kv_tokens": kv, "note": "of the plug-in's own",
        })  # fmt: skip
    return found


def jsonl(file: Path, lines: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def written(folder: Path, lines: list[dict[str, Any]], kind: str) -> str:
    source = folder / f"log.{kind}"
    if kind != "parquet":
        return jsonl(source, lines)
    pl.DataFrame(lines).write_parquet(source)
    return str(source)


def found(out: Path) -> dict[str, float]:
    latency = load_profile(out).latency
    return {name: getattr(latency, name) for name in COSTS}


@pytest.mark.parametrize("make", ["jsonl", "headed", "parquet", "durations"])
def test_planted_costs_come_back(make: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = rows(), tmp_path / "p.toml"
    if make == "durations":
        lines = [{**line, "duration_ns": line["device_ns"]} for line in lines]
        for line in lines:
            del line["device_ns"]
    if make == "parquet":
        source = str(tmp_path / "log.parquet")
        pl.DataFrame(lines).write_parquet(source)
    else:
        head = [{"schema": SCHEMA, "writer": "plug-in 0.3"}] if make == "headed" else []
        source = jsonl(tmp_path / "log.jsonl", head + lines)
    assert main(["calibrate", source, "--out", str(out), "--json"]) == 0
    assert found(out) == pytest.approx(COSTS, rel=0.01)
    assert load_profile(out).latency.h0_ns == pytest.approx(9e5, rel=0.01)
    if make == "headed":
        assert "plug-in 0.3" in load_profile(out).provenance["kind"]
    capsys.readouterr()


def test_a_recorded_run_is_the_same_source_as_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, log = tmp_path / "db.duckdb", tmp_path / "run.parquet"
    requests = [{"timestamp": 0.05 * i, "input_length": 20 + 37 * i % 900, "output_length": 5 + 11 * i % 70} for i in range(80)]
    trace = jsonl(tmp_path / "trace.jsonl", requests)
    assert main(["replay", trace, "--engine", "sim", "--profile", "h100", "--db", str(db), "--json"]) == 0
    count = write_event_log(Store(db), "last", log)
    assert count == pl.read_parquet(log).height
    latencies = []
    for source, more in (("last", ["--db", str(db)]), (str(log), [])):
        out = tmp_path / "p.toml"
        assert main(["calibrate", source, *more, "--out", str(out), "--json"]) == 0
        latencies.append(load_profile(out).latency)
    assert latencies[0] == latencies[1]
    assert pl.read_parquet_metadata(log)["schema"] == SCHEMA
    capsys.readouterr()


def test_rows_that_nothing_is_known_of_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows()
    late = [{**line, "device_ns": None} for line in lines[:50]]
    slow = [{**line, "device_ns": 100 * line["device_ns"], "mode": "late"} for line in lines[:50]]
    out = tmp_path / "p.toml"
    assert main(["calibrate", jsonl(tmp_path / "log.jsonl", late + slow + lines), "--out", str(out), "--json"]) == 0
    assert found(out) == pytest.approx(COSTS, rel=0.01)
    capsys.readouterr()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_longest_context_is_a_column_of_a_log(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted at 400 ns a token above the mean; where a log does not tell it, nothing is said of it."""
    draw = np.random.default_rng(8)
    lines, out = rows(600), tmp_path / "p.toml"
    for line in lines:
        seqs, kv = line["decode_seqs"], line["decode_kv_tokens"]
        line["decode_longest_tokens"] = int(min(kv, kv / seqs * draw.uniform(1.0, 6.0)) + 0.999) if seqs > 1 else kv
        line["device_ns"] += int(400 * (line["decode_longest_tokens"] - kv / seqs))
    source = written(tmp_path, lines, kind)
    assert main(["calibrate", source, "--out", str(out), "--json"]) == 0
    assert found(out) == pytest.approx(COSTS, rel=0.01)
    assert load_profile(out).latency.s_ns == pytest.approx(400, rel=0.01)
    assert load_profile(out).provenance["s_ns"].startswith("fitted: least squares of 600 iterations")
    capsys.readouterr()
    assert main(["profiles", "show", str(out)]) == 0
    assert "s_ns" in capsys.readouterr().out
    wrong = [{**line, "decode_longest_tokens": 12.0} if number == 6 else line for number, line in enumerate(lines)]
    assert main(["calibrate", jsonl(tmp_path / "wrong.jsonl", wrong), "--out", str(out)]) == 3
    assert "line 7, column decode_longest_tokens: '12': below the mean of the contexts" in capsys.readouterr().err


def test_a_recorded_run_says_who_was_longest_in_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, log, out = tmp_path / "db.duckdb", tmp_path / "run.parquet", tmp_path / "p.toml"
    profile = load_profile("h100")
    mine = tmp_path / "mine.toml"
    mine.write_text(replace(profile, latency=replace(profile.latency, s_ns=250.0)).to_toml(), "utf-8")
    requests = [{"timestamp": 0.05 * i, "input_length": 20 + 337 * i % 4900, "output_length": 5 + 11 * i % 70} for i in range(80)]
    trace = jsonl(tmp_path / "trace.jsonl", requests)
    for name, longest in ((str(mine), True), ("h100", False)):
        assert main(["replay", trace, "--engine", "sim", "--profile", name, "--db", str(db), "--json"]) == 0
        write_event_log(Store(db), "last", log)
        told = pl.read_parquet(log)["decode_longest_tokens"]
        assert told.null_count() == (0 if longest else len(told))
        for source, more in (("last", ["--db", str(db)]), (str(log), [])):
            assert main(["calibrate", source, *more, "--out", str(out), "--json"]) == 0
            assert load_profile(out).latency.s_ns == pytest.approx(250.0 if longest else 0.0, rel=0.01)
    capsys.readouterr()


def without(name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != name} for line in rows(20)]


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        *((without(name), 3, f"column {name}: missing column") for name in NEEDED),
        (without("device_ns"), 3, "device_ns, or duration_ns instead"),
        ([*rows(20)[:-1], {**rows(1)[0], "decode_seqs": -3}], 3, "line 20, column decode_seqs: '-3': below 0"),
        ([{**line, "prefill_qk": "many"} for line in rows(20)], 3, "line 1, column prefill_qk: 'many': not a number"),
        ([{**line, "device_ns": 0} for line in rows(20)], 3, "column device_ns: no row has a time above 0"),
        ([{"schema": SCHEMA}], 3, "no row"),
        ([{"schema": "tracekit.iterations/9"}, *rows(20)], 3, "'tracekit.iterations/9': not a schema that is known here"),
        (rows(3), 2, "cannot tell the coefficients"),
    ],
)
def test_mistakes_are_one_line(
    lines: list[dict[str, Any]], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", jsonl(tmp_path / "log.jsonl", lines), "--as", "events", "--json"]) == code
    out, err = capsys.readouterr()
    assert said in json.loads(out)["error"]
    assert err.count("\n") == 1


WRONG = {
    '{"iteration": 3, "dev': "not JSON", "[1, 2]": "not a JSON object", "NaN": "not JSON",
    json.dumps({**rows(1)[0], "decode_seqs": "many"}): "column decode_seqs: 'many': not a number",
    json.dumps({**rows(1)[0], "decode_seqs": True}): "column decode_seqs: 'True': not a number",
    json.dumps({**rows(1)[0], "device_ns": [3]}): "column device_ns: '[3]': not a number",
    json.dumps({**rows(1)[0], "host_ns": -7}): "column host_ns: '-7': below 0",
    json.dumps({**rows(1)[0], "prefill_qk": float("nan")}): "not JSON",
}  # fmt: skip


@pytest.mark.parametrize("headed", [True, False])
@pytest.mark.parametrize("blank", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_line_that_is_wrong_is_named(
    wrong: str, blank: bool, headed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number is the file's own, with a head line and empty lines counted."""
    lines = [json.dumps({"schema": SCHEMA})] * headed + [""] * blank + [json.dumps(row) for row in rows(40)]
    lines.insert(17, wrong)
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["calibrate", str(file), "--as", "events"]) == 3
    err = capsys.readouterr().err
    assert f"{file}, line 18" in err
    assert WRONG[wrong] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("headed", [True, False])
def test_a_log_that_is_still_being_written_is_read_up_to_its_last_whole_line(
    headed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"schema": SCHEMA})] * headed + [json.dumps(row) for row in rows()]
    file, out = tmp_path / "log.jsonl", tmp_path / "p.toml"
    file.write_text("\n".join(lines)[:-30], encoding="utf-8")
    assert main(["calibrate", str(file), "--as", "events", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"line {len(lines)} is cut short and was left out" in said
    assert "read: 399 iterations, 399 of them fitted" in said
    assert found(out) == pytest.approx(COSTS, rel=0.01)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", [each.name for each in COLUMNS if each.unit != "text"])
def test_null_is_not_known_in_every_column(name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that do not tell what is needed are left out and counted; of the rest what stands for them counts."""
    lines, out = rows(), tmp_path / "p.toml"
    for line in lines:
        line |= {"running": line["decode_seqs"] + (line["prefill_tokens"] > 0), "prefill_seqs": 1 * (line["prefill_tokens"] > 0)}
        line |= dict.fromkeys(("changes", "admitted", "finished", "preempted", "padded_tokens", "engine", "start_ns"), 0)
        line |= {"duration_ns": line["device_ns"], "decode_longest_tokens": line["decode_kv_tokens"]}
    lines = [{**line, name: None} if number % 9 == 2 else line for number, line in enumerate(lines)]
    source = written(tmp_path, lines, kind)
    assert main(["calibrate", source, "--out", str(out), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    asked = name in (*NEEDED, "device_ns", "decode_longest_tokens")
    # of one sequence alone the longest context is no question
    alone = name == "decode_longest_tokens"
    left = sum(line[name] is None and not (alone and line["decode_seqs"] == 1) for line in lines) if asked else 0
    assert notes[0].startswith(f"read: 400 iterations, {400 - left} of them fitted")
    assert (f"; {left} do not tell what they computed" in notes[0]) == (name in NEEDED)
    costs = {key: value for key, value in COSTS.items() if key in ("floor_ns", "b_ns", "c_ns")}
    assert {key: found(out)[key] for key in costs} == pytest.approx(costs, rel=0.02)


def test_the_page_names_every_column() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "event_log.md").read_text(encoding="utf-8")
    for each in COLUMNS:
        (line,) = (line for line in page.splitlines() if line.startswith("|") and f"`{each.name}`" in line.split("|")[1])
        assert ("yes" in line.split("|")[3]) == each.needed, each.name
