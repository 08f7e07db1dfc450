"""``iterations_split``: what every iteration's time went into by its run's own profile, so that a person can check it by SQL.

The same terms as ``tracekit.diagnosis.time_split``: whole ns, and ``rest_ns`` is what they leave of the duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["PADDED", "create_split_view"]

_COEFFICIENTS = ("floor_ns", "a_ns", "b_ns", "c_ns", "d_ns", "e_ns", "p_ns", "s_ns")
PADDED = (
    "CASE WHEN prefill_tokens > 0 OR decode_seqs <= 2 OR decode_seqs > 512 THEN 0 WHEN decode_seqs <= 4 THEN 4 - decode_seqs"
    " WHEN decode_seqs <= 256 THEN -decode_seqs % 8 + 8 * (decode_seqs % 8 > 0)::INTEGER"
    " ELSE -decode_seqs % 16 + 16 * (decode_seqs % 16 > 0)::INTEGER END"
)
"""Rows that pad an iteration's decodes: ``replay_engine.buckets``, as SQL."""

_LONGEST = "SELECT 1 FROM duckdb_columns() WHERE table_name = 'iterations' AND column_name = 'decode_longest_tokens'"
_SKEW = (
    "coalesce(s_ns * (decode_longest_tokens::BIGINT * decode_seqs - decode_kv_tokens) / nullif(decode_seqs, 0), 0)"
)
"""What the longest context costs on top; where a run does not tell it, nothing."""


def _cost(name: str) -> str:
    """A coefficient out of the profile's TOML; 0 where it is not given, as in the profile."""
    found = rf"regexp_extract(setup ->> 'profile', '(?m)^{name}\s*=\s*([-+0-9.eE]+)', 1)"
    return f"coalesce(try_cast({found} AS DOUBLE), 0) AS {name}"


def _whole(term: str) -> str:
    return f"floor(({term}) + 0.5)::BIGINT"


def create_split_view(con: DuckDBPyConnection) -> None:
    """Put the view into an open database; one that is on its way from an older version may lack a column yet."""
    told = con.execute(f"{_LONGEST} AND database_name = current_database()").fetchall()
    terms = {
        "weights_ns": "CASE WHEN busy THEN greatest(floor_ns, a_ns) ELSE 0 END",
        "prefill_ns": "CASE WHEN prefill_tokens > 0"
        " THEN greatest(a_ns + b_ns * prefill_tokens - greatest(floor_ns, a_ns), 0) ELSE 0 END",
        "attention_ns": "c_ns * prefill_qk",
        "kv_ns": f"e_ns * decode_kv_tokens + {_SKEW if told else 0}",
        "seqs_ns": f"d_ns * decode_seqs + p_ns * ({PADDED})",
        "exposed_host_ns": "least(duration_ns,"
        " CASE WHEN duration_ns >= device_ns + host_ns THEN host_ns ELSE greatest(host_ns - device_ns, 0) END)",
    }
    parts = ", ".join(f"{_whole(term)} AS {name}" for name, term in terms.items())
    con.execute(
        "CREATE OR REPLACE VIEW iterations_split AS"
        f" WITH costs AS (SELECT run, {', '.join(_cost(name) for name in _COEFFICIENTS)} FROM runs WHERE setup IS NOT NULL),"
        " priced AS (SELECT i.*, costs.* EXCLUDE (run), i.prefill_tokens > 0 OR i.decode_seqs > 0 AS busy"
        " FROM iterations AS i JOIN costs USING (run)),"
        f" split AS (SELECT run, replica, iteration, start_ns, duration_ns, {parts} FROM priced)"
        f" SELECT *, duration_ns - {' - '.join(terms)} AS rest_ns FROM split"
    )
