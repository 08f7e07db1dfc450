"""Parents in sessions with sub-agents: who waited for whom, told from who had answered last."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["nested_parents"]

Ints = npt.NDArray[np.int64]
SLACK = 1_000_000_000
"""Recorded times of such logs are rounded to a second: an answer may seem to end this much after it was used, ns."""


def nested_parents(session: Ints, paths: list[str | None], arrival: Ints, e2e: Ints) -> tuple[Ints, Ints]:
    """Parent of each request, and the request before it in its own agent's conversation (-1: none).

    ``session`` has codes (-1: none), ``paths`` name agents as ``root/sub1``, rows are in the order of arrival. A request follows
    its agent's last one, or one of a sub-agent that answered later and before the request came; an agent's first request follows
    the one of the agents above that answered last.
    """
    parent = np.full(len(session), -1, np.int64)
    own = parent.copy()
    last: dict[int, dict[str, int]] = {}
    end = (arrival + e2e).tolist()
    when = arrival.tolist()
    for row, code in enumerate(session.tolist()):
        if code < 0:
            continue
        path = paths[row] or ""
        agents = last.setdefault(code, {})
        before = agents.get(path)
        if before is not None:
            own[row] = before
            below = _done_below(agents, path, before, when, end, when[row])
            parent[row] = max(below, key=end.__getitem__) if below else before
        else:
            parent[row] = _above(agents, path)
        agents[path] = row
    return parent, own


def _done_below(agents: dict[str, int], path: str, before: int, when: list[int], end: list[int], now: int) -> list[int]:
    """Last requests of sub-agents that began after ``before`` and had their answer after its own, by ``now``."""
    if len(agents) == 1:
        return []
    return [row for name, row in agents.items()
            if name.startswith(f"{path}/") and when[row] >= when[before] and end[before] < end[row] <= now + SLACK]  # fmt: skip


def _above(agents: dict[str, int], path: str) -> int:
    """The last request of the nearest agent above that has one; -1 where none has."""
    while path:
        path = path.rpartition("/")[0]
        row = agents.get(path)
        if row is not None:
            return row
    return -1
