"""A slice of a trace that can be given away: lengths, times and structure, without a name of anybody.

Ids become salted hashes, tenants, sessions, models and the like numbers in order of appearance, times count from the first
request, block ids are renumbered. Only canonical columns leave; what left is said.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tracekit.errors import UsageError, shown, shown_path
from tracekit.slices import parse_window
from tracekit.traces.arrow_columns import aligned, codes, ints
from tracekit.traces.columns import EXTRA
from tracekit.traces.load import LoadedTrace, read_trace
from tracekit.traces.prefix_runs import cut_runs
from tracekit.traces.session_tree import roots_of

__all__ = ["anonymize"]

Ints = npt.NDArray[np.int64]
NUMBERED = {"tenant": "tenant", "session_id": "session", "model": "model", "adapter": "adapter", "obs_replica": "replica"}
LABELS = ("class", "kind", "error_code", "finish_reason")
"""Short words of a fixed vocabulary; kept where they look like it, else ``other``."""

TOLD_ELSEWHERE = ("lora", "image", "audio", "video", "n")
_LABEL = re.compile(r"[A-Za-z][A-Za-z_.-]{0,31}|\d{3}")
MOST_LABELS = 40


def anonymize(inputs: str | Path | Sequence[str | Path], out: str | Path, *, window: str | None = None, salt: str | None = None,
              **reading: Any) -> dict[str, Any]:  # fmt: skip
    """Write ``inputs`` (or the requests that arrive in ``window``) to the new file ``out`` as canonical JSON lines, gzipped where
    its name ends in ``.gz``. Returns what left: rows and, per column, how many values of which range.

    ``salt`` makes hashes of ids the same in another run that says it; without one they mean nothing outside the file.
    ``reading`` goes to ``read_trace``. Errors: ``UsageError``, ``InputError``.
    """
    if Path(out).exists():
        raise UsageError(f"--out {shown_path(out)}: this file is there already; expected a new name")
    trace = read_trace(inputs, **reading)
    keep = _window(trace, window)
    columns = _columns(trace, keep, (salt or secrets.token_hex(16)).encode())
    _write(Path(out), columns)
    return {
        "file": str(out),
        "rows": len(keep),
        "rows_left_behind": trace.arrivals.num_rows - len(keep),
        "columns": [_left(name, values) for name, values in columns.items()],
    }


def _window(trace: LoadedTrace, window: str | None) -> Ints:
    """Rows that leave: sessions as a whole by the arrival of their first request."""
    rows = np.arange(trace.arrivals.num_rows)
    if window is None:
        return rows
    if trace.report.arrival_kind == "session_relative":
        raise UsageError(f"--window {shown(window)}: this trace's times count from the start of each session; expected no window")
    begin, end = parse_window(window, trace.report.span_ns, trace.report.t0_ns)
    arrival = ints(trace.arrivals, "arrival_ns")
    first = _first_arrivals(trace, arrival)
    kept = np.flatnonzero((first >= begin) & (first < end))
    if not len(kept):
        raise UsageError(f"--window {shown(window)}: no request arrives in it; expected a part of the trace")
    return kept


def _first_arrivals(trace: LoadedTrace, arrival: Ints) -> Ints:
    """The arrival of each row's session, by the parents that are known and by its name."""
    parent = _parents(trace)
    first = arrival if parent is None else arrival[roots_of(parent)[0]]
    extras = aligned(trace.extras, np.arange(len(arrival))) if trace.extras is not None else None
    if extras is None or "session_id" not in extras.column_names:
        return first
    session, _ = codes(extras, "session_id")
    if session is None:
        return first
    begins = np.full(int(session.max()) + 2, np.iinfo(np.int64).max)
    np.minimum.at(begins, session, first)
    return np.where(session < 0, first, begins[session])


def _parents(trace: LoadedTrace) -> Ints | None:
    """The parent of every row, -1 for none; ``None`` when there are no sessions."""
    if trace.extras is None or "parent_idx" not in trace.extras.column_names:
        return None
    extras = aligned(trace.extras, np.arange(trace.arrivals.num_rows))
    return None if extras is None else ints(extras, "parent_idx")


def _columns(trace: LoadedTrace, keep: Ints, salt: bytes) -> dict[str, list[Any]]:
    """Values by canonical key, ``None`` where unknown."""
    arrival = ints(trace.arrivals, "arrival_ns")[keep]
    start = int(arrival.min())
    out: dict[str, list[Any]] = {
        "arrival_ns": (arrival - start).tolist(),
        "input_tokens": ints(trace.arrivals, "input_tokens")[keep].tolist(),
        "output_tokens": ints(trace.arrivals, "output_tokens")[keep].tolist(),
    }
    kind = trace.report.arrival_kind
    if kind not in ("absolute", "relative"):
        out["arrival_kind"] = [kind] * len(keep)
    extras = aligned(trace.extras, keep) if trace.extras is not None else None
    if extras is not None:
        for column in EXTRA:
            if column.stored in extras.column_names and column.kind != "link":
                values = extras[column.stored].to_pylist()
                shift = start if column.kind == "time" else 0
                out[column.stored] = _hidden(column.name, values, salt, shift)
    _link(trace, keep, out, salt)
    _blocks(trace, keep, out)
    return {name: values for name, values in out.items() if any(value is not None for value in values)}


