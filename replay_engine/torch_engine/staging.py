"""Between host and device: at most one packed buffer an iteration down, the sampled tokens back.

On CUDA both host sides are pinned and there are two of each, because iteration n+1 is packed while n is under way; the device's
packed buffer is one, at a fixed place (graphs read it), and the stream keeps its uses in order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Staging"]

_DEPTH = 2


class Staging:
    """Buffers for ``capacity`` packed int32 elements and ``samples`` tokens."""

    def __init__(self, device: torch.device, capacity: int, samples: int) -> None:
        self.cuda = device.type == "cuda"
        depth = _DEPTH if self.cuda else 1
        self._host = [torch.zeros(capacity, dtype=torch.int32, pin_memory=self.cuda) for _ in range(depth)]
        self._arrays = [buffer.numpy() for buffer in self._host]
        self.packed = torch.zeros(capacity, dtype=torch.int32, device=device) if self.cuda else self._host[0]
        self._back = [torch.zeros(samples, dtype=torch.int64, pin_memory=self.cuda) for _ in range(_DEPTH)]
        self._tokens = [buffer.numpy() for buffer in self._back]
        self._done = [torch.cuda.Event() for _ in range(depth)] if self.cuda else []
        self._turn = 0
        self._landed = self._tokens[0][:0]
        self._step = self.packed[:0]
        self._steps_for = (0, 0)
        self._spill: npt.NDArray[np.int32] | None = None

    def array(self, size: int) -> npt.NDArray[np.int32]:
        """Where ``size`` elements are to be packed; they stay until ``send``."""
        self._turn = (self._turn + 1) % _DEPTH
        if size <= len(self._arrays[0]):
            self._spill = None
            return self._arrays[self._turn % len(self._arrays)][:size]
        self._spill = np.zeros(size, np.int32)
        return self._spill

    def send(self, size: int, *, keep: int) -> torch.Tensor:
        """Enqueue the copy of what was packed and return it as it will lie on the device.

        The first ``keep`` elements come to lie in ``packed`` itself, whatever the size.
        """
        if self._spill is not None:  # rare: thousands of blocks newly known at once
            spilled = torch.from_numpy(self._spill).to(self.packed.device)
            self.packed[:keep] = spilled[:keep]
            return spilled
        if self.cuda:
            self.packed[:size].copy_(self._host[self._turn][:size], non_blocking=True)
        return self.packed[:size]

    def advance(self, rows: int, padding: int) -> torch.Tensor:
        """In place of ``array`` and ``send``: what lies packed on the device for ``rows`` decodes, ``padding`` of them nobody's,
        is moved one token on there."""
        self._turn = (self._turn + 1) % _DEPTH
        if self._steps_for != (rows, padding):
            self._steps_for, self._step = (rows, padding), torch.zeros(4 * rows, dtype=torch.int32, device=self.packed.device)
            self._step[: rows - padding], self._step[2 * rows : 3 * rows - padding] = -1, 1
        return self.packed[: 4 * rows].add_(self._step)

    def land(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens``, which on a CPU lie where ``read_back`` finds them: the pass ends with its results in the host's memory."""
        if not self.cuda:
            self._back[self._turn][: len(tokens)].copy_(tokens)
            self._landed = self._tokens[self._turn][: len(tokens)]
        return tokens

    def read_back(self, tokens: torch.Tensor) -> Callable[[], npt.NDArray[np.int64]]:
        """Enqueue the copy of ``tokens`` to the host; the result waits for it and returns them (valid for one more turn)."""
        if not self.cuda:
            landed = self._landed
            return lambda: landed
        found, done = self._tokens[self._turn][: len(tokens)], self._done[self._turn]
        self._back[self._turn][: len(tokens)].copy_(tokens, non_blocking=True)
        done.record()

        def waited() -> npt.NDArray[np.int64]:
            done.synchronize()
            return found

        return waited
