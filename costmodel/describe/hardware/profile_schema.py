"""What a hardware profile may say: one pydantic model per kind of file, and plain error texts.

Every number is a `Sourced` pair, so that a reader of the file sees where it comes from; `assumed`
is a legal, visible source. Bandwidths are per GPU and direction, peaks dense.
"""

import itertools
from collections.abc import Iterable, Iterator
from datetime import date
from difflib import get_close_matches
from functools import cached_property
from math import prod
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from costmodel.base.errors import choices_hint
from costmodel.base.words import DEVICE, expected_text
from costmodel.describe.hardware.cluster import Software
from costmodel.describe.hardware.kernels import KernelConstants
from costmodel.describe.hardware.profile_files import citations
from costmodel.describe.hardware.strict import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Strict, Watts
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.topologies import SWITCH, TOPOLOGIES

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "fp4"]
Generation = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
LinkKind = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
KNOWN_LINKS = (
    *("nvlink", "xgmi", "pcie", "ib", "roce", "efa", "omnipath", "slingshot", "tcp", "c2c", "ici"),
    *("neuronlink", "hccs", "xelink", "dcn", "ualink", "scale-up-ethernet", "roce-gaudi", "slingshot-xpu"),
)
"""Sorts of wire with a name: others may have one of their own, but what is nearly one of these is a slip."""
# Blocks written by the calibration scripts; their models say where the numbers come from.
FITTED_BLOCKS = ("kernels", "fabric")

LEAST_USABLE = 0.9
"""Share of the fitted memory below which a program's share is a number left over from another device. [-]"""

T = TypeVar("T")
_MOST = 10**9
"""Of anything counted in hardware: far above what exists, far below what a float cannot hold."""
Positive = Annotated[int, Field(gt=0, le=_MOST, strict=True)]
Share = Annotated[float, Field(gt=0, le=1)]
_Usd = Annotated[float, Field(gt=0)]


class Sourced(Strict, Generic[T]):
    """A number and where it comes from."""

    value: T
    source: str


# Sorts that several fields have: each that is written out anew is a class of its own, which import builds.
SourcedRate = Sourced[Annotated[BytesPerSecond, Field(gt=0)]]
SourcedSize = Sourced[Annotated[Bytes, Field(gt=0)]]
SourcedFactor = Sourced[Annotated[float, Field(gt=0)]]
SourcedMultiple = Sourced[Annotated[float, Field(ge=1)]]
SourcedFlag = Sourced[Annotated[bool, Field(strict=True)]]


class Source(Strict):
    """A document or measurement that numbers are taken from."""

    title: str
    url: str = ""
    accessed: date | None = None


class _Profile(Strict):
    """What every profile starts and ends with."""

    schema_version: Literal[1]
    profile: str
    name: str
    title: str
    aliases: tuple[str, ...] = ()
    notes: str = ""
    sources: dict[str, Source] = {}  # noqa: RUF012  # pydantic copies it


class AcceleratorFile(_Profile):
    """One GPU. A part that the software sees as two devices is described as one of them."""

    generation: Generation
    called: Annotated[str, Field(pattern=r"^[A-Za-z]+$")] = DEVICE
    """What people call one of it: chip, core, card."""
    software: Software
    """Where a file has none, that of the shipped accelerators of its generation; see `profile_files`."""
    peak_dense: dict[Dtype, Sourced[Annotated[FlopsPerSecond, Field(gt=0)]]]
    memory: SourcedSize
    memory_vendor: SourcedSize
    memory_bandwidth: SourcedRate
    num_sms: Sourced[Positive]
    host_slowdown: SourcedFactor | None = None
    host_slowdown_bound: SourcedFactor | None = None
    tdp: Sourced[Annotated[Watts, Field(gt=0)]]
    host_link: SourcedRate
    scale_up_link: str | None = None
    pcie_link: str | None = None
    scale_out_link: str | None = None
    """The ports to the network that are part of the device or of its nodes."""
    sparse_cores: Sourced[Positive] | None = None
    """SparseCores of a TPU; a file that says nothing has none."""
    kernels: KernelConstants | None = None
    announced: Annotated[bool, Field(strict=True)] = False
    """Whether nobody can buy it yet, so that its numbers are what the vendor says it will have."""

    @model_validator(mode="after")
    def _numbers_agree(self) -> Self:
        """Refuse what no device can be: usable memory above the fitted one, no 16-bit peak."""
        if problem := memory_problem(self.memory.value, self.memory_vendor.value):
            raise ValueError(problem)
        if self.memory.value < LEAST_USABLE * self.memory_vendor.value:
            raise ValueError(
                f"memory: expected at least {LEAST_USABLE:.0%} of memory_vendor; "
                f"got {self.memory.value / self.memory_vendor.value:.0%} (it is the usable part of it: give both)"
            )
        if self.kernels is not None and self.kernels.blocks.num_sms != self.num_sms.value:
            raise ValueError(
                f"kernels.num_sms: expected num_sms, {self.num_sms.value}; got {self.kernels.blocks.num_sms:g}"
            )
        if self.software.collectives_on == "sparse-cores" and self.sparse_cores is None:
            raise ValueError("sparse_cores: expected how many, because software gives collectives to them")
        if not {"fp16", "bf16"} & self.peak_dense.keys():
            raise ValueError("peak_dense: expected at least one of fp16 and bf16")
        return self


