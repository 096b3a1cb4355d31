"""Files as other projects publish them, with what their own programs make of the keys.

Own small files with the settings of the named examples; expected numbers are those of Megatron-LM's
argparse and `validate_args`, of transformers on the meta device, or of the frameworks' documented
defaults. A round trip through our own writer cannot see an error that both ways share.
"""

import json
from pathlib import Path

import pytest
from texts import read_as, read_flags

import costmodel as cm
from costmodel.describe.models.huggingface import model_from_hf_config
from costmodel.describe.recipe import load_recipe
from costmodel.interop.emit import emit
from costmodel.step.anatomy.params import num_params

DATA = Path(__file__).parents[1] / "data"


def part(found, *keys):
    """Return what a file says under some keys, switches and the model's fields among them."""
    # What the recipe has already is no switch.
    switches = {**load_recipe(found.job["recipe"]).switches, **found.job.get("switches", {})}
    model = found.job.get("model")
    return {
        key: found.job[key] if key in found.job else switches[key] if key in switches else getattr(model, key)
        for key in keys
    }


# NVIDIA/Megatron-LM, examples/gpt3/train_gpt3_175b_distributed.sh: 175 billion parameters by defaults alone.
GPT3 = r"""
torchrun --nproc_per_node 8 --nnodes 128 pretrain_gpt.py \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 \
    --max-position-embeddings 2048 --attention-backend auto --vocab-size 50257 \
    --micro-batch-size 1 --global-batch-size 1536 --clip-grad 1.0 --fp16 --lr 6.0e-5 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 949,50,1 # and logging
"""


def test_megatron_gpt3_by_defaults():
    found = read_flags(GPT3)
    assert part(found, "gpus", "tp", "pp", "cp", "ep", "vp", "micro_batch", "global_batch", "seq_len") == {
        "gpus": 1024,
        "tp": 8,
        "pp": 16,
        "cp": 1,
        "ep": 1,
        "vp": 1,
        "micro_batch": 1,
        "global_batch": 1536,
        "seq_len": 2048,
    }
    assert part(
        found, "zero_stage", "recompute", "precision", "schedule", "sequence_parallel", "shard_group"
    ) == {
        "zero_stage": 0,
        "recompute": "none",
        "precision": "fp16",
        "schedule": "1f1b",
        "sequence_parallel": False,
        "shard_group": 0,
    }
    assert part(found, "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "gated_mlp") == {
        "num_layers": 96,
        "hidden_size": 12288,
        "num_heads": 96,
        "num_kv_heads": 96,
        "ffn_size": 4 * 12288,
        "gated_mlp": False,
    }
    # The table is padded to a multiple of 128 on each of eight ranks; dropout of 0.1, no overlap, all by default.
    assert part(found, "vocab_size", "tied_embeddings", "position", "max_positions", "norm") == {
        "vocab_size": 51200,
        "tied_embeddings": True,
        "position": "learned",
        "max_positions": 2048,
        "norm": "layernorm",
    }
    assert part(found, "dropout", "dp_overlap") == {"dropout": True, "dp_overlap": "none"}
    assert found.job["model"].linear_bias
    assert found.job["model"].qkv_bias
    assert num_params(found.job["model"]) == pytest.approx(175e9, rel=0.005)


# NVIDIA/Megatron-LM, examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh.
LLAMA3_FSDP = r"""
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --use-mcore-models --num-layers 32 --hidden-size 4096 \
    --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 \
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000 \
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm --disable-bias-linear \
    --untie-embeddings-and-output-weights --padded-vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 \
    --bf16 --fp8-format hybrid --cross-entropy-loss-fusion --use-megatron-fsdp \
    --data-parallel-sharding-strategy optim_grads_params
"""


def test_megatron_fsdp_in_eight_bits():
    found = read_flags(LLAMA3_FSDP)
    expected = {
        "gpus": 16,
        "tp": 1,
        "pp": 1,
        "zero_stage": 3,
        "precision": "fp8-delayed",
        "cross_entropy": "fused",
    }
    assert part(found, *expected) == expected
    assert "dropout" not in found.job["switches"]
    assert num_params(found.job["model"]) == 8_030_261_248
    model = found.job["model"]
    assert (model.norm, model.gated_mlp, model.num_kv_heads) == ("rmsnorm", True, 8)


# The MoE examples of NVIDIA/Megatron-LM's docs (mixtral) and of modelscope/ms-swift, with defaults left out.
MIXTRAL = (
    "--nnodes 4 --nproc-per-node 8 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 "
    "--num-query-groups 8 --group-query-attention --swiglu --num-experts 8 --vocab-size 32000 --bf16 "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights "
    "--seq-length 4096 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 "
)


