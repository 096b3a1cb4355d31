"""Starting the page: where it listens, who gets in, and what is printed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from urllib.parse import quote

from costmodel.app.guard import TOKEN, Guard, is_loopback, new_token
from costmodel.app.limits import LIMITS
from costmodel.app.workers import Workers
from costmodel.base.errors import CostModelError
from costmodel.base.version import install_command

TOKEN_VARIABLE = "COSTMODEL_APP_TOKEN"
_SHORTEST_TOKEN = 16
_WAITING = 64
_RECONNECT_S = 30.0
"""How long a visitor may be away without the page being built anew."""


def serve(host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the page until the program is interrupted.

    Parameters
    ----------
    host : str
        Address to listen on; any but this machine's own asks every visitor for a token.
    port : int
        Port, 0 for a free one.
    say : callable
        Called with each line that the user has to read, the address first.

    Raises
    ------
    CostModelError
        If the extra is missing, or the address cannot be listened on.
    """
    try:
        import nicegui  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        raise CostModelError(f"the page needs NiceGUI and plotly: {install_command('app')}") from None
    token = "" if is_loopback(host) else _token()
    listening = _listening(host, port)
    workers = Workers(
        LIMITS.answers_at_once, queue=_WAITING, busy="too many wait for an answer; try again in a moment"
    )
    plans = Workers(
        LIMITS.plans_at_once,
        queue=0,
        busy=f"{LIMITS.plans_at_once} searches are running, which is the limit here; try again when one is done",
    )
    try:
        workers.warm()
        _run(listening, token, workers, plans, lambda: _announce(host, listening, token, say))
    finally:
        listening.close()
        workers.close()
        plans.close()


def _run(
    listening: socket.socket, token: str, workers: Workers, plans: Workers, announce: Callable[[], None]
) -> None:
    """Serve on a socket that listens."""
    import uvicorn
    from fastapi import FastAPI
    from nicegui import ui

    from costmodel.app.page import page_of

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.page("/")(page_of(workers, plans))
    ui.run_with(
        outer,
        title="costmodel",
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_S,
    )
    config = uvicorn.Config(
        Guard(outer, token),
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=1,
        ws_max_size=LIMITS.upload_bytes,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    Server(config).run(sockets=[listening])


def _token() -> str:
    """Return the secret of a page that others can reach: the user's own, or a new one.

    Raises
    ------
    CostModelError
        If the user's own is one that could be guessed.
    """
    own = os.environ.get(TOKEN_VARIABLE, "")
    if own and (
        len(own) < _SHORTEST_TOKEN or not own.isascii() or not own.isprintable() or set(own) & set(' ",;\\')
    ):
        raise CostModelError(
            f"{TOKEN_VARIABLE}: expected at least {_SHORTEST_TOKEN} letters and digits that nobody guesses; "
            "without it a token is made"
        )
    return own or new_token()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises
    ------
    CostModelError
        If it cannot.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0], backlog=128)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CostModelError(
            f"cannot listen on {host} port {port}: {reason}; --port 0 takes a free one"
        ) from None


def _announce(host: str, listening: socket.socket, token: str, say: Callable[[str], None]) -> None:
    port = listening.getsockname()[1]
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    where = f"[{name}]" if ":" in name else name
    say(f"http://{where}:{port}/" + (f"?{TOKEN}={quote(token)}" if token else ""))
    if token:
        say(
            "Whoever has this address can use the page; nothing is encrypted on the way, so put a proxy with TLS before it."
        )
    say("Ctrl-C ends it.")
