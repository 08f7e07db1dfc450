"""From what a person names (file, glob, directory, standard input; plain or gzipped) to plain files that can be read twice.

Everything a reader sees is an uncompressed regular file: gzip is detected by its magic bytes, never by the name, and unpacked
(all members) to a temporary file in the pass that also hashes the bytes. A cut-off archive yields what it holds.
"""

from __future__ import annotations

import glob
import hashlib
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import orjson

from tracekit.errors import InputError

__all__ = ["Head", "Source", "expand_inputs", "open_sources"]

CHUNK = 4 << 20
HEAD_BYTES = 256 << 10
LONGEST_FIRST_LINE = 8 << 20
"""A first line is seen whole up to this: one session can be four megabytes, a header a hundred thousand names."""

MAX_UNPACKED = 16 << 20
GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"SQLite format 3\x00": "an SQLite database",
}
SKIPPED_SUFFIXES = frozenset({".md", ".txt", ".toml", ".db", ".duckdb", ".py", ".lock", ".tmp", ".wal"})


@dataclass(slots=True, kw_only=True)
class Head:
    """The beginning of a file: what a format is recognised by."""

    data: bytes
    complete: bool
    """Whether ``data`` is the whole file."""
    lines: list[bytes] = field(default_factory=list)
    """The first non-blank lines, without line ends and byte order mark; an unfinished last one is left out."""
    _records: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        text = self.data.removeprefix(b"\xef\xbb\xbf")
        lines = text.split(b"\n")
        if not self.complete and len(lines) > 1:
            lines.pop()
        self.lines = [line.rstrip(b"\r") for line in lines if line.strip()][:200]

    def records(self) -> list[dict[str, Any]]:
        """The JSON objects among the first lines (empty when they are not JSON lines)."""
        if self._records is None:
            self._records = []
            for line in self.lines:
                try:
                    value = orjson.loads(line)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    self._records.append(value)
        return self._records


@dataclass(slots=True, kw_only=True)
class Source:
    """One input file, ready to read: ``path`` is a plain file, ``name`` is what messages call it."""

    name: str
    path: Path
    scratch: Path
    """A folder for temporary copies; it is gone when the load ends."""
    number: int
    sha256: str
    size: int
    head: Head
    ends_with_newline: bool
    cut_at: int | None = None
    """Byte of the compressed input at which it breaks off; ``None`` for a whole file."""

    _marks: dict[bytes, int] | None = None

    def count(self, mark: bytes) -> int:
        """How often line feed, carriage return, both in a row, or a double quote occurs in the file (counted once)."""
        if self._marks is None:
            self._marks = dict.fromkeys((b"\n", b"\r", b'"', b"\r\n"), 0)
            before = b""
            with open(self.path, "rb") as data:
                while block := data.read(CHUNK):
                    # where there are many of one byte, comparing all of them is quicker than finding each
                    self._marks[b"\n"] += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))
                    for each in (b"\r", b'"'):
                        self._marks[each] += block.count(each)
                    if self._marks[b"\r"]:
                        self._marks[b"\r\n"] += block.count(b"\r\n") + (before == b"\r" and block[:1] == b"\n")
                    before = block[-1:]
        return self._marks[mark]

    @property
    def physical_lines(self) -> int:
        """Lines of the file, an unfinished last one included."""
        return self.count(b"\n") + (0 if self.ends_with_newline or self.size == 0 else 1)


def expand_inputs(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    """File names in order: globs and directories expanded (sorted), ``-`` kept. Errors: ``InputError``."""
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    names: list[str] = []
    for item in map(str, given):
        path = Path(item)
        if item == "-" or path.is_file() or path.is_fifo():
            names.append(item)
        elif path.is_dir():
            found = sorted(str(p) for p in path.iterdir() if p.is_file() and _looks_like_data(p))
            if not found:
                raise InputError("the directory holds no data files", file=item, expected="trace files")
            names.extend(found)
        else:
            found = sorted(name for name in glob.glob(item, recursive=True) if Path(name).is_file())
            if not found:
                raise InputError("no such file", file=item, expected="a file, a glob, a directory, or - for standard input")
            names.extend(found)
    if not names:
        raise InputError("no input given", expected="a file, a glob, a directory, or - for standard input")
    return names


def _looks_like_data(path: Path) -> bool:
    hidden = path.name.startswith((".", "_"))
    beside = path.name.endswith((".meta.json", ".timeseries.csv", ".server_metrics.csv", "SHA256SUMS"))
    return not hidden and path.suffix.lower() not in SKIPPED_SUFFIXES and not beside


@contextmanager
def open_sources(inputs: str | Path | Sequence[str | Path], first_number: int = 0) -> Iterator[list[Source]]:
    """The inputs as plain files for the length of the block; temporary copies are removed afterwards."""
    names = expand_inputs(inputs)
    with TemporaryDirectory(prefix="tracekit-load-") as folder:
        yield [_open_one(name, first_number + i, Path(folder)) for i, name in enumerate(names)]


def _open_one(name: str, number: int, folder: Path) -> Source:
    try:
        if name == "-":
            return _prepare("standard input", sys.stdin.buffer, None, number, folder)
        with open(name, "rb") as stream:
            return _prepare(name, stream, Path(name) if Path(name).is_file() else None, number, folder)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=name) from error


