"""Which process is it: a pid alone is not enough, the kernel hands it out again.

A process's *mark* is text that no other process with the same pid has: boot and start time. Unreaped children count as gone.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

__all__ = ["is_alive", "process_mark"]


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


def _mark_without_proc(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def process_mark(pid: int | None = None) -> str | None:
    """The mark of a running process (default: this one), ``None`` when there is none of that pid."""
    pid = os.getpid() if pid is None else pid
    boot = _boot()
    if not boot:
        return _mark_without_proc(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else f"{boot}-{fields[19]}"


def is_alive(pid: int, mark: str | None) -> bool:
    """Whether the process that had ``mark`` when it was noted still runs."""
    return pid > 0 and mark is not None and process_mark(pid) == mark
