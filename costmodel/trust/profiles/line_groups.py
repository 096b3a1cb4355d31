"""Which lines of a bill and which classes of kernels are the same work: one table of groups.

A group has a side on the bill and one in the trace. Where a trace cannot tell two groups apart (products of experts
that run one by one, passes that nothing names, an exchange of experts by NCCL), they are laid together on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from costmodel.bill.lines import TimeLine
from costmodel.trust.profiles.kernel_families import COMMUNICATION

WAITING = "waiting"
"""The group whose side in the trace is the time in which the GPU does nothing."""


class Group(NamedTuple):
    """Work that stands on the bill and in a trace.

    Attributes
    ----------
    name : str
        Of the group; with a pass behind a dot where it is told apart by pass.
    lines : str
        Regular expression of ``axis toll cause host_way name`` of the bill's lines, "" where the bill has none.
    classes : tuple of str
        Classes of kernels.
    bill_longer, trace_longer : str
        What could explain that the bill is longer, or the trace, and the switch or field that says so.
    by_pass : bool
        Whether its passes are groups of their own.
    """

    name: str
    lines: str
    classes: tuple[str, ...]
    bill_longer: str
    trace_longer: str
    by_pass: bool = False


GROUPS: tuple[Group, ...] = (
    Group(
        "host_copies",
        r"^\w+ \w+ \w+ (in|out) ",
        ("memcpy", "memset"),
        "less is moved to the host: see offload_optimizer, offload_parameters and offload_activations",
        "something moves to the host or between buffers that the job does not say: "
        "--set offload_optimizer=true, --set offload_activations=…",
    ),
    Group(
        "waiting",
        r"^\w+ (bubble|overhead) |^resilience |overhead\.port|packing\.imbalance|stage_with_more_to_send",
        (),
        "the bill has shares for what nobody explains and for other ranks (overhead_fraction, stragglers, bubble), "
        "which a window without its pipeline or its optimizer does not see",
        "the host issues too slowly (--set launch_s=…, --set cuda_graphs=false), or the GPU waits for other ranks: "
        "--stragglers",
    ),
    Group(
        "exchange_wait",
        "",
        ("exchange_wait",),
        "",
        "ranks wait for each other before they exchange: they begin it at different times (--stragglers, "
        "--set moe_balance=random); it costs what is exposed of it",
    ),
    Group(
        "optimizer",
        r"^optimizer ",
        ("optimizer",),
        "the window may end before the optimizer; states may be smaller or sharded further: --zero, --optimizer, "
        "--set moments_bytes=…",
        "the optimizer is not fused, or states are larger: --zero, --optimizer, --set master_weights_bytes=…",
    ),
    Group(
        "dispatch",
        r"^ep communication work  \S*moe\.(dispatch\.(forward|recompute)|combine\.backward)$",
        ("dispatch",),
        "fewer copies of a token cross nodes: --set node_limited_routing=…; or they travel in 8 bits: "
        "--set moe_dispatches_gradients_in_fp8=true",
        "kernels wait inside for ranks that begin later (--set moe_balance=random), are slower beside compute "
        "(--set exchange_rate_under_load=…), or send 16 bits: --set moe_dispatches_gradients_in_fp8=false",
    ),
    Group(
        "combine",
        r"^ep communication work  \S*moe\.(combine\.(forward|recompute)|dispatch\.backward)$",
        ("combine",),
        "fewer copies of a token cross nodes: --set node_limited_routing=…",
        "kernels wait inside for ranks that begin later (--set moe_balance=random), or share memory and links with "
        "what they hide behind: --set exchange_rate_under_load=…",
    ),
    Group(
        "point_to_point",
        r"^(pp|cp) communication work  \S*(send_recv|ring|all_to_all)",
        ("send_recv",),
        "messages of a pipeline or a ring are shorter: --micro-batch, --cp, --set cp_method=…",
        "a receive that is posted early waits for its sender, and counts: look at what is exposed; or the exchange of "
        "experts runs on NCCL: --set moe_dispatcher=all-to-all",
    ),
    Group(
        "collectives",
        r"^(tp|cp|ep|dp|pp|optimizer|compute) communication ",
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "other_collective"),
        "less is sent, or in a smaller dtype: --zero, --set grad_reduce_dtype=bf16, --set gather_dtype=fp8",
        "kernels wait inside for the slowest rank (look at what is exposed), or the fabric is slower than its profile: "
        "costmodel calibrate fabric; --set overlap_contention=…",
    ),
    Group(
        "attention",
        r"^compute \w+ work  \S*attention\.(core|scores|context|softmax)\.",
        ("attention",),
        "another kernel runs: --set attention_kernel=…; or masks leave out more: --packed-len",
        "another kernel runs: --set attention_kernel=…; or it runs again in the backward pass: --recompute",
        by_pass=True,
    ),
    Group(
        "mixer",
        r"^compute \w+ work  \S*mixer\.(scan|conv|gates|index_\w+)\.",
        ("mixer",),
        "another kernel runs than the bill prices",
        "another kernel runs than the bill prices, or it runs again in the backward pass: --recompute",
    ),
    Group(
        "experts",
        r"^compute math work  \S*moe\.experts\.\w+\.",
        ("experts",),
        "ranks have fewer tokens than the bill says: --set moe_balance=balanced",
        "tokens lie unevenly (--set moe_imbalance=…), or SMs are kept for communication: --set reserved_sm_share=…",
        by_pass=True,
    ),
    Group(
        "matmul",
        r"^compute math work  ",
        ("matmul",),
        "products run in fewer bits or faster than this GPU's profile: --precision, costmodel calibrate kernels",
        "products run in more bits (--precision), again in the backward pass (--recompute), on fewer SMs "
        "(--set reserved_sm_share=…), or slower than this GPU's profile: --set weight_gradient_slowdown=…, "
        "costmodel calibrate kernels",
        by_pass=True,
    ),
    Group(
        "norm",
        r"^compute hbm work  \S*norm\.\w+$",
        ("norm",),
        "norms are fused with what stands beside them: --set compiled=true",
        "norms are chains of kernels (--set fused_norm=false), or run again in the backward pass: --recompute",
    ),
    Group(
        "quantise_and_permute",
        r"^compute hbm work  \S*(quantise|permute|transpose)\.\w+$",
        ("cast", "permute"),
        "casts or permutations are fused into other kernels (--set fused_grouped_mlp=true), weights are cast once a step "
        "(--set quantised_weights=cached), or nothing is cast: --precision",
        "products run in 8 bits (--precision), weights are cast for every product (--set quantised_weights=none), or "
        "casts and transposes are kernels of their own: --set cast_slowdown=…",
    ),
    Group(
        "embedding",
        r"^compute hbm work  \S*lookup\.\w+$",
        ("embedding",),
        "the window may hold no embedding: it is on the first stage of a pipeline",
        "its gradient is summed token by token",
    ),
    Group(
        "loss",
        r"^compute hbm work  \S*head\.(loss|gathered_logits)\.",
        ("softmax_and_loss",),
        "the window may hold no head, which is on the last stage of a pipeline; or the loss is fused: "
        "--set cross_entropy=fused",
        "the loss is not fused (--set cross_entropy=unfused), or the softmax of attention is a kernel of its own: "
        "--set attention_kernel=fused-softmax",
    ),
    Group(
        "elementwise",
        r"^(compute|cp|dp|tp) hbm work  ",
        ("elementwise", "routing", "copy"),
        "chains are fused: --set compiled=true, --set fused_activation=true, --set router_fusion=true",
        "chains are not fused (--set fused_activation=false, --set fused_rope=false, --set router_fusion=false), or copies "
        "that the bill does not know: parameters of FSDP (--set fsdp_buffers=per-parameter), layouts of attention",
    ),
    Group(
        "graphs",
        "",
        ("graph",),
        "",
        "whole CUDA graphs: record with --cuda-graph-trace=node to see their kernels",
    ),
    Group("unknown", "", ("unknown",), "", "kernels that no family has: they are listed by name"),
)

COMPUTING = frozenset(
    group.name
    for group in GROUPS
    if not set(group.classes) & {*COMMUNICATION, "memcpy", "memset"} and group.classes
)
"""Groups whose kernels compute."""

_PATTERNS = tuple((re.compile(group.lines), group) for group in GROUPS if group.lines)
_BY_CLASS = {name: group for group in GROUPS for name in group.classes}


def group_of_line(line: TimeLine) -> Group:
    """Return the group of a line of the bill.

    Raises
    ------
    LookupError
        If none has it: a line must never be left out.
    """
    text = f"{line.axis} {line.toll} {line.cause} {line.host_way} {line.name}"
    for pattern, group in _PATTERNS:
        if pattern.search(text):
            return group
    raise LookupError(f"no group of lines has {text!r}")


def pass_of_line(line: TimeLine) -> str:
    """Return the pass in which a trace shows a line.

    What runs again does so in the backward pass; attention, told by its name, shows as the forward kernel that it is.
    """
    if line.phase == "recompute":
        return "forward" if group_of_line(line).name == "attention" else "backward"
    return str(line.phase)


def group_of_class(label: str) -> tuple[str, str]:
    """Return group and pass of a class of kernels as `classing.Labels` names it."""
    name, _, runs_in = label.partition(".")
    return _BY_CLASS[name].name, runs_in


def merged(trace: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], str]:
    """Return under which name each group and pass of a trace is shown, after what it cannot tell apart.

    Parameters
    ----------
    trace : mapping
        Busy seconds by group and pass.
    """
    names: dict[tuple[str, str], str] = {}
    for group in GROUPS:
        passes = ("forward", "backward", "backward_weight") if group.by_pass else ("",)
        for runs_in in passes:
            names[group.name, runs_in] = f"{group.name}.{runs_in}" if runs_in else group.name

    def have(group: str, *passes: str) -> float:
        return sum(
            seconds for (name, runs_in), seconds in trace.items() if name == group and runs_in in passes
        )

    told = ("forward", "backward", "backward_weight")
    for name in ("attention", "matmul", "experts"):
        if have(name, "") > 0.01 * have(name, "", *told) or not have(name, "", *told):
            names |= {(name, runs_in): name for runs_in in (*told, "")}
        elif not have(name, "backward_weight"):
            # One backward pass, whose two products the names do not tell apart.
            names |= {(name, runs_in): f"{name}.backward" for runs_in in ("backward", "backward_weight")}
        names.setdefault((name, ""), name)
    _without_experts(
        names, have("experts", "", "forward", "backward"), have("experts", "backward_weight"), told
    )
    if not have("dispatch", "") and not have("combine", ""):
        names |= {(name, ""): "point_to_point" for name in ("dispatch", "combine")}
    return names


def _without_experts(
    names: dict[tuple[str, str], str], grouped: float, grouped_weights: float, told: Iterable[str]
) -> None:
    """Lay products of experts that are not grouped to the other products."""
    if not grouped:
        names |= {("experts", runs_in): names["matmul", runs_in] for runs_in in (*told, "")}
    elif not grouped_weights:
        names["experts", "backward_weight"] = names["matmul", "backward_weight"]
