"""How evenly tenants were served: Jain's index, ``(sum x)^2 / (n sum x^2)``, from 1/n (one has all) to 1 (all alike).

Two shares are compared between tenants. *Service*: of the output tokens a tenant asked for in the arrival window, those it had
got by the end of that window; who is held back has less of them by then, even if all finish in the end. A request's tokens
count as evenly spread between its first and its last. *SLO*: the tenant's attainment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.metrics.distributions import missing
from tracekit.metrics.fields import FIELDS
from tracekit.metrics.inputs import MatrixInputs

__all__ = ["fairness_section", "jain"]

Numbers = npt.NDArray[np.float64]
_NAMES = tuple(spec.name for spec in FIELDS if spec.section == "fairness")


def jain(shares: Numbers) -> float | None:
    """Jain's index of non-negative ``shares``; ``None`` where there is none or all are 0."""
    squares = float(np.square(shares).sum())
    return float(shares.sum()) ** 2 / (shares.size * squares) if squares > 0 else None


def fairness_section(inputs: MatrixInputs, rows: npt.NDArray[np.void], met: npt.NDArray[np.bool_] | None) -> dict[str, Any]:
    """The matrix's ``fairness`` section. ``met``: SLO met per row, ``None`` where it cannot be told."""
    labels = inputs.tenants
    if labels is None:
        return dict.fromkeys(_NAMES, missing("the trace has no tenant column"))
    code = labels.codes[rows["request"]].astype(np.int64)
    names = [*labels.names, "(no tenant)"]
    code = np.where(code < 0, len(names) - 1, code)
    requests = np.bincount(code, minlength=len(names))
    there = np.flatnonzero(requests)
    section: dict[str, Any] = {"tenants": int(there.size)}
    few = missing("fewer than two tenants: nobody to compare") if there.size < 2 else None
    if few is not None:
        return section | dict.fromkeys(_NAMES[1:], few)
    service = _service(inputs, rows, code, len(names))
    reached = None if met is None else np.bincount(code[met], minlength=len(names)) / np.maximum(requests, 1)
    section |= _figures("service", service, there, names, requests, "it is not recorded what the requests asked for")
    return section | _figures("slo", reached, there, names, requests, "no SLO was evaluated")


def _figures(
    kind: str, shares: Numbers | None, there: npt.NDArray[np.int64], names: list[str], requests: npt.NDArray[np.int64], why: str
) -> dict[str, Any]:
    fields = (f"jain_{kind}", f"{kind}_least", f"{kind}_most")
    if shares is None:
        return dict.fromkeys(fields, missing(why))
    known = there[~np.isnan(shares[there])]
    index = jain(shares[known]) if known.size else None
    if index is None:
        return dict.fromkeys(fields, missing("no tenant got anything"))
    ends = (known[shares[known].argmin()], known[shares[known].argmax()])
    rows = [{"tenant": names[at], "share": float(shares[at]), "requests": int(requests[at])} for at in ends]
    return dict(zip(fields, (index, *rows), strict=True))


def _service(inputs: MatrixInputs, rows: npt.NDArray[np.void], code: npt.NDArray[np.int64], size: int) -> Numbers | None:
    """Per tenant: output tokens had by the end of the arrival window / output tokens asked for; NaN where it asked for none."""
    if inputs.demand_tokens is None:
        return None
    wanted = np.bincount(code, weights=inputs.demand_tokens[rows["request"]], minlength=size)
    end = int(rows["arrival_ns"].max())
    got = np.bincount(code, weights=_tokens_by(rows, end), minlength=size)
    found: Numbers = np.divide(got, wanted, out=np.full(size, np.nan), where=wanted > 0)
    return found


def _tokens_by(rows: npt.NDArray[np.void], end: int) -> Numbers:
    """Output tokens of each request by ``end`` (ns)."""
    tokens = rows["output_tokens"].astype(np.float64)
    spoke = rows["ttft_ns"] >= 0
    first = rows["arrival_ns"] + rows["ttft_ns"]
    last = np.maximum(rows["last_token_ns"], first)
    span = np.maximum(last - first, 1)
    part = 1 + (tokens - 1) * np.clip((end - first) / span, 0, 1)
    found: Numbers = np.where(spoke & (first <= end), np.minimum(part, tokens), 0.0)
    return found
