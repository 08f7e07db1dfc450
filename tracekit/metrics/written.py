"""How much of the KV that was set aside was ever written: block-time from the event tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase

__all__ = ["written_block_ns"]

Rows = npt.NDArray[np.void]


def written_block_ns(iterations: Rows, entries: Rows, spans: Rows, outcomes: Rows, block_size: int) -> float:
    """Blocks that hold computed KV, times ns, summed over the replay; a partly written block counts in part.

    Decodes: the sum of their contexts in every iteration. Prefills: what an entry leaves written stands until the next one of
    its request begins, the last one's until its iteration ends. Places held after the end: the sequence's whole length.
    """
    tokens = float(np.dot(iterations["decode_kv_tokens"].astype(np.float64), iterations["duration_ns"]))
    if entries.size and iterations.size:
        order = np.lexsort((entries["iteration"], entries["request"]))
        entry = entries[order]
        at = np.searchsorted(iterations["iteration"], entry["iteration"])
        at = np.minimum(at, iterations.size - 1)
        begin = iterations["start_ns"][at]
        end = begin + iterations["duration_ns"][at]
        same = entry["request"][1:] == entry["request"][:-1]
        end[:-1][same] = begin[1:][same]
        tokens += float(np.dot(entry["kv_len"].astype(np.float64), np.maximum(end - begin, 0)))
    held = spans[spans["phase"] == Phase.batch_hold]
    if held.size:
        length = np.zeros(int(outcomes["request"].max(initial=0)) + 1)
        length[outcomes["request"]] = np.maximum(outcomes["prompt_tokens"] + outcomes["output_tokens"] - 1, 0)
        known = held["request"] < length.size
        tokens += float(np.dot(length[held["request"][known]], (held["end_ns"] - held["start_ns"])[known]))
    return tokens / block_size
