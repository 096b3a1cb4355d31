"""What Megatron-LM asserts: `TransformerConfig`, process groups, schedules, and `validate_args`.

Files of megatron-core 0.16.1 as published, and of NVIDIA/Megatron-LM 000c4ac2 for ``megatron/training``,
which that package leaves out.
"""

from __future__ import annotations

from costmodel.interop.assertions.megatron_arguments import arguments, written
from costmodel.interop.assertions.record import Table, rows

_CORE = "megatron-core 0.16.1"
_TRAINING = "NVIDIA/Megatron-LM 000c4ac24f61"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_GROUPS = "megatron/core/parallel_state.py"
_SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
_STAGES = "megatron/core/transformer/transformer_block.py"
_LAYOUTS = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
_ARGUMENTS = "megatron/training/arguments.py:validate_args"

_ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
ATTENTION_RELEASE = "NVIDIA/TransformerEngine 002a3e573f49"

_LAYERS = "num_layers + account_for_embedding_in_pipeline_split + account_for_loss_in_pipeline_split"
_EVEN = "pipeline_model_parallel_layout == 0"
_OVERLAP = "overlap_moe_expert_parallel_comm"

CORE_ROWS = (
    (
        f"{_CONFIG}:924",
        "num_attention_heads % tensor_model_parallel_size != 0",
        "{tensor_model_parallel_size} does not divide {num_attention_heads}",
    ),
    (
        f"{_CONFIG}:939",
        "num_query_groups % tensor_model_parallel_size != 0 and tensor_model_parallel_size % num_query_groups != 0",
        "{tensor_model_parallel_size} neither divides {num_query_groups} nor is a multiple of it",
    ),
    (
        f"{_CONFIG}:976",
        "gated_delta_net and linear_num_key_heads % tensor_model_parallel_size != 0",
        "{tensor_model_parallel_size} does not divide {linear_num_key_heads}",
    ),
    (
        f"{_CONFIG}:979",
        "gated_delta_net and linear_num_value_heads % tensor_model_parallel_size != 0",
        "{tensor_model_parallel_size} does not divide {linear_num_value_heads}",
    ),
    (
        f"{_CONFIG}:982",
        "gated_delta_net and context_parallel_size > 1",
        "gated delta nets take no context parallelism: {context_parallel_size}",
    ),
    (
        f"{_CONFIG}:1988",
        "dsa and context_parallel_size > 1",
        "sparse attention takes no context parallelism: {context_parallel_size}",
    ),
    (
        "megatron/core/model_parallel_config.py:411",
        "sequence_parallel and tensor_model_parallel_size <= 1",
        "{sequence_parallel} needs tensor parallelism",
    ),
    (f"{_CONFIG}:915", "fp16 and bf16", "fp16 and bf16 at once"),
    (f"{_CONFIG}:1034", "fp4 and fp8", "fp4 and fp8 at once"),
    (
        f"{_CONFIG}:1048",
        "expert_model_parallel_size > 1 and num_experts == 0",
        "{expert_model_parallel_size}, but the model has no experts",
    ),
    (
        f"{_CONFIG}:1060",
        "num_experts == 0 and moe_ffn_hidden_size > 0",
        "{moe_ffn_hidden_size} without experts",
    ),
    (
        "megatron/core/transformer/moe/moe_layer.py:101",
        "num_experts % expert_model_parallel_size != 0",
        "{expert_model_parallel_size} does not divide {num_experts}",
    ),
    (
        "megatron/core/transformer/moe/moe_layer.py:379",
        "num_experts > 0 and tensor_model_parallel_size > 1 and not sequence_parallel",
        "experts with {tensor_model_parallel_size} train with sequence parallelism only",
    ),
    (
        "megatron/core/transformer/moe/token_dispatcher.py:1346",
        "moe_token_dispatcher_type == flex and expert_tensor_parallel_size * expert_model_parallel_size <= 1",
        "the flex dispatcher needs several ranks of experts",
    ),
    (
        f"{_CONFIG}:1589",
        "num_experts > 0 and add_bias_linear and expert_tensor_parallel_size != 1",
        "experts with biases need {expert_tensor_parallel_size} to be 1",
    ),
    (
        f"{_CONFIG}:1593",
        "moe_router_enable_expert_bias and moe_router_score_function != sigmoid",
        "an expert bias needs --moe-router-score-function sigmoid",
    ),
    (
        f"{_CONFIG}:1633",
        "num_experts > 0 and moe_router_topk == 1 and moe_router_score_function == softmax and not moe_router_pre_softmax",
        "{moe_router_topk} under softmax needs --moe-router-pre-softmax",
    ),
    (
        f"{_CONFIG}:1649",
        "moe_router_group_topk > 0 and moe_router_num_groups == 0",
        "{moe_router_group_topk} without --moe-router-num-groups",
    ),
    (
        f"{_CONFIG}:1654",
        "moe_router_group_topk > 0 and num_experts % max(moe_router_num_groups, 1) != 0",
        "{moe_router_num_groups} does not divide {num_experts}",
    ),
    (
        f"{_CONFIG}:1658",
        "moe_router_group_topk > moe_router_num_groups and moe_router_num_groups > 0",
        "{moe_router_group_topk} is more than {moe_router_num_groups}",
    ),
    (
        f"{_GROUPS}:740",
        "world_size % (tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size) != 0",
        "tp·pp·cp does not divide {world_size}",
    ),
    (
        f"{_GROUPS}:746",
        "virtual_pipeline_model_parallel_size > 1 and pipeline_model_parallel_size <= 1",
        "{virtual_pipeline_model_parallel_size} needs a pipeline",
    ),
    (
        f"{_GROUPS}:792",
        "world_size % (expert_tensor_parallel_size * expert_model_parallel_size * pipeline_model_parallel_size) != 0",
        "etp·ep·pp does not divide {world_size}",
    ),
    (
        f"{_GROUPS}:808",
        "use_tp_pp_dp_mapping and pipeline_model_parallel_size > 1 and num_experts > 0"
        " and expert_data_parallel_size != data_parallel_size",
        "stages before replicas need {expert_data_parallel_size} to equal {data_parallel_size}",
    ),
    (
        f"{_STAGES}:155",
        f"{_EVEN} and ({_LAYERS}) % pipeline_model_parallel_size != 0",
        "{pipeline_model_parallel_size} does not divide {num_layers}; a pipeline layout deals them out",
    ),
    (
        f"{_STAGES}:174",
        f"each = floor(({_LAYERS}) / pipeline_model_parallel_size); {_EVEN}"
        " and virtual_pipeline_model_parallel_size > 1 and each % max(virtual_pipeline_model_parallel_size, 1) != 0",
        "{virtual_pipeline_model_parallel_size} does not divide the layers of a stage",
    ),
    (
        f"{_CONFIG}:1310",
        "pipeline_model_parallel_layout"
        " and (account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split)",
        "a pipeline layout beside --account-for-…-in-pipeline-split",
    ),
    (
        f"{_LAYOUTS}:40",
        "pipeline_model_parallel_layout and layout_stages % pipeline_model_parallel_size != 0",
        "{layout_stages} are no multiple of {pipeline_model_parallel_size}",
    ),
    (
        f"{_LAYOUTS}:106",
        "pipeline_model_parallel_layout and layout_layers != num_layers",
        "the pipeline layout has {layout_layers}, the model {num_layers}",
    ),
    (
        f"{_LAYOUTS}:111",
        "pipeline_model_parallel_layout and layout_mtp_layers != mtp_num_layers",
        "the pipeline layout has {layout_mtp_layers}, the model {mtp_num_layers}",
    ),
    (
        "megatron/core/num_microbatches_calculator.py:340",
        "global_batch_size % (micro_batch_size * data_parallel_size) != 0",
        "{micro_batch_size} times {data_parallel_size} does not divide {global_batch_size}",
    ),
    (
        f"{_SCHEDULES}:996",
        "virtual_pipeline_model_parallel_size > 1"
        " and global_batch_size / (micro_batch_size * data_parallel_size) < pipeline_model_parallel_size",
        "the interleaved schedule has fewer micro-batches than {pipeline_model_parallel_size}",
    ),
    (
        f"{_SCHEDULES}:1008",
        "micro_batches = global_batch_size / (micro_batch_size * data_parallel_size);"
        " virtual_pipeline_model_parallel_size > 1 and micro_batches % pipeline_model_parallel_size != 0",
        "{pipeline_model_parallel_size} does not divide the micro-batches of the interleaved schedule",
    ),
    (
        "megatron/core/ssm/mamba_block.py:_select_layers_for_pipeline_parallel, virtual_pipeline_model_parallel_size",
        "hybrid and virtual_pipeline_model_parallel_size > 1",
        "models with state spaces take no virtual stages: {virtual_pipeline_model_parallel_size}",
    ),
    (
        "megatron/core/optimizer/muon.py:192",
        "muon and use_distributed_optimizer",
        "Muon does not go with the distributed optimizer: plan with zero_stage = 0",
    ),
    ("megatron/core/optimizer/muon.py:195", "muon and fp16", "Muon does not run in fp16"),
    (
        f"{_CONFIG}:1166",
        "recompute_granularity == full and recompute_method == none",
        "full recomputation needs --recompute-method",
    ),
    (
        f"{_CONFIG}:1172",
        "recompute_granularity == full and recompute_num_layers == 0",
        "full recomputation needs --recompute-num-layers",
    ),
    (
        f"{_CONFIG}:1180",
        "recompute_granularity == selective and recompute_num_layers > 0",
        "{recompute_num_layers} with selective recomputation",
    ),
    (
        f"{_CONFIG}:1208",
        "recompute_other",
        "selective recomputation of a module that --recompute-modules does not take",
    ),
    (
        f"{_CONFIG}:1213",
        "recompute_moe_act and not moe_grouped_gemm",
        "recomputing moe_act needs --moe-grouped-gemm",
    ),
    (
        f"{_CONFIG}:1218",
        "recompute_mla_up_proj and not multi_latent_attention",
        "recomputing mla_up_proj needs multi-latent attention",
    ),
    (
        f"{_CONFIG}:1243",
        "(recompute_moe_act or recompute_layernorm) and fp8_delayed",
        "recomputing moe_act or layernorm does not go with delayed scaling in fp8",
    ),
    (
        f"{_CONFIG}:1858",
        f"{_OVERLAP} and pipeline_model_parallel_size > 1 and virtual_pipeline_model_parallel_size <= 1",
        "overlapping the experts' exchange in a pipeline needs virtual stages",
    ),
    (
        f"{_CONFIG}:1864",
        f"{_OVERLAP} and expert_model_parallel_size <= 1",
        "overlapping the experts' exchange needs expert parallelism",
    ),
    (
        f"{_CONFIG}:1866",
        f"{_OVERLAP} and moe_token_dispatcher_type != alltoall and moe_token_dispatcher_type != flex",
        "overlapping the experts' exchange needs the alltoall or the flex dispatcher",
    ),
    (
        f"{_CONFIG}:1872",
        f"{_OVERLAP} and recompute_granularity == full",
        "overlapping the experts' exchange does not go with full recomputation",
    ),
    (
        f"{_CONFIG}:1883",
        f"{_OVERLAP} and not bf16 and not fp16",
        "overlapping the experts' exchange needs bf16 or fp16",
    ),
    (
        f"{_CONFIG}:1890",
        f"{_OVERLAP} and mtp_num_layers > 1",
        "overlapping the experts' exchange goes with one prediction layer, not {mtp_num_layers}",
    ),
    (
        f"{_CONFIG}:1893",
        f"{_OVERLAP} and mtp_num_layers == 1 and pipeline_model_parallel_size <= 1",
        "overlapping the experts' exchange with a prediction layer needs a pipeline",
    ),
    (
        f"{_CONFIG}:1899",
        # Graphs of a whole iteration go with it in later releases, as Megatron-Bridge's recipes have them.
        f"{_OVERLAP} and cuda_graph_impl == transformer_engine and cuda_graph_mlp",
        "overlapping the experts' exchange does not go with CUDA graphs of the MLP",
    ),
    (
        f"{_CONFIG}:1782",
        "cuda_graph_impl != none and recompute_granularity == full and not cuda_graph_full_iteration",
        "full recomputation goes with a CUDA graph of the whole iteration only",
    ),
)
"""Rows that hold for every program built on Megatron-Core."""

