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
    stages; the forms marked "fit" were read off it and hold within 2 % of the step for
    W <= F, B and B <= 2 F. "zb-h1" and "zb-2p" are the schedules searched for the memory of one and
    two times 1F1B (ZB-1p, ZB-2p); with kappa = 1 these are the handcrafted ZB-H1 and ZB-H2.
    For uneven stages the forms are exact for gpipe and 1f1b where one stage is the slowest in
    forward and backward; for the others the least idle time, a few per cent of the step too low.
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
    p, m, v = _array(stages), _array(micro_batches), np.maximum(_array(virtual_stages), 1.0)
    f, b, w = _array(forward_s), _array(backward_input_s), _array(backward_weight_s)
    hops = p - 1.0
    other_f = hops * f if sum_forward_s is None else _array(sum_forward_s) - f
    other_b = hops * (b + w) if sum_backward_s is None else _array(sum_backward_s) - (b + w)
    others = other_f + other_b
    others_fb = others - hops * w
    # What stages of unequal length add to the schedules whose form is written for equal ones.
    uneven = others - hops * (f + b + w)
    high, low = np.maximum(f, b), np.minimum(f, b)
    fill_2p = np.minimum(2.0 * hops / _array(pending_weight_fraction), m - 1.0)
    zb_2p = np.maximum(others_fb - fill_2p * w, 0.0)
    zb_v = np.maximum(hops * np.maximum(high - w, 0.5 * (w - low)) + 0.5 * uneven, 0.0)
    apart = np.asarray(synchronized, dtype=np.bool_)
    bubble = _select(
        schedule,
        {
            "naive": m * others,
            "gpipe": others,
            "1f1b": others,
            "interleaved": others / v,
            "zb-h1": others_fb - np.minimum(hops, m - 1.0) * w,
            "zb-2p": np.where(apart, np.maximum(zb_2p, other_f), zb_2p),
            "zb-v": np.where(apart, np.maximum(zb_v, 0.5 * hops * np.maximum(high, w)), zb_v),
            "dualpipe": _dualpipe_bubble(0.5 * p - 1.0, f, b, w) + 0.5 * uneven,
            "dualpipe-v": _dualpipe_bubble(hops, 0.5 * f, 0.5 * b, 0.5 * w) + 0.5 * uneven,
            "v-half": 0.5 * hops * (f + 3.0 * b - w) - 0.5 * f + m * np.maximum(f - b, 0.0) + 0.5 * uneven,
            "v-min": hops * (f + b) - 0.5 * f + m * np.maximum(2.0 * high - low - w, 0.0) + 0.5 * uneven,
        },
    )
    return np.asarray(np.where(p > 1.0, np.maximum(bubble, 0.0), 0.0))


def _dualpipe_bubble(depth: Array, f: Array, b: Array, w: Array) -> Array:
    """Return the bubble of DualPipe's order, `depth` ranks from the turn, for chunk times f, b, w."""
    return np.asarray(
        np.maximum(depth * (2.0 * f + np.maximum(b - w, 0.0)), depth * (f + 2.0 * b - w) - f)
    )


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
            "v-half": np.floor((p + 2.0) / 2.0),
            "v-min": np.floor((p + 4.0) / 3.0),
        },
    )
    return np.asarray(np.where(p > 1.0, np.minimum(held, m), 1.0))


def weight_copies(schedule: ArrayLike) -> Array:
    """Return how many copies of a stage's parameters one rank holds: 2 with DualPipe, else 1 [-]."""
    return np.where(_is(schedule, "dualpipe"), 2.0, 1.0)


def _chunks(schedule: ArrayLike, virtual_stages: Array) -> Array:
    """Return how many chunks of a rank a micro-batch passes [-]."""
    looped = np.where(_is(schedule, "interleaved"), virtual_stages, 1.0)
    return np.where(_is(schedule, *_V_SHAPED), 2.0, looped)


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
    p, v = _array(stages), np.maximum(_array(virtual_stages), 1.0)
    return np.asarray(np.where(p > 1.0, 2.0 * _chunks(schedule, v), 0.0))


