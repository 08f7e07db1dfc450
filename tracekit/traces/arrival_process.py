"""Arrivals for traces that have none: ``poisson:rate=5``, with ``cv`` for bursts and ``seed``; same text, same times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.errors import InputError, UsageError

if TYPE_CHECKING:
    from tracekit.traces.stage import Stage

__all__ = ["ArrivalProcess", "place_arrivals"]

Ints = npt.NDArray[np.int64]
SECOND = 1_000_000_000
EXPECTED = "poisson:rate=5 (requests a second), optionally cv=2 (above 1: bursts) and seed=1, as poisson:rate=5,cv=2,seed=1"


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """A renewal process: ``rate`` requests a second, inter-arrival times gamma with coefficient of variation ``cv``."""

    rate: float
    cv: float = 1.0
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ArrivalProcess:
        """From ``poisson:rate=5[,cv=2][,seed=1]``. Errors: ``UsageError``."""
        kind, _, rest = text.partition(":")
        given = dict(part.partition("=")[::2] for part in rest.split(","))
        try:
            if kind.strip() != "poisson" or not given.keys() <= {"rate", "cv", "seed"}:
                raise ValueError
            found = cls(float(given["rate"]), float(given.get("cv", "1")), int(given.get("seed", "0")))
        except (KeyError, ValueError) as error:
            raise UsageError(f"--arrival {text}: no such arrival process; expected {EXPECTED}") from error
        if not (1e-6 <= found.rate <= 1e6 and 0.01 <= found.cv <= 100 and found.seed >= 0):
            raise UsageError(f"--arrival {text}: out of range; expected a rate and a cv above 0, a seed from 0 on")
        return found

    def times(self, n: int) -> Ints:
        """``n`` arrivals as int64 ns, the first at 0, never falling."""
        rng = np.random.Generator(np.random.PCG64(self.seed))
        shape = 1 / self.cv**2
        gaps = rng.gamma(shape, 1 / (self.rate * shape), max(n - 1, 0))
        return np.concatenate([np.zeros(min(n, 1), np.int64), np.rint(np.cumsum(gaps) * SECOND).astype(np.int64)])


def place_arrivals(stage: Stage, process: str | None, name: str) -> None:
    """Give the staged rows arrivals in the order in which they were read, where the source has none.

    Errors: ``InputError`` without arrivals and without a process, ``UsageError`` for a process that is not needed.
    """
    stage.flush()
    have = any(column.name == "arrival" for column in stage.columns)
    known = int(stage.one("SELECT count(arrival_ns) FROM stage")[0]) if have else 0
    if process is not None and known:
        raise UsageError(f"--arrival {process}: {name} has arrival times of its own; leave the option out (--rate-scale changes"
                         " the rate)")  # fmt: skip
    if known == stage.kept:
        return
    if process is None:
        raise InputError("no arrival times: it has lengths only" if not known else "some of the files have no arrival times",
                         file=name, expected=f"--arrival {EXPECTED}")  # fmt: skip
    _write(stage, ArrivalProcess.parse(process).times(stage.kept))
    stage.facts.absolute, stage.facts.zone_assumed, stage.facts.arrival_kind = False, False, "generated"
    stage.facts.warn(f"arrivals are not in the trace: they were placed by {process}")


def _write(stage: Stage, times: Ints) -> None:
    import pyarrow as pa

    stage.open(["arrival"])
    stage.con.register("placed", pa.table({"at": pa.array(times), "row": pa.array(np.arange(len(times)))}))
    stage.con.execute("UPDATE stage SET arrival_ns = placed.at FROM placed WHERE stage.rowid = placed.row")
    stage.con.unregister("placed")
