"""One module per trace format, and the two ways of reading that they share (delimited text by SQL, JSON lines)."""

__all__: list[str] = []
