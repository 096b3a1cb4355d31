"""The collectives of many layouts: each distinct one is priced once.

Layouts lie along the last dimension of all arrays. Most of what tells them apart no message is told: all with
the same ranks in the same places and the same bytes send alike, whatever their micro-batches or stages. So
`Messages` prices one layout of each kind and deals the result out, and remembers what it has priced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity
from costmodel.physics.network.fabric import GroupCost, TierLike
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.network.torus import Box

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_FEWEST_LAYOUTS = 48
"""Layouts that are not worth telling apart. [-]"""


class Kinds(NamedTuple):
    """Which layouts are alike.

    Attributes
    ----------
    first : ndarray of int
        The first layout of each kind, in order.
    of : ndarray of int
        The kind of each layout.
    """

    first: Indices
    of: Indices


def kinds_of(*arrays: Array) -> Kinds | None:
    """Tell apart the layouts in the last dimension of arrays; nothing where they are few, or hardly any are alike.

    >>> ranks = np.tile([8.0, 2.0], 32)
    >>> kinds = kinds_of(ranks)
    >>> kinds.first.tolist(), kinds.of[:4].tolist()
    ([0, 1], [0, 1, 0, 1])
    """
    layouts = max((array.shape[-1] for array in arrays if array.ndim), default=1)
    if layouts < _FEWEST_LAYOUTS:
        return None
    rows = np.concatenate(
        [array.reshape(-1, layouts) for array in arrays if array.ndim and array.shape[-1] == layouts]
    )
    # One number a layout, the same where they are alike; should others meet in it too, they are seen below.
    keys = np.sqrt(np.arange(2.0, len(rows) + 2.0)) @ rows
    order = np.argsort(keys)
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    if 2 * len(starts) > layouts:
        return None
    first = np.minimum.reduceat(order, starts)
    place = np.empty(len(starts), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(starts))
    of = np.empty(layouts, dtype=np.int64)
    of[order] = np.repeat(place, np.diff(np.append(starts, layouts)))
    first = np.sort(first)
    return Kinds(first, of) if bool((rows[:, first[of]] == rows).all()) else None


class Pile(NamedTuple):
    """Where one of several messages lies that are priced at once: along a dimension in front of the others."""

    place: int
    dimensions: int
    """Of what differs by message; what has fewer is the same for all."""

    def of(self, values: ArrayLike) -> Array:
        """Return the values of the one message."""
        array = np.asarray(values, dtype=np.float64)
        return array if array.ndim < self.dimensions else np.asarray(array[self.place])


class Dealt(Mapping[str, ArrayLike]):
    """Numbers of each kind of layouts, of one message of a pile, dealt out to the layouts when they are asked for."""

    def __init__(self, numbers: Mapping[str, ArrayLike], of: Indices, pile: Pile | None = None) -> None:
        self._numbers = numbers
        self._of = of
        self._pile = pile

    def __getitem__(self, name: str) -> ArrayLike:
        """Return a number by layout."""
        numbers = self._numbers[name]
        return _at(numbers if self._pile is None else self._pile.of(numbers), self._of)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a number; none is dealt for it."""
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._numbers)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._numbers)


def _at(values: ArrayLike, layouts: Indices) -> Array:
    """Return values of some layouts, those that are the same for all as they are."""
    array = np.asarray(values, dtype=np.float64)
    return array if array.ndim == 0 or array.shape[-1] == 1 else array.take(layouts, axis=-1)


@dataclass
class _Sender:
    """A group, what has been priced for it, and groups of one layout of each kind."""

    group: Group
    kinds: list[Kinds]
    """Of its layouts: by the group alone first, then also by what it sends."""
    tier: Array | None = None
    costs: dict[Hashable, list[tuple[tuple[Array, ...], GroupCost]]] = field(default_factory=dict)
    parts: dict[bytes, Group] = field(default_factory=dict)

    def alike(self, numbers: Sequence[Array]) -> Kinds | None:
        """Return kinds of layouts that differ neither in the group nor in those numbers."""
        if not self.kinds:
            return None
        for kinds in self.kinds:
            if _constant(numbers, kinds):
                return kinds
        finer = kinds_of(self.kinds[0].of.astype(np.float64), *numbers)
        if finer:
            self.kinds.append(finer)
        return finer

    def dealt(self, some: GroupCost, kinds: Kinds, pile: Pile | None = None) -> GroupCost:
        """Return what each kind of layouts pays for a message, of a pile where there is one, by layout."""
        if self.tier is None:
            # One array for all that the group sends: lines of one tier are found by it.
            self.tier = _at(some.tier, kinds.of)
        value, wire_bytes, algorithm = (
            _at(each if pile is None else pile.of(each), kinds.of)
            for each in (some.made.value, some.wire_bytes, some.algorithm)
        )
        terms, steps = (Dealt(each, kinds.of, pile) for each in (some.made.terms, some.made.steps))
        return GroupCost(Quantity(value, some.made.formula, terms, steps), wire_bytes, self.tier, algorithm)

    def part(self, first: Indices) -> Group:
        """Return the group of some layouts; the very same one for the same layouts, as its path is known then."""
        key = first.tobytes()
        if key not in self.parts:
            group, box = self.group, self.group.box
            self.parts[key] = group._replace(
                ranks=_at(group.ranks, first),
                members=tuple(_at(inside, first) for inside in group.members),
                box=box and Box(*(tuple(_at(side, first) for side in sides) for sides in box)),
            )
        return self.parts[key]


