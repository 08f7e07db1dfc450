"""Settings for gunicorn, and its refusal to serve without a token what other machines reach.

``gunicorn -c python:dashboards.gunicorn_conf -w 4 [-b ADDRESS:PORT] "dashboards.wsgi:application()"``. Workers with threads,
since a page asks several things at once; the log of accesses, if turned on, has paths without what stands behind ``?``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from dashboards.access import is_loopback
from dashboards.from_environment import access_from_environment, database_from_environment
from dashboards.serve import check_database
from tracekit.errors import TracekitError

__all__ = ["access_log_format", "bind", "graceful_timeout", "on_starting", "threads", "timeout", "worker_class", "workers"]

bind = "127.0.0.1:8050"
workers = 2
worker_class = "gthread"
threads = 8
timeout = 120
graceful_timeout = 5
access_log_format = '%(h)s %(p)s %(t)s "%(m)s %(U)s %(H)s" %(s)s %(b)s %(M)sms'


def on_starting(server: Any) -> None:
    """Before any worker: tell them the address (``-b`` may name another), and refuse in one line what must not be served."""
    hosts = [str(each[0]) for each in server.cfg.address if isinstance(each, tuple)]
    os.environ["TRACEKIT_HOST"] = next((host for host in hosts if not is_loopback(host)), "127.0.0.1")
    try:
        check_database(database_from_environment())
        access_from_environment()
    except TracekitError as error:
        print(f"tracekit: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