# The ``fabric:`` block of a link, which `tools/fit/fit_fabric.py` writes from published sweeps: the fields of `Fabric`
# under names without their unit where the value has it (``pipeline_s`` is ``pipeline: 2.5 us``).
Basis = Literal["measured", "similar-link", "estimated"]

# Longest ending first: a rate also ends in seconds.
_UNITS: tuple[tuple[str, Any, bool], ...] = (
    ("_bytes_per_s", BytesPerSecond, True),
    ("_s", Seconds, True),
    ("_factor", Annotated[float, Field(gt=0)], False),
    ("_ranks", Annotated[int, Field(ge=2)], False),
)


def _constant_field(name: str) -> tuple[Any, Any]:
    """Return type and default of a constant in a file, under its key there."""
    for ending, kind, has_unit in _UNITS:
        if name.endswith(ending):
            default = Fabric._field_defaults[name]
            return kind, Field(default=default, alias=name.removesuffix(ending) if has_unit else None)
    raise TypeError(f"the name of constant {name!r} does not end in its unit")


_FIELDS: dict[str, Any] = {name: _constant_field(name) for name in Fabric._fields}


class _Block(Strict):
    model_config = ConfigDict(populate_by_name=True)


_Constants: Any = create_model("_Constants", __base__=_Block, **_FIELDS)


class FabricConstants(_Constants):
    """Fitted constants of one link, and where they come from."""

    basis: Basis = "estimated"
    source: str = "assumed"
    points: int = Field(default=0, ge=0)
    residual: float | None = Field(default=None, ge=0)

    @cached_property
    def constants(self) -> Fabric:
        """The numbers alone, as the formulas receive them."""
        return Fabric(**{name: float(getattr(self, name)) for name in Fabric._fields})


class LinkFile(_Profile):
    """One kind of wire with its adapter and switch, as one GPU sees it."""

    kind: LinkKind
    topology: str = SWITCH.name
    bandwidth: SourcedRate
    efficiency: Sourced[Share]
    latency: Sourced[Seconds]
    base_latency: Sourced[Seconds]
    in_network_reduction: SourcedFlag
    through_host: SourcedFlag | None = None
    """Whether messages are copied through the host's memory; a file that says nothing sends from the GPU's."""
    spread: Sourced[Annotated[float, Field(ge=0, le=0.5)]] | None = None
    """Standard deviation of the step times of what it joins, over their mean; a file that says nothing joins equals."""
    reduction_bandwidth: Sourced[BytesPerSecond] | None = None
    fabric: FabricConstants | None = None

    @model_validator(mode="after")
    def _is_a_link(self) -> Self:
        """Refuse what is nearly a known sort of wire, wirings that do not exist or need a shape, and no rate of a switch."""
        near = get_close_matches(self.kind, KNOWN_LINKS, n=1, cutoff=0.75)
        if near and self.kind not in KNOWN_LINKS:
            raise ValueError(
                f"kind: expected {near[0]!r}, or a word that is not so near it; got {self.kind!r}"
            )
        if _is_shaped(self.topology):
            raise ValueError(f"topology: a {self.topology} has a shape, which a cluster's tier says")
        if self.in_network_reduction.value and self.reduction_bandwidth is None:
            raise ValueError("reduction_bandwidth: expected a rate, because in_network_reduction is true")
        return self


def _is_shaped(topology: str) -> bool:
    """Tell whether a wiring has dimensions; refuse one that does not exist."""
    if topology not in TOPOLOGIES:
        raise ValueError(f"topology: unknown {topology!r}; {choices_hint(topology, TOPOLOGIES)}")
    return TOPOLOGIES[topology].shaped


