"""Trees of requests by their parents' indices: roots, depths, circles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["break_cycles", "roots_of"]

Ints = npt.NDArray[np.int64]


def roots_of(parent: Ints) -> tuple[Ints, Ints]:
    """Root and depth (0 at a root) of every request; ``parent`` is -1 at roots and must be free of circles."""
    up = np.where(parent < 0, np.arange(len(parent)), parent)
    depth = (parent >= 0).astype(np.int64)
    # each round doubles the distance looked up
    for _ in range(len(parent).bit_length() + 1):
        further = up[up]
        if np.array_equal(further, up):
            break
        depth += depth[up]
        up = further
    return up, depth


def break_cycles(parent: Ints) -> int:
    """Make the first request of every circle a root, in place. Returns the number of circles."""
    up = np.where(parent < 0, np.arange(len(parent)), parent)
    for _ in range(len(parent).bit_length() + 1):
        up = up[up]
    cut = 0
    seen: set[int] = set()
    for row in np.unique(up[parent[up] >= 0]).tolist():
        # after that many steps a row that finds no root stands on its circle
        if row in seen:
            continue
        circle, at = [row], int(parent[row])
        while at != row:
            circle.append(at)
            at = int(parent[at])
        seen.update(circle)
        parent[min(circle)] = -1
        cut += 1
    return cut
