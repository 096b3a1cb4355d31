"""DeepSpeed configurations (JSON) read: what they say, what "auto" leaves to the trainer, what has no price.

Keys of deepspeedai/DeepSpeed edaa7221, ``runtime/config.py``, ``runtime/constants.py``, ``runtime/zero/config.py``
and ``runtime/zero/offload_config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import CostModelError, shown
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import REQUIRED
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, tokens_of
from costmodel.interop.optimizer_names import settle_offload, take_optimizer
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile

DEFAULT_RECIPE = FRAMEWORKS["deepspeed"].recipe

KEYS = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization bf16 bfloat16 fp16
    amp tensor_parallel sequence_parallel_size expert_parallel communication_data_type data_types
    activation_checkpointing optimizer zero_force_ds_cpu_optimizer""".split()  # noqa: SIM905
)
"""Keys of the file's first level that are read."""

_HARMLESS = frozenset(
    """scheduler gradient_clipping steps_per_print wall_clock_breakdown comment pipeline zero_allow_untested_optimizer
    flops_profiler tensorboard wandb csv_monitor prescale_gradients gradient_predivide_factor memory_breakdown
    dump_state seed data_sampling checkpoint comms_logger monitor_config elasticity dataloader_drop_last
    gradient_average fp16_opt_level disable_allgather load_universal_checkpoint
    use_data_before_expert_parallelism graph_harvesting timers nebula zero_allow_ds_cpu_optimizer""".split()  # noqa: SIM905
)
_HARMLESS_ZERO = frozenset(
    """allgather_partitions allgather_bucket_size reduce_scatter reduce_bucket_size contiguous_gradients overlap_comm
    sub_group_size stage stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size
    stage3_param_persistence_threshold stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    stage3_model_persistence_threshold offload_optimizer offload_param cpu_offload cpu_offload_params
    cpu_offload_use_pin_memory mics_shard_size mics_hierarchical_params_gather load_from_fp32_weights round_robin_gradients
    ignore_unused_parameters legacy_stage1 elastic_checkpoint use_multi_rank_bucket_allreduce
    override_module_apply log_trace_cache_warnings module_granularity_threshold use_all_reduce_for_fetch_params
    zero_hpz_partition_size zero_quantized_weights zero_quantized_gradients zero_quantized_nontrainable_weights
    allgather_sequential zenflow memory_efficient_linear param_persistence_threshold""".split()  # noqa: SIM905
)
_UNPRICED = {
    "autotuning": "the autotuner changes these values",
    "compression_training": "compression of the model has no price",
    "curriculum_learning": "the sequence grows during training; priced at its full length",
    "data_efficiency": "data sampling by difficulty has no price",
    "progressive_layer_drop": "dropped layers have no price: every layer is priced",
    "sparse_attention": "block-sparse attention has no price: full attention is priced",
    "sparse_gradients": "sparse embedding gradients have no price",
    "quantize_training": "quantised training has no price",
    "eigenvalue": "the eigenvalues that are computed have no price",
    "hybrid_engine": "generation inside training has no price",
    "aio": "the swapped states are priced by --set nvme_bytes_per_s=…",
    "torch_autocast": "autocast of PyTorch is priced as the precision beside it",
    "compile": "price torch.compile by --set compiled=true",
    "weight_quantization": "quantised weights have no price",
}


