"""Pictures that a command draws beside its result."""

import sys
from pathlib import Path

from costmodel.cli.output import Target, plan_output


def plan_picture(name: str, *, force: bool) -> Path | None:
    """Check a picture's file as `plan_output` checks results; none if none is asked for."""
    return plan_output(None, name, force=force).out if name else None


def tell(path: Path, target: Target) -> None:
    """Say on stderr that a file was written."""
    if not target.quiet:
        print(f"wrote {path}", file=sys.stderr)
