"""What ``costmodel plan`` reads from its flags, how it shows that it works, and its other outputs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, one_line, shown
from costmodel.base.files import write_whole
from costmodel.base.version import install_command
from costmodel.cli.job_options import merged_job

if TYPE_CHECKING:
    from costmodel.cli.output import Result
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan

JOB = "job"
"""What ``--emit`` takes beside the names of frameworks: a job file of ours."""

_PATIENCE_S = 1.0


def asked_of(given: Mapping[str, Any], emit: str = "") -> dict[str, Any]:
    """Turn flags and the job file below them into the keywords of `costmodel.plan`.

    Raises
    ------
    CostModelError
        If a value cannot be read or something without a default is missing.
    """
    merged = merged_job(given, several=True)
    # In a job file a degree is a decision; dp follows from the rest.
    merged.pop("dp", None)
    # What is emitted has to run.
    if emit and emit != JOB and not merged.get("framework"):
        merged["framework"] = emit
    return merged


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr once a search takes longer than a second, only where a person watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    start = time.monotonic()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - start > _PATIENCE_S:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if shown:
            bar.stop()


def write_parquet(found: Plan, name: str, *, force: bool, quiet: bool) -> None:
    """Write the kept layouts as parquet.

    Raises
    ------
    CostModelError
        If pyarrow is missing, or the file exists without `force`.
    """
    path = Path(name)
    if path.exists() and not force:
        raise CostModelError(f"{path}: exists; --force replaces it")
    made = BytesIO()
    try:
        found.to_frame().to_parquet(made, index=False)
    except ImportError:
        raise CostModelError(f"parquet needs pyarrow: {install_command('parquet')}; or use --csv") from None
    write_whole(path, made.getvalue())
    if not quiet:
        print(f"wrote {one_line(str(path))}", file=sys.stderr)


def with_plan(result: Result, est: Estimate, asked: Mapping[str, Any]) -> Result:
    """Put the planner's best beside an estimate whose layout nobody named."""
    import costmodel as cm
    from costmodel.describe.jobs.merge import names_no_degree

    # Asked here, since a search is twice as much to import as an estimate.
    found = cm.beside(est, asked) if names_no_degree(asked) else None
    if found is None:
        return result
    return result._replace(
        record=lambda: {**est.to_dict(), "planned": found.record()},
        remarks=[*found.sentences, *result.remarks],
    )


def require_start(start: str, asked: Mapping[str, Any]) -> None:
    """Refuse a day to start on that is none, or without tokens to train on, before anything is searched.

    Raises
    ------
    CostModelError
        One line about `start`.
    """
    try:
        date.fromisoformat(start)
    except ValueError:
        raise CostModelError(f"start: expected a date such as 2026-12-01, got {shown(start)}") from None
    require_tokens("start", asked)


def require_tokens(what: str, asked: Mapping[str, Any]) -> None:
    """Refuse what is said of a whole run without tokens to train on, before anything is searched.

    Raises
    ------
    CostModelError
        One line about `what`.
    """
    if asked.get("tokens") is None and asked.get("dataset_samples") is None:
        raise CostModelError(f"{what}: needs --tokens, for a run that ends")
