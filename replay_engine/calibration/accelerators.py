"""Peak numbers of accelerators, from the vendors' data sheets: dense rates without sparsity, per card.

Memory is what the driver reports where a shipped profile knows it, else the data sheet's decimal GB. Links are one direction of a
card's links to the others: NVLink or Infinity Fabric where there is one, else PCIe.
"""

from __future__ import annotations

from dataclasses import dataclass

from replay_engine.config import ConfigError
from replay_engine.settings_file import nearest, one_line

__all__ = ["ACCELERATORS", "Accelerator", "find_accelerator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One card. ``peak_fp8`` is ``None`` where it has no such units; ``profile`` names the shipped profile measured on it."""

    name: str
    aliases: tuple[str, ...]
    memory_bytes: int
    bandwidth_bytes_s: float
    peak_bf16: float
    peak_fp8: float | None
    link_bytes_s: float
    profile: str | None = None


_GB = 1_000_000_000
_T, _G = 1e12, 1e9
_ROWS: tuple[tuple[str, tuple[str, ...], int, float, float, float | None, float, str | None], ...] = (
    # name, aliases, memory, bandwidth, bf16, fp8, link, shipped profile
    ("H100 SXM 80GB", ("h100", "h100-sxm"), 84_932_978_278, 3.35e12, 989 * _T, 1979 * _T, 450 * _G, "h100-llama-3.1-8b"),
    ("H100 PCIe 80GB", ("h100-pcie",), 80 * _GB, 2.0e12, 756 * _T, 1513 * _T, 64 * _G, None),
    ("H200 SXM 141GB", ("h200",), 150_109_106_995, 4.8e12, 989 * _T, 1979 * _T, 450 * _G, "h200-llama-3.1-8b"),
    ("H20 96GB", ("h20",), 96 * _GB, 4.0e12, 148 * _T, 296 * _T, 450 * _G, None),
    ("B200 SXM 180GB", ("b200",), 191_501_854_310, 8e12, 2250 * _T, 4500 * _T, 900 * _G, "b200-llama-3.1-8b"),
    ("A100-80GB SXM", ("a100", "a100-80gb"), 84_975_927_951, 2.039e12, 312 * _T, None, 300 * _G, "a100-llama-3.1-8b"),
    ("A100-40GB SXM", ("a100-40gb",), 40 * _GB, 1.555e12, 312 * _T, None, 300 * _G, None),
    ("A10 24GB", ("a10",), 24 * _GB, 0.6e12, 125 * _T, None, 32 * _G, None),
    ("L40S 48GB", ("l40s",), 47_674_136_985, 0.864e12, 362 * _T, 733 * _T, 32 * _G, "l40s-llama-3.1-8b"),
    ("L4 24GB", ("l4",), 24 * _GB, 0.3e12, 121 * _T, 242 * _T, 32 * _G, None),
    ("RTX 4090 24GB", ("rtx4090", "4090"), 24 * _GB, 1.008e12, 165 * _T, 330 * _T, 32 * _G, None),
    ("RTX 5090 32GB", ("rtx5090", "5090"), 32 * _GB, 1.792e12, 209.5 * _T, 419 * _T, 64 * _G, None),
    ("RTX PRO 6000 Blackwell 96GB", ("rtxpro6000", "rtx-pro-6000"), 96 * _GB, 1.792e12, 503.8 * _T, 1007.6 * _T, 64 * _G, None),
    ("MI300X 192GB", ("mi300x",), 192 * _GB, 5.3e12, 1307.4 * _T, 2614.9 * _T, 448 * _G, None),
)

ACCELERATORS: tuple[Accelerator, ...] = tuple(
    Accelerator(
        name=name, aliases=aliases, memory_bytes=memory, bandwidth_bytes_s=bandwidth, peak_bf16=bf16, peak_fp8=fp8,
        link_bytes_s=link, profile=profile,
    )
    for name, aliases, memory, bandwidth, bf16, fp8, link, profile in _ROWS
)  # fmt: skip


def find_accelerator(name: str) -> Accelerator:
    """By name or alias, upper and lower case alike. ``ConfigError`` with the nearest names."""
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    for each in ACCELERATORS:
        if wanted in (each.name.lower().replace(" ", "-"), *each.aliases):
            return each
    known = [alias for each in ACCELERATORS for alias in each.aliases]
    close = nearest(wanted, known)
    more = "" if close.startswith("expected") else f" known: {', '.join(known)}"
    raise ConfigError(f"hardware {one_line(name)}: no such accelerator; {close}{more}")
