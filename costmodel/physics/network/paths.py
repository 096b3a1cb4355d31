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
from costmodel.base.numbers import distinct
from costmodel.bill.formula import compiled, evaluate, inputs_of, run, with_steps
from costmodel.bill.lines import any_nonzero, without_constant_axes
from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import Tier
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.topologies import TORUS, Topology, topology
from costmodel.physics.network.torus import side_terms, torus_steps

Array = NDArray[np.float64]
Steps = tuple[tuple[str, str], ...]  # Names and expressions, in the order in which they are computed


class Level(NamedTuple):
    """A tier that groups cross, as far as the text depends on it."""

    name: str  # Prefix of its terms
    below: str  # Term with the members of a group in one domain of the tier below; empty for one member
    always: bool  # Whether every group of the array crosses it
    ends: str
    """Whether all, none or some of the groups end inside one of its domains, or go on over the same ports (all)."""
    inner: bool  # Whether it is the innermost tier of the fabric
    wiring: Topology
    axes: tuple[int, ...] = ()  # On a torus, how many sides longer than one chip groups have

    def where_crossed(self, value: str, otherwise: str = "0") -> str:
        """Return an expression for groups that cross the tier, and another for the rest if there are any."""
        return (
            value if self.always else f"where({self.name}_members > {self.below or 1}, {value}, {otherwise})"
        )

    def rate(self, share: str, factor: str = "rate_factor") -> str:
        """Return the rate of one GPU of a group, given the share that its wiring leaves (see `Topology`)."""
        whole = f"{self.name}_bytes_per_s * {self.name}_{factor}"
        return whole if share == "1" else f"{whole} * {share.format(tier=self.name, below=self.below or 1)}"

    def over_below(self, value: str) -> str:
        """Return an expression over the members below."""
        return f"{value} / {self.below}" if self.below else value


Route = Callable[[tuple[Level, ...]], Steps]  # A kind of traffic: from the tiers crossed to its steps

# Terms of every tier crossed, called after it; of the outermost one crossed; and of the innermost of the fabric.
_EACH = ("bytes_per_s", "rate_factor", "dispatch_rate_factor", "hop_s", "tree_step_s")
_OUTERMOST = (
    *("base_latency_s", "simple_step_s", "pipeline_s", "pipeline_step_s", "ll_bandwidth_bytes_per_s"),
    *("tree_pipeline_s", "tree_rate_factor", "nvls_tree_pipeline_s", "sharp_bytes_per_s"),
    *("all_to_all_start_s", "all_to_all_message_s", "all_to_all_pipeline_s"),
    *("send_start_s", "send_pipeline_s", "send_bytes_per_s", "send_rate_factor"),
)
_INNERMOST = (
    *("node_bytes_per_s", "node_rate_factor", "node_base_s", "node_hop_s"),
    *("switch_bytes_per_s", "link_bytes_per_s"),
    *("nvls_rate_factor", "nvls_tree_rate_factor", "nvls_latency_s", "nvls_pipeline_s", "nvls_min_ranks"),
)
_TAKEN = {name.partition("_")[0] for name in (*_OUTERMOST, *_INNERMOST)}
_TAKEN |= {"ring", "outer", "chain", "sharp", "once", "turn", "spread", "between", "exchange", "copy", "wire"}
"""What terms and steps begin with that are not called after a tier."""


def _facts(tier: Tier) -> dict[str, float]:
    """Return the terms that a tier gives, wherever it lies: those of its `Fabric` by their names, and what follows."""
    fabric, rate = tier.fabric, tier.achieved_bandwidth_bytes_per_s
    start_s = tier.base_latency_s + tier.latency_s
    # On a torus a chip has two ports a dimension, one each way.
    ports = 2.0 * len(tier.shape) if tier.topology == TORUS.name else 1.0
    alone = topology(tier.topology).send.format(tier="tier", below=1)
    return {
        **fabric._asdict(),
        "bytes_per_s": rate,
        "hop_s": tier.latency_s,
        "base_latency_s": tier.base_latency_s,
        "tree_step_s": fabric.tree_step_s or tier.latency_s,
        "sharp_bytes_per_s": tier.reduction_bandwidth_bytes_per_s * fabric.tree_rate_factor,
        "all_to_all_start_s": fabric.all_to_all_latency_s or start_s,
        "send_start_s": fabric.send_latency_s or start_s,
        "send_bytes_per_s": rate * float(evaluate(alone, {"tier_domain": tier.size})) / ports,
        "node_bytes_per_s": rate,
        "node_rate_factor": fabric.rate_factor,
        "node_base_s": tier.base_latency_s,
        "node_hop_s": tier.latency_s,
        "switch_bytes_per_s": tier.reduction_bandwidth_bytes_per_s,
        "link_bytes_per_s": rate * fabric.rate_factor / ports,
    }


class Path(NamedTuple):
    """What a group meets on its way; arrays over groups, not over sizes."""

    ranks: Array
    tier: Array  # Index of the outermost tier crossed, -1 in a group of one. [-]
    alone: NDArray[np.bool_]  # Whether a group has one member
    steps: Steps
    terms: Mapping[str, ArrayLike]  # The numbers that the steps, and the ways that follow, start from
    values: Mapping[str, Array]  # Those of the steps


