"""Whether a name may be a path of this machine.

On a command line, a model or a cluster may be named by the path of a file. A process that works for people elsewhere (the
page of `costmodel app`, an assistant) must not open files for them, nor say which there are: it closes this door once,
for good, and every place that would follow a path asks here first.
"""

from __future__ import annotations

from costmodel.base.errors import CostModelError, shown

_closed = False


def close_files() -> None:
    """Follow no path that somebody names, from now on until the process ends."""
    global _closed
    _closed = True


def refuse_path(name: object, what: str, error: type[CostModelError] = CostModelError) -> None:
    """Refuse, by a `CostModelError` of the type `error`, to follow a path given for `what` where files are closed.

    The message is the same whether there is such a file or not.
    """
    if _closed:
        raise error(
            f"{what}: {shown(str(name))} would be a file of this machine, which is not read here; hand over its content"
        )


def files_are_closed() -> bool:
    """Return whether paths are refused."""
    return _closed
