"""A job in Megatron's arguments: degrees, batch, schedule, sharding, recomputation, precision, switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.models.model import Model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, tokens_of
from costmodel.interop.megatron_flags import UNPRICED
from costmodel.interop.megatron_mixers import PATTERNS
from costmodel.interop.megatron_model import model_of_flags, other_mixer, shape_of_flags
from costmodel.interop.megatron_text import Flags
from costmodel.interop.optimizer_names import take_optimizer
from costmodel.interop.tuning import take_tuning
from costmodel.physics.pipeline.chunks import parse_chunks

DEFAULT_RECIPE = FRAMEWORKS["megatron"].recipe
SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
GRAPH_SCOPES: dict[str, tuple[str, ...]] = {
    "static": ("attn", "mlp", "moe_router", "moe_preprocess"),
    "attention": ("attn", "moe_router", "moe_preprocess"),
    "router": ("moe_router", "moe_preprocess"),
}
"""Scopes of CUDA graphs in the words of ``--cuda-graph-scope``; a graph of everything is one of the iteration. Kernels of
the router are counted with those that prepare the exchange, so that a graph of the one holds the other."""

CP_TYPES = {"ring": "p2p", "all-gather": "all_gather", "ulysses": "a2a", "a2a+p2p": "a2a+p2p"}
FP8_RECIPES = {
    "delayed": "fp8-delayed",
    "tensorwise": "fp8-current",
    "blockwise": "fp8-block",
    "mxfp8": "mxfp8",
}
_CP_ALGORITHMS = {
    "ulysses_cp_algo": "ulysses",
    "megatron_cp_algo": "ring",
    "hybrid_cp_algo": "ring",
    "kvallgather_cp_algo": "all-gather",
}
_DEFAULT_DROPOUT = 0.1
_FULL_RECOMPUTE = (
    "--checkpoint-activations",
    "--deepspeed-activation-checkpointing",
    "--activations-checkpoint-method",
)


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
    deepspeed = flags.has("--deepspeed") or flags.has("--zero-stage")
    chosen = recipe or ("megatron-deepspeed" if deepspeed else DEFAULT_RECIPE)
    notes: list[str] = []
    warnings = [f"{flag}: {said}" for flag, said in UNPRICED.items() if flag in flags.names()]
    flags.pass_over(*UNPRICED)
    unpriced, shape = other_mixer(flags), {}
    if unpriced and model is None:
        shape = shape_of_flags(flags)
    elif model is None and {"--num-layers", *PATTERNS} & set(flags.names()):
        model = model_of_flags(flags, name, notes)
    layers = model.num_layers if model is not None else int(shape.get("num_layers", 0))
    experts = bool(model.num_experts) if model is not None else bool(shape.get("num_experts"))
    job: dict[str, Any] = {"model": model, "recipe": chosen, **_layout_of(flags, layers, experts, warnings)}
    job["precision"] = _precision_of(flags)
    facts = _facts_of(flags, job, warnings)
    _take_adapters(flags, job, notes, warnings)
    job["switches"] = _switches_of(flags, chosen, experts, deepspeed=deepspeed)
    if flags.has("--use-tp-pp-dp-mapping"):
        job["axis_order"] = "tp cp pp dp"
    if chunks := _pipeline_layout(flags, job, model):
        job["pipeline_layout"] = chunks
    wanted = ["gpus", "global_batch", "seq_len"] if model is not None or unpriced else ["model", "gpus"]
    if model is None and not unpriced:
        wanted += ["global_batch", "seq_len"]
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


def _layout_of(flags: Flags, layers: int, experts: bool, warnings: list[str]) -> dict[str, Any]:
    """Read degrees, batch, schedule, sharding and recomputation."""
    tp = flags.number("--tensor-model-parallel-size", 1)
    pp = flags.number("--pipeline-model-parallel-size", 1)
    cp = flags.number("--context-parallel-size", 1) * flags.number("--ds-sequence-parallel-size", 1)
    gpus = _gpus_of(flags)
    vp = flags.number("--num-virtual-stages-per-pipeline-rank") or flags.number(
        "--virtual-pipeline-model-parallel-size"
    )
    layers_each = flags.number("--num-layers-per-virtual-pipeline-stage")
    if layers_each is not None and layers_each < 1:
        raise FrameworkConfigError(
            f"--num-layers-per-virtual-pipeline-stage: expected at least 1, got {layers_each}"
        )
    if vp is None and (dealt := flags.text("--pipeline-model-parallel-layout", "")):
        vp = max(1, len(parse_chunks(dealt)) // pp)
    if vp is None:
        places = flags.number("--num-layers", layers)
        vp = 1 if not layers_each or not places else max(1, places // (pp * layers_each))
    zero = _zero_stage(flags)
    instances = flags.number("--num-distributed-optimizer-instances", 1)
    shard_group = 0
    if instances > 1 and zero:
        if gpus is None:
            raise FrameworkConfigError(
                "--num-distributed-optimizer-instances: needs --nnodes and --nproc-per-node"
            )
        shard_group = gpus // (tp * pp) // instances
    ep = flags.number("--expert-model-parallel-size") or flags.number("--moe-expert-parallel-size", 1)
    schedule = _schedule_of(flags, pp, vp)
    return {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "vp": 2 if schedule in ("zb-v", "dualpipe-v") else vp,
        "ep": ep,
        "etp": flags.number("--expert-tensor-parallel-size", tp if ep > 1 or experts else 1),
        "micro_batch": flags.number("--micro-batch-size", 1),
        "global_batch": flags.number("--global-batch-size"),
        "seq_len": flags.number("--seq-length") or flags.number("--max-length"),
        "zero_stage": zero,
        "shard_group": shard_group,
        "recompute": _recompute_of(flags, warnings),
        "sequence_parallel": flags.has("--sequence-parallel") and tp > 1,
        "schedule": schedule,
    }


def _length_of(flags: Flags, job: Mapping[str, Any]) -> dict[str, float]:
    """Return the tokens of the whole run, where they do not depend on a batch that grows."""
    counts = [flags.plain_number(flag) or 0 for flag in ("--train-iters", "--train-samples")]
    iters, samples = (int(count) for count in counts)
    if samples > 0:
        return tokens_of(1, {"global_batch": samples, "seq_len": job.get("seq_len")})
    grows = {"--rampup-batch-size", "--step-batch-size-schedule"} & set(flags.names())
    return {} if grows else tokens_of(iters, job)


def _gpus_of(flags: Flags) -> int | None:
    """Return nodes times GPUs of each, as torchrun's or DeepSpeed's launcher has them."""

    def known(flag: str) -> int | None:
        if flags.lacks(flag) or not flags.text(flag, "").isdigit():
            flags.pass_over(flag)
            return None
        return flags.number(flag)

    nodes, each = known("--nnodes") or known("--num-nodes"), known("--nproc-per-node") or known("--num-gpus")
    total = known("--world-size")
    return total or (None if nodes is None or each is None else nodes * each)


def _zero_stage(flags: Flags) -> int:
    """Read what data parallelism shards."""
    fsdp = flags.has("--use-megatron-fsdp") | flags.has("--use-custom-fsdp") | flags.has("--use-torch-fsdp2")
    strategy = flags.text("--data-parallel-sharding-strategy", "optim_grads_params" if fsdp else "")
    # Muon's states are dealt out matrix by matrix (megatron/core/optimizer/layer_wise_optimizer.py).
    layer_wise = flags.text("--optimizer", "adam").startswith("dist_")
    distributed = flags.has("--use-distributed-optimizer") | layer_wise
    stage = flags.number("--zero-stage")
    if stage is not None:
        if not 0 <= stage <= 3:
            raise FrameworkConfigError(f"--zero-stage: expected 0 to 3, got {stage}")
        return stage
    if not fsdp:
        return int(distributed)
    if strategy not in SHARDING:
        raise FrameworkConfigError(
            f"--data-parallel-sharding-strategy: expected one of {', '.join(SHARDING)}, got {strategy!r}"
        )
    return SHARDING.index(strategy)


def _recompute_of(flags: Flags, warnings: list[str]) -> str:
    """Read recomputation, of flags of all ages."""
    found = flags.text("--recompute-granularity", "")
    old = any([flags.has(flag) for flag in _FULL_RECOMPUTE])
    selective = flags.has("--recompute-activations")
    older = flags.text("--activations-checkpoint-granularity", "")
    found = found or older or ("full" if old else "selective" if selective else "none")
    method = flags.text("--recompute-method", flags.text("--activations-checkpoint-method", ""))
    layers = flags.number("--recompute-num-layers", flags.number("--activations-checkpoint-num-layers", 1))
    kept = flags.number("--checkpoint-num-layers", 1)
    if found not in ("none", "selective", "full"):
        raise FrameworkConfigError(
            f"--recompute-granularity: expected none, selective or full, got {found!r}"
        )
    if found == "full" and method == "block":
        warnings.append(
            f"--recompute-method block: only the first {layers} layers of a stage recompute; priced as all"
        )
    elif found == "full" and max(layers, kept) > 1:
        warnings.append(f"one input is kept for every {max(layers, kept)} layers; priced as one for each")
    return found


def _schedule_of(flags: Flags, pp: int, vp: int) -> str:
    """Read the pipeline schedule, also of the zero-bubble forks."""
    v_shaped, zero_bubble = flags.has("--zero-bubble-v-schedule"), flags.has("--enable-zero-bubble")
    h1 = flags.has("--enable-zbh1-pipeline") | flags.has("--enable-zb-h1")
    named = flags.text("--schedules-method", "")
    if pp == 1:
        return "none"
    if named == "dualpipev":
        return "dualpipe-v"
    if v_shaped:
        return "zb-v"
    if h1 or zero_bubble:
        return "zb-h1"
    return "interleaved" if vp > 1 else "1f1b"


def _precision_of(flags: Flags) -> str:
    """Read the precision of the GEMMs."""
    bf16, fp16 = flags.has("--bf16"), flags.has("--fp16")
    dtype = flags.text("--torch-dtype", "")
    fp8, fp4 = flags.text("--fp8-format", ""), flags.text("--fp4-format", "")
    hybrid = flags.has("--fp8-hybrid") | flags.has("--fp8-e4m3")
    recipe = flags.text("--fp8-recipe", "delayed")
    if fp4:
        return "nvfp4"
    if fp8 or hybrid:
        if recipe not in FP8_RECIPES:
            raise FrameworkConfigError(
                f"--fp8-recipe: expected one of {', '.join(FP8_RECIPES)}, got {recipe!r}"
            )
        return FP8_RECIPES[recipe]
    named = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype)
    return "fp16" if fp16 else "bf16" if bf16 else named or "fp32"


def _take_adapters(flags: Flags, job: dict[str, Any], notes: list[str], warnings: list[str]) -> None:
    """Read low-rank adapters, as ms-swift and MindSpeed-LLM add them to Megatron's flags."""
    quantised = flags.has("--qlora")
    way = flags.text("--train-type", flags.text("--tuner-type", flags.text("--peft-scheme", "")))
    rank = flags.number("--lora-rank", flags.number("--lora-r"))
    targets = flags.words("--lora-target-modules") or flags.words("--target-modules")
    if not way and not quantised and rank is None:
        return
    # ms-swift trains a language model's adapters beside a whole tower.
    way = {"lora_llm": "lora"}.get(way, way)
    raw = {"lora_rank": rank, "lora_target": targets}
    take_tuning(raw, "qlora" if quantised else way or "lora", job, notes, warnings)


