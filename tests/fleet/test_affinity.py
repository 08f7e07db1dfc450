"""Prefix affinity: where prefixes go that nobody has had yet, and where they go again."""

from __future__ import annotations

import numpy as np

from replay_engine.fleet.routers import Candidate, PrefixAffinity
from replay_engine.types import Request


def request(index: int) -> Request:
    return Request(index=index, request_id=str(index), arrival_ns=index, prompt_tokens=1000, output_tokens=1, max_tokens=1)


def keys(group: int) -> list[int]:
    return list(range(group * 1000, group * 1000 + 60))


def idle(replica: int) -> Candidate:
    return Candidate(replica)


def test_an_idle_fleet_spreads_new_prefixes_and_keeps_old_ones_where_they_are() -> None:
    """All replicas are equally idle at each of the requests, one after the other."""
    router = PrefixAffinity(blocks=10_000)
    placed = [router.pick(request(group), keys(group), range(4), idle) for group in range(24)]
    assert np.bincount(placed, minlength=4).tolist() == [6, 6, 6, 6]
    assert [router.pick(request(24 + group), keys(group), range(4), idle) for group in range(24)] == placed


def test_the_least_loaded_comes_before_the_emptiest() -> None:
    router = PrefixAffinity(blocks=10_000)
    assert router.pick(request(0), keys(0), range(2), idle) == 0
    assert router.pick(request(1), keys(1), range(2), lambda replica: Candidate(replica, tokens=replica)) == 0
    assert router.pick(request(2), keys(2), range(2), idle) == 1


def test_a_replica_far_more_loaded_than_the_others_is_left() -> None:
    router = PrefixAffinity(blocks=10_000, spread=2.0, slack=100)
    home = router.pick(request(0), keys(0), range(2), idle)
    other = 1 - home
    bearable = {home: Candidate(home, tokens=2 * 500 + 100), other: Candidate(other, tokens=500)}
    assert router.pick(request(1), keys(0), range(2), bearable.__getitem__) == home
    too_much = {home: Candidate(home, tokens=2 * 500 + 101), other: Candidate(other, tokens=500)}
    assert router.pick(request(2), keys(0), range(2), too_much.__getitem__) == other
