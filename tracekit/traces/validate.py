"""What would become of a file if it were loaded: format, units of time and why, bad rows. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracekit.errors import InputError
from tracekit.traces.load import LoadReport, inspect_trace
from tracekit.traces.tolerance import Tolerance, check_again

__all__ = ["validate"]


def validate(inputs: str | Path | Sequence[str | Path], *, allowed: Tolerance | None = None,
             **reading: Any) -> tuple[LoadReport, str | None]:  # fmt: skip
    """The report of a load that does not happen, and why it would be refused (``None``: it would not).

    ``reading`` goes to ``inspect_trace``. Errors: ``InputError`` for what cannot be read at all, ``UsageError``.
    """
    allowed = allowed or Tolerance()
    report = inspect_trace(inputs, tolerance=replace(allowed, on_error="skip", max_dropped=1.0), **reading)
    try:
        check_again(report.rejects, report.rows_read, report.rows_dropped, allowed)
    except InputError as error:
        return report, str(error)
    return report, None
