"""A profile from a model's ``config.json`` and a named accelerator: a roofline, marked as an estimate."""

from __future__ import annotations

from pathlib import Path

from replay_engine.calibration.accelerators import find_accelerator
from replay_engine.calibration.model_config import read_model
from replay_engine.calibration.outcome import implied
from replay_engine.calibration.roofline import WHAT, Roofline, roofline
from replay_engine.profile import Profile, physical_floors
from tracekit.calibration.sources import ReportTable, SourceReport, SourceRequest
from tracekit.errors import UsageError

__all__ = ["calibrate_on_paper"]

KINDS = {"floor_ns": "weights", "a_ns": "start", "b_ns": "flops", "c_ns": "attention", "d_ns": "decode", "e_ns": "kv"}


def calibrate_on_paper(request: SourceRequest) -> SourceReport:
    """``UsageError``: no accelerator named. ``ConfigError``: the model's configuration, or an accelerator that is not known."""
    if request.hardware is None:
        raise UsageError("--hardware: which accelerator is not said; expected a name, as --hardware h100")
    card = find_accelerator(request.hardware)
    cards = request.tensor_parallel or 1
    model = read_model(Path(request.source), request.dtype, request.kv_dtype)
    found = roofline(model, card, cards)
    kind = "estimate: a roofline of the model's sizes and the card's peaks"
    slug = f"{model.facts.name}-{card.aliases[0]}".lower() + (f"-tp{cards}" if cards > 1 else "")
    provenance = {"kind": kind, **found.sources, "model": f"the model's configuration; weights: {model.weights}",
                  "hardware": "published: the vendor's data sheet, dense rates"}  # fmt: skip
    fit = {"note": "nothing was measured: errors are unknown until tracekit calibrate --check", "kv_dtype": model.kv_dtype}
    profile = Profile(
        name=slug, latency=found.latency, model=model.facts, hardware=found.hardware, fit=fit, provenance=provenance
    )  # fmt: skip
    report = SourceReport(kind="roofline", profile=profile, tables=[_uncertainty(found)])
    told = implied(profile.latency, model.facts, found.hardware)
    facts, floors = model.facts, physical_floors(model.facts, found.hardware)
    report.lines = [
        f"model: {facts.parameters / 1e9:.3g} billion weights, {facts.weight_bytes / 1e9:.4g} GB ({model.dtype}), KV"
        f" {facts.kv_bytes_per_token:,} bytes a token ({model.kv_dtype})",
        *(f"physical floor of {name}: {round(least, 2 if least < 1000 else None):,} ns, {what}"
          for name, (least, what) in floors.items()),
        *(f"implied by {what}: {value}" for what, value in told),
        "ESTIMATE: nothing was measured; tracekit calibrate --check PROFILE TRACE says how far it is off",
    ]
    least_ns = {name: least for name, (least, _) in floors.items()}
    report.document = {"estimate": True, "implied": dict(told), "floors_ns": least_ns, "shares": {
        name: {"value": share.value, "low": share.low, "high": share.high, "source": share.source}
        for name, share in found.shares.items()
    }}  # fmt: skip
    return report


def _uncertainty(found: Roofline) -> ReportTable:
    rows = tuple(
        (key, WHAT[kind], round(share.value, 3), f"{share.low:.2f} to {share.high:.2f}", share.source)
        for key, kind in KINDS.items() if (share := found.shares[kind])
    )  # fmt: skip
    head = ("coefficient", "share of", "taken", "seen", "source")
    return ReportTable(title="shares of the peaks", head=head, rows=rows)
