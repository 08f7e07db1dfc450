"""Reads safetensors files: a length, a JSON header, raw little-endian tensors. Nothing is unpickled, nothing is copied.

The engine runs where only torch, triton and numpy are, so the format, which is small, is read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.config import ConfigError
from replay_engine.settings_file import one_line

__all__ = ["Checkpoint"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 100_000_000
"""The format's own limit, bytes."""


class Checkpoint:
    """The tensors of a model directory: ``model.safetensors``, or the shards its index lists. Mapped read-only.

    ``ConfigError`` for a directory without them, a file cut short, or a header that does not fit its file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, tuple[torch.Tensor, Path]] = {}
        for path in _files(folder):
            for name, tensor in _tensors(path):
                if name in self._tensors:
                    raise ConfigError(f"{path}: tensor {one_line(name)} is in {self._tensors[name][1].name} too")
                self._tensors[name] = tensor, path

    def names(self) -> set[str]:
        return set(self._tensors)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor ``name``, which must have ``shape``; its memory is the file's."""
        found = self._tensors.get(name)
        if found is None:
            raise ConfigError(f"{self.folder}: tensor {name} is missing; expected one of {list(shape)}")
        tensor, path = found
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{path}: tensor {name} is {list(tensor.shape)}; config.json says {list(shape)}")
        return tensor


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.exists():
            others = sorted(p.name for p in folder.glob("*.bin"))
            also = f" ({others[0]} is pickled, and pickles are not loaded)" if others else ""
            raise ConfigError(f"{folder}: no model.safetensors and no index of shards{also}; expected safetensors weights")
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(f"{index}: no index of shards; expected a JSON object with weight_map") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ConfigError(f"{index}: shard {one_line(name)}: expected the name of a file beside the index")
    return [folder / name for name in names]


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="c")  # private: torch wants writable memory, the file stays as it is
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "empty"
        raise ConfigError(f"{path}: {reason or 'cannot be read'}; expected safetensors weights") from None
    length = int(raw[:8].view("<u8")[0]) if len(raw) >= 8 else 0
    if not 0 < length <= min(len(raw) - 8, _LONGEST_HEADER):
        raise ConfigError(f"{path}: {len(raw)} bytes with a header of {length}: not a safetensors file, or cut short")
    try:
        header: dict[str, Any] = json.loads(raw[8 : 8 + length].tobytes())
    except ValueError:
        raise ConfigError(f"{path}: the header is not JSON: not a safetensors file") from None
    data = raw[8 + length :]
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, _tensor(path, name, entry, data)


def _tensor(path: Path, name: str, entry: Any, data: npt.NDArray[np.uint8]) -> torch.Tensor:
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
        count = int(np.prod(shape, dtype=np.int64))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: tensor {one_line(name)}: no dtype, shape and data_offsets in the header") from None
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ConfigError(f"{path}: tensor {one_line(name)} is {one_line(kind)}; expected {', '.join(_DTYPES)}")
    if not 0 <= start <= end <= len(data) or end - start != count * dtype.itemsize:
        raise ConfigError(f"{path}: tensor {one_line(name)}: its bytes do not fit its shape or the file, which is cut short")
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start).reshape(shape)
