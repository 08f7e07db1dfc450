"""How long a call takes on a device with a cold cache, and on a CPU for rehearsal."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["Stopwatch", "copy_rate"]


class Stopwatch:
    """Times calls on one device, median of ``repeats``, in microseconds.

    CUDA: the call is captured in a graph, so that no launch from Python is timed. Before every replay twice the L2 cache is
    overwritten: what the call reads comes from memory, and while the device still writes, the host has queued events and graph,
    so that the two events enclose the call alone. ``floor`` is what an all but empty graph shows between them.

    CPU: wall clock of the plain call; it says nothing about kernels and exists so that all of this can be tried without a device.
    """

    def __init__(self, device: str, repeats: int = 30) -> None:
        self.device = torch.device(device)
        self.repeats = repeats
        self._cuda = self.device.type == "cuda"
        if self._cuda:
            cache = torch.cuda.get_device_properties(self.device).L2_cache_size
            self._flush = torch.empty(max(2 * cache, 128 * 2**20), dtype=torch.int8, device=self.device)
        one = torch.zeros(1, device=self.device)
        self.floor = self.microseconds(lambda: one.add_(1))

    def microseconds(self, call: Callable[[], object]) -> float:
        """The median time of ``call``, which must take the same path every time and allocate nothing that it keeps."""
        return self._on_device(call) if self._cuda else self._on_cpu(call)

    def _on_cpu(self, call: Callable[[], object]) -> float:
        call()
        spent = []
        for _ in range(self.repeats):
            start = time.perf_counter_ns()
            call()
            spent.append((time.perf_counter_ns() - start) / 1e3)
        return statistics.median(spent)

    def _on_device(self, call: Callable[[], object]) -> float:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        pairs = []
        for _ in range(self.repeats + 3):
            self._flush.fill_(1)
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            graph.replay()
            pair[1].record()
            pairs.append(pair)
        torch.cuda.synchronize(self.device)
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs[3:])


def copy_rate(watch: Stopwatch, megabytes: int) -> float:
    """Bytes read and written per second by a copy of that size: what memory gives on this device, today."""
    source = torch.zeros(megabytes * 2**20, dtype=torch.int8, device=watch.device)
    target = torch.empty_like(source)
    return 2 * source.numel() / (watch.microseconds(lambda: target.copy_(source)) * 1e-6)
