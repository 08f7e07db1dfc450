"""Times every kernel: microseconds, GB/s and percent of a copy measured in the same run, TFLOP/s; cold caches.

    python -m replay_kernels.bench [--trials] [--json FILE]
    python -m replay_kernels.bench --device cpu --tiny        rehearses it on the references; the numbers mean nothing

Needs torch, triton and numpy. A line that fails says why, and the next one goes on; exit code 1 if any did.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from replay_kernels.timing import Stopwatch, copy_rate
from replay_kernels.workloads import Floor, Workload, workloads

__all__ = ["Line", "lines", "main"]


class Line(NamedTuple):
    """One measured workload. ``reached`` is None where nothing is promised; ``error`` says why there are no numbers."""

    name: str
    shape: str
    microseconds: float | None
    gigabytes_per_second: float | None
    percent_of_copy: float | None
    tflops: float | None
    floor: str
    reached: bool | None
    error: str


def lines(watch: Stopwatch, rate: float, todo: Iterator[Workload]) -> Iterator[Line]:
    """Measures one workload after the other; ``rate`` is the copy's, in bytes per second. Off CUDA no floor is judged."""
    judged = watch.device.type == "cuda"
    for one in todo:
        try:
            spent = watch.microseconds(one.prepare()) * 1e-6
        except Exception as error:  # one kernel that fails must not stop the others; it is reported
            first = (str(error).splitlines() or [""])[0]
            yield Line(one.name, one.shape, None, None, None, None, _floor(one.floor), None, f"{type(error).__name__}: {first}")
            continue
        moved = one.moved / spent
        values = {"percent": 100 * moved / rate, "tflops": one.operations / spent / 1e12, "microseconds": spent * 1e6}
        yield Line(
            name=one.name,
            shape=one.shape,
            microseconds=round(spent * 1e6, 2),
            gigabytes_per_second=round(moved / 1e9, 1),
            percent_of_copy=round(values["percent"], 1),
            tflops=round(values["tflops"], 1) if one.operations else None,
            floor=_floor(one.floor),
            reached=None if one.floor is None or not judged else _reached(one.floor, values[one.floor.unit]),
            error="",
        )


def _reached(floor: Floor, value: float) -> bool:
    return value <= floor.value if floor.unit == "microseconds" else value >= floor.value


def _floor(floor: Floor | None) -> str:
    return "" if floor is None else f"{floor.value:g} {floor.unit}"


def _shown(line: Line) -> str:
    if line.error:
        return f"{line.name:22} {line.shape:44} FAILED: {line.error}"
    tflops = "" if line.tflops is None else f"{line.tflops:7.1f} TFLOP/s"
    rate = f"{line.microseconds:10.1f} us {line.gigabytes_per_second:8.1f} GB/s {line.percent_of_copy:6.1f} % of copy"
    verdict = "" if line.reached is None else f"  floor {line.floor}: {'reached' if line.reached else 'MISSED'}"
    return f"{line.name:22} {line.shape:44} {rate} {tflops:16}{verdict}"


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m replay_kernels.bench", description="Time every kernel.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (references, for rehearsal)")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes and few repeats: tries the program, not the device")
    parser.add_argument("--trials", action="store_true", help="also the other tiles of the launch table, at one shape each")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    given = parser.parse_args(words)
    if given.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device; --device cpu --tiny tries the program without one", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    watch = Stopwatch(given.device, repeats=3 if given.tiny else 30)
    rate = copy_rate(watch, 1 if given.tiny else 1024)
    device = torch.cuda.get_device_name(watch.device) if watch.device.type == "cuda" else "CPU, references: a rehearsal"
    print(f"{device}; copy {rate / 1e9:.0f} GB/s (read and written); an empty graph shows {watch.floor:.1f} us", flush=True)
    measured = []
    for line in lines(watch, rate, workloads(given.device, torch.bfloat16, given.tiny, given.trials)):
        print(_shown(line), flush=True)
        measured.append(line)
    if given.json is not None:
        rehearsal = watch.device.type != "cuda"
        whole: dict[str, Any] = {"device": device, "rehearsal": rehearsal, "copy_bytes_per_second": rate, "empty_us": watch.floor}
        given.json.write_text(json.dumps(whole | {"lines": [line._asdict() for line in measured]}, indent=1) + "\n")
    return 1 if any(line.error for line in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
