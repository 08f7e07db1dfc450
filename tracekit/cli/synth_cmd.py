"""``tracekit synth``: seeded traffic from options or a spec, and whole test cases from recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug

if TYPE_CHECKING:
    from tracekit.traces.synth import Columns

__all__ = ["register"]

Out = Annotated[Path | None, typer.Argument(metavar="OUT", help="The file to write, .jsonl or .jsonl.gz.", show_default=False)]
Requests = Annotated[int | None, typer.Option("--requests", metavar="N", min=1, help="How many requests [default: 2000].")]
Seconds = Annotated[float | None, typer.Option("--seconds", metavar="X", help="Its length in seconds.")]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Same seed, same bytes [default: 0].")]
Arrival = Annotated[
    str | None,
    typer.Option("--arrival", metavar="TEXT", help="poisson:rate=5, gamma:rate=5,cv=3, onoff:5,9s,1m, diurnal:rate=1."),
]
Input = Annotated[
    str | None, typer.Option("--input", metavar="TOKENS", help="Prompts: 512, lognormal:median=500,sigma=0.8, uniform:9,99.")
]
Output = Annotated[str | None, typer.Option("--output", metavar="TOKENS", help="Answer lengths, likewise.")]
LengthsFrom = Annotated[
    str | None, typer.Option("--lengths-from", metavar="TRACE", help="Draw pairs of lengths from this file or loaded trace.")
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", min=1, help="The limit that requests are sent with.")]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help='Shared prefixes: "groups=6 tokens=320".')]
SessionsOption = Annotated[
    str | None, typer.Option("--sessions", metavar="TEXT", help='Turns and think time: "turns=geometric:mean=4 think=fixed:10".')
]
Tenants = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="TEXT", help='A sender: "name=chat share=0.7 input=lognormal:median=450"; repeatable.'),
]
SpecFile = Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="All of it from a TOML file; options go first.")]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="A test case in YAML: trace, policies and profile go to --out.")
]
ServeGen = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--servegen", metavar="TRACE DATASET", help="One ServeGen client: windows (CSV), histograms (JSON[.gz])."),
]
Start = Annotated[float | None, typer.Option("--start", metavar="X", help="Seconds into the client's windows [default: 0].")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder for a recipe's files.")]


def synth(
    out: Out = None,
    requests: Requests = None,
    seconds: Seconds = None,
    seed: SeedOption = None,
    arrival: Arrival = None,
    input_tokens: Input = None,
    output_tokens: Output = None,
    lengths_from: LengthsFrom = None,
    max_tokens: MaxTokens = None,
    prefix: Prefix = None,
    sessions: SessionsOption = None,
    tenants: Tenants = None,
    spec: SpecFile = None,
    recipe: RecipeFile = None,
    folder: Folder = None,
    client: ServeGen = None,
    start: Start = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a synthetic trace; without further options three tenants with bursts and shared prefixes."""
    given = {"requests": requests, "seconds": seconds, "seed": seed, "arrival": arrival, "input": input_tokens,
             "output": output_tokens, "max_tokens": max_tokens, "prefix": prefix, "sessions": sessions,
             "tenants": tenants}  # fmt: skip
    if recipe is not None:
        _case(recipe, folder, [name for name, value in {**given, "OUT": out, "spec": spec}.items() if value], as_json)
    elif client is not None or start is not None:
        _client(out, client, start, {**given, "spec": spec, "lengths_from": lengths_from}, as_json)
    else:
        _traffic(out, given, spec, lengths_from, db, as_json)


def _client(out: Path | None, files: tuple[Path, Path] | None, start: float | None, given: dict[str, Any], as_json: bool) -> None:
    from tracekit.errors import UsageError
    from tracekit.generators.servegen import servegen

    others = [name for name, value in given.items() if value and name not in ("seconds", "seed")]
    if out is None or files is None or others:
        what = f"{others[0]} does not go with it" if others else "no file to write" if out is None else "no client"
        raise UsageError(f"--servegen: {what}; expected synth OUT --servegen TRACE DATASET [--start X] [--seconds X] [--seed N]")
    seed = given["seed"] or 0
    _write(servegen([files], seconds=given["seconds"], seed=seed, start_s=start or 0.0), out, seed, as_json)


