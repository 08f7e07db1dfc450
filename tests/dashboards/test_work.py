"""Work that pages start: what is taken, what is refused, and that it is the same as from the shell."""

from __future__ import annotations

import base64
import gzip
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dash import no_update
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import acts, uploads, work
from dashboards.ordering import order_of, uploads_folder, words_of
from dashboards.pages import replay as replay_page
from dashboards.pages import what_if
from dashboards.queries import RunBook
from replay_engine.profile import load_profile
from tracekit import jobs
from tracekit.errors import LockedError, UsageError
from tracekit.orders import ConfigError, ReplayOrder, _slice_words, again_words, replay_words, tune_words
from tracekit.replay import replay
from tracekit.store import list_runs, load_run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
CSV = "timestamp,input_length,output_length\n" + "".join(f"{at},{100 + at},20\n" for at in range(30)) + "x,5,5\n90,-3,5\n"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RunBook:
    """Run 1 has an SLO and a finding with a change, run 2 neither."""
    db = tmp_path_factory.mktemp("work") / "t.duckdb"
    replay(str(EXAMPLE), limit=120, db=str(db), engine="sim", slo="ttft=500ms,tpot=50ms", sets=("max_num_seqs=4",))
    replay(str(EXAMPLE), limit=40, db=str(db), engine="sim")
    return RunBook(db)


