"""Where an export goes: a file or a folder that appears whole or not at all, or standard output."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tracekit.errors import UsageError, shown, shown_path

__all__ = ["STDOUT", "refuse_existing", "whole_file", "whole_folder"]

STDOUT = "-"


def refuse_existing(out: Path, force: bool) -> None:
    """``UsageError`` where ``out`` is there already and may not be replaced, or lies in no folder."""
    if not out.parent.is_dir():
        raise UsageError(f"{shown(out, 400)}: no such folder to write into; expected a path in an existing folder")
    if not force and os.path.lexists(out):
        raise UsageError(f"{shown(out, 400)}: there already, and nothing was changed; --force replaces it")


@contextmanager
def whole_file(out: str | Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``out`` when the block ends well; ``-`` is standard output, as it comes.

    An exception or a kill leaves what was at ``out`` before. ``UsageError``: there already without ``force``, or not writable.
    """
    if str(out) == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    refuse_existing(path, force)
    if path.is_dir():
        raise UsageError(f"{shown_path(path)}: a folder; expected a file")
    with _told(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            part.chmod(0o666 & ~_umask())
            _put(part, path, force)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_folder(out: str | Path, ours: frozenset[str], *, force: bool = False) -> Iterator[Path]:
    """A folder to write into, which becomes ``out`` when the block ends well. ``ours``: names of files that such a folder holds;
    one that holds anything else is never replaced."""
    path = Path(out)
    refuse_existing(path, force)
    if os.path.lexists(path):
        _refuse_foreign(path, ours)
    with _told(path):
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
        try:
            yield part
            part.chmod(0o777 & ~_umask())
            old = part.with_suffix(".old")
            if path.is_dir():
                path.rename(old)
            elif os.path.lexists(path):
                raise UsageError(f"{shown_path(path)}: came into being meanwhile; nothing was changed")
            part.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _refuse_foreign(path: Path, ours: frozenset[str]) -> None:
    if path.is_symlink() or not path.is_dir():
        raise UsageError(f"{shown_path(path)}: no folder; expected a free name, or a folder of an earlier export")
    foreign = sorted({each.name for each in path.iterdir()} - ours)
    if foreign:
        raise UsageError(f"{shown_path(path)}: holds {shown(foreign[0])}, which no export wrote; expected another folder")


def _put(part: Path, path: Path, force: bool) -> None:
    if force:
        part.replace(path)
        return
    try:
        os.link(part, path)  # unlike a rename it never replaces what came into being meanwhile
    except FileExistsError:
        raise UsageError(f"{shown_path(path)}: came into being meanwhile; nothing was changed") from None
    except OSError:  # a file system without hard links
        part.replace(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the file system says, as one line; a reader that closes its pipe is not its fault."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{shown_path(path)}: cannot be written ({reason}); nothing was changed") from None


def _umask() -> int:
    mask = os.umask(0)
    with contextlib.suppress(OSError):
        os.umask(mask)
    return mask
