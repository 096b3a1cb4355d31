"""Pipeline schedules on arrays: what the closed forms of `schedule_table` give, by code and layout.

The functions broadcast over arrays of codes (`schedule_code`: the position in `SCHEDULES`) and layouts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.distinct import distinct
from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import evaluate, inputs_of, named_result
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.schedule_record import MESSAGE_TERMS, RINGS, UNLIKE, Schedule
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.stages import Fold

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


_EQUALLY_FAST: dict[str, ArrayLike] = dict.fromkeys(MESSAGE_TERMS, 0.0)


def schedule_code(name: str) -> int:
    """Return the integer code of a schedule's name.

    Raises
    ------
    LayoutError
        If there is no schedule of this name; the message lists the nearest ones.

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
    """Return the record that one code stands for.

    Raises
    ------
    LayoutError
        If it stands for none.

    >>> schedule_at(3.0).name
    '1f1b'
    """
    number = int(np.asarray(code).item())
    if not 0 <= number < len(SCHEDULES):
        raise LayoutError(f"schedule: expected a code from 0 to {len(SCHEDULES) - 1}, got {number}")
    return list(SCHEDULES.values())[number]


@lru_cache(maxsize=8)
def task_orders(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> orders.Orders:
    """Return what every rank does under `schedule`, without times: what `engine.simulate` runs.

    Raises
    ------
    LayoutError
        If there is no such schedule, or it cannot run with these numbers.
    """
    record = schedule_at(schedule_code(schedule))
    broken = record.broken_rules(stages=stages, micro_batches=micro_batches, virtual_stages=virtual_stages)
    if broken:
        raise LayoutError(
            f"schedule: {record.name} needs {broken[0].text}, got {stages} stages, "
            f"{micro_batches} micro-batches and vp = {virtual_stages}"
        )
    return record.order(stages, micro_batches, virtual_stages)


def _occurring(schedule: ArrayLike) -> tuple[Schedule, ...]:
    """Return the schedules whose codes occur, in the order of the registry."""
    return tuple(schedule_at(code) for code in distinct(schedule))


def bubble_formula(schedule: ArrayLike) -> str:
    """Return the bubble of the schedules that occur as one formula; see `bubble_time_s` for its names.

    With several, `schedule` is their code.
    """
    form = _one_formula(schedule, "bubble")
    return f"{named_result(form, 'idle_s')}; where(stages > 1, max(idle_s, 0), 0)"


def slack_formula(schedule: ArrayLike) -> str:
    """Return what the busiest rank still has to do when all that it could wait for is there, as one formula.

    Messages hide behind it. The names are those of `bubble_formula`; the bubble is its other sign.
    """
    form = _one_formula(schedule, "bubble")
    return f"{named_result(form, 'idle_s')}; where(stages > 1, max(-idle_s, 0), 0)"


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
        How stages differ, by the names of `schedule_record.UNLIKE`; by default they are alike, all activations wait
        for W, and ranks do not wait for each other at the optimizer.

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

    Raises
    ------
    TypeError
        If a name of `unlike` is none.

    Examples
    --------
    >>> float(bubble_time_s(schedule_code("zb-h1"), stages=4, micro_batches=16, forward_s=1.0,
    ...                     backward_input_s=1.0, backward_weight_s=1.0))
    3.0
    """
    if unknown := sorted(set(unlike) - set(UNLIKE)):
        raise TypeError(f"bubble_time_s: {unknown[0]!r} is none of {', '.join(UNLIKE)}")
    terms = {
        **_layout_terms(schedule, stages, micro_batches, virtual_stages),
        "forward_s": forward_s,
        "backward_input_s": backward_input_s,
        "backward_weight_s": backward_weight_s,
        **unlike,
    }
    p, forward, weight = as_array(stages), as_array(forward_s), as_array(backward_weight_s)
    inputs = as_array(backward_input_s)

    def known(name: str) -> Array:
        return as_array(terms[name])

    # What stages that are alike have, computed only where nothing else is given: a search gives nearly all of it.
    alike: dict[str, Callable[[], ArrayLike]] = {
        "sum_forward_s": lambda: p * forward,
        "sum_backward_s": lambda: p * (inputs + weight),
        "sum_backward_weight_s": lambda: p * weight,
        "plain_forward_s": lambda: forward,
        "plain_backward_s": lambda: inputs + weight,
        "plain_backward_weight_s": lambda: weight,
        "mean_forward_s": lambda: forward,
        "mean_backward_s": lambda: inputs + weight,
        "mean_backward_weight_s": lambda: weight,
        "most_forward_s": lambda: forward,
        "most_backward_s": lambda: inputs + weight,
        "last_by_chunk_s": lambda: 0.0,
        "first_chunk_s": lambda: (
            (known("sum_forward_s") + known("sum_backward_s") - forward - inputs - weight)
            / (np.maximum(p - 1.0, 1.0) * as_array(virtual_stages))
        ),
        "first": lambda: 0.0,
        "last": lambda: 0.0,
        "largest_chunk": lambda: 1.0 / as_array(virtual_stages),
        "smallest_chunk": lambda: 1.0 / as_array(virtual_stages),
        "pending_weight_fraction": lambda: 1.0,
        "synchronized": lambda: 0.0,
    }
    formula = bubble_formula(schedule)
    if set(RINGS) & set(inputs_of(formula)):

        def input_s(which: str) -> Array:
            return np.asarray(known(f"{which}_backward_s") - known(f"{which}_backward_weight_s"))

        alike |= {
            "pair_forward_s": lambda: known("plain_forward_s") + known("mean_forward_s"),
            "pair_input_s": lambda: input_s("plain") + input_s("mean"),
            "pair_weight_s": lambda: 2.0 * known("plain_backward_weight_s"),
            "three_forward_s": lambda: known("plain_forward_s") + 2.0 * known("mean_forward_s"),
            "three_input_s": lambda: input_s("plain") + 2.0 * input_s("mean"),
            # The busiest, if it is the first, takes there what it takes beyond half a mean rank; others half a mean rank.
            "vee_turn_s": lambda: (
                known("first") * (forward + inputs + 0.5 * (known("mean_forward_s") + input_s("mean")))
            ),
        }
    for name, value in alike.items():
        if name not in terms:
            terms[name] = value()
    terms |= {name: as_array(terms[name]) for name in ("synchronized", "first", "last")}
    if "behind" in unlike:
        return evaluate(formula, terms)
    # As many behind it as make it wait longest, none or all.
    return np.maximum(
        evaluate(formula, {**terms, "behind": 0.0}), evaluate(formula, {**terms, "behind": p - 1.0})
    )


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
    """Peak number of micro-batches whose activations a rank holds, in units of its whole stage.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    stage : array_like
        Which rank, counted from 0. [-]
    paired : array_like
        1 where passes of two micro-batches run together, to hide what experts exchange. [-]
    layers : array_like
        Layers of the model. [-]
    largest_chunk, smallest_chunk : array_like, optional
        Shares of a rank's layers in its largest and its smallest chunk; by default 1 / v. [-]

    Returns
    -------
    held : ndarray
        Micro-batches; fractions are chunks. [-]

    Notes
    -----
    An activation counts in full from the start of F to the end of the backward; between B and W
    the share that W does not need is free again, so that where W is put off these are upper
    bounds, reached by the stages on which nothing is put off. The input that a stage has received
    ahead of its turn is not counted.

    Examples
    --------
    >>> float(in_flight(schedule_code("interleaved"), stages=8, micro_batches=32, virtual_stages=2))
    11.5
    """
    form = f"{named_result(_one_formula(schedule, 'held'), 'held')}; alone = where(stages > 1, min(held, micro_batches), 1)"
    even = 1.0 / as_array(virtual_stages)
    terms = {
        **_layout_terms(schedule, stages, micro_batches, virtual_stages),
        "stage": stage,
        "largest_chunk": even if largest_chunk is None else largest_chunk,
        "smallest_chunk": even if smallest_chunk is None else smallest_chunk,
    }
    if not np.any(paired):
        return evaluate(f"{form}; alone", terms)
    pair = named_result(_one_formula(schedule, "pair_held"), "pair_held")
    formula = f"{form}; {pair}; min(alone + paired * pair_held, max(micro_batches, 1))"
    return evaluate(formula, {**terms, "paired": paired, "layers": layers})


def unpaired_share(
    schedule: ArrayLike, *, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1.0
) -> Array:
    """Return the share of passes on the critical path that run with no pass of another micro-batch beside them.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]

    Returns
    -------
    share : ndarray
        1 with one micro-batch, and under every schedule that never pairs passes. [-]

    Notes
    -----
    While the pipeline fills, stages run forwards only, and while it drains backwards only; the critical
    path goes through one such pass a hop.

    >>> float(unpaired_share(schedule_code("dualpipe"), stages=16, micro_batches=120))
    0.06666666666666667
    """
    formula = f"{named_result(_one_formula(schedule, 'unpaired'), 'alone')}; min(alone / micro_batches, 1)"
    return evaluate(formula, _layout_terms(schedule, stages, micro_batches, virtual_stages))


def messages_formula(schedule: ArrayLike) -> str:
    """Return the messages per step whose time the critical path pays where ranks compute while they send.

    Its names are those of `bubble_time_s` and `message_s`; with several schedules also `schedule`, their code.
    """
    return f"{named_result(_one_formula(schedule, 'messages'), 'beside')}; where(stages > 1, beside, 0)"


def exposed_p2p_messages(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    **times: ArrayLike,
) -> Array:
    """Messages per step whose time the critical path pays where ranks compute while they send.

    Megatron's ``overlap_p2p_comm``, which it has for the interleaved schedule only, and the zero-bubble runtimes
    do. The simulation was run with a delay per message, and the number of delays by which the step grew was read
    off: most hide behind the waits that the schedule has anyway.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    **times : array_like
        By the names of `bubble_time_s`, and `message_s`; without them all ranks are equally fast. [s]

    Returns
    -------
    messages : ndarray
        To be multiplied with the time of one message between neighbours; 0 with one stage. [-]

    Notes
    -----
    That 1F1B's form is also what the zero-bubble paper's own simulation (arXiv:2401.10241, Table 5)
    charges follows from its printed bubble rates. Ranks that stand still while they send pay for each of
    `sent_by_rank` as for a part of the pass before it.
    """
    formula = messages_formula(schedule)
    terms = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    return evaluate(formula, {**_EQUALLY_FAST, **times, **terms})


_LEAST_S = 1e-12
"""Shorter messages are none. [s]"""


def waited_messages(waiting: Mapping[str, ArrayLike], message_s: ArrayLike) -> Array:
    """Return the messages whose time a rank pays: of those of its schedule it hides some by what it takes longer than others.

    Parameters
    ----------
    waiting : mapping
        `schedule` and all that its bubble is told, by the names of `bubble_time_s`.
    message_s : array_like
        Time of one message between neighbours. [s]

    Returns
    -------
    messages : ndarray
        A step. [-]
    """
    schedule = waiting["schedule"]
    layout = {name: waiting[name] for name in ("stages", "micro_batches", "virtual_stages")}
    times = {name: value for name, value in waiting.items() if name not in ("schedule", *layout)}
    message_s = as_array(message_s)
    exposed = exposed_p2p_messages(schedule, **layout, **times, message_s=message_s)
    equal = exposed_p2p_messages(schedule, **layout)
    own_s = sum(as_array(waiting[f"{name}_s"]) for name in ("forward", "backward_input", "backward_weight"))
    longer_s = own_s - as_array(waiting["mean_forward_s"]) - as_array(waiting["mean_backward_s"])
    longer_s = np.maximum(as_array(layout["micro_batches"]) * longer_s - (equal - exposed) * message_s, 0.0)
    slack_s = np.minimum(evaluate(slack_formula(schedule), waiting), longer_s)
    hidden = np.where(slack_s > 0.0, slack_s / np.maximum(message_s, _LEAST_S), 0.0)
    return np.asarray(np.maximum(exposed - hidden, 0.0))


def late_formula(schedule: ArrayLike) -> str:
    """Return the wait for messages beyond `messages_formula` of them, as one formula; with one stage none."""
    return f"{named_result(_one_formula(schedule, 'late'), 'late_s')}; where(stages > 1, max(late_s, 0), 0)"


def p2p_messages(schedule: ArrayLike, *, stages: ArrayLike, virtual_stages: ArrayLike = 1.0) -> Array:
    """Messages that an inner stage sends per micro-batch, forward and backward together.

    Two per chunk; the turn of a V-shaped schedule stays on its rank, so that its end ranks send
    one less in each direction.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, virtual_stages : array_like
        p and v. [-]

    Returns
    -------
    messages : ndarray
        0 with one stage. [-]
    """
    chunks = chunks_passed(schedule, virtual_stages)
    return evaluate("where(stages > 1, 2 * chunks, 0)", {"stages": stages, "chunks": chunks})


class Sent(NamedTuple):
    """Messages of one micro-batch after its forward and after its backward passes. [-]"""

    forward: Array
    backward: Array


def sent_by_rank(
    schedule: ArrayLike, *, virtual_stages: ArrayLike, first: ArrayLike, last: ArrayLike
) -> Sent:
    """Return what a rank sends to others of each micro-batch, forward and backward.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    virtual_stages : array_like
        v. [-]
    first, last : array_like
        1 where it is the first, or the last, of several ranks. [-]

    Returns
    -------
    sent : Sent
        A message a chunk, but for the last chunk forward and the first backward. A V turns on its last rank
        and ends on its first; of micro-batches that go both ways half end on either.

    Examples
    --------
    >>> sent_by_rank(schedule_code("1f1b"), virtual_stages=1, first=0.0, last=1.0).forward.item()
    0.0
    """
    chunks, folded = chunks_passed(schedule, virtual_stages), fold(schedule)
    ends = np.where(folded == Fold.BOTH_WAYS, 0.5, 1.0) * (as_array(first) + as_array(last))
    return Sent(
        *(chunks - np.where(folded == Fold.OWN, as_array(own), ends) for own in (last, first)),
    )


def weight_copies(schedule: ArrayLike) -> Array:
    """Return how many copies of a stage's parameters one rank holds [-]."""
    return np.asarray([record.weight_copies for record in SCHEDULES.values()])[_codes(schedule)]


