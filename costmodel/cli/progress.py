"""A progress bar on stderr for what takes longer than a second, only where a person watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """Show how far `what` has come; yields a function to call after each of `total` parts."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