class _Scan:
    """Running facts about the plain bytes of one file."""

    def __init__(self) -> None:
        self.size = 0
        self.last = b""
        self.head = bytearray()

    def feed(self, data: bytes) -> None:
        if not data:
            return
        if len(self.head) == self.size:
            wanted = HEAD_BYTES
            if b"\n" not in self.head:
                end = data.find(b"\n") + 1
                wanted = min(max(HEAD_BYTES, len(self.head) + (end or len(data))), LONGEST_FIRST_LINE)
            self.head += data[: max(wanted - len(self.head), 0)]
        self.size += len(data)
        self.last = data[-1:]


def _prepare(name: str, stream: BinaryIO, path: Path | None, number: int, folder: Path) -> Source:
    digest, scan = hashlib.sha256(), _Scan()
    cut_at = None
    data = _fill(stream)
    if data.startswith(GZIP):
        path = folder / f"{number}.plain"
        with open(path, "wb") as out:
            cut_at = _gunzip(name, stream, data, digest, scan, out)
    else:
        copy = None if path is not None else open(folder / f"{number}.plain", "wb")  # noqa: SIM115
        try:
            with ThreadPoolExecutor(1) as beside:  # the digest is half of the work, and leaves the interpreter to others
                while data:
                    digested = beside.submit(digest.update, data)
                    scan.feed(data)
                    if copy is not None:
                        copy.write(data)
                    data = stream.read(CHUNK)
                    digested.result()
        finally:
            if copy is not None:
                copy.close()
        path = path or folder / f"{number}.plain"
    head = Head(data=bytes(scan.head), complete=scan.size == len(scan.head))
    _refuse_nonsense(name, head, scan.size)
    return Source(
        name=name, path=path, scratch=folder, number=number, sha256=digest.hexdigest(), size=scan.size, head=head,
        ends_with_newline=scan.last == b"\n", cut_at=cut_at,
    )  # fmt: skip


def _fill(stream: BinaryIO) -> bytes:
    """A first block that is not shorter than the magic bytes only because a pipe was slow."""
    data = stream.read(CHUNK)
    while data and len(data) < len(PARQUET):
        more = stream.read(CHUNK)
        if not more:
            break
        data += more
    return data


def _gunzip(name: str, stream: BinaryIO, data: bytes, digest: Any, scan: _Scan, out: BinaryIO) -> int | None:
    """Unpack all members to ``out``. Returns the byte at which the archive breaks off, ``None`` when whole."""
    unpacker = zlib.decompressobj(wbits=31)
    taken, inside = 0, False
    while data:
        digest.update(data)
        taken += len(data)
        rest = data if inside else data.lstrip(b"\0")  # zero padding between members is allowed
        while rest:
            inside = True
            try:
                plain = unpacker.decompress(rest, MAX_UNPACKED)
            except zlib.error as error:
                if scan.size == 0:
                    raise InputError(f"broken gzip data: {error}", file=name, expected="a whole gzip file") from error
                return taken - len(rest)
            out.write(plain)
            scan.feed(plain)
            rest = unpacker.unconsumed_tail
            if unpacker.eof:
                rest = unpacker.unused_data.lstrip(b"\0")
                unpacker, inside = zlib.decompressobj(wbits=31), False
        data = stream.read(CHUNK)
    if inside:
        plain = unpacker.flush()
        out.write(plain)
        scan.feed(plain)
    return taken if inside else None


def _refuse_nonsense(name: str, head: Head, size: int) -> None:
    data = head.data
    for magic, what in ARCHIVES.items():
        if data.startswith(magic):
            raise InputError(f"this is {what}", file=name, expected="plain text, gzip or Parquet (unpack it)")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(data) > 3 and b"\0\0" in (data[0:4:2], data[1:4:2])):
        raise InputError("the text is UTF-16", file=name, expected="UTF-8 (convert it: iconv -f UTF-16 -t UTF-8)")
    if not data.startswith(PARQUET) and b"\n" not in data and data.count(b"\r") > 1:
        raise InputError("its lines end with carriage returns alone", file=name, expected="line feeds (tr '\\r' '\\n')")
    if data.startswith(b"version https://git-lfs"):
        raise InputError("this is a Git LFS pointer, not the data", file=name, expected="the file itself (git lfs pull)")
    if data[:256].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise InputError("this is an HTML page, not a trace", file=name, expected="CSV, JSON lines or Parquet")
    if size == 0 or not (head.lines or data.startswith(PARQUET)):
        raise InputError("no data rows", file=name, expected="at least one request")
