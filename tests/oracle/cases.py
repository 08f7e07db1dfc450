"""Random cases (knobs and requests) for comparing schedulers, biased to where they go wrong.

One generator draws from anything that looks like ``random.Random``: hypothesis's (which shrinks) or a seeded one (bulk).
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

__all__ = ["BIASES", "Case", "cases", "make_case", "random_case"]

Case = tuple[dict[str, Any], list[dict[str, Any]]]

BIASES = ("ample", "pressure", "starvation", "priority", "sharing", "turns", "edges", "copies", "mixed")
BLOCK_SIZES = (1, 2, 3, 16, 32)
OLD_VERSIONS = ("0.20.0", "0.24.0", "0.30.0")


class _Draw:
    """What the generator draws, and how likely, under one bias."""

    def __init__(self, rng: random.Random, bias: str) -> None:
        self.rng = rng
        self.bias = bias
        self.block_size = rng.choice(BLOCK_SIZES)
        # With small blocks a few dozen tokens already are many blocks.
        self.long = rng.choice((12, 40)) if self.block_size < 16 else rng.choice((64, 150))
        self.count = rng.randint(2, rng.choice((6, 12, 24)))
        self.spread = rng.choice((0, 2, self.count, 4 * self.count, 12 * self.count))
        if bias in ("pressure", "starvation", "copies"):
            self.count, self.spread = rng.randint(6, 24), rng.choice((0, 2, 12, 40))
        if bias == "starvation":
            self.long, self.spread = max(self.long, 40), self.spread // 6

    def chance(self, share: float) -> bool:
        return self.rng.randrange(100) < 100 * share

    def prompt_length(self) -> int:
        if self.bias == "edges" or self.chance(0.25):
            blocks = self.rng.randint(0, max(1, self.long // self.block_size))
            return max(1, blocks * self.block_size + self.rng.choice((0, 0, 1, -1)))
        if self.bias == "starvation":
            return self.rng.choice((1, 2, 3, self.block_size + 1, self.long, 2 * self.long))
        if self.bias == "pressure" and self.chance(0.6):
            return self.rng.randint(1, 2 * self.block_size)
        return self.rng.randint(1, self.long)

    def output_length(self) -> int:
        if self.chance(0.3 if self.bias == "edges" else 0.1):
            return self.rng.choice((1, 1, 2))
        longer = self.bias in ("pressure", "priority", "starvation")
        return self.rng.randint(1, self.rng.choice((self.long if longer else 6, self.long, 3 * self.block_size)))

    def arrival(self) -> int:
        return self.rng.randint(0, self.spread)

    def shares(self) -> float:
        return {"sharing": 0.9, "turns": 0.8, "edges": 0.5, "ample": 0.3, "starvation": 0.5}.get(self.bias, 0.4)


def _prompt(draw: _Draw, index: int, before: list[dict[str, Any]]) -> list[list[int]]:
    """Segments of a prompt: alone, behind a shared prefix, a copy, or a later turn of another request."""
    rng = draw.rng
    own = [1000 + index, draw.prompt_length()]
    if not before or not draw.chance(draw.shares()):
        return [own]
    other = rng.choice(before)
    if draw.chance(0.6 if draw.bias == "turns" else 0.25):
        turn = [other["output_seed"], rng.randint(1, other["output_len"])]
        return [*map(list, other["prompt_segments"]), turn, *([own] if draw.chance(0.7) else [])]
    if draw.chance(0.4):
        return [list(segment) for segment in other["prompt_segments"]]
    prefix = [rng.randint(1, 3), draw.prompt_length()]
    return [prefix, own] if draw.chance(0.8) else [prefix]


def _requests(draw: _Draw, longest: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for index in range(draw.count):
        segments = _prompt(draw, index, made)
        if sum(length for _, length in segments) >= longest:
            segments = [[1000 + index, min(draw.prompt_length(), longest - 1)]]
        request: dict[str, Any] = {
            "id": f"r{index}",
            "arrival_step": draw.arrival(),
            "arrival_time": 0.0,
            "prompt_segments": segments,
            "output_len": draw.output_length(),
            "output_seed": 5000 + index,
        }
        twins = [other for other in made if other["prompt_segments"] == segments]
        if twins and draw.chance(0.6):  # the same request again: equal outputs too, often within one step
            request["output_seed"] = twins[0]["output_seed"]
            if draw.chance(0.5):
                request["arrival_step"] = twins[0]["arrival_step"]
        made.append(request)
    return made


def _race(draw: _Draw, requests: list[dict[str, Any]]) -> None:
    """Let some later turns stand before the request whose output they contain: prefill chunks then race its decodes."""
    for request in list(requests):
        parents = [other for other in requests if other["output_seed"] in (seed for seed, _ in request["prompt_segments"])]
        if parents and draw.chance(0.4):
            request["arrival_step"] = parents[0]["arrival_step"]
            requests.remove(request)
            requests.insert(requests.index(parents[0]), request)


def _copies(draw: _Draw, requests: list[dict[str, Any]], longest: int) -> None:
    """Twins that compute the same blocks side by side, end at different times, and turns that would hit what they computed."""
    rng = draw.rng
    twins = rng.randint(2, 4)
    prompt = [[7, rng.randint(1, min(3 * draw.block_size, longest // 2))]]
    room = longest - 1 - prompt[0][1]
    for request in requests[: 2 * twins]:
        request |= {"arrival_step": rng.randint(0, 2), "prompt_segments": prompt, "output_seed": 5000}
        request["output_len"] = rng.randint(1, max(2, min(draw.long, room)))
    for request in requests[2 * twins :: 2]:
        turn = [5000, rng.randint(1, min(requests[0]["output_len"], room - 1))]
        own = [request["prompt_segments"][-1][0], min(draw.prompt_length(), room - turn[1])]
        segments = [*prompt, turn, own] if own[1] > 0 else [*prompt, turn]
        request |= {"prompt_segments": segments, "arrival_step": rng.randint(2, 20)}


def _late_fields(draw: _Draw, requests: list[dict[str, Any]], *, priority: bool) -> None:
    """Arrival times, priorities and aborts: what depends on the order of arrival."""
    coarse = draw.chance(0.5)
    aborts = draw.chance(0.3)
    for index, request in enumerate(requests):
        step = request["arrival_step"]
        request["arrival_time"] = float(step // 4) if coarse else step + index / 10_000
        if priority and draw.chance(0.8):
            request["priority"] = draw.rng.randint(0, draw.rng.choice((1, 3)))
        if aborts and draw.chance(0.25):
            request["abort_step"] = step + draw.rng.randint(0, 40)


def _blocks(draw: _Draw, requests: list[dict[str, Any]], longest: int) -> int:
    """``num_gpu_blocks``: the longest sequence fits, by how much decides how hard it gets."""
    least: int = -(-longest // draw.block_size)
    total: int = sum(
        -(-(sum(length for _, length in request["prompt_segments"]) + request["output_len"]) // draw.block_size)
        for request in requests
    )
    if draw.bias == "ample" or (draw.bias == "starvation" and draw.chance(0.5)):
        return least + total + 2
    if draw.bias in ("pressure", "priority", "copies"):
        return least + 1 + draw.rng.randint(0, max(1, least // 2))
    return least + 1 + draw.rng.randint(0, draw.rng.choice((2, max(1, total // 4), max(1, total))))


def _budget(draw: _Draw, knobs: dict[str, Any]) -> None:
    rng = draw.rng
    seats = rng.choice((2, 4, 8, 24))
    tokens = max(seats, rng.choice((8, 16, draw.long, 4 * draw.long)))
    if draw.bias == "turns" and draw.chance(0.6):
        knobs["long_prefill_token_threshold"] = rng.randint(1, 2 * draw.block_size)
    elif draw.chance(0.3):
        knobs["long_prefill_token_threshold"] = rng.randint(1, max(2, draw.long // 2))
    if draw.chance(0.1):
        knobs["max_num_scheduled_tokens"] = rng.randint(1, tokens)
    if draw.chance(0.1):
        knobs["enable_chunked_prefill"] = False
        tokens = max(tokens, knobs["max_model_len"])
        knobs.pop("max_num_scheduled_tokens", None)
    knobs["max_num_seqs"] = seats
    knobs["max_num_batched_tokens"] = tokens


def _starve(draw: _Draw, knobs: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    """Make prefills that stand before decodes want more than they did when the decodes were admitted.

    Two ways: the adaptive threshold rises as the queue empties (it knows nothing of ``max_num_scheduled_tokens``), or held
    prefills come back after prompts that left one token were admitted behind them.
    """
    rng = draw.rng
    budget = rng.randint(6, 20)
    knobs |= {"max_num_seqs": rng.choice((8, 24)), "enable_chunked_prefill": True, "max_num_scheduled_tokens": budget}
    knobs.pop("max_num_active_seqs", None)
    knobs.pop("engine_version", None)
    if draw.chance(0.6):
        knobs["max_num_batched_tokens"] = max(24, budget * draw.count // rng.randint(2, 5))
        knobs |= {"long_prefill_token_threshold": rng.randint(1, 3), "long_prefill_token_threshold_adaptive": True}
        for request in requests[rng.randint(3, 6) :]:
            if draw.chance(0.6):  # leaves the queue, so that the threshold rises
                request["abort_step"] = request["arrival_step"] + rng.randint(1, 12)
        return
    knobs |= {"max_num_batched_tokens": budget + 24, "enable_prefix_caching": True}
    knobs["prefill_schedule_interval"] = rng.randint(3, 6)
    knobs["long_prefill_token_threshold"] = rng.choice((0, budget - 2))
    longest = knobs["max_model_len"] - 1
    seen = [[7, min(draw.block_size * rng.randint(1, 2) + 1, longest)]]
    requests[0] |= {"arrival_step": 0, "prompt_segments": seen, "output_len": 20}
    requests[1] |= {"arrival_step": 0, "prompt_segments": [[8, min(2 * draw.long, longest)]]}
    for request in requests[2:]:
        if draw.chance(0.8):
            request |= {"arrival_step": rng.randint(1, 8), "prompt_segments": seen}


def _gates(draw: _Draw, knobs: dict[str, Any]) -> None:
    """Knobs that not every release has, and the release."""
    rng = draw.rng
    knobs["scheduler_reserve_full_isl"] = draw.chance(0.75)
    if draw.chance(0.15):
        knobs["engine_version"] = rng.choice(OLD_VERSIONS)
    version = knobs.get("engine_version", "0.33.0")
    if version != "0.20.0" and draw.chance(0.25):
        knobs["watermark"] = rng.choice((0.05, 0.1, 0.3))
    if version == "0.33.0":
        if draw.chance(0.15):
            knobs["prefill_schedule_interval"] = rng.choice((2, 3, 6))
        if draw.chance(0.1):
            knobs["max_num_active_seqs"] = rng.randint(1, knobs["max_num_seqs"])
        if knobs.get("long_prefill_token_threshold") and draw.chance(0.25):
            knobs["long_prefill_token_threshold_adaptive"] = True


def make_case(rng: random.Random, bias: str) -> Case:
    """Knobs and requests in the shape of the parity vectors: at most 24 requests, at most some hundred tokens each."""
    draw = _Draw(rng, bias)
    longest = 3 * draw.long if draw.chance(0.8) else draw.long + rng.randint(1, draw.long)
    requests = _requests(draw, longest)
    knobs: dict[str, Any] = {
        "policy": "priority" if draw.chance(0.9 if bias == "priority" else 0.3) else "fcfs",
        "max_model_len": longest,
        "block_size": draw.block_size,
        "enable_prefix_caching": draw.chance(0.4 if bias in ("pressure", "starvation") else 0.75),
        "async_scheduling": draw.chance(0.5),
    }
    if bias == "turns" or draw.chance(0.1):
        _race(draw, requests)
    if bias == "copies":
        knobs["enable_prefix_caching"] = True
        _copies(draw, requests, longest)
    _late_fields(draw, requests, priority=knobs["policy"] == "priority")
    knobs["num_gpu_blocks"] = _blocks(draw, requests, longest)
    _budget(draw, knobs)
    _gates(draw, knobs)
    if bias == "starvation" or (bias == "mixed" and draw.chance(0.2)):
        _starve(draw, knobs, requests)
    return knobs, requests


def random_case(seed: int, bias: str | None = None) -> Case:
    """The case of ``seed``; without ``bias`` the seed picks one."""
    rng = random.Random(seed)
    return make_case(rng, bias or BIASES[seed % len(BIASES)])


def cases(bias: str | None = None) -> st.SearchStrategy[Case]:
    """Cases as hypothesis draws (and shrinks) them."""
    which = st.just(bias) if bias else st.sampled_from(BIASES)
    return st.builds(make_case, st.randoms(use_true_random=False), which)
