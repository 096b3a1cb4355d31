"""Pipeline schedules in closed form: bubble, micro-batches held, copies of weights.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

Every function broadcasts over arrays of schedule codes (`schedule_code`) and layouts. The forms
are tested against the step-by-step simulation of `schedule_engine`.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SCHEDULES = (
    "none",
    "naive",
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-2p",
    "zb-v",
    "dualpipe",
    "dualpipe-v",
    "v-half",
    "v-min",
)
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


def as_array(value: ArrayLike) -> Array:
    """Return `value` as a float64 array."""
    return np.asarray(value, dtype=np.float64)


def is_schedule(schedule: ArrayLike, *names: str) -> BoolArray:
    """Return where `schedule` is one of `names`."""
    codes = np.asarray(schedule)
    mask = np.zeros(codes.shape, dtype=np.bool_)
    for name in names:
        mask = mask | (codes == _CODE[name])
    return mask


def select_schedule(schedule: ArrayLike, forms: Mapping[str, Callable[[], Array]]) -> Array:
    """Return, element by element, the form of the schedule that its code names; 0 without a form.

    Only the forms of schedules that occur are computed: a search over one or two of them does not
    pay for all.
    """
    codes = np.asarray(schedule)
    occurring = [name for name in forms if np.any(codes == _CODE[name])]
    if codes.ndim == 0:
        return forms[occurring[0]]() if occurring else np.zeros(())
    result = np.zeros(())
    for name in occurring:
        result = np.where(codes == _CODE[name], forms[name](), result)
    return np.asarray(result)


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
    pending_weight_fraction: ArrayLike = 1.0,
    synchronized: ArrayLike = False,
) -> Array:
    r"""Time per step that the busiest rank is idle because of the pipeline, messages not counted.

    With :math:`S = \sum_{other\ stages} (F + B + W)`, which is :math:`(p - 1)(F + B + W)` for equal
    stages, and :math:`S_{FB}` the same without W:

    ============  ==================================================================  =========
    schedule      bubble                                                              source
    ============  ==================================================================  =========
    naive         :math:`m S`                                                         [1]_
    gpipe         sum of others' F + sum of others' (B + W)                           [1]_
    1f1b          :math:`S`                                                           [2]_
    interleaved   :math:`S / v`                                                       [2]_
    zb-h1         :math:`S_{FB} - \min(p - 1, m - 1) W`                               [3]_
    zb-2p         :math:`S_{FB} - \min(2 (p - 1) / \kappa, m - 1) W`                  [3]_, fit
    zb-v          :math:`(p - 1) \max(F \vee B - W, (W - F \wedge B) / 2)`            fit
    dualpipe      :math:`\max(h (2 F + (B - W)^+), h (F + 2 B - W) - F)`, h = p/2 - 1  fit, [4]_
    dualpipe-v    the same with h = p - 1 and half the times                          fit
    v-half        :math:`(p - 1)(F + 3 B - W) / 2 - F / 2 + m (F - B)^+`               fit, [5]_
    v-min         :math:`(p - 1)(F + B) - F/2 + m (2 (F \vee B) - F \wedge B - W)^+`  fit, [5]_
    ============  ==================================================================  =========

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages : array_like
        Pipeline ranks, p. With one there is no bubble. [-]
    micro_batches : array_like
        Micro-batches per step, m. [-]
    virtual_stages : array_like
        Chunks per rank, v; only the interleaved schedule reads it. [-]
    forward_s, backward_input_s, backward_weight_s : array_like
        F, B and W: times of one micro-batch on the busiest stage, all its chunks together. [s]
    sum_forward_s, sum_backward_s : array_like, optional
        F, and B + W, summed over all stages; by default p times that of the busiest. [s]
    pending_weight_fraction : array_like
        Share of a micro-batch's activations that W still needs when B is done, kappa: 32/34 with
        flash attention, 32 / (34 + 5 a s / h) where the scores are kept [3]_. [-]
    synchronized : array_like of bool
        Whether all ranks wait for each other at the optimizer (a gradient norm, a check for
        overflow). ZB-2p and ZB-V reach their bubble only where they do not. [-]

    Returns
    -------
    bubble_s : ndarray
        Idle time of the busiest rank; the step takes m (F + B + W) plus this. [s]

    Notes
    -----
    Exact against the simulation for naive, gpipe, 1f1b, interleaved, zb-h1 and zb-2p with equal
    stages; the forms marked "fit" were read off it and hold within 2.5 % of the step (v-min 10 %)
    for p >= 4, W <= F and F <= B <= 1.25 F. "zb-h1" and "zb-2p" are the schedules searched for
    the memory of one and two times 1F1B (ZB-1p, ZB-2p); with kappa = 1 they are the handcrafted
    ZB-H1 and ZB-H2.
    Uneven stages: exact for gpipe where one stage is slowest in both passes, and for 1f1b and
    interleaved where it is the last one (the head and the loss). A slow stage k ranks before the
    end works off part of its wait, so that 1f1b is overestimated by k times its excess, at most 3 %
    of the step with 30 % of excess (`one_f_one_b_time_s` is exact). Others: within 5 %.
    DualPipe's pairs of a forward and a backward are taken to last the sum of the two; overlap
    inside a pair belongs into F, B and W.

    References
    ----------
    .. [1] Y. Huang et al., "GPipe," NeurIPS 2019, arXiv:1811.06965, section 2.3.
    .. [2] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters
       using Megatron-LM," SC21, arXiv:2104.04473, section 2.2.
    .. [3] P. Qi et al., "Zero bubble pipeline parallelism," ICLR 2024, arXiv:2401.10241, Tables 1,
       2, 5 and appendix H.
    .. [4] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, Table 2.
    .. [5] P. Qi et al., "Pipeline parallelism with controllable memory," arXiv:2405.15362.

    Examples
    --------
    >>> float(bubble_time_s(schedule_code("zb-h1"), stages=4, micro_batches=16, forward_s=1.0,
    ...                     backward_input_s=1.0, backward_weight_s=1.0))
    3.0
    """
    p, m, v = as_array(stages), as_array(micro_batches), np.maximum(as_array(virtual_stages), 1.0)
    f, b, w = as_array(forward_s), as_array(backward_input_s), as_array(backward_weight_s)
    hops = p - 1.0
    other_f = hops * f if sum_forward_s is None else as_array(sum_forward_s) - f
    other_b = hops * (b + w) if sum_backward_s is None else as_array(sum_backward_s) - (b + w)
    others = other_f + other_b
    others_fb = others - hops * w
    # What stages of unequal length add to the schedules whose form is written for equal ones.
    uneven = others - hops * (f + b + w)
    high, low = np.maximum(f, b), np.minimum(f, b)
    fill_2p = np.minimum(2.0 * hops / as_array(pending_weight_fraction), m - 1.0)
    zb_2p = np.maximum(others_fb - fill_2p * w, 0.0)
    zb_v = np.maximum(hops * np.maximum(high - w, 0.5 * (w - low)), 0.0)
    apart = np.asarray(synchronized, dtype=np.bool_)
    bubble = select_schedule(
        schedule,
        {
            "naive": lambda: m * others,
            "gpipe": lambda: others,
            "1f1b": lambda: others,
            "interleaved": lambda: others / v,
            "zb-h1": lambda: others_fb - np.minimum(hops, m - 1.0) * w,
            "zb-2p": lambda: np.where(apart, np.maximum(zb_2p, other_f), zb_2p),
            "zb-v": lambda: np.where(apart, np.maximum(zb_v, 0.5 * hops * np.maximum(high, w)), zb_v),
            "dualpipe": lambda: _dualpipe_bubble(0.5 * p - 1.0, f, b, w) + uneven,
            "dualpipe-v": lambda: _dualpipe_bubble(hops, 0.5 * f, 0.5 * b, 0.5 * w) + uneven,
            "v-half": lambda: 0.5 * hops * (f + 3.0 * b - w) - 0.5 * f + m * np.maximum(f - b, 0.0) + uneven,
            "v-min": lambda: hops * (f + b) - 0.5 * f + m * np.maximum(2.0 * high - low - w, 0.0) + uneven,
        },
    )
    return np.asarray(np.where(p > 1.0, np.maximum(bubble, 0.0), 0.0))


def one_f_one_b_time_s(stage_times_s: ArrayLike, micro_batches: ArrayLike) -> Array:
    r"""Time of one 1F1B step over stages of any lengths, messages not counted.

    A stage i that limits the step is busy m times, waits for the stages before it once, and for
    those after it twice (the first and the last backward), less what it does meanwhile:

    .. math:: t = \max_i \left[ m t_i + \sum_{j<i} t_j + \sum_{j>i} (2 t_j - t_i) \right]

    Parameters
    ----------
    stage_times_s : array_like
        F + B + W of one micro-batch, by stage in the last dimension. [s]
    micro_batches : array_like
        m, at least the number of stages; without the stage dimension. [-]

    Returns
    -------
    step_s : ndarray
        Without the stage dimension. [s]

    Notes
    -----
    Read off the simulation; exact where stages differ by no more than about 30 % and forward and
    backward differ in proportion. A stage can start no earlier than its input allows, so that
    terms in which :math:`2 t_j < t_i` on average are too small, never too large.

    Examples
    --------
    >>> float(one_f_one_b_time_s([3.0, 3.0, 3.0, 3.0], 8))
    33.0
    """
    times = as_array(stage_times_s)
    before = np.cumsum(times, axis=-1) - times
    after = np.sum(times, axis=-1, keepdims=True) - before - times
    left = np.arange(times.shape[-1] - 1, -1, -1, dtype=np.float64)
    limits = (as_array(micro_batches)[..., None] - left) * times + before + 2.0 * after
    return np.asarray(limits.max(axis=-1))


def _dualpipe_bubble(depth: Array, f: Array, b: Array, w: Array) -> Array:
    """Return the bubble of DualPipe's order, `depth` ranks from the turn, for chunk times f, b, w."""
    return np.asarray(np.maximum(depth * (2.0 * f + np.maximum(b - w, 0.0)), depth * (f + 2.0 * b - w) - f))


