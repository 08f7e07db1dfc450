"""What a search begins with, unless its first move says otherwise of the second: replayed while the current policy is still being
diagnosed."""

from __future__ import annotations

from tuner.lookup import Lookup, Want
from tuner.proposing import first_moves

__all__ = ["first_wants"]


def first_wants(lookup: Lookup, workers: int) -> list[list[Want]]:
    """A share for each of ``workers`` (at least 2). The engine's defaults, which are never pruned, are the first one's, and the
    first moves, which may be, on the first half of the windows the others'; where the defaults are there, as those of the current
    policy, the moves are everybody's, on all windows."""
    plan = lookup.plan
    shares: list[list[Want]] = [[] for _ in range(workers)]
    if len(plan.objectives) > 1 or plan.objectives[0].rates:
        return shares
    defaults = plan.space.defaults(plan.policy, plan.profile)
    if lookup.derivable(defaults):
        shares[0] = lookup.missing(lookup.wants([defaults], "search"))
    others, windows = (shares[1:], -(-len(plan.trace.search) // 2)) if shares[0] else (shares[:], len(plan.trace.search))
    moves = [move for move in first_moves(plan.space, plan.current) if lookup.derivable(move)]
    wants = [want for at in range(windows) for want in lookup.wants(moves, "search") if want.window == at]
    for at, want in enumerate(lookup.missing(wants)):
        others[at % len(others)].append(want)
    return shares
