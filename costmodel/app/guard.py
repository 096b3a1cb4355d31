"""What stands before the page: who may ask, from where, and how much may be sent; and what a browser may load."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from costmodel.app.limits import LIMITS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "costmodel_token"
TOKEN = "token"
_ENVELOPE_BYTES = 20_000
"""What a form needs around a file of the largest size."""

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # templates are compiled in the browser
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def new_token() -> str:
    """Return a secret that nobody guesses."""
    return secrets.token_urlsafe(24)


class _TooLargeError(Exception):
    """More was sent than is taken."""


class Guard:
    """Refuse what does not come from the page itself, then let the page answer.

    Parameters
    ----------
    app : callable
        The page.
    token : str
        Secret that every visitor must show once, in the address or the cookie made of it; empty where only this
        machine gets here.
    """

    def __init__(self, app: Asgi, token: str = "") -> None:
        self.app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one connection of a socket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        if problem := self._problem(scope, headers):
            await _refuse(scope, send, *problem)
            return
        if self._token and not self._shown_in_cookie(headers):
            await self._let_in(scope, send)
            return
        held, started = _counted(receive), False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                kept = [pair for pair in message["headers"] if pair[0].lower() not in dict(_HEADERS)]
                message = {**message, "headers": [*kept, *_HEADERS]}
            await send(message)

        try:
            await self.app(scope, held if scope["type"] == "http" else receive, answer)
        except _TooLargeError:
            if not started:
                await _refuse(scope, send, 413, _too_large())

    def _problem(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return status and reason of what is refused whoever asks."""
        host = headers.get("host", "")
        # A name of somebody else's that points here would let his page read this one.
        if not self._token and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return 400, f"this page is at 127.0.0.1, not at {host[:80]!r}"
        origin = headers.get("origin", "")
        asks = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if (origin and urlsplit(origin).netloc != host) or (asks and not origin):
            return 403, "another page may not use this one"
        if scope["type"] == "http" and len(scope.get("query_string", b"")) > 2 * LIMITS.link_characters:
            return 414, f"expected an address of at most {LIMITS.link_characters:,} characters"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LIMITS.upload_bytes + _ENVELOPE_BYTES:
            return 413, _too_large()
        return None

    def _shown_in_cookie(self, headers: dict[str, str]) -> bool:
        cookie: SimpleCookie = SimpleCookie()
        try:
            cookie.load(headers.get("cookie", ""))
        except Exception:  # whatever a stranger puts there
            return False
        return COOKIE in cookie and self._is_token(cookie[COOKIE].value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _let_in(self, scope: Scope, send: Send) -> None:
        """Turn a token in the address into a cookie, and take it out of the address."""
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = dict(pairs).get(TOKEN, "")
        if scope["type"] != "http" or scope["method"] != "GET" or not self._is_token(given):
            await _refuse(scope, send, 403, "open the address that the program printed; it has a token")
            return
        rest = urlencode([pair for pair in pairs if pair[0] != TOKEN])
        cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", f"/?{rest}".encode()), (b"set-cookie", cookie.encode()), *_HEADERS]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _too_large() -> str:
    return f"expected a file of at most {LIMITS.upload_bytes:,} bytes"


def _counted(receive: Receive) -> Receive:
    """Return what receives a body and ends once more has come than any file may have."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LIMITS.upload_bytes + _ENVELOPE_BYTES:
            raise _TooLargeError
        return message

    return counted


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    """Answer with a line of text."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
