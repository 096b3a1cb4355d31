"""Kernel constants of accelerators that nobody published measurements of, and why these.

Each entry says which measured accelerator it is derived from and what was changed. The basis
written into the profile is ``estimated`` or ``generation-average``, never ``measured``.
"""

from __future__ import annotations

from typing import NamedTuple

POWER_EXPONENT = 1.0 / 3.0
"""Sustained rate against power limit: between 0.25 (A100 300 W against 400 W, both measured) and
about 1 near the lowest voltage (GB300 500 W against 1,400 W, facebookexperimental/triton #2023)."""


class Likeness(NamedTuple):
    """Which accelerator's constants another one takes, and with what change.

    Attributes
    ----------
    base : str
        Measured accelerator.
    rate : float
        Factor on every share of the peak. [-]
    sustained : float
        Factor on the sustained rate, for another power limit. [-]
    reason : str
        Said in the profile.
    """

    base: str
    rate: float
    sustained: float
    reason: str


LIKENESS: dict[str, Likeness] = {
    "a100-sxm-40gb": Likeness("a100-sxm-80gb", 1.0, 1.0, "same chip and power limit"),
    "a800-sxm-80gb": Likeness("a100-sxm-80gb", 1.0, 1.0, "same chip and power limit, only NVLink is cut"),
    "a100-pcie-40gb": Likeness("a100-pcie-80gb", 1.0, (250 / 300) ** POWER_EXPONENT, "250 W, not 300 W"),
    "h800-sxm-80gb": Likeness("h100-sxm-80gb", 1.0, 1.0, "same chip and power limit, only NVLink is cut"),
    "h100-hbm2e-96gb-500w": Likeness(
        "h100-sxm-80gb", 1.0, (500 / 700) ** POWER_EXPONENT, "same chip, 500 W instead of 700 W"
    ),
    "h100-pcie-80gb": Likeness(
        "h100-sxm-80gb",
        1.0,
        0.94,
        "same chip with 114 SMs; its peak is defined at 1,620 MHz and 350 W sustain about 1,340-1,380 MHz",
    ),
    "h20-sxm-96gb": Likeness(
        "h100-sxm-80gb",
        1.15,
        1.0 / 0.88,
        "same SMs at a seventh of the rate: memory and power do not limit (attention reaches 85 % of "
        "the peak, flash-attention issue #1310)",
    ),
    "v100-sxm2-16gb": Likeness("a100-sxm-80gb", 0.9, 1.0, "no Volta rows: an older library reaches less"),
    "v100-sxm2-32gb": Likeness("a100-sxm-80gb", 0.9, 1.0, "no Volta rows: an older library reaches less"),
    "v100-sxm3-32gb": Likeness("a100-sxm-80gb", 0.9, 1.0, "no Volta rows: an older library reaches less"),
    "mi250x": Likeness("mi210", 1.0, 1.0, "one die of it is an MI210 with 110 instead of 104 units"),
    "mi300x": Likeness("mi210", 0.8, 1.0, "one published best shape: 668 of 1,307 TFLOP/s (ml-engineering)"),
}

MEMORY: dict[str, tuple[float, str, str]] = {
    "v100": (0.90, "measured", "gpu-benches triad 0.81 TB/s"),
    "a100-sxm-40gb": (0.87, "measured", "gpu-benches triad 1.36 TB/s"),
    "a100": (0.85, "measured", "Azure BabelStream 1.70-1.75 TB/s"),
    "a800": (0.85, "estimated", "as A100"),
    "h100-pcie": (0.91, "measured", "gpu-benches triad 1.83 TB/s"),
    "h100-sxm": (0.89, "measured", "Azure BabelStream 2.97-3.18 TB/s"),
    "h100-hbm2e": (0.89, "estimated", "as H100 SXM"),
    "h200": (0.87, "measured", "Azure BabelStream 4.15-4.48 TB/s"),
    "h800": (0.89, "estimated", "as H100 SXM"),
    "h20": (0.89, "estimated", "as H100 SXM"),
    "b200": (0.85, "estimated", "between memory-bound products (0.75) and Hopper's triad (0.89)"),
    "b300": (0.85, "estimated", "as B200"),
    "gb200": (0.85, "estimated", "as B200"),
    "gb300": (0.85, "estimated", "as B200"),
    "mi": (0.80, "estimated", "aiconfigurator's 0.8 of the data sheet"),
}
"""Share of the HBM bandwidth by the start of the accelerator's name; the longest start counts."""

MEMORY_FLOOR_S = 2.5e-6
"""Fixed time of a memory-bound kernel: floors of measured products are 2.1-2.9 us, aiconfigurator adds 3."""

TRITON_RATE = 1.0 / (1.3 * 2.5) ** 0.5
"""FlashAttention of 2022 in Triton over FlashAttention-2: 1.3 to 2.5 times slower (arXiv:2307.08691, section 4.1)."""
FLASH1_RATE = 0.53
"""FlashAttention-1 over FlashAttention-2: 25-40 % of the A100's peak against 50-73 % (arXiv:2307.08691)."""
FLASH1_CAUSAL = 0.85
"""FlashAttention-1 skips fewer masked blocks."""

H20_ATTENTION = {"flash2": 1.5, "flash3": 1.2, "cudnn": 1.4}
"""Shares of the peak over the H100's, from flash-attention issue #1310 (head dimension 128)."""

AMD_ATTENTION = (0.38, 0.25)
"""Forward and backward share of the peak of AMD's FlashAttention-2: no measured table was found."""


def memory_share(name: str) -> tuple[float, str, str]:
    """Return share of the bandwidth, basis and source for an accelerator."""
    key = max((start for start in MEMORY if name.startswith(start)), key=len, default="mi")
    return MEMORY[key]
