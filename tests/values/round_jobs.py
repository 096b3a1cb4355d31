"""Small jobs of round numbers on a machine of round numbers, and the few sums that their bills are made of.

`profiles/` describes the machine: a kernel's time is a fixed time, and then mathematics at 50 TFLOP/s
beside memory at 1 TB/s; a collective inside a node of four pays 5 us, 1 us a ring step, and 100 GB/s;
across nodes 20 us, 10 us and 10 GB/s. Nothing else is in the way: no waves, no pipelines of chunks,
no launches, no overhead, unless a test asks for it.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

import costmodel as cm

CLUSTER = Path(__file__).with_name("profiles") / "round-cluster.yaml"
MIB = 2.0**20
TOKENS = 1024
HIDDEN = 1024

# Hidden 1,024, 8 heads of 128, 4 of them with keys of their own, a gated MLP of 4,096.
SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 1024,
    "num_heads": 8,
    "num_kv_heads": 4,
    "ffn_size": 4096,
    "gated_mlp": True,
    "vocab_size": 32000,
}
# Its matrices: 2 (Q and output) + 1 (K and V) + 12 (MLP) MiB of elements a layer, two norms, 31.25 a table.
LAYER_PARAMS = 15 * 2**20 + 2 * 1024
TABLE_PARAMS = 32000 * 1024

# Eight experts of 512, two a token, in every layer.
MOE = {
    **SMALL,
    "ffn_size": 0,
    "num_experts": 8,
    "top_k": 2,
    "expert_ffn_size": 512,
}
# Latent attention: ranks of 256 and 128, heads of 64 + 32 for queries and keys, of 64 for values.
LATENT = {
    **SMALL,
    "attention": "mla",
    "num_kv_heads": 8,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}

# Nothing but what the axis under test does.
QUIET = {
    "moe_balance": "balanced",
    "launch_s": 0.0,
    "kernel_gap_s": 0.0,
    "overhead_fraction": 0.0,
    "straggler_variation": 0.0,
    "allocator_slack": 0.0,
    "context_bytes": 0.0,
    "communicator_bytes": 0.0,
    "overlap_contention": 0.1,
    "fused_wgrad": False,
    "grouped_launch_share": 0.0,
    "expert_bias_chain": False,
}

_FOLDER = tempfile.TemporaryDirectory()


def model_file(fields: dict[str, Any]) -> str:
    """Write a model's fields as a YAML file, as a user would, and return its path."""
    text = "".join(f"{key}: {str(value).lower()}\n" for key, value in fields.items())
    path = Path(_FOLDER.name) / f"model-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    path.write_text(text)
    return str(path)


def cluster_file(**changes: dict[str, Any]) -> str:
    """Write the round machine with other numbers, and return its cluster's path.

    `gpu`, `inner`, `outer` and `cluster` change top-level keys of their profiles; a plain number or text
    becomes a sourced one.
    """
    yaml = YAML(typ="safe", pure=True)
    key = hashlib.sha256(repr(sorted(changes.items())).encode()).hexdigest()[:12]
    folder = Path(_FOLDER.name) / f"machine-{key}"
    folder.mkdir(exist_ok=True)
    for part in ("gpu", "inner", "outer", "cluster"):
        content = yaml.load(CLUSTER.with_name(f"round-{part}.yaml").read_text())
        for name, value in changes.get(part, {}).items():
            sourced = isinstance(value, str | int | float)
            content[name] = {"value": value, "source": "assumed"} if sourced else value
        with (folder / f"round-{part}.yaml").open("w") as file:
            yaml.dump(content, file)
    return str(folder / "round-cluster.yaml")


def price(
    model: dict[str, Any] | None = None, *, switches: dict[str, Any] | None = None, **job: Any
) -> cm.Estimate:
    """Price a job of the small model; by default one sequence of 1,024 tokens on one GPU, ZeRO-1."""
    asked: dict[str, Any] = {"cluster": str(CLUSTER), "gpus": 1, "global_batch": 1, "seq_len": TOKENS}
    return cm.estimate(
        model=model_file(model or SMALL),
        recipe="megatron-core",
        switches={**QUIET, **(switches or {})},
        **{**asked, **job},
    )


def near(values: Any) -> Any:
    """Expect values to nine digits; of a mapping, exactly its keys."""
    if isinstance(values, dict) and any(isinstance(value, list) for value in values.values()):
        return {key: pytest.approx(value, rel=1e-9) for key, value in values.items()}
    return pytest.approx(values, rel=1e-9)


def line(est: cm.Estimate, name: str) -> Any:
    """Return the time line of a name."""
    return next(line for line in est.bill.time_lines if line.name == name)


def each_us(est: cm.Estimate, *starts: str) -> dict[str, float]:
    """Busy microseconds of one execution of every line that costs anything, by name."""
    return {
        line.name: 1e6 * float(line.each_s)
        for line in est.bill.time_lines
        if line.name.startswith(starts or "") and float(line.each_s) and float(line.count)
    }


