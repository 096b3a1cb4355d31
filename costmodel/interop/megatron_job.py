"""A job in Megatron's arguments: degrees, batch, schedule, sharding, recomputation, precision, switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import EVEN
from costmodel.describe.models.model import Model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, changed_switches, tokens_of
from costmodel.interop.keys import Values, key_table
from costmodel.interop.megatron_model import model_of_flags, noop_layers, other_mixer, shape_of_flags
from costmodel.interop.megatron_text import MEGATRON, Flags
from costmodel.interop.optimizer_names import take_optimizer
from costmodel.interop.tuning import take_tuning
from costmodel.physics.pipeline.chunks import parse_chunks

DEFAULT_RECIPE = FRAMEWORKS["megatron"].recipe
_WORDS = MEGATRON.more["words"]
SHARDING: list[str] = _WORDS["sharding"]
CP_TYPES: Mapping[str, str] = _WORDS["cp_types"]
"""Megatron-LM's words for how context parallelism brings keys and values together."""


def job_of_flags(
    flags: Flags, *, recipe: str | None = None, name: str = "megatron", model: Model | None = None
) -> Imported:
    """Read a job.

    Parameters
    ----------
    flags : Flags
        Of the launcher and of the program.
    recipe : str, optional
        What has no flag; by default that of the framework the flags are of.
    name : str
        Of the model.
    model : Model, optional
        Where the flags name one instead of describing it.

    Raises
    ------
    FrameworkConfigError
        If a flag has no readable value, or flags contradict each other.
    """
    deepspeed = flags["deepspeed"]
    chosen = recipe or ("megatron-deepspeed" if deepspeed else DEFAULT_RECIPE)
    notes: list[str] = []
    warnings = flags.unpriced()
    unpriced = "" if model is not None else other_mixer(flags)
    shape = shape_of_flags(flags) if unpriced else {}
    if not unpriced and model is None and (flags.said("num_layers") or flags.said("hybrid_pattern")):
        model = model_of_flags(flags, name, notes)
    layers = model.num_layers if model is not None else int(shape.get("num_layers", 0))
    experts = bool(model.num_experts) if model is not None else bool(shape.get("num_experts"))
    job: dict[str, Any] = {"model": model, "recipe": chosen, **_layout_of(flags, layers, experts=experts)}
    job["recompute"] = _recompute_of(flags, warnings)
    job["precision"] = _precision_of(flags)
    facts = _facts_of(flags, job, warnings)
    _take_adapters(flags, job, notes, warnings)
    job["switches"] = _switches_of(flags, chosen, experts=experts, deepspeed=deepspeed)
    if flags["tp_pp_dp"]:
        job["axis_order"] = "tp cp pp dp"
    if chunks := _pipeline_layout(flags, job, model):
        job["pipeline_layout"] = chunks
    wanted = ["gpus", "global_batch", "seq_len"]
    if model is None and not unpriced:
        wanted.insert(0, "model")
    missing = tuple(key for key in wanted if job.get(key) is None)
    job |= _length_of(flags, job)
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing),
        flags.unread(),
        tuple(notes),
        tuple(warnings),
        facts,
        shape,
        unpriced,
        framework="Megatron-DeepSpeed" if deepspeed else "",
    )


def _layout_of(flags: Flags, layers: int, *, experts: bool) -> dict[str, Any]:
    """Read degrees, batch, schedule and sharding."""
    tp, pp, gpus = flags["tp"], flags["pp"], _gpus_of(flags)
    ep = flags["ep"] or flags["deepspeed_ep"] or 1
    vp = _virtual_stages(flags, pp, layers)
    schedule = _schedule_of(flags, pp, vp)
    zero, shard_group = _zero_stage(flags), 0
    if flags["instances"] > 1 and zero:
        if gpus is None:
            raise FrameworkConfigError(
                "--num-distributed-optimizer-instances: needs --nnodes and --nproc-per-node"
            )
        shard_group = gpus // (tp * pp) // flags["instances"]
    return {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": flags["cp"] * flags["ulysses"],
        "vp": 2 if schedule in ("zb-v", "dualpipe-v") else vp,
        "ep": ep,
        "etp": flags["etp"] or (tp if ep > 1 or experts else 1),
        "micro_batch": flags["micro_batch"],
        "global_batch": flags["global_batch"],
        "seq_len": flags["seq_len"],
        "zero_stage": zero,
        "shard_group": shard_group,
        "sequence_parallel": flags["sequence_parallel"] and tp > 1,
        "schedule": schedule,
    }


