"""The layout of a job over its GPUs: degrees of each axis and the choices made with them.

Every field is a float64 array; scalars describe one layout, mutually broadcastable arrays many.
What does not divide or does not exist is found by `layout_problems`: as masks, so that a search
can drop and count layouts, and as sentences, so that one estimate can say what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import LayoutError, choices_hint, shown
from costmodel.bill.formula import evaluate
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.slices import slice_text
from costmodel.describe.jobs.fields import DEGREES, FIELD, LAYOUT_FIELDS
from costmodel.describe.jobs.reading import keywords, read, read_array
from costmodel.physics.network.mesh import Mesh, build_mesh, lies_in_boxes, split_group
from costmodel.physics.pipeline.schedules import schedule_code

if TYPE_CHECKING:
    from costmodel.describe.models.model import Model
    from costmodel.describe.switch_table import OverlapWays

Array = NDArray[np.float64]


_CHOSEN = (FIELD["gpus"], *(field for field in LAYOUT_FIELDS if field.name != "dp"))
"""What a layout is made from; dp follows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees and per-layout choices, as arrays that broadcast together; ``fields.csv`` says what each is. [-]"""

    gpus: Array
    tp: Array
    cp: Array
    pp: Array
    vp: Array
    ep: Array
    etp: Array
    micro_batch: Array
    zero_stage: Array
    shard_group: Array
    recompute: Array
    schedule: Array
    sequence_parallel: Array

    @property
    def dp(self) -> Array:
        """Data-parallel degree: gpus / (tp · cp · pp). [-]"""
        return np.asarray(self.gpus / (self.tp * self.cp * self.pp))

    @property
    def expert_dp(self) -> Array:
        """Replicas of each expert: tp · cp · dp / (ep · etp). [-]"""
        return np.asarray(self.gpus / (self.pp * self.ep * self.etp))

    def micro_batches(self, global_batch: Array) -> Array:
        """Micro-batches a step of each replica: the batch over dp · micro_batch. [-]"""
        return np.asarray(global_batch / (self.dp * self.micro_batch))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that all fields broadcast to."""
        return np.broadcast_shapes(*(getattr(self, f.name).shape for f in fields(self)))


def make_layout(**choices: Any) -> Layout:
    """Build a `Layout` from numbers, names or arrays of them, under the names of `LAYOUT_FIELDS`.

    Without a schedule, one stage runs none, several run 1F1B, and several with virtual stages
    the interleaved one. Without `sequence_parallel` it is on wherever tp > 1.
    """
    given = keywords(choices, _CHOSEN, who="layout")
    if "gpus" not in given:
        raise LayoutError("layout: gpus missing")
    arrays = {
        field.name: read_array(field.name, given.get(field.name, field.default))
        for field in _CHOSEN
        if field.name in given or field.default is not None
    }
    if "schedule" not in arrays:
        several = np.where(arrays["vp"] > 1, schedule_code("interleaved"), schedule_code("1f1b"))
        arrays["schedule"] = np.where(arrays["pp"] > 1, several, schedule_code("none")).astype(np.float64)
    if "sequence_parallel" not in arrays:
        arrays["sequence_parallel"] = np.asarray(arrays["tp"] > 1, dtype=np.float64)
    return Layout(**arrays)


def parse_layout(text: str) -> dict[str, int]:
    """Read ``"tp8 cp1 pp16 vp2"`` (any order, also ``tp=8`` and ``tp8pp4``) into degrees."""
    degrees: dict[str, int] = {}
    stated = shown(text)
    for part in re.split(r"[\s,x·×]+", text.strip()):
        # No name of an axis has as many letters; without a bound a long word takes the square of its length.
        found = re.findall(r"([a-z]{1,30})[=:]?([0-9]+)", part.lower())
        if not found or "".join(axis + degree for axis, degree in found) != re.sub("[=:]", "", part.lower()):
            raise LayoutError(
                f"layout: cannot read {shown(part or text)} in {stated}; write it as 'tp8 cp1 pp16 vp2'"
            )
        for axis, degree in found:
            if axis not in DEGREES:
                hint = choices_hint(axis[:60], DEGREES)
                raise LayoutError(f"layout: axis {shown(axis)} in {stated} is unknown; {hint}")
            if axis in degrees:
                raise LayoutError(f"layout: {axis} is given twice in {stated}")
            degrees[axis] = read(axis, degree)
    return degrees


class Problem(NamedTuple):
    """A way in which layouts can be impossible: where, and how to say it of one layout."""

    code: str
    bad: NDArray[np.bool_]
    sentence: str
    numbers: Mapping[str, ArrayLike] = {}