def test_megatron_defaults_of_experts():
    """Two of eight by default, as wide as the dense layer, split as the rest; no grouped product unless asked for."""
    found = read_flags(MIXTRAL + "--expert-model-parallel-size 4")
    expected = {"top_k": 2, "expert_ffn_size": 14336, "ep": 4, "etp": 2, "grouped_gemm": False}
    assert part(found, *expected) == expected
    assert part(found, "moe_dispatcher") == {"moe_dispatcher": "all-gather"}
    assert num_params(found.job["model"]) == pytest.approx(46.70e9, rel=1e-3)
    assert part(read_flags(MIXTRAL), "etp") == {"etp": 2}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--use-distributed-optimizer", {"zero_stage": 1, "shard_group": 0}),
        # 32 GPUs of which 8 hold one replica: four replicas, two groups of two that shard.
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            {"zero_stage": 1, "shard_group": 2},
        ),
        ("--num-layers-per-virtual-pipeline-stage 2", {"vp": 4, "schedule": "interleaved"}),
        ("--num-virtual-stages-per-pipeline-rank 8", {"vp": 8, "schedule": "interleaved"}),
        ("--recompute-activations", {"recompute": "selective"}),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": "full"},
        ),
        ("--sequence-parallel", {"sequence_parallel": True}),
        ("--use-tp-pp-dp-mapping", {"axis_order": "tp cp pp dp"}),
        ("--fp8-format hybrid --fp8-recipe tensorwise", {"precision": "fp8-current"}),
        ("--fp8-format e4m3 --fp8-recipe blockwise", {"precision": "fp8-block"}),
        ("--no-overlap-p2p-communication", {"pp_overlap": False}),
        ("--attention-dropout 0 --hidden-dropout 0 --grad-reduce-in-bf16", {"grad_reduce_dtype": "bf16"}),
        ("--make-vocab-size-divisible-by 1000", {"vocab_size": 32000}),
        ("--make-vocab-size-divisible-by 20000", {"vocab_size": 40000}),
        ("--moe-layer-freq ([0]*3+[1]*29)", {"first_dense_layers": 3, "ffn_size": 14336}),
        ("--moe-router-topk 6 --moe-ffn-hidden-size 2048", {"top_k": 6, "expert_ffn_size": 2048}),
    ],
)
def test_megatron_flags(flags, expected):
    assert part(read_flags(MIXTRAL + flags), *expected) == expected


def test_megatron_defaults_of_a_gated_layer():
    """8/3 of the hidden size, rounded down to 64; and a key head each without groups."""
    flags = (
        MIXTRAL.replace("--ffn-hidden-size 14336", "")
        .replace("--num-experts 8", "")
        .replace("--num-query-groups 8 --group-query-attention", "")
    )
    found = read_flags(flags)
    assert part(found, "ffn_size", "num_kv_heads") == {"ffn_size": 10880, "num_kv_heads": 32}
    assert part(found, "etp") == {"etp": 1}
    alone = read_flags(flags.replace("--tensor-model-parallel-size 2", "--sequence-parallel"))
    assert part(alone, "sequence_parallel") == {"sequence_parallel": False}
    one_stage = read_flags(flags.replace("--pipeline-model-parallel-size 4", ""))
    assert part(one_stage, "schedule", "pp") == {"schedule": "none", "pp": 1}
    # Transfers overlap in Megatron's interleaved schedule by default, as in the recipe.
    assert "pp_overlap" not in found.job["switches"]
    assert "tied_embeddings" not in found.job["switches"]
    assert not found.job["model"].tied_embeddings


def launched(**job):
    """Return what Megatron-LM would be launched with for a layout of Mixtral."""
    asked = {
        "model": "mixtral-8x7b",
        "cluster": "dgx-h100-ndr",
        "gpus": 32,
        "global_batch": 128,
        "seq_len": 4096,
    }
    return emit(cm.estimate(**{**asked, **job}), "megatron").replace("\\\n", " ").split()


def test_megatron_is_told_how_many_groups_shard():
    """16 data-parallel ranks in groups of eight are two instances of the distributed optimizer."""
    words = launched(layout="tp2", shard_group=8)
    assert words[words.index("--num-distributed-optimizer-instances") + 1] == "2"


# pytorch/torchtitan v0.2, torchtitan/models/llama3/train_configs/llama3_70b.toml, for 64 GPUs.
LLAMA3_70B = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""


