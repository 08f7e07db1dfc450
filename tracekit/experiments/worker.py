"""``python -m tracekit.experiments.worker DATABASE``: replays the cells it is told, until its input ends.

The first line on standard input is the experiment's FOLDER. Each line ``TRACE WINDOW LEVEL`` after it is one cell; its result
is a file in FOLDER, and a line of JSON on standard output says that it is there (``{"done": [t, w, l]}``), or why not
(``{"error": one line, "exit_code": n}``). A process of its own started by name, rather than a fork or a pool: it holds no lock
or thread of its parent's, needs no guarded main module, and ends by itself when its parent is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from replay_engine.config import ConfigError
from tracekit.errors import TracekitError, shown
from tracekit.experiments.plan import Cell
from tracekit.experiments.replaying import CellReplays
from tracekit.experiments.results import ResultFolder
from tracekit.store import Store

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve cells until the input ends; the process's exit code."""
    (database,) = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    orders = sys.stdin.buffer
    folder = os.fsdecode(orders.readline()).rstrip("\n")
    if not folder:  # the experiment ended before its first replay
        return 0
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
        return 1
    except Exception as error:  # the parent must hear of it, whatever it is: it waits for an answer
        text = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        answers.write(json.dumps({"error": f"internal error in a worker: {text}", "exit_code": 5}) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