def ring_steps(levels: tuple[Level, ...]) -> Steps:
    """Return latency, seconds a byte and fill time of neighbour to neighbour, and the latency of a tree.

    Where the ring goes on to an outer tier, one subdomain in each domain leaves over that one. Where that takes the
    same ports (a NIC to its leaf and through it to the spine) each still sends all of the ring's bytes. The tightest tier
    sets the rate, the outermost one how long the chunk pipeline fills.
    """
    steps = [(f"{at.name}_hops", f"{at.over_below('ranks')} - ranks / {at.name}_members") for at in levels]
    steps.append(("hops_s", add_up(f"{at.name}_hops * {at.name}_hop_s" for at in levels)))
    for at in levels:
        left = f"1 - {at.below or 1} / {at.name}_members"
        some = f"where({at.name}_members < ranks, {left}, 1)"
        share = {"all": "1", "none": f"({left})", "some": some}[at.ends]
        ports = f"{at.below} * " if at.below else ""
        steps.append(
            (f"{at.name}_s_per_byte", at.where_crossed(f"{share} / ({ports}{at.rate(at.wiring.ring)})"))
        )
    steps.append(("ring_s_per_byte", largest(f"{at.name}_s_per_byte" for at in levels)))
    steps.append(("outer_s_per_byte", largest(f"{at.name}_s_per_byte" for at in levels if not at.inner)))
    far = "0"
    for at in levels:
        far = at.where_crossed(f"{at.name}_hops", far)
    steps.append(("fill_s", f"pipeline_s + {far} * pipeline_step_s"))
    steps.append(("chain_s", add_up(f"(node_ranks - 1) * {at.name}_hop_s" for at in levels if at.inner)))
    outer = [at for at in levels if not at.inner]
    depth = (f"{at.name}_tree_step_s * log2({at.over_below(at.name + '_members')})" for at in outer)
    steps.append(("tree_s", add_up(depth)))
    return tuple(steps)


def pair_steps(levels: tuple[Level, ...]) -> Steps:
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


def link_steps(levels: tuple[Level, ...]) -> Steps:
    """Return nothing: one message crosses the outermost tier by one GPU's port, or goes over a link of a torus."""
    return ()


def _on_torus(
    levels: tuple[Level, ...], absent: tuple[str, ...]
) -> tuple[list[tuple[str, str]], tuple[Level, ...]]:
    """Return the steps of the box of chips inside a slice, `absent` where groups cross none, and the tiers outside."""
    inner = next((at for at in levels if at.inner), None)
    steps = [(name, "0") for name in absent] if inner is None else list(torus_steps(inner.axes))
    steps.append(("slice_start_s", "0" if inner is None else inner.where_crossed("node_base_s")))
    return steps, tuple(at for at in levels if not at.inner)


def slice_ring_steps(levels: tuple[Level, ...]) -> Steps:
    """Return what a gather costs on a torus, and on the network between slices over every chip's own port."""
    absent = ("once_s_per_byte", "once_hops", "turn_s_per_byte", "turn_hops")
    steps, outer = _on_torus(levels, absent)
    steps.append(("slices", "ranks / node_ranks"))
    steps += [step for step in ring_steps(outer) if step[0].endswith(("_hops", "_s_per_byte"))]
    steps.append(("between_s_per_byte", "(slices - 1) / slices * outer_s_per_byte"))
    hops = add_up(f"{at.name}_hops * {at.name}_hop_s" for at in outer)
    steps.append(("outer_start_s", "where(slices > 1, base_latency_s, 0)" if outer else "0"))
    steps.append(("outer_hops_s", f"{hops} + (slices - 1) * simple_step_s" if outer else "0"))
    return tuple(steps)


def slice_pair_steps(levels: tuple[Level, ...]) -> Steps:
    """Return what the links of a torus and the ports of the outer network carry of an all-to-all."""
    steps, outer = _on_torus(levels, ("spread_s_per_byte", "spread_hops"))
    steps.append(("outer_start_s", "where(ranks > node_ranks, all_to_all_start_s, 0)" if outer else "0"))
    return (*pair_steps(outer), *steps)


_KEPT_PATHS = 128
_paths: dict[tuple[object, ...], tuple[tuple[object, ...], Path]] = {}


def path_of(
    group: Group, tiers: Sequence[Tier], concurrent: ArrayLike, route: Route, **more: ArrayLike
) -> Path:
    """Return the path of a group, walked once for all the collectives it does.

    `concurrent` groups share every port and link, which divides all bandwidths; `more` are terms of the steps that are
    not the fabric's. [-]
    """
    arrays = [np.asarray(each) for each in (group.ranks, *group.members, concurrent, *more.values())]
    if group.box is not None:
        arrays += [np.asarray(each) for each in (*group.box.sides, *group.box.spans)]
    # What is held keeps its id.
    held = (*tiers, route)
    key = (*((array.shape, array.tobytes()) for array in arrays), *map(id, held))
    if key not in _paths:
        if len(_paths) >= _KEPT_PATHS:
            _paths.clear()
        _paths[key] = (held, _walk(group, tiers, np.asarray(concurrent, dtype=np.float64), route, more))
    return _paths[key][1]


