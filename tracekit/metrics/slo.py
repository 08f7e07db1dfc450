"""Service-level objectives: parsing, per tenant and class, and which requests met them.

Times are int64 nanoseconds. A request meets its SLO when every part given holds (value <= limit); a part that is undefined
for it (TPOT of one token) is met; one that did not finish has missed, except a client's own cancel before any part was violated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown

__all__ = ["PARTS", "UNLIMITED", "Slo", "SloTable", "parse_duration_ns", "parse_goodput", "parse_slo", "stall_threshold"]

PARTS = ("ttft", "tpot", "itl", "stall", "e2e")
"""The parts of an SLO: first token, mean time per later token, p99 of the request's gaps, its longest gap, last token."""

UNLIMITED = np.iinfo(np.int64).max
"""The limit of a part that is not given."""

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_GOODPUT_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "stall": "stall", "e2el": "e2e", "e2e": "e2e"}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]+)\s*")
_LONGEST_NS = 10**9 * 86_400 * 365


def parse_duration_ns(text: str, *, where: str = "duration") -> int:
    """``"500ms"`` as nanoseconds; units ns, us, ms, s, m, h. Raises ``UsageError``: no unit, not positive, more than a year."""
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in _UNITS_NS:
        raise UsageError(f"{where} = '{shown(text)}': expected a number with its unit ({', '.join(_UNITS_NS)}), as in 500ms")
    return _positive_ns(match[1], _UNITS_NS[match[2]], where, text)


def _positive_ns(number: str, unit_ns: int, where: str, text: str) -> int:
    try:
        value = Decimal(number) * unit_ns
        whole = int(value) if value.is_finite() and value < _LONGEST_NS else -1
    except InvalidOperation:
        whole = -1
    if whole < 1:
        raise UsageError(f"{where} = '{shown(text)}': expected a time between 1 ns and a year")
    return whole


