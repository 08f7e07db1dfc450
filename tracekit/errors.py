"""What a person did wrong or must know, as one line each. Anything else that is raised is a bug of ours."""

from __future__ import annotations

__all__ = ["InputError", "LockedError", "TracekitError", "UsageError", "shown", "shown_path"]

CLIP = 80
"""Longest part of a foreign value that a message repeats, in characters."""


def shown(value: object, clip: int = CLIP) -> str:
    """A foreign value made safe to print: control characters escaped, clipped to ``clip`` characters."""
    text = str(value)
    clipped = text[:clip]
    safe = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in clipped)
    return safe + "..." if len(text) > clip else safe


def shown_path(path: object) -> str:
    """A path made safe to print, and whole: half a path finds no file."""
    return shown(path, 4096)


class TracekitError(Exception):
    """An error to be shown as one line, without a traceback. ``exit_code`` is the process's (DESIGN: command line)."""

    exit_code = 5


class UsageError(TracekitError):
    """A command, option or setting cannot be used as given."""

    exit_code = 2


class LockedError(TracekitError):
    """The database is in use elsewhere and the wait for it ran out."""

    exit_code = 5


class InputError(TracekitError):
    """Input that cannot be used: where it stands, what stands there, why not, and what was expected.

    ``file``, ``line`` (1-based), ``column`` and ``value`` are ``None`` where they do not apply. ``value`` must never be
    prompt or answer text. ``str()`` is one line with control characters escaped and the value clipped.
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: str | None = None,
        value: object = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.file = file
        self.line = line
        self.column = column
        self.value = value
        self.reason = reason
        self.expected = expected

    def __str__(self) -> str:
        place = [] if self.file is None else [shown_path(self.file)]
        if self.line is not None:
            place.append(f"line {self.line}")
        if self.column is not None:
            place.append(f"column {shown(self.column)}")
        text = f"{', '.join(place)}: " if place else ""
        if self.value is not None:
            text += f"'{shown(self.value)}': "
        text += _one_line(self.reason)
        return text + (f"; expected {_one_line(self.expected)}" if self.expected else "")


def _one_line(text: str) -> str:
    return shown(" ".join(text.split()), 1000)