_TRAINING_ROWS = (
    (
        f"{_ARGUMENTS}, num-virtual-stages",
        "pipeline_model_parallel_layout and num_virtual_stages_per_pipeline_rank > 0",
        "a pipeline layout beside {num_virtual_stages_per_pipeline_rank}",
    ),
    (
        f"{_ARGUMENTS}, overlap_p2p_comm",
        "virtual_pipeline_model_parallel_size > 1 and not overlap_p2p_comm and pipeline_model_parallel_size <= 2",
        "virtual stages without overlapped messages need more than {pipeline_model_parallel_size}",
    ),
    (
        f"{_ARGUMENTS}, overlap_param_gather",
        "overlap_param_gather and not use_distributed_optimizer",
        "--overlap-param-gather needs the distributed optimizer",
    ),
    (
        f"{_ARGUMENTS}, overlap_grad_reduce",
        "overlap_param_gather and not overlap_grad_reduce",
        "--overlap-param-gather needs --overlap-grad-reduce",
    ),
    (
        f"{_ARGUMENTS}, seq_length",
        "context_parallel_size > 1 and seq_length % (2 * context_parallel_size) != 0",
        "twice {context_parallel_size} does not divide {seq_length}",
    ),
    (
        f"{_ARGUMENTS}, max_position_embeddings",
        "max_position_embeddings < seq_length",
        "{max_position_embeddings} is less than {seq_length}",
    ),
    (
        f"{_ARGUMENTS}, moe_grouped_gemm",
        "moe_grouped_gemm and not bf16",
        "--moe-grouped-gemm needs bf16",
    ),
    (
        f"{_ARGUMENTS}, tp_comm_overlap",
        "tp_comm_overlap and not sequence_parallel",
        "--tp-comm-overlap needs sequence parallelism",
    ),
    (
        f"{_ARGUMENTS}, CUDA_DEVICE_MAX_CONNECTIONS",
        "(tensor_model_parallel_size > 1 or context_parallel_size > 1) and not blackwell"
        " and not overlap_moe_expert_parallel_comm and not use_megatron_fsdp and cuda_device_max_connections != 1",
        "tensor or context parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1",
    ),
    (
        f"{_ARGUMENTS}, use_megatron_fsdp",
        "use_megatron_fsdp and cuda_device_max_connections == 1",
        "Megatron-FSDP does not run with CUDA_DEVICE_MAX_CONNECTIONS=1",
    ),
    (
        f"{_ARGUMENTS}, ckpt_format",
        "use_megatron_fsdp and not ckpt_format_fsdp_dtensor",
        "Megatron-FSDP needs --ckpt-format fsdp_dtensor",
    ),
    (
        f"{_ARGUMENTS}, expert_model_parallel_size",
        "expert_model_parallel_size > 1 and fp16",
        "expert parallelism does not run in fp16",
    ),
    (
        f"{_ARGUMENTS}, optimizer_cpu_offload",
        "optimizer_cpu_offload and not use_precision_aware_optimizer",
        "--optimizer-cpu-offload needs --use-precision-aware-optimizer",
    ),
    (
        f"{_ARGUMENTS}, mtp_num_layers",
        "mtp_num_layers > 0 and position_embedding_type == learned_absolute",
        "prediction layers need rotary positions, or none",
    ),
)

