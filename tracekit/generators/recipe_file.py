"""Reading a recipe: YAML with the line of every key, its keys checked by name, a variant laid over it."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, UsageError, shown, shown_path

__all__ = ["Recipe", "read_recipe"]

TOP = ("seed", "engine", "client", "fleet", "pd", "load", "policy", "variants")
ENGINE = ("cost", "budget", "seats", "kv_tokens", "step", "admit", "order", "long_cap", "align", "second_prompt_split",
          "prefix_cache")  # fmt: skip
CLIENT = ("max_in_flight", "arrival")
FLEET = ("replicas", "route")
PD = ("prefill", "decode", "kv_bytes_per_token", "link", "link_queue")
POOL = ("n", "budget", "seats", "kv_tokens", "route", "seed")
LOAD = ("cls", "tenant", "n", "arrive", "isl", "osl", "max_tokens", "priority", "prefix")
VARIANT = ("engine", "client", "fleet", "pd", "load", "policy")
Path_ = tuple[str | int, ...]


@dataclass(slots=True)
class Recipe:
    """One case: its parts as they stand, with the names of its ``variants``."""

    file: str
    seed: int
    engine: dict[str, Any]
    client: dict[str, Any]
    load: list[dict[str, Any]]
    policy: dict[str, Any]
    fleet: dict[str, Any] = field(default_factory=dict)
    pd: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[Path_, int] = field(default_factory=dict)

    def at(self, *path: str | int) -> str:
        """File, line and key, for messages."""
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        line = f", line {self.lines[known]}" if known else ""
        return f"{shown_path(self.file)}{line}: {'.'.join(map(str, path))}"

    def variant(self, name: str) -> Recipe:
        """The recipe with a variant's settings over the base's. Errors: ``UsageError``."""
        if name not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise UsageError(f"{shown_path(self.file)}: no variant {shown(name)}; expected one of {known}")
        given = self.variants[name]
        load = copy.deepcopy(self.load)
        for cls, over in (given.get("load") or {}).items():
            named = [each for each in load if each.get("cls") == cls]
            if not named:
                raise UsageError(f"{self.at('variants', name, 'load')}: no load of class {shown(cls)}")
            for each in named:
                _known(over, LOAD, self, ("variants", name, "load", cls))
                each.update(over)
        return Recipe(
            file=self.file, seed=self.seed, engine={**self.engine, **(given.get("engine") or {})},
            client={**self.client, **(given.get("client") or {})}, fleet={**self.fleet, **(given.get("fleet") or {})},
            load=load, pd=_over(self.pd, given.get("pd") or {}), policy=_over(self.policy, given.get("policy") or {}),
            lines=self.lines,
        )  # fmt: skip


def _over(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{table: {**base.get(table, {}), **knobs} if isinstance(knobs, Mapping) else knobs
                       for table, knobs in more.items()}}  # fmt: skip


def read_recipe(path: str | Path) -> Recipe:
    """A recipe from a YAML file. Errors: ``InputError`` for what is not YAML, ``UsageError`` for what is not a recipe."""
    document, lines = _document(Path(path))
    recipe = Recipe(file=str(path), seed=0, engine={}, client={}, load=[], policy={}, lines=lines)
    if not isinstance(document, dict):
        raise InputError("not a recipe", file=str(path), expected="a mapping with seed, engine and load")
    _known(document, TOP, recipe, ())
    recipe.seed = document.get("seed", 0)
    if not isinstance(recipe.seed, int) or isinstance(recipe.seed, bool) or recipe.seed < 0:
        raise UsageError(f"{recipe.at('seed')}: {shown(recipe.seed)}: expected a whole number from 0 on")
    recipe.engine = _table(document, "engine", ENGINE, recipe)
    recipe.client = _table(document, "client", CLIENT, recipe)
    recipe.policy = _table(document, "policy", None, recipe)
    recipe.fleet = _table(document, "fleet", FLEET, recipe)
    recipe.pd = _table(document, "pd", PD, recipe)
    _known_pools(recipe.pd, recipe, ("pd",))
    load = document.get("load")
    if not isinstance(load, list) or not load or not all(isinstance(each, dict) for each in load):
        raise UsageError(f"{recipe.at('load')}: expected a list of loads, each with cls, n, arrive, isl and osl")
    for k, each in enumerate(load):
        _known(each, LOAD, recipe, ("load", k))
    recipe.load = load
    variants = _table(document, "variants", None, recipe)
    for name, given in variants.items():
        if not isinstance(given, dict):
            raise UsageError(f"{recipe.at('variants', name)}: expected a mapping with {', '.join(VARIANT)}")
        _known(given, VARIANT, recipe, ("variants", name))
        for part, names in (("engine", ENGINE), ("client", CLIENT), ("fleet", FLEET), ("pd", PD)):
            _known(given.get(part) or {}, names, recipe, ("variants", name, part))
        _known_pools(given.get("pd") or {}, recipe, ("variants", name, "pd"))
        recipe.variants[str(name)] = given
    return recipe


def _known_pools(pd: Mapping[str, Any], recipe: Recipe, path: Path_) -> None:
    for pool in ("prefill", "decode"):
        if pool in pd:
            _known(pd[pool], POOL, recipe, (*path, pool))


def _table(document: Mapping[str, Any], name: str, names: tuple[str, ...] | None, recipe: Recipe) -> dict[str, Any]:
    table = document.get(name) or {}
    if not isinstance(table, dict):
        raise UsageError(f"{recipe.at(name)}: expected a mapping")
    if names is not None:
        _known(table, names, recipe, (name,))
    return table


def _known(table: Mapping[str, Any], names: tuple[str, ...], recipe: Recipe, path: Path_) -> None:
    if not isinstance(table, Mapping):
        raise UsageError(f"{recipe.at(*path)}: expected a mapping with {', '.join(names)}")
    for name in table:
        if name in names:
            continue
        near = difflib.get_close_matches(str(name), names, n=3) or names
        raise UsageError(f"{recipe.at(*path, name)}: unknown key; expected one of {', '.join(near)}")


def _document(path: Path) -> tuple[Any, dict[Path_, int]]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        loader = yaml.CSafeLoader(text)
        try:
            node = loader.get_single_node()
            lines: dict[Path_, int] = {}
            if node is not None:
                _lines(node, (), lines)
            return (None if node is None else loader.construct_document(node)), lines
        finally:
            loader.dispose()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", file=str(path), expected="a recipe in YAML") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = str(getattr(error, "problem", None) or error)
        raise InputError(f"not YAML: {reason}", file=str(path), line=mark.line + 1 if mark else None,
                         expected="a recipe in YAML") from error  # fmt: skip


def _lines(node: Any, path: Path_, lines: dict[Path_, int]) -> None:
    """Line numbers by the path of keys; an anchor that holds itself ends at the depth of any recipe."""
    if len(path) > 8:
        return
    if node.id == "mapping":
        for key, value in node.value:
            here = (*path, str(key.value))
            lines[here] = key.start_mark.line + 1
            _lines(value, here, lines)
    elif node.id == "sequence":
        for k, each in enumerate(node.value):
            lines[(*path, k)] = each.start_mark.line + 1
            _lines(each, (*path, k), lines)
