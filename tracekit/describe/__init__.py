"""``tracekit describe``: what a trace is, in numbers, and what of it cannot be told."""

from __future__ import annotations

from tracekit.callable_module import make_callable
from tracekit.describe.report import describe, describe_trace
from tracekit.describe.text import render

__all__ = ["describe", "describe_trace", "render"]

make_callable(__name__)
