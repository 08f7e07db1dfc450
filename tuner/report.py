"""The report of a study: a document for machines, and the same as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.errors import shown
from tracekit.experiments.knobs import knob_text
from tracekit.metrics.wording import count, span_text
from tuner.answer import Answer
from tuner.diagnosed import Verdict
from tuner.gains import PREDICTED
from tuner.objective import OBJECTIVES
from tuner.plan import TunePlan
from tuner.study import TuneStudy

__all__ = ["build_document", "gain_text", "render_report"]


def build_document(plan: TunePlan, study: TuneStudy | None, answer: Answer | None, verdict: Verdict) -> dict[str, Any]:
    """``tracekit.tune/1``. ``verdict``: what the diagnosis said before the search."""
    document: dict[str, Any] = {
        "schema": "tracekit.tune/1", "study": plan.key(), "trace": plan.trace.name, "traffic": list(plan.trace.lines),
        "windows": {"search": [_window(w) for w in plan.trace.search], "held": [_window(w) for w in plan.trace.held]},
        "slo": plan.slo.to_dict(), "profile": plan.profile.name, "objectives": list(plan.objective_names),
        "unit": plan.objectives[0].unit, "space": plan.space.to_dict(), "current": plan.current, "seed": plan.seed,
        "engine_version": plan.policy.scheduler.engine_version, "block_size": plan.policy.scheduler.block_size,
        "trials": {"complete": 0, "pruned": 0, "failed": 0, "reasons": {}} if study is None else study.counts(),
        "recommended": False, "no_search": verdict.stop, "findings": verdict.findings, "flags": "", "sets": [],
    }  # fmt: skip
    if answer is None:
        document["why"] = verdict.stop or _none_allowed(plan, study)
        return document
    winner = answer.winner
    document |= {
        "recommended": answer.recommended, "why": answer.why, "flags": answer.flags, "sets": answer.sets,
        "changes": [change.to_dict() for change in answer.changes],
        "winner": {"point": winner.point, "value": winner.value, "trial": winner.trial, "why": winner.why},
        "neighbours": [each.to_dict() for each in winner.neighbours], "cliffs": [each.text() for each in winner.cliffs],
        "alike": [{"point": each.point, "value": each.value, "trial": each.trial} for each in answer.alike],
        "gain": None if answer.gain is None else answer.gain.to_dict(), "predicted": PREDICTED,
        "gain_over_defaults": None if answer.against_defaults is None else answer.against_defaults.to_dict(),
        "ablation": answer.ablation, "importance": answer.importance.shares,
        "importance_of": answer.importance.to_dict(), "robustness": answer.robustness, "also": answer.also,
        "findings_after": answer.findings_after, "losers": answer.losers, "pareto": answer.front,
        "verification": answer.verification,
    }  # fmt: skip
    document["reached"] = [] if study is None else _reached(study, answer.reached)
    return document


def _none_allowed(plan: TunePlan, study: TuneStudy | None) -> str:
    """Why no trial may be recommended."""
    met = [] if study is None else [float(t.user_attrs.get("attainment", 0)) for t in study.trials() if t.constraints]
    if not met:
        return "no trial completed within the constraints"
    return (f"none of {len(met)} trials serves the {plan.target:.0%} of the requests that --target asks for; the most is"
            f" {max(met):.1%} (--target, --rate-scale or a looser --slo)")  # fmt: skip


def _reached(study: TuneStudy, values: Sequence[float | None]) -> list[dict[str, Any]]:
    """Each objective on the windows searched: of the current policy, trial 0, and of the winner; ``None`` where none says."""
    base = next((t.values for t in study.trials() if t.number == 0), None)
    return [
        {"name": each.name, "unit": each.unit, "current": None if base is None else base[at], "winner": value}
        for at, (each, value) in enumerate(zip(study.plan.objectives, values, strict=True))
    ]


def _window(window: Any) -> dict[str, Any]:
    return {"begin_ns": window.begin_ns, "end_ns": window.end_ns, "requests": window.requests}


def gain_text(gain: Mapping[str, Any] | None) -> str:
    """``+12.3 % [+8.0, +16.6] (n = 4 windows, 3,988 requests)``."""
    if gain is None:
        return "unknown"
    if gain["estimate"] is None:
        return f"from nothing to {count(gain['level'])} requests/s"
    interval = "" if gain["low"] is None else f" [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    windows = f"{gain['n']} window{'s' * (gain['n'] != 1)}"
    return f"{100 * gain['estimate']:+.1f} %{interval} (n = {windows}, {gain['requests']:,} requests)"


def render_report(document: Mapping[str, Any]) -> str:
    """The document as text."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    trials = document["trials"]
    yield f"{shown(document['trace'])}: {document['traffic'][0]}"
    yield ""
    if document["no_search"]:
        yield f"No search: {document['no_search']}. No change recommended."
        return
    yield (f"{sum(trials[each] for each in ('complete', 'pruned', 'failed'))} trials: {trials['complete']} complete,"
           f" {trials['pruned']} pruned, {trials['failed']} failed")  # fmt: skip
    yield from (f"  failed {n}x: {shown(why, 200)}" for why, n in trials["reasons"].items())
    yield ""
    yield from _verdict(document)
    if "winner" not in document:
        return
    yield from _reasons(document)


