"""The neighbourhood of a job, priced once: what the sliders of a report move through.

Every knob gets a handful of values around the job's own; all combinations that can run are priced
in one call of `price`, the same that makes an estimate, and the others carry the reason why not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import broadcast_sum
from costmodel.describe.jobs.fields import FIELDS, names
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout, layout_problems
from costmodel.estimates.estimate import Estimate
from costmodel.physics.pipeline.schedules import schedule_code, valid
from costmodel.planning.space import REASONS
from costmodel.step.price import price

Array = NDArray[np.float64]

SLIDERS = names(field for field in FIELDS if field.slider)
"""The sliders, in the order of the grid's dimensions."""

PARTS = ("compute", "tp", "cp", "ep", "pp", "bubble", "dp")
"""What the step is split into; `dp` with optimizer, failures and the rest."""

MOST_POINTS = 16_000
_MIN_TOKENS_A_RANK = 512


class SliderGrid(NamedTuple):
    """Step time and memory over all combinations of the sliders, a dimension each; NaN where the layout cannot run."""

    values: dict[str, tuple[int, ...]]  # Of each of `SLIDERS`, ascending
    start: dict[str, int]  # Index of the job's own
    step_time_s: Array
    memory_bytes: Array
    shares: Array  # Of the step, by `PARTS` in the last dimension
    reason: NDArray[np.uint8]  # 0 where a layout can run, else 1 + an index into `reasons`
    reasons: tuple[str, ...]
    plain: NDArray[np.bool_]  # Where 1F1B without virtual stages was priced, as the job's schedule cannot run


