r"""The way of a group's traffic through nested tiers: named steps that all ways of a collective share.

A group with :math:`m_t` members inside one domain of tier :math:`t` (:math:`m_{-1} = 1`, all n at the
end) crosses tier :math:`t` in :math:`h_t = n/m_{t-1} - n/m_t` of the n - 1 hops of a ring, and
:math:`m_{t-1}` members, each with its own port, share every crossing. A TP-strided data-parallel group
(:math:`m_0 = 1`) has one NIC and a whole node has eight, by the same formula.

A path is text: terms are called after the tiers (``nvlink_members``, ``leaf_bytes_per_s``), steps build on
them (``hops_s``, ``ring_s_per_byte``), and a way of doing a collective goes on from those that it needs.
Tiers that no group of an array crosses are not in the text; where some groups cross one and others do
not, the text says ``where``. Facts of the outermost tier crossed (its base latency, its protocols) are
looked up by its index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError
from costmodel.bill.formula import compiled, evaluate, names_of, run
from costmodel.bill.lines import anywhere, settled
from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import Fabric, TierLike, constants_of
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.topologies import TORUS, Topology, topology
from costmodel.physics.network.torus import side_terms, torus_steps

Array = NDArray[np.float64]
Steps = tuple[tuple[str, str], ...]
"""Names and expressions, in the order in which they are computed."""


class Level(NamedTuple):
    """A tier that groups cross, as far as the text depends on it.

    Attributes
    ----------
    name : str
        Prefix of its terms.
    below : str
        Term with the members of a group in one domain of the tier below; empty for one member.
    sure : bool
        Whether every group of the array crosses it.
    ends : str
        Whether all, none or some of the groups end inside one of its domains.
    inner : bool
        Whether it is the innermost tier of the fabric.
    wiring : Topology
        How it is wired.
    axes : tuple of int
        On a torus, how many sides longer than one chip the groups that cross it have; else empty.
    """

    name: str
    below: str
    sure: bool
    ends: str
    inner: bool
    wiring: Topology
    axes: tuple[int, ...] = ()

    def where_crossed(self, value: str, otherwise: str = "0") -> str:
        """Return an expression for groups that cross the tier, and another for the rest if there are any."""
        return value if self.sure else f"where({self.name}_members > {self.below or 1}, {value}, {otherwise})"

    def rate(self, share: str) -> str:
        """Return the rate of one GPU of a group, given the share that its wiring leaves (see `Topology`)."""
        whole = f"{self.name}_bytes_per_s * {self.name}_efficiency"
        return whole if share == "1" else f"{whole} * {share.format(tier=self.name, below=self.below or 1)}"

    def over_below(self, value: str) -> str:
        """Return an expression over the members below."""
        return f"{value} / {self.below}" if self.below else value


class Route(NamedTuple):
    """A kind of traffic: which steps it has, and which facts of the tiers are their terms.

    Attributes
    ----------
    steps : callable
        From the tiers crossed to names and expressions.
    each : callable
        Facts of every tier crossed; the terms are called after the tier and the fact.
    outermost, innermost : callable
        Facts of the outermost tier crossed, and of the innermost of the fabric.
    """

    steps: Callable[[tuple[Level, ...]], Steps]
    each: Callable[[TierLike, Fabric], dict[str, float]]
    outermost: Callable[[TierLike, Fabric], dict[str, float]]
    innermost: Callable[[TierLike, Fabric], dict[str, float]]


class Path(NamedTuple):
    """What a group meets on its way; arrays over groups, not over sizes.

    Attributes
    ----------
    ranks, tier : Array
        Members, and the index of the outermost tier crossed (-1 in a group of one). [-]
    alone : Array
        Whether a group has one member.
    steps : tuple of (str, str)
        Names and expressions.
    terms, values : mapping of str to array_like
        The numbers that the steps (and the ways that follow) start from, and those of the steps.
    """

    ranks: Array
    tier: Array
    alone: NDArray[np.bool_]
    steps: Steps
    terms: Mapping[str, ArrayLike]
    values: Mapping[str, Array]


def _ring_steps(levels: tuple[Level, ...]) -> Steps:
    """Return latency, seconds a byte and fill time of a ring, and the latency of a tree.

    Where the ring goes on to an outer tier, one subdomain in each domain leaves over that one; the
    tightest tier sets the rate, the outermost one how long the chunk pipeline fills.
    """
    steps = [(f"{at.name}_hops", f"{at.over_below('ranks')} - ranks / {at.name}_members") for at in levels]
    steps.append(("hops_s", add_up(f"{at.name}_hops * {at.name}_hop_s" for at in levels)))
    for at in levels:
        share = f"1 - {at.below or 1} / {at.name}_members"
        share = {"all": "1", "none": f"({share})", "some": f"where({at.name}_members < ranks, {share}, 1)"}[
            at.ends
        ]
        ports = f"{at.below} * " if at.below else ""
        steps.append(
            (f"{at.name}_s_per_byte", at.where_crossed(f"{share} / ({ports}{at.rate(at.wiring.ring)})"))
        )
    steps.append(("ring_s_per_byte", largest(f"{at.name}_s_per_byte" for at in levels)))
    steps.append(("outer_s_per_byte", largest(f"{at.name}_s_per_byte" for at in levels if not at.inner)))
    far = "0"
    for at in levels:
        far = at.where_crossed(f"{at.name}_hops", far)
    steps.append(("fill_s", f"pipeline_s + {far} * fill_step_s"))
    chain = (f"(node_ranks - 1) * {at.name}_hop_s" for at in levels if at.inner)
    steps.append(("chain_s", add_up(chain)))
    outer = [at for at in levels if not at.inner]
    depth = (f"{at.name}_tree_step_s * log2({at.over_below(at.name + '_members')})" for at in outer)
    steps.append(("tree_s", add_up(depth)))
    return tuple(steps)


def _ring_of_tier(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {
        "bytes_per_s": tier.achieved_bandwidth_bytes_per_s,
        "efficiency": fabric.rate_factor,
        "hop_s": tier.latency_s,
        "tree_step_s": fabric.tree_step_s or tier.latency_s,
    }


def _ring_of_outermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {
        "base_latency_s": tier.base_latency_s,
        "simple_hop_s": fabric.simple_step_s,
        "pipeline_s": fabric.pipeline_s,
        "fill_step_s": fabric.pipeline_step_s,
        "ll_bytes_per_s": fabric.ll_bandwidth_bytes_per_s,
        "tree_fill_s": fabric.tree_pipeline_s,
        "tree_efficiency": fabric.tree_rate_factor,
        "nvls_tree_fill_s": fabric.nvls_tree_pipeline_s,
        "sharp_bytes_per_s": tier.reduction_bandwidth_bytes_per_s * fabric.tree_rate_factor,
    }


def _ring_of_innermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {
        "node_bytes_per_s": tier.achieved_bandwidth_bytes_per_s,
        "node_efficiency": fabric.rate_factor,
        "switch_bytes_per_s": tier.reduction_bandwidth_bytes_per_s,
        "nvls_efficiency": fabric.nvls_rate_factor,
        "nvls_tree_efficiency": fabric.nvls_tree_rate_factor,
        "nvls_latency_s": fabric.nvls_latency_s,
        "nvls_fill_step_s": fabric.nvls_pipeline_s,
        "nvls_min_ranks": fabric.nvls_min_ranks,
    }


def _pair_steps(levels: tuple[Level, ...]) -> Steps:
    """Return seconds a byte of messages to all peers at once, and the peers across the outermost tier.

    Every tier carries what leaves the domain below it.
    """
    steps, far = [], "0"
    for at, outside in zip_longest(levels, levels[1:]):
        away = f"ranks - {at.below or 1}"
        carried = f"({away}) / ranks"
        if outside is not None and outside.wiring.forwards:
            # What leaves for another index is handed on inside first.
            members = f"{at.name}_members"
            handed = f"(ranks - {members}) / ranks * ({members} - 1) / {members}"
            carried = f"({carried} + {outside.where_crossed(handed)})"
        steps.append((f"{at.name}_s_per_byte", at.where_crossed(f"{carried} / ({at.rate(at.wiring.pairs)})")))
        far = at.where_crossed(away, far)
    steps.append(("pair_s_per_byte", largest(f"{at.name}_s_per_byte" for at in levels)))
    steps.append(("far_peers", far))
    return tuple(steps)


def _pair_of_tier(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {"bytes_per_s": tier.achieved_bandwidth_bytes_per_s, "efficiency": fabric.rate_factor}


def _pair_of_outermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {
        "start_s": fabric.all_to_all_latency_s or tier.base_latency_s + tier.latency_s,
        "message_s": fabric.all_to_all_message_s,
        "pipeline_s": fabric.all_to_all_pipeline_s,
    }


def _slice_steps(levels: tuple[Level, ...]) -> Steps:
    """Return what a gather costs on a torus, and on the network between slices over every chip's own port."""
    inner = next((at for at in levels if at.inner), None)
    outer = tuple(at for at in levels if not at.inner)
    steps: list[tuple[str, str]] = []
    if inner is None:
        names = ("once_s_per_byte", "once_hops", "turn_s_per_byte", "turn_hops")
        steps += [(name, "0") for name in names]
        steps.append(("slice_start_s", "0"))
    else:
        steps += torus_steps(inner.axes)
        steps.append(("slice_start_s", inner.where_crossed("slice_base_s")))
    steps.append(("slices", "ranks / node_ranks"))
    ring = dict(_ring_steps(outer))
    steps += [(name, made) for name, made in ring.items() if name.endswith(("_hops", "_s_per_byte"))]
    hops = add_up(f"{at.name}_hops * {at.name}_hop_s" for at in outer)
    any_outer = bool(outer)
    steps.append(("outer_start_s", "where(slices > 1, base_latency_s, 0)" if any_outer else "0"))
    steps.append(("outer_hops_s", f"{hops} + (slices - 1) * simple_hop_s" if any_outer else "0"))
    return tuple(steps)


