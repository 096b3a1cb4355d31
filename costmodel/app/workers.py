"""Processes that price for others: each request has a deadline, can be stopped, and cannot reach files.

A thread cannot be ended, and a search holds its core for seconds, so that whatever a stranger asks runs in a process
that may be killed. What comes back is plain data.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from costmodel.app.limits import LIMITS, LimitError, StoppedError
from costmodel.base.errors import CostModelError
from costmodel.base.own_files import close_files

Progress = Callable[[int, int], None]

_TOLD_EVERY_S = 0.1
_LOOK_EVERY_S = 0.05


class BrokenWorkerError(RuntimeError):
    """A request that ended in a bug, or took its process down; what happened is on the server's stderr."""


def _context() -> Any:
    """Return how processes are started: from a clean one, as this one has threads."""
    way = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(way)
    if way == "forkserver":
        context.set_forkserver_preload(["costmodel.app.answers"])
    return context


class Worker:
    """One process, started when it is first asked something, and again after it was ended."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def ask(
        self,
        function: Callable[..., Any],
        given: tuple[Any, ...],
        *,
        most_s: float,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> Any:
        """Call a function of a module in the process and return what it returns.

        Parameters
        ----------
        function : callable
            Of a module; with `progress`, it takes a keyword of that name.
        given : tuple
            Its arguments.
        most_s : float
            Deadline. [s]
        progress : callable, optional
            Called, in this thread, with what is done and what there is to do.
        stop : threading.Event, optional
            Set by whoever wants the request to end.

        Raises
        ------
        CostModelError
            As the function raises it; `LimitError` past the deadline, `StoppedError` when stopped.
        BrokenWorkerError
            If the function failed otherwise.
        """
        if self._process is None or not self._process.is_alive():
            self._start()
        end = time.monotonic() + most_s
        self._pipe.send((function, given, progress is not None))
        while True:
            if stop is not None and stop.is_set():
                self.end()
                raise StoppedError("stopped")
            if time.monotonic() > end:
                self.end()
                raise LimitError(
                    f"this takes longer than {most_s:.0f} s, which is the limit here; ask for less"
                )
            try:
                if not self._pipe.poll(_LOOK_EVERY_S):
                    continue
                kind, *rest = self._pipe.recv()
            except (EOFError, OSError):
                self.end()
                raise BrokenWorkerError("the process that worked on this has ended; ask for less") from None
            if kind == "progress":
                if progress is not None:
                    progress(*rest)
                continue
            if kind == "done":
                return rest[0]
            raise rest[0]

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def _start(self) -> None:
        self.end()
        context = _context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()


class Workers:
    """A number of workers, each with a thread that waits for it.

    Parameters
    ----------
    count : int
        Processes. [-]
    queue : int
        Requests that may wait; more are refused. [-]
    busy : str
        What a refusal says.
    """

    def __init__(self, count: int, *, queue: int, busy: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="costmodel")
        self._own = threading.local()
        self._all: list[Worker] = []
        self._room = threading.Semaphore(count + queue)
        self._busy, self._count = busy, count

    def submit(self, function: Callable[..., Any], *given: Any, **how: Any) -> Future[Any]:
        """Ask a worker as soon as one is free; see `Worker.ask` for `how`.

        Raises
        ------
        LimitError
            If too many wait already.
        """
        if not self._room.acquire(blocking=False):
            raise LimitError(self._busy)
        future = self._threads.submit(self._ask, function, given, how)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _ask(self, function: Callable[..., Any], given: tuple[Any, ...], how: dict[str, Any]) -> Any:
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker()
            self._all.append(self._own.worker)
        return self._own.worker.ask(function, given, **how)

    def warm(self) -> None:
        """Start the processes, so that the first who asks does not wait for that."""
        for _ in range(self._count):
            self.submit(_nothing, most_s=LIMITS.answer_s)

    def close(self) -> None:
        """End all processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.end()


def _nothing() -> None:
    """Return at once."""


def _serve(pipe: Connection) -> None:
    """Answer requests until the other end is closed: the life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _hold_memory(LIMITS.memory_bytes)
    close_files()
    sys.addaudithook(_only_our_own(_readable()))
    while True:
        try:
            function, given, wants_progress = pipe.recv()
        except (EOFError, OSError):
            return
        more = {"progress": _told(pipe)} if wants_progress else {}
        try:
            answer: tuple[Any, ...] = ("done", function(*given, **more))
        except BrokenPipeError:  # nobody waits any more
            return
        except CostModelError as error:
            answer = ("error", error)
        except MemoryError:
            answer = ("error", LimitError("this takes more memory than is allowed here; ask for less"))
        except Exception:
            traceback.print_exc()
            answer = ("error", BrokenWorkerError("this is a bug of the program; its server has the details"))
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _told(pipe: Connection) -> Progress:
    """Return what tells the other end how far a request is, not too often, and holds it to its size."""
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        if total > LIMITS.plan_layouts:
            raise LimitError(
                f"plan: {total:,} layouts to price, and {LIMITS.plan_layouts:,} are the limit here; name values of "
                "tp, pp, micro_batch or schedule, or run the command below"
            )
        if time.monotonic() - last >= _TOLD_EVERY_S:
            last = time.monotonic()
            pipe.send(("progress", done, total))

    return tell


def _hold_memory(size_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))


def _readable() -> tuple[str, ...]:
    """Return the folders that the program itself reads: Python, its packages, profiles."""
    from costmodel.describe.hardware.profile_files import search_folders

    package = Path(__file__).resolve().parents[1]
    places = [sys.prefix, sys.base_prefix, str(package), *sys.path[1:], *map(str, search_folders(None))]
    real = {os.path.realpath(place) for place in places if place}
    return tuple(sorted(f"{place.rstrip(os.sep)}{os.sep}" for place in real if place != os.sep))


def _only_our_own(folders: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that lets nothing be opened outside some folders: the wall behind the closed door."""
    devices = (os.devnull, "/dev/urandom")

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and isinstance(given[0], str | bytes):
            path = os.path.realpath(os.fsdecode(given[0]))
            if path not in devices and not f"{path}{os.sep}".startswith(folders):
                raise PermissionError(13, "not a file of the program", os.fsdecode(given[0]))
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
            raise PermissionError(13, f"{event} is not for a process that works for others")

    return look
