"""Rules in the ``kernels:`` block of an accelerator: constants that are another entry's, and why.

An entry (the products of a dtype, an attention kernel or one pass of it, the memory) may say in place of its constants::

    flash1: {like: flash2, times: 0.53, causal_times: 0.85, because: 'Dao, arXiv:2307.08691: ...'}

``like`` changes one word of the entry's own place (``flash2`` for ``flash1``; ``matmul`` for ``grouped_matmul`` of the
same dtype), or names the accelerator that has the constants in the same place. ``times`` is a factor on every share of
the peak, ``causal_times`` on the share of causal attention; both round to three digits, as what is fitted is written.
Constants beside them are the entry's own. ``like`` and ``because`` of the whole block stand for every entry of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.base.errors import shown

GROUPS = ("matmul", "grouped_matmul", "attention", "memory")
"""Groups of constants of a ``kernels:`` block."""
LENT = ("like", "because")
"""Keys of a block, or of an entry, that takes the constants of another."""
_FACTORS = ("times", "causal_times")
_RULE = (*LENT, *_FACTORS)
_PROVENANCE = ("basis", "source", "points", "held_out_error")

Place = tuple[str, ...]
Block = Mapping[str, Any]
Blocks = Callable[[str], Block]
"""What the file of an accelerator says under ``kernels:``, by the accelerator's name."""


def written_out(name: str, blocks: Blocks) -> dict[str, Any]:
    """Return the ``kernels:`` block of an accelerator with constants in place of rules."""
    block = blocks(name)
    made: dict[str, Any] = {key: value for key, value in block.items() if key not in (*LENT, *GROUPS)}
    for place in _places(name, blocks):
        inner = made
        for step in place[:-1]:
            inner = inner.setdefault(step, {})
        inner[place[-1]] = _constants(name, place, blocks, ())
    return made


def _places(name: str, blocks: Blocks, seen: Place = ()) -> list[Place]:
    """Return the entries of a block: those of its lender, then those of its own."""
    block, found = blocks(name), []
    if "like" in block:
        lender = block["like"]
        if lender in (*seen, name) or not (blocks(lender).keys() & {*GROUPS, "like"}):
            raise ValueError("like: expected an accelerator with constants of its own")
        found = _places(lender, blocks, (*seen, name))
    for group in (group for group in GROUPS if group in block):
        several = group != "memory" and isinstance(block[group], Mapping)
        found += [(group, key) for key in block[group]] if several else [(group,)]
    return list(dict.fromkeys(found))


def _constants(name: str, place: Place, blocks: Blocks, trail: tuple[Any, ...]) -> Any:
    """Return the constants of an entry of an accelerator's block, or of one pass of it; None where there are none."""
    entry = place[:2]
    if (name, entry) in trail:
        raise ValueError(f"{'.'.join(entry)}.like: expected a chain with an end, got a circle")
    trail = (*trail, (name, entry))
    block = blocks(name)
    own = _at(block, entry)
    if "like" in block:
        lent = _changed(_constants(block["like"], entry, blocks, trail), block, entry)
        if own is None and entry[0] == "grouped_matmul":
            # Products of experts follow the products of their dtype unless they have constants of their own.
            own = _at(block, ("matmul", *entry[1:]))
        if own is None or not (isinstance(own, Mapping) and "like" in own):
            return _at(lent if own is None else _over(lent, own, entry), place[2:])
    return _at(_without_rules(own, name, entry, blocks, trail), place[2:])


def _without_rules(stated: Any, name: str, place: Place, blocks: Blocks, trail: tuple[Any, ...]) -> Any:
    """Return an entry with constants in place of its rule, or of those of its passes."""
    if not isinstance(stated, Mapping):
        return stated
    if "like" not in stated:
        return {key: _without_rules(part, name, (*place, key), blocks, trail) for key, part in stated.items()}
    where, path = stated["like"], ".".join(place)
    if not all(isinstance(stated.get(key), str) for key in LENT):
        raise ValueError(
            f"{path}: expected {{like: an entry or an accelerator, because: a reason}}; got {shown(stated)}"
        )
    others = [(*place[:index], where, *place[index + 1 :]) for index in range(len(place[:2]))]
    for accelerator, other in (*((name, other) for other in others if other != place), (where, place)):
        found = _constants(accelerator, other, blocks, trail)
        if isinstance(found, Mapping):
            return _changed(found, stated, place)
    raise ValueError(
        f"{path}.like: expected an entry beside it, or an accelerator with {path}; got {where!r}"
    )


def _at(node: Any, place: Place) -> Any:
    """Return what stands at a place, None where nothing does."""
    for step in place:
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def _over(below: Any, own: Any, place: Place) -> Any:
    """Return what a device says of itself over what it was lent, key by key down to the group that says its source."""
    path = ".".join(place)
    if not isinstance(own, Mapping):
        raise ValueError(f"{path}: expected what differs as key: value; got {shown(own)}")
    lent = below if isinstance(below, Mapping) else {}
    if "source" in own:
        return _changed(lent or {"basis": ""}, {"like": "", "because": "", **own}, place)
    if not own or not all(isinstance(child, Mapping) for child in own.values()):
        raise ValueError(f"{path}: expected the source of what differs; the key 'source' is missing")
    return {**lent, **{key: _over(lent.get(key), child, (*place, key)) for key, child in own.items()}}


def _changed(base: Any, rule: Block, place: Place) -> Any:
    """Return an entry as a rule changes it, marked as an estimate; both passes of attention alike."""
    if not isinstance(base, Mapping):
        return base
    if "basis" not in base:
        return {key: _changed(part, rule, place) for key, part in base.items()}
    for key in _FACTORS:
        factor = rule.get(key, 1)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            raise ValueError(f"{'.'.join(place)}.{key}: expected a number above 0; got {shown(factor)}")
    factors = {"peak_fraction": "times", "peak_fractions": "times", "causal_fraction": "causal_times"}
    found = {key: value for key, value in base.items() if key not in _PROVENANCE}
    for key, factor in factors.items():
        if key in found and factor in rule:
            found[key] = _times(found[key], rule[factor])
    times = f" times {rule['times']:.2g}" if "times" in rule else ""
    source = f"as {rule['like']}{times}: {rule['because']}"
    own = {key: value for key, value in rule.items() if key not in (*_RULE, *GROUPS, "num_sms")}
    return {"basis": "estimated", "source": source} | found | own


def _times(share: Any, factor: float) -> Any:
    """Return a share, or one for each head dimension, times a factor, in three digits."""
    if isinstance(share, Mapping):
        return {key: _times(each, factor) for key, each in share.items()}
    return float(f"{share * factor:.3g}")
