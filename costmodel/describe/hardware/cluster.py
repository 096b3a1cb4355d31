"""Hardware as the formulas receive it: an accelerator, and the tiers of links that join many.

Plain SI floats, bandwidth per GPU and direction, peaks dense. The objects are immutable; "what if
the fabric were twice as fast" is `dataclasses.replace`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from costmodel.base.csv_text import read_records
from costmodel.base.errors import choices_hint
from costmodel.base.words import DEVICE
from costmodel.describe.hardware.strict import Strict
from costmodel.describe.precision import PRECISIONS
from costmodel.physics.network.fabric import Tier as Tier

if TYPE_CHECKING:
    from costmodel.describe.hardware.kernels import KernelConstants


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """A way to compute attention: a row of ``describe/data/attention_kernels.csv``."""

    name: str
    is_open: bool  # Whether it means what the software of the device takes, and is never run by this name
    writes_scores: bool
    """Whether the matrix of scores goes through HBM between two batched products; otherwise one fused kernel keeps
    nothing quadratic, at the constants that an accelerator's ``kernels`` block has under its name."""
    fused_softmax: bool
    """Whether the softmax between the products is one kernel, not a chain of element-wise ones."""
    source: str


ATTENTION_KERNELS: dict[str, AttentionKind] = read_records(
    Path(__file__).parents[1] / "data" / "attention_kernels.csv", AttentionKind
)
"""Every choice by name."""

OPEN_KERNELS = tuple(name for name, one in ATTENTION_KERNELS.items() if one.is_open)
"""Choices that the software of a device decides."""

_FUSED = [name for name in ATTENTION_KERNELS if name not in OPEN_KERNELS]
_FUSED_SCHEMA: dict[str, Any] = {"enum": _FUSED}


class Software(Strict):
    """What the vendor's software takes on a device where a recipe leaves it open; a block of an accelerator's file."""

    attention: str = Field(json_schema_extra=_FUSED_SCHEMA)
    torch_attention: str = Field(json_schema_extra=_FUSED_SCHEMA)
    """Kernels that ``auto`` and ``torch`` mean here."""
    fp8: str
    """Precision that ``fp8`` means."""
    fp8_layouts: Literal["one", "both"]
    """``one`` where the 8-bit matrix units take one layout only, so that operands are transposed, or ``both``."""
    recipe: str = ""
    """The recipe of a job that names none; empty where that is the default of everywhere."""
    compiled_steps: Annotated[bool, Field(strict=True)] = False
    """Whether a compiler turns a step into a program that runs without the host, as on a TPU; otherwise a host
    issues kernels one by one."""
    user_buffers: Annotated[bool, Field(strict=True)] = False
    """Whether Transformer Engine's user buffers and DeepEP are written for it."""
    collectives_on: Literal["compute-cores", "sparse-cores"] = "compute-cores"
    """Which cores published recipes give collectives to: a choice of the recipe switch `collectives_on`."""

    @model_validator(mode="after")
    def _names_a_choice(self) -> Self:
        """Refuse what is itself a choice, and what does not exist."""
        for key in ("attention", "torch_attention", "fp8"):
            known: Collection[str] = PRECISIONS if key == "fp8" else _FUSED
            name = getattr(self, key)
            if name in OPEN_KERNELS:
                raise ValueError(f"{key}: expected a kernel, not {name!r}, which means one of them")
            if name not in known:
                raise ValueError(f"{key}: {name!r} is unknown; {choices_hint(name, known)}")
        return self


