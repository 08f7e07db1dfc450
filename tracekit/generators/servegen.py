"""Requests from ServeGen's statistics of single clients: rates and burstiness by window, histograms of lengths.

A client is two files: windows without a header (begin s, requests/s, CV of the inter-arrival times, family, two fitted
parameters), and JSON from a window's begin to histograms written as Python dict literals, parsed by a literal parser. Every
window gets exactly the number of requests that its rate says; their gaps are drawn from the family with the window's CV
(the fitted parameters do not reproduce the rate). Prompt and answer are drawn independently, as only their marginals are
known. Images count as prompt tokens. Source: alibaba/ServeGen.
"""

from __future__ import annotations

import ast
import csv
import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from tracekit.errors import InputError, UsageError
from tracekit.traces.synth import Columns

__all__ = ["Client", "read_client", "servegen"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Histogram = tuple[Ints, Floats]
MOST_REQUESTS = 2_000_000
PROMPT = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
EXPECTED = "a ServeGen client: TRACE.csv without a header and DATASET.json[.gz]"


@dataclass(frozen=True, slots=True)
class Client:
    """One client: windows of ``step_s`` seconds, and per window of the data set the histograms of its lengths."""

    name: str
    step_s: float
    begin_s: Floats
    rate: Floats
    cv: Floats
    is_weibull: npt.NDArray[np.bool_]
    length_begin_s: Floats
    prompts: list[list[Histogram]]
    """Per window of the data set: the parts that a prompt is the sum of."""
    answers: list[Histogram]


def read_client(trace: str | Path, dataset: str | Path) -> Client:
    """A client from its two files. Errors: ``InputError`` with file, line and field."""
    rows = _windows(str(trace))
    begin = np.array([row[0] for row in rows])
    if len(rows) < 2 or np.ptp(np.diff(begin)) > 1e-6 or begin[1] <= begin[0]:
        raise InputError("the windows are not evenly spaced", file=str(trace), expected="two windows or more, one length")
    starts, prompts, answers = _histograms(str(dataset))
    name = Path(trace).name.removesuffix(".csv").removesuffix("-trace")
    return Client(
        name, float(begin[1] - begin[0]), begin, np.array([row[1] for row in rows]), np.array([row[2] for row in rows]),
        np.array([row[3] == "Weibull" for row in rows]), starts, prompts, answers,
    )  # fmt: skip


def _windows(file: str) -> list[tuple[float, float, float, str]]:
    out = []
    try:
        with open(file, encoding="utf-8", newline="") as text:
            for line, row in enumerate(csv.reader(text), 1):
                if row:
                    out.append(_window(row, file, line))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=file, expected=EXPECTED) from error
    return out


def _window(row: list[str], file: str, line: int) -> tuple[float, float, float, str]:
    try:
        begin, rate = float(row[0]), float(row[1])
        cv = float(row[2]) if row[2] else 1.0
        if not (math.isfinite(begin) and 0 <= rate < 1e6 and row[3] in ("Gamma", "Weibull", "")):
            raise ValueError
    except (ValueError, IndexError) as error:
        raise InputError("not a window of a ServeGen client", file=file, line=line,
                         expected="begin s, requests/s, CV, Gamma or Weibull or nothing, two parameters") from error  # fmt: skip
    return begin, rate, cv if math.isfinite(cv) and cv > 0 else 1.0, row[3]


def _histograms(file: str) -> tuple[Floats, list[list[Histogram]], list[Histogram]]:
    try:
        data = Path(file).read_bytes()
        document = orjson.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        windows = sorted((float(begin), fields) for begin, fields in document.items() if fields)
    except (OSError, EOFError, ValueError, AttributeError, TypeError) as error:
        raise InputError("not a ServeGen data set", file=file, expected=EXPECTED) from error
    starts, prompts, answers = [], [], []
    for begin, fields in windows:
        parts = [_histogram(fields[name], file, f"{begin:g}.{name}") for name in PROMPT if fields.get(name)]
        answer = _histogram(fields.get("output_tokens"), file, f"{begin:g}.output_tokens")
        if answer is not None and any(part is not None for part in parts):
            starts.append(begin)
            prompts.append([part for part in parts if part is not None])
            answers.append(answer)
    if not starts:
        raise InputError("no window has lengths", file=file, expected=EXPECTED)
    return np.array(starts), prompts, answers


def _histogram(text: object, file: str, field: str) -> Histogram | None:
    """Token counts and their probabilities from a dict literal; ``None`` for an empty one."""
    try:
        table: dict[object, float] = ast.literal_eval(text) if isinstance(text, str) else {}
        values = np.array([int(str(value)) for value in table], np.int64)
        weights = np.array([float(weight) for weight in table.values()], np.float64)
        if len(values) and not (values.min() >= 0 and values.max() < 2**32 and weights.min() >= 0 and 0 < weights.sum() < 1e9):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError, OverflowError) as error:
        raise InputError("not a histogram", file=file, column=field, expected="{tokens: probability, ...}") from error
    return (values, weights / weights.sum()) if len(values) else None


