"""Which requests an address selects, and what may be selected: the same on every page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.address import Address
from dashboards.queries import RunBook
from dashboards.verdicts import read_verdict
from tracekit.diagnosis import RunData
from tracekit.errors import LockedError, TracekitError

__all__ = ["Choices", "choices_of", "label_of", "latency_s", "selected", "settle"]

_COLUMNS = {"ttft": "ttft_ns", "tpot": "tpot_ns", "gap": "max_gap_ns", "e2e": "e2e_ns"}
Mask = npt.NDArray[np.bool_]


class Choices(NamedTuple):
    """Classes and tenants that the run's requests have."""

    classes: tuple[str, ...]
    tenants: tuple[str, ...]


def choices_of(data: RunData) -> Choices:
    found = []
    for what in ("class", "tenant"):
        labels = data.labels(what)
        found.append(tuple(labels.names) if labels is not None else ())
    return Choices(*found)


def settle(book: RunBook, address: Address) -> Address:
    """The address with the classes that its finding harms, which select too; as it is where no verdict tells. ``LockedError``."""
    if address.finding is None:
        return address
    try:
        findings = read_verdict(book, address.run).document["findings"]
    except LockedError:
        raise
    except TracekitError:
        return address
    return replace(address, harmed=next((tuple(each["classes"]) for each in findings if each["id"] == address.finding), ()))


def latency_s(data: RunData, metric: str) -> npt.NDArray[np.float64]:
    """A latency of every outcome row in seconds (``dashboards.address.METRICS``); NaN where it has none."""
    values = data.outcomes[_COLUMNS[metric]].astype(np.float64)
    known: npt.NDArray[np.float64] = np.where(values >= 0, values / 1e9, np.nan)
    return known


def selected(data: RunData, address: Address) -> Mask:
    """Per outcome row: whether a settled address selects it. Its window of time is what is looked at and selects nobody; lead-in
    rows never are selected."""
    rows = data.outcomes
    request = rows["request"]
    keep: Mask = data.counted[request].copy()
    if address.requests:
        keep &= np.isin(request, address.requests)
    for what, name in (("class", address.cls), ("tenant", address.tenant)):
        if name is not None:
            keep &= _is(data, what, name, request)
    labels = data.labels("class")
    if address.harmed and labels is not None:
        keep &= np.isin(labels.codes[request], [code for code, name in enumerate(labels.names) if name in address.harmed])
    if address.arrived_s is not None:
        arrival = rows["arrival_ns"] / 1e9
        keep &= (arrival >= address.arrived_s[0]) & (arrival <= address.arrived_s[1])
    if address.latency_s is not None:
        value = latency_s(data, address.metric)
        low, high = address.latency_s
        keep &= (value >= low) & (value <= high)
    return keep


def _is(data: RunData, what: str, name: str, request: npt.NDArray[Any]) -> Mask:
    labels = data.labels(what)
    if labels is None or name not in labels.names:
        return np.zeros(len(request), np.bool_)
    wanted: Mask = labels.codes[request] == list(labels.names).index(name)
    return wanted


def label_of(data: RunData, what: str, request: int) -> str | None:
    """The class or tenant of one request."""
    labels = data.labels(what)
    code = -1 if labels is None else int(labels.codes[request])
    return None if labels is None or code < 0 else labels.names[code]
