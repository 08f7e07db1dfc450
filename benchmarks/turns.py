"""Engines that take turns on one core, each forward pass computed several times: measured times without a busy machine's bursts.

CPU time is not the engine's alone: another core's work, and a hypervisor that takes the core away, make some iterations several
times as long, for tens of milliseconds on end. Near saturation a request's latency multiplies that, so that two runs of the same
settings differ by more than good settings do. Others can only add; so each pass counts by the fastest of its repeats, and
between two repeats every other engine has had a turn, by which time a burst is over. A slow minute falls on all engines alike,
at the same place of the trace. Repeating is harmless: a pass writes the same KV and the same tokens to the same places.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tracekit.cycles import quiet_gc

__all__ = ["Ring", "engine_clock", "least", "together"]


class _Spared(threading.local):
    """CPU time of this thread that does not count, ns."""

    ns = 0


_SPARED = _Spared()
_cpu_ns = time.thread_time_ns


def engine_clock() -> int:
    """CPU time of this thread but for repeats, ns: what an engine measures with."""
    return _cpu_ns() - _SPARED.ns


class Ring:
    """``count`` threads of which one runs at a time; whoever runs says when it is the next one's turn."""

    def __init__(self, count: int) -> None:
        self._gates = [threading.Semaphore(0) for _ in range(count)]
        self._live = list(range(count))
        self._given_up = False

    def start(self) -> None:
        """The first one's turn. To be called by none of them."""
        self._gates[self._live[0]].release()

    def give_up(self) -> None:
        """Nobody's turn comes any more: whoever waits for one ends, as will all others when theirs would come."""
        self._given_up = True
        for gate in self._gates:
            gate.release()

    def wait(self, me: int) -> None:
        """Until it is the turn of ``me``. ``RuntimeError`` when all have been given up."""
        self._gates[me].acquire()
        if self._given_up:
            raise RuntimeError("the turns have been given up")

    def pass_on(self, me: int) -> None:
        """``me`` has had its turn; returns when the next one has come. ``RuntimeError`` when all have been given up."""
        if not self._given_up:
            self._gates[self._after(me)].release()
        self.wait(me)

    def leave(self, me: int) -> None:
        """``me`` has ended."""
        if self._given_up:
            return
        other = self._after(me)
        self._live.remove(me)
        if other != me:
            self._gates[other].release()

    def _after(self, me: int) -> int:
        return self._live[(self._live.index(me) + 1) % len(self._live)]


def least(compute: Callable[..., Any], repeats: int, pass_on: Callable[[], None]) -> Callable[..., Any]:
    """``compute``, done ``repeats`` times with a turn of the others before each; ``engine_clock`` counts the fastest one."""

    def repeated(*given: Any) -> Any:
        began, spans, found = _cpu_ns(), [], None
        for _ in range(repeats):
            pass_on()
            at = _cpu_ns()
            found = compute(*given)
            spans.append(_cpu_ns() - at)
        _SPARED.ns += _cpu_ns() - began - min(spans)
        return found

    return repeated


def together(jobs: Sequence[Callable[[Callable[[], None]], Any]]) -> list[Any]:
    """What ``jobs`` return, each run in a thread of its own, one at a time, and given the function that passes the turn on. No
    cycles are collected meanwhile. The first exception of a job is raised when all have ended; where a thread cannot be
    started, or the wait for them is interrupted, none of the others is left waiting for its turn."""
    ring, found, failed = Ring(len(jobs)), [None] * len(jobs), list[BaseException]()

    def run(me: int) -> None:
        try:
            ring.wait(me)
            found[me] = jobs[me](lambda: ring.pass_on(me))
        except BaseException as error:  # raised by whoever waits for all
            failed.append(error)
        finally:
            ring.leave(me)

    threads = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(len(jobs))]
    gc.collect()
    with quiet_gc():
        try:
            for each in threads:
                each.start()
            if jobs:
                ring.start()
            for each in threads:
                each.join()
        except BaseException:  # a thread that cannot be started, an interrupt
            ring.give_up()
            raise
    if failed:
        raise failed[0]
    return found
