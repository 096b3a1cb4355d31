"""Answers in twenty lines: the answer as a sentence, what was assumed, how sure it is, and the largest lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from costmodel.base.answer import Summary
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.hardware.changed import changed_text
from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.frame import line_records
from costmodel.reporting.cells import say
from costmodel.reporting.tables import breakdown_text, hidden_text, range_text, spent_text

LINES = 5
"""Largest lines that a summary shows of each bill."""
_PASSES = ("forward", "backward", "backward_input", "backward_weight", "recompute")


def device_name(accelerator: Accelerator) -> str:
    """Return what people call an accelerator: its profile's name up to the first number.

    >>> from costmodel.describe.hardware.hardware import load_accelerator
    >>> device_name(load_accelerator("h100-sxm-80gb")), device_name(load_accelerator("tpu-v5p"))
    ('H100', 'TPU V5P')
    """
    parts = accelerator.name.split("-")
    numbered = [at for at, part in enumerate(parts) if any(map(str.isdigit, part))]
    return " ".join(parts[: numbered[0] + 1]).upper() if numbered else accelerator.name


def of_text(need: float, have: float) -> str:
    """Return what of a memory is used, the unit once where both have the same.

    >>> of_text(63.9 * 2**30, 79.2 * 2**30)
    '63.9 of 79.2 GiB'
    """
    used, whole = format_bytes(need), format_bytes(have)
    unit = whole.rpartition(" ")[2]
    return f"{used.removesuffix(f' {unit}')} of {whole}"


def machine_text(est: Estimate) -> str:
    """Return model and machine of a job; a machine is named by its accelerators, its cluster stands below."""
    cluster, gpus = est.job.cluster, float(est.job.layout.gpus)
    others = cluster.mixed.nodes * cluster.gpus_per_node if cluster.mixed else 0
    more = f" and {others:,.0f} {device_name(cluster.mixed.accelerator)}" if cluster.mixed else ""
    return f"{est.job.model.name} on {gpus - others:,.0f} {device_name(cluster.accelerator)}{more}"


def answer_text(est: Estimate) -> str:
    """Say how long a step takes, what MFU that is, and whether it fits; first of all where it does not."""
    step = say("{step_time_s:s4} a step, {mfu:.1%} MFU", est)
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    if not est.fits_gpu:
        over = format_bytes(need - have)
        return f"DOES NOT FIT: {machine_text(est)} needs {of_text(need, have)} a GPU, {over} too much ({step} if it did fit)"
    if not est.fits_host:
        host = of_text(float(est.host_memory_bytes), est.host_memory_capacity_bytes)
        return f"DOES NOT FIT: {machine_text(est)} needs {host} of host memory ({step} if it did fit)"
    only = "only " if float(est.fits_probability) < 0.75 else ""
    chance = say("{fits_probability:chance} likely to fit", est)
    return f"{machine_text(est)}: {step}, {of_text(need, have)}; {only}{chance}"


def job_rows(est: Estimate, assumed: Collection[str] | None = None) -> list[tuple[str, str]]:
    """Return layout and setting of a job; what nobody named (names of fields, the estimate's own if not given) has a star."""
    job, assumed = est.job, est.assumed if assumed is None else assumed
    star = defaultdict(str, dict.fromkeys(assumed, "*"))
    setting = (
        f"{changed_text(job.cluster)}{star['cluster']}, {job.recipe.name}{star['recipe']}, "
        f"{job.precision.name}{star['precision']}, batch {float(job.global_batch):,.0f}{star['global_batch']} x "
        f"{float(job.seq_len):,.0f}{star['seq_len']}"
    )
    # Who predicts more than one token repeats the head on the last stage.
    by_work = job.model.mtp_layers > 0 and job.balanced_stages and float(job.layout.pp) > 1
    balanced = ", layers balanced over stages" if by_work else ""
    return [
        ("layout", layout_text(job.layout) + balanced + star["layout"]),
        ("job", setting + (" (*assumed)" if "*" in setting + star["layout"] else "")),
    ]


def largest_time(est: Estimate) -> list[tuple[str, float]]:
    """Return exposed seconds by line, the passes of one operator together, largest first; `explain` opens each name."""
    found: dict[str, float] = {}
    for line in est.bill.time_lines:
        head, _, last = line.name.rpartition(".")
        name = head if last in _PASSES else line.name
        found[name] = found.get(name, 0.0) + float(line.exposed_seconds)
    return sorted(found.items(), key=lambda item: -item[1])


def largest_memory(est: Estimate) -> list[tuple[str, float]]:
    """Return bytes of the worst stage by line, optimizer states together, largest first."""
    found: dict[str, float] = {}
    for record in line_records(est)["memory"]:
        name = ".".join(record["name"].split(".")[:3])
        found[name] = found.get(name, 0.0) + record["bytes"]
    return sorted(found.items(), key=lambda item: -item[1])


def first_warning(warnings: Sequence[str]) -> list[str]:
    """Return the most important warning, and how many more there are."""
    more = f" ({len(warnings) - 1} more: --details)" if len(warnings) > 1 else ""
    return [f"Warning: {warnings[0]}{more}"] if warnings else []


def estimate_summary(est: Estimate) -> Summary | None:
    """Return one layout in twenty lines, the largest lines of both bills below; None for many, whose table is short."""
    if est.shape:
        return None
    below = {"time": breakdown_text(est), "network": hidden_text(est), "tokens": spent_text(est)}
    layout, setting = job_rows(est)
    rows = [
        ("planned", layout[1]) if est.is_planned else layout,
        *([("set", f"{est.chosen}*")] if est.chosen else []),
        setting,
        ("range", range_text(est)),
        *((name, text) for name, text in below.items() if text),
    ]
    step_s = float(est.step_time_s)
    lines = [
        [name, format_seconds(spent), f"{spent / step_s:.1%}", holder, format_bytes(memory)]
        for (name, spent), (holder, memory) in zip(
            largest_time(est)[:LINES], largest_memory(est)[:LINES], strict=False
        )
    ]
    titles = columns("Largest lines of time", "Exposed >", "Share >", "Of memory", "Size >")
    return Summary(
        [Grid(answer_text(est), columns("", ""), rows), Grid("", titles, lines)],
        # A flag that a warning names holds the rest of the layout only where that is named too.
        first_warning([f"at the planned layout {one}" if est.is_planned else one for one in est.warnings]),
    )
