"""Lines of a bill opened up: the formula, the same with its numbers put in, units, tier and source.

Printed numbers have seven significant digits (whole numbers all of theirs), so that anybody can put
the printed line into a calculator and get the printed value.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.screen import drawn
from costmodel.base.units import format_bytes, format_seconds
from costmodel.bill.formula import evaluate_steps, names_of
from costmodel.bill.lines import CATEGORY_NAMES
from costmodel.estimates.frame import NONE, bill_rows
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.network.fabric import NCCL_ALGORITHMS
from costmodel.physics.network.nccl import PROTOCOLS
from costmodel.physics.pipeline.schedules import schedule_at

_UNITS = (
    ("bytes_per_s", "B/s"),
    ("flops_per_s", "FLOP/s"),
    ("per_s", "1/s"),
    ("s_per_byte", "s/B"),
    ("_bytes", "B"),
    ("bytes_per_param", "B"),
    ("bytes_per_element", "B"),
    ("flops", "FLOP"),
    ("_s", "s"),
)


def unit_of(name: str) -> str:
    """Return the unit that a term's name ends in, none for a plain number.

    >>> unit_of("hbm_bytes_per_s"), unit_of("window_s"), unit_of("num_sms")
    ('B/s', 's', '')
    """
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "")


def number_text(value: float) -> str:
    """Return a number as formulas print it: whole ones in full, others with seven significant digits.

    >>> number_text(16384.0), number_text(1.23456789e-5)
    ('16384', '1.234568e-05')
    """
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.7g}"


class ShownTerm(NamedTuple):
    """A number of a formula."""

    name: str
    value: float
    unit: str


class ShownStep(NamedTuple):
    """A step of a formula: what it computes, the same with numbers, and its value; the last is the result."""

    name: str
    expression: str
    with_numbers: str
    value: float
    unit: str


class ExplainedLine(NamedTuple):
    """One line of the bill, opened up; texts are empty where there is nothing to say."""

    name: str
    bill: str
    """time or memory"""
    axis: str
    category: str
    phase: str
    tier: str
    algorithm: str
    protocol: str
    source: str
    times: float
    """Executions."""
    each: float  # What the step waits for one, or bytes held. [s or B]
    total: float
    share: float
    """Of the step, or of the memory. [-]"""
    formula: str
    terms: tuple[ShownTerm, ...]
    """The numbers that the names stand for."""
    steps: tuple[ShownStep, ...]  # From the numbers to `each`
    textbook: str = ""  # What a textbook has for it


class Explanation(tuple[ExplainedLine, ...], Answer):
    """Opened lines; prints as text and shows as tables in a notebook."""

    def alike(self) -> list[list[ExplainedLine]]:
        """Return lines together whose formulas and numbers are the same, such as those of two passes."""
        found: dict[tuple[object, ...], list[ExplainedLine]] = {}
        for line in self:
            found.setdefault((line.steps, line.terms, line.source, line.textbook), []).append(line)
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Return opened lines as plain data, numbers in full."""
        lines = [
            {
                **line._asdict(),
                "phase": line.phase or None,
                "tier": line.tier or None,
                "algorithm": line.algorithm or None,
                "protocol": line.protocol or None,
                "terms": [term._asdict() for term in line.terms],
                "steps": [step._asdict() for step in line.steps],
            }
            for line in self
        ]
        return {"schema_version": 1, "lines": lines}

    def columns(self) -> dict[str, list[Any]]:
        """Return opened lines as columns, a row a step."""
        rows: list[dict[str, Any]] = [
            {
                "name": line.name,
                "bill": line.bill,
                "axis": line.axis,
                "category": line.category,
                "count": line.times,
                "tier": line.tier or "none",
                "step": step.name or "result",
                "formula": step.expression,
                "with_numbers": step.with_numbers,
                "value": step.value,
                "unit": step.unit or "-",
                "source": line.source,
            }
            for line in self
            for step in line.steps
        ]
        return columns_of(rows)

    def sums(self) -> list[str]:
        """Say what several lines of a bill come to."""
        found = []
        for bill in ("time", "memory"):
            lines = [line for line in self if line.bill == bill]
            if len(lines) > 1:
                total, share = sum(line.total for line in lines), sum(line.share for line in lines)
                is_time = bill == "time"
                text = format_seconds(total, 4) if is_time else format_bytes(total)
                whole = "step" if is_time else "worst stage"
                found.append(f"Sum of these {len(lines)} lines: {text}, {share:.2%} of the {whole}.")
        return found

    def __repr__(self) -> str:
        return drawn(self.grids(), self.remarks()).rstrip()


