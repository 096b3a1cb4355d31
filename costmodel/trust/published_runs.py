"""Published training runs: a row of a table of measurements to a job, with no knob of its own.

Columns are those of `tests/published/runs.csv` (documented in `notebooks/02_validation.ipynb`).
Everything that a row does not say comes from the recipe of its framework and year.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, DataError
from costmodel.base.files import refuse_endless
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import compose_cluster, list_profiles, load_cluster
from costmodel.describe.hardware.slices import default_slice, slice_text
from costmodel.describe.jobs.job import Job, make_job
from costmodel.describe.models.model import model_from_dims
from costmodel.describe.recipe import load_recipe

Row = Mapping[str, str]

REQUIRED_COLUMNS = (
    "id",
    "source",
    "framework",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "accelerator",
    "gpus",
    "gpus_per_node",
    "nvlink_domain",
    "precision",
    "tp",
    "pp",
    "mbs",
    "gbs",
)

# Framework as the table names it -> recipe, by the first year it holds from.
_RECIPES: dict[str, tuple[tuple[int, str], ...]] = {
    "megatron-lm": ((2019, "megatron-2021"), (2022, "megatron-2022"), (2023, "megatron-core")),
    "megatron-deepspeed": ((2019, "megatron-deepspeed"),),
    "aleph-scaling": ((2019, "aleph-scaling"),),
    "nemo": ((2019, "nemo"),),
    "megatron-bridge": ((2019, "megatron-bridge"),),
    "nemo-automodel": ((2019, "nemo-automodel"),),
    "llm-foundry": ((2019, "composer-fsdp"),),
    "torchtitan": ((2019, "torchtitan-2024"), (2025, "torchtitan")),
    "nanotron": ((2019, "nanotron"),),
    "internevo": ((2019, "internevo"),),
    "zero-bubble": ((2019, "zero-bubble"),),
    "deepspeed": ((2019, "deepspeed-2021"), (2023, "deepspeed")),
    "sagemaker-smp": ((2019, "deepspeed-2021"),),
    "megascale": ((2019, "megascale"),),
    "hai-llm": ((2019, "hai-llm"),),
    "maxtext": ((2019, "maxtext"),),
    "paxml": ((2019, "maxtext"),),
    "pathways": ((2019, "maxtext"),),
    "axlearn": ((2019, "axlearn"),),
    "torch-xla": ((2019, "torch-xla"),),
    "torch-xla-hf": ((2019, "torch-xla"),),
    "neuronx-distributed": ((2019, "neuronx-distributed"),),
    "neuronx-nemo-megatron": ((2019, "neuronx-nemo-megatron"),),
    "atorch": ((2019, "megatron-core"),),
    "alpa": ((2019, "megatron-2021"),),
    "gpt-neox": ((2019, "megatron-deepspeed"),),
    "flash-attention": ((2019, "flash-attention"),),
    "litgpt-thunder": ((2019, "litgpt-thunder"),),
    "lit-gpt": ((2019, "torchtitan"),),
    "megatron-llama": ((2019, "megatron-core"),),
    "colossal-ai": ((2019, "deepspeed"),),
    "meta-internal": ((2019, "llama3"),),
    "modellink": ((2019, "mindspeed"),),
    "paddlenlp": ((2019, "paddlenlp"),),
}

# Words of a row's reference or notes that tell a version of the framework, from a year on -> recipe.
_ERAS: dict[str, tuple[tuple[int, str, str], ...]] = {
    # LLM Foundry's tables of PyTorch 1.13 ran in PURE mixed precision, those of 2.x in DEFAULT.
    "llm-foundry": ((2019, "mp mode pure", "composer-fsdp-torch1"),),
    # The Slurm scripts of BLOOM set CUDA_LAUNCH_BLOCKING=1.
    "megatron-deepspeed": ((2022, "bigscience", "megatron-deepspeed-blocking"),),
}

# What a recipe is called where a framework runs on other vendors' devices, by the start of the device's name.
_PORTS: dict[str, dict[str, str]] = {
    "maxtext": {"tpu": "maxtext-tpu"},
    "megatron-core": {"mi": "megatron-rocm"},
    "megatron-deepspeed": {"gaudi": "megatron-deepspeed-gaudi", "pvc": "megatron-deepspeed-xpu"},
}

# Frameworks whose tables do not print the attention kernel: what the recipe says holds.
_KERNEL_NOT_PRINTED = ("llm-foundry",)

# Frameworks whose tensor-parallel overlap cuts each exchange into pieces: user buffers, async TP.
_PIPELINED_TP = ("nemo", "megatron-bridge", "megatron-lm", "torchtitan")

# Words for Megatron's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split.
_COUNTED_AS_LAYERS = "embedding and loss count as layers"

# Frameworks whose benchmarks force the router to balance (moe_router_force_load_balancing, fake gates).
_FORCED_BALANCE = ("megatron-bridge", "nemo", "nemo-automodel", "xtuner")

# Steps of Megatron-Bridge's optimization ladder on GB200: the third fuses the router, the sixth captures attention
# and router in graphs, the eighth binds processes to their NUMA node, the tenth captures shared experts too.
_LADDER_STEP = re.compile(r"cumulative step (\d+) of 13")
_LADDER_FUSES_ROUTER, _LADDER_BINDS, _LADDER_SHARED_IN_GRAPHS = 3, 8, 10

# Container of a source that names it (year and month), and the one from which Megatron-Bridge's MoE
# recipes replay whole iterations from CUDA graphs.
_RELEASE = re.compile(r"\b\d\d\.\d\d\b")
_BRIDGE_FULL_GRAPHS = "26.06"

# NVIDIA's containers (ngc23.09 in a reference), rounds of MLPerf that ran in older ones, and the container from which
# flash attention was FlashAttention-2 (July 2023; Transformer Engine 0.11).
_CONTAINER = re.compile(r"ngc(\d\d\.\d\d)")
_ROUND_CONTAINERS = {"mlperf-v3.0": "23.04"}
_FLASH2_FROM = "23.08"

# torchtitan's H100 (500 W, 96 GB HBM2e), where a table of the same machine room (torchao) does not name the part.
_TITAN_H100 = "h100-hbm2e-96gb-500w"

# Accelerators that only one machine has, under another name.
_OWN_CLUSTER = {"trn1-nc": "trn1-efa"}

# NICs of the vendor's own machine of that generation, where a run does not state its network.
_USUAL_NIC_GBIT = {
    "v100": 100,
    "a100": 200,
    "a800": 200,
    "h100": 400,
    "h200": 400,
    "h800": 400,
    "b200": 400,
    "gb200": 400,
    "b300": 800,
}

# Frameworks whose tables print the rate of a node where one of a GPU belongs. Hagemann et al. (arXiv:2311.05610) name
# 200 Gbit/s InfiniBand; it is what a node of eight shares: only so do their exchanges of 2 to 128 replicas on 64, 128
# and 256 GPUs come out alike (as eight such links 8 runs of 128 replicas are 22 % too fast).
_RATE_OF_NODE = ("aleph-scaling",)

# Tables whose "memory (actual/total)" is what is in use of the device's (FlagPerf's pages define it so), however they read it.
_MEMORY_OF_DEVICE = ("flagperf",)

# What tables say of recomputation -> modules of `Recipe.selective_modules`.
_RECOMPUTE_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("per-op sac", ("every_second_matmul",)),
    ("every 2nd layer", ("every_second_layer",)),
    ("save_qkv_proj", ("all_but_qkv",)),
    # The sum after attention is run again where only what attention made is kept.
    ("and attention context)", ("attention_output",)),
    # JAX's checkpoint_dots_with_no_batch_dims and its like: attention and element-wise work run again.
    ("keeps every product", ("layernorm", "mlp_act", "core_attn")),
    ("remat_policy=minimal", ("layernorm", "mlp_act", "core_attn")),
    ("dots_saveable", ("layernorm", "mlp_act", "core_attn")),
    # MaxText's lists of single tensors to keep: what they leave out is the layer.
    ("the rest recomputed", ("attention", "mlp", "layernorm")),
    # MaxText's policies that keep every product, or every product outside the MLP.
    ("minimal_flash", ("layernorm", "mlp_act")),
    ("minimal_with_context", ("layernorm", "mlp_act")),
    ("except_mlp", ("layernorm", "mlp")),
    ("except_logits_ffn1", ("layernorm", "mlp")),
    ("core_attn", ("core_attn",)),
    ("attention core", ("core_attn",)),
    ("core attention", ("core_attn",)),
    ("mla_up_proj", ("mla_up_proj",)),
    ("mla up", ("mla_up_proj",)),
    ("norm", ("layernorm",)),
    ("moe_act", ("moe_act",)),
    ("norm, act", ("moe_act",)),
)

# What a framework does unless told otherwise: torchtitan checkpoints by operator, and Pax's base
# configurations save nothing (google/paxml tasks/lm/params/lm_cloud.py).
_USUAL_RECOMPUTE = {
    "torchtitan": "selective",
    "paxml": "full",
    # axlearn common/attention.py build_remat_spec: projections of attention and what it made are kept.
    "axlearn": "selective",
    # Examples of both: core attention alone (neuronx-distributed), whole layers (neuronx-nemo-megatron test.sh).
    "neuronx-distributed": "selective",
    "neuronx-nemo-megatron": "full",
}

# Words for a policy that keeps products and runs the rest again.
_KEEP_PRODUCTS = ("keeps every product", "remat_policy=minimal", "dots_saveable")

# Megatron-Core keeps gradients in one buffer, in the dtype in which it reduces them.
_ONE_GRAD_DTYPE = ("nemo", "megatron-bridge")

# Transformer Engine's cpu_offloading_num_layers, of the layers of a rank.
_OFFLOADED_LAYERS = re.compile(r"activations of (\d+) layers to CPU")

# MaxText's capacity_factor, above 0 where experts drop tokens.
_CAPACITY = re.compile(r"capacity(?:_factor)? (\d+(?:\.\d+)?)")

_DISPATCHERS = {"deepep": "deep-ep", "hybridep": "hybrid-ep", "deep-ep": "deep-ep", "alltoall": "all-to-all"}


def shipped_runs() -> Path:
    """Return the table of published runs that comes with the package, or lies in the checkout."""
    packaged = Path(str(files("costmodel") / "published_runs.csv"))
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "tests" / "published" / "runs.csv"


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Read a table of runs.

    Raises
    ------
    DataError
        If the file is missing, empty, or lacks a column; names what is missing.
    """
    file = Path(path)
    refuse_endless(file, DataError)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(_rows(csv.DictReader(stream), file))
    except OSError as error:
        raise DataError(f"{file}: cannot read the table ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{file}: not a UTF-8 CSV file") from None
    except csv.Error as error:
        raise DataError(f"{file}: cannot read the table ({error})") from None
    if not rows:
        raise DataError(f"{file}: no rows below the header")
    return rows


