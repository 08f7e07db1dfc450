"""Profiles that do not ship: fitted ones in files beside a database, and those that somebody without a shell has sent.

Who may not name files calls them by a digest of their text, which is looked up among those that are there: no path comes from
outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replay_engine.config import ConfigError
from replay_engine.profile import list_profiles, parse_profile
from tracekit.errors import UsageError, shown
from tracekit.fingerprint import text_digest
from tracekit.store import Store

__all__ = ["FILED", "MOST_BYTES", "ProfileFile", "keep_profile", "list_profile_files", "profile_word"]

FILED = "file:"
"""Before the digest of a profile that is a file."""
MOST_BYTES = 256 << 10
_MOST = 200
"""Files that are looked at."""


class ProfileFile(NamedTuple):
    """``key``: what forms call it; ``name``: of the file; ``told``: a line that describes the profile."""

    key: str
    path: Path
    name: str
    told: str


def list_profile_files(store: Store) -> list[ProfileFile]:
    """The profiles in TOML files beside the database and those that were sent, by name; other files are passed over, and the
    same text is listed once."""
    found: dict[str, ProfileFile] = {}
    for path, text in _texts(store):
        key = FILED + text_digest(text)
        if key in found:
            continue
        try:
            profile = parse_profile(text, path.name)
        except ConfigError:
            continue
        found[key] = ProfileFile(key, path, path.name, profile.describe())
    return sorted(found.values(), key=lambda each: (each.name, each.key))


def profile_word(store: Store, picked: str) -> str:
    """What ``--profile`` is to say for what a form picked: a shipped name as it is, for a digest the path of its file.
    ``UsageError``: neither."""
    shipped = [profile.name for profile in list_profiles()]
    if picked in shipped:
        return picked
    if picked.startswith(FILED):
        for path, text in _texts(store):
            if FILED + text_digest(text) == picked:
                parse_profile(text, path.name)
                return str(path.absolute())
        raise UsageError("that profile is not there any more, or has changed; choose one again")
    raise UsageError(f"profile {shown(picked)}: expected one of {', '.join(shipped)}, or a file beside the database")


def keep_profile(store: Store, data: bytes, name: str) -> ProfileFile:
    """Check a profile that was sent, and store it. Errors: ``UsageError`` (no profile, or too large), ``ConfigError``."""
    if not name.lower().endswith(".toml"):
        raise UsageError(f"{shown(name)}: not a kind that is taken; expected a profile in TOML, as tracekit calibrate writes it")
    if len(data) > MOST_BYTES:
        raise UsageError(f"{shown(name)}: more than {MOST_BYTES >> 10} KiB; expected a profile in TOML")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{shown(name)}: not UTF-8 text; expected a profile in TOML") from None
    profile = parse_profile(text, shown(name))
    digest = text_digest(text)
    path = store.folder / "profiles" / f"{digest}.toml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.rename(path)
    return ProfileFile(FILED + digest, path, path.name, profile.describe())


def _texts(store: Store) -> Iterator[tuple[Path, str]]:
    """Files that may be profiles, with what is in them; those beside the database first."""
    looked = 0
    for folder in (store.path.absolute().parent, store.folder / "profiles"):
        for path in sorted(folder.glob("*.toml")):
            looked += 1
            if looked > _MOST:
                return
            try:
                if path.is_file() and path.stat().st_size <= MOST_BYTES:
                    yield path, path.read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
