"""What a check found, and the bounds it is held to."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["RELATIVE_RMS", "Finding", "relative_rms", "rounds_once", "same", "untouched", "within", "within_twice"]

# Of sums of float32 products against sums of the same in another order; of float16 results against float32 ones.
RELATIVE_RMS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Half a unit in the last place, relative to the value, doubled; and what float32 sums on the way may lose, relative to the RMS of
# all values: where two terms cancel, the error is that of the terms.
ROUNDING = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
SUMS = 2.0**-20


class Finding(NamedTuple):
    """The outcome of one check: its name, whether it held, and the number that decided."""

    name: str
    holds: bool
    said: str


def relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    """RMS of the difference over the RMS of ``want``, in float64; NaN anywhere makes it NaN."""
    wide = want.double().cpu()
    return float((got.double().cpu() - wide).square().mean().sqrt() / wide.square().mean().sqrt())


def within(name: str, got: torch.Tensor, want: torch.Tensor) -> Finding:
    """``got`` is ``want`` up to the relative RMS that its dtype allows."""
    error, bound = relative_rms(got, want), RELATIVE_RMS[got.dtype]
    return Finding(name, error < bound, f"relative RMS {error:.1e}, allowed {bound:.0e}")


def within_twice(name: str, got: torch.Tensor, want: torch.Tensor, plain: torch.Tensor) -> Finding:
    """The rule of FlashAttention's tests: at most twice the error that the same sums in low precision, ``plain``, make."""
    wide = want.float().cpu()
    floor = 2 * float((wide + 0.3 - 0.3 - wide).abs().max())
    error, allowed = float((got.float().cpu() - wide).abs().max()), 2 * float((plain.float().cpu() - wide).abs().max()) + floor
    return Finding(name, error <= allowed, f"largest error {error:.1e}, twice that of plain sums {allowed:.1e}")


def rounds_once(name: str, got: torch.Tensor, want: torch.Tensor) -> Finding:
    """``got`` is ``want`` rounded once to its dtype, float32 sums on the way allowed for. ``want`` is float32 or float64."""
    wide = want.double().cpu()
    allowed = ROUNDING[got.dtype] * wide.abs() + SUMS * wide.square().mean().sqrt()
    error = float(((got.double().cpu() - wide).abs() / allowed).max())
    return Finding(name, error <= 1, f"largest error {error:.2f} of what one rounding allows")


def same(name: str, got: torch.Tensor, want: torch.Tensor) -> Finding:
    """Bitwise the same, NaN equal to NaN."""
    differ = ~((got == want) | (got.isnan() & want.isnan())) if got.is_floating_point() else got != want
    return Finding(name, got.shape == want.shape and not bool(differ.any()), f"{int(differ.sum())} elements differ")


def untouched(name: str, poisoned: torch.Tensor) -> Finding:
    """All of it is still the NaN it was filled with."""
    written = int((~poisoned.isnan()).sum())
    return Finding(name, written == 0, f"{written} elements written")
