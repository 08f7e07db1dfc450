"""Traces in: request logs of many formats into one canonical schema, and out to the engine as column batches."""

__all__: list[str] = []
