"""vLLM iteration logs with planted costs: how fast they are parsed and fitted, and whether the costs come back.

``python -m benchmarks.calibrate_logs [--json] [--lines N] [--variants N]``. A log of a million lines, 5 % noise on each time and
one line in a hundred corrupt (cut, wrapped, written into, or a digit lost), on one core (the process binds itself to one). Then
logs of residual waits, as asynchronous scheduling leaves them, of many makes of host and device: none may pass for whole ones.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Figure, Report, run_main
from replay_engine.profile import Latency

__all__ = ["PLANTED", "Planted", "corrupted", "main", "measure", "residual", "write_log"]

PLANTED = Latency(floor_ns=6_370_000.0, a_ns=1_541_600.0, b_ns=19_600.0, c_ns=0.93, d_ns=11_300.0, e_ns=41.3, h0_ns=1_000_000.0)
KV_TOKENS, BLOCK = 433_136, 16
Column = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Planted:
    """Columns of iterations, durations (ns) from ``PLANTED`` with noise."""

    prompts: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    decodes: npt.NDArray[np.int64]
    usage: Column
    device_ns: Column

    @classmethod
    def draw(cls, n: int, *, seed: int = 0, noise: float = 0.05, planted: Latency = PLANTED) -> Planted:
        """Load that swings slowly, prompts in one iteration of six."""
        draw = np.random.default_rng(seed)
        swing = 0.55 + 0.45 * np.sin(np.arange(n) / 4000 + draw.uniform(0, 6))
        decodes = np.maximum(draw.poisson(3 + 140 * swing), 1)
        kv = decodes * draw.uniform(400, 2200, n) * (0.6 + 0.4 * np.cos(np.arange(n) / 2500))
        prompts = np.where(draw.random(n) < 1 / 6, draw.integers(1, 4, n), 0)
        each = np.clip(draw.lognormal(5.6, 0.9, (3, n)), 8, 2600).astype(np.int64)
        lengths = np.where(np.arange(3)[:, None] < prompts, each, 0)
        tokens, qk = lengths.sum(axis=0), (lengths.astype(np.float64) ** 2 / 2).sum(axis=0)
        base = np.maximum(planted.floor_ns, np.where(tokens > 0, planted.a_ns, 0) + planted.b_ns * tokens)
        device = base + planted.c_ns * qk + planted.d_ns * decodes + planted.e_ns * kv
        used = kv + tokens + (decodes + prompts) * (BLOCK - 1) / 2
        device *= np.maximum(1 + noise * draw.standard_normal(n), 0.5)
        return cls(prompts=prompts, tokens=tokens, decodes=decodes, usage=used / KV_TOKENS, device_ns=device)


def residual(planted: Planted, host_ns: Column) -> Planted:
    """What asynchronous scheduling logs of it: the wait left after the host's own work for the next iteration."""
    waits = np.maximum(planted.device_ns - host_ns, 20_000.0)
    return Planted(
        prompts=planted.prompts, tokens=planted.tokens, decodes=planted.decodes, usage=planted.usage, device_ns=waits
    )  # fmt: skip


def write_log(file: Path, planted: Planted, *, head: str = "", period_ns: Column | None = None, corrupt: float = 0.0) -> None:
    """As vLLM prints it; the clock goes on by ``period_ns`` an iteration."""
    at = np.cumsum(planted.device_ns + PLANTED.h0_ns if period_ns is None else period_ns) / 1e9
    rows = zip(
        at.astype(np.int64).tolist(), planted.prompts.tolist(), planted.tokens.tolist(), planted.decodes.tolist(),
        (planted.device_ns / 1e6).tolist(), (100 * planted.usage).tolist(), strict=True,
    )  # fmt: skip
    bad = np.random.default_rng(9).random(len(at)) < corrupt
    with file.open("w", encoding="utf-8") as out:
        out.write(head)
        for number, (second, prompts, tokens, decodes, ms, usage) in enumerate(rows):
            day, rest = divmod(second, 86400)
            clock = f"04-{1 + day:02d} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
            line = (
                f"(EngineCore_DP0 pid=1807) INFO {clock} [core.py:377] Iteration({number}): {prompts} context requests, {tokens}"
                f" context tokens, {decodes} generation requests, {decodes} generation tokens, iteration elapsed time:"
                f" {ms:.2f} ms, GPU KV cache usage: {usage:.1f}%\n"
            )
            out.write(corrupted(line, number) if bad[number] else line)


def corrupted(line: str, number: int) -> str:
    """Cut short, wrapped by a terminal, written into by another process, or with a digit of its time lost."""
    kind, cut = number % 4, 60 + number % 110
    if kind == 0:
        return line[:cut] + "\n"
    if kind == 1:
        return line[:cut] + "\n" + line[cut:]
    if kind == 2:
        return line[:cut] + '(APIServer pid=7) INFO:     10.0.0.1:53284 - "POST /v1/completions HTTP/1.1" 200 OK\n' + line[cut:]
    start, _, rest = line.partition("elapsed time: ")
    return start + "elapsed time: " + rest[1:]


