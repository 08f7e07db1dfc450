"""Who is answered, and what an answer carries: names, token, session, forged requests, headers, health, logs."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.access import SHORTEST_TOKEN, Access, is_loopback, settle_access
from dashboards.app import create_app
from dashboards.from_environment import access_from_environment
from tests.dashboards.runs import recorded
from tracekit.errors import UsageError
from tracekit.store import Store

TOKEN = "correct-horse-battery-staple"
HTML = {"Accept": "text/html,*/*"}


def client_of(store: Store, **access: Any) -> Any:
    return create_app(store.path, access=Access(**access)).server.test_client()


def bare(store: Store, token: str) -> Any:
    """A client that keeps no cookies: the test sends them."""
    return create_app(store.path, access=Access(host="0.0.0.0", token=token)).server.test_client(use_cookies=False)


@pytest.fixture
def guarded(store: Store) -> Any:
    recorded(store, "secret-name", 30)
    return client_of(store, host="0.0.0.0", token=TOKEN, names=("trace.example",))


def test_without_a_token_other_names_and_other_machines_are_refused(store: Store) -> None:
    local = client_of(store)
    for host in (
        "localhost:8050",
        "127.0.0.1",
        "[::1]:8050",
        "LOCALHOST",
        "evil.example",
        "10.0.0.7:80",
        "localhost.evil.example",
    ):
        code = local.get("/", headers={"Host": host}).status_code
        assert code == (200 if is_loopback(host.rsplit(":80", 1)[0]) else 403), host
    for other in ("10.0.0.9", "2001:db8::1"):
        assert local.get("/", environ_overrides={"REMOTE_ADDR": other}).status_code == 403
    assert local.get("/", headers={"X-Forwarded-For": "10.0.0.9"}).status_code == 403


def test_with_a_token_addresses_and_known_names_are_answered(guarded: Any) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for host, code in {"10.0.0.7:80": 200, "[2001:db8::1]:80": 200, "trace.example": 200, "Trace.Example:80": 200,
                       "evil.example": 403, "trace.example.evil.example": 403}.items():  # fmt: skip
        assert guarded.get("/", headers={"Host": host, **bearer}).status_code == code, host


def test_nothing_is_read_without_the_token(guarded: Any) -> None:
    rules = [rule for rule in guarded.application.url_map.iter_rules() if "<" not in rule.rule]
    assert len(rules) > 6
    for rule in rules:
        if rule.rule in ("/health", "/sign-in"):
            continue
        method = "POST" if "POST" in rule.methods else "GET"
        for headers in (
            {},
            {"Authorization": "Bearer " + TOKEN[:-1]},
            {"Authorization": "Basic " + TOKEN},
            {"Cookie": "tracekit=1"},
        ):
            answer = guarded.open(rule.rule, method=method, headers=headers)
            assert answer.status_code == 401, rule.rule
            assert b"secret-name" not in answer.data
    assert guarded.get("/assets/style.css").status_code == 401
    assert guarded.get("/_dash-layout", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_form_gives_a_session_that_scripts_cannot_read(guarded: Any) -> None:
    asked = guarded.get("/verdict?run=1&cls=a", headers=HTML)
    assert asked.status_code == 401
    assert 'name="next" value="/verdict?run=1&amp;cls=a"' in asked.text
    wrong = guarded.post("/sign-in", data={"token": TOKEN + "x", "next": "/"}, headers=HTML)
    assert (wrong.status_code, "Set-Cookie" in wrong.headers) == (401, False)
    assert "not the token" in wrong.text
    assert TOKEN not in wrong.text
    right = guarded.post("/sign-in", data={"token": TOKEN, "next": "/verdict?run=1&cls=a"}, headers=HTML)
    assert (right.status_code, right.headers["Location"]) == (303, "/verdict?run=1&cls=a")
    cookie = right.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert guarded.get("/verdict", headers=HTML).status_code == 200
    assert guarded.post("/sign-out").status_code == 303
    assert guarded.get("/verdict", headers=HTML).status_code == 401


def test_a_token_in_the_address_goes_out_of_it_at_once(guarded: Any) -> None:
    answer = guarded.get(f"/verdict?run=1&token={TOKEN}&t=1-2", headers=HTML)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/verdict?run=1&t=1-2")
    assert guarded.get("/verdict?run=1&t=1-2", headers=HTML).status_code == 200
    stranger = guarded.application.test_client()
    assert stranger.get("/verdict?token=wrong", headers=HTML).headers["Location"] == "/verdict"
    assert stranger.get("/verdict", headers=HTML).status_code == 401


def test_a_session_holds_with_every_worker_and_only_with_its_token(store: Store) -> None:
    first, second, other = (bare(store, token) for token in (TOKEN, TOKEN, TOKEN + "2"))
    name, value = first.post("/sign-in", data={"token": TOKEN}).headers["Set-Cookie"].split(";")[0].split("=", 1)
    assert second.get("/", headers={"Cookie": f"{name}={value}"}).status_code == 200
    assert other.get("/", headers={"Cookie": f"{name}={value}"}).status_code == 401
    theirs = Access(host="0.0.0.0", token=TOKEN + "2").cookie
    assert other.get("/", headers={"Cookie": f"{theirs}={value}"}).status_code == 401
    end, nonce, signature = value.split(".")
    for forged in (
        f"{int(end) + 9}.{nonce}.{signature}",
        f"{end}.{nonce}.",
        f"{end}.{nonce}",
        f"{end}.{nonce}.{signature[:-1]}0x",
        "",
    ):
        assert second.get("/", headers={"Cookie": f"{name}={forged}"}).status_code == 401, forged


def test_a_session_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.access.SESSION_S", -1)
    access = Access(host="0.0.0.0", token=TOKEN)
    client = bare(store, TOKEN)
    assert client.get("/", headers={"Cookie": f"{access.cookie}={access.new_session()}"}).status_code == 401


@given(st.text(max_size=60))
def test_no_sign_in_leads_elsewhere(there: str) -> None:
    server = SERVERS.setdefault("one", create_app("absent.duckdb", access=Access(host="0.0.0.0", token=TOKEN)).server)
    for path in (there, "/" + there, "//" + there, "https://" + there, "/\\" + there):
        answer = server.test_client().post("/sign-in", data={"token": TOKEN, "next": path})
        assert answer.status_code == 303
        location = answer.headers["Location"]
        assert location.startswith("/") and not location.startswith(("//", "/\\")), location


SERVERS: dict[str, Any] = {}


def test_a_link_on_another_site_is_asked_for_once_more_from_here(guarded: Any) -> None:
    """A strict cookie does not come with it; it does when our own page asks."""
    signed = guarded.post("/sign-in", data={"token": TOKEN})
    assert signed.status_code == 303
    stranger = guarded.application.test_client()
    first = stranger.get("/verdict?run=1&f=X", headers={**HTML, "Sec-Fetch-Site": "cross-site"})
    assert first.status_code == 200
    assert 'content="0; url=/verdict?run=1&amp;f=X"' in first.text
    assert "secret-name" not in first.text
    assert stranger.get("/verdict?run=1&f=X", headers={**HTML, "Sec-Fetch-Site": "same-origin"}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_what_another_site_makes_a_browser_send_is_refused(store: Store, headers: dict[str, str], code: int) -> None:
    client = client_of(store)
    body = {
        "output": "page.children", "outputs": {"id": "page", "property": "children"}, "changedPropIds": [],
        "inputs": [{"id": "url", "property": "pathname", "value": "/runs"}], "state": [],
    }  # fmt: skip
    assert client.post("/_dash-update-component", json=body, headers=headers).status_code == code


NOBODY = {"output": "no.such", "outputs": {}, "inputs": [], "changedPropIds": []}


@pytest.mark.parametrize("body", [{}, [], None, 3, "x", {"output": "page.children"}, NOBODY])
def test_what_no_page_asks_is_refused_as_such(store: Store, body: object) -> None:
    """A scanner's request is no fault of ours: nothing for the log, nothing to be woken for."""
    answer = client_of(store).post("/_dash-update-component", json=body)
    assert answer.status_code in (400, 415)
    assert "Traceback" not in answer.text


