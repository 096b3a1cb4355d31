"""For every assertion of every framework the smallest change of a good job's arguments that breaks it."""

from costmodel.interop.assertions.record import WORDS

CONFIG = "megatron/core/transformer/transformer_config.py"
GROUPS = "megatron/core/parallel_state.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
LAYOUTS = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
ARGUMENTS = "megatron/training/arguments.py:validate_args"
OVERLAP = {"overlap_moe_expert_parallel_comm": 1.0}

# The good job: 16 layers, 8 experts, tp 2, pp 2, ep 4, 32 GPUs, 64 sequences of 4,096.
CORE = {
    f"{CONFIG}:924": {"num_attention_heads": 31},
    f"{CONFIG}:939": {"num_query_groups": 3},
    f"{CONFIG}:976": {"gated_delta_net": 1, "linear_num_key_heads": 15},
    f"{CONFIG}:979": {"gated_delta_net": 1, "linear_num_value_heads": 31},
    f"{CONFIG}:982": {"gated_delta_net": 1, "context_parallel_size": 2},
    f"{CONFIG}:1988": {"dsa": 1, "context_parallel_size": 2},
    "megatron/core/model_parallel_config.py:411": {"tensor_model_parallel_size": 1},
    f"{CONFIG}:915": {"fp16": 1},
    f"{CONFIG}:1034": {"fp4": 1, "fp8": 1},
    f"{CONFIG}:1048": {"num_experts": 0},
    f"{CONFIG}:1060": {"num_experts": 0},
    "megatron/core/transformer/moe/moe_layer.py:101": {"num_experts": 6},
    "megatron/core/transformer/moe/moe_layer.py:379": {"sequence_parallel": 0},
    "megatron/core/transformer/moe/token_dispatcher.py:1346": {
        "moe_token_dispatcher_type": WORDS["flex"],
        "expert_model_parallel_size": 1,
    },
    f"{CONFIG}:1589": {"add_bias_linear": 1, "expert_tensor_parallel_size": 2},
    f"{CONFIG}:1593": {"moe_router_enable_expert_bias": 1},
    f"{CONFIG}:1633": {"moe_router_topk": 1},
    f"{CONFIG}:1649": {"moe_router_group_topk": 2},
    f"{CONFIG}:1654": {"moe_router_group_topk": 2, "moe_router_num_groups": 3},
    f"{CONFIG}:1658": {"moe_router_group_topk": 8, "moe_router_num_groups": 4},
    f"{GROUPS}:740": {"world_size": 30},
    f"{GROUPS}:746": {"virtual_pipeline_model_parallel_size": 2, "pipeline_model_parallel_size": 1},
    f"{GROUPS}:792": {"expert_tensor_parallel_size": 3},
    f"{GROUPS}:808": {"use_tp_pp_dp_mapping": 1},
    "megatron/core/transformer/transformer_block.py:155": {"num_layers": 17},
    "megatron/core/transformer/transformer_block.py:174": {"virtual_pipeline_model_parallel_size": 3},
    f"{CONFIG}:1310": {"pipeline_model_parallel_layout": 1, "account_for_loss_in_pipeline_split": 1},
    f"{LAYOUTS}:40": {"pipeline_model_parallel_layout": 1, "layout_stages": 3},
    f"{LAYOUTS}:106": {"pipeline_model_parallel_layout": 1, "layout_layers": 15},
    f"{LAYOUTS}:111": {"pipeline_model_parallel_layout": 1, "layout_mtp_layers": 1},
    "megatron/core/num_microbatches_calculator.py:340": {"global_batch_size": 65},
    f"{SCHEDULES}:996": {"virtual_pipeline_model_parallel_size": 2, "global_batch_size": 8},
    f"{SCHEDULES}:1008": {"virtual_pipeline_model_parallel_size": 2, "global_batch_size": 24},
    "megatron/core/ssm/mamba_block.py:_select_layers_for_pipeline_parallel, virtual_pipeline_model_parallel_size": {
        "hybrid": 1,
        "virtual_pipeline_model_parallel_size": 2,
    },
    "megatron/core/optimizer/muon.py:192": {"muon": 1},
    "megatron/core/optimizer/muon.py:195": {"muon": 1, "fp16": 1},
    f"{CONFIG}:1166": {"recompute_granularity": WORDS["full"], "recompute_num_layers": 1},
    f"{CONFIG}:1172": {"recompute_granularity": WORDS["full"], "recompute_method": WORDS["uniform"]},
    f"{CONFIG}:1180": {"recompute_granularity": WORDS["selective"], "recompute_num_layers": 1},
    f"{CONFIG}:1208": {"recompute_other": 1},
    f"{CONFIG}:1213": {"recompute_moe_act": 1, "moe_grouped_gemm": 0},
    f"{CONFIG}:1218": {"recompute_mla_up_proj": 1},
    f"{CONFIG}:1243": {"recompute_layernorm": 1, "fp8_delayed": 1},
    f"{CONFIG}:1858": OVERLAP,
    f"{CONFIG}:1864": {**OVERLAP, "expert_model_parallel_size": 1},
    f"{CONFIG}:1866": {**OVERLAP, "moe_token_dispatcher_type": WORDS["allgather"]},
    f"{CONFIG}:1872": {**OVERLAP, "recompute_granularity": WORDS["full"]},
    f"{CONFIG}:1883": {**OVERLAP, "bf16": 0},
    f"{CONFIG}:1890": {**OVERLAP, "mtp_num_layers": 2},
    f"{CONFIG}:1893": {**OVERLAP, "mtp_num_layers": 1, "pipeline_model_parallel_size": 1},
    f"{CONFIG}:1899": {**OVERLAP, "cuda_graph_impl": WORDS["transformer_engine"], "cuda_graph_mlp": 1},
    f"{CONFIG}:1782": {
        "cuda_graph_impl": WORDS["transformer_engine"],
        "recompute_granularity": WORDS["full"],
    },
}
TRAINING = {
    "megatron/core/optimizer/optimizer_config.py:380": {
        "use_precision_aware_optimizer": 1,
        "use_distributed_optimizer": 0,
    },
    f"{ARGUMENTS}, num-virtual-stages": {
        "pipeline_model_parallel_layout": 1,
        "num_virtual_stages_per_pipeline_rank": 2,
    },
    f"{ARGUMENTS}, overlap_p2p_comm": {"virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": 0},
    f"{ARGUMENTS}, overlap_param_gather": {"use_distributed_optimizer": 0},
    f"{ARGUMENTS}, overlap_grad_reduce": {"overlap_grad_reduce": 0},
    f"{ARGUMENTS}, seq_length": {"context_parallel_size": 2, "seq_length": 4098},
    f"{ARGUMENTS}, max_position_embeddings": {"max_position_embeddings": 4095},
    f"{ARGUMENTS}, moe_grouped_gemm": {"bf16": 0},
    f"{ARGUMENTS}, tp_comm_overlap": {"tp_comm_overlap": 1, "sequence_parallel": 0},
    f"{ARGUMENTS}, CUDA_DEVICE_MAX_CONNECTIONS": {"cuda_device_max_connections": 0},
    f"{ARGUMENTS}, use_megatron_fsdp": {"use_megatron_fsdp": 1, "ckpt_format_fsdp_dtensor": 1},
    f"{ARGUMENTS}, ckpt_format": {"use_megatron_fsdp": 1, "cuda_device_max_connections": 0},
    f"{ARGUMENTS}, expert_model_parallel_size": {"fp16": 1},
    f"{ARGUMENTS}, optimizer_cpu_offload": {"optimizer_cpu_offload": 1},
    f"{ARGUMENTS}, mtp_num_layers": {
        "mtp_num_layers": 1,
        "position_embedding_type": WORDS["learned_absolute"],
    },
    "megatron/core/models/gpt/gpt_model.py:103": {"rope_theta": 500000},
    "megatron/core/transformer/utils.py:41": {"sliding_window": 128, "window_size": 128},
}
BRIDGE = {
    "megatron/bridge/training/config.py:1546": {"context_parallel_size": 2, "seq_length": 4098},
    "megatron/bridge/training/mixed_precision.py:94": {"fp4": 1, "fp8": 1},
    "megatron/bridge/training/config.py:1470": {"use_megatron_fsdp": 1, "use_tp_pp_dp_mapping": 1},
    "megatron/bridge/training/comm_overlap.py:468": {**OVERLAP, "expert_model_parallel_size": 1},
    "megatron/bridge/training/comm_overlap.py:475": {
        **OVERLAP,
        "moe_token_dispatcher_type": WORDS["allgather"],
    },
    "megatron/bridge/training/comm_overlap.py:484": OVERLAP,
    "megatron/bridge/training/comm_overlap.py:488": {**OVERLAP, "recompute_granularity": WORDS["full"]},
}
FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
EXPERTS = "deepspeed/module_inject/auto_ep_config.py"
ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"
# The good job: 8 experts, ep 4, no tp, no pipeline, ZeRO-2, 32 GPUs.
DEEPSPEED = {
    "deepspeed/runtime/pipe/engine.py:76": {"pipeline_stages": 2},
    "deepspeed/runtime/config.py:120": {"mics_shard_size": 8},
    "deepspeed/runtime/config.py:511": {"fp16": 1},
    "deepspeed/runtime/config.py:602": {"train_batch_size": 65},
    "deepspeed/runtime/sequence_parallel/parallel_state_sp.py:37": {"sequence_parallel_size": 3},
    f"{ULYSSES}:147": {"sequence_parallel_size": 2, "num_attention_heads": 31},
    f"{ULYSSES}:149": {"sequence_parallel_size": 4, "num_key_value_heads": 6},
    f"{ULYSSES}:706": {"sequence_parallel_size": 4, "seq_length": 4098},
    "deepspeed/runtime/engine.py:2219": {"zero_stage": 3, "sequence_parallel_size": 2},
    f"{FOLDING}:105": {"autotp_size": 3},
    f"{FOLDING}:111": {"autoep_size": 64},
    f"{FOLDING}:206": {"autotp_size": 2, "pipeline_stages": 2},
    f"{FOLDING}:210": {"autotp_size": 2, "sequence_parallel_size": 2},
    f"{FOLDING}:214": {"expert_tensor_parallel_size": 2},
    f"{FOLDING}:248": {"autotp_size": 2, "offload_optimizer": 1},
    f"{EXPERTS}:369": {"autoep_size": 16},
    f"{EXPERTS}:378": {"num_experts": 10},
    f"{EXPERTS}:397": {"num_expert_groups": 3},
    f"{EXPERTS}:407": {"num_expert_groups": 2, "num_limited_groups": 4},
    "megatron/core/parallel_state.py:initialize_model_parallel, sequence-parallel": {
        "zero_stage": 1,
        "pipeline_stages": 2,
        "sequence_parallel_size": 2,
    },
    "deepspeed/sequence/layer.py:465": {"sequence_parallel_size": 2, "sequence_exchange": WORDS["ring"]},
    "deepspeed/runtime/engine.py:1046": {"autotp_size": 16},
}
TITAN_CONFIG = "torchtitan/config/configs.py"
STAGES = "torchtitan/distributed/pipeline_parallel.py"
TRAINER = "torchtitan/trainer.py"
DECODER = "torchtitan/models/common/decoder.py"
PIPED = {"pipeline_parallel_degree": 4}
# The good job: 16 layers, 8 experts, tp 2, ep 4, ZeRO-3, 32 GPUs, no pipeline.
TORCHTITAN = {
    "torchtitan/distributed/parallel_dims.py:186": {"data_parallel_shard_degree": 7},
    "torchtitan/distributed/parallel_dims.py:279": {"expert_parallel_degree": 5},
    f"{TITAN_CONFIG}:93": {"reduce_in_float32": 0},
    f"{TITAN_CONFIG}:304": {"enable_async_tensor_parallel": 1, "compile": 0},
    f"{TRAINER}:132": {**PIPED, "microbatch_size": 3},
    f"{TRAINER}:183": {**PIPED, "disable_cuda_graphs": 0},
    f"{TRAINER}:203": {"disable_cuda_graphs": 0},
    f"{TRAINER}:310": {"seq_len": 4097},
    f"{TRAINER}:421": {"global_batch_size": 65},
    f"{DECODER}:139": {**PIPED, "enable_weight_tying": 1},
    f"{DECODER}:149": {"n_heads": 31},
    f"{DECODER}:154": {"n_kv_heads": 3},
    f"{DECODER}:169": {"max_seq_len": 2048},
    "torchtitan/models/deepseek_v3/mtp.py:201": {**PIPED, "num_mtp_layers": 1},
    "torchtitan/models/deepseek_v3/mtp.py:206": {"context_parallel_degree": 2, "num_mtp_layers": 1},
    f"{STAGES}:233": {**PIPED, "looped": 1, "layers_per_stage": 3},
    f"{STAGES}:244": {**PIPED, "layers_per_stage": 2},
    f"{STAGES}:252": {**PIPED, "looped": 1, "layers_per_stage": 4},
    f"{STAGES}:401": {**PIPED, "stages_per_rank": 5},
    f"{STAGES}:421": {**PIPED, "first_stage_less_layers": 8},
    f"{STAGES}:425": {**PIPED, "last_stage_less_layers": 8},
    f"{TITAN_CONFIG}:124": {"zero_stage": 2},
    f"{TITAN_CONFIG}:279": {"expert_tensor_parallel_degree": 2},
    "torchtitan/distributed/context_parallel/api.py:73": {
        "context_parallel_degree": 2,
        "context_exchange": WORDS["ring"],
    },
}
MESH = {
    "accelerate/parallelism_config.py:336": {"dp_replicate_size": 16, "dp_shard_size": 1},
    "accelerate/parallelism_config.py:372": {"num_processes": 31},
    "accelerate/parallelism_config.py:381": {"dp_shard_size": 1},
    "accelerate/utils/dataclasses.py:1958": {"selective": 1},
    "accelerate/utils/dataclasses.py:1877": {"zero_stage": 1},
    "accelerate/parallelism_config.py:342": {"ep_size": 2},
}
SCHEMA = "axolotl/utils/schemas/validation.py"
# The good job: tp 2, ZeRO-3, 32 GPUs, no context parallelism; Axolotl with micro-batches of two.
ACCELERATE = {
    **MESH,
    "accelerate/commands/launch.py:1211": {"fsdp": 0},
    "accelerate/utils/dataclasses.py:2247": {"cp_size": 2, "cp_exchange": WORDS["ulysses"]},
}
AXOLOTL = {
    **MESH,
    f"{SCHEMA}:1804": {"cp_size": 2, "flash_attention_2": 0},
    f"{SCHEMA}:1811": {"cp_size": 2, "sample_packing": 1},
    f"{SCHEMA}:1257": {"optimizer_8bit": 1},
    "axolotl/utils/distributed.py:360": {"fsdp": 0},
    f"{SCHEMA}:1803": {"cp_size": 2, "cp_exchange": WORDS["all_gather"]},
}
PUBLISHED = {
    "arXiv:2407.21783, section 3.3.2": {"cp": 2, "seq_len": 4098},
    "arXiv:2305.13245, section 2.2": {"tp": 6},
}
NEURONX = {
    "kernels/ring_attention_kernel.py:nki_ring_attn_func, seqlen": {
        "context_parallel_size": 2,
        "seqlen": 4096 + 1024,
    },
    "pipeline/scheduler.py:get_step_schedule, num_microbatches": {
        "interleaved": 1,
        "pipeline_model_parallel_size": 3,
    },
    "modules/qkv_linear.py:_initialize_kv_group, kv_shared_group_size": {"tensor_model_parallel_size": 6},
}
_ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
ATTENTION = {
    f"{_ATTENTION}/context_parallel.py:attn_forward_func_with_cp, window_size": {
        "context_parallel_size": 2,
        "sliding_window": 128,
    },
    f"{_ATTENTION}/context_parallel.py:attn_forward_func_with_cp, enable_mla": {
        "context_parallel_size": 2,
        "multi_latent_attention": 1,
        "cp_by_a2a": 1,
    },
    f"{_ATTENTION}/utils.py:get_attention_backend, softmax_type": {
        "context_parallel_size": 2,
        "softmax_learnable": 1,
        "cp_by_all_gather": 1,
    },
}
BREAKS = {
    "megatron": {**CORE, **TRAINING, **ATTENTION},
    "nemo": {**BRIDGE, **CORE, **ATTENTION},
    "deepspeed": DEEPSPEED,
    "torchtitan": TORCHTITAN,
    "accelerate": ACCELERATE,
    "axolotl": AXOLOTL,
    "neuronx": NEURONX,
    "none": PUBLISHED,
}
"""By framework and place."""
