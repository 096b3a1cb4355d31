"""What a step takes beside its work: the host between steps, the wait for data, and the recipe's fitted share.

Sends and stores nothing. Hides: the input of the next step is loaded beside all that is known of this one.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import Bill, TimeLine, anywhere, sum_exposed, time_line
from costmodel.describe.factors import classed
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step.critical_stage import Step

Array = NDArray[np.float64]


def time_lines(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what is known and not overlapped, the share of it that is not explained, and the wait for data."""
    waited = _slowest_slice(step, bill)
    made = [*waited, *_between_steps(step), *_unexplained(step, bill.plus(waited))]
    return [*made, *_input(step, bill.plus(made))]


def _slowest_slice(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what a step waits for the slowest of several slices of a torus, which only its network joins."""
    placed = step.placed
    slices = placed.layout.gpus / placed.cluster.tiers[0].size
    spread = max((tier.spread for tier in placed.cluster.tiers[1:]), default=0.0)
    if not (placed.cluster.tiers[0].shape and spread and anywhere(slices > 1)):
        return []
    return [
        time_line(
            "overhead.slowest_slice",
            axis="dp",
            category="overhead",
            phase="step",
            cause="proportion",
            count=1.0,
            formula="spread * slowest * known_s",
            terms={
                "spread": spread,
                "slowest": expected_maximum_normal(np.maximum(slices, 1.0)),
                "known_s": sum_exposed(bill.time_lines),
            },
            source="slices differ as normal numbers: expected maximum of as many (costmodel.physics.run.stragglers)",
        )
    ]


def _between_steps(step: Step) -> list[TimeLine]:
    """Return the host's time between steps."""
    recipe = step.placed.recipe
    if not recipe.host.step_overhead_s:
        return []
    return [
        time_line(
            "overhead.step",
            axis="compute",
            category="overhead",
            phase="step",
            count=1.0,
            formula="seconds",
            terms={"seconds": recipe.host.step_overhead_s},
            source=f"recipe {recipe.name}: step_overhead_s: next batch, gradient norm and finiteness with their "
            "synchronisation, optimizer's launches, logging",
        )
    ]


def _unexplained(step: Step, bill: Bill) -> list[TimeLine]:
    """Return the one fitted constant: a share of the passes, attention kernels apart, which are timed whole.

    What is sent and done once a step for data parallelism costs what it was measured to. A factor of a class of jobs
    or of a layout is one of all seconds; what data parallelism costs depends on other knobs than the rest, and has a
    line of its own, which keeps a search on small grids.
    """
    factor = _beyond(step)
    terms = {
        "fraction": np.asarray(step.placed.recipe.host.overhead_fraction),
        "known_s": bill.exposed_s(by_sharding=False),
        "attention_s": sum_exposed([line for line in bill.time_lines if line.cause == "attention"]),
    }
    formula = "fraction * (known_s - attention_s)"
    if factor is not None:
        formula = f"factor * {formula} + (factor - 1) * known_s"
        terms |= {"factor": factor}
    lines = [("overhead.unexplained", formula, terms)]
    if factor is not None:
        of_data = {"factor": factor, "known_s": bill.exposed_s(by_sharding=True)}
        lines.append(("overhead.unexplained.data_parallel", "(factor - 1) * known_s", of_data))
    return [
        time_line(
            name,
            axis="compute",
            category="overhead",
            phase="step",
            cause="proportion",
            count=1.0,
            formula=text,
            terms=numbers,
            source=f"recipe {step.placed.recipe.name} on {step.placed.accelerator.generation}: overhead_fraction, "
            "fitted to whole runs (costmodel/describe/data/overheads.csv)",
        )
        for name, text, numbers in lines
    ]


def _beyond(step: Step) -> Array | None:
    """Return the factors of what nothing explains, of the class of jobs and of this layout, as one. [-]"""
    placed = step.placed
    if not placed.factors:
        return None
    found = [placed.factors.of(role, classed(placed)) for role in ("unexplained", "layout")]
    known = [factor for factor in found if factor is not None]
    return np.asarray(reduce(np.multiply, known)) if known else None


def _input(step: Step, bill: Bill) -> list[TimeLine]:
    """Return what a step waits for the data of the next, which its host prepares meanwhile.

    Ranks of one replica train on the same sequences; a host feeds the replicas it holds, at least one.
    """
    placed, recipe, layout = step.placed, step.placed.recipe, step.placed.layout
    if not recipe.host.input_tokens_per_s:
        return []
    replicas = np.maximum(placed.cluster.gpus_per_node / (layout.tp * layout.cp * layout.pp), 1.0)
    tokens = placed.global_batch * placed.seq_len / layout.dp * np.minimum(replicas, layout.dp)
    return [
        time_line(
            "overhead.input",
            axis="compute",
            category="overhead",
            phase="step",
            count=1.0,
            formula="max(tokens / tokens_per_s - known_s, 0)",
            terms={
                "tokens": tokens,
                "tokens_per_s": recipe.host.input_tokens_per_s,
                "known_s": sum_exposed(bill.time_lines),
            },
            source=f"recipe {recipe.name}: input_tokens_per_s of each host, loaded one step ahead",
        )
    ]
