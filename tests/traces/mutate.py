"""Seeded damage to a file: bytes, lines, and tokens replaced by the values that break readers."""

from __future__ import annotations

import re
from random import Random

__all__ = ["mutant"]

NASTY = (
    b"", b"0", b"-1", b"1.5", b"12.0", b"nan", b"NaN", b"Infinity", b"-inf", b"1e400", b"1e19", b"9223372036854775808",
    b"18446744073709551615", b"18446744073709551616", b"4294967296", b"1,234", b"\"1,234\"", b"1.234,5", b"null", b"true", b"{}",
    b"[]", b"[[]]", b"\"\"", b"\"", b"'", b"\\", b"\\u0000", b"\\ud800", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[31m",
    b"=cmd()", b"../../etc", b"1970-01-01 00:00:00", b"2016-12-31 23:59:60", b"2023-02-30T00:00:00Z", b"0x1f", b"1_000", b"+5",
    b" 7 ", b"007", b"\r", b"\n", b"\r\n", b"\n\n\n", b";", b"\t", b",", b",,,", b"{\"a\":1}", b"[1,2,3]", b"None", b"x" * 300,
    b"1700000000", b"1700000000000", b"1700000000000000000", b"-9223372036854775808", b"8/18/2025, 12:00:38.941 AM",
    b"45887.5", b"\xc3\x28", b"[" * 200, b"{\"a\":" * 60, "\u202e\u2028".encode(),
)  # fmt: skip

TOKEN = re.compile(rb'"[^"\n]*"|[\w.+:-]+')


def mutant(data: bytes, random: Random) -> bytes:
    """``data`` with one to four pieces of damage."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        data = random.choice(DAMAGE)(data, random)
    return data


def _token(data: bytes, random: Random) -> bytes:
    spots = list(TOKEN.finditer(data))
    if not spots:
        return data + random.choice(NASTY)
    spot = random.choice(spots)
    begin, end = spot.span()
    if data[begin : begin + 1] == b'"' and random.random() < 0.5:
        begin, end = begin + 1, end - 1
    return data[:begin] + random.choice(NASTY) + data[end:]


def _swap_tokens(data: bytes, random: Random) -> bytes:
    spots = list(TOKEN.finditer(data))
    if len(spots) < 2:
        return data
    a, b = sorted(random.sample(spots, 2), key=lambda spot: spot.start())
    return data[: a.start()] + b[0] + data[a.end() : b.start()] + a[0] + data[b.end() :]


def _byte(data: bytes, random: Random) -> bytes:
    spot = random.randrange(len(data) + 1)
    return data[:spot] + bytes([random.randrange(256)]) + data[spot + random.randrange(2) :]


def _bit(data: bytes, random: Random) -> bytes:
    if not data:
        return b"\x01"
    out = bytearray(data)
    out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def _cut(data: bytes, random: Random) -> bytes:
    begin = random.randrange(len(data) + 1)
    return data[:begin] if random.random() < 0.4 else data[:begin] + data[begin + random.randrange(1, 30) :]


def _insert(data: bytes, random: Random) -> bytes:
    spot = random.randrange(len(data) + 1)
    return data[:spot] + random.choice(NASTY) + data[spot:]


def _copy(data: bytes, random: Random) -> bytes:
    begin = random.randrange(len(data) + 1)
    piece = data[begin : begin + random.randrange(1, 200)]
    spot = random.randrange(len(data) + 1)
    return data[:spot] + piece + data[spot:]


def _lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    act = random.randrange(5)
    if act == 0:
        del lines[i]
    elif act == 1:
        lines.insert(j, lines[i])
    elif act == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif act == 3:
        lines[i : i + 1] = lines[i : i + 1] * random.randrange(2, 30)
    else:
        lines[i] = lines[i].replace(b",", random.choice((b";", b"\t", b", ", b"|")))
    return b"\n".join(lines)


def _ends(data: bytes, random: Random) -> bytes:
    return data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b" \n", b"")))


DAMAGE = (_token, _token, _token, _token, _swap_tokens, _byte, _bit, _cut, _insert, _insert, _copy, _lines, _lines, _ends)
