"""The dashboard for several workers: ``gunicorn -c python:dashboards.gunicorn_conf "dashboards.wsgi:application()"``.

What is served comes from the environment: ``TRACEKIT_DB`` (default ``tracekit.duckdb``), ``TRACEKIT_TOKEN``,
``TRACEKIT_ALLOWED_HOSTS`` (names, with commas), ``TRACEKIT_READ_ONLY`` (1).
"""

from __future__ import annotations

import os

from flask import Flask

from dashboards.app import create_app
from dashboards.from_environment import access_from_environment, database_from_environment

__all__ = ["application"]


def application() -> Flask:
    """One worker's application. A view is its address and a job is a folder, so workers have nothing to tell each other.
    Errors as ``access_from_environment``."""
    access = access_from_environment()
    os.environ.pop("TRACEKIT_TOKEN", None)  # jobs that pages start need not know it
    server: Flask = create_app(database_from_environment(), access=access).server
    return server