def exposed_us(est: cm.Estimate, *starts: str) -> dict[str, float]:
    """Exposed microseconds of one execution of every line that costs anything, by name."""
    return {
        line.name: 1e6 * float(line.exposed_each_s)
        for line in est.bill.time_lines
        if line.name.startswith(starts or "") and float(line.each_s) and float(line.count)
    }


def counts(est: cm.Estimate, *starts: str) -> dict[str, float]:
    """Executions a step of every line that costs anything, by name."""
    return {
        line.name: float(line.count)
        for line in est.bill.time_lines
        if line.name.startswith(starts or "") and float(line.each_s) and float(line.count)
    }


def sent_bytes(est: cm.Estimate, *starts: str) -> dict[str, float]:
    """Bytes of one execution of every line that moves any, by name."""
    return {
        line.name: float(line.bytes_each)
        for line in est.bill.time_lines
        if line.name.startswith(starts or "") and float(line.bytes_each) and float(line.count)
    }


def memory(est: cm.Estimate, *starts: str) -> dict[str, Any]:
    """Bytes of every memory line that holds any, by name: a number, or one a stage where stages differ."""
    stages = est.bill.memory_per_stage_bytes().shape[-1]
    found = {}
    for one in est.bill.memory_lines:
        if one.name.startswith(starts or "") and np.any(one.bytes):
            held = np.broadcast_to(one.bytes, (stages,)).tolist()
            found[one.name] = held[0] if len(set(held)) == 1 else held
    return found


def total_us(est: cm.Estimate, phase: str, *starts: str, axis: str = "") -> float:
    """Exposed microseconds of one execution of each line of a phase."""
    return sum(
        1e6 * float(line.exposed_each_s)
        for line in est.bill.time_lines
        if line.phase == phase and line.name.startswith(starts or "") and axis in ("", line.axis)
    )


def product_us(
    m: float,
    n: float,
    k: float,
    *,
    groups: float = 1,
    inputs: float = 2,
    output: float = 2,
    tflops: float = 50,
    fixed: float = 2,
) -> float:
    """Microseconds of `groups` products of m x k by k x n; `output` are bytes written and read of an element."""
    math = 2.0 * m * n * k * groups / (tflops * 1e6)
    hbm = groups * (inputs * k * (m + n) + output * m * n) / 1e6
    return fixed + float(np.cbrt(math**3 + hbm**3))


def weight_us(m: float, n: float, k: float, **more: float) -> float:
    """Microseconds of the weight gradient of an m x k by k x n product, added into fp32: 4 B read, 4 written."""
    return product_us(k, n, m, output=8, **more)


def attention_us(
    heads: float,
    kv_heads: float,
    queries: float,
    keys: float,
    met: float,
    width: float,
    backward: bool = False,
) -> float:
    """Microseconds of fused attention: 2 products a score that is `met`, or 5; Q, K, V and output once, or twice."""
    products = 5 if backward else 2
    math = 2.0 * heads * queries * met * products * width / 50e6
    hbm = (2 if backward else 1) * 2.0 * 2 * width * (heads * queries + kv_heads * keys) / 1e6
    return 4 + float(np.cbrt(math**3 + hbm**3))


def moved_us(size_bytes: float, kernels: float = 1) -> float:
    """Microseconds of kernels that move bytes."""
    return kernels + size_bytes / 1e6


def computed_us(touched: float, kernels: float = 1.0) -> float:
    """Time of kernels that the one SM limits: 2,070 elements a microsecond."""
    return kernels + touched / 2070.0


def ring_us(size_bytes: float, ranks: int = 2, *, passes: int = 1, outer: bool = False) -> float:
    """Microseconds of a ring inside a node, or of one rank a node across nodes; an all-reduce passes twice."""
    base, step, rate = (20, 10, 1e4) if outer else (5, 1, 1e5)
    return base + passes * (ranks - 1) * step + passes * (ranks - 1) / ranks * size_bytes / rate


def hidden_us(busy: float, window: float, least: float = 0.0) -> float:
    """Microseconds that a step pays for what runs beside a window: the rest, and a tenth of what hides."""
    exposed = max(busy - window, least * busy)
    return exposed + 0.1 * (busy - exposed)


def step_us(est: cm.Estimate, *phases: str, axes: tuple[str, ...] = ("compute", "tp", "cp", "ep")) -> float:
    """Exposed microseconds a step of the lines of some phases: what one pass of everything takes."""
    return sum(
        1e6 * float(line.exposed_seconds)
        for line in est.bill.time_lines
        if line.phase in phases and line.axis in axes and not line.name.startswith(("overhead.", "offload."))
    )


def two_nodes_us(size_bytes: float) -> float:
    """Microseconds of a gather or scatter over eight ranks of two nodes, each sending by its own port.

    Seven steps, one of which crosses; an eighth stays, and four ports carry the crossing.
    """
    return 20 + 6 * 1 + 10 + 7 / 8 * size_bytes / 4e4
