"""A run in the terms and formulas of others: what their load generators would have reported of the same requests."""

from tracekit.terms.seen import Seen, seen_of
from tracekit.terms.tools import TOOLS, Terms, in_terms_of

__all__ = ["TOOLS", "Seen", "Terms", "in_terms_of", "seen_of"]