def test_health_needs_no_token_and_tells_nothing(guarded: Any) -> None:
    answer = guarded.get("/health")
    assert answer.status_code == 200
    assert set(answer.json) == {"status", "version"}
    assert answer.json["status"] == "ok"
    assert guarded.get("/health", headers={"Host": "evil.example"}).status_code == 403


def test_every_answer_forbids_what_is_foreign(guarded: Any) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/_dash-layout", "/health", "/no/such/page", "/assets/style.css"):
        answer = guarded.get(path, headers=bearer)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
        assert "unsafe-eval" not in policy
        assert (answer.headers["X-Frame-Options"], answer.headers["Referrer-Policy"]) == ("DENY", "no-referrer")
        assert ("no-store" in answer.headers.get("Cache-Control", "")) == (not path.startswith("/assets"))
    assert guarded.get("/?" + "a" * 9000, headers=bearer).status_code == 414


def test_a_public_address_is_said_on_every_page(store: Store) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    public = client_of(store, host="0.0.0.0", token=TOKEN)
    assert b"whoever has the token can read the runs and start replays" in public.get("/_dash-layout", headers=bearer).data
    reading = client_of(store, host="0.0.0.0", token=TOKEN, read_only=True)
    assert b"whoever has the token can read the runs." in reading.get("/_dash-layout", headers=bearer).data
    assert b"whoever has the token" not in client_of(store).get("/_dash-layout").data