def _in_words(ns: int) -> str:
    """``ns`` in the largest unit up to seconds that it is whole in."""
    unit = next(unit for unit in ("s", "ms", "us", "ns") if not ns % _UNITS_NS[unit])
    return f"{ns // _UNITS_NS[unit]}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in nanoseconds; ``None``: that part is not asked for."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    itl_ns: int | None = None
    stall_ns: int | None = None
    e2e_ns: int | None = None

    def limit(self, part: str) -> int | None:
        """The limit of one of ``PARTS``."""
        value: int | None = getattr(self, f"{part}_ns")
        return value

    def given(self) -> tuple[str, ...]:
        """The parts asked for."""
        return tuple(part for part in PARTS if self.limit(part) is not None)

    def text(self) -> str:
        """As ``parse_slo`` reads it, to the nanosecond: ``ttft=1s,tpot=50ms``."""
        return ",".join(f"{part}={_in_words(limit)}" for part in PARTS if (limit := self.limit(part)) is not None)

    def to_dict(self) -> dict[str, int]:
        """The limits given, by field name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def parse_slo(text: str) -> Slo:
    """``"ttft=500ms,tpot=50ms,e2e=30s"``. Raises ``UsageError`` with the accepted names."""
    limits: dict[str, int | None] = {}
    for item in text.split(","):
        name, separator, value = (piece.strip() for piece in item.partition("="))
        if not separator:
            raise UsageError(f"SLO part '{shown(item)}': expected NAME=TIME, as in ttft=500ms; names: {', '.join(PARTS)}")
        _put(limits, name, parse_duration_ns(value, where=f"SLO part {shown(name)}"), PARTS)
    return Slo(**limits)


def parse_goodput(items: str | Iterable[str]) -> Slo:
    """``ttft:200 tpot:50 e2el:5000``: milliseconds, as vLLM's and SGLang's clients write it. Raises ``UsageError``."""
    words = items.split() if isinstance(items, str) else [word for item in items for word in item.split()]
    if not words:
        raise UsageError(f"--goodput is empty: expected NAME:MILLISECONDS; names: {', '.join(_GOODPUT_NAMES)}")
    limits: dict[str, int | None] = {}
    for word in words:
        name, separator, value = word.partition(":")
        if not separator:
            raise UsageError(f"--goodput '{shown(word)}': expected NAME:MILLISECONDS; names: {', '.join(_GOODPUT_NAMES)}")
        where = f"--goodput {shown(name)}"
        limit = _positive_ns(value, _UNITS_NS["ms"], where, value)
        _put(limits, _GOODPUT_NAMES.get(name, name), limit, tuple(_GOODPUT_NAMES))
    return Slo(**limits)


def _put(limits: dict[str, int | None], name: str, limit: int | None, accepted: Iterable[str]) -> None:
    if name not in PARTS:
        raise UsageError(f"SLO part '{shown(name)}': no such part; expected one of {', '.join(accepted)}")
    if f"{name}_ns" in limits:
        raise UsageError(f"SLO part '{name}': given twice; expected it once")
    limits[f"{name}_ns"] = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTable:
    """A default and, part by part, what a class and then a tenant asks for instead; a request's own column beats both.

    An override of ``None`` takes the part away (``"none"`` in a policy file).
    """

    default: Slo = field(default_factory=Slo)
    classes: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)

    @classmethod
    def from_policy(cls, table: Mapping[str, object], default: Slo | None = None) -> SloTable:
        """From a policy's ``[slo]``, ``[slo.class.NAME]``, ``[slo.tenant.NAME]``. ``default`` (the command line's) wins over
        ``[slo]`` part by part. Raises ``UsageError``."""
        own = {key: value for key, value in table.items() if key not in ("class", "tenant")}
        limits = _limits(own, "[slo]") | (default.to_dict() if default else {})
        return cls(default=Slo(**limits), classes=_overrides(table, "class"), tenants=_overrides(table, "tenant"))

    def given(self) -> tuple[str, ...]:
        """Parts that anybody is asked for."""
        named = {key for group in (self.classes, self.tenants) for own in group.values() for key, v in own.items() if v}
        return tuple(part for part in PARTS if self.default.limit(part) is not None or f"{part}_ns" in named)

    def to_dict(self) -> dict[str, object]:
        """JSON form: ``{"default": {...}, "class": {...}, "tenant": {...}}``, nanoseconds."""
        return {
            "default": dict(self.default.to_dict()),
            "class": {name: dict(own) for name, own in self.classes.items()},
            "tenant": {name: dict(own) for name, own in self.tenants.items()},
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Mapping[str, object]]) -> SloTable:
        """The inverse of ``to_dict``."""

        def own(value: object) -> dict[str, int | None]:
            items: Mapping[str, int | None] = value if isinstance(value, Mapping) else {}
            return dict(items)

        return cls(
            default=Slo(**own(table["default"])),
            classes={name: own(value) for name, value in table["class"].items()},
            tenants={name: own(value) for name, value in table["tenant"].items()},
        )

    def limits(
        self,
        part: str,
        rows: int,
        *,
        class_codes: npt.NDArray[np.integer] | None = None,
        class_names: Iterable[str] = (),
        tenant_codes: npt.NDArray[np.integer] | None = None,
        tenant_names: Iterable[str] = (),
    ) -> npt.NDArray[np.int64]:
        """Limits of ``part`` for ``rows`` requests, int64 ns, ``UNLIMITED`` where none. Code -1: nameless."""
        default = self.default.limit(part)
        limits = np.full(rows, UNLIMITED if default is None else default, np.int64)
        for codes, names, group in (
            (class_codes, class_names, self.classes),
            (tenant_codes, tenant_names, self.tenants),
        ):
            own = _by_code(part, names, group)
            if codes is None or own is None:
                continue
            wanted = own[codes]
            np.copyto(limits, wanted, where=wanted >= 0)
        return limits


def _by_code(part: str, names: Iterable[str], group: Mapping[str, Mapping[str, int | None]]) -> npt.NDArray[np.int64] | None:
    """What each code asks for (-1: nothing said); one more entry at the end serves code -1."""
    key = f"{part}_ns"
    if not any(key in own for own in group.values()):
        return None
    values = [-1 if key not in (own := group.get(name, {})) else _or_unlimited(own[key]) for name in names]
    return np.array([*values, -1], np.int64)


def _or_unlimited(limit: int | None) -> int:
    return int(UNLIMITED) if limit is None else limit


def _limits(table: Mapping[str, object], where: str) -> dict[str, int]:
    return {key: value for key, value in _own_limits(table, where).items() if value is not None}


def _own_limits(table: Mapping[str, object], where: str) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for name, value in table.items():
        if name in PARTS and not isinstance(value, str):
            raise UsageError(f'{where} {name} = {shown(value)}: expected text with a unit, as in "500ms", or "none"')
        off = isinstance(value, str) and value.strip() == "none"
        limit = None if off or name not in PARTS else parse_duration_ns(str(value), where=f"{where} {name}")
        _put(limits, str(name), limit, PARTS)
    return limits


def _overrides(table: Mapping[str, object], kind: str) -> dict[str, dict[str, int | None]]:
    group = table.get(kind, {})
    if not isinstance(group, Mapping):
        raise UsageError(f"[slo] {kind} = {shown(group)}: expected tables [slo.{kind}.NAME]")
    overrides: dict[str, dict[str, int | None]] = {}
    for name, own in group.items():
        if not isinstance(own, Mapping):
            raise UsageError(f"[slo.{kind}] {shown(name)} = {shown(own)}: expected a table [slo.{kind}.{shown(name)}]")
        overrides[str(name)] = _own_limits(own, f"[slo.{kind}.{shown(name)}]")
    return overrides


def stall_threshold(table: SloTable | None, baseline_median_gap_ns: int | None = None) -> tuple[int | None, str]:
    """The gap above which time counts as stalled, ns, and the rule in words; ``None`` with the reason where there is none.

    Three times the tpot SLO (the default one, else the strictest named one), else three times a *baseline's* median gap.
    """
    if table is not None:
        limit = table.default.tpot_ns
        if limit is not None:
            return 3 * limit, "3 x the tpot SLO"
        named = [v for group in (table.classes, table.tenants) for own in group.values() if (v := own.get("tpot_ns"))]
        if named:
            return 3 * min(named), "3 x the strictest tpot SLO"
    if baseline_median_gap_ns is not None:
        return 3 * baseline_median_gap_ns, "3 x the baseline's median gap"
    return None, "no tpot SLO and no baseline"
