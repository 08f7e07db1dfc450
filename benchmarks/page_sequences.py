"""A job killed, the server restarted, the page loaded again, in any order: what must hold after each step, and in the end."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.page_asking import Asker, over_http
from benchmarks.pages import served
from dashboards.queries import RunBook
from dashboards.work import UNDER_WAY, resume_job, start_job
from tracekit import jobs
from tracekit.store import Store, list_runs

__all__ = ["play"]

TRUE_WORDS = {
    "running": {"running", "committing", "busy", "finished"},
    "queued": {"busy"},
    "lost": {"killed", "left", "missing"},
    "finished": {"finished"},
}
"""What a page may say of a job's run while its folder says this; a job that has committed has not always ended yet."""
STEPS = ("kill", "restart", "reload", "resume")
PATIENCE_S = 300


class _Player:
    """One database, one job, and a server that comes and goes."""

    def __init__(self, store: Store, words: list[str]) -> None:
        self.store = store
        self.book = RunBook(store.path)
        self.job = start_job(self.book, "replay", words)
        self.stack = ExitStack()
        self.restart()
        self.most: tuple[int | None, int] = (None, 0)

    def restart(self) -> None:
        self.stack.close()
        self.page = Asker(over_http(self.stack.enter_context(served(self.store.path))[0]))

    def status(self) -> jobs.JobStatus:
        return jobs.show(self.store.folder, self.job)

    def kill(self) -> None:
        pid = self.status().pid
        if self.status().state == "running" and pid is not None:
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 120
            while self.status().state == "running":
                assert time.monotonic() < end, "killed, and still said to run"
                time.sleep(0.01)

    def resume(self) -> None:
        if self.status().state not in (*UNDER_WAY, "finished"):
            resume_job(self.book, self.job)

    def look(self) -> None:
        """A page says what is true, before or after it was asked, and never less of the same attempt than before."""
        before = self.status()
        shown = self.page.ask(f"?run={self.job}")
        after = self.status()
        said = str(shown["status.className"]).split()[-1]
        allowed = TRUE_WORDS[before.state] | TRUE_WORDS[after.state]
        assert said in allowed, (said, before, after, shown["status.children"])
        found = re.search(r"([\d,]+) iterations", str(shown.get("summary.children")))
        if found is not None and said in ("running", "killed", "committing", "left", "finished") and before.pid == after.pid:
            count = int(found[1].replace(",", ""))
            assert self.most[0] != after.pid or count >= self.most[1], (self.most, count)
            self.most = (after.pid, count)

    def finish(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.status().state != "finished":
            assert time.monotonic() < end, self.status()
            self.resume()
            time.sleep(0.05)
        self.look()
        self.stack.close()


def play(folder: Path, words: list[str], seed: int, iterations: int, steps: int = 5) -> list[str]:
    """Play ``steps`` drawn by ``seed`` against the job that ``words`` start; the steps. The run must come out whole, once."""
    draw = random.Random(seed)
    store = Store(folder / "t.duckdb")
    player = _Player(store, [*words[:-2], f"--db={store.path}", *words[-2:]])
    played = []
    try:
        for _ in range(steps):
            played.append(draw.choice(STEPS))
            time.sleep(draw.random() * 0.5)  # where in its life the job is met is part of the draw
            if played[-1] in ("kill", "restart", "resume"):
                getattr(player, played[-1])()
            else:
                player.page.shown = {"drawn.data": {}}
            player.look()
        player.finish()
    finally:
        player.kill()
        player.stack.close()
    (run,) = list_runs(store)
    assert run["iterations"] == iterations
    assert [status.state for status in jobs.list_jobs(store.folder)] == ["finished"]
    return played
