"""The Tuner page's sentences: how a study stands, and each of its figures in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dashboards.study_rows import Effect, Front, History, KnobLevels, Step, best_of
from dashboards.words import count, percent, seconds, short
from tracekit.studies import Study

__all__ = [
    "best_word",
    "describe_front",
    "describe_gains",
    "describe_history",
    "describe_levels",
    "describe_steps",
    "figure_value",
    "no_answer",
    "none_allowed",
    "of_fewer",
    "standing",
]


def standing(study: Study) -> str:
    """How the search stands, how far it is, and what to do where it has stopped."""
    ended = {state: sum(trial.state == state for trial in study.trials) for state in ("complete", "pruned", "fail")}
    done = f"{count(len(study.trials))} of {count(study.wanted)} trials"
    parts = ", ".join(f"{count(n)} {name}" for name, n in (("complete", ended["complete"]), ("pruned", ended["pruned"]),
                                                            ("failed", ended["fail"])) if n)  # fmt: skip
    best = best_of(study)
    found = (
        "" if best is None else f" Best so far: trial {best.number}, {figure_value(best.values[0], study.objectives[0].unit)}."
    )
    job = "" if study.job is None else study.job.id
    resume = f"tracekit jobs resume {job} goes on where it stopped"
    match study.state:
        case "running" | "queued":
            told = (study.job.progress or {}) if study.job is not None else {}
            left = told.get("eta_s")
            when = f", about {seconds(left)} left" if left else ""
            head = f"Searching: {done}{when}."
            if told.get("unit") not in (None, "trials"):
                far = f"{count(told['done'])} of {count(told['total'])} {told['unit']}{when}"
                head = f"The search has ended with {done}; {told['note'] or 'its answer'}: {far}."
            elif len(study.trials) >= study.wanted and study.answer is None:
                head = f"All {count(study.wanted)} trials are there; the best are being proved on windows that were not searched."
        case "finished" if study.answer is not None and study.answer.get("no_search"):
            return f"Nothing was searched: {study.answer['no_search']}."
        case "finished":
            head = f"Finished: {done}."
        case "cancelled":
            head = f"Stopped after {done}; {resume}."
        case "lost":
            head = f"Killed: its process is gone. {done} are kept; {resume}."
        case "failed":
            why = (study.job.result or {}).get("error", "") if study.job is not None else ""
            head = f"Failed after {done}: {why}; {resume}."
        case _:
            head = f"{done}; the job that searched is not kept any more."
    return f"{head} {parts.capitalize()}.{found}" if parts else head


def no_answer(study: Study) -> str:
    """Why there is no answer, and what leads to one."""
    match study.state:
        case "running" | "queued":
            return "No answer yet: it comes when the search has ended and has been proved on other windows."
        case "cancelled" | "lost" | "failed":
            return (
                "No answer: the search ended before one was found. Go on with the search: the trials that are there count, and"
                " the answer is proved at the end."
            )
        case "finished":
            return (
                "No answer: the search was asked for trials only (--search-only). The same tracekit tune command without it"
                " finds the best of these trials and proves it."
            )
    return "No answer: the same tracekit tune command goes on where the search stopped, and answers at the end."


def of_fewer(study: Study) -> str | None:
    """Of an answer that is there while its study goes on, or that was not asked for again: how many trials it is of."""
    told = (study.answer or {}).get("trials") or {}
    n = sum(told.get(state, 0) for state in ("complete", "pruned", "failed"))
    wanted = study.wanted if study.state in ("running", "queued") else 0
    if not n or n >= max(len(study.trials), wanted):
        return None
    follows = "a new one follows when the search has ended" if study.state in ("running", "queued") else "there are more now"
    return f"The answer of the first {count(n)} trials; {follows}."


def none_allowed(study: Study) -> str:
    """What to do where no trial may be recommended, and what kept them from it."""
    reasons = Counter(trial.reason for trial in study.trials if trial.state == "fail" and trial.reason)
    kept = [f"{count(n)} failed: {reason}" for reason, n in reasons.most_common(2)]
    outside = [trial for trial in study.trials if trial.state == "complete" and not trial.feasible]
    if outside:
        met = max((trial.attainment or 0.0) for trial in outside)
        short = f"serve fewer within the SLO than the {percent(study.target)} asked for, {percent(met)} at most"
        kept.append(f"{count(len(outside))} {short}")
    said = f" Of {count(len(study.trials))} trials {'; '.join(kept)}." if kept else ""
    return (
        f"Nothing can be recommended from these trials.{said} What may help: a looser SLO or --target, a lower --rate-scale"
        " or more engines, a wider --space, or more --trials."
    )


def figure_value(value: float, unit: str) -> str:
    """A value with its unit."""
    return seconds(value) if unit == "s" else f"{short(value, 4)} {unit}"


def describe_history(history: History) -> str:
    """How the best grew over the trials."""
    first, unit = history.objective, history.objective.unit
    known = history.best[~(history.best != history.best)]
    if not len(known):
        return "No trial has completed yet."
    last = float(known[-1])
    reached = int(history.trial[(history.best == last).argmax()])
    said = f"The best {first.name} is {figure_value(last, unit)}, reached at trial {reached} of {count(len(history.trial))}"
    if history.current is None:
        return said + "."
    return f"{said}; the current policy (trial 0) has {figure_value(history.current, unit)}."


def describe_front(front: Front) -> str:
    """How many trials lie within, and the front's ends."""
    inside, n = int(front.inside.sum()), len(front.trial)
    limits = [
        f"{name} ≤ {figure_value(limit, unit)}"
        for name, unit, limit in zip(front.names, front.units, front.limits, strict=True)
        if limit is not None
    ]
    where = f" ({' and '.join(limits)}, shaded)" if limits else ""
    at = front.x[front.front].argsort(kind="stable")
    ends = [front.trial[front.front][at[0]], front.trial[front.front][at[-1]]]
    more = f"; {count(front.left_out)} more have no such figures" if front.left_out else ""
    said = f"{count(inside)} of {count(n)} completed trials lie within the SLO and the constraints{where}{more}."
    return f"{said} On the front: {count(int(front.front.sum()))} trials, from trial {ends[0]} to trial {ends[1]}."