def _hidden(name: str, values: list[Any], salt: bytes, shift: int) -> list[Any]:
    if name == "request_id":
        return [None if value is None else _hash(value, salt) for value in values]
    if name == "unmodelled":
        return [_marks(value) for value in values]
    if name in NUMBERED:
        return _numbered(values, NUMBERED[name])
    if name == "agent_path":
        numbers: dict[str, str] = {}
        return [None if value is None else "/".join(numbers.setdefault(part, f"a{len(numbers)}") for part in value.split("/"))
                for value in values]  # fmt: skip
    if name in LABELS:
        known = {value for value in values if value is not None}
        fit = known if len(known) <= MOST_LABELS else set()
        return [value if value is None or (value in fit and _LABEL.fullmatch(value)) else "other" for value in values]
    return [value - shift if value is not None and shift else value for value in values]


def _marks(value: str | None) -> str | None:
    """Those that no other column tells."""
    return ",".join(mark for mark in (value or "").split(",") if mark not in TOLD_ELSEWHERE) or None


def _numbered(values: list[Any], word: str) -> list[Any]:
    numbers: dict[Any, str] = {}
    return [None if value is None else numbers.setdefault(value, f"{word}-{len(numbers) + 1}") for value in values]


def _hash(value: str, salt: bytes) -> str:
    return hashlib.blake2b(value.encode(), key=salt[:64], digest_size=8).hexdigest()


def _link(trace: LoadedTrace, keep: Ints, out: dict[str, list[Any]], salt: bytes) -> None:
    """Parents by request id, which they need: where ids are missing or not unique, the row's number makes them so."""
    parent = _parents(trace)
    if parent is None or not (parent[keep] >= 0).any():
        return
    ids = out.get("request_id", [None] * len(keep))
    if None in ids or len(set(ids)) < len(ids):
        ids = [_hash(f"{row}", salt) for row in keep.tolist()]
    place = dict(zip(keep.tolist(), ids, strict=True))
    out["request_id"] = ids
    out["parent_id"] = [place.get(row) for row in parent[keep].tolist()]


def _blocks(trace: LoadedTrace, keep: Ints, out: dict[str, list[Any]]) -> None:
    if trace.runs is None:
        return
    owner, first, length = (ints(trace.runs, name) for name in ("req_idx", "first_id", "len"))
    place = np.full(trace.arrivals.num_rows, -1, np.int64)
    place[keep] = np.arange(len(keep))
    stays = place[owner] >= 0
    owner, first, length = place[owner[stays]], first[stays], length[stays]
    offset = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    _, seen, code = np.unique(np.repeat(first, length) + offset, return_index=True, return_inverse=True)
    rank = np.empty(len(seen), np.int64)
    rank[np.argsort(seen, kind="stable")] = np.arange(len(seen))
    counts = np.bincount(owner, weights=length, minlength=len(keep)).astype(np.int64)
    row, pos, new, size = cut_runs(rank[code], counts, 0)
    runs: list[list[list[int]]] = [[] for _ in range(len(keep))]
    for r, *run in zip(row.tolist(), pos.tolist(), new.tolist(), size.tolist(), strict=True):
        runs[r].append(run)
    out["block_tokens"] = [trace.report.block_tokens] * len(keep)
    out["prefix_runs"] = runs


def _write(out: Path, columns: dict[str, list[Any]]) -> None:
    try:
        with open(out, "xb") as file:
            if out.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                    packed.writelines(_lines(columns))
            else:
                file.writelines(_lines(columns))
    except OSError as error:
        said = f"cannot be written ({error.strerror}); expected a file that can be made"
        raise UsageError(f"--out {shown_path(out)}: {said}") from None


def _lines(columns: dict[str, list[Any]]) -> Iterator[bytes]:
    for row in zip(*columns.values(), strict=True):
        told = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        yield orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)


def _left(name: str, values: list[Any]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    told: dict[str, Any] = {"column": name, "values": len(known)}
    if name == "prefix_runs":
        return told | {"range": f"{sum(run[2] for runs in known for run in runs):,} blocks"}
    told["distinct"] = len(set(known))
    if isinstance(known[0], int):
        return told | {"range": f"{min(known):,} to {max(known):,}"}
    examples = list(dict.fromkeys(known))[:3]
    return told | {"range": ", ".join(examples) + (", ..." if told["distinct"] > len(examples) else "")}
