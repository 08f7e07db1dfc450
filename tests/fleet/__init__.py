"""Several replicas on one clock."""

__all__: list[str] = []
