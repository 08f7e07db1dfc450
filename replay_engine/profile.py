"""Profiles: what a model on a piece of hardware costs per iteration, and where each number comes from.

``device = max(floor, a + b * prefill_tokens) + c * sum(query * context) + d * decode_seqs + e * decode_kv``,
``host = h0 + h1 * running + h2 * (joined + left)``, all in nanoseconds. A profile is a TOML file; the shipped
ones are in ``profiles/``. ``load_profile("h100")`` or ``load_profile("my.toml")``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from replay_engine.config import ConfigError
from replay_engine.settings_file import file_name, locate, nearest, one_line, parse_toml, render_toml

__all__ = [
    "DEFAULT_PROFILE",
    "PROFILE_SCHEMA",
    "HardwareFacts",
    "Latency",
    "ModelFacts",
    "PhysicsError",
    "Profile",
    "list_profiles",
    "load_profile",
    "parse_profile",
    "physical_floors",
    "prompt_flops",
]

PROFILE_SCHEMA = "tracekit.profile/1"
DEFAULT_PROFILE = "h100-llama-3.1-8b"
_TABLES = ("latency", "model", "hardware", "fit", "provenance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The coefficients the simulator takes, in ns (per token, token x context token, sequence, KV token). ``p_ns``: a row that
    an iteration without prefill is padded by, to the next of ``buckets.BUCKETS``; 0 where nothing pads, or nobody told.
    ``s_ns``: a token that the longest context of the decodes is above their mean; 0 where the sum of contexts is enough, or
    nobody told."""

    floor_ns: float = 0.0
    a_ns: float = 0.0
    b_ns: float = 0.0
    c_ns: float = 0.0
    d_ns: float = 0.0
    e_ns: float = 0.0
    h0_ns: float = 0.0
    h1_ns: float = 0.0
    h2_ns: float = 0.0
    p_ns: float = 0.0
    s_ns: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{each.name} = {value}: a cost cannot be negative; expected a number of ns, 0 or more")

    def times(self, factor: float) -> Latency:
        """Every cost ``factor`` times as high."""
        return Latency(**{each.name: factor * getattr(self, each.name) for each in fields(self)})

    @property
    def known(self) -> bool:
        """Whether it says what an iteration takes: that of a measured engine that nobody has calibrated does not."""
        return bool(self.floor_ns or self.a_ns or self.b_ns)

    def costs(self) -> dict[str, float]:
        """The coefficients by name, those of padding and of skew only where there is one."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("p_ns", "s_ns")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the model's configuration says. ``parameters`` counts all weights, ``weight_bytes`` as loaded."""

    name: str
    dtype: str
    parameters: int
    weight_bytes: int
    layers: int
    kv_heads: int
    head_dim: int
    kv_bytes_per_token: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFacts:
    """One accelerator's peak numbers, and how many work together. ``memory_bytes`` is what the driver reports per card."""

    name: str
    memory_bytes: int
    peak_flops: float
    bandwidth_bytes_s: float
    count: int = 1
    tensor_parallel: int = 1


class PhysicsError(ConfigError):
    """A coefficient below what the silicon can do. ``finding`` is the sentence without what was expected, for who knows where
    the number comes from."""

    def __init__(self, finding: str) -> None:
        super().__init__(f'latency.{finding}; expected at least that, or physics = "off" for planted coefficients')
        self.finding = finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Coefficients, facts and provenance. ``synthetic`` profiles (planted coefficients) are not held to physics
    and may lack the model and the hardware."""

    name: str
    latency: Latency
    model: ModelFacts | None = None
    hardware: HardwareFacts | None = None
    aliases: tuple[str, ...] = ()
    synthetic: bool = False
    fit: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.synthetic:
            if self.model is None or self.hardware is None:
                raise ConfigError(f'profile {self.name}: [model] and [hardware] are missing; expected both, or physics = "off"')
            _check_physics(self.latency, self.model, self.hardware)

    def to_dict(self) -> dict[str, Any]:
        """The file's layout as plain values; ``None`` tables are left out."""
        document: dict[str, Any] = {
            "schema": PROFILE_SCHEMA,
            "name": self.name,
            "aliases": list(self.aliases),
            "physics": "off" if self.synthetic else "on",
            "latency": self.latency.costs(),
        }
        for table in ("model", "hardware"):
            facts = getattr(self, table)
            if facts is not None:
                document[table] = asdict(facts)
        return document | {"fit": dict(self.fit), "provenance": dict(self.provenance)}

    def to_toml(self) -> str:
        return render_toml(self.to_dict())

    @property
    def origin(self) -> str | None:
        """Where the numbers come from, in words; ``None``: it does not say."""
        kind = self.provenance.get("kind")
        if not self.synthetic:
            return kind
        if kind is not None and kind.startswith(("measured", "fitted")):
            return f"{kind}; held to no card's peaks"
        return "synthetic coefficients, not held to physics"

    def describe(self) -> str:
        """One line for the head of a report."""
        origin = self.origin or "unknown origin"
        if self.model is None or self.hardware is None or self.synthetic:
            made = self.provenance.get("kind", "").startswith(("measured", "fitted"))
            what = f"{self.model.name} {self.model.dtype}; " if made and self.model is not None else ""
            return f"profile {self.name} ({what}{origin})"
        cards = f"{self.hardware.count} x " if self.hardware.count > 1 else ""
        return f"profile {self.name} ({self.model.name} {self.model.dtype} on {cards}{self.hardware.name}; {origin})"


