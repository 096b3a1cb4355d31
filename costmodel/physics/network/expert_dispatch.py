r"""Dispatch and combine of mixture-of-experts tokens by kernels that send each token once per node.

A token goes to the domains that hold its top-k experts. Sent once per domain and passed on inside
(DeepEP), the copies that leave a domain are the distinct domains hit, less the sender's own:

.. math:: c = \min(L, N)\left(1 - \left(1 - \tfrac{1}{\min(L, N)}\right)^k\right)\left(1 - \tfrac{1}{N}\right)

of N domains of which routing may use L; each tier carries its copies and the slowest sets the time.
Combine is the same with the bytes of its own dtype.

References
----------
.. [1] DeepSeek-AI, DeepEP, README (measured bandwidths) and tests/test_internode.py (what they count:
   copies to the sender's own node too, so the printed 58 GB/s is 43 GB/s on a 50 GB/s port).
.. [2] DeepSeek-AI, "DeepSeek-V3 technical report," arXiv:2412.19437, section 3.2.2 (node-limited routing).
.. [3] NVIDIA, Hybrid-EP, docs/README_Hybrid-EP.md (tables of H100, B200 and GB200) and docs/Hybrid-EP_Implementation.md
   of deepseek-ai/DeepEP's branch hybrid-ep (buffers).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_records
from costmodel.bill.formula import with_steps
from costmodel.physics.network.fabric import NCCL_ALGORITHMS, GroupCost, Tier
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.paths import Level, Route, Steps, go_on, path_of
from costmodel.physics.network.torus import torus_steps

Array = NDArray[np.float64]

# DeepEP works in nodes of eight, a channel for every two SMs; a slot holds a token in bf16 with its source, 128
# experts, their weights and 128 scales. The more ranks, the more slots (`Buffer.get_dispatch_config`); NVSHMEM hands
# memory out in pieces of `heap_bytes` (deep_ep/buffer.py, NVSHMEM_CUMEM_GRANULARITY).
# Hybrid-EP keeps room for every token of every rank: all might go to one. With it the probabilities of the experts in
# its NVLink domain, in fp32; between domains what each other one sends.
_BUFFER_STEPS = (
    ("token_bytes", "2 * hidden_size + 8 + 128 * (8 + 4 + 4)"),
    ("slots", "where(ranks > 128, 720, where(ranks > 64, 560, where(ranks > 8, 288, 256)))"),
    ("nodes", "where(ranks > 8, ranks / 8, 0)"),
    ("sent_bytes", "sms / 2 * nodes * 128 * 2 * (token_bytes + 16)"),
    ("heap_bytes", "2 ** 29"),
    ("kept_bytes", "2 * hidden_size + 4 * experts / ranks * domain"),
)


@dataclass(frozen=True, kw_only=True)
class Dispatcher:
    """How the tokens of a mixture of experts travel to the experts and back: a row of ``dispatchers.csv``."""

    name: str  # As recipes write it
    dispatch: str
    combine: str
    """Collective each way; "" where kernels of its own send each token once to each node (`moe_exchange_time`)."""
    copies: str
    """What the collective's buffer holds of each token: a formula over `ranks`, `top_k` and `imbalance`."""
    quantised_bytes: float
    """Bytes an element of a dispatch where the layers compute in a low precision, scales included (fp32 every 128)."""
    router_kernels: float | None
    """Kernels of router and preprocessing, forward, where the dispatcher brings its own (NVIDIA/Megatron-LM
    docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and 2.2.1)."""
    waits_for_counts: bool
    """Whether the host waits for how many tokens its rank got before it can size what follows (NVIDIA/Megatron-LM
    token_dispatcher.py `_maybe_dtoh_and_synchronize`; deepseek-ai/DeepEP csrc/deep_ep.cpp `intranode_dispatch` polls)."""
    sms: float
    """Streaming multiprocessors that its kernels hold while they send, unless a recipe says so; 0 where it sends by a
    library whose share is the recipe's `overlap_contention`. On NVLink 5 the 16 of Hybrid-EP (--moe-hybridep-num-sms)
    send 600 to 750 GB/s where DeepEP's send 280 to 360; it needs 32 for 440 to 620. [-]"""
    network_rate: float
    """Rate of its messages between nodes, over that which the link's profile has for such kernels. Hybrid-EP: six figures
    of 16, 32 and 64 H100 in bf16 by 8 SMs, in the mean 40.7 GB/s of a port where DeepEP has 43.7. [-]"""
    node_buffer: str
    network_buffer: str
    """Bytes that it holds on every GPU for messages inside and between nodes: formulas over `ranks`, `sms`,
    `hidden_size`, `tokens` (of a rank and micro-batch), `experts` and `domain` (ranks of the group in a node)."""
    buffer_source: str
    description: str  # What it sends, for the table of the mesh
    source: str