def _slice_of_innermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {**torus_link(tier, fabric), "slice_base_s": tier.base_latency_s, "slice_hop_s": tier.latency_s}


def torus_link(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    """Return the rate of one link of a chip on a torus: two a dimension, one each way; nothing elsewhere."""
    if tier.topology != TORUS.name:
        return {}
    ports = 2.0 * len(tier.shape)
    return {"link_bytes_per_s": tier.achieved_bandwidth_bytes_per_s * fabric.rate_factor / ports}


def _slice_pair_steps(levels: tuple[Level, ...]) -> Steps:
    """Return what the links of a torus and the ports of the outer network carry of an all-to-all."""
    inner = next((at for at in levels if at.inner), None)
    outer = tuple(at for at in levels if not at.inner)
    steps = [*_pair_steps(outer)]
    if inner is None:
        steps += [("spread_s_per_byte", "0"), ("spread_hops", "0"), ("slice_start_s", "0")]
    else:
        steps += torus_steps(inner.axes)
        steps.append(("slice_start_s", inner.where_crossed("slice_base_s")))
    steps.append(("outer_start_s", "where(ranks > node_ranks, start_s, 0)" if outer else "0"))
    return tuple(steps)


def _slice_link_of_outermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    facts = _link_of_outermost(tier, fabric)
    if tier.topology == TORUS.name:
        facts["link_bytes_per_s"] /= 2.0 * len(tier.shape)
    return facts


def _wire_share(tier: TierLike) -> float:
    """Return the share of a GPU's bandwidth that one message gets. [-]"""
    share = topology(tier.topology).send
    return (
        1.0
        if share == "1"
        else float(evaluate(share.format(tier="tier", below=1), {"tier_domain": tier.size}))
    )


def _link_of_outermost(tier: TierLike, fabric: Fabric) -> dict[str, float]:
    return {
        "start_s": fabric.send_latency_s or tier.base_latency_s + tier.latency_s,
        "link_bytes_per_s": tier.achieved_bandwidth_bytes_per_s * _wire_share(tier),
        "link_efficiency": fabric.send_rate_factor,
        "pipeline_s": fabric.send_pipeline_s,
    }


def no_facts(*_: object) -> dict[str, float]:
    """Return no terms: a route that takes nothing from such a tier."""
    return {}


RING = Route(_ring_steps, _ring_of_tier, _ring_of_outermost, _ring_of_innermost)
"""Neighbour to neighbour, or along trees."""
PAIRS = Route(_pair_steps, _pair_of_tier, _pair_of_outermost, no_facts)
"""From every rank to every other, at once."""
LINK = Route(lambda _: (), no_facts, _link_of_outermost, no_facts)
"""One message across the outermost tier, by one GPU's port."""
SLICE_RING = Route(_slice_steps, _ring_of_tier, _ring_of_outermost, _slice_of_innermost)
"""Neighbour to neighbour on a torus, then each chip over its own port between slices."""
SLICE_PAIRS = Route(_slice_pair_steps, _pair_of_tier, _pair_of_outermost, _slice_of_innermost)
"""From every chip to every other, inside a slice and between slices."""
SLICE_LINK = Route(lambda _: (), no_facts, _slice_link_of_outermost, no_facts)
"""One message over the links of a torus, or across the outermost tier."""


_KEPT_PATHS = 128
_SMALL_GROUP = 1024
"""Numbers of a group that are worth comparing. [-]"""
_paths: dict[tuple[object, ...], tuple[tuple[object, ...], Path]] = {}


def path_of(
    group: Group,
    tiers: Sequence[TierLike],
    concurrent: ArrayLike,
    route: Route,
    more: tuple[tuple[str, ArrayLike], ...] = (),
) -> Path:
    """Return the path of a group, walked once for all the collectives it does.

    Parameters
    ----------
    group : Group
        Ranks and members per tier. [-]
    tiers : sequence of Tier
        Levels of the fabric, innermost first.
    concurrent : array_like
        Groups that share every port and link; divides all bandwidths. [-]
    route : Route
        What kind of traffic.
    more : tuple of (str, array_like)
        Terms of the steps that are not the fabric's.
    """
    numbers = (concurrent, *(value for _, value in more))
    if any(np.ndim(number) for number in numbers):
        return _walk(group, tiers, np.asarray(concurrent, dtype=np.float64), route, more)
    arrays = _arrays_of(group)
    # Small groups are known by what they hold, large ones by which arrays they are; what is held keeps its id.
    small = sum(array.size for array in arrays) <= _SMALL_GROUP
    held = (*tiers, route) if small else (*arrays, *tiers, route)
    content = tuple((array.shape, array.tobytes()) for array in arrays) if small else ()
    key = (*content, *map(id, held), *map(float, numbers))  # type: ignore[arg-type]
    kept = _paths.get(key)
    if kept is None:
        if len(_paths) >= _KEPT_PATHS:
            _paths.clear()
        path = _walk(group, tiers, np.asarray(concurrent, dtype=np.float64), route, more)
        kept = _paths[key] = (held, path)
    return kept[1]


def _arrays_of(group: Group) -> list[Array]:
    """Return the arrays that say which ranks a group has where."""
    sides = [] if group.box is None else [*group.box.sides, *group.box.spans]
    return [np.asarray(array) for array in (group.ranks, *group.members, *sides)]


def _walk(
    group: Group,
    tiers: Sequence[TierLike],
    concurrent: Array,
    route: Route,
    more: tuple[tuple[str, ArrayLike], ...],
) -> Path:
    """Follow the traffic of `group` through the tiers."""
    ranks = np.asarray(group.ranks, dtype=np.float64)
    terms: dict[str, ArrayLike] = {"ranks": ranks, "crowd": 1.0, **dict(more)}
    levels: list[Level] = []
    below, below_name = np.asarray(1.0), ""
    tier, copy = np.asarray(-1.0), np.asarray(0.0)
    names = term_prefixes(tuple(one.name for one in tiers))
    for index, (one, name, members) in enumerate(zip(tiers, names, group.members, strict=True)):
        inside = np.asarray(members, dtype=np.float64)
        crossed = inside > below
        if not anywhere(crossed):
            continue
        fabric = constants_of(one)
        ended = inside >= ranks
        ends = "all" if not anywhere(~ended) else ("some" if anywhere(ended) else "none")
        wiring, axes = topology(one.topology), tuple[int, ...]()
        if wiring.shaped:
            sides, numbers = _sides(group, one)
            terms |= sides
            # What has no long side, as on a torus of one chip, is a side of one chip.
            axes = tuple(sorted({int(number) for number in np.unique(numbers[numbers > 0])})) or (1,)
        levels.append(Level(name, below_name, not anywhere(~crossed), ends, index == 0, wiring, axes))
        terms[f"{name}_members"] = inside
        terms[f"{name}_domain"] = float(one.size)
        terms[f"{name}_parts"] = float(one.size) / (float(tiers[index - 1].size) if index else 1.0)
        terms |= {
            f"{name}_{key}": _shared(key, fact, concurrent) for key, fact in route.each(one, fabric).items()
        }
        tier = np.where(crossed, float(index), tier)
        if fabric.copy_bandwidth_bytes_per_s:
            copy = np.where(crossed, 1.0 / fabric.copy_bandwidth_bytes_per_s, copy)
        below, below_name = inside, f"{name}_members"
    terms["node_ranks"] = np.asarray(group.members[0], dtype=np.float64)
    terms["copy_s_per_byte"] = settled(copy)
    facts = [route.outermost(one, constants_of(one)) for one in tiers]
    at = settled(tier).astype(np.int64)
    terms |= {
        key: _shared(key, np.asarray([fact[key] for fact in facts])[at], concurrent) for key in facts[0]
    }
    innermost = route.innermost(tiers[0], constants_of(tiers[0]))
    terms |= {key: _shared(key, fact, concurrent) for key, fact in innermost.items()}
    steps = route.steps(tuple(levels))
    values = [np.asarray(value, dtype=np.float64) for value in run(_text(steps), terms)[:-1]]
    return Path(
        ranks, tier, ranks <= 1.0, steps, terms, dict(zip((name for name, _ in steps), values, strict=True))
    )


def _sides(group: Group, tier: TierLike) -> tuple[dict[str, ArrayLike], Array]:
    """Return the terms of a group's box on a torus, and how many of its sides have more than one chip."""
    if group.box is None:
        raise LayoutError(f"{tier.name}: a group on a torus needs to know its sides")
    terms, axes = side_terms(group.box, tier.shape, tier.wraps)
    # The crowd of the sides that a message between neighbours may go along; across slices there is none.
    crowds = [
        np.where(terms[f"side_{i}"] > 1.0, terms[f"crowd_{i}"], 1.0) for i in range(1, len(tier.shape) + 1)
    ]
    inside = np.asarray(group.members[0]) >= np.asarray(group.ranks)
    crowd = np.where(inside, np.max(np.broadcast_arrays(*crowds), axis=0), 1.0)
    return {**{name: settled(value) for name, value in terms.items()}, "axes": axes, "crowd": crowd}, axes


def _shared(name: str, fact: ArrayLike, concurrent: Array) -> ArrayLike:
    """Return a fact of a tier as one group sees it: its part of a rate."""
    return fact / concurrent if name.endswith("bytes_per_s") else fact  # type: ignore[operator]


@lru_cache(maxsize=256)
def term_prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the terms of tiers are called after, one a tier, all different.

    >>> term_prefixes(("nvlink", "leaf 1", "leaf-1", "2nd"))
    ('nvlink', 'leaf_1', 'leaf_1_2', 'tier_2nd')
    """
    given: list[str] = []
    for index, name in enumerate(names):
        plain = re.sub(r"\W+", "_", name).strip("_")
        plain = plain if plain and plain[0].isalpha() else f"tier_{plain}"
        given.append(plain if plain not in given else f"{plain}_{index}")
    return tuple(given)


def go_on(formula: str, steps: Steps, known: Mapping[str, ArrayLike]) -> Quantity:
    """Return what a formula gives from steps whose values are known, with all text and terms behind it."""
    values = run(formula, known)
    text, needs = with_steps(steps, formula)
    named = dict(zip(compiled(formula).step_names, values, strict=False))
    return Quantity(
        np.asarray(values[-1], dtype=np.float64), text, {name: known[name] for name in needs}, named
    )


@lru_cache(maxsize=1024)
def _text(steps: Steps) -> str:
    return "; ".join([*(f"{name} = {expression}" for name, expression in steps), "0"])


@lru_cache(maxsize=1024)
def with_steps(steps: Steps, formula: str) -> tuple[str, tuple[str, ...]]:
    """Put those steps before a formula that it needs, and list the names that then want a number.

    >>> with_steps((("a", "2 * x"), ("b", "a + y"), ("c", "b + z")), "b * b")
    ('a = 2 * x; b = a + y; b * b', ('x', 'y'))
    """
    made = {name: tuple(names_of(expression)) for name, expression in steps}
    wanted, held = set(names_of(formula)), []
    for name, expression in reversed(steps):
        if name in wanted:
            held.append(f"{name} = {expression}")
            wanted |= set(made[name])
    text = "; ".join([*reversed(held), formula])
    inside = {part.partition(" = ")[0] for part in text.split("; ")[:-1]}
    return text, tuple(name for name in names_of(text) if name not in inside)


def add_up(parts: Iterable[str]) -> str:
    """Add expressions up; none come to 0."""
    return " + ".join(parts) or "0"


def largest(parts: Iterable[str]) -> str:
    """Return the largest of expressions; none come to 0."""
    held = list(parts)
    return f"max({', '.join(held)})" if len(held) > 1 else "".join(held) or "0"
