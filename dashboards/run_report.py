"""The report of a run as one page: the verdict first, then whether it may be believed, the figures, and the whole matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dashboards.address import METRICS, Address
from dashboards.buckets import BUCKETS, downsample, span_ns
from dashboards.figures import Drawn, timeline_figure
from dashboards.oldest import read_oldest
from dashboards.overlay import overlay_of
from dashboards.palette import Theme
from dashboards.queries import RunBook
from dashboards.report_markup import Html, data_table, element, listed
from dashboards.report_page import Drawing, Page, figure_box
from dashboards.summary import describe_window
from dashboards.tail import TailMap, percentiles, tail_map
from dashboards.tail_figures import describe_map, map_figure
from dashboards.timeline_table import HEAD, timeline_rows
from dashboards.verdict_figure import describe_excess, excess_figure
from dashboards.verdicts import Card, Proven, cards_of, read_verdict
from dashboards.words import count, percent, seconds
from tracekit.errors import UsageError
from tracekit.metrics.fields import FIELDS, SECTIONS, field_value, is_missing
from tracekit.metrics.headline import headline
from tracekit.metrics.wording import field_lines
from tracekit.run_policy import run_flags
from tracekit.store import code_names, load_run

__all__ = ["run_page"]

MOST_REPLICAS = 4
TABLE_ROWS = 40
LOUD = 0.2
"""A share of the excess that nothing explains: beyond, the page says so before it recommends anything."""
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "gap": "longest gap", "e2e": "E2E"}
MAPPED = ("ttft", "tpot")
SIGNS = {"confirmed": "confirmed by replay", "refuted": "refuted by replay", "within noise": "within noise"}


def run_page(book: RunBook, ref: str) -> Page:
    """The page of a recorded run with a matrix. ``UsageError``: it is under way, or kept no requests."""
    found = book.recorded(ref)
    if found is None:
        raise UsageError("this run is under way: its report comes when it has been committed")
    row = load_run(book.store, int(found["run"]))
    if row["matrix"] is None:
        raise UsageError(f"run {row['run']}: state {row['state']}, it has no matrix; expected a run that ended")
    ref = str(row["run"])
    verdict = read_verdict(book, ref)
    cards = cards_of(verdict.document)
    drawings = [_excess(cards, verdict.document), *_tails(book, ref)]
    timelines = list(_timelines(book, ref))
    body = [
        *_head(row),
        element("p", verdict.document["verdict"], class_="verdict"),
        _trust(row["matrix"]),
        listed(_headline(row["matrix"])),
        element("h2", "What is wrong"),
        *_findings(cards, verdict.document, verdict.recorded, int(row["run"]), drawings[0]),
        element("h2", "The tail"), _percentiles(book, ref), *(figure_box(each) for each in drawings[1:]),
        element("h2", "What the scheduler did"), *(figure_box(each) for each in timelines),
        element("p", "This run keeps no iterations (--events full keeps them).", class_="quiet") if not timelines else None,
        element("h2", "The whole matrix"), *_matrix(row["matrix"]),
        element("h2", "The same again"), *_again(row),
    ]  # fmt: skip
    return Page(f"tracekit run {row['run']}: {row['trace_name']}", body, [*drawings, *timelines])


def _head(row: Mapping[str, Any]) -> Iterator[Html]:
    name = f" ({row['name']})" if row["name"] else ""
    yield element("h1", f"Run {row['run']}{name}: {row['trace_name']}")
    flags = run_flags(row)
    policy: object = "policy not kept" if flags is None else element("code", flags) if flags else "the engine's defaults"
    engine = "simulator" if row["engine"] == "sim" else row["engine"]
    began = str(row["started_at"] or "")[:16]
    size = [f"{row['requests']:,} requests", f"{row['iterations'] or 0:,} iterations"]
    facts = [engine, row["profile"], *size, row["state"], began]
    yield element("p", ", ".join(str(each) for each in facts if each), "; ", policy, class_="meta")


def _headline(matrix: Mapping[str, Any]) -> list[Html]:
    """A line per label, those that continue it below it."""
    lines: list[str] = []
    for label, text in headline(matrix):
        if label or not lines:
            lines.append(f"{element('strong', label)} {element('span', text)}")
        else:
            lines[-1] += f"<br>{element('span', text)}"
    return [Html(line) for line in lines]


def _trust(matrix: Mapping[str, Any]) -> Html:
    """Whether the model may be believed: its error on this very trace, and what a check of the profile said."""
    profile = matrix["profile"]
    lines = []
    for label, name in (("Error of the model on this trace", "error_on_trace"), ("Trust", "trust")):
        spec = next(each for each in FIELDS if each.section == "profile" and each.name == name)
        for _, value in field_lines(spec, profile[name]):
            told = value if isinstance(value, str) else ", ".join(value)
            lines.append(f"{label}: {told.removeprefix('- (').removesuffix(')') if is_missing(profile[name]) else told}")
    return element("p", *(Html(f"{element('span', each)}<br>") for each in lines), class_="trust")


def _excess(cards: Sequence[Card], document: Mapping[str, Any]) -> Drawing:
    left = document["unexplained"]
    rows = [[card.id, seconds(card.excess_s), percent(card.share)] for card in cards]
    rows.append(["not explained", seconds(left["excess_s"]), percent(left["share"])])
    said = describe_excess(cards, document["excess_s"], left["excess_s"], document["basis"])
    return Drawing("excess", said, lambda theme: excess_figure(cards, left["excess_s"], theme),
                   ("Cause", "In excess", "Share"), rows)  # fmt: skip


def _findings(
    cards: Sequence[Card], document: Mapping[str, Any], recorded: bool, run: int, excess: Drawing
) -> Iterator[Html | None]:
    if document["unexplained"]["share"] > LOUD and document["excess_s"] > 0:
        share = percent(document["unexplained"]["share"])
        yield element("p", f"{share} of what is slow is not explained by anything below.", class_="notice")
    yield figure_box(excess)
    if not recorded and cards:
        yield element("p", "Nothing has been replayed yet. To prove these: ", element("code", f"tracekit diagnose {run}"),
                      class_="notice")  # fmt: skip
    yield from (_card(card) for card in cards)
    yield from (element("p", text, class_="notice") for text in document["warnings"])
    yield listed(document["remarks"])


def _card(card: Card) -> Html:
    size = f"{percent(card.share)} of the excess, {seconds(card.excess_s)} ({card.measure})"
    evidence = data_table(("Evidence", "Value", "Held against"), [(name, value, bound or "-") for name, value, bound, _
                                                                  in card.evidence], "What it rests on")  # fmt: skip
    queries = data_table(("Evidence", "How to check it"), [(name, element("code", sql)) for name, _, _, sql in card.evidence],
                         "The SQL that yields it", numeric=9)  # fmt: skip
    return element(
        "section",
        element("h3", element("code", card.id), f" {card.name}"),
        element("p", f"{size}; confidence {card.confidence}: {card.because}", class_="quiet"),
        element("p", f"A consequence of {card.under}.", class_="quiet") if card.depth else None,
        element("p", card.what),
        evidence,
        element("p", f"It is not: {'; '.join(card.is_not)}.", class_="quiet") if card.is_not else None,
        *_advice(card),
        element("details", element("summary", "How to check the evidence"), queries),
        class_="card under" if card.depth else "card",
        aria_label=f"Finding {card.id}",
    )


def _advice(card: Card) -> Iterator[Html | None]:
    if card.advice is None:
        why = "Nothing is recommended: what was replayed did not help." if card.tried else "No scheduler knob is recommended."
        yield element("p", why, class_="advice")
    else:
        advice = card.advice
        yield element("p", "Change ", element("code", advice.change), f": {_outcome(advice)}", class_="advice")
        yield element("p", "Flags: ", element("code", advice.flags)) if advice.flags else None
        yield from (element("p", f"{name}: {text}") for name, text in (("Why", advice.why), ("Price", advice.price)) if text)
        yield listed(advice.figures)
        yield element("p", advice.reason, class_="quiet") if advice.reason else None
    if card.tried:
        others = [Html(f"{element('code', each.change)} {element('span', f'{_outcome(each)}. {each.reason}')}")
                  for each in card.tried]  # fmt: skip
        yield element("details", element("summary", "Other changes that were replayed"), listed(others))


def _outcome(change: Proven) -> str:
    return SIGNS.get(change.outcome, "not replayed yet")


def _tails(book: RunBook, ref: str) -> Iterator[Drawing]:
    data = book.data(ref)
    for metric in MAPPED:
        address = Address(run=ref, metric=metric)
        found = tail_map(data, address)
        if found is not None:
            said = describe_map(found, percentiles(data, address), NAMES[metric], found.n)
            rows = [[f"request {number}", f"{at:,.3f} s", seconds(value)] for number, at, value in found.worst[:TABLE_ROWS]]
            yield Drawing(f"map-{metric}", said, partial(_still_map, found, address), ("The slowest", "Arrival", NAMES[metric]),
                          rows, f": the {len(rows)} slowest")  # fmt: skip


def _still_map(found: TailMap, address: Address, theme: Theme) -> dict[str, Any]:
    """The map without its box to select in."""
    figure = map_figure(found, address, theme)
    figure["layout"]["dragmode"] = "zoom"
    return figure


def _percentiles(book: RunBook, ref: str) -> Html:
    data = book.data(ref)
    rows = []
    for metric in METRICS:
        found = percentiles(data, Address(run=ref, metric=metric))
        rows.append([NAMES[metric], *(f"{seconds(each.all_s)} ({count(each.beyond)})" for each in found)])
    points = [f"P{each.point:g}" for each in percentiles(data, Address(run=ref))]
    return data_table(("", *points), rows, "Percentiles over requests, and how many requests lie beyond each")


def _timelines(book: RunBook, ref: str) -> Iterator[Drawing]:
    """A timeline of each replica with its findings as brackets, in fewer buckets the more there are."""
    view, overlay, oldest = book.view(ref), overlay_of(book, Address(run=ref)), read_oldest(book.store, int(ref))
    reasons = code_names("iterations", "head_refused_by")
    there = [replica for replica in sorted(view.frames) if len(view.frames[replica]["iteration"])]
    shown = there[:MOST_REPLICAS]
    for replica in shown:
        frame, window = view.frames[replica], span_ns(view.frames[replica])
        buckets = downsample(frame, *window, buckets=BUCKETS // len(shown))
        what = Drawn(
            reasons=reasons, window_ns=window, budget=view.budget.get(replica), kv_total=view.kv_total.get(replica),
            reserved=view.reserved.get(replica, 0), overlay=overlay,
            oldest_ns=oldest[replica].peaks(buckets.edges_ns) if replica in oldest else None,
        )  # fmt: skip
        make = partial(timeline_figure, buckets, what)
        named = f"Replica {replica}: " if len(there) > 1 else ""
        more = f" (of {len(there)} replicas the first {len(shown)} are drawn)" if len(there) > len(shown) else ""
        said = f"{named}{describe_window(buckets, what)}{more}"
        yield Drawing(f"timeline-{replica}", said, make, HEAD, timeline_rows(buckets, what), ", in coarser steps")


def _matrix(matrix: Mapping[str, Any]) -> Iterator[Html]:
    for section, title in SECTIONS.items():
        lines = [line for spec in FIELDS if spec.section == section for line in field_lines(spec, field_value(matrix, spec))]
        tables = []
        spread = [[label, *value] for label, value in lines if isinstance(value, list)]
        plain = [[label, value] for label, value in lines if isinstance(value, str)]
        if spread:
            tables.append(data_table(("", "mean", "P50", "P95", "P99", "max", "n"), spread, title))
        if plain:
            tables.append(data_table(("", ""), plain, title, numeric=9))
        yield element("details", element("summary", title), *tables, open=section in ("latency", "slo", "throughput"))


def _again(row: Mapping[str, Any]) -> Iterator[Html]:
    number = row["run"]
    yield element("pre", f"tracekit show {number}\ntracekit diagnose {number}\ntracekit export {number} --to html")
    yield element("p", f"tracekit {row['tracekit_version']}; percentiles by linear interpolation over requests; times on the"
                       " engine's clock; nothing on this page was loaded from a network or sent to one.",
                  class_="quiet")  # fmt: skip
