"""Electric power of a GPU that trains, and of its share of the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# GPUs draw their limit in the passes and about half of it while they synchronise (Patel et al., "POLCA,"
# arXiv:2308.12908, section 4: troughs of training at 20-75 % of the peak, by model).
WAITING_FRACTION = 0.5
IDLE_FRACTION = 0.15
# An H100 node that trains draws 76 % of its 10.2 kW (Newkirk et al., arXiv:2506.14551), of which eight
# GPUs take 5.6 kW: 0.38 W of host, network cards and fans for each watt of GPU.
HOST_FRACTION = 0.76 * 10.2 / 5.6 - 1.0


def mean_power_w(tdp_w: ArrayLike, *, busy_fraction: ArrayLike, running_fraction: ArrayLike) -> Array:
    r"""Mean power of a GPU and its share of the host over a run, without the building (PUE). [W]

    .. math:: P = \text{TDP} \left(r (b + 0.5 (1 - b)) + 0.15 (1 - r) + 0.38\right)

    with b the share of the step in which kernels compute or stream memory, and r that of the calendar time in which the job
    runs. [-]
    """
    busy, running = (np.asarray(share, dtype=np.float64) for share in (busy_fraction, running_fraction))
    gpu = running * (busy + WAITING_FRACTION * (1.0 - busy)) + IDLE_FRACTION * (1.0 - running)
    return np.asarray(np.asarray(tdp_w, dtype=np.float64) * (gpu + HOST_FRACTION))
