"""What a run achieved: SLOs, the acceptance matrix, and how it is shown."""

from __future__ import annotations

from tracekit.metrics.attainment import SloResult, evaluate_slo
from tracekit.metrics.gaps import TokenGaps, token_gaps
from tracekit.metrics.inputs import Labels, MatrixInputs, Totals
from tracekit.metrics.matrix import build_matrix
from tracekit.metrics.render import render_markdown, render_text
from tracekit.metrics.slo import Slo, SloTable, parse_goodput, parse_slo, stall_threshold

__all__ = [
    "Labels",
    "MatrixInputs",
    "Slo",
    "SloResult",
    "SloTable",
    "TokenGaps",
    "Totals",
    "build_matrix",
    "evaluate_slo",
    "parse_goodput",
    "parse_slo",
    "render_markdown",
    "render_text",
    "stall_threshold",
    "token_gaps",
]
