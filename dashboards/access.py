"""Who may ask the server, and for what it answers: host names, a token, sessions, and requests that other sites forge.

Without a token only this machine is answered, under its own names. With one, whoever brings it: as ``Authorization: Bearer``,
or once, for a session cookie that JavaScript cannot read and other sites cannot send. A session is a signed end, so that every
worker of a server with several can check it and none keeps a list.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tracekit.errors import UsageError, shown

if TYPE_CHECKING:
    from flask import Request

__all__ = ["SESSION_S", "SHORTEST_TOKEN", "Access", "forged", "is_loopback", "settle_access"]

SHORTEST_TOKEN = 16
"""Characters; what can be guessed by asking is refused from the start."""
SESSION_S = 24 * 3600
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")
"""Headers of a proxy: who asks through one may be anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """``host``: the address that is served on. ``token``: what a caller must know; ``None``: only this machine is answered.
    ``names``: host names besides addresses that the server answers to. ``read_only``: nothing can be started."""

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = ()
    read_only: bool = False

    @property
    def public(self) -> bool:
        """Whether other machines can reach the address."""
        return not is_loopback(self.host)

    def answers_to(self, host: str) -> bool:
        """Whether a ``Host`` header names this server. An address cannot be made to point here by somebody's name server; a
        name can, so only known ones are taken."""
        name = _name(host)
        if is_loopback(name):
            return True
        if self.token is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {each.lower() for each in (self.host, *self.names, *_own_names())}
        return True

    def lets_in(self, request: Request) -> bool:
        """Whether a request comes from somebody who may read: from this machine, or with the token or a session of it."""
        if self.token is None:
            passed_on = any(name in request.headers for name in _PASSED_ON)
            return not passed_on and (not request.remote_addr or is_loopback(request.remote_addr))
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return self._is_session(request.cookies.get(self.cookie, ""))

    def is_token(self, given: str) -> bool:
        """Whether it is the token, in a time that does not depend on how much of it is right."""
        return self.token is not None and hmac.compare_digest(_digest(given), _digest(self.token))

    @property
    def cookie(self) -> str:
        """The session cookie's name: cookies know no ports, so that two servers on one host need two names."""
        return f"tracekit_{self._signed('name')[:8]}"

    def new_session(self) -> str:
        """A value for the session cookie."""
        what = f"{int(time.time()) + SESSION_S}.{secrets.token_hex(8)}"
        return f"{what}.{self._signed(what)}"

    def _is_session(self, value: str) -> bool:
        what, _, signature = value.rpartition(".")
        end = what.partition(".")[0]
        if not hmac.compare_digest(signature.encode(), self._signed(what).encode()):
            return False
        return end.isdigit() and int(end) > time.time()

    def _signed(self, what: str) -> str:
        return hmac.new(_digest(self.token or ""), what.encode(), hashlib.sha256).hexdigest()


def forged(request: Request) -> bool:
    """Whether a request that may change something was made by another site's page in somebody's browser. Browsers say where
    such a request comes from; what is no browser says nothing and carries no cookie by accident."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return False
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != request.host.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def settle_access(
    *, host: str, token: str | None, names: Sequence[str] = (), read_only: bool = False, ask: str = "--token or TRACEKIT_TOKEN"
) -> Access:
    """What was asked for, checked. ``UsageError`` for an address that others reach without a token, and for a token that can be
    guessed or cannot be sent."""
    access = Access(host=host, token=token or None, names=tuple(names), read_only=read_only)
    if access.token is None and access.public:
        raise UsageError(f"--host {shown(host)}: other machines can reach it; expected a token by {ask}, or 127.0.0.1")
    if access.token is not None:
        if len(access.token) < SHORTEST_TOKEN:
            raise UsageError(f"token: {len(access.token)} characters; expected at least {SHORTEST_TOKEN} ({ask})")
        if not all("!" <= each <= "~" for each in access.token):
            raise UsageError(f"token: expected printable ASCII characters without spaces ({ask})")
    return access


def _name(host: str) -> str:
    """The name or address of a ``Host`` header, without its port and brackets."""
    name = host if host.endswith("]") or ":" not in host else host.rsplit(":", 1)[0]
    return name.strip("[]").rstrip(".").lower()


@cache
def _own_names() -> tuple[str, ...]:
    return (socket.gethostname().lower(), socket.getfqdn().lower())


def _digest(text: str) -> bytes:
    return hashlib.sha256(b"tracekit " + text.encode()).digest()