def test_torchtitan_llama3_70b():
    found = read_as("torchtitan", LLAMA3_70B, gpus=64)
    expected = {
        "gpus": 64,
        "tp": 8,
        "pp": 1,
        "seq_len": 8192,
        "micro_batch": 8,
        "global_batch": 64,  # eight replicas of eight sequences
        "recompute": "full",
        "zero_stage": 3,
        "shard_group": 0,
        "schedule": "none",
        "precision": "bf16",
    }
    assert part(found, *expected) == expected
    assert part(found, "compiled") == {"compiled": False}
    assert "gpus" in read_as("torchtitan", LLAMA3_70B).missing


def torchtitan(parallelism, training="", more=""):
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 8192\n'
        f"{training}\n[parallelism]\n{parallelism}\n{more}"
    )
    return read_as("torchtitan", text, gpus=64)


@pytest.mark.parametrize(
    ("parallelism", "training", "expected"),
    [
        # Two replicas of 4 x 2 ranks that shard together, tensor ranks beside them: 2 x 4 x 2 x 4 GPUs.
        (
            "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\ncontext_parallel_degree = 2\n"
            "tensor_parallel_degree = 4",
            "",
            {"gpus": 64, "shard_group": 8, "global_batch": 64, "zero_stage": 3},
        ),
        (
            "data_parallel_shard_degree = -1\ntensor_parallel_degree = 2",
            "",
            {"gpus": 64, "global_batch": 256},
        ),
        ("tensor_parallel_degree = 8", "global_batch_size = 128", {"global_batch": 128}),
        (
            'context_parallel_degree = 4\ncontext_parallel_rotate_method = "alltoall"',
            "",
            {"cp": 4, "cp_method": "ring"},
        ),
        ("context_parallel_degree = 4", "", {"cp": 4, "global_batch": 128}),
        # A pipeline cuts the eight local sequences into micro-batches of one; that it keeps layers gathered is the recipe's.
        (
            'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "1F1B"',
            "",
            {
                "micro_batch": 1,
                "global_batch": 128,
                "schedule": "1f1b",
                "vp": 1,
            },
        ),
        # 32 layers over four ranks in stages of four: two stages each.
        (
            'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage = 4\npipeline_parallel_microbatch_size = 2",
            "",
            {"vp": 2, "schedule": "interleaved", "micro_batch": 2},
        ),
        ("", 'mixed_precision_reduce = "bfloat16"', {"grad_reduce_dtype": "bf16"}),
        ("", 'mixed_precision_param = "float32"', {"precision": "fp32"}),
        ("", "", {"recompute": "selective", "micro_batch": 8, "global_batch": 512}),
        ('fsdp_reshard_after_forward = "never"', "", {"fsdp_reshard_after_forward": False}),
    ],
)
def test_torchtitan_keys(parallelism, training, expected):
    assert part(torchtitan(parallelism, training), *expected) == expected


def test_torchtitan_defaults_that_are_the_recipe():
    """One stage reshards after the forward pass; gradients are reduced in fp32."""
    switches = torchtitan("").job["switches"]
    assert "fsdp_reshard_after_forward" not in switches
    assert "cp_method" not in switches


# deepspeedai/DeepSpeed, tests/model/Megatron_GPT2/ds_config_func_bs8_zero1.json and bs4_zero2_offload; the others by
# the documentation of DeepSpeed's configuration (batch = micro x accumulation x replicas).
GPT2_ZERO1 = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 1,
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "fp16": {
        "enabled": True,
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
}


def test_deepspeed_gpt2():
    found = read_as("deepspeed", json.dumps(GPT2_ZERO1), gpus=4)
    expected = {
        "zero_stage": 1,
        "global_batch": 8,
        "micro_batch": 2,
        "precision": "fp16",
        "recompute": "none",
        "dp_overlap": "none",  # it overlaps unasked from stage 3 on only
        "tp": 1,
        "cp": 1,
    }
    assert part(found, *expected) == expected
    assert found.missing == ("cluster", "model", "seq_len")


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        # 64 GPUs: tensor 2, sequence 4, stages 2, so four replicas of two sequences, eight times.
        (
            {
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 8,
                "tensor_parallel": {"autotp_size": 2},
                "sequence_parallel_size": 4,
            },
            {"gpus": 64, "pp": 2, "recipe": "deepspeed-2021"},
            {"global_batch": 64, "tp": 2, "cp": 4, "pp": 2, "cp_method": "ulysses", "schedule": "1f1b"},
        ),
        ({"train_batch_size": 96, "gradient_accumulation_steps": 3}, {"gpus": 16}, {"micro_batch": 2}),
        (
            {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
            {},
            {"gpus": 16},
        ),
        ({"zero_optimization": {"stage": 3}}, {"gpus": 8}, {"zero_stage": 3}),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            {"gpus": 8},
            {"offload_optimizer": True},
        ),
        (
            {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
            {"gpus": 8},
            {"precision": "bf16", "grad_accum_dtype": "fp32"},
        ),
        ({"activation_checkpointing": {"partition_activations": True}}, {"gpus": 8}, {"recompute": "full"}),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, {"gpus": 8}, {"shard_group": 4}),
    ],
)
def test_deepspeed_keys(config, asked, expected):
    assert part(read_as("deepspeed", json.dumps(config), **asked), *expected) == expected


