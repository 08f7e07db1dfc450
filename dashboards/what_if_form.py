"""What the What-if page's form says, as words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboards.ordering import is_loaded, loaded_traces
from dashboards.queries import RunBook
from tracekit.capacity_orders import CapacityOrder, capacity_words
from tracekit.errors import TracekitError, UsageError, shown
from tracekit.store import load_run

__all__ = ["FACTORS", "FIELDS", "choices", "kinds_of", "order_of", "scenario_of", "words_of"]

FACTORS = {
    "rate": ("rate_scale", "Arrival rate, x"), "isl": ("isl_scale", "Prompts, x as long"),
    "osl": ("osl_scale", "Outputs, x as long"),
    "burst": ("burst_scale", "Bursts, power of gaps"), "replicas": ("fleet.replicas", "Replicas"),
    "mix": ("mix", "Class or tenant mix, x"), "kv": ("kv_scale", "KV blocks, x"), "tp": ("tensor_parallel", "Cards a replica"),
}  # fmt: skip
"""Fields of a scenario: what ``--what-if`` calls them, and their labels."""
FIELDS = ("trace", "profile", "policy", "slo", "target", "windows", "price", *FACTORS, "hardware", "new-slo", "new-price", "more",
          "others")  # fmt: skip

SHOWN_KINDS = 6


def choices(book: RunBook, ref: str) -> tuple[list[dict[str, str]], str | None, str]:
    """What may be asked about, the run that the address names first; what is chosen; and who writes so that nobody can say."""
    traces, held = loaded_traces(book)
    listed = [{"value": f"trace:{each.name}", "label": f"{each.name}, {each.requests:,} requests"} for each in traces]
    try:
        row = book.recorded(ref)
        run = None if row is None else load_run(book.store, int(row["run"]))
    except TracekitError:
        run = None
    if run is not None:
        slo = "" if run["slo"] is not None else ", no SLO"
        listed.insert(0, {"value": f"run:{run['run']}", "label": f"run {run['run']} of {run['trace_name']}{slo}"})
    return listed, listed[0]["value"] if listed else None, held


def kinds_of(book: RunBook, picked: str | None) -> tuple[str, ...]:
    """The classes and tenants of a trace, or of a run's, those with most requests first; empty where it has none, or nobody can
    say."""
    kind, _, name = (picked or "").partition(":")
    try:
        if kind == "run":
            row = book.recorded(name)
            name = str(load_run(book.store, int(row["run"]))["trace_name"]) if row is not None else ""
        if not is_loaded(book, name):
            return ()
        with book.store.read() as con:
            found = con.execute(
                "SELECT label FROM (SELECT unnest([class, tenant]) AS label FROM requests WHERE trace ="
                " (SELECT max(trace) FROM traces WHERE name = ?)) WHERE label IS NOT NULL GROUP BY label"
                f" ORDER BY count(*) DESC, label LIMIT {SHOWN_KINDS}", [name]).fetchall()  # fmt: skip
    except TracekitError:
        return ()
    return tuple(str(label) for (label,) in found)


def scenario_of(form: Mapping[str, Any]) -> str:
    """The fields of the one scenario as ``--what-if`` takes it; empty where nothing is changed."""
    text = _texts(form)
    settings = [f"{setting}={''.join(text[name].split())}" for name, (setting, _) in FACTORS.items() if text.get(name)]
    several = text.get("replicas", "1").isdigit() and int(text.get("replicas", "1") or 1) > 1
    if several and "fleet.router" not in text.get("more", ""):
        settings.append("fleet.router=least_tokens")
    settings += [text["hardware"]] if text.get("hardware") else []
    settings += [f"slo={''.join(text['new-slo'].split())}"] if text.get("new-slo") else []
    settings += [f"price_per_hour={text['new-price']}"] if text.get("new-price") else []
    settings += text.get("more", "").split()
    return " ".join(settings)


def order_of(book: RunBook, form: Mapping[str, Any]) -> CapacityOrder:
    """The form's values, each a text or ``None``. ``UsageError`` where it names no trace and no run that is there."""
    text = _texts(form)
    kind, _, name = text.get("trace", "").partition(":")
    if not name:
        raise UsageError("no trace; expected one that is loaded, or a recorded run")
    if kind == "trace" and not is_loaded(book, name):
        raise UsageError(f"{shown(name)}: no such trace in {book.store.path}; load it, or replay it first")
    if kind not in ("trace", "run") or (kind == "run" and not (name.isascii() and name.isdigit() and len(name) < 10)):
        raise UsageError(f"{shown(text['trace'])}: expected a loaded trace or a recorded run")
    scenarios = [scenario_of(form), *(line.strip() for line in text.get("others", "").splitlines())]
    return CapacityOrder(
        trace=name if kind == "trace" else "", run=int(name) if kind == "run" else None, profile=text.get("profile", ""),
        policy=text.get("policy", ""), slo=text.get("slo", ""), target=text.get("target", ""), windows=text.get("windows", ""),
        price=text.get("price", ""), what_if=tuple(dict.fromkeys(each for each in scenarios if each)),
    )  # fmt: skip


def words_of(book: RunBook, form: Mapping[str, Any]) -> list[str]:
    """The command line after ``tracekit``. Errors: ``UsageError``, ``ConfigError``, ``LockedError``."""
    order = order_of(book, form)
    words = capacity_words(order, book.store)
    if not any(word.startswith("--slo=") for word in words) and "slo" not in order.policy and order.run is None:
        raise UsageError("no SLO: nothing says which requests are good; expected one, as ttft=500ms,tpot=50ms")
    return words


def _texts(form: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).strip() if value not in (None, "") else "" for name, value in form.items()}
