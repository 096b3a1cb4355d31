"""A job in Megatron's arguments: degrees, batch, schedule, sharding, recomputation, precision, switches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import EVEN
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.draft import Draft
from costmodel.interop.framework import FrameworkConfigError, changed_switches, known_model, tokens_of
from costmodel.interop.keys import Flags, Values, key_table
from costmodel.interop.megatron_model import model_of_flags, noop_layers, other_mixer, shape_of_flags
from costmodel.interop.tuning import take_tuning
from costmodel.physics.pipeline.chunks import parse_chunks

MEGATRON = key_table("megatron")
DEFAULT_RECIPE = FRAMEWORKS["megatron"].recipe
_GIVEN = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq_len", "vocab_size")
"""What is given in the place of a flag."""


def read_flags(
    flags: Flags, given: Mapping[str, Any], *, name: str = "megatron", model: Model | None = None
) -> Draft:
    """Read a job of the flags of a launcher and of a program; `name` is for the model that they describe."""
    draft = Draft(given)
    for field in _GIVEN:
        if given.get(field) is not None:
            flags.set(field, given[field])
    draft.warnings += flags.unpriced()
    named = model or draft["model"] or _named_model(flags, draft)
    model = load_model(named) if isinstance(named, str) else named
    unpriced = "" if model is not None else other_mixer(flags)
    shape = shape_of_flags(flags) if unpriced else {}
    if not unpriced and model is None and (flags.has("num_layers") or flags.has("hybrid_pattern")):
        model = model_of_flags(flags, name, draft.notes)
    layers = model.num_layers if model is not None else int(shape.get("num_layers", 0))
    experts = bool(model.num_experts if model is not None else shape.get("num_experts"))
    draft.put(model=model, recipe="megatron-deepspeed" if flags["deepspeed"] else DEFAULT_RECIPE)
    draft.put(gpus=gpus_of(flags))
    draft.put(**_layout_of(flags, draft["gpus"], layers, experts=experts))
    draft.put(recompute=_recompute_of(flags, draft.warnings), precision=_precision_of(flags))
    if draft["precision"] == "fp32" and not flags["torch_dtype"]:
        draft.warnings.append(
            "no --bf16, --fp16 or --fp8: priced in fp32, Megatron-LM's default; give precision=bf16"
        )
    _take_optimizer(flags, draft)
    _take_adapters(flags, draft)
    draft.job["switches"] = {
        **_switches_of(flags, draft["recipe"], experts=experts),
        **(draft["switches"] or {}),
    }
    draft.put(axis_order="tp cp pp dp" if flags["tp_pp_dp"] else None)
    draft.put(pipeline_layout=_pipeline_layout(flags, draft.job, model) or None)
    _take_length(flags, draft)
    draft.ignored += flags.unknown()
    if unpriced:
        draft.more |= {"shape": shape, "unpriced": unpriced}
    if flags["deepspeed"]:
        draft.more["framework"] = "Megatron-DeepSpeed"
    return draft


def _named_model(flags: Flags, draft: Draft) -> Model | None:
    """Return the model that ms-swift's ``--model`` names in place of its sizes."""
    named = "" if flags.has("num_layers") else flags["model"]
    if not named:
        return None
    model = known_model(named)
    if model is None:
        raise FrameworkConfigError(f"--model: {named!r} is not known offline; give --model config.json")
    draft.notes.append(f"model: {named}")
    return model.model_copy(update={"mtp_layers": flags["mtp_layers"]}) if flags.has("mtp_layers") else model