def splits_backward(schedule: ArrayLike) -> BoolArray:
    """Return where the passes towards inputs and towards weights run apart."""
    return np.asarray([record.splits_backward for record in SCHEDULES.values()])[_codes(schedule)]


def differs_by_rank(schedule: ArrayLike) -> BoolArray:
    """Return where ranks that are equally busy wait for unlike times: the slowest is found with its bubble."""
    differs = [
        record.splits_backward or "behind" in inputs_of(record.bubble) for record in SCHEDULES.values()
    ]
    return np.asarray(differs)[_codes(schedule)]


def has_rings(schedule: ArrayLike) -> BoolArray:
    """Return where neighbours that wait for each other in a circle may set the pace."""
    return np.asarray([record.has_rings for record in SCHEDULES.values()])[_codes(schedule)]


def goes_by_chunks(schedule: ArrayLike) -> BoolArray:
    """Return where chunks that meet each other may set the pace."""
    found = ["last_by_chunk_s" in inputs_of(record.bubble) for record in SCHEDULES.values()]
    return np.asarray(found)[_codes(schedule)]


def fold(schedule: ArrayLike) -> Array:
    """Return which stages share a rank, as `physics.stages.Fold` numbers them [-]."""
    return np.asarray([float(record.fold) for record in SCHEDULES.values()])[_codes(schedule)]


