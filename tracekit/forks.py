"""Worker processes that are forked by one which is started by name and imports for all of them.

It holds no lock or thread of who starts it and needs no guarded main module; it has one thread itself, and then only waits. A
worker has two pipes: orders, which end when whoever gives them ends or is killed, and answers, which end when it dies.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

__all__ = ["Forks", "fork_workers"]

ENDS_IN_S = 5.0
"""How long workers may take to end on their own."""
PRELOADED = ("duckdb",)
"""What every worker imports with its first order. Not pyarrow: it starts a thread, beside which nothing may fork."""
Serve = Callable[[int, int], int]
"""A worker's work, from the descriptors of its orders and its answers; its exit code."""


class Forks:
    """``count`` workers of a ``command`` that calls ``fork_workers`` with the arguments that are put behind it. ``ends``: file
    descriptors of each worker's orders (to be written) and answers (to be read), of whoever starts them."""

    def __init__(self, command: Sequence[str], count: int, environment: Mapping[str, str] | None = None) -> None:
        pipes = [(os.pipe(), os.pipe()) for _ in range(count)]
        theirs = [(orders[0], answers[1]) for orders, answers in pipes]
        self.ends = [(orders[1], answers[0]) for orders, answers in pipes]
        own = dict(os.environ if environment is None else environment)
        own |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads: nothing forks beside one
        self._process = subprocess.Popen(
            [*command, *(f"{orders},{answers}" for orders, answers in theirs)], stdin=subprocess.DEVNULL, start_new_session=True,
            pass_fds=[end for pair in theirs for end in pair], env=own,
        )  # fmt: skip
        for pair in theirs:
            for end in pair:
                os.close(end)

    def end(self, *, amid: bool = False) -> None:
        """Wait for the workers, whose orders have been closed; ``amid``: whatever they still do is not needed."""
        if not amid:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_IN_S)
        if self._process.returncode != 0:  # to be ended, or it hangs, or died before them
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def fork_workers(pairs: Sequence[str], serve: Serve, died: Callable[[int], bytes] | None = None) -> None:
    """Fork a worker for each ``ORDERS,ANSWERS`` of ``pairs`` and wait for all of them. ``died``: what is put behind the answers
    of one that ended with a code other than 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who gives the orders decides
    os.dup2(2, 1)  # whatever is printed is no answer
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # what is shared stays shared
    pipes = [(int(orders), int(answers)) for orders, answers in (pair.split(",") for pair in pairs)]
    answers_of: dict[int, int] = {}
    for at, (orders, answers) in enumerate(pipes):
        pid = os.fork()
        if not pid:
            for other in (*answers_of.values(), *(end for pair in pipes[at + 1 :] for end in pair)):
                os.close(other)
            os._exit(serve(orders, answers))
        os.close(orders)
        answers_of[pid] = answers
    while answers_of:
        pid, status = os.wait()
        answers, code = answers_of.pop(pid), os.waitstatus_to_exitcode(status)
        if code and died is not None:
            with suppress(BrokenPipeError):
                os.write(answers, died(code))
        os.close(answers)
