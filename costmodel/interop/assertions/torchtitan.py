"""What torchtitan asserts: `ParallelDims`, the trainer's configuration, stages of a pipeline, and its decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from costmodel.interop.assertions.record import WORDS, Arguments, Table, rows
from costmodel.interop.keys import key_table
from costmodel.interop.torchtitan import written_tables
from costmodel.physics.pipeline.schedule_table import SCHEDULES

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_CONFIG = "torchtitan/config/configs.py"
_DIMS = "torchtitan/distributed/parallel_dims.py"
_STAGES = "torchtitan/distributed/pipeline_parallel.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"

_WORDS = key_table("torchtitan").more
_SEVERAL_STAGES = _WORDS["words"]["several_stages"]

_POSITIONS = {"llama3": 131072, "deepseek_v3": 16384, "gpt_oss": 131072, "qwen3": 40960}
"""Longest sequence of each family's rotary table (torchtitan/models/*/__init__.py, `max_seq_len`)."""

_FAMILY_OF = {ours: family for ours, (family, *_) in _WORDS["models"].items()}
_METHODS = {"ring": "ring", "all-gather": "all_gather", "ulysses": "ulysses", "a2a+p2p": "ring"}
_PLACES = "layers + first_stage_less_layers + last_stage_less_layers"


def arguments(job: Job) -> Arguments:
    """Return what `costmodel.interop.torchtitan.emit_torchtitan` writes, as far as assertions look at it."""
    layout, model, recipe = job.layout, job.model, job.recipe
    piped, sharded = layout.pp > 1, layout.zero_stage > 0
    group = np.where(layout.shard_group > 0, layout.shard_group, layout.dp * layout.cp)
    shard = np.where(sharded, np.maximum(group / layout.cp, 1.0), 1.0)
    several = np.asarray([name in _SEVERAL_STAGES for name in SCHEDULES])
    looped = several[np.asarray(layout.schedule, dtype=np.int64)]
    weights = float(recipe.memory.embedding_as_layer) + float(recipe.memory.head_as_layer)
    each = np.ceil((model.num_layers + weights) / (layout.pp * layout.vp))
    moe = bool(model.num_experts)
    return {
        "world_size": layout.gpus,
        "zero_stage": layout.zero_stage,
        "data_parallel_replicate_degree": layout.dp / shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep if moe else np.asarray(1.0),
        "expert_tensor_parallel_degree": layout.etp if moe else np.asarray(1.0),
        "enable_sequence_parallel": layout.sequence_parallel > 0,
        "looped": looped,
        "stages_per_rank": np.where(looped, layout.vp, 1.0),
        "layers_per_stage": np.where(piped & looped & (layout.vp != 2), each, 0.0),
        "layers": float(model.num_layers),
        "first_stage_less_layers": float(recipe.memory.embedding_as_layer),
        "last_stage_less_layers": float(recipe.memory.head_as_layer),
        "local_batch_size": layout.micro_batch * np.where(piped, job.micro_batches, 1.0),
        "microbatch_size": layout.micro_batch,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "batch_degree": layout.dp,
        "disable_cuda_graphs": float(not recipe.host.cuda_graphs),
        "reduce_in_float32": float(recipe.dtypes.grad_reduce_dtype == "fp32"),
        "enable_async_tensor_parallel": float(recipe.overlap.tp_overlap == "pipelined"),
        "compile": float(recipe.kernels.compiled),
        "context_exchange": WORDS[_METHODS[recipe.overlap.cp_method]],
        "n_heads": float(model.num_heads),
        "n_kv_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
        "num_experts": float(model.num_experts),
        "num_mtp_layers": float(model.mtp_layers),
        "max_seq_len": _positions(model.name),
        "enable_weight_tying": float(model.tied_embeddings),
        "sharded_shape": _sharded_shape(job),
    }


_TRAINING = """local_batch_size global_batch_size seq_len disable_cuda_graphs""".split()  # noqa: SIM905
_DEGREES = """data_parallel_replicate_degree data_parallel_shard_degree tensor_parallel_degree context_parallel_degree
    pipeline_parallel_degree expert_parallel_degree enable_sequence_parallel""".split()  # noqa: SIM905