def _verdict(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'CHANGE' if document['recommended'] else 'NO CHANGE RECOMMENDED'}: {document['why']}."
    if document["recommended"]:
        yield f"  vLLM flags:  {document['flags'] or '(none: the change is beyond vLLM)'}"
        yield f"  tracekit:    {' '.join('--set ' + each for each in document['sets'])}"
    elif document.get("changes"):
        yield "  what was found and is not recommended:"
    for change in document.get("changes", ()):
        derived = " (follows from the others)" if change["derived"] else ""
        yield f"  {change['knob']}: {knob_text(change['old'])} -> {knob_text(change['new'])}{derived}"
    if (gain := document.get("gain")) is not None:
        yield ""
        yield f"SLO-goodput over the current policy, on windows that were not searched: {gain_text(gain)}"
        where = f"; the interval is where {100 * document['predicted']:.0f} % of such sets of new windows would lie"
        yield (f"  attainment {100 * gain['base_attainment']:.1f} % -> {100 * gain['level_attainment']:.1f} %"
               f"{'' if gain['low'] is None else where}")  # fmt: skip
        yield f"  over the engine's defaults: {gain_text(document['gain_over_defaults'])}"
    if document.get("objectives", ["goodput"]) != ["goodput"]:  # a report of an older version may not say
        told = [f"{each['name']} {_plain(each['current'])} -> {_plain(each['winner'])} {each['unit']}"
                for each in document.get("reached", ())]  # fmt: skip
        yield from ([f"On the windows searched: {', '.join(told)}"] if told else [])


def _reasons(document: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    cliffs = document["cliffs"]
    others = len(document["alike"]) - 1
    yield f"Neighbours, one step of one knob: {'no cliff' if not cliffs else 'CLIFF at ' + '; '.join(cliffs)}"
    yield from (f"  {_level(each)}: {100 * (each['ratio'] - 1):+.1f} %" for each in document["neighbours"])
    if others:
        yield f"Not to be told from {others} other configuration{'s' * (others > 1)}; this one {_why(document)}."
    for kind, title in (("plus", "The current policy with one change"), ("minus", "The winner without one change")):
        rows = document["ablation"][kind]
        if rows:
            yield f"{title}, and its gain over the current policy on the windows held out:"
            yield from (f"  {row['knob']}: {_alone(row)}" for row in rows)
    yield _important(document)
    if document["findings"]:
        yield "What the current policy suffers from, and what is left of it: " + _fixed(document)
    yield from _elsewhere(document)
    yield from _losers(document["losers"])
    yield from _verified(document["verification"])
    yield from _front(document)


def _alone(row: Mapping[str, Any]) -> str:
    return gain_text(row["gain"]) if row["reason"] is None else f"no configuration alone ({shown(row['reason'], 200)})"


def _why(document: Mapping[str, Any]) -> str:
    """A report of an older version does not say."""
    return str(document["winner"].get("why") or "is nearest to the current policy")


def _important(document: Mapping[str, Any]) -> str:
    of = document.get("importance_of") or {"n": sum(document["trials"][state] for state in ("complete", "pruned")), "r2": None,
                                           "why": None}  # a report of an older version
    foretold = "" if of["r2"] is None else f"; each is predicted from the others with an R2 of {of['r2']:.2f}"
    if of["why"] is not None:
        return f"Knobs by importance: not told ({of['why']}{foretold})"
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in document["importance"].items())
    named = list(document.get("objectives") or [])
    for_what = f" for {named[0]}" if len(named) > 1 else ""  # of several the first
    return f"Knobs by importance{for_what}, over the whole space: {shares} (n = {of['n']} trials{foretold})"