def _facts_of(flags: Flags, job: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    """Take the optimizer, and return what the flags say that has no price, and warn of it."""
    facts: dict[str, Any] = {}
    optimizer = flags.text("--optimizer", "adam")
    if optimizer == "hybridadam":
        facts["optimizer"] = optimizer
        warnings.append(
            "--optimizer hybridadam: offloads its states; price it by --set offload_optimizer=true"
        )
    else:
        # Its SGD has a momentum of 0.9 unless told otherwise (--sgd-momentum).
        take_optimizer(optimizer, job, facts, warnings, sgd="sgd-momentum")
    if flags.has("--use-precision-aware-optimizer"):
        widths = [flags.text(flag, "fp32") for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
        if all(width in ("bf16", "fp16") for width in widths):
            job["optimizer"] = "adamw-bf16"
        else:
            warnings.append(
                f"--use-precision-aware-optimizer: moments in {' and '.join(widths)}; price them by "
                "--set moments_bytes=…"
            )
    empty = [part for part in flags.text("--noop-layers", "").replace(";", ",").split(",") if part.strip()]
    if empty:
        facts["num_layers"] = flags.number("--num-layers", 0)
        facts["noop_layers"] = len(empty)
    if flags.has("--fp8-param-gather") and not str(job.get("precision", "")).startswith(("fp8", "mx")):
        warnings.append("--fp8-param-gather: has no effect without fp8")
    return facts


def _pipeline_layout(flags: Flags, job: Mapping[str, Any], model: Model | None) -> str:
    """Return the layers of every chunk where flags say them, in Megatron's own letters."""
    given = flags.text("--pipeline-model-parallel-layout", "")
    first = flags.number("--decoder-first-pipeline-num-layers")
    last = flags.number("--decoder-last-pipeline-num-layers")
    noop = {int(part) for part in flags.text("--noop-layers", "").split(",") if part.strip().isdigit()}
    pp, vp = int(job["pp"]), int(job["vp"])
    if given or model is None or pp == 1 or job["schedule"] not in ("1f1b", "interleaved"):
        return given
    if not (first or last or noop):
        return ""
    places = model.num_layers + len(noop)
    counts = _layers_of_ranks(places, pp, first, last)
    if any(count % vp for count in counts):
        raise FrameworkConfigError(
            f"--decoder-first-pipeline-num-layers: stages of {counts} layers do not divide into {vp} chunks"
        )
    # Chunk c of rank r is the c·pp + r-th of the model.
    chunks = [counts[rank] // vp for _ in range(vp) for rank in range(pp)]
    letters, at = [], 0
    for count in chunks:
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


def _switches_of(flags: Flags, recipe: str, experts: bool, *, deepspeed: bool) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    overlaps = flags.has("--overlap-grad-reduce") | flags.has("--overlap-param-gather")
    pipelined, fused_loss = flags.has("--tp-comm-overlap"), flags.has("--cross-entropy-loss-fusion")
    dropout = (
        max(
            flags.real("--attention-dropout", _DEFAULT_DROPOUT),
            flags.real("--hidden-dropout", _DEFAULT_DROPOUT),
        )
        > 0
    )
    offload = [flags.has(flag) for flag in ("--optimizer-cpu-offload", "--cpu-optimizer")]
    read: dict[str, Any] = {
        "tp_overlap": "pipelined"
        if pipelined
        else "weight-grad"
        if base.overlap.tp_overlap == "pipelined"
        else base.overlap.tp_overlap,
        "cross_entropy": "fused"
        if fused_loss
        else "unfused"
        if base.kernels.cross_entropy == "fused"
        else base.kernels.cross_entropy,
        "offload_optimizer": any(offload) or flags.text("--optimizer", "") == "hybridadam",
        "cuda_graphs": flags.has("--enable-cuda-graph") | flags.has("--cuda-graph-impl"),
        **_graph_scope(flags),
        "embedding_as_layer": flags.has("--account-for-embedding-in-pipeline-split"),
        "head_as_layer": flags.has("--account-for-loss-in-pipeline-split"),
        "dropout": dropout,
    }
    no_p2p_overlap = flags.has("--no-overlap-p2p-communication")
    if not deepspeed:
        # DeepSpeed's engine overlaps as its own configuration says.
        read["dp_overlap"] = _data_overlap(base.overlap.dp_overlap) if overlaps else "none"
        read["pp_overlap"] = not no_p2p_overlap
    if flags.has("--grad-reduce-in-bf16"):
        read["grad_reduce_dtype"] = "bf16"
    elif base.dtypes.grad_reduce_dtype == "bf16":
        read["grad_reduce_dtype"] = "fp32"
    read |= _context_method(flags)
    if flags.text("--attention-backend", "auto") == "unfused":
        read["attention_kernel"] = "unfused"
    if flags.has("--fp8-param-gather"):
        read["quantised_weights"] = "primary"
    modules = flags.words("--recompute-modules")
    if modules:
        read["selective_modules"] = tuple(modules)
    if experts:
        read |= _expert_switches(flags)
    current = base.switches
    return {key: value for key, value in read.items() if current[key] != value}


def _graph_scope(flags: Flags) -> dict[str, Any]:
    """Read what the graphs hold; what says nothing, or the whole layer of older releases, stays the recipe's."""
    held = set(flags.words("--cuda-graph-scope"))
    if "full_iteration" in held:
        return {"cuda_graph_scope": "all"}
    if "mlp" in held:
        return {"cuda_graph_scope": "static"}
    return {"cuda_graph_scope": "attention" if "attn" in held else "router"} if held - {"full"} else {}


def _data_overlap(of_recipe: str) -> str:
    return of_recipe if of_recipe != "none" else "last-micro-batch"


def _context_method(flags: Flags) -> dict[str, Any]:
    """Read how context parallelism brings keys and values together."""
    # The help of Megatron-LM says allgather, Transformer Engine takes all_gather.
    methods = {flag: method for method, flag in CP_TYPES.items()} | {"allgather": "all-gather"}
    comm_type = flags.text("--cp-comm-type", "")
    algorithm = flags.text("--context-parallel-algo", "")
    degree = flags.number("--context-parallel-size", 1)
    if flags.number("--ds-sequence-parallel-size", 1) > 1:
        return {"cp_method": "ulysses"}
    if algorithm and degree > 1:
        if algorithm not in _CP_ALGORITHMS:
            raise FrameworkConfigError(
                f"--context-parallel-algo: expected one of {', '.join(_CP_ALGORITHMS)}, got {algorithm!r}"
            )
        return {"cp_method": _CP_ALGORITHMS[algorithm]}
    if not comm_type:
        return {}
    if comm_type not in methods:
        raise FrameworkConfigError(f"--cp-comm-type: expected one of {', '.join(methods)}, got {comm_type!r}")
    sizes = flags.words("--hierarchical-context-parallel-sizes")
    swapped = {"cp_a2a_ranks": int(sizes[0])} if sizes and sizes[0].isdigit() else {}
    return {"cp_method": methods[comm_type], **swapped}


def _expert_switches(flags: Flags) -> dict[str, Any]:
    """Read how tokens reach their experts."""
    kinds = {
        "alltoall": "all-to-all",
        "alltoall_seq": "all-to-all",
        "allgather": "all-gather",
        "flex": "deep-ep",
    }
    by = {"deepep": "deep-ep", "hybridep": "hybrid-ep"}
    given = flags.text("--moe-token-dispatcher-type", "allgather")
    backend = flags.text("--moe-flex-dispatcher-backend", "deepep")
    if given not in kinds:
        raise FrameworkConfigError(
            f"--moe-token-dispatcher-type: expected one of {', '.join(kinds)}, got {given!r}"
        )
    if backend not in by:
        raise FrameworkConfigError(
            f"--moe-flex-dispatcher-backend: expected one of {', '.join(by)}, got {backend!r}"
        )
    kinds["flex"] = by[backend]
    sms = flags.number("--moe-hybridep-num-sms", 16)
    old = flags.has("--moe-expert-parallel-size")  # Megatron-DeepSpeed's, always all-to-all
    capacity = flags.real("--moe-expert-capacity-factor", flags.real("--moe-train-capacity-factor", 0.0))
    return {
        "moe_dispatcher": "all-to-all" if old else kinds[given],
        "grouped_gemm": flags.has("--moe-grouped-gemm"),
        "moe_capacity_factor": capacity,
        "ep_overlap": flags.has("--overlap-moe-expert-parallel-comm"),
        **({"dispatch_sms": sms} if given == "flex" and backend == "hybridep" else {}),
    }
