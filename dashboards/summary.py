"""What a drawn window shows, in sentences: for those who do not see the figure, and to copy into a ticket."""

from __future__ import annotations

import numpy as np

from dashboards.buckets import Buckets
from dashboards.figures import Drawn
from dashboards.words import count, percent, seconds, short

__all__ = ["describe_window"]


def describe_window(buckets: Buckets, drawn: Drawn) -> str:
    """A few sentences with the figures of the window; times are seconds on the engine clock."""
    budget, kv_total = drawn.budget, drawn.kv_total
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
    parts.append(_queue(buckets, drawn.reasons))
    if drawn.oldest_ns is not None and drawn.oldest_ns.any():
        parts.append(f"The oldest wait reached {_time(float(drawn.oldest_ns.max()))}.")
    parts.append(_against(buckets))
    parts += _laid_over(buckets, drawn)
    return " ".join(part for part in parts if part)


def _against(buckets: Buckets) -> str:
    """Durations against the profile's expectation."""
    found = buckets.against
    if found is None:
        return "The profile does not say how long iterations take."
    beyond = found.took_ns - found.expected_ns
    share = abs(beyond) / max(found.expected_ns, 1)
    if share < 0.0005 and abs(found.off_ns) < 0.001 * found.expected_ns / max(buckets.covered, 1):
        return "Every iteration took what the profile expects."
    side, off = ("more" if beyond >= 0 else "less"), ("longer" if found.off_ns >= 0 else "shorter")
    return (
        f"Iterations took {_time(abs(beyond))} ({share:.1%}) {side} than the profile expects; furthest off is iteration"
        f" {found.furthest:,}, {_time(abs(found.off_ns))} {off}."
    )


def _laid_over(buckets: Buckets, drawn: Drawn) -> list[str]:
    """Findings and the waiting of the selected requests."""
    begin, end = (edge / 1e9 for edge in drawn.window_ns)
    inside = [each for each in drawn.overlay.brackets if each.t_s[0] < end and each.t_s[1] > begin]
    said = [f"Found here: {', '.join(f'{each.id} ({percent(each.share)} of the excess)' for each in inside)}."] if inside else []
    if drawn.overlay.waits is not None:
        blamed = drawn.overlay.waits.within(buckets.edges_ns)
        part = f", {percent(float(blamed.waited_ns.sum()) / blamed.total_ns)} of it in this window" if blamed.total_ns else ""
        said.append(f"The {count(blamed.requests)} selected requests waited {seconds(blamed.total_ns / 1e9)} together{part}.")
    return said


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{short(nanoseconds / size)} {unit}"
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
