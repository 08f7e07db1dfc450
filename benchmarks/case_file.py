"""A file of diagnosis cases, read: what each expects, its recipe, the variants of its table, and what must not be said.

The file is Markdown: a section ``## ID · title`` a case, with a paragraph *Expected* (finding ids in backticks, evidence, a
sentence that begins with *Knob*, sentences with *Must not*), a YAML block with the recipe, and a table with a row a variant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CaseText", "Stated", "expected_knobs", "forbidden", "parse_cases", "stated_numbers", "variant_sets"]

_ID = re.compile(r"`([A-Z][A-Z_]{2,}[A-Z])`")
_NOT = re.compile(r"\b[Mm]ust not\b|is wrong\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseText:
    """``ids``: findings expected, the first first; ``named``: those of the title. ``rows``: the first cells of the table, with
    the head of that column. ``wrong``: sentences about what must not be said."""

    name: str
    title: str
    ids: tuple[str, ...]
    named: tuple[str, ...]
    expected: str
    recipe: str
    column: str
    rows: tuple[str, ...]
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A number that the file states: ``how`` is one of >=, <=, <, > and ~ (near)."""

    metric: str
    how: str
    value: float


def parse_cases(text: str) -> list[CaseText]:
    """Every section with a recipe."""
    sections = re.split(r"^## +", text, flags=re.M)[1:]
    found = []
    for section in sections:
        head, _, body = section.partition("\n")
        fence = re.search(r"^```ya?ml\n(.*?)^```", body, flags=re.M | re.S)
        name, dot, title = head.partition("·")
        if fence is None or not dot:
            continue
        expected = _paragraph(body, "Expected")
        sentences = re.split(r"(?<=[.;:])\s+(?=[A-Z])", " ".join(expected.split()))
        said = " ".join(each for each in sentences if not _NOT.search(each))
        named = tuple(dict.fromkeys(_ID.findall(title)))
        ids = tuple(dict.fromkeys([*_ID.findall(said), *named]))
        column, rows = _table(body[fence.end() :])
        recipe = _with_slots(fence[1])
        found.append(
            CaseText(
                name=name.strip(),
                title=" ".join(title.split()),
                ids=ids,
                named=named or ids[:1],
                expected=said,
                recipe=recipe,
                column=column,
                rows=rows,
                wrong=tuple(each for each in sentences if _NOT.search(each)),
            )
        )
    return found


def _with_slots(recipe: str) -> str:
    """A comment beside the client's limit may say that a request's time begins when its slot frees: then the recipe says it."""
    return re.sub(r"^(client: \{[^}]*)\}(.*slot frees)", r"\1, arrival: slot}\2", recipe, flags=re.M)


def _paragraph(body: str, word: str) -> str:
    match = re.search(rf"^- \*\*{word}[^*]*\*\*(.*?)(?=^- \*\*|^```|\Z)", body, flags=re.M | re.S)
    return match[1] if match else ""


def _table(text: str) -> tuple[str, tuple[str, ...]]:
    rows = [line.strip().strip("|").split("|")[0].strip().strip("*") for line in text.splitlines() if line.startswith("|")]
    return (rows[0], tuple(rows[2:])) if len(rows) > 2 else ("", ())


_KNOBS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"long_cap|cap one request", ("long_prefill_token_threshold",)),
    (r"interleave|mixed steps", ("batching.step", "batching.interleave")),
    (r"whole-? ?prompt admission|admit isl", ("scheduler_reserve_full_isl",)),
    (r"\breserve at\b|% reserve|KV reserve", ("watermark", "scheduler_reserve_full_isl")),
    (r"clip|output estimate|conservativeness", ("batching.output_reserve_clip", "batching.output_reserve_ratio")),
    (r"seat-level preemption|reserved seats", ("preemption.to_admit", "order.reserved")),
    (r"affinity", ("fleet.router",)),
    (r"client limit", ("client.max_in_flight",)),
    (r"routing by outstanding|least outstanding", ("pd.prefill_router", "pd.decode_router", "fleet.router")),
    (r"connector|transport|\blink\b", ("kv_link.gb_per_s",)),
    (r"admission bound|smoothing|queue bound", ("traffic.arrivals", "front_door.max_queued_tokens")),
    (r"replicas", ("fleet.replicas",)),
    (r"\bseats\b", ("max_num_seqs",)),
    (r"\bbudget\b", ("max_num_batched_tokens",)),
    (r"\bKV\b", ("num_gpu_blocks",)),
)  # fmt: skip


def expected_knobs(case: CaseText) -> set[str]:
    """The knobs that the expected paragraph names as the answer, as ours; empty where it names none."""
    text = " ".join(case.expected.split())
    match = re.search(r"\bKnobs?:(.*?)(?=\bState\b|\bAlso\b|\bMust\b|$)", text) or re.search(r"\bOutput:(.*)$", text)
    if match is None:
        return set()
    answer = re.sub(r"\([^)]*\)", "", match[1]).partition("Must")[0]
    return {knob for words, knobs in _KNOBS if re.search(words, answer) for knob in knobs}