def exposed_p2p_messages(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    overlapped: ArrayLike = False,
) -> Array:
    r"""Messages per step whose time the critical path pays.

    Where a rank stands still while it sends, every message of an inner rank counts:
    :math:`2 c m + 2 (p - 2)` with c chunks. Where sending runs beside computing, a message is paid
    only where somebody waits for it:

    ============  ====================================================================
    schedule      exposed messages with overlap
    ============  ====================================================================
    naive         :math:`2 (p - 1) m`
    gpipe         :math:`2 (p - 1)`: the first micro-batch's way there and back
    1f1b          :math:`2 (m + p - 2) - 2 \lceil (m - 1) / p \rceil`
    interleaved   :math:`2 (v p - 1)`
    zb-h1         :math:`4 (p - 1)`
    zb-2p         :math:`2 (p - 1)`
    zb-v          :math:`6 (p - 1)`
    dualpipe      :math:`m (p - 1) / p + 3 (p / 2 - 1)`
    dualpipe-v    :math:`2 m (p - 1) / p + 5 (p - 1) / 2`
    v-half        :math:`8 (p - 1)`
    v-min         :math:`6 m (p - 1) / p + 3 (p - 2)`
    ============  ====================================================================

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    overlapped : array_like of bool
        Whether ranks compute while they send (Megatron's ``overlap_p2p_comm``, which it has for
        the interleaved schedule only; the zero-bubble runtimes). [-]

    Returns
    -------
    messages : ndarray
        To be multiplied with the time of one message between neighbours. [-]

    Notes
    -----
    1F1B has no slack: a forward is ready just when its rank wants to run it, so that even with
    overlap each micro-batch pays nearly two messages. The interleaved order starts twice as many
    forwards ahead, and from then on each message has the time of half a forward and backward of a
    chunk to arrive; the form holds while it is no longer than ``min(F, B + W) / v``, and beyond
    that about the excess times m v is paid (`exposed_p2p_time_s`). Read off the simulation:
    exact for gpipe, 1f1b, interleaved, zb-h1 and dualpipe with overlap, otherwise within 20 % of
    the messages. That 1F1B's form is also what the zero-bubble paper's own simulation
    (arXiv:2401.10241, Table 5) charges follows from its printed bubble rates.
    """
    p, m, v = _array(stages), _array(micro_batches), np.maximum(_array(virtual_stages), 1.0)
    hops, rounds = p - 1.0, m * (p - 1.0) / np.maximum(p, 1.0)
    hidden = _select(
        schedule,
        {
            "naive": 2.0 * hops * m,
            "gpipe": 2.0 * hops,
            "1f1b": 2.0 * (m + p - 2.0) - 2.0 * np.ceil((m - 1.0) / p),
            "interleaved": 2.0 * (v * p - 1.0),
            "zb-h1": 4.0 * hops,
            "zb-2p": 2.0 * hops,
            "zb-v": 6.0 * hops,
            "dualpipe": rounds + 3.0 * (0.5 * p - 1.0),
            "dualpipe-v": 2.0 * rounds + 2.5 * hops,
            "v-half": 8.0 * hops,
            "v-min": 6.0 * rounds + 3.0 * (p - 2.0),
        },
    )
    per_micro_batch = 2.0 * _chunks(schedule, v)
    per_micro_batch = np.where(_is(schedule, "v-min"), 6.0, per_micro_batch)
    # With two ranks each is an end of the pipeline and sends in one direction only.
    inner = np.where(p > 2.0, per_micro_batch, 0.5 * per_micro_batch)
    inner = np.where(_is(schedule, "gpipe", "interleaved"), per_micro_batch, inner)
    stopped = np.where(_is(schedule, "naive"), 2.0 * hops * m, inner * m + 2.0 * (p - 2.0))
    paid = np.where(np.asarray(overlapped, dtype=np.bool_), hidden, np.maximum(stopped, hidden))
    return np.asarray(np.where((p > 1.0) & ~_is(schedule, "none"), paid, 0.0))


def exposed_p2p_time_s(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    message_s: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    overlapped: ArrayLike = False,
) -> Array:
    """Time per step that the critical path waits for messages between stages.

    `exposed_p2p_messages` times the time of one, plus what does not fit behind the chunks of the
    interleaved schedule.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    message_s : array_like
        Time of one message between neighbours. [s]
    forward_s, backward_s : array_like
        F and B + W of one micro-batch on one stage, all its chunks together. [s]
    overlapped : array_like of bool
        Whether ranks compute while they send. [-]

    Returns
    -------
    exposed_s : ndarray
        0 with one stage. [s]
    """
    m, v = _array(micro_batches), np.maximum(_array(virtual_stages), 1.0)
    each = _array(message_s)
    count = exposed_p2p_messages(
        schedule, stages=stages, micro_batches=m, virtual_stages=v, overlapped=overlapped
    )
    window = np.minimum(_array(forward_s), _array(backward_s)) / v
    behind = _is(schedule, "interleaved") & np.asarray(overlapped, dtype=np.bool_) & (count > 0.0)
    late = np.where(behind, m * v * np.maximum(each - window, 0.0), 0.0)
    return np.asarray(count * each + late)


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
    p, m, v = _array(stages), _array(micro_batches), _array(virtual_stages)
    fits = np.where(_is(schedule, "none"), p == 1.0, p >= 1.0)
    fits = fits & np.where(_is(schedule, "interleaved"), (v >= 2.0) & (np.mod(m, p) == 0.0), True)
    fits = fits & np.where(_is(schedule, *_V_SHAPED), v == 2.0, True)
    fits = fits & np.where(_is(schedule, "interleaved", *_V_SHAPED), True, v == 1.0)
    even = (np.mod(p, 2.0) == 0.0) & (np.mod(m, 2.0) == 0.0)
    fits = fits & np.where(_is(schedule, "dualpipe"), even & (m >= 2.0 * p), True)
    fits = fits & np.where(_is(schedule, "dualpipe-v"), m >= 2.0 * p, True)
    return np.asarray(fits, dtype=np.bool_)
