"""``tracekit profiles``: the latency profiles that ship, and what stands behind each number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import AsJson, Debug
from tracekit.cli.output import emit, print_table, print_text

if TYPE_CHECKING:
    from tracekit.profile_diff import ProfileDiff

__all__ = ["register"]

profiles = typer.Typer(help="Latency profiles: what an iteration costs on which hardware.")


@profiles.callback(invoke_without_command=True)
def _profiles(context: typer.Context, as_json: AsJson = False, debug: Debug = False) -> None:
    if context.invoked_subcommand is None:
        list_(as_json=as_json)


@profiles.command("list")
def list_(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the shipped profiles."""
    from replay_engine.profile import DEFAULT_PROFILE, list_profiles

    found = list_profiles()
    rows = []
    for p in found:
        model, hardware = p.model, p.hardware
        base, token = p.latency.floor_ns / 1e6, p.latency.b_ns / 1e3
        mark = "default" if p.name == DEFAULT_PROFILE else ""
        kind = p.provenance.get("kind", "")
        rows.append(
            (p.name, ", ".join(p.aliases), model and model.name, hardware and hardware.name, base, token, kind, mark),
        )
    head = ("profile", "alias", "model", "hardware", "decode base ms", "us per prompt token", "origin", "")
    emit({"schema": "tracekit.profiles/1", "profiles": [p.to_dict() for p in found]}, as_json, lambda: print_table(head, rows))


@profiles.command()
def show(
    profile: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped profile's name or alias, or a TOML file.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a profile as the TOML it can be written as, with the source of each number."""
    from replay_engine.profile import load_profile

    found = load_profile(profile)
    emit(found.to_dict(), as_json, lambda: print_text(f"# {found.describe()}\n{found.to_toml()}"))


ONE = Annotated[str, typer.Argument(metavar="PROFILE", help="A shipped profile's name or alias, or a TOML file.")]
OTHER = Annotated[str, typer.Argument(metavar="PROFILE", help="What it is held against.")]


@profiles.command()
def diff(one: ONE, other: OTHER, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show where two profiles differ: coefficients and their sources, facts, and what typical iterations take."""
    from replay_engine.profile import load_profile
    from tracekit.profile_diff import diff_profiles

    found = diff_profiles(load_profile(one), load_profile(other))
    emit({"schema": "tracekit.profiles-diff/1", **found.to_dict()}, as_json, lambda: _render_diff(found))


def _render_diff(found: ProfileDiff) -> None:
    if not (found.sources or found.facts or any(each.one != each.other for each in found.coefficients)):
        print_text("no difference: coefficients, sources and facts are the same")
        return
    head = ("coefficient", found.names[0], found.names[1], "change %")
    print_table(head, [(each.what, each.one, each.other, each.percent) for each in found.coefficients])
    print_text("")
    rows = [(each.what, each.one, each.other, each.percent) for each in found.iterations]
    print_table(("iteration", *(f"{name}, ms" for name in found.names), "change %"), rows)
    for each in found.sources:
        print_text(f"{each.what}: {each.one} | {each.other}")
    facts = [(each.what, _fact(each.one), _fact(each.other)) for each in found.facts]
    long = [row for row in facts if max(len(str(cell)) for cell in row[1:]) > LONGEST]
    for what, one, other in long:
        print_text(f"{what}: {one} | {other}")
    if short := [row for row in facts if row not in long]:
        print_text("")
        print_table(("fact", *found.names), short)


LONGEST = 48
"""Characters of a fact that stands in a column: a sentence in one would push the other out of sight."""


def _fact(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list | tuple):
        return "-" if value is None else value
    if len(value) == 2 and all(isinstance(each, int | float) for each in value):
        return f"{value[0]:,.6g} to {value[1]:,.6g}"
    return "; ".join(str(each) for each in value)


def register(app: typer.Typer) -> None:
    app.add_typer(profiles, name="profiles")