def forbidden(case: CaseText) -> tuple[set[str], set[tuple[str, int]], bool]:
    """Findings that must not be named; knobs that must not be proposed, with the way (1 up, -1 down, 0 either); and whether
    no knob of the scheduler may be."""
    ids: set[str] = set()
    knobs: set[tuple[str, int]] = set()
    none = False
    for sentence in case.wrong:
        text = re.sub(r"\([^)]*\)", "", sentence)
        ids |= set(_ID.findall(text))
        none |= "any scheduler knob" in text or "change policy" in text
        down = bool(re.search(r"smaller budget", text))
        for words, knob in (("budget", "max_num_batched_tokens"), ("seats", "max_num_seqs"), (r"\bKV\b", "num_gpu_blocks")):
            if re.search(words, text):
                knobs.add((knob, -1 if down and words == "budget" else 0 if words == "budget" else 1))
        if re.search(r"prefill workers|more P\b", text):
            knobs.add(("pd.prefill", 1))
        if re.search(r"decode workers|or D workers", text):
            knobs.add(("pd.decode", 1))
    return ids, knobs, none


_NUMBER = re.compile(
    r"(?P<name>`[a-zA-Z_0-9\[\]/ ]+`|KV (?:max|p50|p95)|running max)(?: is)?\s*(?P<how>≥|≤|<|>|≈|=)?\s*"
    r"(?P<value>\d+(?:\.\d+)?)\s*(?P<percent>%)?"
)
_HOW = {"≥": ">=", "≤": "<=", "<": "<", ">": ">", "≈": "~", "=": "~", None: "~"}


def stated_numbers(case: CaseText) -> list[Stated]:
    """The numbers beside names of evidence in the expected paragraph."""
    found = []
    for match in _NUMBER.finditer(" ".join(case.expected.split())):
        name = match["name"].strip("`").replace("KV ", "kv ")
        value = float(match["value"]) / (100 if match["percent"] else 1)
        found.append(Stated(metric=name, how=_HOW[match["how"]], value=value))
    return found


_VARIANTS: tuple[tuple[str, Callable[[re.Match[str]], tuple[str, ...]]], ...] = (
    (r"budget (\d+)", lambda m: (f"max_num_batched_tokens={m[1]}",)),
    (r"seats (\d+)", lambda m: (f"max_num_seqs={m[1]}",)),
    (r"long_cap (\d+)", lambda m: (f"long_prefill_token_threshold={m[1]}",)),
    (r"admit isl", lambda m: ("scheduler_reserve_full_isl=true",)),
    (r"clip (\d+)", lambda m: (f"batching.output_reserve_clip={m[1]}",)),
    (r"interleave (\d+)/(\d+)", lambda m: ("batching.step=interleave", f"batching.interleave={m[1]}:{m[2]}")),
    (r"mixed", lambda m: ("batching.step=decode_first",)),
    (r"no alignment", lambda m: ("batching.chunk_align=1",)),
    (r"second prompt may be split", lambda m: ("batching.max_partial_prefills=none",)),
    (r"seat-level preemption", lambda m: ("preemption.to_admit=true",)),
    (r"route by prefix", lambda m: ("fleet.router=prefix_affinity",)),
    (r"in flight (\d+)", lambda m: (f"client.max_in_flight={m[1]}",)),
    (r"(\d+(?:\.\d+)?) GB/s", lambda m: (f"kv_link.gb_per_s={m[1]}",)),
)  # fmt: skip
_KV = re.compile(r"KV \u00d7(\d+)")
_ROUTERS = {"round robin": "round_robin", "least outstanding tokens": "least_tokens"}


def variant_sets(case: CaseText, row: str, blocks: int) -> tuple[str, ...] | None:
    """A row of the table as ``--set`` pairs over the base; ``()`` for the base itself, ``None`` where a machine cannot tell."""
    text = re.sub(r"\([^)]*\)", "", row).replace("*", "").strip()
    if text.startswith("base") or "(base)" in row:
        return ()
    if text in _ROUTERS and "P routing" in case.column:
        return (f"pd.prefill_router={_ROUTERS[text]}",)
    if case.column.strip() == "max_in_flight" and text.isdigit():
        return (f"client.max_in_flight={text}",)
    found: list[str] = []
    rates = [_first_number(each) for each in case.rows if "(base)" in each] if "rate" in case.column else []
    for part in re.split(r",\s*(?:or )?| or ", text):
        if not part or _first_number(part) == part:
            if rates and rates[0] and part and float(part) != float(rates[0]):
                found.append(f"traffic.rate_scale={float(part) / float(rates[0]):.6g}")
            continue
        kv = _KV.fullmatch(part)
        if kv:
            found.append(f"num_gpu_blocks={(blocks - 1) * int(kv[1]) + 1}")
            continue
        match = next(((say, each) for words, say in _VARIANTS if (each := re.fullmatch(words, part))), None)
        if match is None:
            return None
        found += match[0](match[1])
    return tuple(found)


def _first_number(text: str) -> str:
    match = re.match(r"\d+(?:\.\d+)?", text)
    return match[0] if match else ""
