"""Reports as files: a run, or a tuner's answer, as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards.queries import RunBook
from dashboards.report_page import page_html
from dashboards.run_report import run_page
from dashboards.tune_report import tune_page
from tracekit.errors import UsageError
from tracekit.exports.destination import STDOUT, refuse_existing, whole_file
from tracekit.exports.export import Asked, ExportReport
from tracekit.store import Store, resolve_run

__all__ = ["export_run_page", "export_tune_page"]


def export_run_page(run: str, asked: Asked, db: str | Path) -> ExportReport:
    """The page of a run into a file (``run-N.html`` where none is named; ``-``: standard output). Errors as ``export``."""
    store = Store(db)
    number = resolve_run(store, run)
    out = _free(asked, f"run-{number}.html")
    return _written(asked, out, page_html(run_page(RunBook(db), str(number))), number)


def export_tune_page(document: Mapping[str, Any], text: str, asked: Asked) -> ExportReport:
    """The page of a tuner's answer (``tracekit.tune/1`` and the same as text), into ``tune.html`` where no file is named."""
    out = _free(asked, "tune.html")
    return _written(asked, out, page_html(tune_page(document, text)), None)


def _free(asked: Asked, name: str) -> str:
    if asked.to != "html":
        raise UsageError(f"--to {asked.to}: expected html")
    out = asked.out or name
    if out != STDOUT:
        refuse_existing(Path(out), asked.force)
    return out


def _written(asked: Asked, out: str, text: str, run: int | None) -> ExportReport:
    content = text.encode("utf-8", "replace")
    with whole_file(out, force=asked.force) as stream:
        stream.write(content)
    return ExportReport(to="html", run=run, out=out, figures={"bytes": len(content)})