def _walk(
    group: Group, tiers: Sequence[Tier], concurrent: Array, route: Route, more: Mapping[str, ArrayLike]
) -> Path:
    """Follow the traffic of `group` through the tiers."""
    ranks = np.asarray(group.ranks, dtype=np.float64)
    terms: dict[str, ArrayLike] = {"ranks": ranks, "crowd": 1.0, **more}
    facts = [_facts(one) for one in tiers]
    levels: list[Level] = []
    below, below_name = np.asarray(1.0), ""
    tier, copy = np.asarray(-1.0), np.asarray(0.0)

    def shared(name: str, fact: ArrayLike) -> ArrayLike:
        """Return a fact of a tier as one group sees it: its part of a rate."""
        return np.asarray(fact) / concurrent if name.endswith("bytes_per_s") else fact

    names = term_prefixes(tuple(one.name for one in tiers))
    for index, (one, name, members) in enumerate(zip(tiers, names, group.members, strict=True)):
        inside = np.asarray(members, dtype=np.float64)
        crossed = inside > below
        if not any_nonzero(crossed):
            continue
        # A network of several tiers is entered by one port.
        same_port = index > 0 and index + 1 < len(tiers) and tiers[index + 1].kind == one.kind
        ended = (inside >= ranks) | same_port
        ends = "all" if not any_nonzero(~ended) else ("some" if any_nonzero(ended) else "none")
        wiring, axes = topology(one.topology), tuple[int, ...]()
        if wiring.shaped:
            sides, numbers = _sides(group, one)
            terms |= sides
            # What has no long side, as on a torus of one chip, is a side of one chip.
            axes = tuple(map(int, distinct(numbers[numbers > 0]))) or (1,)
        levels.append(Level(name, below_name, not any_nonzero(~crossed), ends, index == 0, wiring, axes))
        terms[f"{name}_members"] = inside
        terms[f"{name}_domain"] = float(one.size)
        terms[f"{name}_parts"] = float(one.size) / (float(tiers[index - 1].size) if index else 1.0)
        terms |= {f"{name}_{key}": shared(key, facts[index][key]) for key in _EACH}
        tier = np.where(crossed, float(index), tier)
        if copied := one.fabric.copy_bandwidth_bytes_per_s:
            copy = np.where(crossed, 1.0 / copied, copy)
        below, below_name = inside, f"{name}_members"
    terms["node_ranks"] = np.asarray(group.members[0], dtype=np.float64)
    terms["copy_s_per_byte"] = without_constant_axes(copy)
    at = without_constant_axes(tier).astype(np.int64)
    terms |= {key: shared(key, np.asarray([fact[key] for fact in facts])[at]) for key in _OUTERMOST}
    terms |= {key: shared(key, facts[0][key]) for key in _INNERMOST}
    steps = route(tuple(levels))
    text = "; ".join([*(f"{name} = {expression}" for name, expression in steps), "0"])
    values = [np.asarray(value, dtype=np.float64) for value in run(text, terms)[:-1]]
    made = dict(zip((name for name, _ in steps), values, strict=True))
    return Path(ranks, tier, ranks <= 1.0, steps, terms, made)


def _sides(group: Group, tier: Tier) -> tuple[dict[str, ArrayLike], Array]:
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
    return {
        **{name: without_constant_axes(value) for name, value in terms.items()},
        "axes": axes,
        "crowd": crowd,
    }, axes


@lru_cache(maxsize=256)
def term_prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the terms of tiers are called after, one a tier, all different.

    >>> term_prefixes(("nvlink", "leaf 1", "leaf-1", "2nd", "switch"))
    ('nvlink', 'leaf_1', 'leaf_1_2', 'tier_2nd', 'tier_switch')
    """
    given: list[str] = []
    for index, name in enumerate(names):
        plain = re.sub(r"\W+", "_", name).strip("_")
        plain = plain if plain and plain[0].isalpha() and plain not in _TAKEN else f"tier_{plain}"
        given.append(plain if plain not in given else f"{plain}_{index}")
    return tuple(given)


def go_on(formula: str, steps: Steps, known: Mapping[str, ArrayLike]) -> Quantity:
    """Return what a formula gives from steps whose values are known, with all text and terms behind it."""
    values = run(formula, known)
    text = with_steps(steps, formula)
    named = dict(zip(compiled(formula).step_names, values, strict=False))
    terms = {name: known[name] for name in inputs_of(text)}
    return Quantity(np.asarray(values[-1], dtype=np.float64), text, terms, named)


def add_up(parts: Iterable[str]) -> str:
    """Add expressions up; none come to 0."""
    return " + ".join(parts) or "0"


def largest(parts: Iterable[str]) -> str:
    """Return the largest of expressions; none come to 0."""
    expressions = list(parts)
    return f"max({', '.join(expressions)})" if len(expressions) > 1 else "".join(expressions) or "0"