def _layout_of(flags: Flags, gpus: int | None, layers: int, *, experts: bool) -> dict[str, Any]:
    """Read degrees, batch, schedule and sharding."""
    tp, pp = flags["tp"], flags["pp"]
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
    if chunks := flags["pipeline_layout"]:
        return max(1, len(parse_chunks(chunks)) // pp)
    places = layers if flags["num_layers"] is None else flags["num_layers"]
    return max(1, places // (pp * each)) if each and places else 1


def _take_length(flags: Flags, draft: Draft) -> None:
    """Read the tokens of the whole run, where they do not depend on a batch that grows."""
    iters, samples = (int(flags[name] or 0) for name in ("train_iters", "train_samples"))
    if samples > 0:
        draft.put(**tokens_of(1, {**draft.job, "global_batch": samples}))
    elif not flags.has("growing_batch"):
        draft.put_steps(iters)
    for flag in MEGATRON.fields["growing_batch"].keys:
        if flag in flags.raw:
            draft.more["batches"] = _batches(flag, flags["growing_batch"], draft.job.get("global_batch"))
            draft.warnings.append(
                f"{flag}: the batch grows; priced is a step of --global-batch-size"
                + ("" if samples > 0 else ", and iterations say no tokens: give --tokens")
            )


def _batches(flag: str, words: Sequence[str], last: int | None) -> tuple[int, ...]:
    """Return every batch of a schedule: those of its steps, or ``START INCREMENT SAMPLES`` up to the last; none if unclear."""
    text = " ".join(words)
    if flag == "--step-batch-size-schedule":
        return tuple(int(batch) for batch in re.findall(r":(\d+)", text))
    numbers = [int(word) for word in text.split() if word.isdigit()]
    if len(numbers) != 3 or last is None or numbers[1] < 1:
        return ()
    start, increment, _ = numbers
    return (*range(start, int(last), increment), int(last))


def gpus_of(flags: Flags) -> int | None:
    """Return nodes times GPUs of each, as torchrun's or DeepSpeed's launcher has them."""

    def known(name: str) -> int | None:
        texts = [flags.text(flag) for flag in MEGATRON.fields[name].keys if not flags.unresolved(flag)]
        return next((int(text) for text in texts if text.isdigit()), None)

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
        return int(flags["sharding"])
    # Muon's states are divided matrix by matrix (megatron/core/optimizer/layer_wise_optimizer.py).
    return int(flags["distributed_optimizer"] or flags["optimizer"].startswith("dist_"))


def _recompute_of(flags: Flags, warnings: list[str]) -> str:
    """Read recomputation, of flags of all ages."""
    default = "full" if flags["recompute_all"] else "selective" if flags["recompute_attention"] else "none"
    found = str(flags["recompute"] or default)
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
        return str(flags["fp4_recipe"])
    if flags["fp8"] or flags["fp8_older"]:
        return str(flags["fp8_recipe"])
    named = {"bfloat16": "bf16", "float16": "fp16"}.get(flags["torch_dtype"], "fp32")
    return "fp16" if flags["fp16"] else "bf16" if flags["bf16"] else named


def _take_adapters(flags: Flags, draft: Draft) -> None:
    """Read low-rank adapters, as ms-swift and MindSpeed-LLM add them to Megatron's flags."""
    way, rank = flags["tuner"] or flags["lora_preset"], flags["lora_rank"]
    if not (way or flags["qlora"] or flags["lora"]) and rank is None:
        return
    # ms-swift trains a language model's adapters beside a whole tower.
    way = "qlora" if flags["qlora"] else {"lora_llm": "lora", "": "lora"}.get(way, way)
    named = {flags.key("tuner").strip("-").replace("-", "_"): flags["tuner"]} if flags["tuner"] else {}
    config = Values(key_table("trainers"), {"lora_rank": rank, "lora_target": flags["lora_targets"], **named})
    take_tuning(config, way, draft)


def _take_optimizer(flags: Flags, draft: Draft) -> None:
    """Read the optimizer, and what of it and of layers that do nothing has no price."""
    # Its SGD has a momentum of 0.9 unless the flags say another (--sgd-momentum).
    draft.put_optimizer(flags["optimizer"], sgd="sgd-momentum")
    if flags["precision_aware"]:
        widths = [flags["first_moment"], flags["second_moment"]]
        if all(width in ("bf16", "fp16") for width in widths):
            draft.put(optimizer="adamw-bf16")
        elif widths != ["fp32", "fp32"]:
            draft.warnings.append(
                f"--use-precision-aware-optimizer: moments in {' and '.join(widths)}; price them by "
                "--set moments_bytes=…"
            )
    if empty := noop_layers(flags):
        draft.facts |= {"num_layers": flags["num_layers"] or 0, "noop_layers": len(empty)}
    if flags["fp8_params"] and not str(draft["precision"]).startswith(("fp8", "mx")):
        draft.warnings.append("--fp8-param-gather: has no effect without fp8")


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


def _switches_of(flags: Flags, recipe: str, *, experts: bool) -> dict[str, Any]:
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
    if not flags["deepspeed"]:
        # DeepSpeed's engine overlaps as its own configuration says.
        overlapped = base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "last-micro-batch"
        read["dp_overlap"] = overlapped if flags["overlap_grads"] or flags["overlap_params"] else "none"
        read["pp_overlap"] = not flags["no_p2p_overlap"]
    if flags["grads_in_bf16"]:
        read["grad_reduce_dtype"] = "bf16"
    elif base.dtypes.grad_reduce_dtype == "bf16":
        read["grad_reduce_dtype"] = "fp32"
    if flags["fp16"] and flags["grads_in_fp32"]:
        read["fp16_gradients"] = False
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
    scope = set(flags["cuda_graph_scope"])
    if "full_iteration" in {*scope, flags.text(flags.key("cuda_graphs"))}:
        return {"cuda_graph_scope": "all"}
    if "mlp" in scope:
        return {"cuda_graph_scope": "static"}
    return {"cuda_graph_scope": "attention" if "attn" in scope else "router"} if scope - {"full"} else {}


def _context_method(flags: Flags) -> dict[str, Any]:
    """Read how context parallelism brings keys and values together."""
    if flags["ulysses"] > 1:
        return {"cp_method": "ulysses"}
    if flags["cp_algorithm"] and flags["cp"] > 1:
        return {"cp_method": flags["cp_algorithm"]}
    if not flags["cp_type"]:
        return {}
    sizes = flags["cp_sizes"]
    swapped = {"cp_a2a_ranks": int(sizes[0])} if sizes and sizes[0].isdigit() else {}
    return {"cp_method": flags["cp_type"], **swapped}


def _expert_switches(flags: Flags) -> dict[str, Any]:
    """Read how tokens reach their experts."""
    dispatcher, backend = flags["dispatcher"], flags["flex_backend"]
    found: dict[str, Any] = {
        "moe_dispatcher": backend if dispatcher == "flex" else dispatcher,
        "grouped_gemm": flags["grouped_gemm"],
        "moe_capacity_factor": flags["capacity_factor"],
        "ep_overlap": flags["ep_overlap"],
    }
    if flags.has("deepspeed_ep"):
        found["moe_dispatcher"] = "all-to-all"
    if dispatcher == "flex" and backend == "hybrid-ep":
        found["dispatch_sms"] = flags["flex_sms"]
    return found
