"""What a drawn window shows, in sentences: for those who do not see the figure, and to copy into a ticket."""

from __future__ import annotations

import numpy as np

from dashboards.buckets import Buckets

__all__ = ["describe_window"]


def describe_window(buckets: Buckets, reasons: list[str], budget: int | None, kv_total: int | None) -> str:
    """A few sentences with the figures of the window; times are seconds on the engine clock."""
    begin, end = int(buckets.edges_ns[0]), int(buckets.edges_ns[-1])
    where = f"{begin / 1e9:,.3f} to {end / 1e9:,.3f} s"
    if not buckets.covered:
        return f"{where}: no iteration."
    count = len(buckets.iterations)
    resolution = "one step each" if buckets.exact else f"drawn as {count:,} buckets of {_time((end - begin) / count)}"
    idle = 1 - float(buckets.busy_ns.sum()) / (end - begin)
    parts = [f"{where}: {buckets.covered:,} iterations, {resolution}, idle {idle:.1%}."]
    parts.append(_largest(buckets, budget))
    peak = buckets.peak
    parts.append(f"At most {peak['running'].max():,} running and {peak['waiting'].max():,} waiting.")
    used = int(peak["kv_used"].max())
    share = f" ({used / kv_total:.1%} of {kv_total:,})" if kv_total else ""
    parts.append(f"KV at most {used:,} blocks{share}; {buckets.preempted.sum():,} preemptions.")
    parts.append(_queue(buckets, reasons))
    return " ".join(parts)


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:,.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def _largest(buckets: Buckets, budget: int | None) -> str:
    batch, duration = buckets.peak["batch"], buckets.peak["duration_ns"]
    a, b = int(batch.argmax()), int(duration.argmax())
    of = f" of {budget:,}" if budget else ""
    return (
        f"Largest batch {batch[a]:,}{of} tokens (iteration {buckets.worst['batch'][a]:,}),"
        f" longest iteration {_time(float(duration[b]))} (iteration {buckets.worst['duration_ns'][b]:,})."
    )


def _queue(buckets: Buckets, reasons: list[str]) -> str:
    widths = np.diff(buckets.edges_ns)
    waited = {code: float((mean * widths).sum()) for code, mean in buckets.queue.items()}
    total = sum(waited.values())
    if total <= 0:
        return "Nobody waited."
    ranked = sorted(waited.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{reasons[code] if code else 'nothing'} {ns / total:.1%}" for code, ns in ranked)
    return f"Requests waited {total / 1e9:,.1f} s together, while the queue's head was refused by {shares}."
