"""Colours and fills of both themes: Okabe and Ito's, which colour-blind people can tell apart.

Colour never stands alone: the order in a stack is fixed, members of a family differ by their hatch, the legend repeats both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DARK", "GRID_THEME", "LIGHT", "REASON_FILLS", "THEMES", "Theme", "reason_fill"]

BLUE, ORANGE, VERMILLION, SKY, PURPLE, GREEN, GREY = (
    "#0072B2", "#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#009E73", "#767676",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one theme; ``faint`` fills extremes and ``edge`` lines them, ``hatch`` is drawn over fills; ``blame`` lines what
    the selected requests waited, ``residual`` fills what iterations took beside the expected, ``spare`` what nobody used."""

    name: str
    paper: str
    text: str
    quiet: str
    grid: str
    hatch: str
    faint: str
    edge: str
    line: str
    decode: str
    prefill: str = ORANGE
    recomputed: str = VERMILLION
    cached: str = SKY
    waiting: str
    blame: str
    blame_fill: str
    residual: str
    spare: str
    areas: Mapping[str, str] = field(default_factory=dict)

    def fill(self, colour: str) -> str:
        """A colour of the palette as an area of this theme: orange and sky are darker on white, where they would be pale."""
        return self.areas.get(colour, colour)


LIGHT = Theme(
    name="light", paper="#ffffff", text="#1f2937", quiet="#5b6472", grid="#e5e7eb", hatch="#1f2937",
    faint="rgba(75,85,99,0.22)", edge="rgba(75,85,99,0.55)", line="#111827", decode=BLUE, waiting="#B34700",
    blame="#8A2C6E", blame_fill="rgba(138,44,110,0.22)", residual="rgba(213,94,0,0.45)", spare="rgba(75,85,99,0.09)",
    prefill="#C27D00", cached="#2F97D3",
    areas={ORANGE: "#C27D00", SKY: "#2F97D3"},
)  # fmt: skip
DARK = Theme(
    name="dark", paper="#111827", text="#e5e7eb", quiet="#a3adbb", grid="#2a3546", hatch="#0b1220",
    faint="rgba(209,213,219,0.22)", edge="rgba(209,213,219,0.55)", line="#f3f4f6", decode="#1C7FC4", waiting="#FF8A3D",
    blame="#F29BCB", blame_fill="rgba(242,155,203,0.25)", residual="rgba(255,138,61,0.50)", spare="rgba(209,213,219,0.09)",
)  # fmt: skip
THEMES = {"light": LIGHT, "dark": DARK}

GRID_THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--paper)', foregroundColor: 'var(--text)', borderColor: 'var(--edge)',"
    " headerBackgroundColor: 'var(--raised)', headerTextColor: 'var(--quiet)', accentColor: 'var(--accent)',"
    " oddRowBackgroundColor: 'var(--paper)', rowHoverColor: 'var(--raised)', fontFamily: 'system-ui, sans-serif', fontSize: 13,"
    " spacing: 5, browserColorScheme: 'inherit'})"
)
"""The grid's colours are the page's own, so that it follows the theme without being drawn again."""

_FAMILIES = {
    ORANGE: ("token_budget", "no_chunking", "prefill_limit"),
    PURPLE: ("max_num_seqs", "reserved_seqs"),
    SKY: ("kv_free", "kv_full_isl", "kv_watermark", "kv_output_reserve", "reserved_blocks", "host_pool"),
    GREEN: ("after_preemption", "prefill_interval", "batch_window", "link", "in_flight", "replica_failed"),
    GREY: ("none",),
}
_HATCHES = ("", "/", "x", ".", "-", "|")
REASON_FILLS = {
    name: (colour, hatch) for colour, names in _FAMILIES.items() for name, hatch in zip(names, _HATCHES, strict=False)
}
"""Colour and hatch of each reason: the colour says budget, seats, KV or gate, the hatch which of them."""


def reason_fill(name: str) -> tuple[str, str]:
    """Colour and hatch of a refusal reason; a reason nobody gave a colour is grey and hatched."""
    return REASON_FILLS.get(name, (GREY, "x"))
