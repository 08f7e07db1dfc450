"""The worker processes of a study that this process carries out."""

from __future__ import annotations

import psutil

__all__ = ["forks", "workers"]


def forks() -> list[psutil.Process]:
    """Children of this process that fork workers."""
    there = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in there if "tuner.worker" in " ".join(child.cmdline())]


def workers() -> list[int]:
    """Process ids of the workers under way, in the order of their start."""
    found = [worker for fork in forks() for worker in fork.children() if worker.status() != psutil.STATUS_ZOMBIE]
    return [worker.pid for worker in sorted(found, key=lambda each: each.create_time())]
