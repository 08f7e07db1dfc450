"""Policies as people have them: beside files and command lines, which ``replay_engine.policy`` reads, the YAML of a deployment.

A manifest of Kubernetes (Deployment, StatefulSet, Pod, LeaderWorkerSet, InferenceService ...) holds the command line of an engine
in its ``command`` and ``args``; Helm values of vLLM's production stack and vLLM's own ``--config`` file hold its flags.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from replay_engine.policy import Policy, build_policy
from replay_engine.profile import Profile
from replay_engine.sglang_flags import looks_like_sglang
from replay_engine.vllm_flags import looks_like_command
from tracekit.errors import UsageError, shown
from tracekit.fitted_settings import fitted_note, fitted_sets
from tracekit.logged_args import logged_sets

__all__ = ["policy_from", "serving_command"]

LARGEST = 1 << 20
_OF_A_TRACE = (
    "says something of the trace, for a fit (calibrate), its --check and diagnose --observed; a replay shares the blocks that the"
    " trace names: `tracekit load FILE --shared-prefix N`, then replay it by its name; expected it left out here"
)
_SHELL = re.compile(r"(?:^|/)(?:ba|da|z|a)?sh$")
_ENGINE = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b|\bsglang\.launch_server\b|\bsglang\s+serve\b")
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\{(\w+)\}|\$(\w+)")
_HELM = {
    "enablePrefixCaching": "enable-prefix-caching", "enableChunkedPrefill": "enable-chunked-prefill",
    "maxModelLen": "max-model-len", "maxNumSeqs": "max-num-seqs", "gpuMemoryUtilization": "gpu-memory-utilization",
    "tensorParallelSize": "tensor-parallel-size", "maxNumBatchedTokens": "max-num-batched-tokens",
}  # fmt: skip


class _Served(NamedTuple):
    """An engine that a file starts: the container's or the model's name, and its command line."""

    name: str
    command: str


def policy_from(profile: Profile, source: str | None, sets: Iterable[str] = (), *, fitted: bool = True) -> Policy:
    """``build_policy``, where ``source`` may also be a YAML file, a log of vLLM or its ``non-default args`` line. Without one, a
    profile that was fitted under settings brings them along (unless not ``fitted``), and ``sets`` go on top; a note says so.
    ``UsageError``, ``ConfigError``."""
    sets = tuple(sets)
    for each in sets:
        if each.strip().startswith("trace."):
            raise UsageError(f"--set {shown(each)}: {_OF_A_TRACE}")
    logged = None if source is None else logged_sets(source)
    if logged is not None:
        policy = build_policy(profile, None, (*logged, *sets))
        said = f"{', '.join(logged) or 'nothing but defaults'}: what vLLM logged at its start"
        return replace(policy, notes=(said, *policy.notes))
    if source is not None or not fitted:
        return build_policy(profile, None if source is None else serving_command(source), sets)
    policy = build_policy(profile, None, (*fitted_sets(profile, sets), *sets))
    note = fitted_note(profile, sets)
    return policy if note is None else replace(policy, notes=(note, *policy.notes))


def serving_command(source: str) -> str:
    """``source`` as it is, unless it names a YAML file (``FILE.yaml``, or ``FILE.yaml#NAME`` where several containers run an
    engine): then the command line of the engine in it. ``UsageError``: unreadable, none in it, or several."""
    name, _, wanted = source.partition("#")
    if not name.endswith((".yaml", ".yml")) or looks_like_command(source) or looks_like_sglang(source):
        return source
    where = f"policy {shown(name, 400)}"
    found = [each for document in _documents(name, where) for each in _served(document)]
    if wanted:
        found = [each for each in found if each.name == wanted]
    if not found:
        named = f" called {shown(wanted)}" if wanted else ""
        raise UsageError(f"{where}: starts no engine{named} whose flags can be read; expected a container that runs vllm serve or"
                         " sglang.launch_server, Helm values with vllmConfig, or vLLM's --config file")  # fmt: skip
    if len({each.command for each in found}) > 1:
        names = ", ".join(shown(each.name) for each in found)
        raise UsageError(f"{where}: {len(found)} engines ({names}); expected one, as {shown(name)}#{shown(found[0].name)}")
    return found[0].command


def _documents(name: str, where: str) -> list[Any]:
    import yaml

    try:
        path = Path(name)
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{where}: larger than a manifest; expected at most {LARGEST:,} bytes")
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or 'cannot be read'}; expected a YAML file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: not UTF-8 text; expected YAML") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UsageError(f"{where}{line}: {shown(getattr(error, 'problem', None) or 'not YAML', 200)}; expected YAML") from None


def _served(document: Any) -> Iterator[_Served]:
    if not isinstance(document, Mapping):
        return
    helm = document.get("servingEngineSpec")
    if isinstance(helm, Mapping):
        for each in helm.get("modelSpec") or ():
            if isinstance(each, Mapping) and isinstance(each.get("vllmConfig"), Mapping):
                yield _Served(str(each.get("name")), _helm_command(each))
        return
    if document and all(_plain(value) for value in document.values()):
        yield _Served("config", _config_command(document))
        return
    yield from _containers(document, set())


def _plain(value: Any) -> bool:
    """Whether a value is one that a flag has."""
    return not isinstance(value, Mapping) and not any(isinstance(each, Mapping | list) for each in _listed(value))


def _containers(node: Any, seen: set[int]) -> Iterator[_Served]:
    """Every container below ``node`` that starts an engine, init containers left out. What YAML's aliases repeat counts once."""
    if isinstance(node, Mapping | list):
        if id(node) in seen:
            return
        seen.add(id(node))
    if isinstance(node, list):
        for each in node:
            yield from _containers(each, seen)
    elif isinstance(node, Mapping):
        command = _container_command(node) if node.keys() & {"args", "command"} else None
        if command is not None:
            yield _Served(str(node.get("name", "model")), command)
        else:
            for key, value in node.items():
                if key != "initContainers":
                    yield from _containers(value, seen)


