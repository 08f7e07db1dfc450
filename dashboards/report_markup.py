"""HTML as text, for pages that stand alone: everything that is not HTML already is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["Html", "data_table", "element", "listed"]

MOST_ROWS = 500
_VOID = frozenset({"meta", "link", "br", "hr"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Html:
    """``<tag name="value">children</tag>``. Children that are no ``Html`` are escaped, ``None`` is left out; an attribute's
    trailing underscore is dropped (``class_``), other underscores are dashes, ``True`` stands alone, ``None`` is left out."""
    pairs = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = name.rstrip("_").replace("_", "-")
        pairs.append(f" {attribute}" if value is True else f' {attribute}="{html.escape(str(value))}"')
    start = f"<{tag}{''.join(pairs)}>"
    if tag in _VOID:
        return Html(start)
    inside = "".join(child if isinstance(child, Html) else html.escape(str(child)) for child in children if child is not None)
    return Html(f"{start}{inside}</{tag}>")


def listed(items: Sequence[object]) -> Html | None:
    """A list; nothing where there is nothing."""
    return element("ul", *(element("li", each) for each in items)) if items else None


def data_table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str, numeric: int = 1) -> Html:
    """A table in a region that scrolls sideways where it must. Cells from column ``numeric`` on are numbers, set flush right."""

    def cell(tag: str, at: int, value: object, **more: object) -> Html:
        return element(tag, value, class_="number" if at >= numeric else None, **more)

    names = element("tr", *(cell("th", at, name, scope="col") for at, name in enumerate(head)))
    body = [element("tr", *(cell("td", at, value) for at, value in enumerate(row))) for row in rows[:MOST_ROWS]]
    said = caption + (f" (the first {MOST_ROWS} of {len(rows):,})" if len(rows) > MOST_ROWS else "")
    inner = element("table", element("caption", said), element("thead", names), element("tbody", *body), class_="data")
    return element("div", inner, class_="wide", tabindex="0", role="region", aria_label=caption)