def best_word(study: Study) -> str:
    """What the point that stands out is called: before there is an answer it is the best so far."""
    return "recommended" if "winner" in (study.answer or {}) else "best so far"


def describe_levels(rows: Sequence[KnobLevels], called: str = "recommended") -> str:
    """Which level is best, knob by knob."""
    parts = []
    for row in rows:
        if row.chosen is not None:
            now = "" if row.current is None or row.current == row.chosen else f" (now {row.levels[row.current]})"
            parts.append(f"{row.knob} {row.levels[row.chosen]}{now}")
    best = "; ".join(parts) or "nothing yet"
    return f"The best and the median trial at each level of a knob, whatever the others are. {called.capitalize()}: {best}."


def describe_steps(steps: Sequence[Step]) -> str:
    """Plateau or cliff."""
    cliffs = [f"{step.knob} = {step.level} ({100 * (step.ratio - 1):+.1f} %)" for step in steps if step.cliff]
    worst = min(steps, key=lambda step: step.ratio)
    if cliffs:
        return f"A cliff beside it: {'; '.join(cliffs)}. One step of one knob, replayed on the windows of the search."
    return (
        f"A plateau: of {count(len(steps))} steps of one knob the worst, {worst.knob} = {worst.level}, changes"
        f" {100 * (worst.ratio - 1):+.1f} %."
    )


def describe_gains(effects: Sequence[Effect]) -> str:
    """The first gain with its interval, and whether the others agree."""
    first = next(each for each in effects if each.estimate is not None)
    interval = "" if first.low is None or first.high is None else f" ({percent(first.low)} to {percent(first.high)})"
    said = f"{first.group}, {first.label}: {100 * (first.estimate or 0):+.1f} %{interval}, n {first.n} windows."
    known = [each for each in effects if each.estimate is not None]
    worse = [each.label for each in known if (each.estimate or 0) < 0]
    return said + (f" Worse: {', '.join(worse)}." if worse else f" None of the {count(len(known))} cases is worse.")
