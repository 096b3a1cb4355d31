"""What ``costmodel plan`` reads from its flags, how it shows that it works, and its other outputs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, LayoutError
from costmodel.base.units import parse_quantity
from costmodel.base.version import install_command

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan

_JOB_KEYS = (
    "model",
    "cluster",
    "gpus",
    "global_batch",
    "seq_len",
    "precision",
    "recipe",
    "axis_order",
    "tokens",
)
_PATIENCE_S = 1.0


def asked_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn flags and the job file below them into the keywords of `costmodel.plan`.

    Raises
    ------
    CostModelError
        If a value cannot be read or something without a default is missing.
    """
    from costmodel.describe.jobs.job import DEFAULT_CLUSTER
    from costmodel.describe.jobs.merge import merge_jobs, read_job
    from costmodel.describe.jobs.reading import parse_switches, require_complete
    from costmodel.planning.space import KNOBS

    flags = {key: given[key] for key in (*_JOB_KEYS, *KNOBS)}
    merged = merge_jobs(
        read_job(given["job"]) if given["job"] else {},
        {**flags, "switches": parse_switches(given["switches"]) or None},
    )
    require_complete(merged)
    # In a job file a degree is a decision; dp follows from the rest.
    merged.pop("dp", None)
    merged["gpus"] = whole_numbers("gpus", merged["gpus"])
    merged["global_batch"] = whole_numbers("global_batch", merged["global_batch"])
    for key in ("cluster", "precision"):
        if isinstance(merged.get(key), str):
            merged[key] = [part.strip() for part in merged[key].split(",") if part.strip()]
    if given["profiles"]:
        from costmodel.describe.hardware.hardware import load_cluster

        names = merged.get("cluster", [DEFAULT_CLUSTER])
        merged["cluster"] = [load_cluster(name, profile_path=given["profiles"]) for name in names]
    merged["objective"] = given["objective"]
    merged["fix"] = _pairs(given["fix"])
    if given["max_memory"]:
        merged["max_memory_bytes"] = memory_bytes(given["max_memory"])
    if given["headroom"]:
        merged["headroom"] = share(given["headroom"])
    if given["offload"]:
        merged["offload_optimizer"] = [_boolean("--offload", part) for part in given["offload"].split(",")]
    # What is emitted has to run.
    merged["framework"] = given["framework"] or given["emit"]
    return merged


def whole_numbers(name: str, given: Any) -> list[int]:
    """Read whole numbers with commas between them.

    >>> whole_numbers("gpus", "256,512")
    [256, 512]
    """
    parts = given.split(",") if isinstance(given, str) else [given]
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise LayoutError(f"{name}: expected whole numbers with commas between them, got {given!r}") from None


def memory_bytes(text: str) -> float:
    """Read an amount of memory, with or without the space.

    >>> memory_bytes("72GiB")
    77309411328.0
    """
    return parse_quantity(re.sub(r"(\d)([A-Za-z])", r"\1 \2", text, count=1), "B")


def share(text: str) -> float:
    """Read a share: per cent, or a number from 0 to 1.

    >>> share("10%"), share("0.1")
    (0.1, 0.1)
    """
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        raise LayoutError(f"headroom: expected a share such as 10% or 0.1, got {text!r}") from None


def _boolean(name: str, text: str) -> bool:
    """Read true or false."""
    if text.strip().lower() not in ("true", "false"):
        raise LayoutError(f"{name}: expected true, false or both, got {text!r}")
    return text.strip().lower() == "true"


def _pairs(texts: list[str] | None) -> dict[str, str]:
    """Read ``knob=value`` texts."""
    pairs: dict[str, str] = {}
    for text in texts or []:
        knob, equals, value = text.partition("=")
        if not equals or not value:
            raise LayoutError(f"--fix: expected knob=value, such as pp=1; got {text!r}")
        name = knob.strip().replace("-", "_")
        # The flag is --zero, the keyword zero_stage.
        name = "zero_stage" if name == "zero" else name
        if name in pairs:
            raise LayoutError(f"--fix: {name} is fixed twice, to {pairs[name]} and to {value}")
        pairs[name] = value
    return pairs


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


def emitted(best: Estimate, framework: str) -> str:
    """Return the launch flags or configuration of a layout for a framework."""
    from costmodel.interop.emit import emit

    return emit(best, framework)


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
    try:
        found.to_frame().to_parquet(path, index=False)
    except ImportError:
        raise CostModelError(f"parquet needs pyarrow: {install_command('parquet')}; or use --csv") from None
    except OSError as error:
        raise CostModelError(f"{path}: cannot be written ({error.strerror})") from None
    if not quiet:
        print(f"wrote {path}", file=sys.stderr)