def slider_values(job: Job) -> dict[str, tuple[int, ...]]:
    """Return the values of every slider: powers of two around the job's own."""
    layout, model = job.layout, job.model
    own = {knob: int(getattr(layout, knob)) for knob in SLIDERS}
    tokens = int(job.seq_len) // _MIN_TOKENS_A_RANK
    limits = {
        "gpus": (own["gpus"] // 8, min(own["gpus"] * 4, job.cluster.max_gpus)),
        "tp": (1, max(min(job.cluster.tiers[0].size, 16), own["tp"])),
        "pp": (1, min(model.num_layers, max(32, 2 * own["pp"]))),
        "cp": (1, max(min(16, tokens), own["cp"])),
        "ep": (1, min(model.num_experts, 256)) if model.num_experts else (1, 1),
        "micro_batch": (1, max(8, own["micro_batch"])),
    }
    values = {knob: _doublings(own[knob], *limits[knob]) for knob in SLIDERS}
    while np.prod([float(len(choices)) for choices in values.values()]) > MOST_POINTS:
        knob = max(values, key=lambda name: len(values[name]))
        (first, *_, last), middle = values[knob], own[knob]
        # The one that is furthest from the job's own goes.
        values[knob] = values[knob][1:] if middle / first > last / middle else values[knob][:-1]
    return values


def _doublings(own: int, least: int, most: int) -> tuple[int, ...]:
    """Return the job's value halved and doubled as long as it stays whole and in range."""
    values, value = {own} | ({1} if least <= 1 else set()), own
    while value % 2 == 0 and value // 2 >= max(least, 1):
        value //= 2
        values.add(value)
    while own * 2 <= most:
        own *= 2
        values.add(own)
    return tuple(sorted(values))


def slider_grid(est: Estimate) -> SliderGrid:
    """Price the neighbourhood of an estimate of one layout; where its schedule cannot run, plain 1F1B without virtual stages."""
    est.require_single("slider_grid")
    job = est.job
    values = slider_values(job)
    axes = dict(
        zip(SLIDERS, np.ix_(*(np.asarray(values[knob], dtype=np.float64) for knob in SLIDERS)), strict=True)
    )
    shape = tuple(len(values[knob]) for knob in SLIDERS)
    flat = {knob: np.broadcast_to(axis, shape).ravel() for knob, axis in axes.items()}
    layout, plain = _layouts(job, flat)
    reason, reasons = _reasons(job, layout)
    can = reason == 0
    step, memory = np.full(can.shape, np.nan), np.full(can.shape, np.nan)
    shares = np.full((*can.shape, len(PARTS)), np.nan)
    for alike in _alike(job, layout, can):
        some = replace(layout, **{name: getattr(layout, name)[alike] for name in layout.__slots__})
        same_stages = bool(np.all((some.pp == job.layout.pp) & (some.vp == job.layout.vp)))
        # The job's own pipeline takes what its simulation does; of the others closed forms are near enough to slide through.
        is_own = same_stages and np.all(some.schedule == job.layout.schedule)
        factor = est.priced.step.order_factor if is_own else 1.0
        # What the job writes out holds for its own stages and chunks.
        listed = job.pipeline_layout if same_stages else ()
        bill = price(replace(job, layout=some, pipeline_layout=listed), order_factor=factor).bill
        step[alike], memory[alike] = bill.step_time_s(), bill.memory_bytes()
        if bill.host_lines:
            if (text := "what goes to the host does not fit its memory") not in reasons:
                reasons = (*reasons, text)
            too_much = np.broadcast_to(bill.host_memory_bytes() > job.cluster.host.memory_bytes, alike.sum())
            reason[np.flatnonzero(alike)[too_much]] = reasons.index(text) + 1
        by_part: dict[str, list[Array]] = {part: [np.zeros(int(alike.sum()))] for part in PARTS}
        for line in bill.time_lines:
            part = "bubble" if line.category == "bubble" else line.axis
            by_part[part if part in PARTS else "dp"].append(line.exposed_seconds)
        shares[alike] = np.stack([broadcast_sum(by_part[part]) / step[alike] for part in PARTS], axis=-1)
    own = {knob: values[knob].index(int(getattr(job.layout, knob))) for knob in SLIDERS}
    return SliderGrid(
        values,
        own,
        step.reshape(shape),
        memory.reshape(shape),
        shares.reshape((*shape, len(PARTS))),
        reason.reshape(shape),
        reasons,
        plain.reshape(shape),
    )


def _layouts(job: Job, flat: dict[str, Array]) -> tuple[Layout, NDArray[np.bool_]]:
    """Return all combinations with the job's policies, plain ones where its schedule cannot run."""
    own = job.layout
    size = flat["gpus"].size
    with np.errstate(divide="ignore"):
        dp = flat["gpus"] / (flat["tp"] * flat["cp"] * flat["pp"])
        micro_batches = job.global_batch / (dp * flat["micro_batch"])
    places = job.model.num_layers + 2  # as `layout_problems` has it
    runs = (flat["pp"] * own.vp <= places) & (flat["pp"] > 1)
    runs &= valid(own.schedule, flat["pp"], micro_batches, own.vp)
    one = schedule_code("none")
    schedule = np.where(runs, own.schedule, np.where(flat["pp"] > 1, schedule_code("1f1b"), one))
    with_sp = own.sequence_parallel > 0 if own.tp > 1 else np.asarray(True)
    unchanged = ("etp", "zero_stage", "shard_group", "recompute")
    layout = Layout(
        **flat,
        **{name: np.full(size, float(getattr(own, name))) for name in unchanged},
        vp=np.where(runs, own.vp, 1.0),
        schedule=np.asarray(schedule, dtype=np.float64),
        sequence_parallel=np.asarray(with_sp & (flat["tp"] > 1), dtype=np.float64),
    )
    return layout, np.asarray(~runs & (flat["pp"] > 1))


def _alike(job: Job, layout: Layout, can: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Yield which of the layouts deal layers in one way: with one schedule, one number of chunks a rank."""
    ways = np.stack([layout.schedule, layout.vp, layout.pp == job.layout.pp])
    for way in np.unique(ways[:, can], axis=1).T:
        yield can & (ways == way[:, None]).all(axis=0)


def _reasons(job: Job, layout: Layout) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Return why each layout cannot run, 0 where it can."""
    reason = np.zeros(layout.gpus.size, dtype=np.uint8)
    texts: list[str] = []

    def rule(text: str, bad: NDArray[np.bool_]) -> None:
        texts.append(text)
        reason[(reason == 0) & np.broadcast_to(bad, reason.shape)] = len(texts)

    for problem in layout_problems(layout, job.model, job.global_batch, job.seq_len, job.recipe.overlap):
        rule(REASONS.get(problem.code, problem.code.replace("_", " ")), problem.bad)
    micro_batches = layout.micro_batches(job.global_batch)
    stopped = (layout.pp > 1) & ~valid(layout.schedule, layout.pp, micro_batches, layout.vp)
    rule(REASONS["schedule_cannot_run"], np.asarray(stopped))
    return reason, tuple(texts)
