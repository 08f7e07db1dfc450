"""Small JSON files that other processes read: written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["read_json", "write_json", "write_text"]


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON object by rename."""
    write_text(path, json.dumps(value, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file by rename, so that a reader sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, ``None`` when the file is absent or is not a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