def sent(text: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(text).decode()


def ended(book: RunBook, job: str) -> jobs.JobStatus:
    """A job once it has ended."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        status = jobs.show(book.store.folder, job)
        if status.state not in work.UNDER_WAY:
            return status
        time.sleep(0.05)
    raise AssertionError(status)


def sleeper(book: RunBook) -> str:
    """A job of a page that runs until it is stopped."""
    job = jobs.Job.create(book.store.folder, "replay", {"who": "ui"})
    job.start_detached([sys.executable, "-c", "import time; time.sleep(600)"])
    return job.id


def test_a_form_becomes_the_same_run_as_the_shell(book: RunBook) -> None:
    asked = {"slo": "ttft=500ms,tpot=50ms", "limit": "120", "max_num_seqs": "4", "name": "from a page"}
    form = {"trace": "trace:demo_trace", "engine": "sim", "profile": "h100-llama-3.1-8b", **asked}
    job = work.start_job(book, "replay", words_of(book, form))
    status = ended(book, job)
    assert (status.state, status.who) == ("finished", "ui"), status.log
    assert status.result is not None
    run = status.result["run"]
    ours, theirs = load_run(book.store, run), load_run(book.store, 1)
    assert ours["name"] == "from a page"
    for what in ("policy", "slo", "slice", "requests", "iterations"):
        assert ours[what] == theirs[what], what
    (row,) = [row for row in work.list_work(book) if row.id == job]
    assert (row.who, row.state, row.look, row.can) == ("page", "finished", f"/verdict?run={run}", ())
    assert book.view(job).ref == str(run)
    # Its process may be killed after the commit and before it has said so: the run is there, and there is one of it.
    count = len(list_runs(book.store))
    (book.store.folder / "jobs" / job / "result.json").unlink()
    assert ended(book, job).state == "lost"
    work.resume_job(book, job)
    again = ended(book, job)
    assert (again.state, again.result["run"] if again.result else None) == ("finished", run), again.log
    assert len(list_runs(book.store)) == count


def test_a_finding_is_replayed_with_its_change_and_opens_in_compare(book: RunBook) -> None:
    finding = next(iter(book_findings(book, "1")))
    acts.replay_change(book, "1", finding)
    job = jobs.list_jobs(book.store.folder)[-1]
    status = ended(book, job.id)
    assert status.state == "finished", status.log
    (row,) = [row for row in work.list_work(book) if row.id == job.id]
    run = (status.result or {})["run"]
    assert row.look == f"/compare?run=1&cmp={run}"
    before, after = load_run(book.store, 1), load_run(book.store, run)
    assert before["policy"]["scheduler"]["max_num_seqs"] == 4
    assert after["policy"]["scheduler"]["max_num_seqs"] > 4
    for what in ("trace", "slo", "requests", "slice"):
        assert before[what] == after[what], what
    with pytest.raises(UsageError, match="no such finding"):
        acts.replay_change(book, "1", "KV_TRANSFER")


def book_findings(book: RunBook, run: str) -> list[str]:
    from dashboards.verdicts import cards_of, read_verdict

    return [card.id for card in cards_of(read_verdict(book, run).document) if acts.change_button(card)]


def test_several_replicas_and_what_stands_before_them_are_said_in_the_form(book: RunBook) -> None:
    form = {"trace": "trace:demo_trace", "engine": "sim", "profile": "h100-llama-3.1-8b", "replicas": "2"}
    for router in replay_page.PLAIN_ROUTERS:
        words = words_of(book, {**form, "router": router})
        assert ["--set=fleet.replicas=2", f"--set=fleet.router={router}"] == [word for word in words if "fleet" in word]
    assert set(form) | {"router"} <= set(replay_page.FIELDS)
    with pytest.raises(ConfigError, match="router = nearest: unknown"):
        words_of(book, {**form, "router": "nearest"})


def test_a_search_goes_on_from_what_the_run_had(book: RunBook) -> None:
    words = tune_words(book.store, 1, trials=5)
    assert words[0] == "tune"
    assert words[-1] == "demo_trace"
    assert "--slo=ttft=500ms,tpot=50ms" in words
    assert "--profile=h100-llama-3.1-8b" in words
    (policy,) = [word for word in words if word.startswith("--policy=")]
    assert "max_num_seqs = 4" in policy
    with pytest.raises(UsageError, match="run 2 has no SLO to tune for"):
        acts.tune_from(book, "2")


def test_an_upload_is_read_before_it_is_used_and_says_what_is_left_out(book: RunBook) -> None:
    known, shown = replay_page.take(book, sent(gzip.compress(CSV.encode())), "../../my trace.csv.gz", {})
    text = str(shown)
    assert "30 of 32 rows" in text
    assert "not a time" in text
    assert "negative" in text
    (key,) = known
    assert known[key] == "my_trace.csv.gz"
    path = uploads.find(uploads_folder(book), key).path
    assert path.parent.parent == uploads_folder(book)
    listed, chosen, only, disabled, _ = replay_page.offered(book, known, None)
    assert (listed[0]["value"], chosen, only, disabled) == (f"upload:{key}", f"upload:{key}", "", False)
    job = work.start_job(book, "replay", words_of(book, {"trace": chosen, "engine": "sim", "profile": "h100-llama-3.1-8b"}))
    status = ended(book, job)
    assert status.state == "finished", status.log
    assert load_run(book.store, (status.result or {})["run"])["requests"] == 30


@pytest.mark.parametrize(
    ("data", "name", "says"),
    [
        (b"#!/bin/sh", "run.sh", "not a kind that is taken"),
        (b"x", "no_suffix", "not a kind that is taken"),
        (b"", "empty.csv", "an empty file"),
        (b"x" * 3000, "large.csv", "more than"),
        (gzip.compress(b"0" * 5000, mtime=0), "bomb.csv.gz", "unpacks to more than"),
        (gzip.compress(b"0" * 900, mtime=0) + gzip.compress(b"0" * 900, mtime=0), "members.csv.gz", "unpacks to more than"),
        (gzip.compress(b"0" * 5000, mtime=0), "bomb.csv", "unpacks to more than"),
    ],
)
def test_what_is_too_large_or_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, name: str, says: str
) -> None:
    monkeypatch.setattr(uploads, "MOST_BYTES", 1000)
    monkeypatch.setattr(uploads, "MOST_UNPACKED", 1500)
    with pytest.raises(UsageError, match=says):
        uploads.keep(tmp_path, sent(data), name)
    assert not list(tmp_path.iterdir())


def test_what_is_said_of_a_file_does_not_say_where_it_lies(book: RunBook) -> None:
    for data in (b"a,b\n1,2\n", b"\x00\x01" * 600, b"timestamp,input_length,output_length\nx,5,5\n"):
        known, shown = replay_page.take(book, sent(data), "mine.csv", {})
        assert known is no_update and "mine.csv" in str(shown) and str(book.store.folder) not in str(shown), shown


def test_what_of_a_pasted_line_counts_for_nothing_is_said(book: RunBook) -> None:
    form = {"trace": "trace:demo_trace", "profile": "h100-llama-3.1-8b"}
    line = "vllm serve m --max-num-seqs 8 --unknown-flag 3 --tensor-parallel-size 2"
    said = replay_page.remarks(book, {**form, "policy": line})
    assert "--unknown-flag is ignored" in said and "tensor parallel 2" in said and "max-num-seqs" not in said
    for policy in ("", "vllm serve --max-num-seqs 8", "[scheduler]\nmax_num_seqs = 8", "[scheduler]\nno_knob = 8"):
        assert replay_page.remarks(book, {**form, "policy": policy}) == ""


def test_a_fitted_profile_that_is_sent_can_be_chosen_from_then_on(book: RunBook) -> None:
    text = replace(load_profile("l40s"), name="fitted-here").to_toml()
    listed, picked, said = replay_page.profiles(book, sent(text.encode()), "fit of ours.TOML")
    assert "fitted-here" in said and picked in [each["value"] for each in listed]
    assert replay_page.profiles(book, sent(text.encode()), "again.toml")[1] == picked
    words = words_of(book, {"trace": "trace:demo_trace", "profile": picked})
    (path,) = [Path(word.partition("=")[2]) for word in words if word.startswith("--profile=")]
    assert path.parent == book.store.folder / "profiles" and load_profile(path).name == "fitted-here"
    path.write_text(text + "# changed\n", encoding="utf-8")
    form = {"trace": "trace:demo_trace", "profile": picked}
    assert "that profile is not there any more" in replay_page.command_line(book, form)
    path.unlink()
    there = sorted(book.store.folder.rglob("*.toml"))
    for data, name, why in ((text.encode(), "fit.json", "not a kind that is taken"), (b"\xff\xfe", "fit.toml", "not UTF-8"),
                            (b"", "fit.toml", "an empty file"), (b"[latency]\na_ns = 'x'\n", "fit.toml", "a_ns"),
                            (b"[scheduler]\n", "fit.toml", "scheduler"), (b"[latency\n", "fit.toml", "fit.toml"),
                            (text.encode() + b"#" * (300 << 10), "fit.toml", "more than 256 KiB")):  # fmt: skip
        kept = replay_page.profiles(book, sent(data), name)
        assert kept[2].startswith("Not taken: ") and why in kept[2] and kept[1] is no_update, kept
    reading = RunBook(book.store.path, read_only=True)
    assert "read-only" in replay_page.profiles(reading, sent(text.encode()), "fit.toml")[2]
    assert sorted(book.store.folder.rglob("*.toml")) == there


@settings(deadline=None)
@given(st.text(max_size=40), st.binary(max_size=60))
def test_an_upload_lies_where_uploads_lie(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "uploads"
    for given_name in (name + ".csv", name + "/../../x.csv.gz", name):
        try:
            kept = uploads.keep(folder, sent(data), given_name)
        except UsageError:
            continue
        assert kept.path.resolve().parent.parent == folder.resolve()
        assert uploads.find(folder, kept.key) == kept
    for key in ("..", "", name, "0" * 31, "*" * 32):
        with pytest.raises(UsageError):
            uploads.find(folder, key)


@pytest.mark.parametrize("at", range(70, 84))
def test_a_long_name_cut_at_any_place_is_found_again(tmp_path: Path, at: int) -> None:
    kept = uploads.keep(tmp_path, sent(b"a,b\n1,2"), "x" * 30 + ".-_" + "y" * at + ".csv")
    assert uploads.find(tmp_path, kept.key) == kept


def test_a_file_of_many_gzip_members_is_one_file(tmp_path: Path) -> None:
    kept = uploads.keep(tmp_path, sent(gzip.compress(b"a\n") * 20_000), "t.csv.gz")
    assert gzip.decompress(kept.path.read_bytes()) == b"a\n" * 20_000


def test_a_search_has_all_of_the_runs_slice() -> None:
    part = {"window_ns": [0, 5], "rate_scale": 2.0, "where": "a > 1", "thin": [1, 4], "by": "session", "sessions": "poisson:2",
            "spread_ticks": True, "seed": 3}  # fmt: skip
    assert _slice_words(part) == [
        "--window=0:5ns", "--rate-scale=2.0", "--where=a > 1", "--thin=1/4", "--by=session", "--sessions=poisson:2",
        "--spread-ticks", "--seed=3",
    ]  # fmt: skip


def test_only_the_latest_uploads_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "KEPT", 3)
    keys = [uploads.keep(tmp_path, sent(b"a,b\n%d" % each), "t.csv").key for each in range(5)]
    assert uploads.find(tmp_path, keys[-1])
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"trace": ""}, "no trace"),
        ({"trace": "trace:/etc/passwd"}, "no such trace"),
        ({"trace": "/etc/passwd"}, "no such trace"),
        ({"trace": "upload:../../etc/passwd"}, "not there any more"),
        ({"trace": "trace:demo_trace", "engine": "bash"}, "engine bash"),
        ({"trace": "trace:demo_trace", "profile": "/etc/passwd"}, "profile /etc/passwd: expected one of"),
        ({"trace": "trace:demo_trace", "profile": "file:/etc/passwd"}, "not there any more"),
        ({"trace": "trace:demo_trace", "policy": "/etc/passwd"}, "policy /etc/passwd: expected TOML"),
        ({"trace": "trace:demo_trace", "policy": "[scheduler]\nmax_seqs = 4"}, "max_seqs"),
        ({"trace": "trace:demo_trace", "max_num_seqs": "many"}, "max_num_seqs"),
        ({"trace": "trace:demo_trace", "more": "--db=/tmp/x\nexec"}, "expected KNOB=VALUE"),
        ({"trace": "trace:demo_trace", "more": "--db=/tmp/x"}, "db"),
        ({"trace": "trace:demo_trace", "slo": "fast"}, "slo"),
        ({"trace": "trace:demo_trace", "window": "noon"}, "not a window"),
        ({"trace": "trace:demo_trace", "limit": "-1"}, "--limit"),
        ({"trace": "trace:demo_trace", "name": "a\nb"}, "name: expected"),
    ],
)
def test_a_form_that_cannot_be_replayed_says_why_and_starts_nothing(book: RunBook, form: dict[str, str], says: str) -> None:
    before = len(jobs.list_jobs(book.store.folder))
    said = replay_page.begin(book, {"profile": "h100-llama-3.1-8b", **form})
    assert str(said).startswith("Not started: ")
    assert says.lower() in str(said).lower()
    assert len(jobs.list_jobs(book.store.folder)) == before


def test_a_form_sent_while_somebody_writes_is_told_so_and_not_that_its_trace_is_gone(book: RunBook) -> None:
    writing = (
        "import sys\nfrom tracekit.store import Store\n"
        "with Store(sys.argv[1]).write('a long load'): print(flush=True), sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", writing, str(book.store.path)], **pipes) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        said = replay_page.begin(book, {"trace": "trace:demo_trace", "profile": "h100-llama-3.1-8b"})
        asked = what_if.begin(book, {"trace": "trace:demo_trace"})[0]
        waiting = replay_page.offered(book, {}, None)
        writer.communicate()
    assert waiting[:2] == ([], None) and "a long load" in waiting[2] and waiting[4] is False  # and asked for again
    listed, chosen, only, _, settled = replay_page.offered(book, {}, None)
    assert chosen in [each["value"] for each in listed] and (only, settled) == ("", True)
    assert str(said).startswith("Not started: ") and "a long load" in str(said)
    assert asked.startswith("Not started: ") and "a long load" in asked


TEXT = st.text(max_size=30)


@settings(deadline=None)
@given(st.builds(ReplayOrder, trace=TEXT, policy=TEXT, sets=st.tuples(TEXT), slo=TEXT, window=TEXT, limit=TEXT, name=TEXT))
def test_nothing_in_a_form_becomes_an_option_of_its_own(order: ReplayOrder) -> None:
    try:
        words = replay_words(order, db=Path("/x/t.duckdb"))
    except (UsageError, ConfigError):
        return
    assert words[0] == "replay"
    assert words[-2:] == ["--", order.trace]
    options = {word.partition("=")[0] for word in words[1:-2]}
    assert options <= {f"--{name}" for name in ("engine", "profile", "policy", "set", "slo", "window", "limit", "name", "db")}
    assert [word for word in words if word.startswith("--db=")] == ["--db=/x/t.duckdb"]


def test_no_more_than_a_few_run_at_once(book: RunBook) -> None:
    busy = [sleeper(book) for _ in range(work.MOST_AT_ONCE)]
    try:
        with pytest.raises(UsageError, match="4 jobs that pages started are under way"):
            work.start_job(book, "replay", again_words(1, ["max_num_seqs=8"], db=book.store.path))
    finally:
        for job in busy:
            work.cancel_job(book, job, force=True)
    assert {ended(book, job).state for job in busy} == {"cancelled"}


def test_a_read_only_dashboard_starts_and_stops_nothing(book: RunBook) -> None:
    job = sleeper(book)
    try:
        reading = RunBook(book.store.path, read_only=True)
        before = jobs.list_jobs(book.store.folder)
        files = sorted(uploads_folder(book).rglob("*"))
        form = {"trace": "trace:demo_trace", "profile": "h100-llama-3.1-8b"}
        assert "this dashboard is read-only; from the shell: tracekit replay" in str(replay_page.begin(reading, form))
        assert "takes no files" in str(replay_page.take(reading, sent(CSV.encode()), "t.csv", {})[1])
        assert replay_page.offered(reading, {}, None)[2:4] == ("This dashboard is read-only: it starts nothing.", True)
        with pytest.raises(UsageError, match="read-only"):
            acts.replay_change(reading, "1", book_findings(book, "1")[0])
        with pytest.raises(UsageError, match="read-only"):
            acts.tune_from(reading, "1")
        for act in ("cancel", "resume"):
            assert "read-only" in work.do_to_job(reading, act, job)[0]
        assert all(row.can == () for row in work.list_work(reading))
        assert [each.id for each in jobs.list_jobs(book.store.folder)] == [each.id for each in before]
        assert sorted(uploads_folder(book).rglob("*")) == files
    finally:
        work.cancel_job(book, job, force=True)


def test_a_killed_job_is_listed_as_such_and_runs_again(book: RunBook) -> None:
    runs = len(list_runs(book.store))
    job = work.start_job(book, "replay", again_words(1, ["max_num_seqs=6"], db=book.store.path))
    said = set()
    while not said or "begun" not in said:  # first it has no run, and that is said
        try:
            said.add(f"begun {book.view(job).ref}"[:5])
        except LockedError as early:
            said.add(str(early).partition(":")[0])
    assert said <= {"begun", f"job {job} is starting", "the run is being moved into the database"}
    pid = jobs.show(book.store.folder, job).pid
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    first = ended(book, job)
    assert first.state in ("lost", "finished")
    if first.state == "lost":
        (row,) = [row for row in work.list_work(book) if row.id == job]
        assert (row.state, row.can) == ("lost", ("resume",))
        assert "its process is gone" in row.said
        assert "started again" in work.do_to_job(book, "resume", job)[0]
        assert ended(book, job).state == "finished"
    assert len(list_runs(book.store)) == runs + 1


def test_orders_say_what_a_page_says(book: RunBook) -> None:
    form = {"trace": "trace:demo_trace", "profile": "h100-llama-3.1-8b"}
    order = order_of(book, {**form, "max_num_seqs": "8", "more": "order.kind=fcfs\n\n"})
    assert order.sets == ("max_num_seqs=8", "order.kind=fcfs")
    told = replay_page.command_line(book, {**form, "policy": "vllm serve m --max-num-seqs 9"})
    assert told.startswith("From the shell: tracekit replay ")
    assert "'--policy=vllm serve m --max-num-seqs 9'" in told
    assert replay_page.command_line(book, {**form, "profile": "x"}).startswith("Not yet: profile x")
