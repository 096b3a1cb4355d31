"""Messages between pipeline stages that the step waits for, by schedule.

The simulation of `schedule_engine` was run with a delay per message, and the number of delays by
which the step grew was read off: most hide behind the waits that the schedule has anyway.
"""

import numpy as np
from numpy.typing import ArrayLike

from costmodel.physics.pipeline.schedules import Array, as_array, chunks_passed, is_schedule, select_schedule


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
    v-half        :math:`2 m + 4 (p - 1)`
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
    p, m, v = as_array(stages), as_array(micro_batches), np.maximum(as_array(virtual_stages), 1.0)
    hops, rounds = p - 1.0, m * (p - 1.0) / np.maximum(p, 1.0)
    hidden = select_schedule(
        schedule,
        {
            "naive": lambda: 2.0 * hops * m,
            "gpipe": lambda: 2.0 * hops,
            "1f1b": lambda: 2.0 * (m + p - 2.0) - 2.0 * np.ceil((m - 1.0) / p),
            "interleaved": lambda: 2.0 * (v * p - 1.0),
            "zb-h1": lambda: 4.0 * hops,
            "zb-2p": lambda: 2.0 * hops,
            "zb-v": lambda: 6.0 * hops,
            "dualpipe": lambda: rounds + 3.0 * (0.5 * p - 1.0),
            "dualpipe-v": lambda: 2.0 * rounds + 2.5 * hops,
            "v-half": lambda: 2.0 * m + 4.0 * hops,
            "v-min": lambda: 6.0 * rounds + 3.0 * (p - 2.0),
        },
    )
    per_micro_batch = 2.0 * chunks_passed(schedule, v)
    per_micro_batch = np.where(is_schedule(schedule, "v-min"), 6.0, per_micro_batch)
    # With two ranks each is an end of the pipeline and sends in one direction only.
    inner = np.where(p > 2.0, per_micro_batch, 0.5 * per_micro_batch)
    inner = np.where(is_schedule(schedule, "gpipe", "interleaved"), per_micro_batch, inner)
    stopped = np.where(is_schedule(schedule, "naive"), 2.0 * hops * m, inner * m + 2.0 * (p - 2.0))
    paid = np.where(np.asarray(overlapped, dtype=np.bool_), hidden, np.maximum(stopped, hidden))
    return np.asarray(np.where((p > 1.0) & ~is_schedule(schedule, "none"), paid, 0.0))


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
    m, v = as_array(micro_batches), np.maximum(as_array(virtual_stages), 1.0)
    each = as_array(message_s)
    count = exposed_p2p_messages(
        schedule, stages=stages, micro_batches=m, virtual_stages=v, overlapped=overlapped
    )
    window = np.minimum(as_array(forward_s), as_array(backward_s)) / v
    behind = is_schedule(schedule, "interleaved") & np.asarray(overlapped, dtype=np.bool_) & (count > 0.0)
    late = np.where(behind, m * v * np.maximum(each - window, 0.0), 0.0)
    return np.asarray(count * each + late)
