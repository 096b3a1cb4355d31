"""The collectives of many layouts: each distinct one is priced once.

Layouts lie along the last dimension of all arrays. A collective depends on the group's ranks, where they lie and
the bytes that they send, and on nothing else of a layout: `Messages` prices one layout of each kind, gives the
others of the kind the same, and remembers what it has priced. Passes of a search over the same placements send much the
same, so that what was priced for many layouts is remembered across bills.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import GroupCost, Tier
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.network.torus import Box

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_FEWEST_LAYOUTS = 48  # Fewer layouts are cheaper priced one by one than told apart. [-]


class Kinds(NamedTuple):
    """Which layouts are alike."""

    first: Indices  # The first layout of each kind, in order
    of: Indices  # The kind of each layout


def kinds_of(*arrays: Array) -> Kinds | None:
    """Tell apart the layouts in the last dimension of arrays; nothing where they are few, or hardly any are alike."""
    layouts = max((array.shape[-1] for array in arrays if array.ndim), default=1)
    if layouts < _FEWEST_LAYOUTS:
        return None
    rows = np.concatenate(
        [array.reshape(-1, layouts) for array in arrays if array.ndim and array.shape[-1] == layouts]
    )
    # The bytes of a layout's numbers: np.unique(rows, axis=1) says the same, seven times as slowly.
    keys = np.ascontiguousarray(rows.T).view(f"V{rows.itemsize * len(rows)}").ravel().tolist()
    kind_of_key = {key: kind for kind, key in enumerate(dict.fromkeys(keys))}
    if 2 * len(kind_of_key) > layouts:
        return None
    of = np.asarray([kind_of_key[key] for key in keys])
    return Kinds(np.unique(of, return_index=True)[1], of)


def _at(values: ArrayLike, layouts: Indices) -> Array:
    """Return values of some layouts, those that are the same for all as they are."""
    array = np.asarray(values, dtype=np.float64)
    return array if array.ndim == 0 or array.shape[-1] == 1 else array.take(layouts, axis=-1)


@dataclass
class _Sender:
    """A group over a fabric, the kinds of its layouts, and what has been priced for it."""

    tiers: tuple[Tier, ...]
    group: Group
    kinds: Kinds | None
    tier: Array | None = None
    costs: dict[str, list[tuple[Array, GroupCost]]] = field(default_factory=dict)

    def kinds_sending(self, size: Array) -> Kinds | None:
        """Return the kinds of layouts that differ neither in the group nor in the bytes that it sends."""
        if self.kinds is None or np.array_equal(_at(_at(size, self.kinds.first), self.kinds.of), size):
            return self.kinds
        return kinds_of(self.kinds.of.astype(np.float64), size)

    def part(self, first: Indices) -> Group:
        """Return the group of some layouts."""
        group, box = self.group, self.group.box
        return group._replace(
            ranks=_at(group.ranks, first),
            members=tuple(_at(inside, first) for inside in group.members),
            box=box and Box(*(tuple(_at(side, first) for side in sides) for sides in box)),
        )

    def by_layout(self, cost: GroupCost, of: Indices) -> GroupCost:
        """Return by layout what each kind of layouts pays."""
        if self.tier is None:
            # One array for all that the group sends: lines of one tier are found by it.
            self.tier = _at(cost.tier, of)
        terms, steps = (
            {name: _at(number, of) for name, number in each.items()}
            for each in (cost.made.terms, cost.made.steps)
        )
        made = Quantity(_at(cost.made.value, of), cost.made.formula, terms, steps)
        return GroupCost(made, _at(cost.wire_bytes, of), self.tier, _at(cost.algorithm, of))


_MOST_SENDERS = 32
_MOST_SIZES = 24
_MOST_LAYOUTS = 2**14
"""Groups of many layouts, sizes of each primitive, and layouts of a group, that are remembered. [-]"""
_known_senders: dict[tuple[object, ...], _Sender] = {}


class Messages:
    """The messages of one bill over a fabric of `tiers`, innermost first, by collectives `without` some algorithms."""

    def __init__(self, tiers: tuple[Tier, ...], without: tuple[str, ...] = ()) -> None:
        self._tiers = tiers
        self._without = without
        # By which arrays a group is made of, with the group, so that no other arrays have their identity.
        self._senders: dict[tuple[int, ...], tuple[Group, _Sender]] = {}

    def collective(self, primitive: str, size_bytes: ArrayLike, group: Group) -> GroupCost:
        """Return the time of a collective by its fastest algorithm; see `costmodel.physics.network.nccl`."""
        size = np.asarray(size_bytes, dtype=np.float64)
        sender = self._sender(group)
        known = sender.costs.setdefault(primitive, [])
        for before, cost in known:
            if before is size or np.array_equal(before, size):
                return cost
        kinds = sender.kinds_sending(size)
        if kinds is None:
            cost = self._price(primitive, size, group)
        else:
            few = self._price(primitive, _at(size, kinds.first), sender.part(kinds.first))
            cost = sender.by_layout(few, kinds.of)
        del known[: 1 - _MOST_SIZES]
        known.append((size, cost))
        return cost

    def _price(self, primitive: str, size: Array, group: Group) -> GroupCost:
        return collective_time(primitive, size, group, self._tiers, without=self._without)

    def _sender(self, group: Group) -> _Sender:
        """Return what is known of a group."""
        key = (id(group.ranks), *map(id, group.members))
        if key not in self._senders:
            self._senders[key] = group, self._found(group)
        return self._senders[key][1]

    def _found(self, group: Group) -> _Sender:
        """Return a group's sender: of many layouts one that another bill has left, where it has the same numbers."""
        sides = [] if group.box is None else [*group.box.sides, *group.box.spans]
        arrays = [np.asarray(each) for each in (group.ranks, *group.members, *sides)]
        if not _FEWEST_LAYOUTS <= max(array.size for array in arrays) <= _MOST_LAYOUTS:
            return _Sender(self._tiers, group, kinds_of(*arrays))
        numbers = (part for array in arrays for part in (array.shape, array.tobytes()))
        # A sender holds on to its fabric, so that no other has its identity.
        key = (id(self._tiers), self._without, group.dim, *numbers)
        found = _known_senders.pop(key, None) or _Sender(self._tiers, group, kinds_of(*arrays))
        if len(_known_senders) >= _MOST_SENDERS:
            del _known_senders[next(iter(_known_senders))]
        _known_senders[key] = found
        return found
