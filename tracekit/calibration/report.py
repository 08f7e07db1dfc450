"""What a calibration found: the profile, and what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay_engine.calibration.outcome import Calibration, implied
from replay_engine.profile import Profile
from tracekit.calibration.sources import write_profile

__all__ = ["CalibrationReport"]


@dataclass(slots=True, kw_only=True)
class CalibrationReport:
    """The profile, the fit behind it, the batches where any were measured: (name, measured ns, spread, mode), and what is to be
    known of what was read."""

    profile: Profile
    found: Calibration
    batches: list[tuple[str, float, float, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, file: str | Path) -> None:
        """The profile as TOML, for ``--profile``. ``UsageError``: the file cannot be written."""
        write_profile(self.profile, file)

    def implied(self) -> list[tuple[str, str]]:
        """What the coefficients say of the hardware; nothing where the model is not known."""
        if self.profile.model is None:
            return []
        return implied(self.profile.latency, self.profile.model, None if self.profile.synthetic else self.profile.hardware)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        held = self.found.held
        return {
            "profile": self.profile.to_dict(),
            "implied": dict(self.implied()), "notes": list(self.notes),
            "held_out": None if held is None else {
                "median_error": held.median, "p90_error": held.p90,
                "shapes": [
                    {"shape": s.shape, "measured_ns": s.measured_ns, "predicted_ns": s.predicted_ns, "error": s.error}
                    for s in held.shapes
                ],
            },
            "batches": [dict(zip(("case", "device_ns", "spread", "mode"), each, strict=True)) for each in self.batches],
        }  # fmt: skip
