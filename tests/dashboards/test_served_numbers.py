"""The benchmarks of the served dashboard at small size: what does not hang on the machine must hold here too."""

from __future__ import annotations

import json

import pytest

from benchmarks import dashboard_served, dashboard_soak


def test_a_page_weighs_little_and_shows_the_planted_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard_served.main(["--json", "--iterations", "60000", "--clients", "4", "--brushes", "3", "--visits", "1"])
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["worst_seen"]["met"]
    assert figures["figure_mb"]["met"]
    if figures["page_mb"]["value"] is not None:
        assert figures["page_mb"]["met"]
    assert figures["memory_mb"]["met"]


@pytest.mark.slow
def test_a_minute_of_jobs_and_pages_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard_soak.main(["--json", "--minutes", "1", "--every-s", "6"])
    figures = json.loads(capsys.readouterr().out)["figures"]
    for name in ("children_left", "jobs_not_finished", "runs_lost", "polls_failed"):
        assert figures[name]["value"] == 0, (name, figures[name])
    assert figures["files_growth"]["met"], figures["files_growth"]
    assert figures["memory_growth"]["value"] < 0.15, figures["memory_growth"]  # in a minute caches still fill; twenty: 0.10
