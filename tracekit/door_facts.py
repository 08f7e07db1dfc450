"""What the front door is told of a replay besides its rules: the profile's costs, TTFT limits, the tenants' names."""

from __future__ import annotations

import numpy as np

from replay_engine.front_door import DoorFacts
from replay_engine.policy import Policy
from replay_engine.profile import Profile
from tracekit.errors import UsageError, shown
from tracekit.metrics import SloTable
from tracekit.traces.source import TraceSource

__all__ = ["door_facts", "door_notes"]


def door_facts(policy: Policy, profile: Profile, slo: SloTable | None, source: TraceSource) -> DoorFacts:
    """``UsageError`` where a rule needs an SLO that nobody has."""
    limits: list[int] | None = None
    if policy.rules.front_door.reject_hopeless:
        limits = _ttft_limits(slo, source)
        if limits is None:
            raise UsageError("front_door.reject_hopeless = true: no TTFT SLO is given; expected one, as --slo ttft=500ms")
    return DoorFacts(latency=profile.latency, ttft_slo_ns=limits, tenants=source.tenant_names)


def door_notes(policy: Policy, source: TraceSource) -> list[str]:
    """Quotas of tenants that do not occur."""
    unknown = [name for name in policy.rules.front_door.quotas if name not in source.tenant_names]
    return [f"front_door.quotas.{shown(name)} has no effect: no request of the trace is of this tenant" for name in unknown]


def _ttft_limits(slo: SloTable | None, source: TraceSource) -> list[int] | None:
    """Per request, ns; ``None`` when nobody has one."""
    own = source.slo_ttft_ns
    if (slo is None or "ttft" not in slo.given()) and own is None:
        return None
    limits = (SloTable() if slo is None else slo).limits(
        "ttft", source.total, class_codes=source.class_, class_names=source.class_names, tenant_codes=source.tenant,
        tenant_names=source.tenant_names,
    )  # fmt: skip
    merged: list[int] = (limits if own is None else np.where(own >= 0, own, limits)).tolist()
    return merged
