"""The recorded parity vectors: where they lie and how they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "case_names", "read_case"]

FOLDER = Path(__file__).parents[1] / "data" / "vllm_parity"


def case_names() -> list[str]:
    return sorted(path.name.removesuffix(".config.json") for path in FOLDER.glob("*.config.json"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_case(name: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Knobs, requests and recorded iterations of a case."""
    knobs = json.loads((FOLDER / f"{name}.config.json").read_text(encoding="utf-8"))["knobs"]
    return knobs, _lines(FOLDER / f"{name}.requests.jsonl"), _lines(FOLDER / f"{name}.jsonl")
