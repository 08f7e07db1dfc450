"""What is looked at, as a URL says it: ``?run=3&t=40-83.5&f=QUEUE_SEATS&cls=short``. The URL is the one selection that all
pages share; to share it is to share the view.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote

from dashboards.queries import LATEST

__all__ = ["METRICS", "MOST_REQUESTS", "UNITS", "Address", "parse_address", "window_ns"]

_RANGE = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)-(\d+(?:\.\d+)?(?:e-?\d+)?)", re.ASCII)
_NAME = re.compile(r"[^\x00-\x1f]{1,200}")
METRICS = ("ttft", "tpot", "gap", "e2e")
"""What a tail may be of: first token, mean time per later token, longest gap, last token."""
UNITS = ("tokens", "sequences", "ms")
"""What a batch may be drawn in: tokens, sequences, milliseconds of the iteration."""
MOST_REQUESTS = 50
"""Request numbers that an address can hold."""
MOST_ALSO = 10
"""Further runs that an address can name beside the two that are compared."""
MOST_FIELDS = 64
"""Parts of an address that are read at all."""
_BRUSH = re.compile(r"\d{1,2}:[\d.]{1,6}-[\d.]{1,6}(?:,\d{1,2}:[\d.]{1,6}-[\d.]{1,6}){0,19}", re.ASCII)
_KEY = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
_KEYS = ("run", "replica", "t", "last", "f", "req", "it", "cls", "tenant", "m", "lat", "arr", "cmp", "also", "study", "trial",
         "br", "exp", "cap", "y", "v")  # fmt: skip
_LETTERS = ",:/_-.@"
"""Left as they are in an address, so that people can read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A view: a run, one of its replicas (``None``: the first), a window in seconds on the engine clock, and what is selected.

    ``t`` is a fixed window, ``last_s`` one that ends where the run does and moves with it; with neither, the whole run. A window
    is what is looked at, on whatever page, and selects nobody. Requests are selected by what follows: ``finding``: a finding's
    id; ``requests``: their numbers; ``cls``, ``tenant``: of which they are; ``arrived_s``: when they arrived; ``latency_s``:
    between which their ``metric`` lies. ``iterations``: first and last. ``compare``: the run beside this one; ``also``: numbers
    of further ones. ``study``, ``trial``: of the tuner; ``brush``: ranges on the axes of its trials. ``experiment``,
    ``capacity``: which of those recorded. ``unit``: what the timeline's batches are drawn in.
    """

    run: str = LATEST
    replica: int | None = None
    t: tuple[float, float] | None = None
    last_s: float | None = None
    finding: str | None = None
    requests: tuple[int, ...] = ()
    iterations: tuple[int, int] | None = None
    cls: str | None = None
    tenant: str | None = None
    metric: str = "ttft"
    latency_s: tuple[float, float] | None = None
    arrived_s: tuple[float, float] | None = None
    compare: str | None = None
    also: tuple[int, ...] = ()
    study: str | None = None
    trial: int | None = None
    brush: str | None = None
    experiment: int | None = None
    capacity: str | None = None
    unit: str = "tokens"
    harmed: tuple[str, ...] = ()
    """Classes that the finding harms; not in the URL: ``dashboards.selection.settle`` looks them up."""
    ignored: tuple[str, ...] = ()
    """What the URL said and nobody understood, to be shown."""

    def search(self, **changes: Any) -> str:
        """The query string of this view, or of one that differs by ``changes``; ``""`` for the plainest."""
        view = replace(self, **changes) if changes else self
        parts = {
            "run": None if view.run == LATEST else view.run,
            "replica": view.replica,
            "t": _span(view.t),
            "last": None if view.last_s is None else f"{view.last_s:g}",
            "f": view.finding,
            "req": ",".join(map(str, view.requests)) or None,
            "it": None if view.iterations is None else f"{view.iterations[0]}-{view.iterations[1]}",
            "cls": view.cls,
            "tenant": view.tenant,
            "m": None if view.metric == METRICS[0] else view.metric,
            "lat": _span(view.latency_s),
            "arr": _span(view.arrived_s),
            "cmp": view.compare,
            "also": ",".join(map(str, view.also)) or None,
            "study": view.study,
            "trial": view.trial,
            "br": view.brush,
            "exp": view.experiment,
            "cap": view.capacity,
            "y": None if view.unit == UNITS[0] else view.unit,
        }
        given = [f"{key}={quote(str(value), safe=_LETTERS)}" for key, value in parts.items() if value is not None]
        return f"?{'&'.join(given)}" if given else ""

    @property
    def selects(self) -> bool:
        """Whether some requests are selected rather than all."""
        return bool(self.requests or self.cls or self.tenant or self.latency_s or self.arrived_s or self.finding)


def parse_address(search: str | None) -> Address:
    """Read a query string; never fails. Keys are those of ``Address.search``, and ``v`` (1); others are named in ``ignored``."""
    given = parse_qsl((search or "").lstrip("?"), keep_blank_values=True)[:MOST_FIELDS]
    found = {key: value for key, value in given if key in _KEYS}
    ignored = [key[:40] for key, _ in given if key not in _KEYS]
    read: dict[str, Any] = {
        "run": _text(found.get("run") or LATEST),
        "t": _range(found.get("t")),
        "last": _seconds(found.get("last")),
        "replica": _number(found.get("replica")),
        "f": _text(found.get("f")),
        "req": _numbers(found.get("req")),
        "it": _whole_range(found.get("it")),
        "cls": _text(found.get("cls")),
        "tenant": _text(found.get("tenant")),
        "m": found.get("m") if found.get("m") in METRICS else None,
        "lat": _range(found.get("lat")),
        "arr": _range(found.get("arr")),
        "cmp": _text(found.get("cmp")),
        "also": _numbers(found.get("also"), MOST_ALSO),
        "study": _matching(_KEY, found.get("study")),
        "trial": _number(found.get("trial")),
        "br": _matching(_BRUSH, found.get("br")),
        "exp": _number(found.get("exp")),
        "cap": _matching(_KEY, found.get("cap")),
        "y": found.get("y") if found.get("y") in UNITS else None,
    }
    ignored += [key for key, value in read.items() if key in found and value is None]
    if read["t"] is not None and read["last"] is not None:
        ignored.append("last")
    return _address(found, read, tuple(ignored))


def _address(found: dict[str, str], read: dict[str, Any], ignored: tuple[str, ...]) -> Address:
    return Address(
        run=read["run"] or LATEST,
        replica=read["replica"],
        t=read["t"],
        last_s=None if read["t"] is not None else read["last"],
        finding=read["f"],
        requests=read["req"] or (),
        iterations=read["it"],
        cls=read["cls"],
        tenant=read["tenant"],
        metric=read["m"] or METRICS[0],
        latency_s=read["lat"],
        arrived_s=read["arr"],
        compare=read["cmp"],
        also=read["also"] or (),
        study=read["study"],
        trial=read["trial"],
        brush=read["br"],
        experiment=read["exp"],
        capacity=read["cap"],
        unit=read["y"] or UNITS[0],
        ignored=ignored,
    )


def _span(pair: tuple[float, float] | None) -> str | None:
    return None if pair is None else "-".join(_plain(each) for each in pair)


def _plain(value: float) -> str:
    """Up to nine digits after the point, none of them in vain, never with an exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _range(text: str | None) -> tuple[float, float] | None:
    match = _RANGE.fullmatch(text or "")
    if match is None:
        return None
    begin, end = float(match[1]), float(match[2])
    return (begin, end) if begin < end < 1e9 else None


def _whole_range(text: str | None) -> tuple[int, int] | None:
    first, dash, last = (text or "").partition("-")
    low, high = _number(first, 12), _number(last, 12) if dash else _number(first, 12)
    return (low, high) if low is not None and high is not None and low <= high else None


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < 1e9 else None


def _number(text: str | None, digits: int = 5) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= digits else None


def _numbers(text: str | None, most: int = MOST_REQUESTS) -> tuple[int, ...] | None:
    found = [_number(each, 10) for each in (text or "").split(",")]
    known = [each for each in found if each is not None]
    return tuple(known) if len(known) == len(found) <= most else None


def _matching(pattern: re.Pattern[str], text: str | None) -> str | None:
    return text if text and pattern.fullmatch(text) else None


def _text(text: str | None) -> str | None:
    return text if text and _NAME.fullmatch(text) else None


def window_ns(address: Address, span: tuple[int, int]) -> tuple[int, int]:
    """The window to draw of a run that spans ``span`` ns."""
    begin, end = span
    if address.t is not None:
        return int(address.t[0] * 1e9), int(address.t[1] * 1e9)
    if address.last_s is not None:
        return max(begin, end - int(address.last_s * 1e9)), end
    return begin, end