def in_flight(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    stage: ArrayLike = 0.0,
) -> Array:
    r"""Peak number of micro-batches whose activations a rank holds, in units of its whole stage.

    ============  ===================================================================
    schedule      micro-batches held by stage s = 0 .. p - 1, at most m
    ============  ===================================================================
    gpipe         m
    1f1b          p - s [1]_
    interleaved   (2 (p - s - 1) + (v - 1) p + 1) / v [1]_
    zb-h1         p on every stage, forward or waiting for W [2]_
    zb-2p         2 p - 1 on every stage [2]_
    zb-v          p on every stage [2]_
    dualpipe      p + 1 on every stage [3]_
    dualpipe-v    p + 1/2 on every stage: 2 p + 1 chunks [3]_
    v-half        floor((p + 2) / 2) on every stage [4]_
    v-min         floor((p + 4) / 3) on every stage [4]_
    ============  ===================================================================

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    stage : array_like
        Which rank, counted from 0. [-]

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

    References
    ----------
    .. [1] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2; megatron-core,
       pipeline_parallel/schedules.py (number of warm-up micro-batches).
    .. [2] P. Qi et al., ICLR 2024, arXiv:2401.10241, Table 2 and section 6.
    .. [3] DeepSeek-AI, arXiv:2412.19437, Table 2; deepseek-ai/DualPipe, README.
    .. [4] P. Qi et al., arXiv:2405.15362; its Hugging Face space, description1.md.

    Examples
    --------
    >>> float(in_flight(schedule_code("interleaved"), stages=8, micro_batches=32, virtual_stages=2))
    11.5
    """
    p, m, v = as_array(stages), as_array(micro_batches), np.maximum(as_array(virtual_stages), 1.0)
    s = as_array(stage)
    held = select_schedule(
        schedule,
        {
            "none": lambda: np.ones(()),
            "naive": lambda: np.ones(()),
            "gpipe": lambda: m,
            "1f1b": lambda: p - s,
            "interleaved": lambda: (2.0 * (p - s - 1.0) + (v - 1.0) * p + 1.0) / v,
            "zb-h1": lambda: p,
            "zb-2p": lambda: 2.0 * p - 1.0,
            "zb-v": lambda: p,
            "dualpipe": lambda: p + 1.0,
            "dualpipe-v": lambda: p + 0.5,
            "v-half": lambda: np.floor((p + 2.0) / 2.0),
            "v-min": lambda: np.floor((p + 4.0) / 3.0),
        },
    )
    return np.asarray(np.where(p > 1.0, np.minimum(held, m), 1.0))