def _calibrated(file: Path, *sets: str, prior: bool = True) -> tuple[Latency, dict[str, object], float]:
    from tracekit.calibration import SourceRequest, calibrate_source

    prior_file = file.with_suffix(".prior.toml")
    prior_file.write_text(f'name = "prior"\nphysics = "off"\n[latency]\nc_ns = {PLANTED.c_ns}\n', encoding="utf-8")
    start = time.process_time()
    request = SourceRequest(source=str(file), sets=sets, prior=str(prior_file) if prior else None)
    report = calibrate_source(request)
    spent = time.process_time() - start
    return report.profile.latency, report.to_dict(), spent


HEAD = f"INFO 04-01 00:00:00 [kv_cache_utils.py:1286] GPU KV cache size: {KV_TOKENS:,} tokens\n"
SYNCHRONOUS = HEAD + "INFO 04-01 00:00:00 [vllm.py:1042] Asynchronous scheduling is disabled.\n"


def _planted_figures(folder: Path, lines: int, report: Report) -> None:
    file = folder / "planted.log"
    write_log(file, Planted.draw(lines), head=SYNCHRONOUS, corrupt=0.01)
    found, document, spent = _calibrated(file)
    report.figures["seconds"] = Figure(
        value=spent, unit="s", target=10.0, at_most=True, reference=f"{lines:,} lines read, parsed and fitted on one core"
    )
    for name in ("floor_ns", "a_ns", "b_ns", "d_ns", "e_ns", "h0_ns"):
        off = 100 * abs(getattr(found, name) / getattr(PLANTED, name) - 1)
        report.figures[f"{name}_error"] = Figure(
            value=off, unit="%", target=2.0, at_most=True, reference="against what was planted"
        )
    read = document["read"]
    assert isinstance(read, dict)
    lost = 100 * read["lost"] / lines
    report.figures["lost_lines"] = Figure(value=lost, unit="%", reference=f"{read['repaired']:,} broken ones were put together")
    file.unlink()


def _residual_figures(folder: Path, variants: int, lines: int, report: Report) -> None:
    from tracekit.errors import InputError

    draw = np.random.default_rng(4)
    told, unsaid, refused, whole = 0, 0, 0, 0
    for number in range(variants):
        planted = Planted.draw(lines, seed=number + 1, noise=0.05)
        mean = float(draw.uniform(0.05, 0.9)) * float(np.median(planted.device_ns))
        host = np.maximum(mean * (1 + 0.15 * draw.standard_normal(lines)), 0) + 4000.0 * planted.decodes
        file = folder / "residual.log"
        says = number % 2 == 0
        head = HEAD + ("INFO 04-01 00:00:00 [vllm.py:1042] Asynchronous scheduling is enabled.\n" if says else "")
        write_log(file, residual(planted, host), head=head, period_ns=np.maximum(planted.device_ns, host), corrupt=0.01)
        try:
            document = _calibrated(file)[1]
        except InputError:
            refused += 1
            continue
        if document["bound"] == "none":
            whole += 1
        elif str(document["why"]).startswith("nothing says"):
            unsaid += 1
        else:
            told += 1
    report.figures["residual_taken_for_whole"] = Figure(
        value=float(whole), unit="logs", target=0.0, at_most=True, reference=f"of {variants} logs of residual waits"
    )
    report.figures["residual_refused"] = Figure(value=float(refused), unit="logs", reference="hardly any wait was left")
    report.figures["residual_proved"] = Figure(
        value=float(told), unit="logs", reference="lower bound: the log or its shape says so"
    )
    report.figures["residual_by_default"] = Figure(
        value=float(unsaid), unit="logs", reference="lower bound: nothing in the log proves that it is whole"
    )


def measure(given: argparse.Namespace) -> Report:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    os.environ["POLARS_MAX_THREADS"] = "1"
    report = Report(
        benchmark="calibrate_logs",
        notes=["CPU time of the process, bound to one core; the pages of the log are in memory"],
    )
    with tempfile.TemporaryDirectory() as name:
        _planted_figures(Path(name), given.lines, report)
        _residual_figures(Path(name), given.variants, max(1000, given.lines // 50), report)
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of the planted log (default 1,000,000)")
    parser.add_argument("--variants", type=int, default=40, help="logs of residual waits (default 40)")


def main(argv: list[str] | None = None) -> None:
    run_main(
        "calibrate_logs", "vLLM iteration logs with planted costs: speed and costs found.", measure, argv, _options
    )


if __name__ == "__main__":
    main()
