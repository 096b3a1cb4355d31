"""The step as a tree: step, stage, micro-batch, layer, operator, and what runs once a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from costmodel.base.answer import Answer, columns_of
from costmodel.bill.lines import TimeLine
from costmodel.estimates.priced_job import PricedJob

_ONCE = {"pp": "pipeline", "dp": "gradients and parameters", "optimizer": "optimizer", "compute": "host"}


class Node(NamedTuple):
    """A part of the step: so many times `each_s` seconds inside its parent; children add up to `each_s`."""

    name: str
    times: float
    each_s: float
    children: tuple[Node, ...] = ()

    @property
    def seconds(self) -> float:
        """Exposed seconds of all executions inside one of the parent."""
        return self.times * self.each_s


def _parent(name: str, count: float, children: list[Node]) -> Node:
    return Node(name, count, sum(child.seconds for child in children), tuple(children))


def root_of(est: PricedJob) -> Node:
    """Return the step of one layout as a tree of exposed seconds; its root is the step time."""
    est.require_single("tree")
    priced = est.priced
    micro_batches = float(priced.placed.micro_batches)
    on_bill = {line.name: line for line in est.bill.time_lines}
    blocks, seen = [], set()
    for block, lines in zip(priced.step.blocks, priced.step.block_lines, strict=True):
        seen |= {line.name for line in lines}
        count = float(on_bill[lines[0].name].count) / micro_batches
        if count:
            blocks.append(_parent(f"{block.label}{block.role}", count, _operators(list(lines), block.label)))
    once: dict[str, list[Node]] = {}
    for line in est.bill.time_lines:
        if line.name not in seen:
            leaf = Node(line.name, float(line.count), float(line.exposed_each_s))
            once.setdefault(_ONCE.get(line.axis, line.axis), []).append(leaf)
    pp = float(priced.placed.layout.pp)
    where = "the only stage" if pp == 1 else f"stage {slowest_stage(est)} of {pp:.0f}, the slowest"
    stage = _parent(where, 1.0, [_parent("micro-batch", micro_batches, blocks)])
    return _parent("step", 1.0, [stage, *(_parent(name, 1.0, nodes) for name, nodes in once.items())])


def _operators(lines: list[TimeLine], label: str) -> list[Node]:
    """Group the lines of a block by operator or exchange, each with its passes, in the order of the bill."""
    groups: dict[str, list[Node]] = {}
    for line in lines:
        name = line.name.replace(f"{line.axis}.{label}", f"{line.axis}.", 1) if label else line.name
        operator, _, pass_name = name.removeprefix("compute.").rpartition(".")
        groups.setdefault(operator, []).append(Node(pass_name, 1.0, float(line.exposed_each_s)))
    return [_parent(name, 1.0, nodes) for name, nodes in groups.items()]


def slowest_stage(est: PricedJob) -> int:
    """Return the stage whose blocks the bill counts, the first of those that hold the same. [-]"""
    placed = est.priced.placed
    stages = placed.stages
    m = float(placed.micro_batches)
    counts = {line.name: float(line.count) / m for line in est.bill.time_lines}
    same = np.ones(stages.index.shape, dtype=np.bool_)
    step = est.priced.step
    for block, lines in zip(step.blocks, step.block_lines, strict=True):
        same = same & np.isclose(block.runs_on_stage, counts[lines[0].name])
    return int(stages.index[int(np.argmax(same))])


def tree_rows(node: Node, *, least_share: float = 0.0) -> list[tuple[int, Node, float, float]]:
    """Return depth, node, seconds a step and share of it, depth first, parts below `least_share` left out."""
    rows: list[tuple[int, Node, float, float]] = []

    def visit(part: Node, depth: int, times: float) -> None:
        seconds = times * part.seconds
        share = seconds / node.seconds
        if depth and share < least_share:
            return
        rows.append((depth, part, seconds, share))
        for child in part.children:
            visit(child, depth + 1, times * part.times)

    visit(node, 0, 1.0)
    return rows


def _record(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "count": node.times,
        "each_s": node.each_s,
        "children": [_record(child) for child in node.children],
    }


class StepTree(Answer):
    """The step of one job as a tree of exposed seconds; its root is the step time."""

    def __init__(self, est: PricedJob) -> None:
        self.root = root_of(est)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as nested plain data."""
        return {"schema_version": 1, "tree": _record(self.root)}

    def columns(self) -> dict[str, list[Any]]:
        """Return the tree as columns, a row a part."""
        return columns_of(
            [
                {
                    "depth": depth,
                    "name": part.name,
                    "count": part.times,
                    "each_s": part.each_s,
                    "seconds": seconds,
                }
                for depth, part, seconds, _ in tree_rows(self.root)
            ]
        )
