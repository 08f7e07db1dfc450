"""JSON that is not one object a line: an array of objects, a document over many lines, several documents one after another.

Values are decoded one by one from a growing buffer: memory follows the largest value, not the file. A value that is broken is
rejected, and reading goes on where the next one seems to begin.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import Batches, json_line_batches
from tracekit.traces.stage import Stage

__all__ = ["head_objects", "is_json", "json_batches"]

BLOCK = 1 << 20
ROWS = 1000
SAMPLE = 200
NEAR_THE_END = 16
"""A fault this close to the end of what was read may be a token that is cut in two."""

_BETWEEN = re.compile(r"[\s,\[\]\ufeff]*")
_FIRST_KEY = re.compile(r'\{\s*"[^"\\]{1,80}"\s*:')


def _whole(text: str) -> int | float:
    # what no 64-bit number holds becomes a float, as it does where lines are parsed
    return int(text) if len(text) <= 20 else float(text)


def is_json(head: Head) -> bool:
    """Whether the file begins like a JSON object or array."""
    return bool(head.lines) and head.lines[0].lstrip()[:1] in (b"{", b"[")


def _is_lines(head: Head) -> bool:
    """One object a line, rather than a document over many lines."""
    if head.lines[0].lstrip()[:1] != b"{":
        return False
    sample = head.lines[:20]
    return sum(_is_object(line) for line in sample) * 2 > len(sample)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except ValueError:
        return False


def head_objects(head: Head) -> list[dict[str, Any]]:
    """The first objects of a JSON file of any shape (empty where the first one is longer than the head)."""
    if not is_json(head):
        return []
    if _is_lines(head):
        return head.records()[:SAMPLE]
    text, at = head.data.decode("utf-8", "replace"), 0
    found: list[dict[str, Any]] = []
    decoder = json.JSONDecoder(strict=False, parse_int=_whole)
    while len(found) < SAMPLE:
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            found.append(value)
    return found


def json_batches(source: Source, stage: Stage) -> Batches:
    """Objects with the lines that they begin in, some at a time; what is no object is rejected."""
    if _is_lines(source.head):
        yield from json_line_batches(source, stage)
        return
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    for line, value in _Values(source, stage):
        if isinstance(value, dict):
            lines.append(line)
            rows.append(value)
        else:
            stage.reject(source.name, line, None, None, "not a JSON object")
        if len(rows) >= ROWS:
            yield np.asarray(lines, np.int64), rows
            lines, rows = [], []
    yield np.asarray(lines, np.int64), rows


class _Values:
    """Iterates over (line, value) of a file of JSON values; rejects the broken ones."""

    def __init__(self, source: Source, stage: Stage) -> None:
        self.source, self.stage = source, stage
        self.data = open(source.path, "rb")  # noqa: SIM115
        self.text = codecs.getincrementaldecoder("utf-8")("replace")
        self.buffer, self.at, self.line, self.ended = "", 0, 1, False
        self.block = BLOCK
        self.marker: re.Pattern[str] | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        decoder = json.JSONDecoder(strict=False, parse_int=_whole)
        with self.data:
            while self._to_next():
                try:
                    value, end = decoder.raw_decode(self.buffer, self.at)
                except (ValueError, RecursionError) as error:
                    if not self._more(error):
                        self._skip_broken(error)
                    continue
                self._learn()
                line = self.line
                self._advance(end)
                self.block = BLOCK
                yield line, value

    def _to_next(self) -> bool:
        """To the beginning of the next value; ``False`` at the end of the file."""
        while True:
            between = _BETWEEN.match(self.buffer, self.at)
            self._advance(between.end() if between else self.at)
            if self.at < len(self.buffer):
                return True
            if self.ended:
                return False
            self._read()

    def _advance(self, end: int) -> None:
        self.line += self.buffer.count("\n", self.at, end)
        self.at = end

    def _read(self) -> None:
        data = self.data.read(self.block)
        self.ended = not data
        self.buffer = self.buffer[self.at :] + self.text.decode(data, self.ended)
        self.at = 0

    def _more(self, error: Exception) -> bool:
        """Whether the fault may be gone when more of the file is read (then it has been)."""
        if self.ended or not isinstance(error, json.JSONDecodeError):
            return False
        if error.pos < len(self.buffer) - NEAR_THE_END and not error.msg.startswith("Unterminated string"):
            return False
        self._read()
        self.block *= 2  # a value of any size is tried a few times only
        return True

    def _learn(self) -> None:
        if self.marker is None:
            first = _FIRST_KEY.match(self.buffer, self.at)
            if first is not None:
                self.marker = re.compile(r"\s*".join(map(re.escape, first[0].split())))

    def _skip_broken(self, error: Exception) -> None:
        at = error.pos if isinstance(error, json.JSONDecodeError) else self.at + 1
        # only at the end of the file is what is left a value that was cut off
        cut = self.ended and (at >= len(self.buffer.rstrip()) or str(error).startswith("Unterminated string"))
        size = self.source.size if self.source.cut_at is None else self.source.cut_at
        reason = f"incomplete (cut at byte {size})" if cut else "not valid JSON"
        self.stage.reject(self.source.name, self.line, None, None, reason)
        while True:
            found = self.marker.search(self.buffer, max(at, self.at + 1)) if self.marker is not None else None
            if found is not None:
                self._advance(found.start())
                return
            self._advance(len(self.buffer))
            if self.ended:
                return
            self._read()
            at = 0