def test_the_log_says_where_and_not_what(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(store.path)

    def fails() -> str:
        raise ValueError("tenant-of-a-trace wrote this")

    app.server.add_url_rule("/fails", view_func=fails)
    with caplog.at_level(logging.DEBUG):
        answer = app.server.test_client().get("/fails?cls=secret-class")
    assert answer.status_code == 500
    said = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert re.search(r"ValueError at .*test_access\.py:\d+ while answering /fails", said)
    assert "tenant-of-a-trace" not in said + answer.text
    assert "secret-class" not in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0: other machines can reach it; expected a token"),
        ({"host": "service.internal"}, "expected a token"),
        ({"host": "0.0.0.0", "token": ""}, "expected a token"),
        ({"host": "0.0.0.0", "token": "x" * (SHORTEST_TOKEN - 1)}, "expected at least 16"),
        ({"host": "127.0.0.1", "token": "short"}, "token: 5 characters"),
        ({"host": "127.0.0.1", "token": "with a space in it"}, "without spaces"),
    ],
)
def test_what_would_be_open_to_others_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        settle_access(**{"token": None, **given})  # type: ignore[arg-type]
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not given.get("token") or given["token"] not in str(refused.value)


def test_the_environment_says_the_same() -> None:
    said = {
        "TRACEKIT_HOST": "0.0.0.0",
        "TRACEKIT_TOKEN": TOKEN,
        "TRACEKIT_ALLOWED_HOSTS": "a.example, b.example",
        "TRACEKIT_READ_ONLY": "yes",
    }
    assert access_from_environment(said) == Access(host="0.0.0.0", token=TOKEN, names=("a.example", "b.example"), read_only=True)
    assert access_from_environment({}) == Access()
    with pytest.raises(UsageError, match="TRACEKIT_READ_ONLY=perhaps: expected 1 or 0"):
        access_from_environment({"TRACEKIT_READ_ONLY": "perhaps"})
    with pytest.raises(UsageError, match="TRACEKIT_TOKEN"):
        access_from_environment({"TRACEKIT_HOST": "0.0.0.0"})
