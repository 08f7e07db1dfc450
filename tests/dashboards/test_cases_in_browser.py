"""Every case on the pages, in a real browser: the finding, its numbers, its knob, and the way from there to the iterations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dashboards.address import parse_address
from dashboards.blame import WAITS
from dashboards.pages import PAGES
from dashboards.selection import settle
from tests.dashboards.browser import serving
from tests.dashboards.cases import CASES, Cases
from tests.dashboards.watched import Watched
from tests.diagnosis.test_cases import EXPECTED
from tracekit.store import sql

CARD = """() => {
    const card = document.querySelector('section.finding');
    const rows = [...card.querySelectorAll('details table.data tbody tr')].map(row => [...row.cells].map(cell =>
        cell.textContent));
    const first = [...card.querySelectorAll(':scope > div > .wide table.data tbody tr')].map(row => row.cells[0].innerText);
    return {name: card.ariaLabel, text: card.innerText, rows: rows, first: first,
            advice: card.querySelector('.advice code').innerText};
}"""
FIGURE = """name => {
    const plot = document.querySelector(`#${name} .js-plotly-plot`) || document.getElementById(name);
    const plain = each => each === undefined ? null : Array.from(each, value => value === null ? null : Number(value));
    const places = trace => trace.x || (trace.dx && Array.from(trace.y, (_, at) => trace.x0 + at * trace.dx)) || undefined;
    return JSON.stringify({sent: plot.data, data: plot._fullData.map(trace => [trace.name, plain(places(trace)), plain(trace.y)]),
        notes: plot.layout.annotations, shapes: plot.layout.shapes, range: plot.layout.xaxis.range});
}"""
TOO_WIDE = """() => {
    const over = each => each.getBoundingClientRect().right > window.innerWidth + 1;
    const wide = [...document.querySelectorAll('body *')].filter(each => over(each)
        && !each.closest('.wide, pre, #rail, .js-plotly-plot, .dash-graph, .ag-root-wrapper, .data')).slice(0, 5)
        .map(each => each.tagName + '.' + each.className);
    const inner = document.documentElement.scrollWidth;
    return inner > window.innerWidth + 1 || wide.length ? [[inner, wide]] : [];
}"""
WORDLESS = r"\b(NaN|undefined|Infinity|nan)\b"


@pytest.fixture(scope="module")
def site(cases: Cases, browser: Any) -> Iterator[Watched]:
    """One server and one page for all that only read."""
    with serving(cases.db) as url:
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light")
        yield Watched(context.new_page(), url)
        context.close()


@pytest.fixture(autouse=True)
def nothing_went_wrong(site: Watched) -> Iterator[None]:
    site.wrong.clear()
    yield
    assert site.wrong == []


def amount(text: str) -> float:
    """The number in a value as the page writes it: shares of 1, times in seconds."""
    found = re.match(r"(-?[\d.,]+) ?(%|ns|µs|ms|s|min|h)?(?:\s|$)", text)
    assert found is not None, text
    scale = {"%": 0.01, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0}.get(found[2] or "", 1.0)
    return float(found[1].replace(",", "")) * scale


def settled(site: Watched) -> str:
    """The words of the page once nothing on it says that it is loading."""
    site.page.wait_for_function(
        "() => !document.querySelector('[data-dash-is-loading=true]')"
        " && !/Loading …/.test(document.querySelector('main').innerText)"
        " && document.querySelector('main').innerText.length > 60"  # a heading alone is a page whose answer is on its way
    )
    return str(site.page.inner_text("main"))


@pytest.mark.parametrize("case", CASES)
def test_a_case_from_its_verdict_to_its_iterations(case: str, cases: Cases, site: Watched) -> None:
    ids, sets, bounds = EXPECTED[case]
    run = cases.runs[case]
    site.go(f"verdict?run={run}").until("vd-said", ids[0])
    site.page.wait_for_selector("section.finding")
    card = site.page.evaluate(CARD)
    assert card["name"] == f"Finding {ids[0]}"
    shown = {row[0]: row[1] for row in card["rows"]}
    for metric, (low, high) in bounds.items():
        assert low * 0.995 - 5e-4 <= amount(shown[metric]) <= high * 1.005 + 5e-4, (metric, shown[metric])
    assert len(card["first"]) == min(3, len(card["rows"]))
    for each in sets[:1]:
        knob, value = each.split("=", 1)
        if knob.startswith("traffic."):  # said in words, and replayed by what they mean
            assert "traffic.arrivals as recorded → even" in card["advice"]
            button = site.page.get_by_role("button", name="Replay this change").first
            assert button.get_attribute("title") == f"The same requests with {each}"
            continue
        assert knob.rpartition(".")[2] in card["advice"] or knob in card["advice"]
        assert card["advice"].endswith(f"→ {value}")
    assert "It is not: " in card["text"]
    assert not re.search(WORDLESS, site.page.inner_text("main"))
    site.page.get_by_role("link", name="Show me").first.click()
    summary = site.until("summary", f"Found here: .*{ids[0]}")
    shares = re.search(r"selected requests waited (.+?) together(?:, ([\d.]+) % of it in this window)?", summary)
    assert shares is not None
    inside, whole = blamed(cases, run, site.page.url)
    assert inside >= 0.8 * whole
    if whole:
        assert float(shares[2]) == pytest.approx(100 * inside / whole, abs=0.1)
        assert amount(shares[1]) == pytest.approx(whole / 1e9, rel=0.01)
    notes = [note["text"] for note in json.loads(site.page.evaluate(FIGURE, "timeline"))["notes"]]
    assert any(note.startswith(f"<b>{ids[0]}</b>") for note in notes)


def blamed(cases: Cases, run: int, url: str) -> tuple[float, float]:
    """What the requests that the finding harms waited in the window of an address, and in all, by SQL; ns."""
    address = settle(cases.book, parse_address("?" + url.partition("?")[2]))
    classes = address.harmed
    assert address.t is not None
    begin, end = (f"{edge * 1e9:.0f}" for edge in address.t)
    phases = ", ".join(f"'{name}'" for name in WAITS)
    named = ", ".join(f"'{name}'" for name in classes)
    part = f"greatest(0, least(s.end_ns, {end}) - greatest(s.start_ns, {begin}))"
    query = (
        f"SELECT coalesce(sum({part}), 0), coalesce(sum(s.end_ns - s.start_ns), 0)"
        " FROM spans s JOIN outcomes o USING (run, request)"
        f" WHERE run = {run} AND s.phase IN ({phases})" + (f" AND o.class IN ({named})" if named else "")
    )
    inside, whole = sql(cases.book.store, query).rows[0]
    return float(inside), float(whole)  # type: ignore[arg-type]


OF_A_RUN = ("/tail", "/requests", "/memory", "/fleet", "/compare", "/trace", "/quality", "/timeline", "/verdict")
HALVES = {"first": PAGES[::2], "second": PAGES[1::2]}


def in_the_end(site: Watched, wrong: str) -> list[Any]:
    """What a script finds wrong on a page and goes on finding: figures are drawn, and their words follow, in a moment."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    with suppress(PlaywrightTimeout):
        site.page.wait_for_function(f"() => !({wrong})().length")
    found: list[Any] = site.page.evaluate(wrong)
    return found


