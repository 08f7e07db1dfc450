"""What can be downloaded from the pages: the same bytes as `tracekit export`, by number and closed list, a line where not."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.page_studies import made_study, trial_row
from dashboards import downloads
from dashboards.access import Access
from dashboards.app import create_app
from dashboards.download_links import finding_links, menu_of, run_links, study_links
from dashboards.downloads import RUN_KINDS, STUDY_KINDS
from dashboards.pages import verdict
from dashboards.queries import RunBook
from dashboards.verdicts import cards_of, read_verdict
from tests.dashboards.browser import serving
from tests.dashboards.watched import Watched
from tracekit.exports.export import export
from tracekit.replay import replay
from tracekit.store import Store, sql

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
TOKEN = "correct-horse-battery-staple"
KEY = "0123456789abcdef"
POINT = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "order.by": "engine"}
ANSWER = {
    "schema": "tracekit.tune/1", "study": KEY, "trace": "made up", "traffic": ["made up"], "profile": "h100-llama-3.1-8b",
    "windows": {"search": [], "held": []}, "trials": {"complete": 1, "pruned": 0, "failed": 0, "reasons": {}},
    "recommended": True, "no_search": None, "why": "it is better", "flags": "--max-num-batched-tokens 2048",
    "sets": ["max_num_batched_tokens=2048"], "findings": [], "engine_version": "0.33.0", "block_size": 16,
    "changes": [{"knob": "max_num_batched_tokens", "old": 8192, "new": 2048, "derived": False}],
}  # fmt: skip


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run 1 under an SLO that it misses, run 2 with separate pools; a study with a change, and one without an answer."""
    path = tmp_path_factory.mktemp("downloads") / "t.duckdb"
    common: dict[str, Any] = {"limit": 80, "db": str(path), "engine": "sim"}
    replay(str(EXAMPLE), slo="ttft=500ms,tpot=50ms", sets=("max_num_seqs=4",), **common)
    replay(str(EXAMPLE), sets=("pd.prefill=1", "pd.decode=1"), **common)
    store, row = Store(path), trial_row(0, 1.0, POINT)
    made_study(store, [row], answer=ANSWER)
    made_study(store, [row], key="f" * 16)
    return path


@pytest.fixture(scope="module")
def client(db: Path) -> Any:
    return create_app(db).server.test_client()


def unpacked(answer: Any) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(answer.data)) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name) for name in packed.namelist()}


def test_tables_are_all_of_the_run_as_csv_and_as_parquet(client: Any, db: Path) -> None:
    csv, parquet = (unpacked(client.get(f"/export/run/1/{kind}")) for kind in ("csv", "parquet"))
    assert {name.partition(".")[0] for name in csv} == {name.partition(".")[0] for name in parquet} >= {"iterations", "outcomes"}
    for name, content in parquet.items():
        table = name.partition(".")[0]
        ((rows,),) = sql(Store(db), f"SELECT count(*) FROM {table} WHERE run = 1").rows
        frame = pl.read_parquet(io.BytesIO(content))
        assert frame.height == rows == csv[f"{table}.csv"].count(b"\n") - 1
        assert csv[f"{table}.csv"].partition(b"\n")[0].decode() == ",".join(frame.columns)


@pytest.mark.parametrize("kind", ["markdown", "vllm-args", "vllm-yaml", "sglang-args", "helm-values", "env"])
def test_texts_are_those_of_the_command(client: Any, db: Path, kind: str) -> None:
    answer = client.get(f"/export/run/1/{kind}")
    assert answer.status_code == 200
    assert answer.text == export("1", to=kind, db=db).text
    assert answer.headers["Content-Disposition"] == f'attachment; filename="run-1{RUN_KINDS[kind].suffix}"'


def test_the_trace_and_the_page(client: Any) -> None:
    events = json.loads(gzip.decompress(client.get("/export/run/1/perfetto").data))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) > 80
    page = client.get("/export/run/1/html", headers={"Accept-Encoding": "gzip"})
    assert page.headers["Content-Encoding"] == "gzip"
    text = gzip.decompress(page.data).decode()
    assert len(page.data) < 0.5 * len(text)
    assert "Run 1: demo_trace" in text and 'http-equiv="Content-Security-Policy"' in text


def test_separate_pools_have_flags_of_their_own(client: Any, db: Path) -> None:
    assert "--pool prefill or --pool decode" in client.get("/export/run/2/env").text
    for pool in ("prefill", "decode"):
        answer = client.get(f"/export/run/2/env?pool={pool}")
        assert (answer.status_code, f"{pool} engines" in answer.text) == (200, True)
        assert f"run-2-{pool}.env" in answer.headers["Content-Disposition"]
    book = RunBook(db)
    hrefs = [link.href for link in menu_of(book, book.recorded("2"))[1:]]
    assert "/export/run/2/env?pool=decode" in hrefs and "/export/run/2/env" not in hrefs


