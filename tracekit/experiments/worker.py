"""``python -m tracekit.experiments.worker DATABASE ORDERS,ANSWERS ...``: worker processes, one for each pair of pipe ends.

A worker (``tracekit.forks``) replays the cells it is told until its orders end, which they do also when the experiment's process
is killed. The first line of orders is the experiment's FOLDER.
Each line ``TRACE WINDOW LEVEL`` after it is one cell; its result is a file in FOLDER, and a line of JSON among the answers says
that it is there (``{"done": [t, w, l]}``), or why not (``{"error": one line, "exit_code": n}``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from replay_engine.config import ConfigError
from tracekit.errors import TracekitError, shown
from tracekit.experiments.plan import Cell
from tracekit.experiments.replaying import CellReplays
from tracekit.experiments.results import ResultFolder
from tracekit.forks import fork_workers
from tracekit.store import Store

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Fork the workers and wait for them; who reads a worker's answers is told how it died."""
    database, *pairs = sys.argv[1:] if argv is None else argv
    fork_workers(pairs, lambda orders, answers: _serve(database, orders, answers), _died)
    return 0


def _died(code: int) -> bytes:
    text = f"a worker process ended with code {code} in the middle of a replay; what is done is kept"
    return json.dumps({"error": text, "exit_code": 5}).encode() + b"\n"


def _serve(database: str, orders: int, answers: int) -> int:
    """Serve cells until the orders end; the process's exit code: 0 where the answers say what went wrong."""
    try:
        with os.fdopen(orders, "rb") as told, os.fdopen(answers, "w", buffering=1) as said:
            _answer(database, told, said)
    except BrokenPipeError:  # nobody reads any more
        return 0
    except BaseException:
        return 1
    return 0


def _answer(database: str, orders: IO[bytes], answers: IO[str]) -> None:
    folder = os.fsdecode(orders.readline()).rstrip("\n")
    if not folder:  # the experiment ended before its first replay
        return
    results = ResultFolder(Path(folder))
    try:
        replays = CellReplays(Store(database), results.plan())
        for line in orders:
            trace, window, level = map(int, line.split())
            cell = Cell(trace, window, level)
            results.put(cell, replays.run(cell))
            answers.write(json.dumps({"done": cell}) + "\n")
    except (TracekitError, ConfigError) as error:
        answers.write(json.dumps({"error": str(error), "exit_code": getattr(error, "exit_code", 2)}) + "\n")
    except BrokenPipeError:
        raise
    except Exception as error:  # the parent must hear of it, whatever it is: it waits for an answer
        text = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        answers.write(json.dumps({"error": f"internal error in a worker: {text}", "exit_code": 5}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
