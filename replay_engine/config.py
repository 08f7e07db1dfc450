"""The ``[scheduler]`` table: exactly vLLM 0.33's knobs, names and meaning, as one frozen object validated once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["ConfigError", "SchedulerConfig", "cdiv"]

ENGINE_VERSIONS = ("0.20.0", "0.24.0", "0.30.0", "0.33.0")


class ConfigError(ValueError):
    """A setting cannot be used. The message is one line: knob, value, reason, what was expected."""


def cdiv(a: int, b: int) -> int:
    """Ceiling division."""
    return -(-a // b)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """vLLM's scheduler knobs. Tokens, blocks and sequences; ``None`` means what vLLM's default for it means.

    One of ``num_gpu_blocks`` is the null block: ``num_gpu_blocks - 1`` are usable.
    ``engine_version`` selects the documented differences of older releases.
    """

    max_num_batched_tokens: int = 8192
    max_num_scheduled_tokens: int | None = None
    max_num_seqs: int = 1024
    max_num_active_seqs: int | None = None
    max_model_len: int = 131072
    num_gpu_blocks: int = 16384
    block_size: int = 16
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    async_scheduling: bool = True
    engine_version: str = "0.33.0"

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "prefill_schedule_interval"):
            self._at_least(name, 1)
        for name in ("max_num_scheduled_tokens", "max_num_active_seqs"):
            if getattr(self, name) is not None:
                self._at_least(name, 1)
        self._at_least("num_gpu_blocks", 2)
        self._at_least("long_prefill_token_threshold", 0)
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"policy = {self.policy!r}: not a queue order; expected 'fcfs' or 'priority'")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark = {self.watermark}: expected a share of the blocks, 0 <= watermark < 1")
        if self.engine_version not in ENGINE_VERSIONS:
            raise ConfigError(f"engine_version = {self.engine_version!r}: expected one of {', '.join(ENGINE_VERSIONS)}")
        self._check_combinations()

    def _check_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = str(field.type)
            if kind.startswith("int"):
                bad = (not isinstance(value, int) or isinstance(value, bool)) and not (value is None and "None" in kind)
                expected = "a whole number"
            elif kind == "bool":
                bad, expected = not isinstance(value, bool), "true or false"
            elif kind == "float":
                bad, expected = not isinstance(value, int | float) or isinstance(value, bool), "a number"
            else:
                bad, expected = not isinstance(value, str), "text"
            if bad:
                raise ConfigError(f"{field.name} = {value!r}: expected {expected}")

    def _at_least(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if value < low:
            raise ConfigError(f"{name} = {value}: expected at least {low}")

    def _check_combinations(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: every running sequence needs one token an"
                f" iteration; expected at least max_num_seqs = {self.max_num_seqs}"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: without chunked prefill a whole prompt must fit one"
                f" iteration; expected at least max_model_len = {self.max_model_len}"
            )
        if cdiv(self.max_model_len, self.block_size) > self.usable_blocks:
            raise ConfigError(
                f"num_gpu_blocks = {self.num_gpu_blocks}: one request of max_model_len = {self.max_model_len} tokens must fit"
                f" the {self.usable_blocks} usable blocks of {self.block_size}; expected max_model_len of at most"
                f" {self.usable_blocks * self.block_size}, or more blocks"
            )
        if self.engine_version != "0.33.0":
            self._check_old_version()

    def _check_old_version(self) -> None:
        newer: dict[str, float | None] = {
            "max_num_active_seqs": None,
            "long_prefill_token_threshold_adaptive": False,
            "prefill_schedule_interval": 1,
        }
        if self.engine_version == "0.20.0":
            newer["watermark"] = 0.0
        for name, default in newer.items():
            if getattr(self, name) != default:
                raise ConfigError(f"{name} = {getattr(self, name)}: vLLM {self.engine_version} has no such knob; leave it out")

    @property
    def usable_blocks(self) -> int:
        """KV blocks that sequences can hold."""
        return self.num_gpu_blocks - 1

    @property
    def token_budget(self) -> int:
        """Tokens one iteration may compute."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def seat_limit(self) -> int:
        """Length of the running list at which admission stops."""
        return self.max_num_active_seqs or self.max_num_seqs
