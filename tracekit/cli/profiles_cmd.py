"""``tracekit profiles``: the latency profiles that ship, and what stands behind each number."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.options import AsJson, Debug
from tracekit.cli.output import emit, print_table, print_text

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
    document = {"schema": "tracekit.profile/1", **found.to_dict()}
    emit(document, as_json, lambda: print_text(f"# {found.describe()}\n{found.to_toml()}"))


def register(app: typer.Typer) -> None:
    app.add_typer(profiles, name="profiles")