def test_deepspeed_stages_that_overlap_unasked():
    overlapping = {
        stage: read_as("deepspeed", json.dumps({"zero_optimization": {"stage": stage}}), gpus=8).job[
            "switches"
        ]
        for stage in (1, 2, 3)
    }
    assert [switches.get("dp_overlap") == "none" for switches in overlapping.values()] == [True, True, False]
    assert "offload_optimizer" not in overlapping[1]
    asked = json.dumps({"zero_optimization": {"stage": 1, "overlap_comm": True}})
    assert read_as("deepspeed", asked, gpus=8).job["switches"].get("dp_overlap") != "none"


def nemo(**job):
    asked = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 64, "seq_len": 8192}
    text = emit(cm.estimate(**{**asked, **job}), "nemo")
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def test_nemo_overrides():
    plain, sharded = nemo(zero_stage=0), nemo(zero_stage=3)
    assert plain["ddp.data_parallel_sharding_strategy"] == "no_shard"
    assert plain["ddp.overlap_param_gather"] == "false"
    assert sharded["ddp.data_parallel_sharding_strategy"] == "optim_grads_params"
    assert sharded["ddp.overlap_param_gather"] == "true"
    stages = nemo(layout="pp2 vp4")
    assert stages["model.virtual_pipeline_model_parallel_size"] == "4"
    assert nemo(layout="pp2")["model.virtual_pipeline_model_parallel_size"] == "null"


# Parameters as transformers 5.23 counts them on the meta device.
def hugging_face(**keys):
    return model_from_hf_config(keys, name="foreign")


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "tie_word_embeddings": True,
}
OPT = {
    "model_type": "opt",
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
FALCON = {  # tiiuae/falcon-7b, one layer of it
    "model_type": "falcon",
    "alibi": False,
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 16,
    "num_hidden_layers": 1,
    "parallel_attn": True,
    "vocab_size": 65024,
}
QWEN2 = {  # Qwen/Qwen2-7B-Instruct
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
MISTRAL = {  # mistralai/Mistral-7B-Instruct-v0.2
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
DEEPSEEK_V3 = json.loads((DATA / "config-deepseek-v3-671b.json").read_text())
GPT_OSS = json.loads((DATA / "config-gpt-oss-120b.json").read_text())
LLAMA4 = {  # two layers of the shape of Llama 4: a dense and a routed one
    "model_type": "llama4_text",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 512,
    "intermediate_size": 256,
    "intermediate_size_mlp": 1024,
    "interleave_moe_layer_step": 2,
    "num_attention_heads": 4,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "tie_word_embeddings": False,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (GPT2, 124_439_808),
        (OPT, 125_239_296),
        (FALCON, 504_547_584),
        (QWEN2, 7_615_616_512),
        (MISTRAL, 7_241_732_096),
        (GEMMA2, 2_614_341_888),
        (DEEPSEEK_V3, 671_026_419_200),
        (GPT_OSS, 116_829_156_672),
    ],
    ids=lambda keys: keys.get("model_type", "") if isinstance(keys, dict) else "",
)
def test_huggingface_parameters(keys, count):
    assert num_params(hugging_face(**keys)) == count


def test_huggingface_shapes_that_counts_do_not_show():
    assert hugging_face(**DEEPSEEK_V3).mtp_layers == 1
    assert hugging_face(**{**DEEPSEEK_V3, "n_shared_experts": 2}).shared_expert_ffn_size == 4096
    assert hugging_face(**MISTRAL).sliding_window == 0
    absent = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert hugging_face(**absent).sliding_window == 4096  # the class default
    assert hugging_face(**QWEN2).sliding_window == 0
    windows = hugging_face(**GPT_OSS)
    assert (windows.sliding_window, windows.full_attention_every) == (128, 2)
    assert hugging_face(**GEMMA2).full_attention_every == 2
    assert hugging_face(**GEMMA2).head_dim == 256
    assert hugging_face(**FALCON).num_kv_heads == 1
    llama4 = hugging_face(**LLAMA4)
    assert (llama4.ffn_size, llama4.expert_ffn_size, llama4.shared_expert_ffn_size) == (1024, 256, 256)
    assert [llama4.layer_kinds()[kind].is_moe for kind in llama4.kind_of_layer] == [False, True]
