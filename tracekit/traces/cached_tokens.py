"""Where sources count cached prompt tokens: inside the input count (OpenAI, our tables) or beside it (Anthropic).

Adding what is already inside makes prompts up to twice as long, leaving out what is outside makes them ten times shorter, and
both look plausible. So the convention is taken from names that have one, from totals, or from the person, and never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracekit.errors import InputError, UsageError
from tracekit.traces.columns import COLUMNS

if TYPE_CHECKING:
    from tracekit.traces.stage import Stage

__all__ = ["Reading", "agreed_reading", "count_cached"]

Place = Literal["inside", "outside"]
ASKED = ("generic_csv", "generic_jsonl", "generic_parquet", "usage_jsonl", "langfuse")
"""Formats whose sources differ, so that ``--cached`` has something to say."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counts of one answer, in tokens; ``total`` is ``None`` where the source has none."""

    line: int
    given: int
    cached: int
    output: int
    total: int | None

    @property
    def fits(self) -> tuple[bool, bool]:
        """Whether the counts can be read with the cached tokens inside the input, and outside."""
        if self.total is None:
            return self.cached <= self.given, True
        return (
            self.cached <= self.given and self.total == self.given + self.output,
            self.total == self.given + self.cached + self.output,
        )


def agreed_reading(readings: Iterable[Reading], file: str, column: str) -> Place:
    """The one place that fits every answer that used the cache. Errors: ``InputError`` when both or none do."""
    inside = outside = True
    last: Reading | None = None
    for reading in readings:
        fits = reading.fits
        if fits == (False, False):
            continue  # its total counts something else; it says nothing on the question
        if not (inside and fits[0]) and not (outside and fits[1]):
            raise InputError(
                "cached tokens are inside the input count above this line and outside it here", file=file, line=reading.line,
                column=column, expected="one way of counting in a file, or --cached inside|outside",
            )  # fmt: skip
        inside, outside, last = inside and fits[0], outside and fits[1], reading
    if last is not None and inside and outside:
        raise InputError(
            "cached tokens may be inside the input count or outside it, and the totals fit both", file=file, line=last.line,
            column=column, expected="--cached inside (as OpenAI counts) or --cached outside (as Anthropic does)",
        )  # fmt: skip
    return "outside" if last is not None and outside else "inside"


def count_cached(stage: Stage, fmt: str, said: Place | None, file: str) -> None:
    """Bring the input counts of generic formats to the canonical ones, as ``said``; refuse counts that cannot be so.

    Errors: ``UsageError`` for an option without effect, ``InputError`` where more tokens were cached than the prompt has.
    """
    stage.flush()
    have = COLUMNS["obs_cached_tokens"] in stage.columns
    if said is not None and (fmt not in ASKED or not have):
        raise UsageError(f"--cached {said}: {file} is {fmt} and says where it counts them, or counts none; leave the option out")
    if not have:
        return
    if said == "outside" and fmt.startswith("generic_"):
        most = int(stage.one("SELECT max(input_tokens::BIGINT + coalesce(obs_cached_tokens, 0)) FROM stage")[0])
        if most > 4294967295:
            raise InputError("the input and its cached tokens are too large together", file=file, value=most,
                             expected="token counts")  # fmt: skip
        stage.con.execute("UPDATE stage SET input_tokens = input_tokens + coalesce(obs_cached_tokens, 0)")
    wrong = stage.con.execute(
        "SELECT line, obs_cached_tokens FROM stage WHERE obs_cached_tokens > input_tokens AND input_tokens > 0 LIMIT 1"
    ).fetchall()
    if wrong and fmt.startswith("generic_"):
        raise InputError(
            "more tokens were cached than the input has", file=file, line=int(wrong[0][0]), column="obs_cached_tokens",
            value=wrong[0][1], expected="--cached outside, if the input count leaves them out",
        )  # fmt: skip