class Messages:
    """The messages of one bill over a fabric.

    Parameters
    ----------
    tiers : sequence of Tier
        Levels of the fabric, innermost first.
    without : tuple of str
        Algorithms of collectives that are not taken.
    """

    def __init__(self, tiers: Sequence[TierLike], without: tuple[str, ...] = ()) -> None:
        self._tiers = tiers
        self._without = without
        # The key is which arrays these are; a sender holds on to them.
        self._senders: dict[tuple[int, ...], _Sender] = {}

    def collective(self, primitive: str, size_bytes: ArrayLike, group: Group) -> GroupCost:
        """Return the time of a collective by its fastest algorithm; see `costmodel.physics.network.nccl`."""
        return self.once(primitive, self._pricing(primitive), group, np.asarray(size_bytes, dtype=np.float64))

    def ahead(self, primitive: str, sizes: Sequence[Array], group: Group) -> None:
        """Price several messages of one group that will be asked for: a few at once cost hardly more than one.

        Nothing happens where layouts are so few, or so unlike, that each is priced by itself.
        """
        sender = self._sender(group)
        new = list({id(size): size for size in sizes}.values())
        kinds = sender.alike(new) if len(new) > 1 else None
        if kinds is None:
            return
        part, few = sender.part(kinds.first), [_at(size, kinds.first) for size in new]
        dimensions = 1 + max(np.ndim(each) for each in (part.ranks, *part.members, *few))
        piled = np.stack(np.broadcast_arrays(*few))
        inner = (1,) * (dimensions - piled.ndim)
        some = self._pricing(primitive)(part, piled.reshape(len(few), *inner, *piled.shape[1:]))
        known = sender.costs.setdefault(primitive, [])
        known += [
            ((size,), sender.dealt(some, kinds, Pile(place, dimensions))) for place, size in enumerate(new)
        ]

    def _pricing(self, primitive: str) -> Callable[[Group, Array], GroupCost]:
        """Return what prices a collective by its fastest algorithm."""
        return lambda part, size: collective_time(primitive, size, part, self._tiers, without=self._without)

    def once(
        self, key: Hashable, price: Callable[..., GroupCost], group: Group, *numbers: Array
    ) -> GroupCost:
        """Return what `price(group, *numbers)` gives, priced for one layout of each kind.

        Parameters
        ----------
        key : hashable
            Stands for all that `price` is told besides.
        price : callable
            Prices a message, layout by layout.
        group : Group
            Who sends.
        *numbers : Array
            By layout.
        """
        sender = self._sender(group)
        known = sender.costs.setdefault(key, [])
        for before, cost in known:
            if all(map(_same, before, numbers)):
                return cost
        kinds = sender.alike(numbers)
        if kinds is None:
            cost = price(group, *numbers)
        else:
            some = price(sender.part(kinds.first), *(_at(number, kinds.first) for number in numbers))
            cost = sender.dealt(some, kinds)
        known.append((numbers, cost))
        return cost

    def _sender(self, group: Group) -> _Sender:
        """Return what is known of a group."""
        key = (id(group.ranks), *map(id, group.members))
        if key not in self._senders:
            sides = [] if group.box is None else [*group.box.sides, *group.box.spans]
            arrays = [np.asarray(each) for each in (group.ranks, *group.members, *sides)]
            self._senders[key] = _Sender(group, self._kinds(arrays))
        return self._senders[key]

    def _kinds(self, arrays: Sequence[Array]) -> list[Kinds]:
        """Return the kinds of a group's layouts: those of another group, where they tell these apart as well.

        So it is with a group and its parts, and then they share also what they tell apart by what they send.
        """
        for other in self._senders.values():
            if other.kinds and _constant(arrays, other.kinds[0]):
                return other.kinds
        kinds = kinds_of(*arrays)
        return [kinds] if kinds else []


def _constant(arrays: Sequence[Array], kinds: Kinds) -> bool:
    """Tell whether arrays hold the same numbers in all layouts of a kind."""
    return all(_same(_at(_at(array, kinds.first), kinds.of), array) for array in arrays)


def _same(before: Array, now: Array) -> bool:
    """Tell whether two arrays hold the same numbers."""
    return before is now or (before.shape == now.shape and bool((before == now).all()))
