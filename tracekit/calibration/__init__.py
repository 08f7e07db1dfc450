"""``tracekit calibrate``: a latency profile from what there is: a model measured here, a recorded run, logs, numbers on paper.

Every source is one module; ``sources.py`` tells what a source is and which module reads it.
"""

from __future__ import annotations

from tracekit.calibration.measured import calibrate
from tracekit.calibration.recorded import calibrate_run
from tracekit.calibration.report import CalibrationReport
from tracekit.calibration.sources import SourceReport, SourceRequest, calibrate_source

__all__ = ["CalibrationReport", "SourceReport", "SourceRequest", "calibrate", "calibrate_run", "calibrate_source"]
