"""The lines that vLLM prints with ``--enable-logging-iteration-details``, as columns.

``Iteration(515): 0 context requests, 0 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time:
10.99 ms, GPU KV cache usage: 12.3%``: earlier releases have no usage and print from the engine (``(EngineCore_DP1 pid=7)``),
later ones from the front end (``Engine 001:``), some with what encoders did behind it, and data-parallel ranks mark iterations
without work ``(dummy)``. Whole lines are read as columns at once; what does not fit is looked at piece by piece, since terminals
wrap lines and several processes write into one another's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.calibration.looking import unreadable
from tracekit.errors import InputError, shown_path

if TYPE_CHECKING:
    import polars as pl

__all__ = ["IterationLines", "read_iteration_lines"]

Column = npt.NDArray[np.float64]
FIELDS = (
    r"(\d+)\)(?: ?\(dummy\))?: ?(\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens,"
    r" iteration elapsed time: (\d+(?:\.\d+)?) ms(?:, [A-Za-z]+ KV cache usage: (\d+(?:\.\d+)?)%)?"
)
ENGINE = r"Engine(?:Core(?:_DP|_)?| )(\d+)"
STAMP = r"(\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d)"
COLUMNS = (
    "iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens", "elapsed_ms", "kv_usage",
)  # fmt: skip
MARK = "Iteration("
_TOLERANT = re.compile(
    re.escape(MARK) + FIELDS.replace(" ?", r"\s*").replace(r"(?: \(dummy", r"(?:\s*\(dummy").replace(" ", r"\s+"), re.ASCII
)
_PREFIX = re.compile(
    r"(?:\([A-Za-z]\w* pid=\d+\) ?)?(?:[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[\w.]+:\d+\] )?"
    r"(?:Engine \d+: ?)?$"
)
_KEYS = (
    "ynchronous scheduling is", "async_scheduling", "KV cache size", "GPU blocks", "non-default args", "LLM engine (v",
    "num_gpu_blocks", "block_size", "enable_chunked_prefill", "Overriding", "cudagraph_capture_sizes", "enforce_eager",
)  # fmt: skip
_AHEAD = 2
"""Lines after a broken one that its rest is looked for in."""


@dataclass(slots=True, kw_only=True)
class IterationLines:
    """Columns of one length, one row per iteration: counts, ``elapsed_ms``, ``kv_usage`` (0 to 1, NaN where not printed), the
    ``engine`` (its number, -1 where the log names none) and ``second`` (of the log's clock, from its first line on; -1 where it
    has none). ``broken``: numbers of the lines that could not be read. ``other``: those that may tell how it was set up."""

    iteration: Column
    context_requests: Column
    context_tokens: Column
    generation_requests: Column
    generation_tokens: Column
    elapsed_ms: Column
    kv_usage: Column
    engine: npt.NDArray[np.int32]
    second: npt.NDArray[np.int64]
    lines: int = 0
    dummies: int = 0
    repaired: int = 0
    broken: list[int] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.elapsed_ms)


def read_iteration_lines(file: str | Path) -> IterationLines:
    """All iteration lines of a log. ``InputError``: not readable, or none in it."""
    import polars as pl

    try:
        text = pl.read_csv(
            file, has_header=False, separator="\x01", quote_char=None, schema={"line": pl.String}, encoding="utf8-lossy",
            truncate_ragged_lines=True,
        ).with_row_index("row")  # fmt: skip
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(unreadable(file, error), file=shown_path(file), expected="a log of vLLM") from None
    marked = text.filter(pl.col("line").str.contains(MARK, literal=True))
    if not len(marked):
        raise InputError("no iteration line", file=str(file), expected="a log with --enable-logging-iteration-details")
    dummy = pl.col("line").str.contains("(dummy)", literal=True)
    once = pl.col("line").str.count_matches(MARK, literal=True) == 1
    fields = pl.col("line").str.split(MARK).list.last().str.extract_groups("^" + FIELDS)
    engine = pl.col("line").str.extract(ENGINE).cast(pl.Int32, strict=False).fill_null(-1)
    stamp = pl.col("line").str.extract(STAMP)
    whole = marked.select("row", dummy=dummy, once=once, engine=engine, stamp=stamp, fields=fields).unnest("fields")
    good = pl.col("once") & pl.col("1").is_not_null()
    broken = whole.filter(~good)["row"].to_list()
    pieces, unread = _pieces(text, broken)
    found = _columns(whole.filter(good & ~pl.col("dummy")), pieces)
    found.lines, found.dummies = len(marked), int(whole.filter(good & pl.col("dummy")).height)
    found.repaired, found.broken = len(pieces), [row + 1 for row in unread]
    wanted = pl.col("line").str.contains_any(list(_KEYS)) & ~pl.col("line").str.contains(MARK, literal=True)
    found.other = text.filter(wanted)["line"].head(2000).to_list()
    return found


Piece = tuple[int, str, str | None, tuple[str | None, ...]]
"""The row it stands in, the text before it, its clock, and its fields."""


def _pieces(text: pl.DataFrame, rows: list[int]) -> tuple[list[Piece], list[int]]:
    """Messages found around broken rows, and the rows that remain unread."""
    pieces: list[Piece] = []
    unread: list[int] = []
    lines = text["line"]
    for row in rows:
        near = [line or "" for line in lines[row : row + 1 + _AHEAD].to_list()]
        # the rest of a broken line stands before the next whole message, if anywhere
        block = near[0] + "".join("\n" + line for line in _until_whole(near[1:]))
        found, rest = _taken(block)
        again, _ = _taken(rest.replace("\n", "")) if MARK in rest else ([], "")
        if not again and MARK in rest:
            again, _ = _taken(rest.replace("\n", " "))
        wanted = near[0].count(MARK)
        both = (found + again)[:wanted]
        pieces += [(row, before, _clock(before) or _clock(near[0]), fields) for before, fields in both]
        if len(both) < wanted:
            unread.append(row)
    return pieces, unread


def _until_whole(lines: list[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if MARK in line:
            break
        kept.append(line)
    return kept


def _taken(block: str) -> tuple[list[tuple[str, tuple[str | None, ...]]], str]:
    """Whole messages of ``block``, each with what stands before it, and the block without them and their prefixes."""
    found, rest, at = [], [], 0
    for match in _TOLERANT.finditer(block):
        before = block[at : match.start()]
        own = _PREFIX.search(before)
        found.append((before, match.groups()))
        rest.append(before[: own.start()] if own else before)
        at = match.end()
    return found, "".join(rest) + block[at:].removeprefix("\n")


def _clock(before: str) -> str | None:
    found = re.findall(STAMP, before)
    return found[-1] if found else None


def _columns(whole: pl.DataFrame, pieces: list[Piece]) -> IterationLines:
    import polars as pl

    names = [str(at) for at in range(1, len(COLUMNS) + 1)]
    columns = whole.select("row", "engine", "stamp", *names)
    if pieces:
        engines = [re.findall(ENGINE, before) for _, before, _, _ in pieces]
        extra = {
            "row": [piece[0] for piece in pieces], "engine": [int(each[-1]) if each else -1 for each in engines],
            "stamp": [piece[2] for piece in pieces],
            **{name: [piece[3][at] for piece in pieces] for at, name in enumerate(names)},
        }  # fmt: skip
        columns = pl.concat([columns, pl.DataFrame(extra, schema=columns.schema)]).sort("row", maintain_order=True)
    numbers = columns.select(pl.col(names).cast(pl.Float64, strict=False))
    values: dict[str, Any] = {key: numbers[name].to_numpy() for key, name in zip(COLUMNS, names, strict=True)}
    values["kv_usage"] = np.array(values["kv_usage"], np.float64) / 100  # null is NaN
    return IterationLines(**values, engine=columns["engine"].to_numpy(), second=_seconds(columns["stamp"]))


def _seconds(stamps: pl.Series) -> npt.NDArray[np.int64]:
    """Seconds from the earliest stamp; -1 for none. Logs leave the year out: one that passes New Year counts from January."""
    import polars as pl

    clock = ("2000-" + stamps.str.replace("/", "-", literal=True).str.replace("T", " ", literal=True)).str.to_datetime(
        "%Y-%m-%d %H:%M:%S", strict=False
    )
    seconds = clock.dt.epoch("s")
    return (seconds - (seconds.min() or 0)).fill_null(-1).cast(pl.Int64).to_numpy()