def prompt_flops(model: ModelFacts) -> float:
    """Floating-point operations that a prompt token needs at least: the layers' matrices. The embedding is looked up, and only
    the last token needs logits."""
    attention = 2 * model.hidden_size**2 + 2 * model.hidden_size * model.kv_heads * model.head_dim
    layers = model.layers * (attention + 3 * model.hidden_size * model.intermediate_size)
    return 2.0 * min(layers, model.parameters)


def physical_floors(model: ModelFacts, hardware: HardwareFacts) -> dict[str, tuple[float, str]]:
    """Per coefficient the ns that the silicon needs at least, and for what: the peaks of all cards of one tensor-parallel group
    count."""
    cards = hardware.tensor_parallel
    bandwidth = hardware.bandwidth_bytes_s * cards
    return {
        "b_ns": (prompt_flops(model) / (hardware.peak_flops * cards) * 1e9, "a prompt token at peak FLOPs"),
        "floor_ns": (model.weight_bytes / bandwidth * 1e9, "one read of the weights at peak bandwidth"),
        "e_ns": (model.kv_bytes_per_token / bandwidth * 1e9, "one read of a KV token at peak bandwidth"),
    }


def _check_physics(latency: Latency, model: ModelFacts, hardware: HardwareFacts) -> None:
    """Refuse costs below what the silicon can do."""
    for name, (least, what) in physical_floors(model, hardware).items():
        value = getattr(latency, name)
        if value < least:
            raise PhysicsError(
                f"{name} = {_ns(value)} ns: below the physical floor, {what} takes {_ns(least)} ns on {hardware.name}"
            )


def _ns(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


T = TypeVar("T", Latency, ModelFacts, HardwareFacts)


def parse_profile(text: str, where: str = "profile") -> Profile:
    """A profile from TOML text. ``ConfigError`` (one line, with ``where``) on anything unknown, missing or impossible."""
    document = parse_toml(text, where)
    for key in document:
        if key not in (*_TABLES, "schema", "name", "aliases", "physics"):
            raise ConfigError(f"{locate(text, '', key, where)}: {key}: unknown; {nearest(key, _TABLES)}")
    if document.get("schema", PROFILE_SCHEMA) != PROFILE_SCHEMA:
        place, given = locate(text, "", "schema", where), one_line(document["schema"])
        raise ConfigError(f"{place}: schema = {given}: of another version; expected {PROFILE_SCHEMA}, which is what is read here")
    if document.get("physics", "on") not in ("on", "off"):
        raise ConfigError(f"{locate(text, '', 'physics', where)}: physics = {document['physics']!r}: expected 'on' or 'off'")
    if "latency" not in document:
        raise ConfigError(f"{where}: [latency] is missing; expected floor_ns, a_ns, b_ns, c_ns, d_ns, e_ns")
    try:
        return Profile(
            name=str(document.get("name") or Path(where).stem),
            aliases=tuple(document.get("aliases", ())),
            synthetic=document.get("physics") == "off",
            latency=_facts(Latency, document["latency"], "latency", text, where),
            model=_facts(ModelFacts, document["model"], "model", text, where) if "model" in document else None,
            hardware=_facts(HardwareFacts, document["hardware"], "hardware", text, where) if "hardware" in document else None,
            fit=dict(document.get("fit", {})),
            provenance={k: str(v) for k, v in document.get("provenance", {}).items()},
        )
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from None


def _facts(kind: type[T], table: object, name: str, text: str, where: str) -> T:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{locate(text, '', name, where)}: {name} = {one_line(table)}: expected a table [{name}]")
    known = {each.name: str(each.type) for each in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{locate(text, name, key, where)}: {name}.{key}: unknown; {nearest(key, known)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {"str": isinstance(value, str), "int": number and value == int(value) and value > 0, "float": number}[known[key]]
        if not fits:
            expected = {"str": "text", "int": "a whole number above 0", "float": "a number"}[known[key]]
            raise ConfigError(f"{locate(text, name, key, where)}: {name}.{key} = {one_line(value)}: expected {expected}")
        values[key] = {"str": str, "int": int, "float": float}[known[key]](value)
    optional = set(known) if kind is Latency else {"count", "tensor_parallel"}
    missing = [key for key in known if key not in values and key not in optional]
    if missing:
        raise ConfigError(f"{where}: {name}.{missing[0]} is missing; expected {', '.join(known)}")
    return kind(**values)


def _shipped() -> dict[str, str]:
    folder = resources.files("replay_engine") / "profiles"
    texts = {p.name.removesuffix(".toml"): p.read_text(encoding="utf-8") for p in folder.iterdir() if p.name.endswith(".toml")}
    return dict(sorted(texts.items()))


def list_profiles() -> list[Profile]:
    """The shipped profiles, by name."""
    return [parse_profile(text, f"{name}.toml") for name, text in _shipped().items()]


def load_profile(name_or_path: str | Path) -> Profile:
    """A shipped profile by name or alias, or one from a TOML file. Unknown: ``ConfigError`` with the nearest names."""
    name = str(name_or_path)
    shipped = _shipped()
    if name in shipped:
        return parse_profile(shipped[name], f"{name}.toml")
    path = Path(name_or_path)
    if path.is_file():
        try:
            return parse_profile(path.read_text(encoding="utf-8"), file_name(name))
        except UnicodeDecodeError:
            raise ConfigError(f"{file_name(name)}: not UTF-8 text; expected a profile in TOML") from None
    known: list[str] = []
    for profile in list_profiles():
        if name.lower() in (profile.name, *profile.aliases):
            return profile
        known += [profile.name, *profile.aliases]
    reason = "no such file" if name.endswith(".toml") or "/" in name else "no such profile"
    raise ConfigError(f"profile {file_name(name)}: {reason}; {nearest(name, known)}; a TOML file is taken too")
