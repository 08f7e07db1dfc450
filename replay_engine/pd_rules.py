"""The policy tables of prefill and decode on separate engines: ``[pd]``, and ``[kv_link]`` between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replay_engine.config import ConfigError
from replay_engine.fleet.faults import Fault, parse_pd_fault
from replay_engine.fleet.routers import make_router
from replay_engine.rule_checks import at_least, check_types, one_of

__all__ = ["LINK_GB_PER_S", "KvLinkRules", "Pd"]

LINK_GB_PER_S = {"rdma": 50.0, "nvlink": 450.0, "pcie5": 50.0}
"""1e9 bytes a second, one way: 400 Gb/s RDMA, NVLink 4, PCIe 5 x16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pd:
    """Prefill and decode on separate engines: so many of each; 0 and 0: every engine does both.

    Each pool takes ``[scheduler]``, and what ``[pools.prefill]`` or ``[pools.decode]`` set over it. A router a pool (as
    ``fleet.router``): the prefill engine is chosen at the arrival, the decode engine when the prompt is computed.
    ``first_token_from``: ``decode`` computes the prompt's last token once more and samples the first token, as vLLM; ``prefill``
    hands its token to the client at once and ``decode`` goes on with the second. ``lost_kv``: where a prompt is computed again
    whose KV was lost with an engine. ``fail``: ``P1@60s:30s``, a prefill engine down from 60 s on the engine clock for 30 s (or
    for good without the second time), ``D0@60s`` a decode engine, ``link@60s:5s`` all links; ``slow``: ``P1@60s:2x``. Engines are
    numbered from 0 in their pool; several faults are separated by commas. ``seed`` is added to the run's for the routers' draws.
    """

    prefill: int = 0
    decode: int = 0
    prefill_router: str = "least_tokens"
    decode_router: str = "least_tokens"
    first_token_from: Literal["decode", "prefill"] = "decode"
    lost_kv: Literal["prefill", "decode"] = "prefill"
    fail: str = ""
    slow: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        check_types("pd", self)
        for name in ("prefill", "decode"):
            at_least("pd", name, getattr(self, name), 0)
        if bool(self.prefill) != bool(self.decode):
            name = "decode" if self.prefill else "prefill"
            raise ConfigError(f"pd.{name} = 0: a request needs an engine of either pool; expected at least 1 of each, or none")
        one_of("pd", "first_token_from", self.first_token_from, ("decode", "prefill"))
        one_of("pd", "lost_kv", self.lost_kv, ("prefill", "decode"))
        for name, engines in (("prefill", self.prefill), ("decode", self.decode)):
            try:
                make_router(getattr(self, f"{name}_router"), max(engines, 1))
            except ConfigError as error:
                raise ConfigError(f"pd.{name}_{error}") from None
        if not self.prefill and (self.fail or self.slow):
            name = f"pd.fail = {self.fail!r}" if self.fail else f"pd.slow = {self.slow!r}"
            raise ConfigError(f"{name}: there are no separate pools; expected pd.prefill and pd.decode")
        self.faults()

    def faults(self) -> list[Fault]:
        """What was planned to go wrong."""
        return [
            parse_pd_fault(part, slow=slow, prefill=self.prefill, decode=self.decode, option=f"pd.{'slow' if slow else 'fail'} =")
            for slow, text in ((False, self.fail), (True, self.slow))
            for part in text.split(",")
            if part.strip()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLinkRules:
    """The way a prompt's KV takes from the engine that computed it to the one that decodes.

    ``preset``: ``rdma`` and ``pcie5`` 50, ``nvlink`` 450 GB/s (1e9 bytes); ``gb_per_s`` overrides it. ``latency_s`` is added to
    every transfer. Every prefill engine has its own link: so many transfers run on it at a time, each at full bandwidth, the
    others wait in the order in which they were asked for (0: all run at once). ``kv_bytes_per_token``: what a token weighs, where
    the profile does not say or is not to be followed. ``on_failure``: what becomes of transfers that the
    link loses when it fails: ``retry`` when it is back, or ``recompute`` the prompt on the decode engine.
    """

    preset: Literal["rdma", "nvlink", "pcie5"] = "rdma"
    gb_per_s: float | None = None
    latency_s: float = 0.0005
    concurrent: int = 0
    kv_bytes_per_token: int | None = None
    on_failure: Literal["retry", "recompute"] = "retry"

    def __post_init__(self) -> None:
        check_types("kv_link", self)
        one_of("kv_link", "preset", self.preset, tuple(LINK_GB_PER_S))
        one_of("kv_link", "on_failure", self.on_failure, ("retry", "recompute"))
        if self.gb_per_s is not None and not self.gb_per_s > 0:
            raise ConfigError(f"kv_link.gb_per_s = {self.gb_per_s!r}: expected a bandwidth above 0")
        for name in ("latency_s", "concurrent"):
            at_least("kv_link", name, getattr(self, name), 0)
        at_least("kv_link", "kv_bytes_per_token", self.kv_bytes_per_token, 1)

    @property
    def bandwidth(self) -> float:
        """1e9 bytes a second, which is bytes a nanosecond."""
        return LINK_GB_PER_S[self.preset] if self.gb_per_s is None else self.gb_per_s
