"""What a browser loads: the smaller Plotly in place of the full one, and fixed files packed once, the same for whoever asks."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import dash
import plotly.offline
import pytest
from dash import Dash
from flask.testing import FlaskClient

import dashboards
from dashboards.access import Access
from dashboards.app import create_app
from dashboards.plotly_script import plotly_source
from dashboards.script_bundle import BUNDLE, GRID, LEFT_OUT, script_paths
from dashboards.scripts import PLOTLY

BUILD = Path(dashboards.__file__).parent / "plotly_build"
STUB = (BUILD.parent / "assets" / "grid.js").read_text(encoding="utf-8")
AS_BABEL_WROTE_IT = re.compile(
    r"regeneratorRuntime\.mark\(function (\w)\(\)\{return regeneratorRuntime\.wrap\(function\(\1\)\{for\(;;\)"
    r"switch\(\1\.prev=\1\.next\)\{case 0:return \1\.next=2,\w\(!0\);case 2:\w\.isReady=!0;case 3:case\"end\":"
    r"return \1\.stop\(\)\}\},\1\)\}\)"
)
PACKED = {"Accept-Encoding": "gzip"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Dash:
    return create_app(tmp_path_factory.mktemp("scripts") / "none.duckdb")


@pytest.fixture(scope="module")
def client(app: Dash) -> FlaskClient:
    return app.server.test_client()


def scripts_of(client: FlaskClient) -> list[str]:
    """Paths of what the index loads, and of Plotly."""
    found = re.findall(r'(?:src|href)="(/(?:_dash-component-suites|assets)/[^"]+)"', client.get("/").text)
    return [*found, PLOTLY]


def test_the_build_is_that_of_the_plotly_that_is_installed_with_its_licence() -> None:
    version = plotly.offline.get_plotlyjs_version()
    assert f"plotly.js (scatter, bar, heatmap - minified) v{version}\n" in plotly_source()[:200]
    assert json.loads((BUILD / "package.json").read_text(encoding="utf-8"))["dependencies"]["plotly.js"] == version
    licences = (BUILD / "LICENSE").read_text(encoding="utf-8")
    assert f"plotly.js {version}: MIT" in licences
    assert "Permission is hereby granted" in licences
    assert len(plotly_source()) < len(plotly.offline.get_plotlyjs()) / 4


def test_the_build_draws_every_kind_of_trace_that_figures_have() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(dashboards.__file__).parent.glob("**/*.py")]
    traces = re.compile(r'"type": "(scatter\w*|bar\w*|heat\w*|hist\w*|box|violin|pie|par\w*)"')
    kinds = {kind for text in sources for kind in traces.findall(text)}
    assert {"scatter", "bar", "heatmap"} <= kinds
    registered = set(re.findall(r'moduleType:"trace",name:"(\w+)"', plotly_source()))
    assert kinds <= registered


def test_fixed_files_are_packed_once_and_unpack_to_what_everybody_gets(client: FlaskClient) -> None:
    for path in scripts_of(client):
        plain = client.get(path)
        first, second = client.get(path, headers=PACKED), client.get(path, headers=PACKED)
        assert plain.status_code == first.status_code == second.status_code == 200, path
        if first.headers.get("Content-Encoding") != "gzip":
            assert len(first.data) < 500, path
            continue
        assert first.data == second.data, path
        assert gzip.decompress(first.data) == (plotly_source().encode() if path == PLOTLY else plain.data), path
        for name in ("Content-Type", "Cache-Control"):
            assert first.headers.get(name) == plain.headers.get(name), (path, name)
        again = client.get(path, headers={**PACKED, "If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b""), path


def test_what_is_not_there_is_not_kept_and_answers_of_pages_are_never(client: FlaskClient) -> None:
    for path in ("/assets/none.js", "/_dash-component-suites/dash/none.js"):
        assert [client.get(path, headers=PACKED).status_code for _ in range(2)] == [404, 404]
    assert client.get("/_dash-layout", headers=PACKED).headers["Cache-Control"] == "no-store"


def test_files_kept_for_some_are_refused_to_others(tmp_path: Path) -> None:
    token = "a-token-of-more-than-16"
    client = create_app(tmp_path / "none.duckdb", access=Access(token=token)).server.test_client(use_cookies=False)
    let_in = {**PACKED, "Authorization": f"Bearer {token}"}
    assert client.get("/", headers=let_in).status_code == 200
    assert client.get(PLOTLY, headers=let_in).status_code == 200
    assert client.get(PLOTLY, headers=PACKED).status_code == client.get(PLOTLY).status_code == 401
    assert client.get(PLOTLY, headers={**let_in, "Host": "elsewhere.example"}).status_code == 403


def test_what_every_page_asks_for_is_asked_for_before_the_large_scripts(client: FlaskClient) -> None:
    page = client.get("/verdict").text
    first = re.search(r'<script src="(/assets/early[^"]*)" data-ask="([^"]*)" data-scripts="([^"]*)" data-plain="([^"]*)">', page)
    assert first is not None
    assert first.start() == page.index("<script")
    for path in [first[1], *first[2].split(), *first[3].split(), *first[4].split()]:
        assert client.get(path, headers=PACKED).status_code == 200, path
    assert page.count("early.js") == 1
    assert "grid.js" not in page


def test_all_scripts_of_a_page_are_one_in_their_order_and_nothing_else(app: Dash, client: FlaskClient) -> None:
    """The grid's place is taken by what reads it when one is drawn; what only old browsers need, and old tables, are left out."""
    assert [path.split("?")[0] for path in scripts_of(client) if ".js" in path] == ["/assets/early.js", BUNDLE, PLOTLY]
    bundle = client.get(BUNDLE, headers=PACKED)
    assert bundle.headers["Cache-Control"].startswith("max-age=")
    text = gzip.decompress(bundle.data).decode()
    tags = app._generate_scripts_html()
    paths = re.findall(r'src="([^"?]+)', tags)
    assert [path for path in paths if path not in script_paths(tags)] == [path for path in paths if LEFT_OUT.search(path)] != []
    at = 0
    for path in script_paths(tags):
        source = STUB.replace("GRID_SCRIPT", f'"{path}"') if GRID.fullmatch(path) else client.get(path).text
        at = text.index(f"\n{source}\n;", at)
    (grid,) = filter(GRID.fullmatch, paths)
    assert len(client.get(grid).data) > 500_000


def test_of_the_polyfill_that_is_left_out_scripts_use_what_stands_in_for_it(client: FlaskClient) -> None:
    text = client.get(BUNDLE).text
    found = len(AS_BABEL_WROTE_IT.findall(text))
    assert text.count("regeneratorRuntime") == 2 * found > 0
    assert "regeneratorRuntime" in client.get("/assets/early.js").text
    folder = Path(dash.__file__).parent
    later = [path for path in folder.glob("dcc/async-*.js") if "regeneratorRuntime" in path.read_text(encoding="utf-8")]
    assert later == []
