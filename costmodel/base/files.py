"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from costmodel.base.errors import CostModelError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that nobody ever sees a part of it, whatever happens meanwhile.

    The content goes to a file beside it, is on the disk before it gets the name, and takes the place of
    what had the name in one step; a full disk or a kill leaves what was there before.

    Parameters
    ----------
    path : path
        The file; a link is followed.
    content : str or bytes
        All of it; text is written in UTF-8 with the line ends that it has.

    Raises
    ------
    CostModelError
        If the file cannot be written.
    """
    real = Path(path).resolve()
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