_OF_A_COMMENT = {"pp": int, "gpus": int, "seq_len": int, "model": str, "recompute": str}
"""What the exporter writes beside what DeepSpeed reads."""


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a configuration.

    Parameters
    ----------
    file : TextFile
        The JSON.
    given : mapping
        Keywords of a job; those that the file leaves to the trainer ("auto") have to be among them.

    Raises
    ------
    CostModelError
        If the text is no such JSON, or the batch figures contradict each other.
    """
    return imported(parse_json(file.text, file.name), given)


def imported(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Imported:
    """Read a configuration's content; see `read`."""
    if not raw.keys() & KEYS:
        raise FrameworkConfigError(
            "deepspeed: no key of a DeepSpeed configuration, such as zero_optimization or train_batch_size"
        )
    given_comment = raw.get("comment")
    comment: dict[str, Any] = given_comment if isinstance(given_comment, dict) else {}
    for key, kind in _OF_A_COMMENT.items():
        if comment.get(key) is not None and type(comment[key]) is not kind:
            raise FrameworkConfigError(
                f"deepspeed: comment.{key}: expected {'a whole number' if kind is int else 'a text'}, "
                f"got {shown(comment[key])}"
            )
    zero = _zero(raw)
    auto: list[str] = []
    tensor, experts = _table(raw, "tensor_parallel"), _table(raw, "expert_parallel")
    tp = _whole(
        tensor.get("autotp_size") or _table(tensor, "tp").get("tp_size") or 1, "tensor_parallel.autotp_size"
    )
    cp = _whole(raw.get("sequence_parallel_size", 1), "sequence_parallel_size")
    stages = given.get("pp") or _whole(comment.get("pp") or 1, "comment.pp", least=1)
    tp, cp = given.get("tp") or tp, given.get("cp") or cp
    micro = _optional(raw, "train_micro_batch_size_per_gpu", auto)
    steps = _optional(raw, "gradient_accumulation_steps", auto)
    total = _optional(raw, "train_batch_size", auto)
    micro, total = given.get("micro_batch") or micro, given.get("global_batch") or total
    world = given.get("gpus") or comment.get("gpus")
    dp = None if world is None else max(1, world // (tp * cp * stages))
    if dp is None and micro and steps and total:
        dp = total // (micro * steps)
        world = dp * tp * cp * stages
    checked = None if given.get("micro_batch") or given.get("global_batch") else steps
    if dp is not None:
        micro, total = _batch(micro, checked if micro and total else steps, total, dp)
    if "train_micro_batch_size_per_gpu" not in auto:
        micro = micro or 1
    stage = zero.get("stage", 0)
    if stage == "auto":
        auto.append("zero_optimization.stage")
        stage = given.get("zero_stage", 0)
    warnings, facts, chosen = _unpriced(raw, zero)
    recompute = given.get("recompute") or comment.get("recompute")
    if recompute is None:
        recompute = "full" if raw.get("activation_checkpointing") else "none"
        if recompute == "full":
            warnings.append(
                "activation_checkpointing: says how, the training script says whether; priced as full "
                "recomputation, give --recompute none where the script does not"
            )
    recipe = given.get("recipe") or DEFAULT_RECIPE
    precision = given.get("precision") or _precision(raw, auto)
    job: dict[str, Any] = {
        **chosen,
        **{key: value for key, value in given.items() if key not in ("vocab_size", "env")},
        "recipe": recipe,
        "gpus": world,
        "tp": tp,
        "cp": cp,
        "pp": stages,
        "global_batch": total,
        "micro_batch": micro,
        "zero_stage": given.get("zero_stage", _whole(stage, "zero_optimization.stage", most=3)),
        "shard_group": max(
            0, _whole(zero.get("mics_shard_size", 0), "zero_optimization.mics_shard_size", least=-1)
        ),
        "ep": _whole(experts.get("autoep_size", 1), "expert_parallel.autoep_size"),
        "etp": _whole(
            experts.get("expert_tensor_parallel_size", 1), "expert_parallel.expert_tensor_parallel_size"
        ),
        "precision": precision,
        "recompute": recompute,
        "sequence_parallel": False,
        "schedule": given.get("schedule") or ("none" if stages == 1 else "1f1b"),
        "model": given.get("model") or comment.get("model"),
        "seq_len": given.get("seq_len") or comment.get("seq_len"),
        "switches": {**_switches(raw, zero, recipe, cp), **(given.get("switches") or {})},
    }
    job |= tokens_of(comment["steps"] if type(comment.get("steps")) is int else None, job)
    settle_offload(job, warnings)
    known = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps or (micro and total),
        "train_batch_size": total,
        "precision": precision,
        "zero_optimization.stage": given.get("zero_stage"),
    }
    still = [key for key in auto if known.get(key) is None]
    missing = [key for key in REQUIRED if job[key] is None]
    ignored = [key for key in raw if key not in KEYS | _HARMLESS | set(_UNPRICED)]
    ignored += [f"zero_optimization.{key}" for key in zero if key not in _HARMLESS_ZERO]
    notes = [f'"auto", filled in by the trainer: {", ".join(auto)}'] if auto else []
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing, *still),
        tuple(ignored),
        tuple(notes),
        tuple(warnings),
        facts,
    )


