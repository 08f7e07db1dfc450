"""Traces that a browser sends: bounded in size and kind, kept beside the database under a digest, and read before they are used.

A page names one by its digest only; the server looks it up among those that are there, so no path comes from outside.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown

__all__ = ["KINDS", "MOST_BYTES", "Upload", "checked", "decoded", "find", "keep"]

MOST_BYTES = 64 << 20
"""Of a file as it is sent, and of what the server takes in one request at all (in base64 a third more)."""
MOST_UNPACKED = 1 << 30
"""Of what a gzipped file unpacks to."""
KINDS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".log")
KEPT = 20
_CHECK_S = 300
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """``key``: what pages call it; ``path``: where it lies."""

    key: str
    path: Path


def decoded(contents: str, name: str, most: int) -> bytes:
    """The bytes of what a browser sent (``data:...;base64,...``). ``UsageError``: more than ``most``, cut off, or nothing."""
    if len(contents) > most * 4 // 3 + 1024:
        raise UsageError(f"{shown(name)}: more than {most >> 10:,} KiB; expected a smaller file")
    try:
        data = base64.b64decode(contents.partition(",")[2].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise UsageError(f"{shown(name)}: did not arrive whole; send it again") from None
    if not data:
        raise UsageError(f"{shown(name)}: an empty file")
    return data


def keep(folder: Path, contents: str, name: str) -> Upload:
    """Store what a browser sent (``data:...;base64,...``) under ``folder``. ``UsageError``: too large, of no known kind."""
    ends = re.sub(r"\.gz$", "", name.lower())
    if not ends.endswith(KINDS):
        raise UsageError(f"{shown(name)}: not a kind that is taken; expected {', '.join(KINDS)}, plain or with .gz behind")
    if len(contents) > MOST_BYTES * 4 // 3 + 1024:
        raise UsageError(
            f"{shown(name)}: more than {MOST_BYTES >> 20} MiB; replay it with tracekit replay FILE, and it is listed here"
        )
    data = decoded(contents, name, MOST_BYTES)
    _refuse_bombs(data, name)
    key = hashlib.sha256(data).hexdigest()[:32]
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("\\", "/").rsplit("/", 1)[-1])[-80:].lstrip(".-_")
    path = next(iter(sorted((folder / key).glob("[!.]*"))), folder / key / (plain or "trace"))
    if not path.exists():  # what was sent before keeps the name it had then
        _make_room(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        part.rename(path)
    return Upload(key=key, path=path)


def find(folder: Path, key: str) -> Upload:
    """``UsageError`` where no upload is called so."""
    there = sorted((folder / key).glob("[!.]*")) if _KEY.fullmatch(key) else []
    if not there:
        raise UsageError("that upload is not there any more; send the file again")
    return Upload(key=key, path=there[0])


def checked(upload: Upload) -> dict[str, Any]:
    """What ``tracekit validate`` says of it (``tracekit.validate/1``), from a process of its own. ``UsageError`` where that takes
    too long or fails."""
    command = [sys.executable, "-m", "tracekit.cli.main", "validate", "--json", "--rows", "10", "--", str(upload.path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHECK_S, check=False)
        document = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise UsageError(f"{shown(upload.path.name)}: could not be checked; try tracekit validate FILE") from None
    if document.get("schema") != "tracekit.validate/1":
        said = shown(_nameless(str(document.get("error", "could not be checked")), upload), 400)
        raise UsageError(said if said.startswith(upload.path.name) else f"{shown(upload.path.name)}: {said}")
    found: dict[str, Any] = document
    if found["refused"]:
        found["refused"] = _nameless(str(found["refused"]), upload)
    return found


def _nameless(text: str, upload: Upload) -> str:
    """A message without where uploads lie, which is nothing that a browser needs to know."""
    return text.replace(str(upload.path), upload.path.name)


def _refuse_bombs(data: bytes, name: str) -> None:
    """Unpack what is gzipped, keeping nothing, until it is too large."""
    if not data.startswith(b"\x1f\x8b"):
        return
    unpacked = 0
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            while piece := stream.read(1 << 20):
                unpacked += len(piece)
                if unpacked > MOST_UNPACKED:
                    raise UsageError(f"{shown(name)}: unpacks to more than {MOST_UNPACKED >> 30} GiB; expected less")
    except (OSError, EOFError, zlib.error):
        return  # broken or cut off: the check that follows says where


def _make_room(folder: Path) -> None:
    """The oldest go when many have gathered; what was replayed is in the database."""
    there = sorted((each for each in folder.glob("*") if each.is_dir()), key=lambda each: each.stat().st_mtime_ns)
    for old in there[: max(0, len(there) - KEPT + 1)]:
        shutil.rmtree(old, ignore_errors=True)
