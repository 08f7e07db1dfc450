"""The page that stands alone: nothing is loaded, no name of a trace is taken for HTML, it says what the run says; both themes."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from dashboards.report import export_run_page, export_tune_page
from dashboards.report_markup import Html, data_table, element
from dashboards.report_page import page_html
from dashboards.run_report import run_page
from dashboards.tune_report import tune_page
from tests.exports.conftest import HOSTILE, Runs
from tests.exports.test_flag_text import TUNED
from tracekit.errors import UsageError
from tracekit.exports.export import Asked
from tracekit.metrics.wording import span_text
from tracekit.store import load_run
from tracekit.store.findings import load_verdict

KINDS = ("tight", "preempting", "fleet", "pools", "outcomes_only")
VOID = {"meta", "br", "link"}
ANSWER: dict[str, Any] = {
    **TUNED, "traffic": ["4 windows of <monday>"], "no_search": None, "flags": "--max-num-seqs 64", "cliffs": [],
    "trials": {"complete": 9, "pruned": 2, "failed": 1, "reasons": {}}, "importance": {"max_num_seqs": 0.75, "other": 0.25},
    "neighbours": [{"knob": "max_num_seqs", "level": 48, "ratio": 0.97}],
    "gain": {**TUNED["gain"], "base_attainment": 0.8, "level_attainment": 0.9},  # type: ignore[dict-item]
    "robustness": [{"case": "rate x 1.1", "gain": TUNED["gain"]}], "ablation": {"plus": [], "minus": []},
}  # fmt: skip


class Outline(HTMLParser):
    """Tags in order, texts, and what stands open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] in (["script"], ["style"]) else self.texts).append(data)