def explain(est: PricedJob, name: str = "") -> Explanation:
    """Open up the line `name`, or all that begin with its parts, with their axis or without; see `Estimate.explain`."""
    est.require_single("explain")
    rows = [row for row in bill_rows(est) if row["bill"] != "host"]
    parts = name.removesuffix(".").split(".") if name else []

    def beginning(skipped: int) -> list[dict[str, Any]]:
        ends = skipped + len(parts)
        return [row for row in rows if row["name"].split(".")[skipped:ends] == parts]

    chosen = [row for row in rows if row["name"] == name] or beginning(0) or beginning(1)
    if not chosen:
        hint = choices_hint(name, [row["name"] for row in rows])
        raise CostModelError(f"line: {name!r} is not on this bill; {hint}")
    wholes = {"time": float(est.step_time_s), "memory": float(est.memory_bytes_per_gpu)}
    opened = (_opened(row, wholes[row["bill"]]) for row in chosen)
    return Explanation(
        line._replace(textbook=_textbook_bubble(est)) if line.name == "pp.bubble" else line for line in opened
    )


_TEXTBOOK = ("gpipe", "1f1b", "interleaved")
"""Schedules whose bubble every textbook has as (p - 1) / (v m) of what a rank computes."""


def _textbook_bubble(est: PricedJob) -> str:
    """Return what textbooks have for the bubble of a schedule, empty where they have none."""
    layout = est.job.layout
    if schedule_at(layout.schedule).name not in _TEXTBOOK:
        return ""
    stages, chunks, count = float(layout.pp), float(layout.vp), float(est.priced.placed.micro_batches)
    of_work = (stages - 1.0) / (chunks * count)
    over = f"({chunks:.0f} * {count:.0f})" if chunks > 1 else f"{count:.0f}"
    return (
        f"the textbook's (pp - 1) / (vp * micro-batches) = ({stages:.0f} - 1) / {over} = {of_work:.1%} of what a rank "
        f"computes, {of_work / (1.0 + of_work):.1%} of a step of nothing else; stages of other lengths, messages and "
        "the rest of the step make the difference"
    )


def _opened(row: Mapping[str, Any], whole: float) -> ExplainedLine:
    """Open up a row of the bill, whose sum is `whole`."""
    is_time = row["bill"] == "time"
    total = float(row["exposed_seconds"] if is_time else row["bytes"])
    algorithm = NCCL_ALGORITHMS[int(row["algorithm"])] if is_time else ""
    terms = row["terms"]
    return ExplainedLine(
        name=row["name"],
        bill=row["bill"],
        axis=row["axis"],
        category=row["category"],
        phase=row["phase"] if is_time else "",
        tier="" if row["tier"] == NONE else str(row["tier"]),
        algorithm=algorithm if is_time and row["algorithm"] else "",
        protocol=PROTOCOLS[algorithm] if is_time else "",
        source=row["source"],
        times=float(row["count"]) if is_time else 1.0,
        each=float(row["each"]) if is_time else total,
        total=total,
        share=total / whole,
        formula=row["formula"],
        terms=tuple(
            ShownTerm(name, terms[name], unit_of(name)) for name in names_of(row["formula"]) if name in terms
        ),
        steps=_shown_steps(row["formula"], terms, "s" if is_time else "B"),
    )


def _shown_steps(formula: str, terms: Mapping[str, float], unit: str) -> tuple[ShownStep, ...]:
    """Evaluate a formula step by step, and put the numbers into each."""
    known = dict(terms)
    shown = []
    for name, expression, value in evaluate_steps(formula, terms):
        with_numbers = ast.unparse(_Numbers(known).visit(ast.parse(expression, mode="eval")))
        if name:
            known[name] = float(value)
        shown.append(ShownStep(name, expression, with_numbers, float(value), unit_of(name) if name else unit))
    return tuple(shown)


class _Numbers(ast.NodeTransformer):
    """Replace names by the texts of their numbers."""

    def __init__(self, known: Mapping[str, float]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Put the number of one name in."""
        if node.id not in self.known:
            return node
        text = number_text(self.known[node.id])
        return ast.Name(f"({text})" if text.startswith("-") else text, node.ctx)


def with_unit(value: float, unit: str) -> str:
    """Return a value for a table, with its unit."""
    return f"{number_text(value)} {unit}".rstrip()


def headline(line: ExplainedLine) -> str:
    """Say what a line is, how often it runs and what it comes to."""
    about = ", ".join(
        text
        for text in (
            CATEGORY_NAMES[line.category],
            line.phase,
            line.tier and f"on {line.tier}",
            line.algorithm and f"by {line.algorithm}",
            line.protocol and f"protocol {line.protocol}",
        )
        if text
    )
    if line.bill == "memory":
        return f"{line.name} ({about}): {format_bytes(line.total)}, {line.share:.2%} of the worst stage"
    cost = f"{line.times:,.6g} × {format_seconds(line.each, 4)} = {format_seconds(line.total, 4)}"
    return f"{line.name} ({about}): {cost}, {line.share:.2%} of the step"


def where_text(line: ExplainedLine) -> str:
    """Return the numbers that a formula starts from, with units."""
    numbers = ", ".join(f"{term.name} = {with_unit(term.value, term.unit)}" for term in line.terms)
    return f"where {numbers}\n" if numbers else ""
