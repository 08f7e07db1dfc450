"""What is served and to whom, where there is no command line to say it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dashboards.access import Access, settle_access
from tracekit.errors import UsageError, shown

__all__ = ["access_from_environment", "database_from_environment", "token_from_environment"]

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def database_from_environment(given: Mapping[str, str] = os.environ) -> Path:
    """``TRACEKIT_DB``, or the default database in the working directory."""
    return Path(given.get("TRACEKIT_DB") or "tracekit.duckdb").absolute()


def token_from_environment(given: Mapping[str, str] = os.environ) -> str | None:
    """``TRACEKIT_TOKEN``."""
    return given.get("TRACEKIT_TOKEN") or None


def access_from_environment(given: Mapping[str, str] = os.environ) -> Access:
    """``UsageError`` as ``settle_access``, and for a switch that says neither yes nor no."""
    names = [each.strip() for each in given.get("TRACEKIT_ALLOWED_HOSTS", "").split(",") if each.strip()]
    read_only = given.get("TRACEKIT_READ_ONLY", "").strip().lower()
    if read_only not in (*_YES, *_NO):
        raise UsageError(f"TRACEKIT_READ_ONLY={shown(read_only)}: expected 1 or 0")
    host = given.get("TRACEKIT_HOST") or "127.0.0.1"
    token = token_from_environment(given)
    return settle_access(host=host, token=token, names=names, read_only=read_only in _YES, ask="TRACEKIT_TOKEN")
