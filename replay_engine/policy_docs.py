"""The page of policies, made from rules and combinations: ``python -m replay_engine.policy_docs > docs/policies.md``."""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING, fields

from replay_engine.combinations import TABLE
from replay_engine.rule_tables import RULE_TABLES
from replay_engine.rules import QUOTA_KNOBS, Tier
from replay_engine.sglang_flags import NAMES

__all__ = ["policies_page"]

_HEAD = """# Policies

<!-- made by: python -m replay_engine.policy_docs > docs/policies.md -->

A policy is a TOML file with the tables below, a `vllm serve ...` command, or an SGLang command; `--set table.knob=value` changes
one knob on top of it, `--set knob=value` one of `[scheduler]`. What is not given follows vLLM's API-server defaults for the
profile's hardware. The default rules are vLLM's behaviour exactly.

    [scheduler]
    max_num_seqs = 128

    [batching]
    step = "decode_first"
    chunk_align = 64

    [order]
    by = "priority"
    aging_s = "30s"

    [[order.reserved]]
    priority = 0
    seqs = 8

    [preemption]
    mode = "swap"
    host_blocks = 4096

    [front_door]
    max_queued_reqs = 256
    queue_timeout_s = "20s"

    [front_door.quotas.acme]
    quota_tokens_per_s = 5000

    [client]
    max_in_flight = 64

    [pd]
    prefill = 2
    decode = 2

    [kv_link]
    preset = "rdma"
    concurrent = 1

    [pools.decode]
    max_num_seqs = 512

Times (`..._s`) are seconds, or text like `"50ms"`, `"2s"`, `"1.5m"`. On the command line, reserved tiers are written
`--set order.reserved="priority=0 seqs=8; priority=1 seqs=4"`, a tenant's quota `--set front_door.quotas.acme.quota_concurrent=4`.

`[pools.prefill]` and `[pools.decode]` take the knobs of `[scheduler]` for one pool of `[pd]`; `--set decode.max_num_seqs=512` is
short for `--set pools.decode.max_num_seqs=512`.

`order.by`, `batching.admit` and `preemption.victim` take `plugin:NAME`: see `examples/own_policy`.
What policies do to traffic, against what was published: [studies](studies/README.md).
"""


def policies_page() -> str:
    """The page as Markdown: the tables, what goes together and what does not, SGLang's names."""
    lines = [_HEAD]
    for table, kind in RULE_TABLES.items():
        lines += [
            f"## `[{table}]`",
            "",
            _words(kind.__doc__ or ""),
            "",
            "| knob | values | default |",
            "|---|---|---|",
        ]
        lines += [f"| `{each.name}` | {_values(each.name, str(each.type))} | {_default(each)} |" for each in fields(kind)]
        lines.append("")
        if table == "order":
            lines += [
                f"`[[order.reserved]]`: {', '.join(f'`{each.name}`' for each in fields(Tier))}. {_words(Tier.__doc__ or '')}",
                "",
            ]
        if table == "front_door":
            lines += [f"`[front_door.quotas.TENANT]`: {', '.join(f'`{name}`' for name in QUOTA_KNOBS)}.", ""]
    return "\n".join([*lines, *_combinations(), *_sglang()])


def _combinations() -> list[str]:
    lines = ["## What is refused", "", "| setting | with | why | instead |", "|---|---|---|---|"]
    lines += [
        f"| `{_cell(row.first)}` | `{_cell(row.second)}` | {_cell(row.reason)} | {_cell(row.expected)} |"
        for row in TABLE
        if row.refused is not None
    ]
    lines += ["", "A reserved tier must leave a seat and a block for the others.", ""]
    lines += ["## What goes together", "", "| setting | with | what it does | as `--set` |", "|---|---|---|---|"]
    for row in TABLE:
        if row.refused is None:
            pairs = " ".join(f"`{_cell(pair)}`" for pair in row.example)
            lines.append(f"| `{_cell(row.first)}` | `{_cell(row.second)}` | {_cell(row.reason)} | {pairs} |")
    return [*lines, "", "Pairs in neither table are allowed and act each for itself.", ""]


def _sglang() -> list[str]:
    lines = ["## SGLang's names", "", '`--policy "python -m sglang.launch_server ..."` (SGLang 0.5.23) is read as:', ""]
    lines += ["| flag | here | same meaning? |", "|---|---|---|"]
    lines += [f"| `{flag}` | {here} | {same} |" for flag, here, same in NAMES]
    return [*lines, ""]


def _words(docstring: str) -> str:
    text = " ".join(docstring.split())
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _values(name: str, kind: str) -> str:
    choices = re.findall(r"'([^']+)'|\"([^\"]+)\"", kind) if "Literal" in kind else []
    if choices:
        own = ", `plugin:NAME`" if kind.endswith("| str") else ""
        return ", ".join(f"`{a or b}`" for a, b in choices) + own
    plain = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text"}
    if name.endswith("_s") and not name.endswith("per_s"):
        return "time"
    if kind.startswith("tuple"):
        return "tables"
    return plain.get(kind.split(" ")[0], "tables, one a tenant")


def _default(each: object) -> str:
    value = getattr(each, "default", MISSING)
    if value is MISSING or value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(policies_page())
