"""What workers on many machines share besides Optuna's tables: claims on trials, and what was replayed.

Everything is on the study's own PostgreSQL server. Claims are advisory locks of a session: the server lets them go when the
session ends, and it notices within a minute that a machine is gone without a word. A connection pooler that hands one session's
statements to several connections would break that: workers want connections of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracekit.errors import TracekitError, UsageError, shown

if TYPE_CHECKING:
    from tuner.cells import Result

__all__ = ["PostgresCells", "PostgresClaims", "Session", "check_url", "optuna_url"]

SCHEMES = ("postgresql://", "postgresql+psycopg://")
KEEPALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
"""After how many seconds the server asks a silent client whether it is there, how often, and how many times."""
TABLE = "CREATE TABLE IF NOT EXISTS tracekit_cells (study text, key text, result text NOT NULL, PRIMARY KEY (study, key))"


def check_url(url: str) -> None:
    """Errors: ``UsageError`` for anything but a PostgreSQL URL."""
    if not url.startswith(SCHEMES):
        scheme = url.partition("://")[0] if "://" in url else "..."  # what follows may hold a password
        raise UsageError(f"--storage {shown(scheme)}://...: expected postgresql://USER@HOST/DATABASE, or nothing for a file")


def optuna_url(url: str) -> str:
    """The URL as SQLAlchemy takes it."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


class Session:
    """A connection of its own. Errors: ``UsageError`` when it cannot be made, ``TracekitError`` when it is lost later."""

    def __init__(self, url: str) -> None:
        check_url(url)
        try:
            import psycopg
        except ImportError:
            raise UsageError("--storage postgresql://...: its driver is not installed; expected tracekit-llm[cluster]") from None
        self._error = psycopg.Error
        try:
            self._connection = psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True,
                                               options=KEEPALIVE)  # fmt: skip
        except psycopg.Error as error:
            raise UsageError(f"--storage: the database cannot be reached: {_line(error)}") from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """What a statement yields; empty for one that yields nothing."""
        try:
            cursor = self._connection.execute(statement, values)
            return cursor.fetchall() if cursor.description is not None else []
        except self._error as error:
            raise TracekitError(f"--storage: the database is lost: {_line(error)}; what is done is kept there") from None

    def close(self) -> None:
        self._connection.close()


def _line(error: Exception) -> str:
    return shown(" ".join(str(error).split()), 200)


def _space(study: str) -> int:
    """A study's own part of the keys that advisory locks have."""
    return int.from_bytes(hashlib.sha256(study.encode()).digest()[:4], "big", signed=True)


class PostgresClaims:
    """Advisory locks. ``url`` as SQLAlchemy or libpq writes it."""

    def __init__(self, url: str, study: str) -> None:
        self._session = Session(url)
        self._space = _space(study)
        self._held: set[int] = set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._session.rows("SELECT pg_advisory_lock(%s, -1)", [self._space])
        try:
            yield
        finally:
            self._session.rows("SELECT pg_advisory_unlock(%s, -1)", [self._space])

    @contextmanager
    def answering(self, waits: Callable[[], None]) -> Iterator[None]:
        if not self._session.rows("SELECT pg_try_advisory_lock(%s, -2)", [self._space])[0][0]:
            waits()
            self._session.rows("SELECT pg_advisory_lock(%s, -2)", [self._space])
        try:
            yield
        finally:
            self._session.rows("SELECT pg_advisory_unlock(%s, -2)", [self._space])

    def take(self, trial: int) -> bool:
        if trial not in self._held:
            if not self._session.rows("SELECT pg_try_advisory_lock(%s, %s)", [self._space, trial])[0][0]:
                return False
            self._held.add(trial)
        return True

    def give(self, trial: int) -> None:
        if trial in self._held:
            self._session.rows("SELECT pg_advisory_unlock(%s, %s)", [self._space, trial])
            self._held.discard(trial)


class PostgresCells:
    """Results by key in the study's database: what one machine has replayed no other replays again."""

    def __init__(self, url: str, study: str) -> None:
        self._session = Session(url)
        self._study = study
        self._known: dict[str, Result] = {}
        table = _space("tracekit_cells")
        self._session.rows("SELECT pg_advisory_lock(%s, -1)", [table])  # two that make a table at once stumble over each other
        try:
            self._session.rows(TABLE)
        finally:
            self._session.rows("SELECT pg_advisory_unlock(%s, -1)", [table])

    def get(self, key: str) -> Result | None:
        """A result, whoever replayed it."""
        if key not in self._known:
            found = self._session.rows("SELECT result FROM tracekit_cells WHERE study = %s AND key = %s", [self._study, key])
            if not found:
                return None
            self._known[key] = json.loads(found[0][0])
        return self._known[key]

    def like(self, rest: str) -> Iterable[Result]:
        """Results that this process has replayed or read whose cells have this ``rest``."""
        return [result for result in self._known.values() if result.get("rest") == rest]

    def put(self, key: str, result: Result) -> None:
        self._known[key] = result
        self._session.rows("INSERT INTO tracekit_cells VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                           [self._study, key, json.dumps(result)])  # fmt: skip

    def __len__(self) -> int:
        return int(self._session.rows("SELECT count(*) FROM tracekit_cells WHERE study = %s", [self._study])[0][0])

    def clear(self) -> None:
        """Forget everything of this study."""
        self._session.rows("DELETE FROM tracekit_cells WHERE study = %s", [self._study])
        self._known.clear()
