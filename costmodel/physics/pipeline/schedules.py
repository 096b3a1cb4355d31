"""Pipeline schedules on arrays: what the closed forms of `schedule_table` give, by code and layout.

The functions broadcast over arrays of codes (`schedule_code`: the position in `SCHEDULES`) and layouts: stages p,
micro-batches per step m and chunks per rank v (virtual stages).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.base.numbers import distinct
from costmodel.bill.formula import evaluate, inputs_of, named_result, with_steps
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.schedule_table import LAYOUT, NAMES, SCHEDULES, STEPS, UNLIKE, Schedule
from costmodel.physics.pipeline.stages import Fold

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

PASSES = ("forward_s", "backward_input_s", "backward_weight_s")
_EQUALLY_FAST = {name: 0.0 for name in NAMES if name.endswith("_s")} | {"first": 0.0, "last": 0.0}


def schedule_code(name: str) -> int:
    """Return the integer code of a schedule's name.

    Examples
    --------
    >>> schedule_code("1f1b")
    3
    """
    key = name.strip().lower().replace("_", "-")
    if key not in SCHEDULES:
        raise LayoutError(f"schedule: no schedule is called {name!r}; {choices_hint(key, SCHEDULES)}")
    return list(SCHEDULES).index(key)


def schedule_at(code: ArrayLike) -> Schedule:
    """Return the record that one code stands for; a `LayoutError` if it stands for none."""
    number = int(np.asarray(code).item())
    if not 0 <= number < len(SCHEDULES):
        raise LayoutError(f"schedule: expected a code from 0 to {len(SCHEDULES) - 1}, got {number}")
    return list(SCHEDULES.values())[number]


def fact(name: str, schedule: ArrayLike) -> Array:
    """Return a fact of `Schedule` that is a number, or 1 where it holds, by code."""
    codes, records = np.asarray(schedule).astype(np.int64), list(SCHEDULES.values())
    facts = np.zeros(len(records))
    for code in np.flatnonzero(np.bincount(codes.ravel())).tolist():
        facts[code] = getattr(records[code], name)
    return np.asarray(facts[codes])


@lru_cache(maxsize=32)
def task_orders(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> orders.Orders:
    """Return what every rank does under `schedule`, without times; a `LayoutError` says what it needs to run."""
    record = schedule_at(schedule_code(schedule))
    broken = record.broken_rules(stages=stages, micro_batches=micro_batches, virtual_stages=virtual_stages)
    if broken:
        raise LayoutError(
            f"schedule: {record.name} needs {broken[0]}, got {stages} stages, "
            f"{micro_batches} micro-batches and vp = {virtual_stages}"
        )
    return record.order(stages, micro_batches, virtual_stages)


_RESULTS = {
    "bubble": ("idle_s", "where(stages > 1, max(idle_s, 0), 0)"),
    "slack": ("idle_s", "where(stages > 1, max(-idle_s, 0), 0)"),
    "messages": ("waited", "where(stages > 1, waited, 0)"),
    "late": ("late_s", "where(stages > 1, max(late_s, 0), 0)"),
    "held": ("held", "where(stages > 1, min(held, micro_batches), 1)"),
    "pair_held": ("more", "more"),
    "unpaired": ("alone", "min(alone / micro_batches, 1)"),
}


def closed_form(form: str, schedule: ArrayLike) -> str:
    """Return a closed form of the schedules that occur as one formula; with several, `schedule` is their code.

    ``slack``, the bubble's other sign, is what the busiest rank still has to do when all that it could wait for is there.
    """
    field = "bubble" if form == "slack" else form
    records = [schedule_at(code) for code in distinct(schedule)]
    texts = tuple((schedule_code(each.name), with_steps(STEPS, getattr(each, field))) for each in records)
    text = texts[0][1] if len(texts) == 1 else _either(texts)
    name, result = _RESULTS[form]
    return f"{named_result(text, name)}; {result}"


def bubble_time_s(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    **unlike: ArrayLike,
) -> Array:
    r"""Time per step that the busiest rank is idle because of the pipeline.

    The forms stand in the records (`Schedule.bubble`). With :math:`S` the sum of F + B + W over all
    other stages it is :math:`S` for 1F1B and, with even chunks, :math:`S / v` for the interleaved schedule.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        Pipeline ranks p, micro-batches per step m, chunks per rank v (only the interleaved schedule reads it). [-]
    forward_s, backward_input_s, backward_weight_s : array_like
        F, B and W: times of one micro-batch on the busiest stage, all its chunks together, with the messages that
        it stands still for. [s]
    **unlike : array_like
        How stages differ, by the names of ``schedule_terms.csv``, which says what they mean; by default they are alike,
        all activations wait for W, and ranks do not wait for each other at the optimizer.

    Returns
    -------
    bubble_s : ndarray
        Idle time of the busiest rank; the step takes m (F + B + W) plus this. [s]

    Notes
    -----
    Uneven stages: exact for gpipe, and for 1f1b and interleaved with chunks that are alike, where one rank is slower
    than the others. A slow rank with k behind it (`behind`) works on other micro-batches while those have the first
    one: k forward passes under 1f1b while the pipeline fills, k backward passes while it drains,

    .. math:: t_i = m (F_i + B_i) + \sum_{j<i} t_j + \max(T_k - k F_i, 0) + \max(T_k - k B_i, 0),
              \quad T_k = \sum_{j>i} (F_j + B_j).

    The interleaved schedule runs two chunks for each rank behind (Megatron-Core's number of warm-up micro-batches),
    and all of it over v; a single group of p micro-batches goes round its v - 1 first chunks at the pace of the
    slowest rank, forward and backward. Where a V puts both ends on the first rank that one never waits for the way
    there. Others: nearly always within 3 %; see docs/limits.md.

    Examples
    --------
    >>> float(bubble_time_s(schedule_code("zb-h1"), stages=4, micro_batches=16, forward_s=1.0,
    ...                     backward_input_s=1.0, backward_weight_s=1.0))
    3.0
    """
    if unknown := sorted(set(unlike) - set(UNLIKE)):
        raise TypeError(f"bubble_time_s: {unknown[0]!r} is none of {', '.join(UNLIKE)}")
    given = _layout_terms(schedule, stages, micro_batches, virtual_stages) | unlike
    given |= dict(zip(PASSES, (forward_s, backward_input_s, backward_weight_s), strict=True))
    terms = {name: as_array(value) for name, value in given.items()}
    formula = closed_form("bubble", schedule)
    found = evaluate(formula, _with_alike(formula, terms))
    return found if "behind" in unlike else np.maximum(found, evaluate(formula, {**terms, "behind": 0.0}))


def _with_alike(formula: str, terms: dict[str, Array]) -> dict[str, Array]:
    """Add what `formula` needs of stages that are alike to the terms."""
    for name in inputs_of(formula):
        if name not in terms:
            terms[name] = evaluate(UNLIKE[name], _with_alike(UNLIKE[name], terms))
    return terms


def in_flight(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    stage: ArrayLike = 0.0,
    paired: ArrayLike = 0.0,
    layers: ArrayLike = np.inf,
    largest_chunk: ArrayLike | None = None,
    smallest_chunk: ArrayLike | None = None,
) -> Array:
    """Peak number of micro-batches whose activations rank `stage` holds, in units of its whole stage; fractions are chunks.

    `paired` is 1 where passes of two micro-batches run together, to hide what experts exchange, of a model of `layers`;
    `largest_chunk` and `smallest_chunk` are shares of a rank's layers, by default 1 / v. [-]
    An activation counts in full from the start of F to the end of the backward, also where W is put off; input that a stage
    has received ahead of its turn does not.
    """
    even = 1.0 / as_array(virtual_stages)
    terms = {
        **_layout_terms(schedule, stages, micro_batches, virtual_stages),
        "stage": stage,
        "largest_chunk": even if largest_chunk is None else largest_chunk,
        "smallest_chunk": even if smallest_chunk is None else smallest_chunk,
    }
    held = evaluate(closed_form("held", schedule), terms)
    if not np.any(paired):
        return held
    more = evaluate(closed_form("pair_held", schedule), {**terms, "layers": layers})
    return np.asarray(np.minimum(held + as_array(paired) * more, np.maximum(micro_batches, 1.0)))


def unpaired_share(
    schedule: ArrayLike, *, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1.0
) -> Array:
    """Return the share of passes on the critical path that run with no pass of another micro-batch beside them. [-]

    While the pipeline fills, stages run forwards only, and while it drains backwards only: one such pass a hop.
    """
    layout = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    return evaluate(closed_form("unpaired", schedule), layout)


def exposed_p2p_messages(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    **times: ArrayLike,
) -> Array:
    """Messages per step whose time the critical path pays where ranks compute while they send. [-]

    Megatron's ``overlap_p2p_comm``, which it has for the interleaved schedule only, and the zero-bubble runtimes
    do. Read off the simulation: most hide behind the waits that the schedule has anyway. 1F1B's form is also what the
    zero-bubble paper's own simulation (arXiv:2401.10241, Table 5) charges.

    `times` go by the names of `bubble_time_s`, with `message_s`; without them all ranks are equally fast. [s]
    """
    terms = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    return evaluate(closed_form("messages", schedule), {**_EQUALLY_FAST, **times, **terms})


_LEAST_S = 1e-12  # Shorter messages are none. [s]


def waited_messages(waiting: Mapping[str, ArrayLike], message_s: ArrayLike) -> Array:
    """Return the messages whose time a rank pays: of those of its schedule it hides some by what it takes longer than others.

    `waiting` are `schedule` and what `bubble_time_s` takes, by name; `message_s` is what one message between
    neighbours takes. [-, a step]
    """
    schedule = waiting["schedule"]
    layout = {name: waiting[name] for name in LAYOUT}
    times = {name: value for name, value in waiting.items() if name not in ("schedule", *layout)}
    message_s = as_array(message_s)
    exposed = exposed_p2p_messages(schedule, **layout, **times, message_s=message_s)
    equal = exposed_p2p_messages(schedule, **layout)
    own_s = sum(as_array(waiting[name]) for name in PASSES)
    longer_s = own_s - as_array(waiting["mean_forward_s"]) - as_array(waiting["mean_backward_s"])
    longer_s = np.maximum(as_array(layout["micro_batches"]) * longer_s - (equal - exposed) * message_s, 0.0)
    slack_s = np.minimum(evaluate(closed_form("slack", schedule), waiting), longer_s)
    hidden = np.where(slack_s > 0.0, slack_s / np.maximum(message_s, _LEAST_S), 0.0)
    return np.asarray(np.maximum(exposed - hidden, 0.0))


class Sent(NamedTuple):
    """Messages of one micro-batch after its forward and after its backward passes. [-]"""

    forward: Array
    backward: Array


def sent_by_rank(
    schedule: ArrayLike, *, virtual_stages: ArrayLike, first: ArrayLike, last: ArrayLike
) -> Sent:
    """Return what a rank, 1 where it is the `first` or the `last` of several, sends to others of each micro-batch. [-]

    A message a chunk, but for the last chunk forward and the first backward. A V turns on its last rank
    and ends on its first; of micro-batches that go both ways half end on either.
    """
    fold, first, last = fact("fold", schedule), as_array(first), as_array(last)
    ends = np.where(fold == Fold.BIDIRECTIONAL, 0.5, 1.0) * (first + last)
    chunks = as_array(virtual_stages)
    return Sent(*(np.asarray(chunks - np.where(fold == Fold.LINEAR, own, ends)) for own in (last, first)))


def valid(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1.0
) -> BoolArray:
    """Return where a schedule can run with so many stages, micro-batches and chunks per rank."""
    terms = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    codes = np.asarray(schedule)
    fits = np.ones(np.broadcast_shapes(*(np.shape(term) for term in terms.values())), dtype=np.bool_)
    for code in distinct(schedule):
        for holds in schedule_at(code).needs.values():
            fits &= (codes != code) | (evaluate(holds, terms) > 0)
    return fits


def as_array(value: ArrayLike) -> Array:
    """Return `value` as a float64 array."""
    return np.asarray(value, dtype=np.float64)


def _layout_terms(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike
) -> dict[str, ArrayLike]:
    """Return the numbers of a layout by the names that formulas use."""
    return {"schedule": schedule, **dict(zip(LAYOUT, (stages, micro_batches, virtual_stages), strict=True))}


@lru_cache(maxsize=1024)
def _either(forms: tuple[tuple[int, str], ...]) -> str:
    """Join formulas into one that takes, by the number `schedule`, the result of one of them.

    Steps that are the same in several are computed once; others of the same name are numbered.

    >>> _either(((0, "a = 2 * x; a + 1"), (1, "a = 2 * x; a"), (2, "a = x; a")))
    'a = 2 * x; a_2 = x; where(schedule == 0, a + 1, where(schedule == 1, a, a_2))'
    """
    steps: dict[str, str] = {}
    results: list[tuple[int, str]] = []
    for code, text in forms:
        renamed: dict[str, str] = {}
        for statement in ast.parse(text).body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    node.id = renamed.get(node.id, node.id)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name, value = statement.targets[0].id, ast.unparse(statement.value)
                key = name if steps.get(name, value) == value else f"{name}_{code}"
                steps[key], renamed[name] = value, key
            else:
                results.append((code, ast.unparse(statement)))
    chosen = results[-1][1]
    for code, result in reversed(results[:-1]):
        chosen = f"where(schedule == {code}, {result}, {chosen})"
    return "; ".join([*(f"{name} = {value}" for name, value in steps.items()), chosen])
