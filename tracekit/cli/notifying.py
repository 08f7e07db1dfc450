"""``--notify`` of every verb that has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tracekit.notify import Message

__all__ = ["Notify", "tell"]

Notify = Annotated[
    list[str] | None,
    typer.Option("--notify", metavar="HOW", help="Tell the end: slack or prometheus (=FILE), or webhook, by TRACEKIT_WEBHOOK."),
]


def tell(hows: Sequence[str], message: Message, as_json: bool) -> None:
    """Deliver a message; printed ones go where they do not mix with a document."""
    from tracekit.cli.output import note, print_text
    from tracekit.notify import deliver

    def said(text: str) -> None:
        for line in text.splitlines():
            note(line)

    deliver(hows, message, said if as_json else print_text, note)
