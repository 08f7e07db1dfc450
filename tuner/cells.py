"""Cells: one configuration replayed on one window. What was replayed once is never replayed again.

Results lie in one file to which whole lines are appended, so that several processes share it and a kill at any moment leaves
every finished replay in it; a line that is not whole counts as not there. A cell is found again by what decides it: the engine's
own source, the derived configuration, the profile, the window's traffic, the SLO.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from replay_engine.policy import Policy
from replay_engine.profile import Profile
from replay_engine.totals import RunTotals
from tracekit.door_facts import door_facts
from tracekit.engines import TorchEngine
from tracekit.errors import UsageError
from tracekit.experiments.plan import engine_digest
from tracekit.metrics import SloTable, evaluate_slo
from tracekit.record import MemoryRecord
from tracekit.replay import Setup
from tracekit.simulate import simulate_into
from tracekit.traces.source import TraceSource
from tuner.alike import HighWater, Traffic, alike, limits_of, rest_of
from tuner.ranges import RangeMeter
from tuner.space import configuration_key
from tuner.windows import StudyWindow, WindowSources

__all__ = [
    "CELLS", "FIGURES", "Cell", "CellFile", "Cells", "Replays", "Result", "replay_cell", "replay_record", "setup_of",
]  # fmt: skip

Result = dict[str, Any]
"""met, n (requests), met_tokens (output), met_input_tokens, met_cached_tokens (of the input), window_s, missed (by part of the
SLO), state, iterations, busy (share of the engines' time, ``None``: none ran), ranges (``RangeMeter.result``), rest, limits
and marks (``alike``), of (the cell that was replayed), cpu_s (0 where another's replay was this one's too); figures: latencies
in ns."""
CELLS = "cells.jsonl"
FIGURES = {"ttft": "ttft_ns", "tpot": "tpot_ns", "longest_gap": "max_gap_ns", "e2e": "e2e_ns"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``policy`` on ``window`` under ``profile``, ``rate`` times as fast."""

    window: StudyWindow
    policy: Policy
    profile: Profile
    slo: SloTable | None
    seed: int = 0
    accept_degraded: bool = False
    rate: float = 1.0

    def key(self) -> str:
        """Twenty hex digits."""
        return self._digest(configuration_key(self.policy))

    def rest(self) -> str | None:
        """Twenty hex digits over all but the limits that a replay may prove not to matter; ``None``: it cannot (``alike``)."""
        rest = rest_of(self.policy)
        return None if rest is None else self._digest(rest)

    def _digest(self, policy: str) -> str:
        own = json.dumps([engine_digest(), policy, self.rate, self.seed, self.accept_degraded])
        slo = None if self.slo is None else _text_of(self.slo, SloTable.to_dict)
        matters = [own, _text_of(self.profile, Profile.to_toml), _text_of(self.window, StudyWindow.key), slo]
        return hashlib.sha256(json.dumps(matters).encode()).hexdigest()[:20]


MOST_TEXTS = 256
_TEXTS: dict[int, tuple[Any, str]] = {}
"""By its address something that does not change and that many keys share, as a study's windows, and its text. It is kept,
so that nothing else can come to lie there."""
Part = TypeVar("Part")


def _text_of(part: Part, write: Callable[[Part], Any]) -> str:
    known = _TEXTS.get(id(part))
    if known is None:
        if len(_TEXTS) >= MOST_TEXTS:
            _TEXTS.clear()
        known = _TEXTS[id(part)] = part, json.dumps(write(part), sort_keys=True, default=str)
    return known[1]


class Cells(Protocol):
    """Results by key, of whoever replayed them: a file (``CellFile``) or a database (``tuner.postgres``)."""

    def get(self, key: str) -> Result | None: ...

    def put(self, key: str, result: Result) -> None: ...

    def like(self, rest: str) -> Iterable[Result]:
        """Results known to this process whose cells have this ``rest``."""
        ...

    def __len__(self) -> int: ...


class CellFile:
    """``cells.jsonl``: results by key. Reading goes on where it stopped; nothing is ever changed in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Result] = {}
        self._at = 0

    def get(self, key: str) -> Result | None:
        """A result, also one that another process has written meanwhile."""
        if key not in self._known:
            self._read_on()
        return self._known.get(key)

    def like(self, rest: str) -> Iterable[Result]:
        """Results whose cells have this ``rest``, also those that other processes have written meanwhile."""
        self._read_on()
        return [result for result in self._known.values() if result.get("rest") == rest]

    def put(self, key: str, result: Result) -> None:
        """Append one result: one write of one whole line, which no other process's can cut in two."""
        self._known[key] = result
        line = json.dumps({"key": key, "result": result}).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, b"\n" + line if self._torn() else line)
        finally:
            os.close(file)

    def __len__(self) -> int:
        self._read_on()
        return len(self._known)

    def _torn(self) -> bool:
        """Whether the last line is without its end: a process was killed while it wrote."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                return bool(size) and (file.seek(size - 1), file.read(1))[1] != b"\n"
        except OSError:
            return False

    def _read_on(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                piece = file.read()
        except OSError:
            return
        whole = piece.rfind(b"\n") + 1
        self._at += whole
        for line in piece[:whole].split(b"\n"):
            try:
                row = json.loads(line)
                self._known[row["key"]] = row["result"]
            except (ValueError, KeyError, TypeError):
                continue


class Replays:
    """Replays cells, or takes their results from where they are kept: those of the same cell, or of one that a replay proves to
    be alike. ``replayed``: how many ran here."""

    def __init__(self, sources: WindowSources, file: Cells) -> None:
        self.sources = sources
        self.file = file
        self.replayed = 0
        self.cpu_s = 0.0

    def result(self, cell: Cell) -> Result:
        """Of one cell. ``KeyboardInterrupt`` where the replay was interrupted."""
        key = cell.key()
        found = self.file.get(key)
        if found is not None:
            return found
        found = self.proved(cell)
        if found is None:
            found = {**replay_cell(cell, self.sources), "of": key}
            self.replayed += 1
            self.cpu_s += found["cpu_s"]
        self.file.put(key, found)
        return found

    def proved(self, cell: Cell) -> Result | None:
        """The result of another cell whose replay was this one's too."""
        rest, scheduler = cell.rest(), cell.policy.scheduler
        for known in () if rest is None else self.file.like(rest):
            one, other = known["limits"], limits_of(scheduler)
            if alike(known["marks"], tuple(one), other, scheduler.watermark):
                return {**known, "cpu_s": 0.0}
        return None