AT = """path => location.pathname === path && document.querySelector('main h1')
    && document.querySelector('#rail a.current')?.getAttribute('href').startsWith(path + '?')"""
"""Address and frame are those of the page: until then the words may be those of the page before."""


def turned(site: Watched, path: str) -> str:
    """The words of a page that the rail leads to."""
    site.page.locator(f"#rail a[href^='{path}?']").click()
    site.page.wait_for_function(AT, arg=path)
    return settled(site)


@pytest.mark.parametrize("name", ["D01", "D04", "D10", "lean"])
def test_every_page_of_a_run_says_something_and_never_nan(name: str, cases: Cases, site: Watched) -> None:
    """Cases without an SLO, without prefixes, on several engines; a run that kept no iterations."""
    site.go(f"verdict?run={cases.runs[name]}").page.wait_for_selector("#vd-said:not(:empty)")
    for page in OF_A_RUN:
        text = turned(site, page)
        assert not re.search(WORDLESS, text), (page, text)
        if name == "lean" and page in ("/timeline", "/memory", "/tail"):
            assert "--events full" in text, (page, text)
        if page == "/requests" and name != "lean":
            site.page.locator("details:has(#rq-table) summary").click()
            site.page.wait_for_selector("#rq-table tbody tr")
    assert re.search(r"no SLO|attainment", site.page.inner_text("#heading"))