def servegen(clients: Sequence[tuple[str | Path, str | Path]], *, seconds: float | None = None, seed: int = 0,
             start_s: float = 0.0) -> Columns:  # fmt: skip
    """Requests of ``clients`` (pairs of files), each a tenant of its own, from ``start_s`` on for ``seconds``.

    Same arguments, same trace. Errors: ``InputError`` for the files, ``UsageError`` for a part without requests or too many.
    """
    if not clients or (seconds is not None and not seconds > 0) or not start_s >= 0 or seed < 0:
        raise UsageError(f"--servegen: {seconds} s from {start_s} s, seed {seed}: expected seconds above 0, the rest from 0 on")
    read = [read_client(*files) for files in clients]
    end = math.inf if seconds is None else start_s + seconds
    planned = sum(_expected(client, start_s, end) for client in read)
    if planned > MOST_REQUESTS:
        raise UsageError(f"--servegen: about {planned:,.0f} requests; expected --seconds for {MOST_REQUESTS:,} at most")
    drawn = [_draw(client, start_s, end, np.random.Generator(np.random.PCG64([seed, at]))) for at, client in enumerate(read)]
    if not sum(len(each[0]) for each in drawn):
        raise UsageError(f"--servegen: no request between {start_s} s and {end} s; expected a part where the client is active")
    return _merged([client.name for client in read], drawn)


def _merged(names: list[str], drawn: list[tuple[Ints, Ints, Ints]]) -> Columns:
    arrival = np.concatenate([each[0] for each in drawn])
    order = np.argsort(arrival, kind="stable")
    who = np.repeat(np.arange(len(drawn)), [len(each[0]) for each in drawn])[order]
    return Columns(
        arrival_ns=arrival[order] - arrival.min(),
        input_tokens=np.concatenate([each[1] for each in drawn])[order],
        output_tokens=np.concatenate([each[2] for each in drawn])[order],
        tenant=[names[at] for at in who.tolist()],
    )


def _overlap(client: Client, start: float, end: float) -> Floats:
    """Seconds of each window between ``start`` and ``end``."""
    inside: Floats = np.minimum(client.begin_s + client.step_s, end) - np.maximum(client.begin_s, start)
    return np.maximum(inside, 0.0)


def _expected(client: Client, start: float, end: float) -> float:
    return float((_overlap(client, start, end) * client.rate).sum())


def _draw(client: Client, start: float, end: float, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Arrivals (ns of the client's clock), prompts and answers (tokens) of one client."""
    parts = [_arrivals(client, int(at), rng) for at in np.flatnonzero(_overlap(client, start, end) > 0)]
    moments = np.concatenate([*parts, np.zeros(0)])
    moments = moments[(moments >= start) & (moments < end)]
    window = np.maximum(np.searchsorted(client.length_begin_s, moments, "right") - 1, 0)
    prompts, answers = np.zeros(len(moments), np.int64), np.zeros(len(moments), np.int64)
    for at in np.unique(window).tolist():
        mine = window == at
        n = int(mine.sum())
        prompts[mine] = sum(rng.choice(values, n, p=weights) for values, weights in client.prompts[at])
        answers[mine] = rng.choice(client.answers[at][0], n, p=client.answers[at][1])
    return np.rint(moments * 1e9).astype(np.int64), np.maximum(prompts, 1), np.maximum(answers, 1)


def _arrivals(client: Client, at: int, rng: np.random.Generator) -> Floats:
    """The moments of one window (s): as many as its rate says, their gaps scaled to fill it."""
    n = round(client.rate[at] * client.step_s)
    if not n:
        return np.zeros(0)
    cv = float(client.cv[at])
    gaps = rng.weibull(_weibull_shape(cv), n + 1) if client.is_weibull[at] else rng.gamma(1 / cv**2, 1.0, n + 1)
    ends = np.cumsum(gaps)
    if not ends[-1] > 0:
        return np.full(n, client.begin_s[at])
    moments: Floats = client.begin_s[at] + client.step_s * ends[:-1] / ends[-1]
    return moments


def _weibull_shape(cv: float) -> float:
    """The shape at which a Weibull distribution has this coefficient of variation, by bisection."""
    low, high = 0.15, 50.0
    for _ in range(60):
        shape = math.sqrt(low * high)
        second = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
        low, high = (shape, high) if math.expm1(second) > cv**2 else (low, shape)
    return math.sqrt(low * high)
