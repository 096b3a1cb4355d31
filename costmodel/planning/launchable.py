"""What a framework's own assertions leave of a space of layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout
from costmodel.interop.assertions.record import Table
from costmodel.interop.assertions.tables import table_of as asserted_by

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

POLICIES = ("shards", "recomputes", "runs")
"""Choices beside the placement, in the order of a slab's dimensions."""


@dataclass(frozen=True)
class Policies:
    """The choices beside the placement: sharding, recomputation, and schedules with virtual stages."""

    zero_stage: Array
    shard_group: Array
    recompute: Array
    schedule: Array
    vp: Array


class Refused(NamedTuple):
    """Where an assertion refuses layouts.

    Attributes
    ----------
    code : str
        Of the assertion.
    policy : str
        Which choice beside the placement it looks at, one of `POLICIES`; empty for none.
    bad : Mask
        Over the dimensions of the placement, and of the policy if there is one.
    """

    code: str
    policy: str
    bad: Mask

    def at(self, where: Sequence[NDArray[np.int64]]) -> Mask:
        """Return policy x placement (or placement alone) at places of the open mesh."""
        held = tuple(
            np.where(size == 1, 0, index) for size, index in zip(self.bad.shape, where, strict=False)
        )
        found = self.bad[held]
        return found.T if self.policy else found


def table_of(job: Job) -> Table:
    """Return what the framework of a job's recipe asserts."""
    launches = job.recipe.launches
    return asserted_by("none" if launches is None else launches.framework, job)


def refused(job: Job, gpus: float, mesh: Mapping[str, Array], policies: Policies) -> list[Refused]:
    """Return what the assertions of a recipe's framework refuse of the layouts of an open mesh.

    Parameters
    ----------
    job : Job
        Model, cluster, batch and recipe; its layout is not looked at.
    gpus : float
        GPUs of the job. [-]
    mesh : mapping of str to Array
        Values of the knobs of a placement, each along a dimension of its own.
    policies : Policies
        Values of the others.

    Raises
    ------
    ValueError
        For an assertion over two choices beside the placement at once.
    """
    places = max(values.ndim for values in mesh.values())

    def along(values: Array, policy: str) -> Array:
        shape = [1] * len(POLICIES)
        shape[POLICIES.index(policy)] = len(values)
        return values.reshape([1] * places + shape)

    layout = Layout(
        gpus=np.asarray(gpus),
        **{knob: values.reshape(*values.shape, 1, 1, 1) for knob, values in mesh.items()},
        vp=along(policies.vp, "runs"),
        schedule=along(policies.schedule, "runs"),
        recompute=along(policies.recompute, "recomputes"),
        zero_stage=along(policies.zero_stage, "shards"),
        shard_group=along(policies.shard_group, "shards"),
    )
    table = table_of(job)
    arguments = table.arguments(replace(job, layout=layout))
    found = []
    for assertion in table.assertions:
        bad = assertion.bad(arguments)
        if bad.any():
            found.append(_parted(assertion.code, bad, places))
    return found


def _parted(code: str, bad: Mask, places: int) -> Refused:
    """Take the dimensions of a mask apart: those of the placement, and the one policy that it depends on."""
    whole = bad.reshape((1,) * (places + len(POLICIES) - bad.ndim) + bad.shape)
    used = [policy for policy, size in zip(POLICIES, whole.shape[places:], strict=True) if size > 1]
    if len(used) > 1:
        raise ValueError(
            f"{code}: an assertion may look at one choice beside the placement, not at {' and '.join(used)}"
        )
    kept = whole.reshape(*whole.shape[:places], -1)
    return Refused(code, used[0], kept) if used else Refused(code, "", kept[..., 0])
