"""What the timeline shows for a URL: the figure, the sentences under it, and the state of its controls."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from dash import Output, no_update

from dashboards.address import Address, parse_address, window_ns
from dashboards.buckets import Buckets, downsample, span_ns
from dashboards.columns import Frame
from dashboards.figures import Drawn, timeline_figure
from dashboards.job_runs import is_job
from dashboards.markup import told_table
from dashboards.oldest import Oldest, read_oldest
from dashboards.overlay import NOTHING, Overlay, overlay_key, overlay_of
from dashboards.palette import THEMES
from dashboards.queries import RunBook, RunView
from dashboards.remembered import Remembered
from dashboards.spoken import spoken
from dashboards.summary import describe_window
from dashboards.timeline_table import HEAD, timeline_rows
from tracekit.errors import LockedError, TracekitError
from tracekit.store import code_names

__all__ = ["COVERED", "HIDDEN", "OUTPUTS", "QUIET_MS", "WINDOWS", "Answer", "prepare_overlay", "render"]

SOON_MS, LIVE_MS, QUIET_MS = 300, 1000, 5000
"""How often a page asks again: of a job that has only just been started, of a run under way, and for new runs otherwise."""
WINDOWS = {"all": "whole run", "10": "last 10 s", "60": "last minute", "600": "last 10 minutes", "range": "from … to"}
SHOWN: dict[str, str] = {}
HIDDEN = {"display": "none"}
COVERED = {"visibility": "hidden", "height": "0", "overflow": "hidden"}
"""Out of sight but as wide as it will be: a figure that gets its width later is drawn twice."""
OUTPUTS = {
    "runs": Output("run", "options"),
    "run": Output("run", "value"),
    "replicas": Output("replica", "options"),
    "replica": Output("replica", "value"),
    "replica_box": Output("replica-box", "style"),
    "window": Output("window", "value"),
    "unit": Output("unit", "value"),
    "begin": Output("begin", "value"),
    "end": Output("end", "value"),
    "status": Output("status", "children"),
    "status_class": Output("status", "className"),
    "notice": Output("notice", "children"),
    "figure": Output("timeline", "figure"),
    "figure_box": Output("timeline-box", "style"),
    "summary": Output("summary", "children"),
    "table": Output("timeline-table", "children"),
    "every_ms": Output("tick", "interval"),
    "drawn": Output("drawn", "data"),
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What the page shall show; ``no_update`` where it may keep what it has."""

    runs: Any = no_update
    run: Any = no_update
    replicas: Any = no_update
    replica: Any = no_update
    replica_box: Any = no_update
    window: Any = no_update
    unit: Any = no_update
    begin: Any = no_update
    end: Any = no_update
    status: Any = no_update
    status_class: Any = no_update
    notice: Any = no_update
    figure: Any = no_update
    figure_box: Any = no_update
    summary: Any = no_update
    table: Any = no_update
    every_ms: Any = no_update
    drawn: dict[str, Any] = field(default_factory=dict)

    def outputs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OUTPUTS}


def prepare_overlay(book: RunBook, search: str | None) -> str | None:
    """Read what lies over the timeline of a recorded run, which takes a moment where it is large, and keep it. Its key."""
    address = parse_address(search)
    try:
        row = book.recorded(address.run)
        if row is None:
            return None
        overlay_of(book, address)
    except TracekitError:
        return None
    return overlay_key(row["spool"], address)


def render(
    book: RunBook,
    search: str | None,
    theme: str,
    drawn: dict[str, Any],
    *,
    overlaid: str | None = None,
    narrow: bool = False,
) -> Answer:
    """The page for a URL. ``drawn`` is what it shows already (from the last answer): the figure is sent only if it differs.
    ``overlaid``: key of the overlay that has been read; any other is left out, and asked for by ``drawn``."""
    address = parse_address(search)
    try:
        catalogue = book.catalogue()
        view = book.view(address.run)
        over = _over(book, view, address, overlaid)
    except LockedError as error:  # keep what is there
        often = SOON_MS if is_job(address.run) else LIVE_MS
        return Answer(status=f"waiting: {spoken(error)}", status_class="status busy", every_ms=often, drawn=drawn)
    except TracekitError as error:
        return _nothing(book, spoken(error))
    runs = [{"value": each.ref, "label": each.title} for each in catalogue.runs]
    answer = _answer(view, address, _Look(theme, narrow, over, book.cuts), drawn)
    if runs != drawn.get("runs"):
        answer.runs = runs
    answer.drawn["runs"] = runs
    if catalogue.note is not None:
        answer.notice = f"the list of runs may be old: {catalogue.note}"
    return answer


class _Over(NamedTuple):
    """What a recorded run has beyond its columns. ``key``: of the overlay that belongs here; ``None`` for a run under way."""

    key: str | None = None
    overlay: Overlay | None = None
    oldest: dict[int, Oldest] | None = None


class _Look(NamedTuple):
    theme: str
    narrow: bool
    over: _Over
    cuts: Remembered[Buckets]