def test_a_box_on_the_tail_leads_to_the_iterations_that_kept_it_waiting(cases: Cases, site: Watched) -> None:
    run = cases.runs["D01"]
    site.open(f"tail?run={run}").until("tl-said", "TTFT of 1,504 requests")
    site.page.wait_for_selector("#tl-map .nsewdrag")
    box = site.page.locator("#tl-map .nsewdrag").first.bounding_box()
    assert box is not None
    mouse = site.page.mouse
    mouse.move(box["x"] + 2, box["y"] + 2)
    mouse.down()
    mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] * 0.3, steps=6)
    mouse.up()
    site.until("tl-links", "selected requests")
    address = parse_address("?" + site.page.url.partition("?")[2])
    assert address.latency_s is not None and address.arrived_s is not None and address.t is None
    low, high = address.latency_s
    begin, end = address.arrived_s
    site.page.get_by_role("link", name="What the scheduler did then").click()
    summary = site.until("summary", "selected requests waited")
    told = re.search(r"The ([\d,]+) selected requests waited (.+?) together", summary)
    assert told is not None
    queued = (
        f"SELECT count(*), sum(queue_ns) / 1e9 FROM outcomes WHERE run = {run} AND ttft_ns BETWEEN {low * 1e9} AND {high * 1e9}"
        f" AND arrival_ns BETWEEN {begin * 1e9} AND {end * 1e9}"
    )
    n, waited = sql(cases.book.store, queued).rows[0]
    assert int(told[1].replace(",", "")) == n
    assert amount(told[2]) == pytest.approx(waited, rel=0.01)
    drawn = {trace[0]: trace[1:] for trace in json.loads(site.page.evaluate(FIGURE, "timeline"))["data"]}
    times, waiting = drawn["selected waiting"]
    area = sum(height * (b - a) for a, b, height in zip(times, times[1:], waiting, strict=False))
    assert area == pytest.approx(waited, rel=0.01)
    worst = times[max(range(len(waiting)), key=waiting.__getitem__)]
    held = (
        "SELECT i.head_refused_by, max(o.prompt_tokens) FROM iterations i JOIN prefill_entries e USING (run, replica, iteration)"
        f" JOIN outcomes o USING (run, request) WHERE run = {run} AND abs(i.start_ns / 1e9 - {worst}) < 2"
        " GROUP BY ALL ORDER BY 2 DESC"
    )
    reason, prompt = sql(cases.book.store, held).rows[0]
    assert reason == "token_budget"
    assert prompt > 400_000  # type: ignore[operator]
    kept = {"lat": f"{low:g}", "arr": f"{begin:g}"}
    site.page.locator("#begin").fill("3")  # another window is looked at: the same requests are selected, on every page
    site.page.locator("#begin").press("Enter")
    site.page.wait_for_function("() => location.search.includes('t=3-')")
    site.page.locator("#rail a[href^='/requests?']").click()
    assert site.until("rq-said", "selected").startswith(f"{n:,} of 1,504 requests are selected")
    for page, element in (("/timeline", "summary"), ("/tail", "tl-links")):
        site.page.go_back() if page == "/timeline" else site.page.locator(f"#rail a[href^='{page}?']").click()
        site.page.wait_for_url(f"**{page}?*")
        assert f"{n:,} selected requests" in site.until(element, "selected requests")
    assert all(f"{key}={value[:4]}" in site.page.url for key, value in kept.items())


def test_a_shared_address_shows_the_same_figure_and_back_leads_back(cases: Cases, site: Watched, browser: Any) -> None:
    view = f"timeline?run={cases.runs['D01']}&t=30-120&f=HOL_LONG_PROMPT"
    site.open(view).until("summary", "Found here")
    first = site.page.evaluate(FIGURE, "timeline")
    site.page.reload()
    site.until("summary", "Found here")
    assert site.page.evaluate(FIGURE, "timeline") == first
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    other = Watched(context.new_page(), site.home).open(view)
    other.until("summary", "Found here")
    assert other.page.evaluate(FIGURE, "timeline") == first
    context.close()
    site.page.get_by_title("Remove: finding HOL_LONG_PROMPT").click()
    site.page.wait_for_function("() => !location.search.includes('f=')")
    site.page.go_back()
    site.until("summary", "selected requests waited")
    assert site.page.evaluate(FIGURE, "timeline") == first
    site.page.go_forward()
    site.page.wait_for_function("() => !/selected requests waited/.test(document.getElementById('summary').textContent)")


FOCUSABLE = "() => document.querySelectorAll('main a[href], main button, main summary, main [tabindex=\"0\"]').length"
REACHED = """() => { const at = document.activeElement; return at.closest('main') ? at.outerHTML : null; }"""


