"""``tracekit VERB``: the frame. Exit codes: 0 ran, 1 a gate failed, 2 usage or configuration, 3 input unusable,
4 inconclusive, 5 internal error, 130 interrupted. Errors are one line on standard error."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

import tracekit
from replay_engine.config import ConfigError
from tracekit.cli import (
    calibrate_cmd,
    capacity_cmd,
    compare_cmd,
    dashboard_cmd,
    describe_cmd,
    diagnose_cmd,
    experiment_cmd,
    export_cmd,
    gate_cmd,
    jobs_cmd,
    profiles_cmd,
    replay_cmd,
    runs_cmd,
    store_cmd,
    synth_cmd,
    traces_cmd,
    trial_cmd,
    tune_cmd,
    validate_cmd,
)
from tracekit.cli.output import note, print_json, write_out
from tracekit.errors import TracekitError

__all__ = ["app", "main"]

app = typer.Typer(
    name="tracekit",
    help="Replay a production trace of an LLM service, log every iteration, and see why the tail is bad.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        write_out(f"tracekit {tracekit.__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        write_out(context.get_help() + "\n")


_VERBS = (
    replay_cmd, traces_cmd, validate_cmd, synth_cmd, describe_cmd, runs_cmd, diagnose_cmd, compare_cmd, experiment_cmd,
    calibrate_cmd, tune_cmd, trial_cmd, capacity_cmd, gate_cmd, profiles_cmd, jobs_cmd, dashboard_cmd, store_cmd,
    export_cmd,
)  # fmt: skip
for _verbs in _VERBS:
    _verbs.register(app)


_WORDS = (
    (r"^Value error, (.*) is not one of (.*?)\.?$", r"\1: expected one of \2"),
    (r"^Input should be greater than or equal to ", "expected at least "),
    (r"^Input should be less than or equal to ", "expected at most "),
    (r"^Input should be a valid integer.*", "expected a whole number"),
    (r"^Input should be a valid number.*", "expected a number"),
    (r"^Input should be ", "expected "),
)
"""What the option parser says, and how we say it."""


def _joined_goodput(arguments: Sequence[str]) -> list[str]:
    """``--goodput ttft:200 tpot:50`` takes several words, as in vLLM's benchmark; they become one value."""
    words: list[str] = []
    open_list = False
    for word in arguments:
        pair = re.fullmatch(r"[a-z0-9_]+:[0-9.]+", word) is not None
        if open_list and pair and not words[-1].startswith("-"):
            words[-1] += f" {word}"
        else:
            open_list = word == "--goodput" or (open_list and pair)
            words.append(word)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises for what a person did wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        outcome = app(args=_joined_goodput(arguments), prog_name="tracekit", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away: that is its right. Keep the interpreter's last flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _failed("interrupted", 130, arguments)
    except (typer.Abort, TyperException, TracekitError, ConfigError) as error:
        if debug:
            traceback.print_exc()
        return _failed(_message(error), getattr(error, "exit_code", 2), arguments)
    except Exception as error:
        if debug:
            traceback.print_exc()
            hint = ""
        else:
            hint = "; the same command with --debug shows where"
        return _failed(f"internal error: {type(error).__name__}: {' '.join(str(error).split())[:300]}{hint}", 5, arguments)


def _message(error: BaseException) -> str:
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context is not None else ""
        return " ".join(str(_typer_text(error)).split()) + where
    return " ".join(str(error).split())


def _typer_text(error: TyperException) -> str:
    parameter = getattr(error, "param", None)
    text = str(error)
    name = "/".join(getattr(parameter, "opts", [])) if parameter is not None else ""
    if text.startswith("Missing parameter") and getattr(parameter, "metavar", None):
        option = f"{name} " if name.startswith("-") else ""
        return f"nothing given for {option}{parameter.metavar}"  # type: ignore[union-attr]
    for found, said in _WORDS:
        text = re.sub(found, said, text)
    return f"{name}: {text}" if name and name not in text else text


def _failed(message: str, code: int, arguments: Sequence[str]) -> int:
    if "--json" in arguments:
        print_json({"schema": "tracekit.error/1", "error": message, "exit_code": code})
    note(f"tracekit: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