DISPATCHERS: dict[str, Dispatcher] = read_records(
    Path(__file__).with_name("dispatchers.csv"),
    Dispatcher,
    node_buffer=lambda row: with_steps(_BUFFER_STEPS, row["node_buffer"] or "0"),
    network_buffer=lambda row: with_steps(_BUFFER_STEPS, row["network_buffer"] or "0"),
)
"""Every dispatcher by its name."""

DISPATCH_LATENCY_S = 25e-6
"""Fixed time of a dispatch or combine: DeepEP's low-latency table at EP 8 to 256, straight line."""

_COPIES = "usable * (1 - (1 - 1 / usable) ** top_k) * (1 - 1 / domains)"
"""Copies of a token that leave its own domain, one per other domain that it is routed to."""


@cache
def _route(deduplicate: bool, limited: bool, slowed: bool) -> Route:
    """Return the traffic of tokens sent once a domain or once an expert, to all domains or to some.

    Its steps are the copies that cross each tier, and seconds a byte of a token on the slowest.
    """

    def steps_of(levels: tuple[Level, ...]) -> Steps:
        steps, slowest_s, most = [], "", "0"
        for at in levels:
            name = at.name
            steps.append((f"{name}_domains", at.over_below("ranks")))
            copies = f"top_k * (1 - 1 / {name}_domains)"
            if deduplicate:
                # GPUs that a token may go to are those of the nodes that it may use.
                limit = f"node_limit * {name}_members" if at.inner else "node_limit"
                usable = f"min({limit}, {name}_domains)" if limited else f"{name}_domains"
                steps.append((f"{name}_usable", usable))
                copies = _COPIES.replace("usable", f"{name}_usable").replace("domains", f"{name}_domains")
            steps.append((f"{name}_copies", at.where_crossed(copies)))
            if at.axes:
                # What each chip sends, as if it were spread evenly over all chips and itself.
                steps += torus_steps(at.axes)
                whole = f"{name}_members / max({name}_members - 1, 1)"
                steps.append((f"{name}_s_per_byte", f"{name}_copies * {whole} * spread_s_per_byte"))
            else:
                slower = " * network_rate" if slowed and not at.inner else ""
                rate = at.rate(at.wiring.pairs, "dispatch_rate_factor")
                steps.append((f"{name}_s_per_byte", f"{name}_copies / ({rate}{slower})"))
            each_s = f"{name}_s_per_byte"
            most = f"where({each_s} > {slowest_s}, {name}_copies, {most})" if slowest_s else f"{name}_copies"
            slowest_s = f"max({slowest_s}, {each_s})" if slowest_s else each_s
        return (*steps, ("exchange_s_per_byte", slowest_s or "0"), ("copies", most))

    return steps_of


def moe_exchange_time(
    num_tokens: ArrayLike,
    bytes_per_token: ArrayLike,
    top_k: ArrayLike,
    group: Group,
    tiers: Sequence[Tier],
    *,
    node_limit: ArrayLike = 0.0,
    deduplicate: bool = True,
    imbalance: ArrayLike = 1.0,
    concurrent: ArrayLike = 1.0,
    network_rate: float = 1.0,
) -> GroupCost:
    """Time to send each rank's tokens to their experts, or to bring the results back.

    Tokens are those of one rank, their bytes with scales [B], `top_k` the routed experts of each; routing is uniform over
    experts and may use `node_limit` innermost domains for one token (0: all). One copy a domain, passed on inside, or without
    `deduplicate` one an expert (low-latency kernels). `imbalance` is the busiest rank's tokens over the mean, `concurrent`
    groups share each port, `network_rate` is as in `Dispatcher`. [-] ``wire_bytes`` are on the slowest tier. The SMs that
    the kernels take from the computation beside them are for the caller to count.
    """
    nodes = np.asarray(node_limit, dtype=np.float64)
    limited, slowed = bool((nodes > 0.0).any()), network_rate != 1.0
    more: dict[str, ArrayLike] = {"top_k": top_k}
    if limited:
        more["node_limit"] = np.where(nodes > 0.0, nodes, np.inf)
    if slowed:
        more["network_rate"] = network_rate
    path = path_of(group, tiers, concurrent, _route(deduplicate, limited, slowed), **more)
    known = {
        **path.terms,
        **path.values,
        "tokens": np.asarray(num_tokens, dtype=np.float64),
        "busiest": imbalance,
        "token_bytes": bytes_per_token,
        "start_s": DISPATCH_LATENCY_S,
    }
    start = "where(ranks > 1, start_s, 0)" if path.alone.any() else "start_s"
    made = go_on(
        f"latency_s = {start}; payload_bytes = tokens * busiest * token_bytes; "
        "transfer_s = payload_bytes * exchange_s_per_byte; latency_s + transfer_s",
        path.steps,
        known,
    )
    wire = np.asarray(made.step("payload_bytes") * path.values["copies"])
    direct = float(NCCL_ALGORITHMS.index("direct"))
    return GroupCost(made, wire, path.tier, np.where(path.alone, 0.0, direct))
