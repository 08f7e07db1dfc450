"""``--pd`` and what goes with it, as settings of ``[pd]``."""

from __future__ import annotations

import re
from typing import Any

from tracekit.errors import UsageError, shown

__all__ = ["pd_sets"]

_POOLS = {"P": "prefill", "D": "decode"}


def pd_sets(given: dict[str, Any]) -> list[str]:
    """``--pd``, ``--router``, ``--fail`` and ``--slow`` as ``table.knob=value``. Errors: ``UsageError``."""
    if given["replicas"] is not None:
        raise UsageError("--pd and --replicas: the pools have their own numbers of engines; expected one of them")
    split = re.fullmatch(r"\s*([1-9][0-9]{0,3})\s*:\s*([1-9][0-9]{0,3})\s*", given["pd"])
    if split is None:
        raise UsageError(f"--pd {shown(given['pd'])}: expected numbers of prefill and decode engines, as 2:6")
    sets = [f"pd.prefill={split[1]}", f"pd.decode={split[2]}"]
    if given["router"] is not None:
        sets += [f"pd.{pool}_router={name}" for pool, name in _routers(given["router"]).items()]
    return sets + [f"pd.{name}={','.join(given[name])}" for name in ("fail", "slow") if given[name]]


def _routers(text: str) -> dict[str, str]:
    """``P=round_robin,D=least_tokens``, either alone, or one name for both. A router's own commas stand in brackets."""
    parts = re.split(r",\s*(?=[A-Za-z]\s*=)", text.strip())
    if len(parts) == 1 and "=" not in text:
        return dict.fromkeys(_POOLS.values(), text.strip())
    found: dict[str, str] = {}
    for part in parts:
        pool, equals, name = part.partition("=")
        if not equals or pool.strip() not in _POOLS or not name.strip() or _POOLS[pool.strip()] in found:
            raise UsageError(f"--router {shown(text)}: expected a router a pool, as P=least_tokens,D=round_robin")
        found[_POOLS[pool.strip()]] = name.strip()
    return found
