"""``--where``: one read-only SQL expression over the columns of ``requests``, checked before it is run."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError, shown

if TYPE_CHECKING:
    import duckdb

__all__ = ["check_predicate", "explain_error"]

_REFUSED = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "STAR": "a star", "PARAMETER": "a parameter"}
_UNSTABLE = frozenset({"random", "uuid", "gen_random_uuid", "nextval", "getenv", "setseed", "now", "current_timestamp", "query"})
_EXPECTED = "expected one condition on columns of `requests`, as \"tenant = 'chat' AND input_tokens < 4000\""


def check_predicate(text: str) -> None:
    """Refuse what is not a single expression, or what reads anything but the request. Errors: ``UsageError``, one line."""
    import duckdb
    import orjson

    if not text.strip():
        raise _bad(text, "empty")
    # the line break ends a comment that would swallow the closing bracket
    query = f"SELECT * FROM requests WHERE ({text}\n)"
    with duckdb.connect() as con:
        parsed: dict[str, Any] = orjson.loads(con.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])
    if parsed["error"]:
        raise _bad(text, str(parsed.get("error_message", "not an SQL expression")))
    node = parsed["statements"][0]["node"]
    plain = len(parsed["statements"]) == 1 and node["type"] == "SELECT_NODE" and not node["modifiers"]
    if not plain or node.get("having") or node.get("qualify") or node.get("group_expressions"):
        raise _bad(text, "not a single expression")
    _walk(text, node["where_clause"])


def _walk(text: str, node: Any) -> None:
    if isinstance(node, list):
        for each in node:
            _walk(text, each)
    elif isinstance(node, dict):
        if node.get("class") in _REFUSED:
            raise _bad(text, f"{_REFUSED[node['class']]} is not allowed")
        name = str(node.get("function_name", "")).lower()
        if name in _UNSTABLE:
            raise _bad(text, f"{name}() does not say the same every time")
        for each in node.values():
            _walk(text, each)


def _bad(text: str, reason: str) -> UsageError:
    return UsageError(f"--where {shown(text)}: {shown(' '.join(reason.split()), 200)}; {_EXPECTED}")


def explain_error(con: duckdb.DuckDBPyConnection, text: str, error: Exception) -> UsageError:
    """What the database says against a predicate that parses, as one line with the nearest column names."""
    message = str(error)
    unknown = re.search(r'column "([^"]+)" not found', message)
    if unknown is None:
        first = message.split("\n", 1)[0]
        return _bad(text, re.sub(r"^\w+ Error:\s*", "", first))
    names = [row[0] for row in con.execute("DESCRIBE requests").fetchall()]
    near = difflib.get_close_matches(unknown[1], names, n=3) or names
    return UsageError(f"--where {shown(text)}: no column {shown(unknown[1])}; expected one of {', '.join(near)}")