def offload_of(text: str) -> dict[str, Any]:
    """Return the switches that a configuration inside a script sets; none if it cannot be read."""
    try:
        raw = parse_json(text, "ds_config")
        zero = _zero(raw)
    except CostModelError:
        return {}
    found = {"offload_optimizer": _offloads(zero)}
    return {key: value for key, value in found.items() if value}


def stage_of(text: str) -> int | None:
    """Return the stage that a configuration inside a script, or beside it, states; None if it states none."""
    try:
        stage = _zero(parse_json(text, "ds_config")).get("stage")
    except CostModelError:
        return None
    return stage if type(stage) is int and 0 <= stage <= 3 else None


def _zero(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    value = raw.get("zero_optimization")
    if value is True:
        return {"stage": 1}
    if value in (None, False):
        return {}
    if not isinstance(value, dict):
        raise FrameworkConfigError(f"deepspeed: zero_optimization: expected a table, got {value!r}")
    return value


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return what stands below a key, nothing where it is absent, null or false."""
    value = raw.get(key)
    if value is None or value is False:
        return {}
    if not isinstance(value, dict):
        raise FrameworkConfigError(f"deepspeed: {key}: expected a table, got {shown(value)}")
    return value


def _whole(value: Any, key: str, *, least: int = 0, most: float = float("inf")) -> int:
    """Return a whole number; DeepSpeed also takes 1e9 for one."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        hint = '; "auto" is filled in by the trainer at run time, give the number' if value == "auto" else ""
        bounds = f" from {least}" + (f" to {most:.0f}" if most < float("inf") else "")
        raise FrameworkConfigError(f"deepspeed: {key}: expected a whole number{bounds}, got {value!r}{hint}")
    return number


def _optional(raw: Mapping[str, Any], key: str, auto: list[str]) -> int | None:
    """Return a whole number, none where there is none or the trainer fills it in."""
    if raw.get(key) == "auto":
        auto.append(key)
        return None
    return None if raw.get(key) is None else _whole(raw[key], key, least=1)


def _batch(micro: int | None, steps: int | None, total: int | None, dp: int) -> tuple[int | None, int | None]:
    """Complete the batch: total = micro x steps x dp, any two given."""
    if micro and steps and total and micro * steps * dp != total:
        raise FrameworkConfigError(
            f"deepspeed: train_batch_size = {total}, but micro x accumulation x dp = "
            f"{micro}·{steps}·{dp} = {micro * steps * dp}"
        )
    if micro is None and total and steps:
        micro = max(1, total // (steps * dp))
    if total is None and micro:
        total = micro * (steps or 1) * dp
    return micro, total


def _precision(raw: Mapping[str, Any], auto: list[str]) -> str | None:
    for name, key in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16"), ("fp16", "amp")):
        enabled = _table(raw, key).get("enabled", False)
        if enabled not in (True, False, None, "auto") or isinstance(enabled, float):
            raise FrameworkConfigError(
                f'deepspeed: {key}.enabled: expected true, false or "auto", got {shown(enabled)}'
            )
        if enabled == "auto":
            if "precision" not in auto:
                auto.append("precision")
        elif enabled:
            return name
    return None if "precision" in auto else "fp32"


def _offloads(zero: Mapping[str, Any]) -> bool:
    """Whether the optimizer's states are offloaded, under the key of any age."""
    return _offloaded(zero, "offload_optimizer") or zero.get("cpu_offload") is True


def _offloaded(zero: Mapping[str, Any], key: str) -> bool:
    """Whether something is on the host or on a disk."""
    device = _table(zero, key).get("device", "none")
    if device not in ("none", None, "cpu", "nvme"):
        raise FrameworkConfigError(
            f"deepspeed: {key}.device: expected none, cpu or nvme, got {shown(device)}"
        )
    return device not in ("none", None)


def _unpriced(
    raw: Mapping[str, Any], zero: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return warnings of what has no price, the facts among it, and the optimizer where it has one."""
    warnings: list[str] = []
    facts: dict[str, Any] = {}
    for key, said in _UNPRICED.items():
        value = raw.get(key)
        if value and (not isinstance(value, dict) or value.get("enabled", True) not in (False,)):
            if key == "aio" and not _swaps(zero):
                continue
            warnings.append(f"{key}: {said}")
    if _offloaded(zero, "offload_param") or zero.get("cpu_offload_params") is True:
        facts["offload_param"] = True
        warnings.append(
            "offload_param: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
    optimizer = _table(raw, "optimizer").get("type")
    chosen: dict[str, Any] = {}
    if optimizer is not None and not isinstance(optimizer, str):
        raise FrameworkConfigError(f"deepspeed: optimizer.type: expected a name, got {shown(optimizer)}")
    if optimizer:
        take_optimizer(optimizer, chosen, facts, warnings)
    if _whole(zero.get("zero_hpz_partition_size") or 1, "zero_optimization.zero_hpz_partition_size") > 1:
        warnings.append("zero_hpz_partition_size: the second copy of parameters inside a node has no price")
    for key, price in (
        ("zero_quantized_weights", "gather_dtype=fp8"),
        ("zero_quantized_gradients", "gradient_compression=int4"),
    ):
        if zero.get(key):
            warnings.append(f"{key}: price it by --set {price}")
    if zero.get("zenflow"):
        warnings.append(
            "zenflow: its stall-free updates have no price: the offloaded step is priced as it waits"
        )
    return warnings, facts, chosen


def _swaps(zero: Mapping[str, Any]) -> bool:
    """Whether something is swapped to NVMe."""
    tables = (zero.get("offload_optimizer"), zero.get("offload_param"))
    return any(isinstance(table, dict) and table.get("device") == "nvme" for table in tables)


def _switches(raw: Mapping[str, Any], zero: Mapping[str, Any], recipe: str, cp: int) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    # DeepSpeed overlaps by default from stage 3 on.
    overlaps = zero.get("overlap_comm", zero.get("stage", 0) == 3)
    read: dict[str, Any] = {
        "dp_overlap": (base.overlap.dp_overlap if base.overlap.dp_overlap != "none" else "every-layer")
        if overlaps
        else "none",
        "offload_optimizer": _offloads(zero),
    }
    names = {
        "fp32": "fp32",
        "fp16": "fp16",
        "bf16": "bf16",
        "bfp16": "bf16",
        "bfloat16": "bf16",
        "float32": "fp32",
    }
    for switch, value in (
        ("grad_reduce_dtype", raw.get("communication_data_type")),
        ("grad_accum_dtype", _table(raw, "data_types").get("grad_accum_dtype")),
    ):
        if value is None or value == "auto":
            continue
        if not isinstance(value, str) or value not in names:
            raise FrameworkConfigError(
                f"deepspeed: {switch}: expected fp32, fp16 or bf16, got {shown(value)}"
            )
        read[switch] = names[value]
    if cp > 1:
        read["cp_method"] = "ulysses"
    current = base.switches
    return {key: value for key, value in read.items() if current[key] != value}
