"""The policy table of several replicas behind one router: ``[fleet]``."""

from __future__ import annotations

from dataclasses import dataclass

from replay_engine.config import ConfigError
from replay_engine.fleet.faults import Fault, parse_fault
from replay_engine.fleet.routers import make_router
from replay_engine.rule_checks import at_least, check_types

__all__ = ["MOST_REPLICAS", "FleetRules"]

MOST_REPLICAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """So many engines of one kind behind one router, on one clock.

    ``router``: ``round_robin``; ``least_tokens``, fewest prompt and output tokens not answered yet; ``power_of_two``, the less
    loaded of two drawn; ``prefix_affinity``, where most of the prompt's prefix was sent, unless that replica has more than twice
    the least load; ``weighted(w1,w2,...)``, fixed shares. ``fail``: ``replica1@60s:30s``, down from 60 s on the engine clock for
    30 s, or for good without the second time; ``slow``: ``replica2@60s:2x``, everything takes twice as long from there on, or for
    a while: ``replica2@60s:2x:30s``. Replicas are numbered from 0; several faults are separated by commas.
    """

    replicas: int = 1
    router: str = "round_robin"
    fail: str = ""
    slow: str = ""

    def __post_init__(self) -> None:
        check_types("fleet", self)
        at_least("fleet", "replicas", self.replicas, 1)
        if self.replicas > MOST_REPLICAS:
            raise ConfigError(f"fleet.replicas = {self.replicas}: expected at most {MOST_REPLICAS}")
        try:
            make_router(self.router, self.replicas)
        except ConfigError as error:
            raise ConfigError(f"fleet.{error}") from None
        self.faults()

    @property
    def active(self) -> bool:
        """Whether more than one plain engine is asked for."""
        return self.replicas > 1 or bool(self.fail or self.slow)

    def faults(self) -> list[Fault]:
        """What was planned to go wrong."""
        return [
            parse_fault(part, slow=slow, replicas=self.replicas, option=f"fleet.{'slow' if slow else 'fail'} =")
            for slow, text in ((False, self.fail), (True, self.slow))
            for part in text.split(",")
            if part.strip()
        ]
