"""A run's manifest: all that decides it, by value or by digest, and digests of what came out, so that it can be had again.

Every replay writes ``manifest.json`` into ``<db>.d/runs/N/``, beside its ``verdict.json`` where it was diagnosed. It holds
profile, policy, SLO and the part of the trace by value, the trace by its digest. ``replay --from`` takes it anywhere and says
whether the same bytes came out, or which input differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.again import option_beside
from tracekit.errors import InputError, UsageError, shown, shown_path
from tracekit.fingerprint import digest_of, host_document, library_versions, source_digest, text_digest
from tracekit.store.files import read_json, write_json, write_text
from tracekit.work_manifest import SCHEMA as WORK
from tracekit.work_manifest import refuse_work

if TYPE_CHECKING:
    from tracekit.replay import Setup
    from tracekit.store import Store

__all__ = [
    "MANIFEST",
    "READING",
    "SCHEMA",
    "VERDICT",
    "differences",
    "folder_of",
    "kept_verdict",
    "read_manifest",
    "reading_of",
    "restored_setup",
    "write_manifest",
]

SCHEMA = "tracekit.manifest/1"
MANIFEST, VERDICT = "manifest.json", "verdict.json"
READING = ("mapping", "trace_format", "arrival", "cached", "on_error", "max_dropped", "dedupe")
"""Options that decide what becomes of a file."""
_BESIDE = ("inputs", "from_manifest", "name", "diagnose", "db", "progress", "say", "engine")
"""What can be given beside a manifest. A file is read as the manifest says; its engine is the simulator."""
_NEEDED = {
    "engine", "run", "trace", "profile", "policy", "slo", "slice", "seed", "events", "accept_degraded", "versions", "results",
}  # fmt: skip


def folder_of(store: Store, run: int) -> Path:
    """Where the files of a run lie."""
    return store.folder / "runs" / str(run)


def write_manifest(
    store: Store, run: int, setup: Setup, *, row: Mapping[str, Any], verdict: Mapping[str, Any] | None,
    given: Mapping[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """Write a run's manifest, and its verdict; ``row``: of ``runs``; ``given``: the options of ``replay``. Returns the
    manifest."""
    profile = row["setup"]["profile"]
    found: dict[str, Any] = {
        "schema": SCHEMA, "run": run, "name": row["name"], "command": row["command"], "started_at": str(row["started_at"]),
        "engine": row["engine"], "trace": _trace(store, row, setup, given or {}), "slice": row["slice"], "seed": row["seed"],
        "profile": {"name": setup.profile.name, "digest": text_digest(profile), "toml": profile},
        "policy": {"digest": digest_of(row["policy"]), "document": row["policy"]},
        "slo": row["slo"], "accept_degraded": row["setup"]["accept_degraded"], "events": row["events"],
        "versions": library_versions() | {"scheduler": f"vLLM {setup.policy.scheduler.engine_version}"},
        "host": host_document(), "results": _results(row, verdict),
    }  # fmt: skip
    folder = folder_of(store, run)
    folder.mkdir(parents=True, exist_ok=True)
    if verdict is not None:
        write_text(folder / VERDICT, verdict_text(verdict))
    write_json(folder / MANIFEST, found)
    return found


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """The bytes of ``verdict.json``."""
    return json.dumps(verdict, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def kept_verdict(store: Store, run: int, started_at: datetime) -> dict[str, Any] | None:
    """The verdict that a run's replay ended with, so that nobody has to find it again; ``None`` where there is none, or it is not
    whole, or another run's (``started_at``: as the ``runs`` row has it)."""
    folder = folder_of(store, run)
    manifest = read_json(folder / MANIFEST)
    try:
        text = (folder / VERDICT).read_text(encoding="utf-8")
        if manifest is None or manifest["schema"] != SCHEMA or datetime.fromisoformat(manifest["started_at"]) != started_at:
            return None
        if manifest["results"]["verdict"] != text_digest(text):
            return None
        found: dict[str, Any] = json.loads(text)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def _trace(store: Store, row: Mapping[str, Any], setup: Setup, given: Mapping[str, Any]) -> dict[str, Any]:
    with store.read() as con:
        digest, files, form = con.execute(
            "SELECT digest, source_files, source_format FROM traces WHERE trace = ?", [row["trace"]]
        ).fetchall()[0]
    inputs = given.get("inputs") or ()
    return {
        "name": row["trace_name"], "digest": digest, "files": files, "format": form, "requests": setup.source.total,
        "requests_digest": source_digest(setup.source), "inputs": [inputs] if isinstance(inputs, str) else list(inputs),
        "reading": {name: _plain(given.get(name)) for name in READING},
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _results(row: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """Digests of what came out. What a run is called is none of it."""
    sections = {name: digest_of(section) for name, section in row["matrix"].items() if name != "run"}
    return {"state": row["state"], "iterations": row["iterations"], "matrix": sections,
            "verdict": None if verdict is None else text_digest(verdict_text(verdict))}  # fmt: skip


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest in ``path``. ``UsageError`` where there is no file, ``InputError`` where it is none."""
    file = Path(path) / MANIFEST if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(f"--from {shown_path(path)}: no such file; expected the {MANIFEST} of a run")
    found = read_json(file)
    if found is not None and found.get("schema") == WORK:
        raise refuse_work(str(path), found)
    if found is None or found.get("schema") != SCHEMA or not found.keys() >= _NEEDED:
        wanted = f"schema {SCHEMA}, as every replay writes it"
        raise InputError("not a manifest, or not a whole one", file=str(path), expected=wanted)
    if found["engine"] != "sim":
        raise UsageError(f"--from {shown_path(path)}: measured on a real engine, which never takes the same time twice;"
                         " expected the manifest of a simulated run")  # fmt: skip
    return found


def reading_of(manifest: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """How the trace of a repeated run was read: as the manifest says, from where it lies now."""
    trace = manifest["trace"]
    return {**trace["reading"], "inputs": _inputs(given) or trace["inputs"]}


def _inputs(given: Mapping[str, Any]) -> list[str]:
    return [given["inputs"]] if isinstance(given["inputs"], str) else list(given["inputs"])


def _refuse_options(given: Mapping[str, Any]) -> None:
    """A manifest says it all: an option that would change the run is a slip."""
    if given["engine"] == "torch":
        raise UsageError("--engine torch: a manifest is replayed by the simulator; expected --engine sim")
    also = option_beside(given, _BESIDE)
    if also is not None:
        raise UsageError(f"{also}: the manifest says it; expected only --name and --db beside --from")


def restored_setup(store: Store, manifest: Mapping[str, Any], given: Mapping[str, Any], tell: Any) -> Setup:
    """What the manifest's run was made of, its trace from the database, from the inputs given, or from where the manifest had it.
    ``UsageError``: options that would change it; ``InputError`` where an input is not the manifest's."""
    from tracekit.diagnosis.stored import setup_of

    _refuse_options(given)

    profile, policy = text_digest(manifest["profile"]["toml"]), digest_of(manifest["policy"]["document"])
    for part, digest in (("profile", profile), ("policy", policy)):
        if digest != manifest[part]["digest"]:
            raise InputError(f"the {part} was changed after the run: its digest is not {manifest[part]['digest']}", file=MANIFEST)
    row = {
        "run": manifest["run"], "trace": _loaded(store, manifest["trace"], _inputs(given), tell),
        "trace_name": manifest["trace"]["name"],
        "policy": manifest["policy"]["document"], "slo": manifest["slo"], "slice": manifest["slice"], "seed": manifest["seed"],
        "events": manifest["events"],
        "setup": {"profile": manifest["profile"]["toml"], "accept_degraded": manifest["accept_degraded"]},
    }  # fmt: skip
    setup = setup_of(store, row)
    tell(f"manifest: {shown(setup.trace_name)}, {setup.source.total:,} requests, {setup.profile.describe()}")
    if source_digest(setup.source) != manifest["trace"]["requests_digest"]:
        tell("the requests differ from the manifest's, though the file does not: another version has read it")
    return setup


def _loaded(store: Store, trace: Mapping[str, Any], inputs: Sequence[str], tell: Any) -> int:
    """The number of the manifest's trace in the database; loaded where it is not there yet."""
    from tracekit.replay import _trace

    if store.exists():
        with store.read() as con:
            there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
            found = con.execute("SELECT trace FROM traces WHERE digest = ?", [trace["digest"]]).fetchall() if there else []
        if found and not inputs:
            return int(found[0][0])
    given = {**trace["reading"], "inputs": list(inputs) or trace["inputs"]}
    number, _, _, _ = _trace(store, given, tell)
    with store.read() as con:
        digest, files = con.execute("SELECT digest, source_files FROM traces WHERE trace = ?", [number]).fetchall()[0]
    if digest == trace["digest"]:
        return number
    wanted = {each["sha256"] for each in trace["files"]}
    other = next((each for each in files if each["sha256"] not in wanted), files[0])
    raise InputError("the input differs from the manifest's", file=other["name"], value=f"sha256 {other['sha256'][:16]}",
                     expected=f"{trace['files'][0]['name']}, sha256 {trace['files'][0]['sha256'][:16]}")  # fmt: skip


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What came out otherwise than the manifest says, a line each, and what of its inputs is not the same: empty where all bytes
    are the same."""
    one, other = before["results"], after["results"]
    found = [
        f"{name}: {one[name]} in the manifest, {other[name]} here" for name in ("state", "iterations") if one[name] != other[name]
    ]
    names = [name for name in {**one["matrix"], **other["matrix"]} if one["matrix"].get(name) != other["matrix"].get(name)]
    if names:
        found.append(f"matrix: {', '.join(names)}")
    if one["verdict"] is not None and other["verdict"] is not None and one["verdict"] != other["verdict"]:
        found.append(f"{VERDICT}: {one['verdict']} in the manifest, {other['verdict']} here")
    if not found:
        return []
    causes = [f"{name}: {shown(value)} in the manifest, {shown(after['versions'].get(name))} here"
              for name, value in before["versions"].items() if after["versions"].get(name) != value]  # fmt: skip
    if before["trace"]["requests_digest"] != after["trace"]["requests_digest"]:
        causes.append("the requests that were read")
    return [*found, *(f"an input differs: {each}" for each in causes)]
