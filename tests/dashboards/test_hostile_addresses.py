"""Whatever an address says: every callback of every page answers, none of its text gets into SQL or into the name of a file,
and nothing on the disk changes."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import address
from dashboards.app import create_app
from tracekit.replay import replay
from tracekit.store import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
MARK = "q7zk"
"""Stands in every text below, so that it is known again wherever it turns up."""
TEXTS = (
    f"{MARK}' OR '1'='1", f"{MARK}'; DROP TABLE runs; --", f'{MARK}"); COPY runs TO \'/tmp/{MARK}.csv\'; --',
    f"1 UNION SELECT '{MARK}'",
    f"../../../../etc/{MARK}", f"/etc/passwd%00{MARK}", f"..%2f..%2f{MARK}", f"{MARK}\x00", f"{MARK}\r\nSet-Cookie: a=b",
    f"$(touch {MARK})",
    f"{{{{{MARK}}}}}", f"<script>{MARK}</script>", f"%s%n{MARK}", f"read_csv('/etc/{MARK}')", "é" * 300 + MARK, MARK * 500,
)  # fmt: skip
NUMBERS = (
    "-1", "0", "1", "99999", "1e308", "nan", "inf", "-0", "9" * 400, "0x10", "\uff11", "1-2", "2-1",
    "0-999999999", "1,2,3", ",", "", "true",
)  # fmt: skip
KEYS = (*address._KEYS, "unknown", "")
PARTS = st.tuples(st.sampled_from(KEYS), st.one_of(st.sampled_from(TEXTS + NUMBERS), st.text(max_size=20)))


class Spied:
    """A connection that notes every statement."""

    def __init__(self, connection: Any, statements: list[str]) -> None:
        self._connection = connection
        self._statements = statements

    def execute(self, query: Any, *more: Any, **names: Any) -> Any:
        self._statements.append(str(query))
        return self._connection.execute(query, *more, **names)

    def sql(self, query: Any, *more: Any, **names: Any) -> Any:
        self._statements.append(str(query))
        return self._connection.sql(query, *more, **names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Server:
    """The app over a real database; what it ran and what it opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        common: dict[str, Any] = {"db": str(folder / "t.duckdb"), "engine": "sim", "sets": ("max_num_seqs=4",)}
        replay(str(EXAMPLE), limit=60, slo="ttft=500ms", name="first", **common)
        replay(str(EXAMPLE), limit=60, **common)
        self.client = create_app(folder / "t.duckdb").server.test_client()
        known = self.client.get("/_dash-dependencies").json
        self.callbacks = [each for each in known if not each.get("clientside_function") and _reads_the_address(each)]
        self.statements: list[str] = []
        self.opened: list[str] = []

    def ask(self, callback: dict[str, Any], search: str) -> Any:
        values = {"url.search": search, "theme.data": "light", "drawn.data": {}}
        triggers = [f"{each['id']}.{each['property']}" for each in callback["inputs"]]
        body = {
            "output": callback["output"],
            "outputs": _outputs(callback["output"]),
            "inputs": [{**each, "value": values.get(f"{each['id']}.{each['property']}")} for each in callback["inputs"]],
            "state": [{**each, "value": values.get(f"{each['id']}.{each['property']}")} for each in callback["state"]],
            "changedPropIds": [name for name in triggers if name == "url.search"] or triggers[:1],
        }
        return self.client.post("/_dash-update-component", json=body)

    def on_disk(self) -> dict[str, str]:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _reads_the_address(callback: dict[str, Any]) -> bool:
    plain = all(isinstance(each["id"], str) and "{" not in each["id"] for each in callback["inputs"] + callback["state"])
    return plain and any((each["id"], each["property"]) == ("url", "search") for each in callback["inputs"] + callback["state"])


def _outputs(output: str) -> Any:
    if not output.startswith(".."):
        name, prop = output.rsplit(".", 1)
        return {"id": name, "property": prop.partition("@")[0]}
    names = [each.rsplit(".", 1) for each in output.strip(".").split("...")]
    return [{"id": name, "property": prop.partition("@")[0]} for name, prop in names]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("hostile"))
    plain, watching = Store.read, True

    @contextlib.contextmanager
    def spied(store: Store) -> Iterator[Any]:
        with plain(store) as connection:
            yield Spied(connection, found.statements)

    def opened(event: str, details: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.remove", "os.mkdir", "os.rename", "subprocess.Popen", "os.system"):
            found.opened.append(repr(details[0]))

    sys.addaudithook(opened)
    Store.read = spied  # type: ignore[method-assign]
    yield found
    Store.read = plain  # type: ignore[method-assign]
    watching = False


def test_the_spies_see_what_is_asked(server: Server) -> None:
    """Else the test below could not fail."""
    assert len(server.callbacks) >= 9
    for callback in server.callbacks:
        server.ask(callback, "?run=2")
    assert any("FROM runs" in statement for statement in server.statements)
    assert any("t.duckdb" in path for path in server.opened)


@settings(max_examples=25, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=6), st.sampled_from(["?run=1&", "?run=last&", "?", ""]), st.integers(0, 1 << 16))
def test_no_address_gets_into_a_statement_or_a_path(server: Server, parts: list[tuple[str, str]], first: str, turn: int) -> None:
    search = first + "&".join(f"{key}={value}" for key, value in parts)
    server.statements.clear()
    server.opened.clear()
    before = server.on_disk()
    for callback in server.callbacks[turn % 3 :: 3]:
        answer = server.ask(callback, search)
        assert answer.status_code in (200, 204), (callback["output"], search, answer.text[:300])
    assert not [statement for statement in server.statements if MARK in statement]
    assert not [path for path in server.opened if MARK in path]
    assert server.on_disk() == before


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.sampled_from(["/", "/verdict/", "/assets/", "/assets/../", "/_dash-component-suites/dash/", "/health/"]),
)
def test_no_path_leads_out_of_the_app(server: Server, text: str, before: str) -> None:
    server.opened.clear()
    answer = server.client.get(before + text)
    assert answer.status_code in (200, 301, 302, 308, 400, 403, 404, 405), (before, text)
    outside = [path for path in server.opened if MARK in path and "assets" not in path]
    assert not outside
    assert b"root:" not in answer.data