def test_the_verdict_with_the_keyboard_alone(cases: Cases, site: Watched) -> None:
    site.open(f"verdict?run={cases.runs['D04']}").until("vd-said", "PREEMPTION_STORM")
    page = site.page
    page.wait_for_selector("section.finding")
    wanted = page.evaluate(FOCUSABLE)
    reached: set[str] = set()
    for _ in range(wanted + 80):
        page.keyboard.press("Tab")
        at = page.evaluate(REACHED)
        if at is not None:
            reached.add(at)
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", at[:200]
    assert any("Show me" in each for each in reached)
    assert any("Its requests" in each for each in reached)
    assert any("All evidence" in each for each in reached)
    assert any("Copy flags" in each for each in reached)
    page.get_by_role("button", name="Copy flags").first.press("Enter")
    page.wait_for_selector("text=/^(Copied|Selected: copy it)$/")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.ariaLabel") == "Finding PREEMPTION_STORM"
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.ariaLabel") != "Finding PREEMPTION_STORM"
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    site.drawn()
    assert "/timeline" in page.url and "f=PREEMPTION_STORM" in page.url


OURS = {"exclude": [[".ag-root-wrapper"]]}
"""The grid's own rows are not: its empty header rows of pinned columns have no cells."""
ONLY = {"resultTypes": ["violations"]}


def in_the_way(axe: Any, page: Any, options: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """What axe finds that is serious."""
    return [
        (each["id"], [(node["html"][:160], node["any"][:1] and node["any"][0]["message"]) for node in each["nodes"][:3]])
        for each in axe.run(page, OURS, {**ONLY, **options}).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("half", HALVES)
def test_nothing_stands_in_anybodys_way(half: str, cases: Cases, site: Watched) -> None:
    """On no page, in both themes: by them colours differ, and nothing else."""
    from axe_playwright_python.sync_playwright import Axe

    axe, found = Axe(), []
    site.go(f"verdict?run={cases.runs['slo']}&cmp={cases.runs['slo']}").page.wait_for_selector("#vd-said:not(:empty)")
    for page in HALVES[half]:
        text = turned(site, page.path)
        assert not re.search(WORDLESS, text), (page.path, text)
        found += [(page.path, "light", *each) for each in in_the_way(axe, site.page, {})]
        site.page.emulate_media(color_scheme="dark")
        site.page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        settled(site)
        found += [(page.path, "dark", *each) for each in in_the_way(axe, site.page, {"runOnly": ["color-contrast"]})]
        site.page.emulate_media(color_scheme="light")
    site.page.evaluate("document.activeElement.blur()")
    site.page.keyboard.press("?")
    site.page.get_by_role("dialog").wait_for()
    found += [("help", *each) for each in in_the_way(axe, site.page, {})]
    site.page.keyboard.press("Escape")
    assert found == []


TWINS = """() => [...document.querySelectorAll('main .js-plotly-plot')].filter(plot => {
    const image = plot.closest('[role=group]');
    const said = image && (image.ariaLabel || document.getElementById(image.getAttribute('aria-describedby'))?.textContent);
    const around = plot.closest('figure, section.card');
    const saved = around?.querySelector(`[data-export=csv][data-chart=${plot.closest('[id]').id}]`);
    return !said || !around?.querySelector('table') || !saved;
}).map(plot => plot.closest('[id]').id)"""


@pytest.mark.parametrize("half", HALVES)
def test_pages_fit_and_every_chart_has_its_sentence_its_table_and_ways_to_save_it(half: str, cases: Cases, site: Watched) -> None:
    """On a phone and at 4K."""
    address = f"run={cases.runs['slo']}&cmp={cases.runs['slo']}&cls=batch&t=2-40"
    site.go(f"verdict?{address}").page.wait_for_selector("#vd-said:not(:empty)")
    wrong: list[tuple[Any, ...]] = []
    for page in HALVES[half]:
        site.page.set_viewport_size({"width": 390, "height": 900})
        turned(site, page.path)
        wrong += [(page.path, 390, *each) for each in in_the_end(site, TOO_WIDE)]
        site.page.set_viewport_size({"width": 3840, "height": 900})
        settled(site)
        wrong += [(page.path, 3840, *each) for each in in_the_end(site, TOO_WIDE)]
        if page.path == "/timeline":
            site.drawn().page.wait_for_selector("#timeline-table .told", state="attached")
        site.page.evaluate("() => document.querySelectorAll('main details').forEach(each => { each.open = true; })")
        site.page.wait_for_function("() => [...document.querySelectorAll('main .told')].every(e => e.querySelector('table'))")
        wrong += [(page.path, name) for name in in_the_end(site, TWINS)]
    site.page.set_viewport_size({"width": 1400, "height": 1000})
    assert wrong == []
