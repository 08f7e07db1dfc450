"""``python -m tracekit.diagnosis.trial_worker``: replays changes of the one setup that it is given, until its input ends.

Both ways go messages of eight bytes of length and a pickle: first the setup, then an order each, answered by what
``run_trial`` returns or by the error that it ended with. A process of its own started by name, rather than a fork: it holds no
lock or thread of its parent's, and ends by itself when its parent is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from replay_engine.config import ConfigError
from tracekit.errors import TracekitError, shown

if TYPE_CHECKING:
    from tracekit.diagnosis.trial import Trial

__all__ = ["main", "packed", "read_message"]

_SIZE = 8


def packed(message: object) -> bytes:
    """A message as bytes."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_SIZE, "little") + body


def read_message(stream: IO[bytes]) -> Any:
    """The next message; ``EOFError`` when there is none."""
    head = stream.read(_SIZE)
    if len(head) < _SIZE:
        raise EOFError
    body = stream.read(int.from_bytes(head, "little"))
    return pickle.loads(body)  # our own parent or child wrote it


def main(argv: Sequence[str] | None = None) -> int:
    """Serve orders until the input ends; the process's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    from tracekit.diagnosis.trial import run_trial

    orders = sys.stdin.buffer
    try:
        setup = read_message(orders)
        while True:
            answers.write(packed(_answer(partial(run_trial, setup, **read_message(orders)))))
            answers.flush()
    except EOFError:
        return 0


def _answer(replayed: Callable[[], Trial]) -> dict[str, Any]:
    try:
        return {"trial": replayed()}
    except (TracekitError, ConfigError) as error:
        return {"error": str(error), "exit_code": getattr(error, "exit_code", 2)}
    except Exception as error:  # the parent must hear of it, whatever it is: it waits for an answer
        text = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        return {"error": f"internal error in a worker: {text}", "exit_code": 5}


if __name__ == "__main__":
    sys.exit(main())
