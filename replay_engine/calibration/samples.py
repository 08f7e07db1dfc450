"""What a fit is made from: measured iterations as columns, from exact batches or from rows of ``iterations``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.cases import BatchCase
from replay_engine.config import ConfigError
from replay_engine.tables import LONGEST, MODES

__all__ = ["EAGER_MODE", "Samples", "samples_of_cases", "samples_of_rows"]

Column = npt.NDArray[np.float64]
EAGER_MODE, LATE_MODE = MODES[0], MODES[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Columns of one length, one row per measured iteration; times are ns.

    ``host_ns`` is NaN where it was not measured. ``changes``: sequences that joined or left the decode set. ``weight``: how much
    a row counts. ``padded``: rows that a bucket added to ``seqs``. ``above``: tokens that the longest context of the
    decodes is above their mean, 0 where nobody tells. ``shape`` names equal iterations, ``mode`` how they ran.
    """

    device_ns: Column
    host_ns: Column
    tokens: Column
    qk: Column
    seqs: Column
    kv: Column
    running: Column
    changes: Column
    padded: Column
    above: Column
    weight: Column
    mode: npt.NDArray[np.str_]
    shape: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.device_ns)

    def part(self, rows: npt.NDArray[np.bool_]) -> Samples:
        """The chosen rows."""
        return Samples(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def banded(self) -> Samples:
        """The same rows, their shapes named by size: prefill tokens and decodes, each within powers of two."""
        return replace(self, shape=_bands(self.tokens, self.seqs))

    def weighing(self, total: float) -> Samples:
        """The same rows, weighing ``total`` together."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        return Samples(**columns | {"weight": self.weight * (total / self.weight.sum())} if len(self) else columns)

    def __add__(self, other: Samples) -> Samples:
        pairs = {each.name: (getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        return Samples(**{name: np.concatenate(both) for name, both in pairs.items()})


def samples_of_cases(
    cases: Sequence[BatchCase], device_ns: Sequence[float], padded: Sequence[int], modes: Sequence[str]
) -> Samples:
    """One row per batch."""
    seqs = [len(case.decodes) for case in cases]
    n, unknown = len(cases), np.full(len(cases), np.nan)
    columns = {
        "device_ns": device_ns, "host_ns": unknown, "tokens": [c.tokens for c in cases], "qk": [c.qk for c in cases],
        "seqs": seqs, "kv": [sum(c.decodes) for c in cases], "running": [len(c.shapes) for c in cases],
        "changes": np.zeros(n), "padded": padded,
        "above": [max(c.decodes) - sum(c.decodes) / len(c.decodes) if c.decodes else 0.0 for c in cases], "weight": np.ones(n),
    }  # fmt: skip
    numbers = {name: np.asarray(values, np.float64) for name, values in columns.items()}
    return Samples(**numbers, mode=np.array(modes, np.str_), shape=np.array([case.name for case in cases], np.str_))


def samples_of_rows(rows: Mapping[str, npt.NDArray[np.generic]], changes: npt.NDArray[np.float64] | None = None) -> Samples:
    """Rows of ``iterations`` (columns by name) that computed something, those left out that a compilation or a capture held up.

    ``changes`` where they are known; else who was admitted, finished or was preempted stands for them. ``mode`` may be missing.
    ``ConfigError`` where no row tells its device time.
    """
    number = {name: np.asarray(rows[name], np.float64) for name in _COLUMNS}
    computed = number["prefill_tokens"] + number["decode_seqs"] > 0
    count = len(computed)
    mode = np.asarray(rows["mode"], np.str_) if "mode" in rows else np.full(count, EAGER_MODE)
    use = computed & (number["device_ns"] > 0) & (mode != LATE_MODE)
    if not use.any():
        raise ConfigError("iterations: none with a measured device time; expected a recorded replay with --events full")
    mode = np.where(np.char.startswith(mode, "graph"), "graph", mode)
    known = changes if changes is not None else number["admitted"] + number["finished"] + number["preempted"]
    padded = np.nan_to_num(np.asarray(rows["padded_tokens"], np.float64)) if "padded_tokens" in rows else np.zeros(count)
    above, told = _above(rows, number["decode_seqs"], number["decode_kv_tokens"])
    use &= told
    whole = Samples(
        device_ns=number["device_ns"], host_ns=number["host_ns"], tokens=number["prefill_tokens"], qk=number["prefill_qk"],
        seqs=number["decode_seqs"], kv=number["decode_kv_tokens"], running=number["running"], changes=known, padded=padded,
        above=above, weight=np.ones(count), mode=mode, shape=_bands(number["prefill_tokens"], number["decode_seqs"]),
    )  # fmt: skip
    return whole.part(use)


def _above(rows: Mapping[str, npt.NDArray[np.generic]], seqs: Column, kv: Column) -> tuple[Column, npt.NDArray[np.bool_]]:
    """How far the longest context is above the mean, and which rows can be used: where most tell it, those that do not (unknown
    or 0 with decodes) are left out; where most do not, nobody is taken to tell."""
    everybody = np.ones(len(seqs), np.bool_)
    if LONGEST[0] not in rows:
        return np.zeros(len(seqs)), everybody
    longest = np.nan_to_num(np.asarray(rows[LONGEST[0]], np.float64))
    silent = (longest <= 0) & (seqs > 1)
    if 2 * np.count_nonzero(silent) > np.count_nonzero(seqs > 1):
        return np.zeros(len(seqs)), everybody
    return np.where(seqs > 1, np.maximum(longest - kv / np.maximum(seqs, 1), 0.0), 0.0), ~silent


_COLUMNS = (
    "device_ns", "host_ns", "prefill_tokens", "prefill_qk", "decode_seqs", "decode_kv_tokens", "running", "admitted", "finished",
    "preempted",
)  # fmt: skip


def _bands(prefill: Column, decodes: Column) -> npt.NDArray[np.str_]:
    """Iterations of a replay by size: prefill tokens and decodes, each within powers of two."""
    names = []
    for tokens, seqs in zip(prefill.tolist(), decodes.tolist(), strict=True):
        parts = [f"{what} {_band(int(n))}" for what, n in (("prefill", tokens), ("decode", seqs)) if n]
        names.append(" + ".join(parts))
    return np.array(names, np.str_)


def _band(n: int) -> str:
    low = 1 << (n.bit_length() - 1)
    return f"{low}" if low == 1 else f"{low}-{2 * low - 1}"
