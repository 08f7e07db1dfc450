"""Recorded diagnoses: what was found in a run, and whether a replay confirmed it. Rows are added, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tracekit.store.database import Store

__all__ = ["list_findings", "load_verdict", "record_findings"]

_LISTED = "diagnosis, run, rank, id, under, what, share, excess_s, confidence, confirmed"


def record_findings(store: Store, run: int, verdict: Mapping[str, Any]) -> int:
    """Write a verdict and its findings in one transaction; the diagnosis's number. One that is there already is not written
    again."""
    key = hashlib.sha256(json.dumps(verdict, sort_keys=True).encode()).hexdigest()
    with store.write("record a diagnosis") as con:
        there = con.execute("SELECT max(diagnosis) FROM findings WHERE run = ? AND key = ? AND rank = 0", [run, key]).fetchall()
        if there[0][0] is not None:
            return int(there[0][0])
        number = int(con.execute("SELECT coalesce(max(diagnosis), 0) + 1 FROM findings").fetchall()[0][0])
        version = verdict["tool"]["tracekit"]
        rows = [
            [
                number,
                run,
                0,
                None,
                None,
                verdict["verdict"],
                None,
                verdict["excess_s"],
                None,
                None,
                json.dumps(verdict),
                key,
                version,
            ]
        ]
        for rank, each in enumerate(verdict["findings"], 1):
            rows.append([number, run, rank, each["id"], each["under"], each["what"], each["share_of_excess"], each["excess_s"],
                         each["confidence"], each["confirmed_by_replay"], json.dumps(each), None, version])  # fmt: skip
        con.executemany(f"INSERT INTO findings VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return number


def list_findings(store: Store, run: int) -> list[dict[str, Any]]:
    """The rows of a run's latest diagnosis, the verdict (rank 0) first, without their documents; none where there is none."""
    with store.read() as con:
        result = con.execute(
            f"SELECT {_LISTED} FROM findings WHERE diagnosis = (SELECT max(diagnosis) FROM findings WHERE run = ?) ORDER BY rank",
            [run],
        )
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def load_verdict(store: Store, run: int) -> dict[str, Any] | None:
    """The verdict document of a run's latest diagnosis; ``None`` where there is none."""
    with store.read() as con:
        found = con.execute(
            "SELECT document FROM findings WHERE run = ? AND rank = 0 ORDER BY diagnosis DESC LIMIT 1", [run]
        ).fetchall()
    if not found:
        return None
    document: dict[str, Any] = json.loads(found[0][0])
    return document
