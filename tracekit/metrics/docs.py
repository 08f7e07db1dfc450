"""The documentation page of the matrix, made from its list of fields: ``python -m tracekit.metrics.docs > docs/matrix.md``."""

from __future__ import annotations

import sys

from tracekit.metrics.fields import FIELDS, SCHEMA, SECTIONS

__all__ = ["matrix_page"]

_UNITS = {
    "ns": "ns",
    "dist_ns": "ns, distribution",
    "dist_tokens": "tokens, distribution",
    "tokens": "tokens",
    "blocks": "KV blocks",
    "bytes": "bytes",
    "share": "share, 0 to 1",
    "rate": "per second",
    "number": "number",
    "text": "text",
    "object": "object",
}

_HEAD = f"""# The acceptance matrix

<!-- made by: python -m tracekit.metrics.docs > docs/matrix.md -->

One JSON document per run, schema `{SCHEMA}`, kept in the run's row of `runs` (column `matrix`). `show RUN` prints it as text,
`show RUN --json` as it is.

* Every field below is always present. A field that does not apply is `{{"value": null, "reason": "..."}}`, never a bare `null`.
* Times are nanoseconds on the engine clock, whole ones where they are sums, fractions where they are means or percentiles.
* A distribution is `{{"n", "mean", "p50", "p95", "p99", "max", "small_n"}}`; percentiles interpolate linearly; `small_n`: those
  that rest on too few values (`p99` of fewer than 1,000). `longest_gap_ns` also names the `request` that had it.
* Requests of a lead-in are replayed and not counted; `counted.rule` says which figures leave them out.
* `observed` compares request by request: `replayed` and `observed` (mean, p50, p90, p99), `relative_error` of each, the median
  absolute error, `n`; null where the trace has no latencies.
* SLO: a request meets it when every part given holds (value <= limit); a part it lacks (TPOT of one token) is met; what did
  not finish has missed, but a client's own cancel counts as met until a part was violated (`cancelled_met`).
"""


def matrix_page() -> str:
    """The page as Markdown: conventions, then every field with its unit and meaning."""
    lines = [_HEAD]
    for section, title in SECTIONS.items():
        lines += [f"## {title} (`{section}`)", "", "| field | unit | shown as | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{spec.name}` | {_UNITS[spec.kind]} | {spec.label} | {spec.meaning} |"
            for spec in FIELDS
            if spec.section == section
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(matrix_page())