def written(text: str) -> dict[str, ArrayLike]:
    """Return what a configuration says of the same arguments."""
    raw = written_tables(text)
    training, parallel, compiled = raw["training"], raw["parallelism"], raw["compile"]
    found: dict[str, ArrayLike] = {name: float(training[name]) for name in _TRAINING}
    found |= {name: float(parallel[name]) for name in _DEGREES}
    found |= {
        "reduce_in_float32": float(training["mixed_precision_reduce"] == "float32"),
        "batch_degree": float(
            parallel["data_parallel_replicate_degree"] * parallel["data_parallel_shard_degree"]
        ),
        "compile": float(compiled["enable"]),
        "enable_async_tensor_parallel": float(compiled["enable_async_tensor_parallel"]),
    }
    if parallel["pipeline_parallel_degree"] > 1:
        found |= {
            "microbatch_size": float(parallel["pipeline_parallel_microbatch_size"]),
            "layers_per_stage": float(parallel.get("pipeline_parallel_layers_per_stage", 0)),
            "first_stage_less_layers": float(parallel["pipeline_parallel_first_stage_less_layers"]),
            "last_stage_less_layers": float(parallel["pipeline_parallel_last_stage_less_layers"]),
        }
    return found


def _positions(model: str) -> float:
    """Return the longest sequence of a model's rotary table, where torchtitan has the model."""
    return float(_POSITIONS.get(_FAMILY_OF.get(model, ""), np.inf))


def _sharded_shape(job: Job) -> ArrayLike:
    """Return where a group of shards is a whole number of context-parallel groups that divides the replicas."""
    layout = job.layout
    grouped = (layout.zero_stage > 0) & (layout.shard_group > 0)
    group = np.where(grouped, layout.shard_group, layout.dp * layout.cp)
    return np.asarray((group % layout.cp == 0) & ((layout.dp * layout.cp) % group == 0))


_RELEASE = "torchtitan 0.3.0"