def _over(book: RunBook, view: RunView, address: Address, overlaid: str | None) -> _Over:
    row = None if view.live or not view.frames else book.recorded(address.run)
    if row is None:
        return _Over()
    key = overlay_key(row["spool"], address)
    oldest = book.remember_arrays(f"oldest {row['spool']}", lambda: read_oldest(book.store, row["run"]))
    return _Over(key, overlay_of(book, address) if key == overlaid else None, oldest)


def _nothing(book: RunBook, why: str) -> Answer:
    """No such run: say so, keep the list of runs."""
    try:
        runs = [{"value": each.ref, "label": each.title} for each in book.catalogue().runs]
    except TracekitError:
        runs = []
    return Answer(
        runs=runs, run=None, replica_box=HIDDEN, status=why, status_class="status missing", notice="", figure_box=COVERED,
        summary="", every_ms=QUIET_MS, drawn={"runs": runs},
    )  # fmt: skip


def _answer(view: RunView, address: Address, look: _Look, drawn: dict[str, Any]) -> Answer:
    answer = Answer(run=view.ref, every_ms=LIVE_MS if view.live else QUIET_MS)
    answer.status, answer.status_class = view.message, f"status {view.state}"
    replicas = sorted(view.frames)
    replica = address.replica if address.replica in view.frames else replicas[0] if replicas else None
    answer.replicas = [{"value": number, "label": f"replica {number}"} for number in replicas]
    answer.replica, answer.replica_box = replica, SHOWN if len(replicas) > 1 else HIDDEN
    notes = [f"not understood in the address: {', '.join(address.ignored)}"] if address.ignored else []
    if address.replica is not None and replicas and replica != address.replica:
        notes.append(f"no replica {address.replica} in this run: shown is {replica}")
    if replica is None:
        notes.append(_why_empty(view))
        answer.figure_box, answer.summary, answer.drawn = COVERED, "", {"run": view.ref, "replica": None}
    else:
        _draw(answer, view, replica, address, look, drawn)
    answer.notice = ". ".join(notes)
    return answer


def _why_empty(view: RunView) -> str:
    if view.events != "full":
        return (
            f"this run was recorded with --events {view.events}: its iterations were not kept, so there is nothing to draw;"
            " replay with --events full"
        )
    return "no iteration has been written yet" if view.live else "this run has no iterations"


def _draw(answer: Answer, view: RunView, replica: int, address: Address, look: _Look, drawn: dict[str, Any]) -> None:
    """Fill in figure, summary and the controls of the window, unless they are what is shown already."""
    frame = view.frames[replica]
    begin, end = span_ns(frame)
    if view.live and address.last_s is None:  # what is still to come stays empty: the figure fills from the left
        end = max(end, begin + view.arrivals_ns)
    window = window_ns(address, (begin, end))
    overlay = look.over.overlay or NOTHING
    last = f"{address.last_s:g}" if address.last_s is not None else None
    answer.window = "range" if address.t is not None else last if last in WINDOWS else "range" if last else "all"
    answer.unit = address.unit
    answer.begin, answer.end = (f"{edge / 1e9:.9g}" for edge in window)
    laid = look.over.key if overlay != NOTHING else None
    shown = [view.ref, replica, len(frame["iteration"]), list(window), look.theme, look.narrow, address.iterations, laid]
    shown.append(address.unit)
    answer.drawn = {
        "run": view.ref, "replica": replica, "window": answer.window, "begin": answer.begin, "end": answer.end,
        "unit": address.unit,
        "token": json.loads(json.dumps(shown)), "overlay": look.over.key,
    }  # fmt: skip
    answer.figure_box = SHOWN
    if answer.drawn["token"] == drawn.get("token"):
        return
    buckets = _cut(look.cuts, view, replica, window)
    oldest = (look.over.oldest or {}).get(replica)
    what = Drawn(
        reasons=code_names("iterations", "head_refused_by"), window_ns=window, budget=view.budget.get(replica),
        kv_total=view.kv_total.get(replica), reserved=view.reserved.get(replica, 0), overlay=overlay,
        oldest_ns=None if oldest is None else oldest.peaks(buckets.edges_ns), marked_s=_marked(frame, address),
        unit=address.unit,
    )  # fmt: skip
    answer.figure = timeline_figure(buckets, what, THEMES[look.theme], narrow=look.narrow)
    answer.summary = describe_window(buckets, what)
    answer.table = told_table(HEAD, timeline_rows(buckets, what), "The window in stretches of equal length")


def _marked(frame: Frame, address: Address) -> tuple[float, float] | None:
    """Where the iterations that the address names lie, in seconds."""
    if address.iterations is None:
        return None
    first, last = np.searchsorted(frame["iteration"], [address.iterations[0], address.iterations[1] + 1])
    if first == last:
        return None
    return float(frame["start_ns"][first]) / 1e9, float(frame["start_ns"][last - 1] + frame["duration_ns"][last - 1]) / 1e9


def _cut(cuts: Remembered[Buckets], view: RunView, replica: int, window: tuple[int, int]) -> Buckets:
    """A window cut to buckets; of a recorded run kept, since it is asked for again: with what lies over it, in another theme, by
    others."""
    if view.spool is None:
        return downsample(view.frames[replica], *window)
    return cuts.get(f"{view.spool} {replica} {window}", lambda: downsample(view.frames[replica], *window))
