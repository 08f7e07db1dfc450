"""Where Optuna keeps a study on one machine: a file of whole lines, appended to under a lock that dies with whoever holds it.

Optuna's own file is locked by a link beside it, which a killed process leaves behind (others wait 30 s for it), and is forced to
the disk at each of some ten lines a trial. What a power failure may take of ours is the end of a search, which is searched again;
a line that it cut in two is taken off when the study is opened.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import Any

from optuna.storages.journal import JournalFileBackend

__all__ = ["Journal"]

PIECE = 1 << 16


class Journal(JournalFileBackend):
    """The file at ``file_path``, made where there is none."""

    def __init__(self, file_path: str) -> None:
        super().__init__(file_path)
        with open(file_path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            whole = _whole(file.fileno())
            if whole < os.fstat(file.fileno()).st_size:
                file.truncate(whole)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """One write of whole lines."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        file = os.open(self._file_path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if os.write(file, lines) < len(lines):  # half a line would spoil all that follow it
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file_path)
        finally:
            os.close(file)


def _whole(file: int) -> int:
    """Bytes up to the end of the last whole line."""
    end = os.fstat(file).st_size
    while end:
        begin = max(end - PIECE, 0)
        at = os.pread(file, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0