def weight_copies(schedule: ArrayLike) -> Array:
    """Return how many copies of a stage's parameters one rank holds: 2 with DualPipe, else 1 [-]."""
    return np.where(is_schedule(schedule, "dualpipe"), 2.0, 1.0)


def fold(schedule: ArrayLike) -> Array:
    """Return which stages share a rank, as `physics.stages.plan_stages` counts them: 1 DualPipe, 2 a V [-]."""
    return np.where(
        is_schedule(schedule, "dualpipe"), 1.0, np.where(is_schedule(schedule, *_V_SHAPED), 2.0, 0.0)
    )


def chunks_passed(schedule: ArrayLike, virtual_stages: Array) -> Array:
    """Return how many chunks of a rank a micro-batch passes [-]."""
    looped = np.where(is_schedule(schedule, "interleaved"), virtual_stages, 1.0)
    return np.where(is_schedule(schedule, *_V_SHAPED), 2.0, looped)


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
    p, v = as_array(stages), np.maximum(as_array(virtual_stages), 1.0)
    return np.asarray(np.where(p > 1.0, 2.0 * chunks_passed(schedule, v), 0.0))


def valid(
    schedule: ArrayLike,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
) -> BoolArray:
    """Return where a schedule can run with so many stages, micro-batches and chunks per rank.

    "none" means one stage. Interleaved needs v >= 2 and m a multiple of p; the V-shaped schedules
    have v = 2, all others v = 1; DualPipe needs even p and m, and both DualPipes m >= 2 p.

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
    p, m, v = as_array(stages), as_array(micro_batches), as_array(virtual_stages)
    fits = np.where(is_schedule(schedule, "none"), p == 1.0, p >= 1.0)
    fits = fits & np.where(is_schedule(schedule, "interleaved"), (v >= 2.0) & (np.mod(m, p) == 0.0), True)
    fits = fits & np.where(is_schedule(schedule, *_V_SHAPED), v == 2.0, True)
    fits = fits & np.where(is_schedule(schedule, "interleaved", *_V_SHAPED), True, v == 1.0)
    even = (np.mod(p, 2.0) == 0.0) & (np.mod(m, 2.0) == 0.0)
    fits = fits & np.where(is_schedule(schedule, "dualpipe"), even & (m >= 2.0 * p), True)
    fits = fits & np.where(is_schedule(schedule, "dualpipe-v"), m >= 2.0 * p, True)
    return np.asarray(fits, dtype=np.bool_)
