"""The page of `costmodel serve`: a small server on this machine, for the one person who sits at it.

The address holds the whole state (`costmodel.app.state`), so a request is a question and nothing is kept between two. The
page asks for JSON; what takes seconds answers with a line of progress after another, and ends when nobody reads it any
more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from costmodel.app import answers
from costmodel.app.state import FIGURES, FIRST, VIEWS, State, query_of, state_of
from costmodel.app.texts import MODEL_FILE, SEARCH_FIELDS, WHOLE_RUN_FIELDS, field_of
from costmodel.base.errors import CostModelError, one_line
from costmodel.base.files import close_files
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.fields import JOB_FIELDS, known_words, names
from costmodel.reporting.html.page import asset, template

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_PROGRESS_EVERY_S = 0.1

Record = dict[str, Any]

_QUESTIONS: dict[str, Callable[[State], Record]] = {
    "answer": answers.view,
    "warnings": lambda state: {"html": answers.warnings(state.job)},
    "line": lambda state: {"html": answers.explained(state.job, state.line) if state.line else ""},
    "job": lambda state: {
        "name": f"{'b' if state.second else 'a'}.yaml",
        "text": answers.job_yaml(state.job),
    },
    "csv": lambda state: {"name": "bill.csv", "text": answers.bill_csv(state.job)},
    "model": lambda state: {"name": MODEL_FILE, "text": state.job.model},
}
_SEARCHES = {"plan": answers.plan, "overview-plan": answers.overview_plan, "report": answers.report}
_WIDE = ("name", "text", "layout", "order", "switches", "choices", "hardware")
"""Kinds of fields whose input is as wide as the form."""


@cache
def pickers() -> dict[str, dict[str, list[str]]]:
    """Return the models by family and the machines by generation of accelerator, for those who know no name."""

    def generation(name: str) -> str:
        return load_cluster(name).accelerator.generation

    def family(name: str) -> str:
        return name.partition("-")[0].rstrip("0123456789.")

    def grouped(field: str, of: Callable[[str], str]) -> dict[str, list[str]]:
        words = sorted(known_words(field), key=lambda name: (of(name), name))
        return {title: list(names) for title, names in groupby(words, of)}

    return {"model": grouped("model", family), "cluster": grouped("cluster", generation)}


def page(query: str) -> str:
    """Return the page at the state of an address; its script fills in and asks."""
    start: Record = {
        "query": FIRST,
        "fields": names(JOB_FIELDS),
        "layout": [field.name for field in JOB_FIELDS if field.group == "layout"],
    }
    try:
        start["query"] = query_of(state_of(query))
    except CostModelError as error:
        start |= _problem(error)
    shown = [
        field for field in JOB_FIELDS if field.name not in ("layout", "dp")
    ]  # said once more by the degrees
    first = [f for f in shown if f.group == "job" and (f.required or f.short or f.name == "tokens")]
    requested = [field for field in first if field.name in ("model", "cluster", "gpus")]
    first = [field for field in first if field.name != "switches" and field not in requested]
    layout = [field for field in shown if field.group == "layout"]
    most_requested = ("dollars", "days", "reliability", "failures_per_node_day", "spare_nodes", "pue")
    forms = {
        "requested": requested,
        "first": first,
        "layout": layout,
        "other": [field for field in shown if field not in (*requested, *first, *layout)],
        "constraints": [field for field in SEARCH_FIELDS if not field.tuned],
        "knobs": [field for field in SEARCH_FIELDS if field.tuned],
        "run_first": [field for field in WHOLE_RUN_FIELDS if field.name in most_requested],
        "run_other": [field for field in WHOLE_RUN_FIELDS if field.name not in most_requested],
    }
    return str(
        template("page.html", "costmodel.app").render(
            forms=forms,
            titles=VIEWS,
            figures=FIGURES,
            known_words=known_words,
            pickers=pickers(),
            wide=_WIDE,
            first=start,
        )
    )


def answer(question: str, query: str) -> Record:
    """Answer a question about the state of an address; an error is an answer too, with the field it is about."""
    found: Record = {}
    try:
        state = state_of(query)
        found["command"] = answers.command_of(state)
        return found | _QUESTIONS[question](state)
    except Exception as error:
        return found | _problem(error)


def dropped(query: str, content: bytes) -> Record:
    """Read a file that was dropped on the page; return the state with it, and what was said of it."""
    try:
        name = parse_qs(query).get("name", [""])[0]
        rest = urlencode([(key, text[0]) for key, text in parse_qs(query).items() if key != "name"])
        state, message = answers.with_file(state_of(rest), name, content)
        return {"query": query_of(state), "said": message}
    except Exception as error:
        return _problem(error)


def _problem(error: Exception) -> Record:
    """Return an error as the page shows it; a bug leaves its traceback in the terminal."""
    if isinstance(error, CostModelError):
        return {"error": one_line(str(error)), "field": field_of(str(error))}
    traceback.print_exception(error, file=sys.stderr)
    return {"error": "this is a bug of the program; its terminal has the details", "field": ""}


_ASSETS = {
    **dict.fromkeys(("page.css", "page.js"), "costmodel.app"),
    **dict.fromkeys(("draw.css", "draw.js"), "costmodel.reporting.html"),
}
"""Files of the page, with the package of each."""


_MOST_BYTES = 64 * 2**20
"""Of a file that is dropped on the page."""


def _release_memory() -> None:
    """Give what a search has freed back to the system: each has a thread, and glibc holds on to the heap of each."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = 5
    """How long a connection may say nothing until it is closed. [s]"""

    def do_GET(self) -> None:
        """Give the page, one of its files, or an answer."""
        at = urlsplit(self.path)
        what = at.path.removeprefix("/")
        if not self._is_ours():
            return
        if what == "":
            self._send(page(at.query), "text/html")
        elif what in _ASSETS:
            self._send(asset(what, _ASSETS[what]), "text/css" if what.endswith("css") else "text/javascript")
        elif what in _QUESTIONS:
            self._send(json.dumps(answer(what, at.query)), "application/json")
        elif what in _SEARCHES:
            self._search(what, at.query)
        else:
            self._send("there is no such page\n", "text/plain", 404)

    def do_POST(self) -> None:
        """Read a file that was dropped."""
        at, length = urlsplit(self.path), self.headers.get("Content-Length") or "0"
        if not self._is_ours():
            return
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.close_connection = True
            self._send(f"Content-Length: expected at most {_MOST_BYTES:,} bytes\n", "text/plain", 413)
            return
        if at.path == "/read":
            self._send(json.dumps(dropped(at.query, self.rfile.read(int(length)))), "application/json")
        else:
            self._send("there is no such page\n", "text/plain", 404)

    def _is_ours(self) -> bool:
        """Refuse a page of somebody else's: one whose name points here, or one that sends here."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}")
            _ = host.port  # one that is no number raises, too
            origin = urlsplit(self.headers.get("Origin", ""))
        except ValueError:
            self._send("Host or Origin is malformed\n", "text/plain", 400)
            return False
        # A link may lead here from elsewhere; an image, a script or a form of another site may not.
        linked = self.headers.get("Sec-Fetch-Mode") == "navigate" and self.command == "GET"
        foreign = self.headers.get("Sec-Fetch-Site") == "cross-site" and not linked
        if host.hostname in _NAMES and origin.netloc in ("", host.netloc) and not foreign:
            return True
        self._send(f"this page is at {HOST}, and for itself only\n", "text/plain", 403)
        return False

    def _send(self, text: str, kind: str, status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _search(self, what: str, query: str) -> None:
        """Search, or write a report: a JSON object a line, the last of them the answer."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        last = 0.0

        def tell(record: Record) -> None:
            self.wfile.write(json.dumps(record).encode() + b"\n")

        def progress(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _PROGRESS_EVERY_S:
                last = time.monotonic()
                tell({"done": done, "total": total})  # fails, and so ends the search, where nobody reads

        try:
            tell(_SEARCHES[what](state_of(query), progress=progress))
        except ConnectionError:
            raise
        except Exception as error:
            tell(_problem(error))
        finally:
            _release_memory()

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests that went well."""


class Server(ThreadingHTTPServer):
    """A thread a request; they end with the program."""

    daemon_threads = True
    request_queue_size = 128
    """Connections that wait to be accepted; the standard library's 5 lets a browser's sixth wait for seconds."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a traceback of bugs, not of a browser that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(port: int, say: Callable[[str], None]) -> None:
    """Serve the page until the program is interrupted, on port 0 at a free one; `say` gets what the user has to read."""
    try:
        server = Server((HOST, port), Handler)
    except OSError as error:
        raise CostModelError(
            f"cannot listen on {HOST} port {port}: {error.strerror}; --port 0 takes a free one"
        ) from None
    close_files()  # a link or a file may come from somebody else
    with server:
        say(f"http://{HOST}:{server.server_port}/")
        say("Ctrl-C ends it.")
        with contextlib.suppress(KeyboardInterrupt):
            pickers()  # once, where first requests at the same time would each make them
            server.serve_forever()
