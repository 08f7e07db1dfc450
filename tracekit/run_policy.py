"""The policy of a recorded run as an operator writes it: the flags that differ from the engine's defaults on that hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_engine.policy import Policy, as_vllm_flags, default_policy
from replay_engine.profile import parse_profile

__all__ = ["run_flags"]


def run_flags(row: Mapping[str, Any]) -> str | None:
    """vLLM flags from a ``runs`` row (``load_run``); empty where nothing differs, ``None`` where the run kept no policy. A run of
    an older version, which kept no profile, gets every flag."""
    if row["policy"] is None:
        return None
    policy = Policy.from_dict(row["policy"])
    if row["setup"] is None:
        return as_vllm_flags(policy)
    return as_vllm_flags(policy, default_policy(parse_profile(row["setup"]["profile"])))
