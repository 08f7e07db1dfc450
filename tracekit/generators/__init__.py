"""Seeded traffic: arrivals, lengths, tenants, prefixes and sessions as asked, and whole test cases from recipes."""

from __future__ import annotations

from tracekit.generators.spec import Spec, TenantSpec, read_spec, spec_of
from tracekit.generators.traffic import generate

__all__ = ["Spec", "TenantSpec", "generate", "read_spec", "spec_of"]