_RULES = read_rows(Path(__file__).parents[1] / "data" / "layout_rules.csv")
_OF_RANKS = ("gpus_not_divisible", "expert_ranks_not_divisible", "shard_group_not_divisible")
_OF_MODEL = (
    *("ffn_size", "shared_expert_ffn_size", "expert_ffn_size", "num_layers", "num_experts"),
    "layer_embedding_size",
)


def layout_problems(
    layout: Layout,
    model: Model,
    global_batch: ArrayLike,
    seq_len: ArrayLike,
    overlap: OverlapWays | None = None,
) -> list[Problem]:
    """Return every rule of ``describe/data/layout_rules.csv`` with the mask of layouts that break it.

    `sentence` is a format string over `numbers`, what the rules are about. `overlap` has the recipe's way of context
    parallelism, a ring without one: Ulysses divides heads (arXiv:2309.14509, section 3), and so do the first
    `cp_a2a_ranks` of a2a+p2p.
    """
    method, swapped = (overlap.cp_method, overlap.cp_a2a_ranks) if overlap else ("ring", 0)
    numbers: dict[str, ArrayLike] = {
        **{field.name: getattr(layout, field.name) for field in fields(layout)},
        "dp": layout.dp,
        "product": layout.tp * layout.cp * layout.pp,
        "stage_ranks": layout.gpus / layout.pp,
        "global_batch": np.asarray(global_batch, dtype=np.float64),
        "seq_len": np.asarray(seq_len, dtype=np.float64),
        **{name: float(getattr(model, name)) for name in _OF_MODEL},
        "heads_of_queries": float(model.heads_of_queries()),
        "heads_of_keys": float(model.heads_of_keys()),
        "ulysses": method == "ulysses",
        "swapped": swapped * (method == "a2a+p2p"),
    }
    rules = [(row["code"], evaluate(row["broken"], numbers), row["sentence"]) for row in _RULES]
    heads = [
        (
            "heads_not_divisible",
            count % layout.tp != 0,
            f"tp = {{tp:.0f}} does not divide the model's {count} {what}",
        )
        for what, count in model.split_over_tp()
    ]
    return [
        Problem(code, np.asarray(bad, dtype=bool), sentence, numbers)
        for code, bad, sentence in [rules[0], *heads, *rules[1:]]
    ]


def require_ranks(layout: Layout) -> None:
    """Refuse one layout whose degrees do not divide its ranks, by the rules that need no model."""
    numbers = {field.name: float(getattr(layout, field.name)) for field in fields(layout)}
    product = numbers["tp"] * numbers["cp"] * numbers["pp"]
    numbers |= {"product": product, "stage_ranks": numbers["gpus"] / numbers["pp"], "dp": float(layout.dp)}
    for row in _RULES:
        if row["code"] in _OF_RANKS and evaluate(row["broken"], numbers):
            raise LayoutError(f"layout: {row['sentence'].format(**numbers)}")


def place_groups(layout: Layout, cluster: Cluster, order: Sequence[str]) -> Mesh:
    """Return the process groups of a layout on a cluster, by its axes from the innermost one out."""
    return build_mesh(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        etp=layout.etp,
        tier_sizes=[float(tier.size) for tier in cluster.tiers],
        ends=[tier.ends for tier in cluster.tiers],
        order=order,
        shape=cluster.tiers[0].shape,
    )


def torus_problem(layout: Layout, cluster: Cluster, order: Sequence[str]) -> Problem:
    """Return the mask of layouts with a group that is no box of chips on the cluster's torus."""
    pod = cluster.tiers[0]
    stated = (
        f"the groups of an axis do not lie along the sides of the {slice_text(pod.shape)} slice of {cluster.name}: "
        f"{' '.join(order)} fill them in this order, each with whole sides or a part of one that divides it"
    )
    if not pod.shape:
        return Problem("not_along_the_torus", np.asarray(False), stated)
    fits = layout.tp * layout.cp * layout.pp * layout.dp % pod.size == 0
    if tuple(order).index("pp") < tuple(order).index("dp"):
        # Experts are divided among the ranks of one stage, which then are no box.
        fits = fits & (layout.ep * layout.etp == 1)
    mesh = place_groups(layout, cluster, order)
    shards, replicas = split_group(mesh.grad, np.where(layout.shard_group > 0, layout.shard_group, np.inf))
    fits = fits & lies_in_boxes(mesh.groups().values()) & lies_in_boxes((shards, replicas))
    return Problem("not_along_the_torus", ~fits, stated)


def first_of(bad: NDArray[np.bool_], *arrays: ArrayLike) -> list[float]:
    """Return the values of arrays at the first place where `bad` is true, all broadcast against each other."""
    shape = np.broadcast_shapes(bad.shape, *(np.shape(array) for array in arrays))
    first = np.flatnonzero(np.broadcast_to(bad, shape))[0]
    return [float(np.broadcast_to(array, shape).flat[first]) for array in arrays]