# Elements a second that an SM converts in PyTorch's kernels without vector loads, by published timings of large casts:
# pytorch/pytorch pull request 195542 (A100, bf16 to fp32, 67 M in 362 us), 137053 (H100 PCIe, fp32 to fp16 before it,
# 2,147 M in 9.11 ms) and PaddlePaddle/Paddle 76988 (torch beside it, bf16 to fp32, 1,074 M in 2.77 ms; the GPU is not
# named, its vector kernels reach 7.0 TB/s: 148 SMs taken).
SCALAR_PER_SM = {"ampere": 1.71e9, "hopper": 2.07e9, "blackwell": 2.61e9}
"""By generation; kernels of others are priced by their bytes alone."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One GPU."""

    name: str
    title: str = ""
    """File name and what the vendor calls it."""
    generation: str
    """Family whose published runs are compared with one another: ampere, hopper, tpu-v5."""
    software: Software
    peak_flops_per_s: dict[str, float]
    """Dense matrix peak by dtype; a dtype that the device does not have is absent. [FLOP/s]"""
    memory_bytes: float
    """Memory that a program can allocate, as CUDA or HIP reports it. [B]"""
    memory_vendor_bytes: float
    """Memory on the label, read as GiB. [B]"""
    memory_bandwidth_bytes_per_s: float
    """Peak of the memory bus. [B/s]"""
    num_sms: int
    """Streaming multiprocessors or compute units. [-]"""
    tdp_w: float
    """Board power limit. [W]"""
    host_link_bytes_per_s: float
    """To the host's memory, one direction: PCIe or C2C. [B/s]"""
    scale_up_link: str = ""
    pcie_link: str = ""
    """Link profiles that join GPUs of a node with and without a switch fabric; empty if none."""
    scale_out_link: str = ""
    """Link profile of the ports to the network that are part of the device or of its nodes; empty if any may
    be."""
    host_slowdown: float = 1.0
    """Time the host takes to issue a kernel over that of an x86 server. [-]"""
    host_slowdown_bound: float = 1.0
    """The same where processes are bound to the cores beside their GPU. [-]"""
    kernels: "KernelConstants | None" = None
    """Achieved shares of the peaks and fixed costs, fitted to kernel measurements."""
    kernels_of: str = ""
    """Generation whose measured kernels these are where the profile inherits them; empty for its own."""
    announced: bool = False
    """Whether nobody can buy it yet, so that its numbers are what the vendor says it will have."""
    scalar_per_sm: float | None = field(default=None, repr=False)
    """In place of its generation's `SCALAR_PER_SM`. [1/s]"""
    sparse_cores: int = field(default=0, repr=False)
    """Cores beside those that multiply, to which a compiler can give collectives: SparseCores of a TPU. [-]"""
    called: str = DEVICE
    """What people call one of it in sentences: GPU, chip, core."""

    @property
    def is_gpu(self) -> bool:
        """Whether a host issues its kernels one by one; TPUs and Trainium run steps that are compiled whole."""
        return not self.software.compiled_steps

    @property
    def scalar_elements_per_s(self) -> float:
        """Elements a second that its SMs convert without vector loads; 0 where nobody timed it. [1/s]"""
        return self.num_sms * (self.scalar_per_sm or SCALAR_PER_SM.get(self.generation, 0.0))

    @property
    def has_own_stack(self) -> bool:
        """Whether its vendor's software names a framework of its own: what is beyond CUDA."""
        return bool(self.software.recipe)

    @property
    def is_estimated(self) -> bool:
        """Whether its 16-bit products are another accelerator's, not measured on it."""
        if self.kernels is None:
            return True
        blocks = self.kernels.blocks.matmul
        return next(blocks[dtype] for dtype in ("bf16", "fp16") if dtype in blocks).basis != "measured"


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where checkpoints go: the slower of a node's own rate and its part of the shared one. [B/s]."""

    name: str
    write_bandwidth_per_node_bytes_per_s: float
    read_bandwidth_per_node_bytes_per_s: float
    write_bandwidth_shared_bytes_per_s: float
    read_bandwidth_shared_bytes_per_s: float


class Host(NamedTuple):
    """What the GPUs of one node share."""

    memory_bytes: float  # Main memory of a node. [B]
    memory_bandwidth_bytes_per_s: float  # Peak of all its channels together, reads and writes. [B/s]
    gpus_per_link: int
    """GPUs that share one link to it (two A100 behind a PCIe switch with one port to the CPU). [-]"""


Prices = tuple[
    float, ...
]  # What a GPU-hour costs, and from where to where lists went if that is known. [USD/h]
NO_PRICES: tuple[Prices, Prices] = ((), ())


class OtherNodes(NamedTuple):
    """Nodes of another kind, the last ones of a job."""

    nodes: int
    accelerator: Accelerator
    batch_by_speed: bool  # Whether replicas on them get another part of the batch, so that no replica waits
    more_memory_bytes: float  # Memory of its GPUs less that of the cluster's own. [B]
    layers_by_speed: bool = True  # Whether balanced stages on them get other layers, so that no stage waits
    prices: tuple[Prices, Prices] = NO_PRICES
    """Of the lists for the cluster's own nodes and for these, empty where there is none or one was given."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An accelerator and the tiers that join many of it, innermost first."""

    name: str
    title: str = ""
    accelerator: Accelerator
    gpus_per_node: int
    """GPUs that share a host (an NVLink domain may be larger). [-]"""
    host: Host
    """What they share."""
    tiers: tuple[Tier, ...]
    """The last one's size is the largest job that fits."""
    storage: Storage | None = None
    """Of the checkpoints."""
    price_usd_per_gpu_hour: float | None = None
    """Median of the list prices on demand at `price_date`, which is empty where the user gave it. [USD/h]"""
    price_date: str = ""
    price_range_usd_per_gpu_hour: tuple[float, float] | None = None
    """Lowest and highest list price at that time: commitments, cheap and dear clouds. [USD/h]"""
    pue: float = 1.0
    """Power of the building over power of the machines. [-]"""
    mixed: OtherNodes | None = None
    changed: tuple[tuple[str, float | str], ...] = ()
    """Numbers that are not the profile's, by their names in `costmodel.describe.hardware.changed`; SI units, and fragments
    as text."""

    @property
    def max_gpus(self) -> int:
        """Size of the outermost tier. [-]."""
        return self.tiers[-1].size
