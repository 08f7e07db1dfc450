"""Links to what can be downloaded of a run, a finding or a study. ``assets/downloads.js`` fetches them, so that a refusal is a
line on the page; without scripts they are plain links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import parse_address
from dashboards.downloads import POOLS, RUN_KINDS, STUDY_KINDS, Kind
from dashboards.markup import aria
from dashboards.queries import RunBook
from tracekit.errors import TracekitError
from tracekit.exports.flag_text import FLAG_FORMATS
from tracekit.store import load_run

__all__ = ["download_menu", "finding_links", "register_download_menu", "run_links", "study_links"]

SAID = "exported"
"""Id of the line that says what became of a download."""


def download_menu() -> Any:
    """What stands above every page: the exports of the run that it looks at."""
    menu = html.Details([html.Summary("Export"), html.Div(id="export-menu", className="menu")], className="export-menu")
    said = html.Span(id=SAID, role="status", className="shared")
    return html.Div([menu, said, dcc.Store(id="export-drawn")], className="export-box")


def register_download_menu(app: Dash, book: RunBook) -> None:
    """The menu follows the address; ``last`` may come to be another run."""

    def show(search: str | None, _: int | None, drawn: int | None) -> Any:
        row = _recorded(book, parse_address(search).run)
        run = 0 if row is None else int(row["run"])
        return (no_update, no_update) if run == drawn else (menu_of(book, row), run)

    app.callback(
        Output("export-menu", "children"), Output("export-drawn", "data"), Input("url", "search"),
        Input("frame-tick", "n_intervals"), State("export-drawn", "data"),
    )(show)  # fmt: skip


def menu_of(book: RunBook, row: Mapping[str, Any] | None) -> list[Any]:
    """The links of a recorded run, or that there is none."""
    if row is None:
        return [html.Span("nothing is recorded yet that could be exported", className="quiet")]
    run = int(row["run"])
    return [html.Span(f"Run {run} as", className="quiet"), *run_links(run, _pools(book, row))]


def run_links(run: int, pools: tuple[str, ...] = ()) -> list[Any]:
    """Every format of a run; flags of each of its separate pools."""
    links = []
    for name, kind in RUN_KINDS.items():
        if name in FLAG_FORMATS and pools:
            links += [_link(f"/export/run/{run}/{name}?pool={pool}", kind, f"{kind.label}, {pool}") for pool in pools]
        else:
            links.append(_link(f"/export/run/{run}/{name}", kind))
    return links


def finding_links(run: int, finding: str) -> Any:
    """The change of one finding as flags; refused where no replay confirmed it."""
    kinds = {name: kind for name, kind in RUN_KINDS.items() if name in FLAG_FORMATS}
    links = [_link(f"/export/run/{run}/{name}?finding={finding}", kind) for name, kind in kinds.items()]
    return html.Details([html.Summary("Its change as a file"), html.Div(links, className="ways")])


def study_links(key: str) -> Any:
    """A tuner's answer as a page and as flags."""
    links = [_link(f"/export/study/{key}/{name}", kind) for name, kind in STUDY_KINDS.items()]
    return html.Div([html.Span("Download the answer:", className="quiet"), *links], className="ways", role="group",
                    **aria("Download the answer"))  # fmt: skip


def _link(href: str, kind: Kind, label: str = "") -> Any:
    data: Mapping[str, Any] = {"data-download": "yes"}
    return html.A(label or kind.label, href=href, className="download", title=f"Download: {kind.tells}", **data)


def _recorded(book: RunBook, ref: str) -> dict[str, Any] | None:
    try:
        return book.recorded(ref)
    except TracekitError:
        return None


def _pools(book: RunBook, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the separate pools of a run, none where it has none."""

    def read() -> tuple[str, ...]:
        policy = load_run(book.store, int(row["run"]))["policy"] or {}
        return POOLS if policy.get("rules", {}).get("pd", {}).get("prefill") else ()

    try:
        return book.remember(f"pools {row['spool']}", read)
    except TracekitError:
        return ()