def _virtual_stages(flags: Flags, pp: int, layers: int) -> int:
    """Return the chunks of a rank, by their number, by the layout's, or by the layers of each."""
    each = flags["layers_per_chunk"]
    if each is not None and each < 1:
        raise FrameworkConfigError(
            f"--num-layers-per-virtual-pipeline-stage: expected at least 1, got {each}"
        )
    if flags["vp"] is not None:
        return int(flags["vp"])
    if dealt := flags["pipeline_layout"]:
        return max(1, len(parse_chunks(dealt)) // pp)
    places = layers if flags["num_layers"] is None else flags["num_layers"]
    return max(1, places // (pp * each)) if each and places else 1


def _length_of(flags: Flags, job: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens of the whole run, where they do not depend on a batch that grows."""
    iters, samples = (int(flags[name] or 0) for name in ("train_iters", "train_samples"))
    if samples > 0:
        return tokens_of(1, {"global_batch": samples, "seq_len": job.get("seq_len")})
    return {} if flags.said("growing_batch") else tokens_of(iters, job)


def _gpus_of(flags: Flags) -> int | None:
    """Return nodes times GPUs of each, as torchrun's or DeepSpeed's launcher has them."""

    def known(name: str) -> int | None:
        """Return the first of a name's flags that has a number."""
        for flag in MEGATRON.fields[name].keys:
            if not flags.lacks(flag) and flags.text(flag, "").isdigit():
                return int(flags.text(flag, ""))
        return None

    nodes, each = known("nodes"), known("gpus_per_node")
    return known("world_size") or (None if nodes is None or each is None else nodes * each)


def _zero_stage(flags: Flags) -> int:
    """Read what data parallelism shards."""
    stage = flags["zero_stage"]
    if stage is not None:
        if not 0 <= stage <= 3:
            raise FrameworkConfigError(f"--zero-stage: expected 0 to 3, got {stage}")
        return int(stage)
    if flags["fsdp"]:
        return SHARDING.index(flags.choice("sharding", SHARDING) if flags["sharding"] else SHARDING[3])
    # Muon's states are dealt out matrix by matrix (megatron/core/optimizer/layer_wise_optimizer.py).
    return int(flags["distributed_optimizer"] or flags["optimizer"].startswith("dist_"))


def _recompute_of(flags: Flags, warnings: list[str]) -> str:
    """Read recomputation, of flags of all ages."""
    unsaid = "full" if flags["recompute_all"] else "selective" if flags["recompute_attention"] else "none"
    found = str(flags["recompute"] or unsaid)
    if found not in ("none", "selective", "full"):
        raise FrameworkConfigError(
            f"--recompute-granularity: expected none, selective or full, got {found!r}"
        )
    layers = max(flags["recompute_layers"], flags["layers_per_checkpoint"])
    if found == "full" and flags["recompute_method"] == "block":
        warnings.append(
            f"--recompute-method block: only the first {flags['recompute_layers']} layers of a stage recompute; "
            "priced as all"
        )
    elif found == "full" and layers > 1:
        warnings.append(f"one input is kept for every {layers} layers; priced as one for each")
    return found


def _schedule_of(flags: Flags, pp: int, vp: int) -> str:
    """Read the pipeline schedule, also of the zero-bubble forks."""
    if pp == 1:
        return "none"
    if flags["schedule"] == "dualpipev":
        return "dualpipe-v"
    if flags["zb_v"]:
        return "zb-v"
    if flags["zb_h1"]:
        return "zb-h1"
    return "interleaved" if vp > 1 else "1f1b"


def _precision_of(flags: Flags) -> str:
    """Read the precision of the GEMMs."""
    if flags["fp4"]:
        return "nvfp4"
    if flags["fp8"] or flags["fp8_older"]:
        return flags.choice("fp8_recipe", _WORDS["fp8_recipes"])
    named = str(_WORDS["torch_dtypes"].get(flags["torch_dtype"], "fp32"))
    return "fp16" if flags["fp16"] else "bf16" if flags["bf16"] else named


def _take_adapters(flags: Flags, job: dict[str, Any], notes: list[str], warnings: list[str]) -> None:
    """Read low-rank adapters, as ms-swift and MindSpeed-LLM add them to Megatron's flags."""
    way, rank = flags["tuner"], flags["lora_rank"]
    if not way and not flags["qlora"] and rank is None:
        return
    # ms-swift trains a language model's adapters beside a whole tower.
    way = "qlora" if flags["qlora"] else {"lora_llm": "lora", "": "lora"}.get(way, way)
    said = Values(key_table("trainers"), {"lora_rank": rank, "lora_target": flags["lora_targets"]})
    take_tuning(said, way, job, notes, warnings)


def _facts_of(flags: Flags, job: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    """Take the optimizer, and return what the flags say that has no price, and warn of it."""
    facts: dict[str, Any] = {}
    if flags["optimizer"] == "hybridadam":
        facts["optimizer"] = "hybridadam"
        warnings.append(
            "--optimizer hybridadam: offloads its states; price it by --set offload_optimizer=true"
        )
    else:
        # Its SGD has a momentum of 0.9 unless told otherwise (--sgd-momentum).
        take_optimizer(flags["optimizer"], job, facts, warnings, sgd="sgd-momentum")
    if flags["precision_aware"]:
        widths = [flags["first_moment"], flags["second_moment"]]
        if all(width in ("bf16", "fp16") for width in widths):
            job["optimizer"] = "adamw-bf16"
        else:
            warnings.append(
                f"--use-precision-aware-optimizer: moments in {' and '.join(widths)}; price them by "
                "--set moments_bytes=…"
            )
    if empty := noop_layers(flags):
        facts["num_layers"] = flags["num_layers"] or 0
        facts["noop_layers"] = len(empty)
    if flags["fp8_params"] and not str(job["precision"]).startswith(("fp8", "mx")):
        warnings.append("--fp8-param-gather: has no effect without fp8")
    return facts


def _pipeline_layout(flags: Flags, job: Mapping[str, Any], model: Model | None) -> str:
    """Return the layers of every chunk where flags say them, in Megatron's own letters."""
    given, first, last = flags["pipeline_layout"], flags["first_layers"], flags["last_layers"]
    noop = {int(place) for place in noop_layers(flags) if place.isdigit()}
    pp, vp = int(job["pp"]), int(job["vp"])
    if given or model is None or pp == 1 or job["schedule"] not in ("1f1b", "interleaved"):
        return str(given)
    if not (first or last or noop):
        return EVEN if model.mtp_layers else ""
    counts = _layers_of_ranks(model.num_layers + len(noop), pp, first, last)
    if any(count % vp for count in counts):
        raise FrameworkConfigError(
            f"--decoder-first-pipeline-num-layers: stages of {counts} layers do not divide into {vp} chunks"
        )
    # Chunk c of rank r is the c·pp + r-th of the model.
    letters, at = [], 0
    for count in [counts[rank] // vp for _ in range(vp) for rank in range(pp)]:
        letters.append("t" * sum(place not in noop for place in range(at, at + count)))
        at += count
    letters[0] = "E" + letters[0]
    letters[-1] += "m" * model.mtp_layers + "L"
    return "|".join(letters)


def _layers_of_ranks(places: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """Return layers of each pipeline rank, those between the first and the last alike."""
    ends = [number for number in (first, last) if number is not None]
    between = pp - len(ends)
    rest = places - sum(ends)
    if rest < 0 or (between == 0 and rest) or (between and rest % between):
        raise FrameworkConfigError(
            f"--decoder-first-pipeline-num-layers: {places} layers do not divide over {pp} stages with {ends} "
            f"on the first and the last"
        )
    counts = [rest // between if between else 0] * pp
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    return counts


def _switches_of(flags: Flags, recipe: str, *, experts: bool, deepspeed: bool) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    fused_loss = "unfused" if base.kernels.cross_entropy == "fused" else base.kernels.cross_entropy
    unpipelined = "weight-grad" if base.overlap.tp_overlap == "pipelined" else base.overlap.tp_overlap
    read: dict[str, Any] = {
        "tp_overlap": "pipelined" if flags["tp_overlap"] else unpipelined,
        "cross_entropy": "fused" if flags["loss_fusion"] else fused_loss,
        "offload_optimizer": flags["optimizer_offload"] or flags["optimizer"] == "hybridadam",
        "cuda_graphs": flags["cuda_graphs"],
        **_graph_scope(flags),
        "embedding_as_layer": flags["embedding_as_layer"],
        "head_as_layer": flags["head_as_layer"],
        "dropout": max(flags["attention_dropout"], flags["hidden_dropout"]) > 0,
        **_context_method(flags),
    }
    if not deepspeed:
        # DeepSpeed's engine overlaps as its own configuration says.
        overlapped = base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "last-micro-batch"
        read["dp_overlap"] = overlapped if flags["overlap_grads"] or flags["overlap_params"] else "none"
        read["pp_overlap"] = not flags["no_p2p_overlap"]
    if flags["grads_in_bf16"]:
        read["grad_reduce_dtype"] = "bf16"
    elif base.dtypes.grad_reduce_dtype == "bf16":
        read["grad_reduce_dtype"] = "fp32"
    if flags["attention_backend"] == "unfused":
        read["attention_kernel"] = "unfused"
    if flags["fp8_params"]:
        read["quantised_weights"] = "primary"
    if flags["recompute_modules"]:
        read["selective_modules"] = tuple(flags["recompute_modules"])
    if experts:
        read |= _expert_switches(flags)
    return changed_switches(read, base)


def _graph_scope(flags: Flags) -> dict[str, Any]:
    """Read what the graphs hold; what says nothing, or the whole layer of older releases, stays the recipe's."""
    held = set(flags["cuda_graph_scope"])
    if "full_iteration" in {*held, flags.text(flags.flag("cuda_graphs"), "")}:
        return {"cuda_graph_scope": "all"}
    if "mlp" in held:
        return {"cuda_graph_scope": "static"}
    return {"cuda_graph_scope": "attention" if "attn" in held else "router"} if held - {"full"} else {}


def _context_method(flags: Flags) -> dict[str, Any]:
    """Read how context parallelism brings keys and values together."""
    if flags["ulysses"] > 1:
        return {"cp_method": "ulysses"}
    if flags["cp_algorithm"] and flags["cp"] > 1:
        return {"cp_method": flags.choice("cp_algorithm", _WORDS["cp_algorithms"])}
    if not flags["cp_type"]:
        return {}
    # The help of Megatron-LM says allgather, Transformer Engine takes all_gather.
    methods = {theirs: ours for ours, theirs in CP_TYPES.items()} | {"allgather": "all-gather"}
    sizes = flags["cp_sizes"]
    swapped = {"cp_a2a_ranks": int(sizes[0])} if sizes and sizes[0].isdigit() else {}
    return {"cp_method": flags.choice("cp_type", methods), **swapped}


def _expert_switches(flags: Flags) -> dict[str, Any]:
    """Read how tokens reach their experts."""
    backend = flags.choice("flex_backend", _WORDS["flex_backends"])
    dispatcher = flags.choice("dispatcher", {**_WORDS["dispatchers"], "flex": backend})
    if flags.said("deepspeed_ep"):
        dispatcher = "all-to-all"
    by_hybrid = flags["dispatcher"] == "flex" and backend == "hybrid-ep"
    return {
        "moe_dispatcher": dispatcher,
        "grouped_gemm": flags["grouped_gemm"],
        "moe_capacity_factor": flags["capacity_factor"],
        "ep_overlap": flags["ep_overlap"],
        **({"dispatch_sms": flags["flex_sms"]} if by_hybrid else {}),
    }
