"""What ``--gate`` says: ``ttft_p99<=2s``, ``tpot_p99<=+5%``, ``e2e_p50<=+200ms``, ``attainment>=0.95``, ``no:OVERLOAD``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracekit.diagnosis.wording import finding_ids
from tracekit.errors import UsageError, shown
from tracekit.gate.metrics import METRICS, GateMetric
from tracekit.metrics.slo import parse_duration_ns

__all__ = ["IMPLIED", "Gate", "Kind", "parse_gate", "parse_gates"]

Kind = Literal["absolute", "relative", "difference", "finding"]
_FORM = re.compile(r"\s*([A-Za-z_0-9]+)\s*(<=|>=|<|>)\s*(\S.*?)\s*")
_EXPECTED = "expected METRIC<=LIMIT or METRIC>=LIMIT, as ttft_p99<=2s, tpot_p99<=+5%, attainment>=0.95, or no:FINDING"
_ALIASES = {"good_request_fraction": "attainment", "output_tokens": "tokens", "preemption": "preemptions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One limit. ``metric`` and ``upper`` (whether the limit is from above) are of figures, ``finding`` of findings.

    ``limit``: ns, share, count or rate (``absolute``); the allowed change as a share of the baseline (``relative``) or in the
    metric's own unit (``difference``), signed. A change of a metric that counts is held from both sides. ``implied``: nobody
    wrote it.
    """

    text: str
    kind: Kind
    metric: str = ""
    upper: bool = True
    strict: bool = False
    limit: float = 0.0
    finding: str = ""
    implied: bool = False

    @property
    def against_baseline(self) -> bool:
        return self.kind in ("relative", "difference")

    @property
    def figure(self) -> GateMetric:
        return METRICS[self.metric]

    @property
    def two_sided(self) -> bool:
        return self.against_baseline and self.figure.counts


IMPLIED = ("requests<=+1%", "tokens<=+1%")
"""Held against every baseline, where no other gate holds these metrics against it: a replay that measured nothing has not
passed."""


def parse_gates(texts: Sequence[str], *, baseline: bool) -> list[Gate]:
    """Every gate of a command line, and those that a baseline implies. ``UsageError``."""
    gates = [parse_gate(text) for text in texts]
    alone = next((gate for gate in gates if gate.against_baseline and not baseline), None)
    if alone is not None:
        raise UsageError(f"--gate {shown(alone.text)}: a change needs something to change from; expected --baseline FILE")
    if baseline:
        named = {gate.metric for gate in gates if gate.against_baseline}
        gates += [parse_gate(text, implied=True) for text in IMPLIED if parse_gate(text).metric not in named]
    return gates


def parse_gate(text: str, *, implied: bool = False) -> Gate:
    """One gate. ``UsageError`` names what is wrong, and the nearest names."""
    if text.strip().startswith("no:"):
        return _finding(text.strip())
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"--gate {shown(text)}: not a gate; {_EXPECTED}")
    name, sign, limit = _ALIASES.get(match[1].lower(), match[1].lower()), match[2], match[3]
    if name not in METRICS:
        near = difflib.get_close_matches(name, METRICS, 4) or ["ttft_p99", "tpot_p99", "goodput", "requests"]
        raise UsageError(f"--gate {shown(text)}: no metric {shown(name)}; names like it: {', '.join(near)}")
    kind, value = _limit(text, METRICS[name], limit)
    return Gate(text=f"{name}{sign}{limit}", kind=kind, metric=name, upper=sign[0] == "<", strict=len(sign) == 1, limit=value,
                implied=implied)  # fmt: skip


def _finding(text: str) -> Gate:
    name = text[3:].strip().upper()
    if name not in finding_ids():
        near = difflib.get_close_matches(name, finding_ids(), 4) or list(finding_ids())
        raise UsageError(f"--gate {shown(text)}: no finding is called so; expected one like {', '.join(near)}")
    return Gate(text=f"no:{name}", kind="finding", finding=name)


def _limit(text: str, metric: GateMetric, limit: str) -> tuple[Kind, float]:
    signed = limit[0] in "+-"
    number = limit.removesuffix("%").strip()
    try:
        if limit.endswith("%"):
            value = float(number) / 100
            if not signed and metric.kind != "share":
                raise UsageError(f"--gate {shown(text)}: percent of what? expected a change with its sign, as +5%")
            return ("relative" if signed else "absolute"), _finite(text, value)
        if metric.kind == "ns":
            size = float(parse_duration_ns(limit.lstrip("+-"), where=f"--gate {shown(text)}"))
            return ("difference" if signed else "absolute"), -size if limit[0] == "-" else size
        return ("difference" if signed else "absolute"), _finite(text, float(number))
    except ValueError:
        raise UsageError(f"--gate {shown(text)}: {shown(limit)} is no limit; {_EXPECTED}") from None


def _finite(text: str, value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise UsageError(f"--gate {shown(text)}: a limit is a finite number; {_EXPECTED}")
    return value
