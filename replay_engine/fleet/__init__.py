"""Several engines on one clock: replicas behind a router, and prefill and decode pools with a link between them."""

__all__: list[str] = []