def _rows(reader: csv.DictReader[str], file: Path) -> Iterator[dict[str, str]]:
    missing = [name for name in REQUIRED_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise DataError(
            f"{file}: the table lacks the column {missing[0]!r} (needed: {', '.join(REQUIRED_COLUMNS)})"
        )
    for row in reader:
        if None in row.values() or None in row:
            raise DataError(f"{file}: line {reader.line_num}: has more or fewer cells than the header")
        yield row


def recipe_of_row(row: Row) -> str:
    """Return the name of the recipe for the framework and era of a published run; the nearest kind for others."""
    framework, year = row["framework"], _year(row)
    if framework not in _RECIPES:
        return _nearest_recipe(row)
    name = [recipe for first, recipe in _RECIPES[framework] if first <= max(year, 2019)][-1]
    found = _RELEASE.search(row["source"])
    if found and found.group() >= _BRIDGE_FULL_GRAPHS and framework == "megatron-bridge":
        name = "megatron-bridge-2606"
    said = f"{row.get('reference') or ''} {row.get('notes') or ''}".lower()
    for first, word, era in _ERAS.get(framework, ()):
        if word in said and year >= first:
            name = era
    ports = _PORTS.get(name, {})
    return next((port for start, port in ports.items() if row["accelerator"].startswith(start)), name)


def memory_kind_of_row(row: Row) -> str:
    """Return how the peak memory of a published run was measured: see `costmodel.trust.memory_kinds`."""
    kind = row.get("memory_kind") or ""
    return "nvidia-smi" if kind in ("", "stated") and row["source"] in _MEMORY_OF_DEVICE else kind


def _nearest_recipe(row: Row) -> str:
    """Return the recipe of the nearest kind: FSDP where only parameters are sharded, else Megatron's."""
    alone = all((row.get(axis) or "1") == "1" for axis in ("tp", "pp"))
    return "torchtitan" if alone and row.get("zero_stage") == "3" else "megatron-core"


def job_of_row(row: Row) -> Job:
    """Return the job that a published run describes.

    Raises
    ------
    CostModelError
        With the reason why the row cannot be priced.
    """
    name = recipe_of_row(row)
    gpus = _integer(row, "gpus")
    tp = _integer(row, "tp")
    # Between products GSPMD keeps what MaxText's and Pax's tensor axis divides in pieces (the rule of activation_embed
    # in AI-Hypercomputer/maxtext base.yml): gathered before a product and scattered after it, as sequences are.
    sp = "true" if row["framework"] in ("maxtext", "paxml") and tp > 1 else row.get("sp", "")
    domain = _integer(row, "nvlink_domain", _usual_slice(row["accelerator"], gpus))
    cluster = _cluster(
        _accelerator(row),
        _integer(row, "gpus_per_node"),
        domain,
        _nic_gbit(row),
        row.get("network", ""),
        gpus,
    )
    return make_job(
        model=model_from_dims(**row),
        cluster=cluster,
        slice=slice_text(default_slice(cluster.tiers[0], min(domain, gpus)))
        if cluster.tiers[0].shape
        else None,
        gpus=gpus,
        tp=tp,
        pp=_integer(row, "pp"),
        cp=_integer(row, "cp", 1),
        vp=_integer(row, "vp", 1),
        ep=_integer(row, "ep", 1),
        etp=_integer(row, "etp", _usual_etp(row)),
        micro_batch=_integer(row, "mbs"),
        global_batch=_integer(row, "gbs"),
        seq_len=_integer(row, "seq_len"),
        zero_stage=_zero_stage(row),
        shard_group=_integer(row, "shard_group", 0),
        sequence_parallel=(sp == "true") if sp else None,
        schedule=row.get("schedule") or None,
        recompute=_recompute(row),
        precision=row["precision"],
        recipe=load_recipe(name),
        switches=_switches(row),
        pipeline_layout=_pipeline_layout(row),
        check=False,
    )


@lru_cache(maxsize=64)
def _usual_slice(accelerator: str, chips: int) -> int | None:
    """Return the chips of a slice where pods are a torus: all of them, or those of the fewest pods that hold them."""
    if accelerator not in list_profiles("cluster"):
        return None
    pod = load_cluster(accelerator).tiers[0]
    return chips // -(-chips // int(pod.size)) if pod.shape else None


def _usual_etp(row: Row) -> int:
    """Return the expert-tensor degree of a run that prints none.

    Megatron-Bridge's recipes set expert_tensor_parallel_size to 1, and so does Megatron-LM's MoE of 2025;
    NeMo up to 25.05 shards experts as it shards the rest.
    """
    alone = row["framework"] == "megatron-bridge" or (
        row["framework"] == "megatron-lm" and _year(row) >= 2025
    )
    return 1 if alone else _integer(row, "tp")


def _pipeline_layout(row: Row) -> str | None:
    """Return the layout string of a run, where its table has one and not words about it.

    Nobody publishes how HAI-LLM deals DeepSeek-V3's layers, three of them without experts and one stage with two heads:
    it is taken to deal them so that the busiest stage does least, which dealing evenly is 8 % from.
    """
    text = row.get("pp_layout") or ""
    if not text and row["framework"] == "hai-llm":
        return "balanced"
    return text if text and _COUNTED_AS_LAYERS not in text else None


def _year(row: Row) -> int:
    """Return the year of a run: a month in its reference (`_202412_`) says it best, and Blackwell dates from 2025."""
    dated = re.search(r"_(20\d\d)(?:0[1-9]|1[0-2])_", row.get("reference") or "")
    year = int(dated.group(1)) if dated else _integer(row, "year", 2023)
    return max(year, 2025) if row["accelerator"].startswith(("b200", "gb200", "b300")) else year


def _integer(row: Row, column: str, default: int | None = None) -> int:
    """Return a whole number of the row, or the default where the cell is empty."""
    text = row.get(column) or ""
    if not text:
        if default is None:
            raise CostModelError(f"{column} is not given")
        return default
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise CostModelError(f"{column}: expected a whole number, got {text!r}") from None


@lru_cache(maxsize=512)
def _cluster(accelerator: str, per_node: int, domain: int, nic_gbit: str, network: str, gpus: int) -> Cluster:
    """Compose the machine; a job inside one NVLink domain needs no network.

    Accelerators that come in pods have a cluster of their own name, whose slices a job gets.
    """
    own = _OWN_CLUSTER.get(accelerator, accelerator)
    if own in list_profiles("cluster"):
        return load_cluster(own)
    inside = gpus <= max(per_node, domain)
    kind = "none" if inside else (network if network not in ("", "none") else "ib")
    if not inside and not nic_gbit:
        generation = next((g for g in _USUAL_NIC_GBIT if accelerator.startswith(g)), None)
        if generation is None:
            raise CostModelError("nic_gbit_per_gpu is not given and the run spans nodes")
        nic_gbit = str(_USUAL_NIC_GBIT[generation])
    rate = float(nic_gbit or 0) * 1e9 / 8
    return compose_cluster(accelerator, min(per_node, gpus), min(domain, gpus), rate, kind, gpus)


def _zero_stage(row: Row) -> int:
    """Return the ZeRO stage that a run has: DeepSpeed's optimizer for bf16 shards its states at stage 0 too.

    It comes with gradients that are accumulated in fp32, as they are then (deepspeed/runtime/engine.py, get_data_types;
    runtime/bf16_optimizer.py, fp32_groups_flat_partition).
    """
    stage = _integer(row, "zero_stage", 1)
    shards = row["framework"] in ("deepspeed", "megatron-deepspeed") and row["precision"] == "bf16"
    return max(stage, 1) if shards else stage


def _accelerator(row: Row) -> str:
    """Return the accelerator of a run: torchtitan's own part where the table only says H100."""
    unnamed = "accelerator variant" in (row.get("inferred") or "") and row["framework"] == "torchtitan"
    return _TITAN_H100 if unnamed and row["accelerator"] == "h100-sxm-80gb" else row["accelerator"]


def _nic_gbit(row: Row) -> str:
    """Return the rate between nodes that a GPU has for itself, empty where the run states none. [Gbit/s]"""
    printed = row.get("nic_gbit_per_gpu") or ""
    if not printed or row["framework"] not in _RATE_OF_NODE:
        return printed
    sharers = _integer(row, "gpus_per_node")
    if sharers < 1:
        raise CostModelError(f"gpus_per_node: expected at least 1, got {sharers}")
    return str(float(printed) / sharers)


def _recompute(row: Row) -> str:
    """Return the recompute policy; selective recomputation of whole modules is full.

    JAX's policies that keep products run what is element-wise again, which tables call none.
    """
    if row.get("recompute") == "none" and any(
        word in (row.get("recompute_detail") or "").lower() for word in _KEEP_PRODUCTS
    ):
        return "selective"
    return row.get("recompute") or _USUAL_RECOMPUTE.get(row["framework"], "none")


def _offloaded_activations(row: Row) -> float:
    """Return the share of kept activations that wait in the host's memory: so many layers of a rank, or all.

    Lists of single tensors beside selective recomputation count where all that is kept is in them, or the layer's
    input, which is the most of it.
    """
    said, detail = row.get("offload") or "", row.get("recompute_detail") or ""
    if said.startswith("activations to host"):
        all_of_it = "kept on the host" in detail or "decoder_layer_input" in said
        return float(row.get("recompute") == "full" or all_of_it)
    layers = _OFFLOADED_LAYERS.match(said)
    if layers is None:
        return 0.0
    return min(int(layers.group(1)) * _integer(row, "pp") / _integer(row, "layers"), 1.0)


def _attention_kernel(row: Row) -> str:
    """Return the kernel that a run names; ``flash`` was the first version of it in containers before the second's."""
    kernel = row.get("attention_kernel") or ""
    found = _CONTAINER.search(row.get("reference") or "")
    release = _ROUND_CONTAINERS.get(row.get("source") or "", found.group(1) if found else "")
    return "flash1" if kernel == "flash" and "" < release < _FLASH2_FROM else kernel


def _switches(row: Row) -> dict[str, Any]:
    """Return what the row says of the recipe's switches."""
    switches: dict[str, Any] = {}
    notes = (row.get("fused_kernels_note") or "").lower()
    kernel = _attention_kernel(row)
    if kernel and kernel != "flash" and row["framework"] not in _KERNEL_NOT_PRINTED:
        switches["attention_kernel"] = kernel
    for column, switch in (
        ("cuda_graphs", "cuda_graphs"),
        ("ep_overlap", "ep_overlap"),
        ("dropout", "dropout"),
    ):
        if row.get(column):
            switches[switch] = row[column] == "true"
    if switches.get("cuda_graphs") and row.get("num_experts"):
        switches["cuda_graph_scope"] = _graph_scope(notes)
    if step := _LADDER_STEP.search(notes):
        done = int(step.group(1))
        switches["cpu_binding"] = done >= _LADDER_BINDS
        switches["router_fusion"] = done >= _LADDER_FUSES_ROUTER
        if done < _LADDER_SHARED_IN_GRAPHS:
            switches["cuda_graph_scope"] = "attention"
    if capacity := _CAPACITY.search(f"{row.get('inferred') or ''} {row.get('notes') or ''}"):
        switches["moe_capacity_factor"] = float(capacity.group(1))
        switches["dispatch_by_products"] = recipe_of_row(row) == "maxtext-tpu"
    if "tokendrop" in notes:
        # Every expert gets the same, padded: nothing depends on the routing.
        switches["moe_capacity_factor"] = 1.0
    if row.get("grad_dtype"):
        switches["grad_reduce_dtype"] = row["grad_dtype"]
        if row["framework"] in _ONE_GRAD_DTYPE:
            switches["grad_accum_dtype"] = row["grad_dtype"]
    if "fp32 gradients (4 B/param, unsharded)" in (row.get("optimizer_bytes_note") or ""):
        # DeepSpeed's BF16_Optimizer sums its fp32 gradients by all-reduce (runtime/pipe/engine.py), steps
        # on them in place, and takes their norm without a copy.
        switches |= {
            "grad_accum_dtype": "fp32",
            "autograd_grad_bytes": 2.0,
            "grad_reduce_dtype": "fp32",
            "zero_all_reduce": True,
            "master_weights_bytes": 4.0,
            "norm_copy_bytes": 0.0,
        }
    if row["framework"] == "zero-bubble":
        # Qi et al., arXiv:2401.10241, section 4: the optimizer step is validated after it was made.
        switches["post_validation"] = True
    if row.get("dp_overlap") == "false":
        switches["dp_overlap"] = "none"
    if "all overlap paths off" in (row.get("notes") or "").lower():
        switches["tp_overlap"] = "none"
    if row.get("tp_overlap") == "true" and row["framework"] in _PIPELINED_TP:
        switches["tp_overlap"] = "pipelined"
    if (row.get("offload") or "").startswith("optimizer"):
        switches["offload_optimizer"] = True
    if share := _offloaded_activations(row):
        switches["offload_activations"] = share
    if notes == "eager":
        switches |= {"compiled": False, "fused_norm": False, "fused_rope": False, "fused_activation": False}
    if "unfused rmsnorm" in notes or "fused rmsnorm off" in (row.get("notes") or "").lower():
        switches |= {"fused_norm": False, "fused_rope": False, "fused_activation": False}
    elif "fused rmsnorm" in notes:
        switches |= {"fused_norm": True, "fused_rope": False, "fused_activation": False}
    if "eager" in notes:
        switches |= {"compiled": False, "fused_norm": False, "fused_rope": False, "fused_activation": False}
    if "fp8 attention" in notes:
        switches["fp8_attention"] = True
    for word, dispatcher in _DISPATCHERS.items():
        if word in notes:
            switches["moe_dispatcher"] = dispatcher
    if "fused grouped mlp" in notes or "op fuser grouped mlp" in notes:
        switches |= {"grouped_launch_share": 0.0, "expert_bias_chain": False, "fused_grouped_mlp": True}
    if row["framework"] in _FORCED_BALANCE and "natural" not in (row.get("notes") or "").lower():
        switches["moe_balance"] = "balanced"
    if "balanced fake gate" in (row.get("notes") or "").lower():
        # NeMo AutoModel's gate deals consecutive experts to a token: they lie on one node.
        switches["node_limited_routing"] = 1
    if "cp by all-to-all" in (row.get("notes") or "").lower():
        switches["cp_method"] = "ulysses"
    if "node-limited" in notes:
        switches |= {"moe_dispatcher": "deep-ep", "node_limited_routing": 4}
    if "not fused" in notes and "liger" in notes:
        # Without Liger's kernels the layers are those of Hugging Face's eager code.
        switches |= {
            "cross_entropy": "unfused",
            "fused_norm": False,
            "fused_rope": False,
            "fused_activation": False,
        }
    elif "liger" in notes:
        # Its patch of a model replaces norm, rotary and activation along with the loss.
        switches |= {
            "cross_entropy": "chunked",
            "fused_norm": True,
            "fused_rope": True,
            "fused_activation": True,
        }
    elif "fused cross-entropy" in notes:
        switches["cross_entropy"] = "fused"
    modules = _modules((row.get("recompute_detail") or "").lower(), row["framework"] == "maxtext")
    if modules:
        switches["selective_modules"] = modules
    dealt = f"{row.get('pp_layout') or ''} {row.get('notes') or ''}".lower()
    if "first and last stage hold one layer less" in dealt or _COUNTED_AS_LAYERS in dealt:
        switches |= {"embedding_as_layer": True, "head_as_layer": True}
    return switches


def _graph_scope(notes: str) -> str:
    """Return what the CUDA graphs of a mixture of experts hold, by the scopes that the row names."""
    if "full_iteration" in notes or "tokendrop" in notes:
        return "all"
    named = re.search(r"cuda graphs [^\[;]*\[([^\]]*)\]", notes)
    if named:
        return "attention" if "attn" in named.group(1) else "router"
    return "router" if "te cuda graphs moe_router" in notes else "static"


def _modules(detail: str, maxtext: bool) -> tuple[str, ...]:
    """Translate a table's words for selective recomputation into modules."""
    if not detail:
        return ()
    found: list[str] = []
    for word, modules in _RECOMPUTE_WORDS:
        if word in detail:
            found += modules
    parts = detail.replace("+", " ").replace(",", " ").split()
    if "mlp" in parts:
        # MaxText's experts are its layer's MLP.
        found += ["mlp", "moe"] if maxtext else ["mlp"]
    if "moe" in parts:
        found.append("moe")
    return tuple(dict.fromkeys(found))