@pytest.fixture(scope="module")
def pages(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, book = tmp_path_factory.mktemp("pages"), RunBook(runs.path)
    found = {}
    for kind in KINDS:
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(page_html(run_page(book, str(getattr(runs, kind)))))
    found["tuned"] = folder / "tuned.html"
    found["tuned"].write_text(page_html(tune_page(ANSWER, "the <answer>")))
    return found


@pytest.mark.parametrize("kind", [*KINDS, "tuned"])
def test_it_is_one_sound_file_that_points_nowhere(pages: dict[str, Path], kind: str) -> None:
    text = pages[kind].read_text()
    outline = Outline(text)
    assert not outline.open and not outline.wrong
    assert not [each for each in outline.attributes if each[1] in ("src", "href", "action", "srcset", "onload", "onclick")]
    assert not re.search(r"url\(|@import", "".join(outline.scripts[:1]))
    (policy,) = [value for _, name, value in outline.attributes if name == "content" and "default-src" in str(value)]
    assert str(policy).startswith("default-src 'none';") and "http" not in str(policy) and "connect" not in str(policy)
    assert len(text.encode()) < 6e6


@pytest.mark.parametrize("kind", ["tight", "fleet"])
def test_names_of_a_trace_are_text(pages: dict[str, Path], kind: str) -> None:
    text = pages[kind].read_text()
    assert HOSTILE not in text
    shown = "".join(Outline(text).texts)
    assert 'a"b\\,</script>' in shown  # as it is called, with its control characters escaped


def test_what_it_says_is_the_runs(runs: Runs, pages: dict[str, Path]) -> None:
    shown = " ".join(Outline(pages["tight"].read_text()).texts)
    row = load_run(runs.store, runs.tight)
    verdict = load_verdict(runs.store, runs.tight)
    assert verdict is not None and verdict["verdict"] in shown
    for field in ("ttft_ns", "tpot_ns", "e2e_ns"):
        assert span_text(row["matrix"]["latency"][field]["p99"]) in shown
    first = verdict["findings"][0]
    assert first["name"] in shown and "confirmed by replay" in shown
    assert " ".join(first["recommend"][0]["flags"]["vllm"]) in shown
    assert "--max-num-seqs 4" in shown and "unknown: the trace has no latencies" in shown
    assert "Nothing has been replayed yet" not in shown
    assert "Nothing has been replayed yet" in " ".join(Outline(pages["preempting"].read_text()).texts)


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', path.read_text(), flags=re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def whole(value: Any, arrays: list[str]) -> Any:
    """What the page's script makes of it."""
    if isinstance(value, dict):
        return {k: arrays[v] if k == "bdata" and isinstance(v, int) else whole(v, arrays) for k, v in value.items()}
    return [whole(each, arrays) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_the_dashboards_in_both_themes(runs: Runs, pages: dict[str, Path], kind: str) -> None:
    document = embedded(pages[kind])
    page = run_page(RunBook(runs.path), str(getattr(runs, kind)))
    assert set(document["figures"]) == {each.name for each in page.drawings}
    for drawing in page.drawings:
        for theme in (LIGHT, DARK):
            plain = json.loads(json.dumps(drawing.make(theme), default=lambda each: each.item()))
            assert whole(document["figures"][drawing.name][theme.name], document["arrays"]) == plain
    assert len(set(document["arrays"])) == len(document["arrays"])


def test_every_replica_is_drawn(pages: dict[str, Path]) -> None:
    assert {"timeline-0", "timeline-1"} <= set(embedded(pages["fleet"])["figures"])
    assert not [name for name in embedded(pages["outcomes_only"])["figures"] if name.startswith("timeline")]


def test_a_timelines_longest_iteration_is_the_runs(runs: Runs, pages: dict[str, Path]) -> None:
    with runs.store.read() as con:
        (longest,) = con.execute("SELECT max(duration_ns) FROM iterations WHERE run = ?", [runs.tight]).fetchall()[0]
    document = embedded(pages["tight"])
    figure = whole(document["figures"]["timeline-0"]["light"], document["arrays"])
    drawn = [np.frombuffer(base64.b64decode(trace["y"]["bdata"]), f"<{trace['y']['dtype']}") for trace in figure["data"]
             if trace.get("yaxis") == "y5"]  # fmt: skip
    assert max(float(each.max()) for each in drawn) == pytest.approx(longest / 1e6, rel=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "tuned"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_offline_in_a_browser(pages: dict[str, Path], browser: Any, kind: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, offline=True)
    try:
        page, asked, said = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(pages[kind].as_uri(), timeout=120_000)
        boxes = page.locator("[data-figure]").count()
        drawn = "n => document.querySelectorAll('[data-figure] .main-svg').length >= n"
        page.wait_for_function(drawn, arg=boxes, timeout=120_000)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        other = "light" if scheme == "dark" else "dark"
        page.select_option("#theme", other)
        assert page.evaluate("document.documentElement.dataset.theme") == other
        paper = page.evaluate("getComputedStyle(document.querySelector('[data-figure] .main-svg')).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if other == "light" else "rgb(17, 24, 39)")
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert len([url for url in asked if url.startswith("file:")]) == 1
        assert said == []
    finally:
        context.close()


@pytest.mark.parametrize("kind", ["tight", "tuned"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(pages: dict[str, Path], browser: Any, kind: str, scheme: str, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    plain = tmp_path / "page.html"  # the checker is a script of its own, which the page's policy would keep out
    plain.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", pages[kind].read_text()))
    context = browser.new_context(color_scheme=scheme, offline=True)
    try:
        page = context.new_page()
        page.goto(plain.as_uri(), timeout=120_000)
        page.wait_for_selector("[data-figure] .main-svg", timeout=120_000)
        found = Axe().run(page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    finally:
        context.close()


def test_markup_escapes_whatever_is_not_markup() -> None:
    bad = "<img src=x onerror=alert(1)>\"'&"
    assert element("p", bad, class_=bad) == (
        '<p class="&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;">&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;</p>'
    )
    assert element("p", element("b", "x"), None, 5) == "<p><b>x</b>5</p>"
    assert isinstance(element("meta", charset="utf-8"), Html)
    table = data_table(("a", "b"), [(bad, 1)] * 501, "c")
    assert bad not in table and table.count("<tr>") == 501 and "the first 500 of 501" in table


def test_files_as_of_every_export(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    report = export_run_page("tight", Asked(to="html", out=str(out)), runs.path)
    assert report.figures["bytes"] == out.stat().st_size and report.run == runs.tight
    with pytest.raises(UsageError, match="--force"):
        export_run_page("tight", Asked(to="html", out=str(out)), runs.path)
    with pytest.raises(UsageError, match="there already"):
        export_tune_page(ANSWER, "", Asked(to="html", out=str(out)))
    with pytest.raises(UsageError, match="means nothing"):
        Asked(to="html", window="1s:2s")
    assert export_tune_page(ANSWER, "", Asked(to="html", out=str(out), force=True)).run is None


def test_a_tuner_that_recommends_nothing_has_a_page() -> None:
    document = {"schema": "tracekit.tune/1", "trace": "t", "traffic": ["x"], "profile": "p", "recommended": False,
                "no_search": "overload", "why": "overload", "trials": {"complete": 0, "pruned": 0, "failed": 0}}  # fmt: skip
    page = tune_page(document, "nothing")
    assert not page.drawings and "No search: overload. No change recommended." in page_html(page)
    assert len(page_html(page)) < 20_000
