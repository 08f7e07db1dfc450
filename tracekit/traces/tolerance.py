"""How much is forgiven of a dirty trace: what a bad row does, which share of rows may be lost, what a second id means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tracekit.errors import InputError, UsageError, shown
from tracekit.traces.stage import Reject, Stage

__all__ = ["Tolerance", "check_again", "check_dropped", "parse_share", "tolerance"]

WARNED = 0.05
"""Share of dropped rows above which a warning is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """``on_error``: a bad row is left out (``skip``) or ends the load (``fail``). ``max_dropped``: the share of rows, 0 to 1,
    above which the load is refused. ``dedupe``: of rows with one request id only the first is kept."""

    on_error: Literal["skip", "fail"] = "skip"
    max_dropped: float = 0.5
    dedupe: bool = False


def tolerance(on_error: str = "skip", max_dropped: str | float | None = None, dedupe: bool = False) -> Tolerance:
    """From what a person says. Errors: ``UsageError``."""
    if on_error not in ("skip", "fail"):
        raise UsageError(f"--on-error {shown(on_error)}: expected skip or fail")
    share = 0.5 if max_dropped is None else parse_share(str(max_dropped))
    return Tolerance(on_error="fail" if on_error == "fail" else "skip", max_dropped=share, dedupe=dedupe)


def parse_share(text: str) -> float:
    """``0.05`` or ``5%`` to a share. Errors: ``UsageError``."""
    stripped = text.strip()
    try:
        share = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--max-dropped {shown(text)}: expected a share from 0 to 1, as 0.05 or 5%")
    return share


def check_dropped(stage: Stage, name: str, allowed: Tolerance) -> None:
    """Refuse a trace without rows, with a bad row where none may be, or with too many; warn of more than one in twenty.

    Errors: ``InputError`` that names the first bad row.
    """
    bad = {reason: count for reason, count in stage.dropped.most_common() if reason not in stage.not_requests}
    if stage.kept == 0 and not bad:
        raise InputError("no data rows", file=name, expected="at least one request")
    _refuse(stage.rejects, stage.read, bad, allowed)
    total = sum(bad.values())
    if total > WARNED * stage.read:
        stage.facts.warn(f"{total} of {stage.read} rows were dropped ({total / stage.read:.1%})")


def check_again(rejects: Sequence[Reject], read: int, dropped: Mapping[str, int], allowed: Tolerance) -> None:
    """The same for a trace that was loaded before, perhaps with less asked of it."""
    told = {reject.reason for reject in rejects}
    _refuse(rejects, read, {reason: count for reason, count in dropped.items() if reason in told}, allowed)


def _refuse(rejects: Sequence[Reject], read: int, bad: Mapping[str, int], allowed: Tolerance) -> None:
    total = sum(bad.values())
    if not total or not rejects:
        return
    first = min(rejects, key=lambda reject: (reject.file, reject.line))
    if allowed.on_error == "fail":
        raise InputError(first.reason, file=first.file, line=first.line, column=first.column, value=first.value,
                         expected="no bad rows (--on-error fail)")  # fmt: skip
    if total > allowed.max_dropped * read:
        usable = "at least half" if allowed.max_dropped == 0.5 else f"at least {1 - allowed.max_dropped:.4g} of the rows"
        reasons = ", ".join(f"{reason} {count}" for reason, count in list(bad.items())[:3])
        raise InputError(
            f"{total} of {read} rows cannot be used ({reasons}); the first: {first.reason}", file=first.file, line=first.line,
            column=first.column, value=first.value, expected=f"a trace of which {usable} can be read",
        )  # fmt: skip
