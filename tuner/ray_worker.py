"""A worker of a study as an actor of a Ray cluster: the same bench as that of a local process, told by method calls."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["MARK", "RayWorker"]

MARK = "here"
"""A file in the study's folder: whoever finds the driver's word in it sees the same folder."""


class RayWorker:
    """What a study's driver starts on a cluster. The imports are inside: what a machine lacks is an answer, not a lost actor.

    ``plan``: the plan as a document. ``tables``: the traces (``tuner.shipping``); Ray hands them over once, when the worker is
    made. ``folder`` and ``word``: of a study in files, which this machine must see too; else ``storage``, a database's URL.
    """

    def __init__(self, plan: dict[str, Any], tables: dict[str, Any], folder: str, word: str, storage: str | None,
                 digest: str) -> None:  # fmt: skip
        self._given = (plan, tables, folder, word, storage, digest)
        self._bench: Any = None

    def begin(self) -> list[dict[str, Any]]:
        """Get ready: ``[{"pid": n, "host": name}]``, or what is wrong here."""
        from tuner.worker import answered

        answers: list[dict[str, Any]] = []
        if answered(self._ready, answers.append):
            answers.append({"pid": os.getpid(), "host": socket.gethostname()})
        return answers

    def _ready(self) -> None:
        from tracekit.errors import UsageError
        from tracekit.experiments.plan import engine_digest
        from tuner.plan import TunePlan
        from tuner.shipping import ShippedTraces
        from tuner.worker import Bench

        plan, tables, folder, word, storage, digest = self._given
        where = f"--executor ray: on {socket.gethostname()}"
        if engine_digest() != digest:
            raise UsageError(f"{where} another version of tracekit is installed; expected this one on every machine")
        if storage is None and not _sees(Path(folder), word):
            raise UsageError(f"{where} the study's folder is not there; expected --storage postgresql://..., or --db on a"
                             " disk that all machines share")  # fmt: skip
        self._bench = Bench(TunePlan.from_dict(plan), ShippedTraces(tables), Path(folder), storage)

    def serve(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Carry out an order (``tuner.worker``): what was done, or the error."""
        from tuner.worker import answered

        answers: list[dict[str, Any]] = []
        answered(lambda: self._bench.serve(order, answers.append), answers.append)
        return answers


def _sees(folder: Path, word: str) -> bool:
    try:
        return (folder / MARK).read_text() == word
    except OSError:
        return False