def _plain(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _front(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for each point of the front; those that come to the same are one."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["pareto"]:
        values = ", ".join(f"{name} {value:.4g} {OBJECTIVES[name].unit}" for name, value in row["values"].items())
        if row["point"] not in alike.setdefault(values, []):
            alike[values].append(row["point"])
    for values, points in alike.items():
        more = f" (and {len(points) - 1} more that come to the same)" if len(points) > 1 else ""
        yield f"Pareto: {values}: {', '.join(f'{k}={knob_text(v)}' for k, v in points[0].items())}{more}"


def _verified(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    agree = "cannot be told: all come out alike" if found["tau"] is None else f"Kendall's tau {found['tau']:.2f}"
    yield f"On a real engine ({found['engine']}): rank agreement {agree} (n = {found['n']} configurations)"
    for row in found["candidates"]:
        who = "the current policy" if row["current"] else ", ".join(f"{k}={knob_text(v)}" for k, v in row["point"].items())
        both = (f"{row[side]['value']:.4g} ({100 * row[side]['attainment']:.1f} % attained)" for side in ("simulated", "engine"))
        yield f"  {who}: simulated {' | engine '.join(both)} {found['unit']}"
    if found["gain"] is not None:
        said = "CONFIRMED" if found["confirmed"] else "NOT CONFIRMED"
        yield f"  {said}: the first of them gains {gain_text(found['gain'])} there, {gain_text(found['predicted'])} as simulated"
    if not found["same_model"]:
        yield "  the profile is not of this model: the order may agree, times do not (tracekit calibrate --engine torch)"


def _fixed(document: Mapping[str, Any]) -> str:
    left = {finding["id"] for finding in document["findings_after"]}
    return ", ".join(f"{each['id']} ({'still there' if each['id'] in left else 'gone'})" for each in document["findings"])


def _level(neighbour: Mapping[str, Any]) -> str:
    return f"{neighbour['knob']} = {knob_text(neighbour['level'])}"


def _elsewhere(document: Mapping[str, Any]) -> Iterator[str]:
    if document["robustness"]:
        yield "The same gain under other conditions:"
        yield from (f"  {row['case']}: {gain_text(row['gain'])}" for row in document["robustness"])
    for row in document["also"]:
        yield f"On {shown(row['trace'])} it {_holds(row['gain'])}: {gain_text(row['gain'])}"


def _holds(gain: Mapping[str, Any]) -> str:
    """Whether a gain is one beyond the noise."""
    if gain["verdict"] == "better":
        return "holds"
    if gain["verdict"] == "worse":
        return "DOES NOT HOLD"
    return "changes nothing" if gain["estimate"] == 0 else "cannot be told from no change"


def _losers(losers: Mapping[str, Any] | None) -> Iterator[str]:
    if losers is None:
        return
    yield (f"Requests, windows held out: {losers['won']:,} meet their SLO only now, {losers['lost']:,} no longer do"
           f" (of {losers['n']:,})")  # fmt: skip
    worse = [group for group in losers["groups"] if group["after"] < group["before"]][:5]
    yield "  no group of requests loses" if not worse else "  who loses:"
    for group in worse:
        yield (f"    {group['kind']} {shown(group['name'])}: {100 * group['before']:.1f} % -> {100 * group['after']:.1f} %"
               f" attained (n = {group['n']:,})")  # fmt: skip
    for name, both in losers["tails"].items():
        before, after = both["before"]["value"], both["after"]["value"]
        if before is not None and after is not None:
            label = name.removesuffix("_ns").replace("_", " ")
            yield f"  {label}: {span_text(before)} -> {span_text(after)} (n = {both['after']['n']:,})"
