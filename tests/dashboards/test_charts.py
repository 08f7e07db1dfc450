"""Saving charts: what is dark on a screen has a light colour for paper."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from dashboards.palette import DARK, LIGHT

SCRIPT = Path(__file__).parents[2] / "dashboards" / "assets" / "charts.js"


def test_every_colour_of_the_dark_theme_is_printed_as_the_light_one() -> None:
    script = SCRIPT.read_text(encoding="utf-8").lower().replace(" ", "")
    for each in fields(DARK):
        dark, light = getattr(DARK, each.name), getattr(LIGHT, each.name)
        if isinstance(dark, str) and dark != light and each.name != "name":
            assert f'"{dark}":"{light}"'.lower().replace(" ", "") in script, (each.name, dark, light)