def _case(recipe: Path, folder: Path | None, others: list[str], as_json: bool) -> None:
    from tracekit.cli.output import emit, print_text
    from tracekit.errors import UsageError
    from tracekit.generators.recipe import build_case

    if folder is None or others:
        what = f"{others[0]} does not go with it" if others else "no folder for its files"
        raise UsageError(f"--recipe {recipe}: {what}; expected --recipe FILE --out DIR")
    built = build_case(recipe, folder)
    commands = built.commands()
    document = {"schema": "tracekit.recipe/1", "recipe": str(recipe), "requests": built.requests, "replay": commands}
    text = "".join(f"\n{name}:\n  {command}" for name, command in commands.items())
    emit(document, as_json, lambda: print_text(f"{folder}: {built.requests:,} requests, {len(built.variants)} variants{text}"))


def _traffic(out: Path | None, given: dict[str, Any], spec: Path | None, lengths_from: str | None, db: Path,
             as_json: bool) -> None:  # fmt: skip
    from tracekit.errors import UsageError
    from tracekit.traces.synth import synthesise

    if out is None:
        raise UsageError("synth: no file to write; expected synth OUT, or synth --recipe FILE --out DIR")
    seed, asked = given["seed"] or 0, {name: value for name, value in given.items() if value is not None and value != []}
    if spec is None and lengths_from is None and not asked.keys() - {"requests", "seconds", "seed"}:
        columns = synthesise(given["requests"] or 2000, seconds=given["seconds"], seed=seed)
    else:
        columns, seed = _generated(asked, spec, lengths_from, db)
    _write(columns, out, seed, as_json)


def _write(columns: Columns, out: Path, seed: int, as_json: bool) -> None:
    from tracekit.cli.output import emit, print_text
    from tracekit.traces.synth import write_jsonl

    write_jsonl(columns, out)
    n, span = len(columns), int(columns.arrival_ns[-1]) / 1e9
    document = {"schema": "tracekit.synth/1", "file": str(out), "requests": n, "span_s": span, "seed": seed}
    emit(document, as_json, lambda: print_text(f"{out}: {n:,} requests over {span:,.1f} s, seed {seed}"))


def _generated(asked: dict[str, Any], spec: Path | None, lengths_from: str | None, db: Path) -> tuple[Columns, int]:
    from tracekit.generators import generate, read_spec, spec_of

    for name in ("prefix", "sessions"):
        if name in asked:
            asked[name] = _pairs(asked[name], f"--{name}")
    if "tenants" in asked:
        asked["tenants"] = [_pairs(text, "--tenant") for text in asked["tenants"]]
    pool = None
    if lengths_from is not None:
        pool = _pool(lengths_from, db)
    wanted = read_spec(spec, asked) if spec is not None else spec_of(asked)
    return generate(wanted, pool), wanted.seed


def _pool(name: str, db: Path) -> Any:
    """A trace to draw lengths from: a file, or the name of a loaded one."""
    from tracekit.traces.source import TraceSource
    from tracekit.traces.stored import loaded_or_read

    return TraceSource.from_loaded(loaded_or_read(name, db))


def _pairs(text: str, where: str) -> dict[str, Any]:
    """``name=chat share=0.7`` as a table; a dot makes a table of its own: ``prefix.groups=6``."""
    from tracekit.errors import UsageError, shown

    table: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{where} {shown(text)}: {shown(word)}: expected name=value pairs with spaces between them")
        outer, dot, inner = name.partition(".")
        if dot:
            table.setdefault(outer, {})[inner] = value
        else:
            table[name] = value
    return table


def register(app: typer.Typer) -> None:
    app.command("synth", short_help="Make a synthetic trace, or a case from a recipe.")(synth)
