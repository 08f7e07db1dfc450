"""The folder of an experiment under way: its plan, and one small file for each replay that is done.

A result is written under another name and renamed, so that a kill at any moment leaves it whole or not there; what is there
is never replayed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracekit.errors import InputError
from tracekit.experiments.plan import Cell, Plan
from tracekit.store.files import read_json, write_json

__all__ = ["ResultFolder"]

PLAN = "plan.json"


class ResultFolder:
    """``<db>.d/experiments/KEY``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, store_dir: Path, key: str) -> ResultFolder:
        """Where the experiment with this key keeps its results; nothing is made yet."""
        return cls(store_dir / "experiments" / key)

    def open(self, plan: Plan) -> None:
        """Make the folder, and write the plan for the workers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / PLAN, plan.to_dict())

    def plan(self) -> Plan:
        """The plan as written. Errors: ``InputError``."""
        document = read_json(self.folder / PLAN)
        if document is None:
            raise InputError("no plan of an experiment", file=str(self.folder))
        return Plan.from_dict(document)

    def done(self, cells: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
        """The results that are there; a file that is not whole counts as not there."""
        found = {}
        for cell in cells:
            result = read_json(self.folder / f"{cell.name}.json")
            if result is not None and "figures" in result:
                found[cell] = result
        return found

    def put(self, cell: Cell, result: dict[str, Any]) -> None:
        """Write one result."""
        write_json(self.folder / f"{cell.name}.json", result)

    def remove(self) -> None:
        """Throw the folder away: the results are in the database, or are not wanted."""
        shutil.rmtree(self.folder, ignore_errors=True)