def chunks_passed(schedule: ArrayLike, virtual_stages: ArrayLike) -> Array:
    """Return how many chunks of a rank a micro-batch passes [-]."""
    formula = _one_formula(schedule, "chunks")
    found = evaluate(formula, {"schedule": schedule, "virtual_stages": virtual_stages})
    return found + np.zeros(np.shape(schedule))


def valid(
    schedule: ArrayLike,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
) -> BoolArray:
    """Return where a schedule can run with so many stages, micro-batches and chunks per rank.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]

    Returns
    -------
    fits : ndarray of bool
    """
    terms = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    codes = np.asarray(schedule)
    fits = np.ones(np.broadcast_shapes(*(np.shape(term) for term in terms.values())), dtype=np.bool_)
    for record in _occurring(schedule):
        here = codes == schedule_code(record.name)
        for rule in record.needs:
            fits &= ~here | (evaluate(rule.holds, terms) > 0)
    return fits


def as_array(value: ArrayLike) -> Array:
    """Return `value` as a float64 array."""
    return np.asarray(value, dtype=np.float64)


def _codes(schedule: ArrayLike) -> NDArray[np.int64]:
    """Return codes as indices."""
    return np.asarray(schedule).astype(np.int64)


def _layout_terms(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike
) -> dict[str, ArrayLike]:
    """Return the numbers of a layout by the names that formulas use."""
    return {
        "schedule": schedule,
        "stages": stages,
        "micro_batches": micro_batches,
        "virtual_stages": virtual_stages,
    }


def _one_formula(schedule: ArrayLike, form: str) -> str:
    """Return a closed form of the schedules that occur as one formula."""
    found = _occurring(schedule)
    texts = tuple((schedule_code(record.name), getattr(record, form)) for record in found)
    return texts[0][1] if len(texts) == 1 else _either(texts)


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
