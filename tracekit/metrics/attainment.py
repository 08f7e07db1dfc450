"""Which requests met their SLO, attainment with its interval, and SLO-goodput, overall and per tenant and class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestState
from tracekit.metrics.distributions import missing, wilson
from tracekit.metrics.fields import FIELDS
from tracekit.metrics.inputs import Labels, MatrixInputs
from tracekit.metrics.slo import PARTS, UNLIMITED, SloTable

__all__ = ["SloResult", "asked_parts", "evaluate_slo", "request_limits", "slo_section"]

NO_SLO = "no SLO given (--slo ttft=500ms,tpot=50ms)"
_MOST_GROUPS = 100
_NAMES = tuple(spec.name for spec in FIELDS if spec.section == "slo")
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SloResult:
    """``met``: bool per outcome row. ``missed_by``: rows that violated a part (a row may violate several), and rows that ended
    otherwise than finished. ``cancelled_met`` and ``degraded`` are counted apart."""

    met: Mask
    missed_by: dict[str, int]
    cancelled_met: int
    degraded: int


def asked_parts(inputs: MatrixInputs) -> tuple[str, ...]:
    """Parts anybody is held to, by the table or by the requests' own columns."""
    own = inputs.request_slo or {}
    table = inputs.slo.given() if inputs.slo is not None else ()
    deadline = "deadline_ns" in own and bool((own["deadline_ns"] >= 0).any())
    return tuple(
        part
        for part in PARTS
        if part in table or (f"{part}_ns" in own and bool((own[f"{part}_ns"] >= 0).any())) or (part == "e2e" and deadline)
    )


def evaluate_slo(inputs: MatrixInputs, rows: npt.NDArray[np.void]) -> SloResult | str:
    """Evaluate ``rows`` (outcomes). Text instead of a result: why the SLO cannot be evaluated."""
    parts = asked_parts(inputs)
    if not parts:
        return NO_SLO
    if "itl" in parts and inputs.gaps is None:
        return f"the itl part needs every gap: {inputs.gaps_reason}"
    state, request = rows["state"], rows["request"]
    finished = state == RequestState.finished
    cancelled = state == RequestState.cancelled
    elapsed, silent = _at_cancel(inputs, rows, cancelled)
    kept = np.ones(rows.size, np.bool_)
    missed_by: dict[str, int] = {}
    for part in parts:
        limit = request_limits(inputs, part, request)
        violated = _values(inputs, part, rows, request) > limit
        if part in ("ttft", "e2e"):
            open_part = cancelled & (rows["ttft_ns"] < 0) if part == "ttft" else cancelled
            violated |= open_part & (elapsed > limit)
        elif part == "stall":
            violated |= cancelled & (silent > limit)
        missed_by[part] = int(np.count_nonzero(violated))
        kept &= ~violated
    degraded = inputs.degraded[request] if inputs.degraded is not None else np.zeros(rows.size, np.bool_)
    if not inputs.accept_degraded:
        kept &= ~degraded
    missed_by["not_finished"] = int(np.count_nonzero(~finished & ~cancelled))
    return SloResult(
        met=kept & (finished | cancelled),
        missed_by=missed_by,
        cancelled_met=int(np.count_nonzero(kept & cancelled)),
        degraded=int(np.count_nonzero(degraded)),
    )


