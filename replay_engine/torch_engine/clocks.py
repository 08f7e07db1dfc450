"""How long device work took, without ever waiting for it: pooled event pairs on CUDA, a stopwatch where work runs at once."""

from __future__ import annotations

import time
from types import TracebackType

import torch

__all__ = ["CopyClock", "DeviceClock"]


class DeviceClock:
    """Spans of one stream, measured one after the other; ``pairs`` of them may be under way.

    ``start`` and ``stop`` bracket the work as it is enqueued; ``read`` gives the oldest span not read yet, in ns, and must be
    called after something later on the same stream is known to be done. On a CPU work runs as it is enqueued.
    """

    def __init__(self, device: torch.device, pairs: int = 4) -> None:
        self._cuda = device.type == "cuda"
        self._events = [_event_pair() for _ in range(pairs)] if self._cuda else []
        self._spans = [0] * pairs
        self._next = self._oldest = 0
        self._began = 0

    def start(self) -> None:
        if self._cuda:
            self._events[self._next][0].record()
        else:
            self._began = time.perf_counter_ns()

    def stop(self) -> None:
        if self._cuda:
            self._events[self._next][1].record()
        else:
            self._spans[self._next] = time.perf_counter_ns() - self._began
        self._next = (self._next + 1) % len(self._spans)

    def read(self) -> int:
        at = self._oldest
        self._oldest = (at + 1) % len(self._spans)
        if self._cuda:
            first, last = self._events[at]
            return round(first.elapsed_time(last) * 1e6)
        return self._spans[at]


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


class CopyClock:
    """One batch of copies of ``size`` bytes, on ``stream`` (``None``: at once, on a CPU); use as a context around them.

    The copies begin when the stream that is current at entry has come this far.
    """

    __slots__ = ("_context", "_events", "_ns", "_stream", "size")

    def __init__(self, stream: torch.cuda.Stream | None, size: int) -> None:
        self._stream = stream
        self._events = _event_pair() if stream is not None else None
        self._context = torch.cuda.stream(stream) if stream is not None else None
        self._ns = 0
        self.size = size

    def __enter__(self) -> CopyClock:
        if self._stream is None or self._events is None or self._context is None:
            self._ns = time.perf_counter_ns()
            return self
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._context.__enter__()
        self._events[0].record(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._stream is None or self._events is None or self._context is None:
            self._ns = time.perf_counter_ns() - self._ns
            return
        self._events[1].record(self._stream)
        self._context.__exit__(kind, error, trace)

    def hold(self) -> None:
        """The current stream does not go on before the copies are done; the host does."""
        if self._events is not None and self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._events[1])

    def ns(self) -> int | None:
        """How long the copies took; ``None`` while they run."""
        if self._events is None:
            return self._ns
        return round(self._events[0].elapsed_time(self._events[1]) * 1e6) if self._events[1].query() else None

    def wait(self) -> int:
        """How long the copies took, once they are done; the host waits for that."""
        if self._events is None:
            return self._ns
        self._events[1].synchronize()
        return round(self._events[0].elapsed_time(self._events[1]) * 1e6)