class TierEntry(Strict):
    """One level of a cluster: a link, how many GPUs it joins, how, and what differs from the link's file.

    A torus has a `shape`, the chips along each dimension of its largest slice, in place of a size. Its ends are
    joined by wires, a dimension's where its length is a multiple of `wrap_multiple`; or by switches between
    cubes, all of them in slices of whole cubes of side `wrap_cube` and none in smaller ones.
    """

    name: str
    link: str
    size: Sourced[Positive] | None = None
    topology: str | None = None
    shape: Sourced[tuple[Positive, ...]] | None = None
    wrap_multiple: Sourced[Positive] | None = None
    wrap_cube: Sourced[Positive] | None = None
    oversubscription: SourcedMultiple | None = None
    bandwidth: SourcedRate | None = None
    efficiency: Sourced[Share] | None = None
    reduction_bandwidth: SourcedRate | None = None
    """What a GPU can send into a reduction by this level's switches, where they are set up for it (SHARP)."""
    added_latency: Sourced[Seconds] | None = None

    @model_validator(mode="after")
    def _shape_belongs_to_a_torus(self) -> Self:
        """Ask for what the wiring needs, refuse what it does not have."""
        wiring = self.topology or SWITCH.name
        if not _is_shaped(wiring):
            for key in ("shape", "wrap_multiple", "wrap_cube"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}: expected none, because a {wiring} has no dimensions")
            if self.size is None:
                raise ValueError("size: expected {value: ..., source: ...}; the key is missing")
            return self
        if self.shape is None or not 1 <= len(self.shape.value) <= 3:
            raise ValueError(f"shape: expected one to three lengths such as [16, 16], for a {wiring}")
        if self.wrap_multiple is None and self.wrap_cube is None:
            raise ValueError(
                f"wrap_multiple: expected a whole number, of which the lengths of a {wiring} whose ends "
                "are joined are multiples; or wrap_cube, the side of the cubes that a slice is made of whole"
            )
        if self.wrap_multiple is not None and self.wrap_cube is not None:
            raise ValueError("wrap_cube: expected none beside wrap_multiple: ends are joined by either rule")
        if self.size is not None and self.size.value != self.gpus:
            raise ValueError(
                f"size: expected {self.gpus}, the product of shape, or no size; got {self.size.value}"
            )
        return self

    @property
    def gpus(self) -> int:
        """GPUs of one domain."""
        if self.shape is not None:
            return prod(self.shape.value)
        assert self.size is not None
        return self.size.value


class HostFile(Strict):
    """What the GPUs of one node share; see `Host`."""

    memory: SourcedSize
    memory_bandwidth: SourcedRate
    gpus_per_link: Sourced[Positive]


class ClusterFile(_Profile):
    """An accelerator and the tiers that join many of it, innermost first."""

    accelerator: str
    reference: Annotated[bool, Field(strict=True)] = False
    """Whether its accelerator's name, given as a cluster, means it: the vendor's reference machine of several."""
    gpus_per_node: Sourced[Positive]
    host: HostFile
    tiers: tuple[TierEntry, ...] = Field(min_length=1)
    storage: str | None = None
    price_usd_per_gpu_hour: SourcedFactor | None = None
    price_date: date | None = None
    price_range_usd_per_gpu_hour: Sourced[tuple[_Usd, _Usd]] | None = None
    pue: SourcedMultiple

    @model_validator(mode="after")
    def _tiers_nest(self) -> Self:
        """Each domain must hold a whole number, two or more, of the ones inside it."""
        sizes = [tier.gpus for tier in self.tiers]
        for index, (inner, outer) in enumerate(itertools.pairwise(sizes), start=1):
            if outer <= inner or outer % inner:
                raise ValueError(
                    f"tiers.{index}.size: expected a multiple of the tier inside ({inner}), got {outer}"
                )
        for index, tier in enumerate(self.tiers[1:], start=1):
            if tier.topology is not None and TOPOLOGIES[tier.topology].innermost:
                raise ValueError(
                    f"tiers.{index}.topology: a {tier.topology} can only be the innermost tier, tiers.0"
                )
        node = self.gpus_per_node.value
        if any(size % node and node % size for size in sizes):
            raise ValueError(
                f"gpus_per_node: expected whole nodes in every tier (of {_listing(sizes)}), or whole tiers in a node; "
                f"got {node}"
            )
        if node % self.host.gpus_per_link.value:
            raise ValueError(
                f"host.gpus_per_link: expected a part of gpus_per_node, {node}; got {self.host.gpus_per_link.value}"
            )
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise ValueError("tiers: expected a different name for each tier")
        if self.price_usd_per_gpu_hour is not None and self.price_date is None:
            raise ValueError("price_date: expected a date such as 2026-05-20, because prices move")
        if self.price_range_usd_per_gpu_hour is not None:
            low, high = self.price_range_usd_per_gpu_hour.value
            price = self.price_usd_per_gpu_hour
            if price is None or not low <= price.value <= high:
                raise ValueError(
                    "price_range_usd_per_gpu_hour: expected two prices, the lower first, with "
                    f"price_usd_per_gpu_hour between them; got {low:g} and {high:g}"
                )
        return self