def replay_cell(cell: Cell, sources: WindowSources, *, torch: TorchEngine | None = None,
                on_chunk: Callable[[RunTotals], None] | None = None) -> Result:  # fmt: skip
    """Replay one cell in memory, simulated or on a real engine, which calls ``on_chunk`` a few times a second. Errors:
    ``UsageError`` where the SLO asks for what a replay of outcomes does not know; ``KeyboardInterrupt``."""
    began = time.process_time()
    record, state, meter, high = _metered(cell, sources, torch, on_chunk)
    source, scheduler = sources.get(cell.window, cell.rate), cell.policy.scheduler
    return {**_figures(record, state, source.window_ns), "ranges": meter.result(), "rest": cell.rest(),
            "limits": limits_of(scheduler), "marks": high.marks(record.totals, scheduler, _traffic(source)),
            "cpu_s": round(time.process_time() - began, 4)}  # fmt: skip


def _traffic(source: TraceSource) -> Traffic:
    tokens = source.prompt_tokens + source.output_tokens
    return Traffic(prompt=int(source.prompt_tokens.max(initial=0)), tokens=int(tokens.max(initial=0)),
                   shares=source.run_offsets is not None)  # fmt: skip


def setup_of(cell: Cell, sources: WindowSources, *, events: str | None = None, torch: TorchEngine | None = None) -> Setup:
    """Everything that decides the replay of a cell."""
    source = sources.get(cell.window, cell.rate)
    return Setup(
        profile=cell.profile, policy=cell.policy, slo=cell.slo, source=source, trace=cell.window.trace,
        trace_name=cell.window.name, lead_in_ns=cell.window.lead_in_ns, seed=cell.seed, events=events or _events(cell.slo),
        accept_degraded=cell.accept_degraded, warmup_ns=0, facts=door_facts(cell.policy, cell.profile, cell.slo, source),
        torch=torch,
    )  # fmt: skip


def replay_record(cell: Cell, sources: WindowSources, *, torch: TorchEngine | None = None) -> tuple[MemoryRecord, str]:
    """Replay one cell in memory: its rows and sums, and how it ended. ``KeyboardInterrupt`` where it was interrupted."""
    return _metered(cell, sources, torch)[:2]


def _metered(cell: Cell, sources: WindowSources, torch: TorchEngine | None,
             on_chunk: Callable[[RunTotals], None] | None = None) -> tuple[MemoryRecord, str, RangeMeter, HighWater]:  # fmt: skip
    setup = setup_of(cell, sources, torch=torch)
    record = MemoryRecord(setup)
    meter = RangeMeter(cell.profile, record.sink, keep=setup.events == "full")
    high = HighWater(meter)
    state, record.totals, record.by_replica = simulate_into(
        setup, high, stall_threshold_ns=record.stall_threshold_ns, on_chunk=on_chunk
    )
    if state == "interrupted":
        raise KeyboardInterrupt
    return record, state, meter, high


def _events(slo: SloTable | None) -> str:
    return "full" if slo is not None and "itl" in slo.given() else "iterations"


def _busy(record: MemoryRecord) -> float | None:
    """Share of the time from the first iteration to the last of all engines in which an engine ran one."""
    engines = record.by_replica or [record.totals]
    ran = [engine for engine in engines if engine.iterations]
    if not ran:
        return None
    span = max(engine.last_end_ns for engine in ran) - min(engine.first_start_ns for engine in ran)
    return sum(engine.busy_ns for engine in ran) / (span * len(engines)) if span else None


def _figures(record: MemoryRecord, state: str, window_ns: int) -> Result:
    inputs = record.inputs(state)
    assert inputs.counted is not None
    rows = inputs.outcomes[inputs.counted[inputs.outcomes["request"]]]
    slo = evaluate_slo(inputs, rows)
    if isinstance(slo, str):
        raise UsageError(f"--slo: {slo}")
    figures: dict[str, float | None] = {}
    for name, column in FIGURES.items():
        values = rows[column]
        values = values[values >= 0]
        for point in (50, 99):
            figures[f"{name}_p{point}"] = float(np.percentile(values, point)) if len(values) else None
    return {
        "met": int(slo.met.sum()), "n": int(inputs.counted.sum()), "met_tokens": int(rows["output_tokens"][slo.met].sum()),
        "met_input_tokens": int(rows["prompt_tokens"][slo.met].sum()),
        "met_cached_tokens": int(np.maximum(rows["cached_tokens"][slo.met], 0).sum()), "busy": _busy(record),
        "window_s": window_ns / 1e9, "missed": slo.missed_by, "state": state.partition(":")[0],
        "iterations": record.totals.iterations, "figures": figures,
    }  # fmt: skip