def _values(inputs: MatrixInputs, part: str, rows: npt.NDArray[np.void], request: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A part's value per row; undefined is -1 or NaN, neither of which exceeds a limit."""
    if part == "itl":
        assert inputs.gaps is not None
        found: npt.NDArray[Any] = inputs.gaps.request_p99(int(request.max(initial=-1)) + 1)[request]
        return found
    column: npt.NDArray[Any] = rows["max_gap_ns" if part == "stall" else f"{part}_ns"]
    return column


def request_limits(inputs: MatrixInputs, part: str, request: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The limit (ns) that each of ``request`` (indices) has for a part; ``UNLIMITED`` where it has none."""
    table = inputs.slo if inputs.slo is not None else SloTable()
    tenants, classes = inputs.tenants, inputs.classes
    limit = table.limits(
        part,
        request.size,
        class_codes=classes.codes[request] if classes else None,
        class_names=classes.names if classes else (),
        tenant_codes=tenants.codes[request] if tenants else None,
        tenant_names=tenants.names if tenants else (),
    )
    own = inputs.request_slo or {}
    if (column := own.get(f"{part}_ns")) is not None:
        wanted = column[request]
        np.copyto(limit, wanted, where=wanted >= 0)
    if part == "e2e" and (column := own.get("deadline_ns")) is not None:
        wanted = column[request]
        limit = np.minimum(limit, np.where(wanted >= 0, wanted, UNLIMITED))
    return limit


def _at_cancel(
    inputs: MatrixInputs, rows: npt.NDArray[np.void], cancelled: Mask
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Time since arrival, and since the last token, at which a cancelled request was cancelled; -1 where not known."""
    elapsed = np.full(rows.size, -1, np.int64)
    silent = elapsed.copy()
    if inputs.cancel_ns is not None and cancelled.any():
        at = inputs.cancel_ns[rows["request"]]
        known = cancelled & (at >= 0)
        elapsed[known] = (at - rows["arrival_ns"])[known]
        spoke = known & (rows["last_token_ns"] >= 0)
        silent[spoke] = (at - rows["last_token_ns"])[spoke]
    return elapsed, silent


def slo_section(
    inputs: MatrixInputs, rows: npt.NDArray[np.void], n: int, window_ns: int, basis: str
) -> tuple[dict[str, Any], SloResult | None]:
    """The matrix's ``slo`` section. ``n``: every counted request of the slice (the denominator); rates per ``window_ns``."""
    result = evaluate_slo(inputs, rows)
    if isinstance(result, str):
        section: dict[str, Any] = {name: missing(result) for name in _NAMES}
        if result != NO_SLO:
            section["limits"] = _limits_shown(inputs)
        return section, None
    tokens = int(rows["output_tokens"][result.met].sum())
    met = int(np.count_nonzero(result.met))
    no_window = "all counted requests arrived and ended at one instant"
    section = {
        "limits": _limits_shown(inputs),
        "window_ns": window_ns,
        "window_basis": basis,
        "attainment": _attainment(met, n),
        "goodput_requests_per_s": met / window_ns * 1e9 if window_ns > 0 else missing(no_window),
        "goodput_tokens_per_s": tokens / window_ns * 1e9 if window_ns > 0 else missing(no_window),
        "missed_by": result.missed_by | ({"not_ended": n - rows.size} if n > rows.size else {}),
        "cancelled_met": result.cancelled_met,
        "degraded_requests": result.degraded if inputs.degraded is not None else missing("no front door that degrades"),
        "by_tenant": _groups(inputs.tenants, "tenant", rows, result.met, window_ns),
        "by_class": _groups(inputs.classes, "class", rows, result.met, window_ns),
    }
    return section, result


def _limits_shown(inputs: MatrixInputs) -> dict[str, Any]:
    table = inputs.slo if inputs.slo is not None else SloTable()
    own = sorted(name for name, column in (inputs.request_slo or {}).items() if (column >= 0).any())
    return {**table.to_dict(), "request_columns": own}


def _attainment(met: int, n: int) -> dict[str, Any]:
    if n == 0:
        return missing("no request was counted")
    low, high = wilson(met, n)
    return {"share": met / n, "low": low, "high": high, "met": met, "n": n}


def _groups(labels: Labels | None, kind: str, rows: npt.NDArray[np.void], met: Mask, window_ns: int) -> dict[str, Any]:
    """Attainment and goodput by name, largest group first; what is beyond the first hundred is summed as one."""
    if labels is None:
        return missing(f"the trace has no {kind} column")
    # code -1 (no name) is counted as the last group
    code = labels.codes[rows["request"]].astype(np.int64)
    size = len(labels.names) + 1
    code = np.where(code < 0, size - 1, code)
    n = np.bincount(code, minlength=size)
    hits = np.bincount(code[met], minlength=size)
    tokens = np.bincount(code, weights=np.where(met, rows["output_tokens"], 0), minlength=size)
    order = [int(i) for i in np.argsort(-n, kind="stable") if n[i]]
    if not order:
        return missing("no request was counted")
    names = [*labels.names, f"(no {kind})"]
    groups = {names[i]: _group(int(hits[i]), int(n[i]), float(tokens[i]), window_ns) for i in order[:_MOST_GROUPS]}
    if rest := order[_MOST_GROUPS:]:
        name = f"({len(rest)} more)"
        groups[name] = _group(int(hits[rest].sum()), int(n[rest].sum()), float(tokens[rest].sum()), window_ns)
    return groups


def _group(met: int, n: int, tokens: float, window_ns: int) -> dict[str, Any]:
    rate = 1e9 / window_ns if window_ns > 0 else 0.0
    return {
        "attainment": _attainment(met, n),
        "goodput_requests_per_s": met * rate,
        "goodput_tokens_per_s": tokens * rate,
    }