def _container_command(node: Mapping[str, Any]) -> str | None:
    words = [str(each) for key in ("command", "args") for each in _listed(node.get(key))]
    pairs = {str(each["name"]): str(each["value"]) for each in _listed(node.get("env"))
             if isinstance(each, Mapping) and "name" in each and "value" in each}  # fmt: skip
    if len(words) >= 3 and _SHELL.search(words[0]) and words[1].startswith("-") and words[1].endswith("c"):
        return _in_script(_filled(words[2], pairs))
    words = [_filled(word, pairs) for word in words]
    text = shlex.join(words)
    if _ENGINE.search(" ".join(words)):
        return text
    image = str(node.get("image", ""))
    if "command" in node:
        return None
    if "sglang" in image and words:
        return f"sglang {text}"
    if "vllm" in image or "modelFormat" in node:
        return f"vllm serve {text}"
    return None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _filled(text: str, pairs: Mapping[str, str]) -> str:
    """``$(NAME)``, ``${NAME}`` and ``$NAME`` as the container's own environment has them; what is not known stays."""
    return _VARIABLE.sub(lambda found: pairs.get(found[1] or found[2] or found[3], found[0]), text)


def _in_script(script: str) -> str | None:
    """The command that starts the engine, out of a shell script."""
    for line in script.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\|?|;|(?<!\d)&(?!\d)", line):
            if _ENGINE.search(part) and not part.lstrip().startswith("#"):
                return re.sub(r"\s\d?>{1,2}\s*\S+", "", part).strip().removeprefix("exec ").strip()
    return None


def _helm_command(model: Mapping[str, Any]) -> str:
    config = model["vllmConfig"]
    words = [str(model["modelURL"])] if model.get("modelURL") else []
    for key, flag in _HELM.items():
        value = config.get(key)
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value not in (None, ""):
            words += [f"--{flag}", str(value)]
    return f"vllm serve {shlex.join([*words, *map(str, _listed(config.get('extraArgs')))])}"


def _config_command(document: Mapping[Any, Any]) -> str:
    words = []
    for key, value in document.items():
        flag = str(key).replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", *map(str, _listed(value))]
    return f"vllm serve {shlex.join(words)}"