# Transformer Engine runs the attention, and has no backend for some ways of context parallelism.
ATTENTION_ROWS = (
    (
        f"{_ATTENTION}/context_parallel.py:attn_forward_func_with_cp, window_size",
        "context_parallel_size > 1 and sliding_window > 0 and not cp_by_a2a and not cp_by_all_gather",
        "context parallelism of sliding windows needs --cp-comm-type a2a or all_gather",
    ),
    (
        f"{_ATTENTION}/context_parallel.py:attn_forward_func_with_cp, enable_mla",
        "context_parallel_size > 1 and multi_latent_attention and (cp_by_a2a or cp_by_all_gather)",
        "context parallelism of latent attention needs --cp-comm-type p2p or a2a+p2p",
    ),
    (
        f"{_ATTENTION}/utils.py:get_attention_backend, softmax_type",
        "context_parallel_size > 1 and softmax_learnable and not cp_by_a2a",
        "context parallelism of attention sinks needs --cp-comm-type a2a",
    ),
)

PRECISION_AWARE = (
    (
        "megatron/core/optimizer/optimizer_config.py:380",
        "use_precision_aware_optimizer and not use_distributed_optimizer",
        "--use-precision-aware-optimizer, which offloading needs, needs the distributed optimizer",
    ),
)

# What starts, and is another model than was priced.
_MEANINGS = (
    (
        "megatron/core/models/gpt/gpt_model.py:103",
        "position_embedding_type == rope and rotary_base != rope_theta",
        "--rotary-base is 10,000 where it is left out: {rotary_base} of a model with {rope_theta}",
    ),
    (
        "megatron/core/transformer/utils.py:41",
        "sliding_window > 0 and window_size != sliding_window - 1",
        "--window-size counts the tokens before a query: {sliding_window} is one more than {window_size}",
    ),
)

MEGATRON = Table(
    (
        *rows("megatron", _CORE, *CORE_ROWS, *PRECISION_AWARE),
        *rows("megatron", ATTENTION_RELEASE, *ATTENTION_ROWS),
        *rows("megatron", _TRAINING, *_TRAINING_ROWS),
        *rows("megatron", _CORE, *_MEANINGS, raises=False),
    ),
    arguments,
    written,
)
"""Megatron-LM's own checks of what `costmodel.interop.megatron` writes."""
