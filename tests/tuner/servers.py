"""A real PostgreSQL and a real Ray, started for the tests and ended with them; on addresses of this machine only.

Where one of them cannot be had the tests that need it are skipped with the reason, or fail if ``TRACEKIT_CLUSTER=required``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

__all__ = ["HERE", "eventually", "free_port", "missing", "need", "own_database", "running_postgres", "running_ray"]

HERE = "127.0.0.2"
"""A loopback address that Ray takes as it is; it turns 127.0.0.1 into the machine's own."""
PATIENCE_S = 120.0


def missing(reason: str) -> NoReturn:
    """Skip, or fail where nothing may be missing."""
    if os.environ.get("TRACEKIT_CLUSTER") == "required":
        pytest.fail(f"{reason}, and TRACEKIT_CLUSTER=required")
    pytest.skip(reason)


def need(module: str, what: str) -> None:
    """A package without which a test says nothing."""
    if find_spec(module) is None:
        missing(f"{what} is not installed")


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def eventually(holds: Any, what: str) -> Any:
    """What ``holds()`` returns as soon as that is true."""
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < until, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.1)
    return found


@contextmanager
def running_postgres() -> Iterator[str]:
    """A server of its own; its URL. It refuses root, so it runs as its own user there."""
    need("psycopg", "PostgreSQL's driver (the extra cluster)")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        missing("PostgreSQL is not installed here (make cluster, as root on Debian)")
    folder = Path(tempfile.mkdtemp(prefix="tracekit-postgres-", dir="/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    port = free_port()
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    init = [str(found[-1]), "-D", str(folder / "data"), "-U", "optuna", "-A", "trust", "--no-sync"]
    subprocess.run([*prefix, *init], **quiet)
    control = [*prefix, str(found[-1].parent / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    subprocess.run([*control, "-o", f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off", "start"], **quiet)
    try:
        yield f"postgresql://optuna@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder, ignore_errors=True)


def own_database(url: str) -> str:
    """A database of a test's own on a running server."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{url.rpartition('/')[0]}/{name}"


@contextmanager
def running_ray() -> Iterator[tuple[str, psutil.Process]]:
    """A cluster of one machine with two cores; its address, and the process above all of its workers."""
    need("ray", "Ray (the extra cluster)")
    folder = Path(tempfile.mkdtemp(prefix="tkray", dir="/tmp"))
    address = f"{HERE}:{free_port(HERE)}"
    # whoever else is on this machine must not be able to run anything through it
    private = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in private}
    os.environ.update(private)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--node-ip-address={HERE}",
               f"--port={address.rpartition(':')[2]}", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats",
               f"--temp-dir={folder}", "--object-store-memory=100000000"]  # fmt: skip
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: "block forever" in (folder / "head.log").read_text() or head.poll() is not None, "Ray has started")
        assert head.poll() is None, (folder / "head.log").read_text()
        yield address, psutil.Process(head.pid)
    finally:
        below = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
        head.send_signal(signal.SIGTERM)
        head.wait(PATIENCE_S)
        for process in psutil.wait_procs(below, 10)[1]:
            process.kill()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)