TORCHTITAN = Table(
    (
        *rows(
            "torchtitan",
            _RELEASE,
            (
                f"{_DIMS}:186",
                "data_parallel_replicate_degree * data_parallel_shard_degree * context_parallel_degree"
                " * tensor_parallel_degree * pipeline_parallel_degree != world_size or not sharded_shape",
                "the degrees do not multiply to {world_size} with replicas of whole shard groups",
            ),
            (
                f"{_DIMS}:279",
                "expert_parallel_degree > 1 and (data_parallel_shard_degree * context_parallel_degree"
                " * tensor_parallel_degree) % expert_parallel_degree != 0",
                "{expert_parallel_degree} does not divide shard·cp·tp of"
                " {data_parallel_shard_degree}, {context_parallel_degree}, {tensor_parallel_degree}",
            ),
            (
                f"{_CONFIG}:93",
                "not reduce_in_float32 and data_parallel_shard_degree * context_parallel_degree > 1",
                "mixed_precision_reduce takes float32 only",
            ),
            (
                f"{_CONFIG}:304",
                "enable_async_tensor_parallel and not compile",
                "asynchronous tensor parallelism needs torch.compile",
            ),
            (
                f"{_TRAINER}:132",
                "pipeline_parallel_degree > 1 and local_batch_size % microbatch_size != 0",
                "{microbatch_size} does not divide {local_batch_size}",
            ),
            (
                f"{_TRAINER}:183",
                "not disable_cuda_graphs and pipeline_parallel_degree > 1",
                "CUDA graphs do not go with {pipeline_parallel_degree}",
            ),
            (
                f"{_TRAINER}:203",
                "not disable_cuda_graphs and expert_parallel_degree > 1",
                "CUDA graphs do not go with {expert_parallel_degree}",
            ),
            (
                f"{_TRAINER}:310",
                "seq_len % (where(enable_sequence_parallel, tensor_parallel_degree, 1)"
                " * where(context_parallel_degree > 1, 2 * context_parallel_degree, 1)) != 0",
                "tp·2·cp of {tensor_parallel_degree}, {context_parallel_degree} does not divide {seq_len}",
            ),
            (
                f"{_TRAINER}:421",
                "global_batch_size % (local_batch_size * batch_degree) != 0",
                "{local_batch_size} times {batch_degree} does not divide {global_batch_size}",
            ),
            (
                f"{_DECODER}:139",
                "enable_weight_tying and pipeline_parallel_degree > 1",
                "tied embeddings do not go with {pipeline_parallel_degree}",
            ),
            (
                f"{_DECODER}:149",
                "n_heads % tensor_parallel_degree != 0",
                "{tensor_parallel_degree} does not divide {n_heads}",
            ),
            (
                f"{_DECODER}:154",
                "n_kv_heads % tensor_parallel_degree != 0",
                "{tensor_parallel_degree} does not divide {n_kv_heads}",
            ),
            (
                f"{_DECODER}:169",
                "seq_len > max_seq_len",
                "{seq_len} is more than {max_seq_len}",
            ),
            (
                "torchtitan/models/deepseek_v3/mtp.py:201",
                "num_mtp_layers > 0 and pipeline_parallel_degree > 1",
                "{num_mtp_layers} does not go with {pipeline_parallel_degree}",
            ),
            (
                "torchtitan/models/deepseek_v3/mtp.py:206",
                "num_mtp_layers > 0 and context_parallel_degree > 1",
                "{num_mtp_layers} does not go with {context_parallel_degree}",
            ),
            (
                f"{_STAGES}:233",
                "pipeline_parallel_degree > 1 and layers_per_stage > 0"
                f" and ceil(({_PLACES}) / max(layers_per_stage, 1)) % pipeline_parallel_degree != 0",
                "{layers_per_stage} of {layers} do not make a multiple of {pipeline_parallel_degree} stages",
            ),
            (
                f"{_STAGES}:244",
                "pipeline_parallel_degree > 1 and not looped and layers_per_stage > 0"
                f" and ceil(({_PLACES}) / max(layers_per_stage, 1)) != pipeline_parallel_degree",
                "a schedule of one stage a rank with {layers_per_stage}",
            ),
            (
                f"{_STAGES}:252",
                "pipeline_parallel_degree > 1 and looped and layers_per_stage > 0"
                f" and ceil(({_PLACES}) / max(layers_per_stage, 1)) < 2 * pipeline_parallel_degree",
                "a schedule of several stages a rank with {layers_per_stage}",
            ),
            (
                f"{_STAGES}:401",
                f"pipeline_parallel_degree > 1 and pipeline_parallel_degree * stages_per_rank > {_PLACES}",
                "{pipeline_parallel_degree} times {stages_per_rank} stages are more than {layers}",
            ),
            (
                f"{_STAGES}:421",
                f"pipeline_parallel_degree > 1 and first_stage_less_layers"
                f" > floor(({_PLACES}) / (pipeline_parallel_degree * stages_per_rank))",
                "{first_stage_less_layers} is more than the layers of a stage",
            ),
            (
                f"{_STAGES}:425",
                f"pipeline_parallel_degree > 1 and last_stage_less_layers"
                f" > floor(({_PLACES}) / (pipeline_parallel_degree * stages_per_rank))",
                "{last_stage_less_layers} is more than the layers of a stage",
            ),
        ),
        *rows(
            "torchtitan",
            _RELEASE,
            (
                f"{_CONFIG}:124",
                "zero_stage == 1 or zero_stage == 2 or (zero_stage == 0 and context_parallel_degree > 1)",
                "FSDP2 shards parameters, over all of dp·cp: {zero_stage} has no setting; plan with zero_stage = 3",
            ),
            (
                f"{_CONFIG}:279",
                "expert_parallel_degree > 1 and expert_tensor_parallel_degree > 1",
                "{expert_tensor_parallel_degree}: experts are not cut by tensor parallelism",
            ),
            (
                "torchtitan/distributed/context_parallel/api.py:73",
                "context_parallel_degree > 1 and context_exchange != all_gather",
                "{context_parallel_degree} gathers keys and values: set cp_method = all-gather",
            ),
            raises=False,
        ),
    ),
    arguments,
    written,
)
"""torchtitan's own checks of what `costmodel.interop.torchtitan` writes."""