def test_every_link_of_a_page_leads_to_a_file(client: Any, db: Path) -> None:
    links = [*run_links(1), *study_links(KEY).children[1:]]
    assert len(links) == len(RUN_KINDS) + len(STUDY_KINDS)
    quick = [link.href for link in links if not link.href.endswith(("/html", "/perfetto", "/csv", "/parquet"))]
    assert {href: client.get(href).status_code for href in quick} == dict.fromkeys(quick, 200)
    (study,) = [link.href for link in links if link.href.endswith(f"{KEY}/html")]
    page = client.get(study).text
    assert "it is better" in page and "--max-num-batched-tokens 2048" in page
    said, body = verdict.render(RunBook(db), "?run=1", "light")
    text = json.dumps(body, default=lambda each: each.to_plotly_json())
    assert "/export/run/1/html" in text and "/export/run/1/helm-values?finding=" in text
    assert "menu" not in text and said
    assert "nothing is recorded" in str(menu_of(RunBook(db), None))


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("run/99/csv", 409, "no such run"),
        ("run/1/env?finding=NO_SUCH_THING", 409, "no recorded diagnosis"),
        ("run/1/env?finding=' OR 1=1", 409, "no recorded diagnosis"),
        ("run/1/env?pool=prefill", 409, "no separate pools"),
        ("run/1/env?pool=../x", 404, ""),
        (f"study/{KEY[:8]}/env", 409, "expected its whole key"),
        ("study/9999/env", 409, "no such study"),
        (f"study/{'f' * 16}/env", 409, "has no answer yet; its search is finished"),
        ("study/*/env", 409, "no such study"),
    ],
)
def test_what_cannot_be_had_says_why_in_a_line(client: Any, path: str, code: int, says: str) -> None:
    answer = client.get(f"/export/{path}")
    assert answer.status_code == code
    assert says in answer.text
    assert code == 404 or answer.text.count("\n") == 1


@pytest.mark.parametrize("path", ["run/-1/csv", "run/1.0/csv", "run/1/exe", f"run/{'9' * 40}/csv", "run/last/csv", "run/../1/csv",
                                  "study/..%2f..%2fetc/env", "study/a/../../csv", "run/1/csv/../../x"])  # fmt: skip
def test_nothing_else_is_an_export(client: Any, path: str) -> None:
    answer = client.get(f"/export/{path}")
    assert "Content-Disposition" not in answer.headers  # the app's own page, which says that there is no such one


def test_one_of_a_kind_at_a_time(client: Any, db: Path) -> None:
    with downloads._alone(RunBook(db), "env"):
        busy = client.get("/export/run/1/env")
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")
        assert "another env is being made" in busy.text
        assert client.get("/export/run/1/vllm-yaml").status_code == 200
    assert client.get("/export/run/1/env").status_code == 200
    assert not list(downloads._place().glob("making-*"))


def test_reading_is_allowed_where_nothing_can_be_started_and_to_nobody_else(db: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in db.parent.rglob("*"))
    reading = create_app(db, access=Access(read_only=True)).server.test_client()
    assert reading.get("/export/run/1/csv").status_code == 200
    assert reading.get("/export/run/1/csv", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert sorted((path, path.stat().st_mtime_ns) for path in db.parent.rglob("*")) == before
    guarded = create_app(db, access=Access(host="0.0.0.0", token=TOKEN)).server.test_client()
    for path in ("/export/run/1/csv", f"/export/study/{KEY}/env"):
        assert guarded.get(path).status_code == 401
        assert guarded.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_an_answer_without_a_change_has_a_page_and_no_flags(store: Store) -> None:
    made_study(store, [trial_row(0, 1.0, POINT)], answer={**ANSWER, "recommended": False, "no_search": "overload", "changes": [],
                                                          "why": "overload", "sets": [], "flags": ""})  # fmt: skip
    plain = create_app(store.path).server.test_client()
    assert plain.get(f"/export/study/{KEY}/html").status_code == 200
    assert "recommends no change: overload" in plain.get(f"/export/study/{KEY}/vllm-args").text


def test_a_page_that_cannot_be_made_says_why(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def broken(words: list[str], **more: Any) -> Any:
        return real([*words, "--no-such-option"], **more)

    monkeypatch.setattr(downloads.subprocess, "run", broken)
    answer = client.get(f"/export/study/{KEY}/html")
    assert (answer.status_code, "no-such-option" in answer.text) == (409, True)


def test_the_menu_downloads_and_says_what_it_cannot(db: Path, watch: Callable[..., Watched], tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    findings = [card.id for card in cards_of(read_verdict(RunBook(db), "1").document)]
    assert findings and finding_links(1, findings[0])
    with serving(db) as url:
        shown = watch(url, accept_downloads=True)
        page = shown.open("verdict?run=1").page
        page.wait_for_selector("#vd-said:not(:empty)")
        page.wait_for_selector("#export-menu a", state="attached")
        page.locator(".export-menu > summary").focus()
        page.keyboard.press("Enter")
        with page.expect_download() as got:
            page.locator("#export-menu").get_by_role("link", name="Markdown").click()
        got.value.save_as(tmp_path / "got.md")
        assert got.value.suggested_filename == "run-1.md"
        assert (tmp_path / "got.md").read_text().startswith("## Run 1: demo\\_trace")
        shown.until("exported", "run-1.md is downloaded")
        for each in Axe().run(page, {"include": [[".chip-row"]]}).response["violations"]:
            assert each["impact"] not in ("serious", "critical"), each
        page.keyboard.press("Escape")
        assert page.locator(".export-menu").get_attribute("open") is None
        page.get_by_text("Its change as a file").first.click()
        page.locator(".finding").get_by_role("link", name="Helm values").first.click()
        shown.until("exported", "no recorded diagnosis; tracekit diagnose 1 makes one")
        assert any("409" in each for each in shown.wrong)
        shown.wrong.clear()
        page.set_viewport_size({"width": 390, "height": 800})
        page.locator(".export-menu > summary").click()
        box = page.locator("#export-menu").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
