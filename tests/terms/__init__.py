"""A run in the terms of others."""