class StorageFile(_Profile):
    """Where checkpoints go: what one node can move, and what all of them share."""

    write_bandwidth_per_node: SourcedRate
    read_bandwidth_per_node: SourcedRate
    write_bandwidth_shared: SourcedRate
    read_bandwidth_shared: SourcedRate


SCHEMAS: dict[str, type[_Profile]] = {
    "accelerator": AcceleratorFile,
    "link": LinkFile,
    "cluster": ClusterFile,
    "storage": StorageFile,
}


_WANTED = {
    "source": "a source",
    "generation": "a word for the family, such as hopper",
    "software": "{attention: ..., torch_attention: ..., fp8: ..., fp8_layouts: one or both}",
    "peak_dense": "{bf16: {value: ..., source: ...}}, a rate for each dtype",
    "kernels": "{like: an accelerator, because: a reason}",
    "host": "{memory: ..., memory_bandwidth: ..., gpus_per_link: ...}, each {value: ..., source: ...}",
    "tiers": "a list of {name: ..., link: ..., size: {value: ..., source: ...}}, innermost first",
    **dict.fromkeys(
        ("basis", "fixed", "memory_fraction"),
        "a constant of its own, or kernels: {like: an accelerator, because: a reason} in place of them all",
    ),
    **dict.fromkeys(("name", "title", "accelerator", "link", "kind", "profile"), "a name"),
}
"""What a file is asked for where a key is missing; a number with its source elsewhere."""


def validate(content: dict[str, Any], kind: str) -> tuple[_Profile | None, list[str]]:
    """Return the checked profile, and what is wrong with it as ``key.path: expected …; got …``."""
    file, found = None, []
    try:
        file = SCHEMAS[kind].model_validate(content)
    except ValidationError as error:
        found = [explain(item, SCHEMAS[kind]) for item in error.errors(include_url=False)]
    return file, [*found, *_source_problems(content)]


def _source_problems(content: dict[str, Any]) -> Iterator[str]:
    """Yield sources that are cited but not listed."""
    listed = content.get("sources", {})
    if not isinstance(listed, dict):
        return
    checked = {key: child for key, child in content.items() if key not in ("sources", *FITTED_BLOCKS)}
    for path, key in citations(checked):
        if key != "assumed" and key not in listed:
            yield f"{path}: expected a key of 'sources' ({_listing(listed)}) or 'assumed'; got {key!r}"


def memory_problem(usable: float, fitted: float) -> str:
    """Say why so much memory cannot be usable of what is fitted, both in bytes; nothing where it can."""
    # In the units of programs and of data sheets: a mix-up of these is how one exceeds the other.
    above, got = (f"{size / 2**30:.1f} GiB, {size / 1e9:.1f} GB" for size in (fitted, usable))
    if usable <= fitted:
        return ""
    return f"memory: expected at most memory_vendor, what is fitted ({above}), got {got}"


def explain(item: Any, schema: type[BaseModel]) -> str:
    """Return one pydantic error as one line: key path, what is expected, what was given."""
    loc = [str(part) for part in item["loc"]]
    given = repr(item["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    match item["type"]:
        case "missing":
            wanted = _WANTED.get(loc[-1], "{value: ..., source: ...}")
            return f"{'.'.join(loc)}: expected {wanted}; the key is missing"
        case "extra_forbidden":
            is_tier = loc[0] == "tiers" and len(loc) == 3
            keys = schema if len(loc) == 1 else TierEntry if is_tier else Sourced
            near = get_close_matches(loc[-1], list(keys.model_fields), n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            return f"{'.'.join(loc)}: expected no such key{hint}; got {given}"
        case "model_type" | "model_attributes_type":
            return f"{'.'.join(loc)}: expected {{value: ..., source: ...}}; got {given}"
        case "value_error":
            text = str(item["ctx"]["error"]) if "ctx" in item else item["msg"]
            return f"{'.'.join(loc)}: {text}" if loc else text
        case _:
            text = expected_text(item["msg"])
            if item["type"] == "string_pattern_mismatch":
                text = "small letters, digits and hyphens" if "a-z0-9" in text else "letters"
            loc = [part for part in loc if part != "[key]"]
            return f"{'.'.join(loc)}: expected {text}; got {given}"


def _listing(names: Iterable[object]) -> str:
    """Return names joined, or a dash where there are none."""
    return ", ".join(str(name) for name in names) or "none listed"
