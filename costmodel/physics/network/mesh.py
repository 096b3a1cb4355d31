"""Where the ranks of an axis sit: process groups on a fabric of nested tiers.

Ranks are numbered along the axis order, innermost first (default tp, cp, dp, pp), and GPUs are
numbered through the fabric the same way. The members that a group has inside one domain of a tier
then follow from strides alone, so a million GPUs cost as much to place as eight.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.numbers import distinct
from costmodel.physics.network.torus import Box, split_box

Array = NDArray[np.float64]

DEFAULT_ORDER = ("tp", "cp", "dp", "pp")


class Group(NamedTuple):
    """A process group: its size, and how many members share one domain of each tier."""

    ranks: Array  # Members of the group. [-]
    members: tuple[Array, ...]
    """``members[t]`` are the members inside one domain of tier ``t`` (1 … ranks), innermost tier first. [-]"""
    dim: str = ""  # Dimension of the mesh that it is a group of, "" without a mesh
    box: Box | None = None  # Where the innermost tier is a torus, the members inside one slice by dimension


class Mesh(NamedTuple):
    """The groups of one layout. `grad` is dp x cp, over which dense gradients are reduced."""

    tp: Group
    cp: Group
    dp: Group
    pp: Group
    grad: Group
    etp: Group
    ep: Group
    edp: Group

    def groups(self) -> dict[str, Group]:
        """Return the groups by axis name."""
        return self._asdict()


def usable_domain_size(num_gpus: ArrayLike, tier_size: float) -> Array:
    """Return how many GPUs of each domain of `tier_size` a job of `num_gpus` uses: its largest divisor that fits. [-]

    Schedulers hand out equal parts: a job of 256 GPUs on racks of 72 takes 64 in each of four.
    """
    gpus = np.asarray(num_gpus, dtype=np.float64)
    used = np.empty_like(gpus)
    for count in distinct(gpus):
        # Downwards from the domain: no more tries than it has GPUs, however many the job has.
        size = int(min(tier_size, count))
        while count % size:
            size -= 1
        used[gpus == count] = size
    return used


def _inside(domain: Array, ends: Sequence[float], span: Array) -> Array:
    """Return what the groups of a span have in a domain; where fragments end inside a group, their smallest piece. [-]

    Every step waits for the slowest group, and a group for its piece with the fewest ports.
    """
    if not ends:
        return domain
    cut, piece = np.asarray(False), np.asarray(np.min(np.diff([0.0, *ends])))
    for end in ends:
        before = end % span
        cut = cut | (before > 0.0)
        piece = np.where(before > 0.0, np.minimum(piece, np.minimum(before, span - before)), piece)
    return np.where(cut, piece, span)


def _members(domain: Array, *axes: tuple[Array, Array]) -> Array:
    """Members inside a domain of a group that runs over `axes`, each (stride, size)."""
    inside: Array = np.asarray(1.0)
    for stride, size in axes:
        inside = inside * np.clip(np.floor(domain / stride), 1.0, size)
    return np.asarray(inside)


def _box(shape: Sequence[int], *axes: tuple[Array, Array]) -> Box | None:
    """Place a group that runs over `axes`, each (stride, size), on the dimensions of a slice; first one innermost.

    Chips are numbered along the first dimension first, so an axis covers what of its range lies in
    the range of a dimension.
    """
    if not shape:
        return None
    sides, spans = [], []
    inner = 1.0
    for length in shape:
        side: Array = np.asarray(1.0)
        span: Array = np.asarray(1.0)
        for stride, size in axes:
            first = np.maximum(stride, inner)
            end = np.minimum(stride * size, inner * length)
            side = side * np.maximum(end / first, 1.0)
            span = np.where(end > first, np.maximum(span, end / inner), span)
        sides.append(np.asarray(side))
        spans.append(np.asarray(span))
        inner *= length
    return Box(tuple(sides), tuple(spans))


def build_mesh(
    *,
    tp: ArrayLike,
    cp: ArrayLike,
    pp: ArrayLike,
    dp: ArrayLike,
    ep: ArrayLike,
    etp: ArrayLike,
    tier_sizes: Sequence[float],
    order: Sequence[str] = DEFAULT_ORDER,
    shape: Sequence[int] = (),
    ends: Sequence[Sequence[float]] = (),
) -> Mesh:
    """Place the axes on the fabric and return the group of each; degrees broadcast together. [-]

    The expert axes (etp, ep, expert dp) are laid over the same ranks as tp x cp x dp, in that
    order, as in Megatron-Core's `parallel_state`: EP is not a factor of the number of GPUs.
    `tier_sizes` are GPUs in one domain of each tier, innermost first, `order` the axes likewise, and `shape` the chips along
    each dimension of a slice, where the innermost tier is a torus (D. Narayanan et al., arXiv:2104.04473, section 3).
    `ends` are GPUs of each tier after which a domain ends, where a job fills fragments in order and not equal parts.
    """
    size = {
        name: np.asarray(degree, dtype=np.float64)
        for name, degree in {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}.items()
    }
    stride: dict[str, Array] = {}
    inner: Array = np.asarray(1.0)
    for name in order:
        stride[name] = inner
        inner = np.asarray(inner * size[name])
    domains = [usable_domain_size(inner, tier) for tier in tier_sizes]
    fragments = ends or [()] * len(domains)

    # Where pp lies inside dp, a domain holds fewer ranks of one stage than it has GPUs.
    before_pp = np.asarray(
        np.prod(np.broadcast_arrays(*(size[n] for n in order if n != "dp" and n != "pp")), axis=0)
    )
    pp_inside_dp = tuple(order).index("pp") < tuple(order).index("dp")
    edp = np.asarray(size["tp"] * size["cp"] * size["dp"] / (size["ep"] * size["etp"]))
    expert = {
        "etp": (np.asarray(1.0), size["etp"]),
        "ep": (size["etp"], size["ep"]),
        "edp": (np.asarray(size["etp"] * size["ep"]), edp),
    }
    dense = {name: (stride[name], size[name]) for name in order}

    def group(dim: str, *axes: tuple[Array, Array]) -> Group:
        ranks = np.asarray(np.prod(np.broadcast_arrays(*(degree for _, degree in axes)), axis=0))
        span = reduce(np.maximum, (stride * degree for stride, degree in axes))
        of_stage = pp_inside_dp and dim in expert
        if of_stage:
            span = np.where(span <= before_pp, span, span * size["pp"])
        parts = [_inside(d, tier_ends, span) for d, tier_ends in zip(domains, fragments, strict=True)]
        if of_stage:
            parts = [
                np.where(
                    d <= before_pp, d, before_pp * np.maximum(1.0, np.floor(d / (before_pp * size["pp"])))
                )
                for d in parts
            ]
        return Group(ranks, tuple(_members(d, *axes) for d in parts), dim, _box(shape, *axes))

    return Mesh(
        **{name: group(name, axis) for name, axis in {**dense, **expert}.items()},
        grad=group("grad", dense["cp"], dense["dp"]),
    )


def lies_in_boxes(groups: Iterable[Group]) -> NDArray[np.bool_]:
    """Say where every one of several groups on a torus covers a box of chips, with whole sides."""
    whole: NDArray[np.bool_] = np.asarray(True)
    for group in groups:
        if group.box is None:
            continue
        chips: Array = np.asarray(1.0)
        for side in group.box.sides:
            whole = whole & (side == np.round(side))
            chips = chips * side
        slices = group.ranks / chips
        whole = whole & (slices == np.round(slices))
    return np.asarray(whole)


def slowest_tier(group: Group) -> Array:
    """Return the index of the outermost tier that the group's traffic crosses, -1 for one rank."""
    tier = np.full(np.shape(group.ranks), -1.0)
    reached: Array = np.asarray(1.0)
    for index, members in enumerate(group.members):
        tier = np.where(members > reached, float(index), tier)
        reached = members
    # Ranks that no tier holds together cross the outermost one.
    return np.where(reached < group.ranks, float(len(group.members) - 1), tier)


def split_group(group: Group, shard: ArrayLike) -> tuple[Group, Group]:
    """Split a group into shard groups of `shard` neighbours (HSDP) and the replica groups across them, ``…_replica``."""
    inner = np.asarray(np.minimum(np.asarray(shard, dtype=np.float64), group.ranks))
    near, far = (None, None) if group.box is None else split_box(group.box, inner)
    inside = tuple(np.minimum(m, inner) for m in group.members)
    across = tuple(np.maximum(m / inner, 1.0) for m in group.members)
    replicas = Group(np.asarray(group.ranks / inner), across, f"{group.dim}_replica", far)
    return Group(inner, inside, group.dim, near), replicas
