"""Exports that a browser asks for: a run, a finding's confirmed change, a tuner's answer, made as ``tracekit export`` makes them.

An address names a run by its number or a study by its whole key, and a format of a closed list; nothing of it becomes a path. A
file is made in a folder of this user's alone, one of a kind at a time on this machine, and has no name any more when the first
byte of it is sent: whatever is killed leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from flask import Flask, Response, abort, request

from dashboards.queries import RunBook
from dashboards.report_page import page_html
from dashboards.run_report import run_page
from dashboards.spoken import spoken
from tracekit.errors import LockedError, TracekitError, UsageError
from tracekit.exports.export import export
from tracekit.exports.flag_text import FLAG_FORMATS, flag_text
from tracekit.exports.wanted import read_tuned, wanted_by_tuner
from tracekit.orders import ConfigError
from tracekit.studies import load_study

__all__ = ["RUN_KINDS", "STUDY_KINDS", "Kind", "register_downloads"]

POOLS = ("prefill", "decode")
PIECE = 1 << 16
GZIP = 31
"""What zlib calls gzip's format."""
_PACKED = ("application/gzip", "application/zip")
MOST_RUN = (1 << 31) - 1
PATIENCE_S = 300
"""For the process that makes a study's page."""


class Kind(NamedTuple):
    """What a link says and tells, how the file's name goes on after the run's, and its content type."""

    label: str
    tells: str
    suffix: str
    content: str


_TEXT, _YAML = "text/plain; charset=utf-8", "application/yaml"
_FLAGS = {
    "vllm-args": Kind("vLLM flags", "the settings as vllm serve's command line", "-vllm-args.txt", _TEXT),
    "vllm-yaml": Kind("vLLM YAML", "the settings as vLLM's --config file", "-vllm.yaml", _YAML),
    "sglang-args": Kind("SGLang flags", "the settings as SGLang's command line", "-sglang-args.txt", _TEXT),
    "helm-values": Kind("Helm values", "the settings as values of a Helm chart", "-values.yaml", _YAML),
    "env": Kind("Environment", "the settings as an environment file", ".env", _TEXT),
}
_PAGE = Kind("HTML report", "one page that opens offline", ".html", "text/html; charset=utf-8")
RUN_KINDS = {
    "html": _PAGE,
    "markdown": Kind("Markdown", "a summary for a ticket", ".md", "text/markdown; charset=utf-8"),
    "perfetto": Kind("Perfetto trace", "for ui.perfetto.dev", ".perfetto.json.gz", "application/gzip"),
    "csv": Kind("CSV", "all tables of the run, zipped", "-csv.zip", "application/zip"),
    "parquet": Kind("Parquet", "all tables of the run, zipped", "-parquet.zip", "application/zip"),
    **_FLAGS,
}
STUDY_KINDS = {"html": _PAGE, **_FLAGS}


def register_downloads(server: Flask, book: RunBook) -> None:
    """``/export/run/N/KIND`` (``finding=ID``, ``pool=NAME`` for flags) and ``/export/study/KEY/KIND``."""

    def run(run: int, kind: str) -> Response:
        finding, pool = request.args.get("finding"), request.args.get("pool")
        if pool is not None and pool not in POOLS:
            abort(404)
        named = f"run-{run}" + (f"-{pool}" if pool else "") + ("-change" if finding else "")
        return _answer(book, kind, named + RUN_KINDS[kind].suffix, RUN_KINDS[kind],
                       lambda folder: _of_run(book, run, kind, folder, finding, pool))  # fmt: skip

    def study(key: str, kind: str) -> Response:
        return _answer(book, f"study-{kind}", f"study-{key[:8]}{STUDY_KINDS[kind].suffix}", STUDY_KINDS[kind],
                       lambda folder: _of_study(book, key, kind, folder))  # fmt: skip

    server.add_url_rule(f"/export/run/<int(max={MOST_RUN}):run>/<any({_quoted(RUN_KINDS)}):kind>", "export_run", run)
    server.add_url_rule(f"/export/study/<key>/<any({_quoted(STUDY_KINDS)}):kind>", "export_study", study)


