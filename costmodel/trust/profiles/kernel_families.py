"""Which kernel does what, by its name: a table of families, each with where its names come from.

The first family whose pattern is found in a name has it; a name that none knows is of the class `UNKNOWN`, which is
a line like the others. Names tell what a library runs, not what for: a matrix product is one of experts where it is
grouped, and belongs to a pass where name or call say so.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from costmodel.base.csv_text import read_rows

Communication = Literal[
    "dispatch",
    "combine",
    "exchange_wait",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "send_recv",
    "other_collective",
]
Class = Literal[
    "matmul",
    "experts",
    "attention",
    "mixer",
    "norm",
    "elementwise",
    "softmax_and_loss",
    "cast",
    "permute",
    "routing",
    "embedding",
    "optimizer",
    "copy",
    Communication,
    "graph",
    "unknown",
]
Pass = Literal["", "forward", "backward", "backward_weight"]

UNKNOWN: Class = "unknown"
BY_PASS: tuple[Class, ...] = ("matmul", "experts", "attention", "mixer")
"""Classes that are told apart by pass."""
COMMUNICATION: tuple[Class, ...] = get_args(Communication)
"""Classes that move data between GPUs, or wait for it; every other kernel computes, an unknown one too."""


class Family(NamedTuple):
    """Kernels of one library that do one thing: a row of ``trust/data/kernel_families.csv``.

    Attributes
    ----------
    name : str
        Library, and what of it.
    does : str
        What they do (`Class`).
    pattern : str
        Regular expression, found anywhere in the name, whatever its case.
    source : str
        Where these names come from.
    runs_in : str
        Pass that the name itself tells, "" where it does not.
    """

    name: str
    does: Class
    pattern: str
    source: str
    runs_in: Pass = ""


# The order counts. Communication stands first, as its arguments may hold any other word; attention before products
# (FlashAttention-3 is CUTLASS, cuDNN's names hold both words); optimizers before norms, whose helpers they share; casts
# before products, but what loads with a cast is something else.
FAMILIES = tuple(
    Family(**row) for row in read_rows(Path(__file__).parents[1] / "data" / "kernel_families.csv")
)

_UNKNOWN_FAMILY = Family("unknown", UNKNOWN, "", "no family has this name")
_PATTERNS = tuple((re.compile(family.pattern, re.IGNORECASE | re.DOTALL), family) for family in FAMILIES)


@cache
def family_of(kernel: str) -> Family:
    """Return the family of a kernel by its name.

    >>> family_of("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)").does
    'all_gather'
    >>> family_of("my_own_kernel").name
    'unknown'
    """
    return next((family for pattern, family in _PATTERNS if pattern.search(kernel)), _UNKNOWN_FAMILY)


_LAYOUT = re.compile(r"_(nn|nt|tn)(?:_|\b)|_(NN|NT|TN)[NT](?:_|\b)")


def layout_of(kernel: str) -> str:
    """Return which operands of a product are transposed, "" where its name does not say.

    In the column-major terms of BLAS a linear layer's forward product is TN, the gradient of its input NN, that of
    its weight NT (NVIDIA/TransformerEngine, transformer_engine/pytorch/module/linear.py).

    >>> layout_of("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTN"), layout_of("ampere_bf16_s16816gemm_128x64_tn")
    ('nt', 'tn')
    """
    found = _LAYOUT.search(kernel)
    return (found.group(1) or found.group(2)).lower() if found else ""


_RANGES: tuple[tuple[re.Pattern[str], Pass], ...] = (
    (
        re.compile(r"\(W\)$|(?<![a-z])(wgrad|weight[ _]grad(ient)?s?)(?![a-z])", re.IGNORECASE),
        "backward_weight",
    ),
    (re.compile(r"\(B\)$|(?<![a-z])(backward|bwd)(?![a-z])", re.IGNORECASE), "backward"),
    (re.compile(r"\(F\)$|(?<![a-z])(forward|fwd)(?![a-z])", re.IGNORECASE), "forward"),
)


def pass_of_range(name: str) -> Pass:
    """Return the pass that a range's name tells, "" where it tells none or more than one.

    >>> pass_of_range("attn(B)"), pass_of_range("forward_step"), pass_of_range("1F1B")
    ('backward', 'forward', '')
    """
    told = [each for pattern, each in _RANGES if pattern.search(name)]
    return told[0] if len(told) == 1 or told[:1] == ["backward_weight"] else ""
