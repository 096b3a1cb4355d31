"""Pipeline schedules in closed form: bubble, micro-batches held, copies of weights, messages.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

Every function broadcasts over arrays of schedule codes (`schedule_code`) and layouts. The forms
are tested against the step-by-step simulation of `schedule_engine`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.errors import LayoutError, choices_hint

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SCHEDULES = (
    "none", "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v", "dualpipe",
    "dualpipe-v", "v-half", "v-min",
)  # fmt: skip
_CODE = {name: code for code, name in enumerate(SCHEDULES)}
_V_SHAPED = ("zb-v", "dualpipe-v", "v-half", "v-min")


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
    if key not in _CODE:
        raise LayoutError(f"schedule: no schedule is called {name!r}; {choices_hint(key, SCHEDULES)}")
    return _CODE[key]


def _array(value: ArrayLike) -> Array:
    """Return `value` as a float64 array."""
    return np.asarray(value, dtype=np.float64)


def _is(schedule: ArrayLike, *names: str) -> BoolArray:
    """Return where `schedule` is one of `names`."""
    codes = np.asarray(schedule)
    mask = np.zeros(codes.shape, dtype=np.bool_)
    for name in names:
        mask = mask | (codes == _CODE[name])
    return mask


def _select(schedule: ArrayLike, values: dict[str, Array]) -> Array:
    """Return, element by element, the value of the schedule that its code names."""
    codes = np.asarray(schedule)
    conditions = [codes == _CODE[name] for name in values]
    arrays = np.broadcast_arrays(codes, *values.values())[1:]
    shape = arrays[0].shape
    return np.asarray(np.select([np.broadcast_to(c, shape) for c in conditions], arrays, 0.0))


def bubble_time_s(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    sum_forward_s: ArrayLike | None = None,
    sum_backward_s: ArrayLike | None = None,
) -> Array:
    """Time per step that the busiest rank is idle because of the pipeline. [s]"""
    p, m, v = _array(stages), _array(micro_batches), np.maximum(_array(virtual_stages), 1.0)
    f, b, w = _array(forward_s), _array(backward_input_s), _array(backward_weight_s)
    other_f = (p - 1.0) * f if sum_forward_s is None else _array(sum_forward_s) - f
    other_b = (p - 1.0) * (b + w) if sum_backward_s is None else _array(sum_backward_s) - (b + w)
    others = other_f + other_b
    hops = p - 1.0
    bubble = _select(
        schedule,
        {
            "naive": m * others,
            "gpipe": others,
            "1f1b": others,
            "interleaved": others / v,
            "zb-h1": others - 2.0 * hops * w,
            "zb-2p": others - 3.0 * hops * w,
            "zb-v": others / 2.0 - 1.5 * hops * w,
            "dualpipe": (p / 2.0 - 1.0) * (f + 2.0 * b - w),
            "dualpipe-v": (p - 1.0) * (f + 2.0 * b - w) / 2.0,
            "v-half": others / 2.0,
            "v-min": others * 2.0 / 3.0,
        },
    )
    return np.asarray(np.where(p > 1.0, np.maximum(bubble, 0.0), 0.0))


def in_flight(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    stage: ArrayLike = 0.0,
) -> Array:
    """Peak number of micro-batches whose activations a stage holds. [-]"""
    p, m, v = _array(stages), _array(micro_batches), np.maximum(_array(virtual_stages), 1.0)
    s = _array(stage)
    held = _select(
        schedule,
        {
            "none": np.ones(()),
            "naive": np.ones(()),
            "gpipe": m,
            "1f1b": p - s,
            "interleaved": (2.0 * (p - s - 1.0) + (v - 1.0) * p + 1.0) / v,
            "zb-h1": p,
            "zb-2p": 2.0 * p - 1.0,
            "zb-v": p,
            "dualpipe": p + 1.0,
            "dualpipe-v": p + 0.5,
            "v-half": np.floor(p / 2.0) + 1.0,
            "v-min": np.floor(p / 3.0) + 1.0,
        },
    )
    return np.asarray(np.where(p > 1.0, np.minimum(held, m), 1.0))


def weight_copies(schedule: ArrayLike) -> Array:
    """Copies of a stage's parameters, gradients and optimizer state on one rank. [-]"""
    return np.where(_is(schedule, "dualpipe"), 2.0, 1.0)


def p2p_messages(schedule: ArrayLike, *, stages: ArrayLike, virtual_stages: ArrayLike = 1.0) -> Array:
    """Messages that an interior stage sends per micro-batch, forward and backward together. [-]"""
    p, v = _array(stages), np.maximum(_array(virtual_stages), 1.0)
    chunks = np.where(_is(schedule, *_V_SHAPED), 2.0, np.where(_is(schedule, "interleaved"), v, 1.0))
    return np.asarray(np.where(p > 1.0, 2.0 * chunks, 0.0))


def valid(
    schedule: ArrayLike,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
) -> BoolArray:
    """Return where a schedule can run with so many stages, micro-batches and chunks."""
    p, m, v = _array(stages), _array(micro_batches), _array(virtual_stages)
    fits = np.where(_is(schedule, "none"), p == 1.0, p >= 1.0)
    fits = fits & np.where(_is(schedule, "interleaved"), (v >= 2.0) & (np.mod(m, p) == 0.0), True)
    fits = fits & np.where(_is(schedule, *_V_SHAPED), v == 2.0, True)
    fits = fits & np.where(_is(schedule, "interleaved", *_V_SHAPED), True, v == 1.0)
    even = (np.mod(p, 2.0) == 0.0) & (np.mod(m, 2.0) == 0.0)
    fits = fits & np.where(_is(schedule, "dualpipe"), even & (m >= 2.0 * p), True)
    fits = fits & np.where(_is(schedule, "dualpipe-v"), m >= 2.0 * p, True)
    return np.asarray(fits, dtype=np.bool_)
