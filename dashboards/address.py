"""What is looked at, as a URL says it: ``?run=3&replica=1&t=40-83.5``. The URL is the page's state; to share it is to share
the view.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from dashboards.queries import LATEST

__all__ = ["Address", "parse_address", "window_ns"]

_RANGE = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)-(\d+(?:\.\d+)?(?:e-?\d+)?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A view: a run, one of its replicas (``None``: the first), and a window in seconds on the engine clock.

    ``t`` is a fixed window, ``last_s`` one that ends where the run does and moves with it; with neither, the whole run.
    """

    run: str = LATEST
    replica: int | None = None
    t: tuple[float, float] | None = None
    last_s: float | None = None
    ignored: tuple[str, ...] = ()
    """What the URL said and nobody understood, to be shown."""


def parse_address(search: str | None) -> Address:
    """Read a query string; never fails. Keys: ``run``, ``replica``, ``t`` (``begin-end``) or ``last``, ``v`` (1)."""
    found: dict[str, str] = {}
    ignored: list[str] = []
    for key, value in parse_qsl((search or "").lstrip("?"), keep_blank_values=True, max_num_fields=None):
        if key in ("run", "replica", "t", "last", "v"):
            found[key] = value
        else:
            ignored.append(key[:40])
    t, last_s, replica = _range(found.get("t")), _seconds(found.get("last")), _number(found.get("replica"))
    ignored += [key for key, value in (("t", t), ("last", last_s), ("replica", replica)) if key in found and value is None]
    if t is not None and last_s is not None:
        ignored.append("last")
        last_s = None
    return Address(run=found.get("run") or LATEST, replica=replica, t=t, last_s=last_s, ignored=tuple(ignored))


def _range(text: str | None) -> tuple[float, float] | None:
    match = _RANGE.fullmatch(text or "")
    if match is None:
        return None
    begin, end = float(match[1]), float(match[2])
    return (begin, end) if begin < end < 1e9 else None


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < 1e9 else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None


def window_ns(address: Address, span: tuple[int, int]) -> tuple[int, int]:
    """The window to draw of a run that spans ``span`` ns."""
    begin, end = span
    if address.t is not None:
        return int(address.t[0] * 1e9), int(address.t[1] * 1e9)
    if address.last_s is not None:
        return max(begin, end - int(address.last_s * 1e9)), end
    return begin, end
