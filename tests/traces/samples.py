"""Small hand-made files of every trace format, for tests that run over all of them. ``SAMPLES[format]`` is a list of files.

Whoever adds a format adds a sample: a few rows that load, with the format's usual columns and quirks.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.traces.log_samples import LOG_SAMPLES
from tests.traces.session_samples import SESSION_SAMPLES

__all__ = ["SAMPLES", "jsonl", "parquet_sample", "samples"]


def jsonl(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SAMPLES: dict[str, list[bytes]] = {
    "azure2023": [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        b"2023-11-16 18:15:50.9951690,396,109\r\n"
        b"2023-11-16 18:15:51.2224670,879,55\r\n2023-11-16 18:15:52.0000000,10,5\r\n2023-11-16 18:15:53.7500000,1200,300",
    ],
    "mooncake": [
        jsonl(
            *(
                {"timestamp": 3000 * i, "input_length": 1500 + i, "output_length": 5 + i, "hash_ids": [0, 1, 2 + i]}
                for i in range(5)
            )
        )
    ],
    "vllm_measured": [
        jsonl(
            *(
                {"request_id": f"r{i}", "input_toks": 10 + i, "output_toks": 3, "arrival_time": 1787267980.5 + i,
                 "queued_ts": 100.0 + i, "scheduled_ts": 100.25 + i, "first_token_ts": 101.0 + i, "last_token_ts": 103.0 + i}
                for i in range(5)
            )
        )
    ],
    "canonical_jsonl": [
        jsonl(
            *(
                {"arrival_ns": 10**9 * i, "input_tokens": 40 + i, "output_tokens": 7, "tenant": "a", "class": "batch",
                 "max_tokens": 64, "priority": i % 2, "block_tokens": 16, "prefix_runs": [[0, 0, 2], [2, 5 + i, 1]]}
                for i in range(5)
            )
        )
    ],
    "generic_csv": [
        b'when_s;tenant;prompt_tokens;completion_tokens;ttft_ms\n1.5;"a;b";10;20;350\n2.5;"c ""d""";11;21;\n3;x;12;22;7.5\n'
        b"4;y;13;23;8\n5;z;14;24;9\n".replace(b"when_s", b"arrival_s"),
        b"timestamp,prompt_tokens,completion_tokens\n2024-05-10T02:00:00+0200,5,6\n2024-05-10T00:00:01.5Z,6,7\n"
        b"2024-05-10T00:00:02+00:00,7,8\n",
    ],
    "generic_jsonl": [
        jsonl(
            *(
                {"ts": f"2024-01-01T00:00:0{i}.1234567Z", "prompt_tokens": 5 + i, "completion_tokens": 6, "user": "a",
                 "usage": {"cached_tokens": 1}}
                for i in range(5)
            )
        )
    ],
}  # fmt: skip


@cache
def parquet_sample() -> bytes:
    import duckdb

    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as con:
        path = Path(folder, "t.parquet")
        con.execute(
            "COPY (SELECT TIMESTAMP '2024-01-01' + to_seconds(i) AS timestamp, 5 + i AS prompt_tokens, 6 AS completion_tokens,"
            f" 'a' AS tenant FROM range(5) t(i)) TO '{path}' (FORMAT parquet)"
        )
        return path.read_bytes()


def samples() -> dict[str, list[bytes]]:
    """All of them, those that have to be made by a program included."""
    return {**SAMPLES, **LOG_SAMPLES, **SESSION_SAMPLES, "generic_parquet": [parquet_sample()]}
