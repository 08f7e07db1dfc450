"""The What-if page: its form against the command's words, its rows against the answer's document, and asked in a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards import work
from dashboards.ordering import profiles_options
from dashboards.pages import what_if
from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from dashboards.what_if_figures import cost_figure, curve_figure, needs_figure
from dashboards.what_if_form import scenario_of, words_of
from dashboards.what_if_rows import changes_of, costs_of, describe_needs, extrapolated_of, knees_of, needs_of, verdict_of
from replay_engine.profile import load_profile
from tests.dashboards.browser import serving
from tests.dashboards.watched import Watched
from tracekit import jobs
from tracekit.capacities import load_capacity
from tracekit.capacity_orders import CapacityOrder, capacity_words, hardware_known
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.orders import ConfigError
from tracekit.replay import replay
from tracekit.store import Store
from tuner import capacity

OVER = """() => [...document.querySelectorAll('main *')].filter(each => !each.closest('.wide, .js-plotly-plot, .dash-dropdown')
    && each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 80))"""
PAPER = """paper => [...document.querySelectorAll('main .js-plotly-plot')].every(each => each._fullLayout
    && each._fullLayout.paper_bgcolor === paper)"""
SCENARIOS = ["isl_scale=2 hardware=h200", "kv_scale=0.5 mix=chat:1.5,batch:0 slo=ttft=50ms",
             "fleet.replicas=2 fleet.router=least_tokens rate_scale=2"]  # fmt: skip


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RunBook:
    """Run 1 of a short trace, under an SLO; an answer about it with a scenario of each kind, one of them hopeless."""
    folder = tmp_path_factory.mktemp("what_if")
    trace = folder / "short.jsonl"
    assert main(["synth", str(trace), "--requests", "80", "--arrival", "poisson:rate=8", "--input", "600", "--output",
                 "uniform:10,40", "--seed", "2"]) == 0  # fmt: skip
    rows = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    classes = [{**row, "class": "chat" if at % 4 else "batch"} for at, row in enumerate(rows)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in classes), encoding="utf-8")
    (folder / "ours.toml").write_text(replace(load_profile("h100"), name="ours").to_toml(), encoding="utf-8")
    (folder / "policy.toml").write_text("[scheduler]\nmax_num_seqs = 4\n", encoding="utf-8")
    db = folder / "t.duckdb"
    replay(str(trace), db=str(db), engine="sim", slo="ttft=500ms", sets=("max_num_seqs=8",))
    capacity("short", db=db, slo="ttft=500ms", sets=("max_num_seqs=8",), windows=2, length="4s", what_if=SCENARIOS,
             price_per_hour=2.0)  # fmt: skip
    return RunBook(db)


@pytest.fixture(scope="module")
def document(book: RunBook) -> dict[str, Any]:
    return load_capacity(book.store, "last")


def text_of(body: Any) -> str:
    return json.dumps(body, default=lambda each: each.to_plotly_json())


def test_rows_are_the_document_s(document: dict[str, Any]) -> None:
    knees, needs = knees_of(document), needs_of(document)
    rows = [document, *document["what_if"]]
    assert [each.name for each in knees] == ["as it is", *SCENARIOS] == [each.name for each in needs]
    for knee, need, row in zip(knees, needs, rows, strict=True):
        assert (knee.factor, knee.per_s, knee.now, knee.rate) == (
            row["factor"], row["requests_per_s"], row["attainment_now"], row["rate_scale"],
        )  # fmt: skip
        assert [point.attainment for point in knee.points] == [point["attainment"] for point in row["points"]]
        if need.reason is None:
            assert ([slot.ideal for slot in need.slots], need.replayed) == (row["replicas"]["bound"], row["replicas"]["replayed"])
            assert [fleet for _, _, fleet in need.windows] == row["replicas"]["replayed_by_window"]
            assert f"{need.mean:.2f} replicas on average and {need.peak} at the peak" in describe_needs(need)
    assert knees[3].rate == 2.0 and knees[3].over == document["what_if"][2]["over_current"]
    costs = costs_of(document)
    assert [each.output for each in costs] == [each["per_million_output"] for row in rows for each in row["cost"]["rows"]]
    assert f"x{document['factor']:.3g} of today's rate" in verdict_of(document)
    told = text_of(document["what_if"][1]["notes"])
    assert "mix: chat 73.3 % -> 100.0 %, batch 26.7 % -> 0.0 % of the requests, 1.1 times" in told
    assert dict(changes_of(document))[SCENARIOS[1]].startswith("90 % attain their SLO at no rate") == (not knees[2].factor)


def test_extrapolations_are_told_once_each_and_drawn_hollow(document: dict[str, Any]) -> None:
    found = [each for each in extrapolated_of(document) if each.name == SCENARIOS[0]]
    assert any(each.all and "hardware by arithmetic" in each.why for each in found)
    assert not [each for each in extrapolated_of(document) if each.name == "as it is" and each.all]
    said = "{} % of the engine's time has more or fewer decoding sequences (up to {}) than the profile was fitted for"
    why: tuple[list[str], ...] = ([], [said.format(5, 150)], [said.format(9, 170)])
    points = [{**point, "extrapolation": each} for point, each in zip(document["points"][:3], why, strict=True)]
    inside = {**document, "points": points, "what_if": []}
    (one,) = extrapolated_of(inside)
    assert (one.all, len(one.factors), one.why[:3]) == (False, 2, "9 %")
    (line, *_) = curve_figure(knees_of(inside), 0.9, LIGHT)["data"]
    assert line["marker"]["symbol"] == ["circle", "circle-open", "circle-open"]
    (unknown,) = extrapolated_of({**document, "range_known": False, "points": [], "what_if": []})
    assert "states no range" in unknown.why


def test_figures_draw_the_rows(document: dict[str, Any]) -> None:
    knees, needs, costs = knees_of(document), needs_of(document), costs_of(document)
    for theme in (LIGHT, DARK):
        figure = curve_figure(knees, document["target"], theme)
        lines = [trace for trace in figure["data"] if trace["mode"] == "lines+markers"]
        assert [trace["y"] for trace in lines] == [[100 * point.attainment for point in knee.points] for knee in knees]
        assert len({(trace["line"]["dash"], trace["line"]["color"]) for trace in lines}) == len(lines)
        stars = [trace for trace in figure["data"] if trace["mode"] == "markers"]
        assert [trace["x"][0] for trace in stars] == [knee.per_s for knee in knees if knee.factor]
        assert figure["layout"]["shapes"][0]["y0"] == 100 * document["target"]
        ideal, replayed = needs_figure(needs[0], theme)["data"]
        assert [y for y in ideal["y"] if y is not None][::2] == [slot.ideal for slot in needs[0].slots]
        assert ideal["y"].count(None) == replayed["y"].count(None) == 1  # between the two windows nothing was replayed
        bars = cost_figure(costs, theme)["data"]
        assert sum(y is not None for bar in bars for y in bar["y"]) == sum(each.output is not None for each in costs)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page(book: RunBook, document: dict[str, Any], theme: str) -> None:
    options, value, said, error, bar, cancel, resume, body, mark = what_if.render(book, "", theme)
    assert value == document["capacity"] == options[0]["value"] and said == verdict_of(document) and error == ""
    assert bar is None and cancel == resume == what_if.HIDDEN
    text = text_of(body)
    assert "NaN" not in text and all(f'"{name}"' in text for name in ("wi-curve", "wi-needs-0", "wi-cost"))
    assert "Extrapolation:" in text and SCENARIOS[0] in text
    again = what_if.render(book, f"?cap={document['capacity'][:6]}", theme, mark)
    assert again[1] == value and again[7] is again[8] is what_if.no_update
    by_job = what_if.render(book, f"?cap={document['job']}", theme)
    assert by_job[8] == mark
    assert "no such answer" in what_if.render(book, "?cap=ffff", theme)[3]
    assert "no such answer" in what_if.render(book, "?cap=-_-", theme)[3]


def test_nothing_asked_yet(store: Store) -> None:
    found = what_if.render(RunBook(store.path), "", "light")
    assert found[2].startswith("Nothing has been asked yet") and found[7] is None
    assert what_if.choices(RunBook(store.path), "last") == ([], None, "")


def test_the_form_becomes_the_command(book: RunBook) -> None:
    listed, first, _ = what_if.choices(book, "1")
    assert first == "run:1" and listed[0]["label"] == "run 1 of short"
    form = {"trace": "run:1", "target": "95%", "windows": "3", "price": "2.5", "rate": "2", "isl": "1.5", "osl": "0.5",
            "burst": "0", "mix": "chat:2, batch:0.5", "replicas": "3", "kv": "2", "tp": "2", "hardware": "hardware=h20",
            "new-slo": "ttft=1s, tpot=50ms", "new-price": "1",
            "more": "kv_cache_dtype=fp8\nlose=1", "others": "rate_scale=3\n\nlose=1 fleet.replicas=2"}  # fmt: skip
    words = words_of(book, form)
    one = ("rate_scale=2 isl_scale=1.5 osl_scale=0.5 burst_scale=0 fleet.replicas=3 mix=chat:2,batch:0.5 kv_scale=2"
           " tensor_parallel=2 fleet.router=least_tokens hardware=h20 slo=ttft=1s,tpot=50ms price_per_hour=1"
           " kv_cache_dtype=fp8 lose=1")  # fmt: skip
    assert scenario_of(form) == one
    assert [word for word in words if word.startswith("--what-if=")] == [
        f"--what-if={one}", "--what-if=rate_scale=3", "--what-if=lose=1 fleet.replicas=2",
    ]  # fmt: skip
    assert {"--slo=ttft=500ms", "--target=0.95", "--windows=3", "--price-per-hour=2.5"} <= set(words)
    assert "max_num_seqs = 8" in next(word for word in words if word.startswith("--policy="))
    own = words_of(book, {"trace": "run:1", "slo": "ttft=9s", "policy": "vllm serve m --max-num-seqs 9"})
    assert [word for word in own if word.startswith(("--slo", "--policy"))] == [
        "--policy=vllm serve m --max-num-seqs 9", "--slo=ttft=9s",
    ]  # fmt: skip
    assert words[-2:] == ["--", "short"] == own[-2:]


def test_a_fitted_profile_beside_the_database_is_offered_and_named_by_its_digest(book: RunBook) -> None:
    beside = book.store.path.parent / "ours.toml"
    (ours,) = [each for each in profiles_options(book) if each["label"] == "ours.toml"]
    assert "profile ours (" in ours["title"] and not [each for each in profiles_options(book) if each["label"] == "policy.toml"]
    assert (f"profile={ours['value']}", f"ours.toml: {ours['title']}") in hardware_known(book.store)
    words = words_of(book, {"trace": "run:1", "profile": ours["value"], "others": f"rate_scale=2 profile={ours['value']}"})
    assert {f"--profile={beside}", f"--what-if=rate_scale=2 profile={beside}"} <= set(words)
    assert what_if.kinds_of(book, "run:1") == what_if.kinds_of(book, "trace:short") == ("chat", "batch")
    assert what_if.kinds_of(book, "trace:other") == what_if.kinds_of(book, None) == what_if.kinds_of(book, "run:x") == ()


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"trace": ""}, "no trace"),
        ({"trace": "trace:/etc/passwd"}, "no such trace"),
        ({"trace": "upload:x"}, "expected a loaded trace or a recorded run"),
        ({"trace": "run:7"}, "no such run"),
        ({"trace": "run:-1"}, "expected a loaded trace or a recorded run"),
        ({"trace": "trace:short"}, "no SLO"),
        ({"trace": "trace:short", "slo": "fast"}, "slo"),
        ({"trace": "run:1", "profile": "/etc/passwd"}, "expected one of"),
        ({"trace": "run:1", "profile": "file:../../etc/passwd"}, "not there any more"),
        ({"trace": "run:1", "others": "profile=/etc/passwd"}, "expected one of"),
        ({"trace": "run:1", "more": "profile=file:0123"}, "not there any more"),
        ({"trace": "run:1", "policy": "/etc/passwd"}, "expected TOML"),
        ({"trace": "run:1", "policy": "[scheduler]\nmax_seqs = 4"}, "max_seqs"),
        ({"trace": "run:1", "target": "110%"}, "expected a share"),
        ({"trace": "run:1", "windows": "0"}, "from 1 to 24"),
        ({"trace": "run:1", "price": "free"}, "expected a number"),
        ({"trace": "run:1", "price": "-1"}, "above 0"),
        ({"trace": "run:1", "others": "--db=/tmp/x"}, "expected NAME=VALUE"),
        ({"trace": "run:1", "others": "\n".join(f"rate_scale={n}" for n in range(2, 12))}, "at most 8"),
    ],
)
def test_what_cannot_be_asked_says_why_and_starts_nothing(book: RunBook, form: dict[str, str], says: str) -> None:
    before = len(jobs.list_jobs(book.store.folder))
    said, job = what_if.begin(book, form)
    assert said.startswith("Not started: ") and says.lower() in said.lower() and job is None
    assert what_if.command_line(book, form).startswith("Not yet: ") or not form["trace"]
    assert len(jobs.list_jobs(book.store.folder)) == before


TEXT = st.text(max_size=30)


@given(st.builds(CapacityOrder, trace=TEXT, policy=TEXT, sets=st.tuples(TEXT), slo=TEXT, target=TEXT, windows=TEXT, price=TEXT,
                 what_if=st.tuples(TEXT)))  # fmt: skip
def test_nothing_in_a_form_becomes_an_option_of_its_own(order: CapacityOrder) -> None:
    try:
        words = capacity_words(order, Store(Path("/x/t.duckdb")))
    except (UsageError, ConfigError):
        return
    assert words[0] == "capacity" and words[-2:] == ["--", order.trace]
    names = ("profile", "policy", "slo", "set", "target", "windows", "price-per-hour", "what-if", "db")
    assert {word.partition("=")[0] for word in words[1:-2]} <= {f"--{name}" for name in names}
    assert [word for word in words if word.startswith("--db=")] == ["--db=/x/t.duckdb"]


def test_a_read_only_dashboard_asks_nothing(book: RunBook) -> None:
    reading = RunBook(book.store.path, read_only=True)
    said, job = what_if.begin(reading, {"trace": "run:1"})
    assert "this dashboard is read-only; from the shell: tracekit capacity" in said and job is None
    assert what_if.render(reading, "", "light")[1] is not None


def test_a_question_that_fails_or_is_stopped_says_so(book: RunBook) -> None:
    job = work.start_job(book, "capacity", words_of(book, {"trace": "run:1", "others": "no_knob=1"}))
    end = time.monotonic() + 120
    while jobs.show(book.store.folder, job).state in work.UNDER_WAY and time.monotonic() < end:
        time.sleep(0.05)
    failed = what_if.render(book, f"?cap={job}", "light")
    assert "no_knob" in failed[3] and failed[5] == what_if.HIDDEN and failed[6] == {}
    (row,) = [row for row in work.list_work(book) if row.id == job]
    assert row.look == f"/what-if?cap={job}"
    stopped = jobs.Job.create(book.store.folder, "capacity", {"who": "ui", "argv": ["x"]})
    jobs.cancel(book.store.folder, stopped.id)
    assert "was stopped: what it has replayed is kept" in what_if.render(book, f"?cap={stopped.id}", "light")[3]


def test_asked_in_a_browser_from_a_run_and_answered(book: RunBook, watch: Callable[..., Watched]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with serving(book.store.path) as url:
        shown = watch(url)
        page = shown.open("runs").page
        page.get_by_role("link", name="What if …").first.click()
        page.wait_for_function("() => /run 1 of short/.test(document.getElementById('wi-trace')?.textContent)")
        page.get_by_label("Arrival rate, x").fill("1.5")
        page.get_by_label("Windows of the trace").fill("1")
        page.get_by_label("Price per card-hour").fill("2")
        shown.until("wi-command", "(?=.*--what-if=rate_scale=1.5)(?=.*--windows=1 )(?=.*--price-per-hour=2[.]0 )")
        page.get_by_role("button", name="Find out").click()
        page.wait_for_function("() => /cap=\\d{8}-/.test(location.search)")
        shown.until("wi-body", "rate_scale=1.5")  # until then the page shows the answer that was there before
        shown.until("wi-said", "^As it is, ")
        page.wait_for_selector("#wi-curve .main-svg")
        answered = shown.text("wi-said")
        page.reload()
        assert shown.until("wi-said", "^As it is, ") == answered
        page.wait_for_selector("#wi-cost .main-svg")
        page.locator("#wi-body summary").first.click()
        page.wait_for_function("() => document.querySelectorAll('#wi-body .told table tbody tr').length > 5")
        for theme, look in (("light", LIGHT), ("dark", DARK)):
            page.emulate_media(color_scheme=theme)
            page.wait_for_function("t => document.documentElement.dataset.theme === t", arg=theme)
            page.wait_for_function(PAPER, arg=look.paper)  # the figures of this theme come from the server
            for each in Axe().run(page, {"include": [["main"]]}).response["violations"]:
                assert each["impact"] not in ("serious", "critical"), each
        page.set_viewport_size({"width": 390, "height": 800})
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
        page.evaluate("() => { document.querySelector('#wi-ask').open = true; }")
        page.evaluate("() => document.querySelectorAll('main p').forEach(each => each.append('/a-long-path'.repeat(30)))")
        page.wait_for_function(f"() => document.querySelector('#wi-ask').open && !({OVER})().length")
