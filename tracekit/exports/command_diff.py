"""What has to change in a ``vllm serve`` line that runs today: flags out, flags in, and the whole line as it will be."""

from __future__ import annotations

from dataclasses import dataclass

from replay_engine.policy import parse_vllm_command
from replay_engine.vllm_flags import looks_like_command, split_command, with_flags
from tracekit.errors import UsageError, shown
from tracekit.experiments.knobs import knob_text
from tracekit.exports.wanted import Setting, Wanted, fewest_settings
from tracekit.flag_rows import CHECKED
from tracekit.flags import flags_for
from tracekit.policy_source import serving_command

__all__ = ["CommandDiff", "command_diff"]

_BOUNDS = ("max_queued_reqs", "max_queued_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDiff:
    """``out``: flags that the line has and must lose; ``into``: flags that it must get; ``command``: the line with both done."""

    out: tuple[str, ...]
    into: tuple[str, ...]
    command: str

    def text(self, title: str) -> str:
        """The difference and the new line, to read and to paste."""
        lines = [f"# {title}", *(f"# - {flag}" for flag in self.out), *(f"# + {flag}" for flag in self.into)]
        if not self.out and not self.into:
            lines.append("# the line is what is wanted already")
        return "\n".join([*lines, self.command]) + "\n"


def command_diff(wanted: Wanted, given: str, engine_version: str | None = None) -> CommandDiff:
    """``given``: a ``vllm serve`` line, or a YAML file with one (``policy_source``). What ``wanted`` says nothing of stays, where
    it is no run's whole policy. ``UsageError``: no such line, a flag that the version lacks, no profile to derive the rest from.
    """
    command = serving_command(given)
    if not looks_like_command(command):
        raise UsageError(f'--diff {shown(given)}: no such command line; expected "vllm serve MODEL --flag ..." or a manifest')
    if wanted.profile is None:
        raise UsageError("--diff: the profile that was tuned on is not one of those shipped, so that defaults are not known")
    current = parse_vllm_command(command, wanted.profile)
    target = wanted.target(current, wanted.profile)
    today = split_command(command)
    settings = fewest_settings(target, wanted.profile)
    old = dict(today.settings) | {f"front_door.{knob}": value for knob, value in today.front_door.items()}
    new = {knob: value for knob, value in settings.items() if knob != "engine_version"}
    new |= {f"front_door.{knob}": bound for knob in _BOUNDS if (bound := getattr(target.rules.front_door, knob)) is not None}
    stays = {knob for knob, value in old.items() if new.get(knob, getattr(target.scheduler, knob, None)) == value}
    drop = [knob for knob in old if knob not in stays]
    put = [knob for knob, value in new.items() if knob not in stays]
    version = engine_version or wanted.engine_version
    beyond = [each for each in wanted.settings if each.knob not in new and each.knob not in stays and each.knob not in drop]
    added = [Setting(knob=knob, value=knob_text(new[knob]), why="") for knob in put]
    into = _flags([*added, *beyond], version, wanted.block_size)
    # two of our knobs may be one flag of the engine's
    drop += [knob for knob in split_command(" ".join(["vllm serve", *into])).settings if knob in old and knob not in drop]
    return CommandDiff(out=tuple(_flags([Setting(knob=knob, value=knob_text(old[knob]), why="") for knob in drop], "", 16)),
                       into=tuple(into),
                       command=with_flags(command, {knob.rpartition(".")[2] for knob in drop}, into))  # fmt: skip


def _flags(settings: list[Setting], version: str, block_size: int) -> list[str]:
    """vLLM's flags; with a ``version``, ``UsageError`` for what it does not have."""
    found = flags_for([f"{each.knob}={each.value}" for each in settings], version or CHECKED["vllm"][1], block_size=block_size)
    lacking = [each for each in found.why_not("vllm") if each.lacking]
    if version and lacking:
        raise UsageError("--diff: vLLM cannot be set like this: " + "; ".join(f"{each.knob}: {each.reason}" for each in lacking))
    return list(found.vllm)
