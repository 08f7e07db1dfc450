"""Manifests of work that is no replay: what a gate, a diagnosis, an experiment, a search or a calibration rests on, by digest.

They lie beside the result: ``gate.manifest.json`` beside ``gate.json``, ``profile.manifest.json`` beside ``profile.toml``, and in
the database's folder where the result is in the database. ``replay --from`` repeats replays alone; of these manifests it says
which command repeats the work, and which of the files that it read has changed since.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown, shown_path
from tracekit.fingerprint import SHOWN, digest_of, host_document, library_versions
from tracekit.store.files import write_json

__all__ = ["SCHEMA", "beside", "command_line", "input_file", "refuse_work", "write_work_manifest"]

SCHEMA = "tracekit.work-manifest/1"
_NOT_KEPT = ("progress", "say", "db", "storage", "address", "notify")
"""Options that decide no result; one of them may hold a password."""
_SECRET = re.compile(r"(\w+://)[^/@\s]+@")


def beside(result: Path) -> Path:
    """Where the manifest of a result in a file lies."""
    return result.with_name(f"{result.stem}.manifest.json")


def input_file(role: str, file: str | Path) -> dict[str, str] | None:
    """A file that was read, by its digest; ``None`` where there is none of this name."""
    path = Path(file)
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        return {"role": role, "file": str(file), "sha256": hashlib.file_digest(opened, "sha256").hexdigest()[:SHOWN]}


def command_line() -> str:
    """The command of this process, as a shell takes it, without passwords; what is not a command of ours is its script's name."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    words = ["tracekit" if name in ("tracekit", "main.py", "__main__.py") else name, *sys.argv[1:]]
    return _SECRET.sub(r"\1", shlex.join(shown(word, 400) for word in words))


def write_work_manifest(path: Path, verb: str, *, given: Mapping[str, Any], rests_on: Mapping[str, Any], result: Any,
                        inputs: Iterable[dict[str, str] | None] = ()) -> None:  # fmt: skip
    """``given``: the options of the call; ``rests_on``: what they came to; ``result``: the document that came out, of which a
    digest is kept; ``inputs``: files, by ``input_file``."""
    kept = {name: value for name, value in given.items() if name not in _NOT_KEPT and value not in (None, ())}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {
        "schema": SCHEMA, "verb": verb, "command": command_line(),
        "options": {name: _plain(value) for name, value in kept.items()},
        "inputs": [each for each in inputs if each is not None], "rests_on": dict(rests_on), "versions": library_versions(),
        "host": host_document(), "results": {"document": digest_of(result)},
    })  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value if isinstance(value, int | float | str | list) else str(value)


def refuse_work(file: str, manifest: Mapping[str, Any]) -> UsageError:
    """What ``replay --from`` says of a manifest of other work: the command that repeats it, and what it read has changed."""
    whole = {"role", "file", "sha256"}
    read = [each for each in manifest.get("inputs", ()) if isinstance(each, Mapping) and each.keys() >= whole]
    changed = [str(each["file"]) for each in read if _now(each) != each["sha256"]]
    also = f" ({', '.join(shown(name, 200) for name in changed)}: not as it was then)" if changed else ""
    verb, command = shown(manifest.get("verb"), 40), shown(manifest.get("command"), 2000)
    return UsageError(f"--from {shown_path(file)}: of tracekit {verb}, which replay does not repeat; run: {command}{also}")


def _now(read: Mapping[str, Any]) -> str | None:
    found = input_file(str(read["role"]), str(read["file"]))
    return None if found is None else found["sha256"]
