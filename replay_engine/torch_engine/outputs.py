"""The tokens an engine has sampled, by request."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["TokenLog"]


class TokenLog:
    """Kept as they come, an array an iteration; put together when asked."""

    def __init__(self) -> None:
        self._requests: list[npt.NDArray[np.int32]] = []
        self._tokens: list[npt.NDArray[np.int64]] = []

    def add(self, requests: npt.NDArray[np.int32], tokens: npt.NDArray[np.int64]) -> None:
        """One iteration's tokens: ``requests`` (indices) and ``tokens`` of one length. Both are kept."""
        self._requests.append(requests)
        self._tokens.append(tokens.copy())

    def by_request(self) -> dict[int, list[int]]:
        """Every request's tokens, in the order in which they were sampled."""
        found: dict[int, list[int]] = {}
        for requests, tokens in zip(self._requests, self._tokens, strict=True):
            for request, token in zip(requests.tolist(), tokens.tolist(), strict=True):
                found.setdefault(request, []).append(token)
        return found
