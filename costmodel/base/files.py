"""Files that appear whole or not at all, files that may never end, and whether a name may be a path of this machine.

On a command line, a model or a cluster may be named by the path of a file. A process that works for people elsewhere (the
page of `costmodel serve`, an assistant) must not open files for them, nor say which there are: it closes this door once,
for good, and every place that would follow a path asks here first.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from costmodel.base.errors import CostModelError, shown

_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Where a shell puts what another program writes: ``<(…)`` and a redirected input."""


def refuse_endless(path: object, error: type[CostModelError] = CostModelError) -> None:
    """Refuse, by a `CostModelError` of the type `error`, a name whose reading might never end: a pipe, a socket, a device."""
    if not isinstance(path, str | Path) or str(path).startswith(_HANDED_OVER):
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise error(f"{path}: is a pipe or a device, expected a file")


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Say whether there is a file, or a folder, of that name; one that no file can have is not there."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):
        return False


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that nobody ever sees a part of it, whatever happens meanwhile; a link is followed."""
    try:
        real = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        raise CostModelError(f"{path}: cannot be written (not a name that leads to a file)") from None
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    try:
        handle, name = tempfile.mkstemp(prefix=f".{real.name[:100]}.", dir=real.parent)
    except OSError as error:
        raise CostModelError(f"{path}: cannot be written ({error.strerror})") from None
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result is as public as the user's other files.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(real)
    except OSError as error:
        raise CostModelError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        # Gone where it has got its name; still there after an error or an interrupt.
        part.unlink(missing_ok=True)


_closed = False


def close_files() -> None:
    """Follow no path that somebody names, from now on until the process ends."""
    global _closed
    _closed = True


def refuse_path(name: object, what: str, error: type[CostModelError] = CostModelError) -> None:
    """Refuse, by a `CostModelError` of the type `error`, to follow a path given for `what` where files are closed."""
    if _closed:
        raise error(
            f"{what}: {shown(str(name))} would be a file of this machine, which is not read here; hand over its content"
        )


def files_are_closed() -> bool:
    """Return whether paths are refused."""
    return _closed
