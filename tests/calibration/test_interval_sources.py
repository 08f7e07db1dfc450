"""vLLM's ten-second lines and snapshots of its metrics: what means tell comes back, what they do not is said or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from replay_engine.profile import Latency, load_profile
from tests.diagnosis.loads import setup_of_recipe
from tracekit.calibration import SourceRequest, calibrate_source
from tracekit.calibration.sources import SourceReport, find_kind
from tracekit.cli.main import main
from tracekit.diagnosis import RunData
from tracekit.errors import InputError, UsageError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
BLOCKS = 40_000
EVERY_NS = 10_000_000_000
RECIPE: dict[str, object] = {
    "seed": 21,
    "engine": {"cost": "S80", "budget": 2048, "seats": 256, "kv_tokens": BLOCKS * 16, "step": "mixed", "admit": "chunk"},
    "load": [
        {"cls": "idle", "n": 600, "arrive": "poisson(2.5)", "isl": "ln(300,0.6,50,3000)", "osl": "ln(500,0.4,50,1500)"},
        {"cls": "busy", "n": 1500, "arrive": "poisson(6.0) from 240", "isl": "ln(500,0.6,50,3000)", "osl": "ln(500,0.4,50,1500)"},
        {"cls": "read", "n": 900, "arrive": "poisson(4.0) from 490", "isl": "ln(3500,0.4,500,9000)", "osl": "ln(300,0.4,50,900)"},
        {"cls": "long", "n": 700, "arrive": "poisson(3) from 720", "isl": "ln(4000,0.4,500,9000)", "osl": "ln(900,0.3,90,1800)"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunData.replayed(setup_of_recipe(RECIPE, tmp_path_factory.mktemp("run")))


def means(run: RunData) -> dict[str, npt.NDArray[Any]]:
    """Per ten seconds: tokens in and out, gaps between tokens with their sum (ns); at their ends who runs, how full KV is."""
    rows = run.iterations
    ends = rows["start_ns"] + rows["duration_ns"]
    bins = (ends // EVERY_NS).astype(np.int64)
    count = int(bins.max()) + 1
    firsts = (run.outcomes["arrival_ns"] + run.outcomes["ttft_ns"]) // EVERY_NS
    gaps = np.bincount(bins, rows["decode_seqs"], count)
    last = np.searchsorted(ends, (np.arange(count) + 1) * EVERY_NS, "right") - 1
    return {
        "prompt": np.bincount(bins, rows["prefill_tokens"], count), "gaps": gaps,
        "generation": gaps + np.bincount(firsts, minlength=count)[:count],
        "sum_ns": np.bincount(bins, rows["decode_seqs"] * rows["duration_ns"].astype(np.float64), count),
        "running": rows["running"][last], "usage": rows["kv_used"][last] / BLOCKS,
    }  # fmt: skip


def stats_log(run: RunData, path: Path, *, header: bool = True, broken: bool = False, hits: float = 0.0) -> str:
    found = means(run)
    lines = [f"INFO 11-30 05:13:32 [kv_cache_utils.py:1] GPU KV cache size: {BLOCKS * 16:,} tokens"] if header else []
    for k in range(len(found["gaps"])):
        line = (
            f"(APIServer pid=1) INFO 11-30 05:13:{k % 60:02} [loggers.py:259] Engine 000: Avg prompt throughput:"
            f" {found['prompt'][k] / 10:.1f} tokens/s, Avg generation throughput: {found['generation'][k] / 10:.1f} tokens/s,"
            f" Running: {found['running'][k]} reqs, Waiting: 0 reqs, Preemptions: 0, GPU KV cache usage:"
            f" {100 * found['usage'][k]:.1f}%, Prefix cache hit rate: {hits:.1f}%, MM cache hit rate: 99.0%"
        )
        lines += ["INFO:     10.0.0.1:53284 - POST 200 OK", line[: 120 if broken and k % 9 == 4 else None]]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def pages(run: RunData) -> list[str]:
    """What ``/metrics`` shows at the end of each ten seconds."""
    found, labels, told = means(run), '{engine="0",model_name="m"}', []
    totals = {name: np.cumsum(found[name]) for name in ("prompt", "generation", "gaps", "sum_ns")}
    for k in range(len(found["gaps"])):
        told.append("\n".join([
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge", f"vllm:num_requests_running{labels} {float(found['running'][k])}",
            f"vllm:kv_cache_usage_perc{labels} {found['usage'][k]}",
            f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{BLOCKS}"}} 1.0',
            f"vllm:prompt_tokens_total{labels} {totals['prompt'][k]}",
            f"vllm:generation_tokens_total{labels} {totals['generation'][k]:e}",
            'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 3.0',
            f"vllm:inter_token_latency_seconds_count{labels} {totals['gaps'][k]}",
            f"vllm:inter_token_latency_seconds_sum{labels} {totals['sum_ns'][k] / 1e9} 1764479612000", "python_gc_total 3.0", "",
        ]))  # fmt: skip
    return told


def snapshots(run: RunData, path: Path, first: int | None = None) -> str:
    path.write_text("".join(pages(run)[:first]), "utf-8")
    return str(path)


def fitted(source: str, **options: Any) -> SourceReport:
    found = calibrate_source(SourceRequest(source=source, **options))
    assert isinstance(found, SourceReport)
    return found


TRUE = {"floor": 7e6, "b": 31_250.0, "d": 40e3, "e": 43.0}


@pytest.mark.parametrize("kind", ["vllm-stats", "prometheus"])
def test_planted_costs_come_back_as_far_as_means_tell_them(kind: str, run: RunData, tmp_path: Path) -> None:
    path = (stats_log if kind == "vllm-stats" else snapshots)(run, tmp_path / "source")
    assert find_kind(SourceRequest(source=path)) == kind
    report = fitted(path)
    assert report.kind == kind and report.document["median_error"] < 0.05
    terms = {term["name"]: term for term in report.document["terms"]}
    assert terms["b"]["verdict"] == "identified"
    for name, term in terms.items():
        if term["verdict"] == "identified":
            assert term["value"] == pytest.approx(TRUE[name], rel=0.15), term
        else:
            assert 0.5 * term["low"] <= TRUE[name] <= 1.5 * term["high"], term
    again = replace(run.setup, profile=report.profile)
    ours, theirs = RunData.replayed(again).outcomes, run.outcomes
    later = [float((rows["e2e_ns"] - rows["ttft_ns"]).mean()) for rows in (ours, theirs)]
    assert later[0] == pytest.approx(later[1], rel=0.05)
    assert report.profile.latency.c_ns == 0 and "not told by means" in report.profile.provenance["c_ns"]
    assert report.profile.latency.a_ns == report.profile.latency.floor_ns and report.profile.latency.h0_ns == 0


def test_a_folder_of_pages_is_the_same_as_one_file(run: RunData, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    for k, page in enumerate(pages(run)):
        (folder / f"{k:04}.prom").write_text(page, "utf-8")
    one = calibrate_source(SourceRequest(source=str(folder)), "prometheus").profile
    assert one.latency == fitted(snapshots(run, tmp_path / "all.prom")).profile.latency


def test_a_restart_and_broken_lines_tell_nothing(run: RunData, tmp_path: Path) -> None:
    whole = fitted(stats_log(run, tmp_path / "a.log"))
    broken = fitted(stats_log(run, tmp_path / "b.log", broken=True))
    assert broken.document["intervals"]["steady"] < whole.document["intervals"]["steady"]
    assert broken.profile.latency.b_ns == pytest.approx(whole.profile.latency.b_ns, rel=0.1)
    told = pages(run)
    twice = tmp_path / "twice.prom"
    twice.write_text("".join(told + told), "utf-8")  # the counters begin again
    once, again = fitted(snapshots(run, tmp_path / "once.prom")), fitted(str(twice))
    assert again.profile.latency.b_ns == pytest.approx(once.profile.latency.b_ns, rel=0.05)
    assert again.document["intervals"]["steady"] == 2 * once.document["intervals"]["steady"]


def test_what_the_size_of_the_cache_and_prefix_hits_leave_open_is_said(run: RunData, tmp_path: Path) -> None:
    path = stats_log(run, tmp_path / "no.log", header=False, hits=37.0)
    bare = fitted(path)
    told = [*bare.profile.provenance.values(), *(str(cell) for table in bare.tables for row in table.rows for cell in row)]
    assert not any(word.startswith("nan") for text in told for word in text.split()), "no range where nothing is told"
    report = fitted(path)
    terms = {term["name"]: term for term in report.document["terms"]}
    assert report.profile.latency.e_ns == 0 and "KV cache is not known" in terms["e"]["verdict"]
    assert any("LOWER BOUND" in line for line in report.lines)
    sized = fitted(path, sets=(f"num_gpu_blocks={BLOCKS}",))
    assert sized.profile.latency.e_ns > 0 and not any("cannot be told apart" in line for line in sized.lines)
    assert sized.profile.latency == fitted(stats_log(run, tmp_path / "with.log")).profile.latency
    unsized = fitted(path, prior="h100")  # nothing to hold e against, so the card's peaks do not count
    assert unsized.profile.synthetic and unsized.profile.model is not None


def test_a_prior_holds_what_means_do_not_tell(run: RunData, tmp_path: Path) -> None:
    text = Path(stats_log(run, tmp_path / "all.log")).read_text("utf-8").splitlines()
    few = tmp_path / "few.log"
    few.write_text("\n".join(text[:60]) + "\n", "utf-8")
    known = Latency(floor_ns=7e6, a_ns=7e6, b_ns=31_250, c_ns=0.5, d_ns=4e4, e_ns=43)
    was = replace(run.setup.profile, name="before", latency=known)
    prior = tmp_path / "prior.toml"
    prior.write_text(was.to_toml(), "utf-8")
    free, held = fitted(str(few)).profile.latency, fitted(str(few), prior=str(prior)).profile.latency
    off = [sum(abs(np.log(max(getattr(each, f"{n}_ns"), 1e-3) / TRUE[n])) for n in TRUE) for each in (free, held)]
    assert off[1] < off[0] and held.c_ns == 0.5


def test_too_little_is_refused(run: RunData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only differences tell a time"):
        fitted(snapshots(run, tmp_path / "one.prom", first=1))
    lines = Path(stats_log(run, tmp_path / "all.log")).read_text("utf-8").splitlines()
    (tmp_path / "few.log").write_text("\n".join(lines[:9]), "utf-8")
    with pytest.raises(InputError, match="steady enough"):
        fitted(str(tmp_path / "few.log"))
    with pytest.raises(UsageError, match="--policy: means nothing"):
        fitted(str(tmp_path / "all.log"), policy="vllm serve m")
    (tmp_path / "not.prom").write_text("up 1.0\n", "utf-8")
    with pytest.raises(InputError, match="no metric of vLLM"):
        calibrate_source(SourceRequest(source=str(tmp_path / "not.prom")), "prometheus")


def test_from_the_command_line(run: RunData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.toml"
    assert main(["calibrate", stats_log(run, tmp_path / "s.log"), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "vllm-stats" and document["profile"]["fit"]["intervals"] > 50
    assert load_profile(out).provenance["kind"].startswith("fitted to") and "ten-second" in load_profile(out).provenance["kind"]
    assert main(["calibrate", snapshots(run, tmp_path / "s.prom")]) == 0
    assert "what the means tell" in capsys.readouterr().out


@pytest.mark.skipif(not SHARED.is_dir(), reason="no measured traces beside the checkout")
@pytest.mark.parametrize(("name", "sets"), [("rtx4090", ("num_gpu_blocks=2588",)), ("rtxpro6000", ())])
def test_statistics_of_a_measured_run_predict_its_requests(name: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    """The statistics of two measured vLLM runs, second by second, as the lines vLLM prints of them; then the requests themselves
    are held against a replay with what was fitted to those means alone."""
    from tracekit.trust import check_profile

    stats = (SHARED / f"vllm_measured_llama8b_{name}.timeseries.csv").read_text("utf-8").split()[1:]
    lines = []
    for _, prompt, generation, running, waiting, usage in (row.split(",") for row in stats):
        lines.append(f"Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generation} tokens/s,"
                     f" Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%")  # fmt: skip
    (tmp_path / "stats.log").write_text("\n".join(lines), "utf-8")
    found = fitted(str(tmp_path / "stats.log"), sets=sets).profile
    seats = ("max_num_seqs=256",) if sets else ("max_num_seqs=128", "num_gpu_blocks=32768")
    settings = (*sets, *seats, "max_num_batched_tokens=2048", "max_model_len=32768", "engine_version=0.20.0")
    report = check_profile(found, str(SHARED / f"vllm_measured_llama8b_{name}.requests.jsonl"), sets=settings)
    errors = {metric: report.parts["all"][metric] for metric in ("ttft", "tpot", "e2e")}
    assert all(each is not None and abs(each["error"]["mean"]) < 0.06 for each in errors.values()), errors


@pytest.mark.parametrize("name", ["m{}.prom", "{}", "metrics-2026-11-30-{}.txt", "{}.prom"])
def test_a_folder_is_read_in_the_order_in_which_a_person_counts(name: str, run: RunData, tmp_path: Path) -> None:
    """m10 comes after m2: in the order of characters the counters would seem to go back, and another profile came out."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for number, page in enumerate(pages(run), start=1):
        (folder / name.format(number)).write_text(page, "utf-8")
    assert fitted(str(folder)).profile.latency == fitted(snapshots(run, tmp_path / "one")).profile.latency