def _quoted(kinds: dict[str, Kind]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


def _answer(book: RunBook, lock: str, name: str, kind: Kind, make: Callable[[Path], Path]) -> Response:
    """The file that ``make`` makes in a folder, or why there is none, in a line."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        abort(403, "asked by another site")
    try:
        with _alone(book, lock) as folder:
            stream = make(folder).open("rb")
    except (UsageError, ConfigError) as error:
        return Response(f"{spoken(error)}\n", 409, content_type=_TEXT)
    except (LockedError, BusyError) as error:
        return Response(f"{spoken(error)}\n", 503, {"Retry-After": "5"}, content_type=_TEXT)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Vary": "Accept-Encoding"}
    if kind.content in _PACKED or not request.accept_encodings["gzip"]:
        headers["Content-Length"] = str(os.fstat(stream.fileno()).st_size)
        return Response(_pieces(stream), headers=headers, content_type=kind.content)
    return Response(_gzipped(_pieces(stream)), headers={**headers, "Content-Encoding": "gzip"}, content_type=kind.content)


class BusyError(TracekitError):
    """Another one of this kind is being made."""


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(PIECE):
            yield piece


def _gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=GZIP)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


@contextmanager
def _alone(book: RunBook, kind: str) -> Iterator[Path]:
    """A folder that is gone afterwards, for the only one that makes this kind of export of this database now."""
    place = _place()
    whose = hashlib.sha256(str(book.store.path.absolute()).encode()).hexdigest()[:16]
    handle = os.open(place / f"{whose}-{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another {kind} is being made, and they are made one at a time; ask again in a moment") from None
        with tempfile.TemporaryDirectory(prefix="making-", dir=place) as folder:
            yield Path(folder)
    finally:
        os.close(handle)


def _place() -> Path:
    """A folder that belongs to this user alone. ``UsageError`` where somebody else has taken its name."""
    place = Path(tempfile.gettempdir()) / f"tracekit-exports-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if place.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(f"{place}: is not this user's alone; expected it to be, or a TMPDIR that is")
    return place


def _of_run(book: RunBook, run: int, kind: str, folder: Path, finding: str | None, pool: str | None) -> Path:
    out = folder / "made"
    if kind == "html":
        out.write_text(page_html(run_page(book, str(run))), encoding="utf-8", errors="replace")
        return out
    flags = kind in FLAG_FORMATS
    report = export(str(run), to=kind, out=out, db=book.store.path, finding=finding if flags else None,
                    pool=pool if flags else None)  # fmt: skip
    return _zipped(report.figures["rows"], out, kind, folder) if kind in ("csv", "parquet") else out


def _zipped(tables: dict[str, int], out: Path, kind: str, folder: Path) -> Path:
    """The tables in one file; what has been packed is removed, so that no more lies there than has to."""
    names = {next(iter(tables)): out} if out.is_file() else {table: out / f"{table}.{kind}" for table in tables}
    method = zipfile.ZIP_DEFLATED if kind == "csv" else zipfile.ZIP_STORED
    with zipfile.ZipFile(folder / "packed", "w", method, compresslevel=6) as packed:
        for table, path in names.items():
            packed.write(path, f"{table}.{kind}")
            path.unlink()
    shutil.rmtree(out, ignore_errors=True)
    return folder / "packed"


def _of_study(book: RunBook, key: str, kind: str, folder: Path) -> Path:
    study = load_study(book.store, key)
    if study.key != key:
        raise UsageError(f"study {study.key}: expected its whole key")
    if study.answer is None:
        raise UsageError(f"study {key}: has no answer yet; its search is {study.state}")
    out = folder / "made"
    if kind == "html":
        _tuner_page(study.folder / "answer.json", out, book)
    else:
        out.write_text(flag_text(wanted_by_tuner(read_tuned(study.folder / "answer.json")), kind).text, encoding="utf-8")
    return out


def _tuner_page(answer: Path, out: Path, book: RunBook) -> None:
    """By the command itself: the words of an answer are the tuner's, which pages know nothing of."""
    words = ["export", str(answer.absolute()), "--to", "html", "--out", str(out), "--db", str(book.store.path.absolute())]
    done = subprocess.run(
        [sys.executable, "-m", "tracekit.cli.main", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise UsageError((done.stderr.strip().splitlines() or ["the page could not be made"])[-1])
