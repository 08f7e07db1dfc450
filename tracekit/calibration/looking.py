"""What a file looks like from outside: the start of it, unpacked, and why it could not be read."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["looked_at", "unreadable"]

_LOOK = 1 << 20


def looked_at(path: Path) -> bytes:
    """The start of a file, unpacked where it is gzip, and of a long one the middle too; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                return _unpacked(path)
            file.seek(0)
            start = file.read(_LOOK)
            return start if len(start) < _LOOK else start + _middle(file, path.stat().st_size)
    except (OSError, EOFError, zlib.error):
        return b""


def _unpacked(path: Path) -> bytes:
    """What the start of a packed file holds, also of one that was cut: what it is can be told before what is wrong with it."""
    parts: list[bytes] = []
    try:
        with gzip.open(path) as packed:
            while sum(map(len, parts)) < 2 * _LOOK and (part := packed.read1(_LOOK)):
                parts.append(part)
    except (OSError, EOFError, zlib.error):
        pass
    return b"".join(parts)


def unreadable(file: str | Path, error: Exception) -> str:
    """Why a file could not be read, in words."""
    reason = getattr(error, "strerror", None)
    if reason:
        return str(reason)
    with suppress(OSError), Path(file).open("rb") as raw:
        if raw.read(2) == b"\x1f\x8b":
            return "gzip data that is cut short or damaged"
    return "not text"


def _middle(file: BinaryIO, size: int) -> bytes:
    file.seek(size // 2)
    return file.read(_LOOK)
