"""Arrays as Plotly's browser side reads them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["packed"]


def packed(values: npt.NDArray[Any], kind: str) -> dict[str, str]:
    """A typed array, base64; a tenth of what a list of numbers takes. ``kind``: f4, f8, i4."""
    return {"dtype": kind, "bdata": base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()}
