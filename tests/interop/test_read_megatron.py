"""Megatron's scripts and flags read: small scripts of our own, each rule with values worked out by hand."""

from textwrap import dedent

import pytest

from costmodel.base.errors import CostModelError
from costmodel.interop.megatron_text import layer_pattern
from costmodel.interop.reading import read as read_file
from costmodel.step.anatomy.params import num_params

HEAD = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
BATCH = "--micro-batch-size 2 --global-batch-size 16 --vocab-size 1000 --make-vocab-size-divisible-by 1"
LLAMA = f"{HEAD} {BATCH} --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --bf16"


def read(tmp_path, text, name="train.sh", **given):
    file = tmp_path / name
    file.write_text(dedent(text))
    return read_file(file, **given)


def flags(tmp_path, more="", base=LLAMA, **given):
    return read(tmp_path, f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {base} {more}\n", **given)


def test_a_script_as_people_write_it(tmp_path):
    found = read(
        tmp_path,
        """\
        #!/bin/bash
        #SBATCH --nodes=4 --exclusive
        #SBATCH --gres=gpu:8
        TP=${TP:-2}
        LAYERS=4; WIDTH=$((16 * LAYERS))
        MODEL_ARGS=(
            --num-layers $LAYERS   # as small as it goes
            --hidden-size ${WIDTH}
            --num-attention-heads 4
        )
        TRAIN="--micro-batch-size 1 \\
            --global-batch-size 64 --fp16"
        if [ "$TP" -gt 1 ]; then TRAIN="$TRAIN --sequence-parallel"; fi
        srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py ${MODEL_ARGS[@]} $TRAIN \\
            --tensor-model-parallel-size $TP --seq-length 32 --max-position-embeddings 32 \\
            --vocab-size 1000 --make-vocab-size-divisible-by 8
        """,
    )

    wanted = {"gpus": 32, "tp": 2, "pp": 1, "micro_batch": 1, "global_batch": 64, "seq_len": 32}
    assert {key: found.job[key] for key in wanted} == wanted
    assert found.job["precision"] == "fp16"
    assert found.job["sequence_parallel"] is True
    assert found.job["model"].hidden_size == 64
    assert found.job["model"].vocab_size == 1008  # up to the next multiple of 8·tp
    assert found.missing == ("cluster",)


def test_parameters_of_a_llama_by_hand(tmp_path):
    # 2·1000·64 of tables, and a layer of qkv and out 4·64², gate, up and down 3·64·128 (8/3·64 = 170 -> 128), norms.
    model = flags(tmp_path, "--untie-embeddings-and-output-weights").job["model"]

    assert model.ffn_size == 128
    assert num_params(model) == 2 * 64_000 + 4 * (4 * 4096 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("--num-query-groups 2 --group-query-attention", {"num_kv_heads": 2}),
        ("--num-query-groups 2", {"num_kv_heads": 4}),
        ("--num-key-value-heads 1", {"num_kv_heads": 1}),
        ("--attention-head-type multiquery", {"num_kv_heads": 1}),
        ("--kv-channels 32", {"head_dim": 32}),
        ("--normalization rmsnorm", {"norm": "rmsnorm"}),
        ("--normalization LayerNorm --apply-layernorm-1p", {"norm": "layernorm"}),
        ("--quick-geglu", {"gated_mlp": True}),
        ("--post-norm", {"norms_per_layer": 4}),
        ("--position-embedding-type alibi --embed-layernorm", {"position": "alibi", "embedding_norm": True}),
        ("--window-size 127,0 --window-attn-skip-freq 2", {"sliding_window": 128, "full_attention_every": 2}),
        ("--padded-vocab-size 1024", {"vocab_size": 1000}),
        ("--noop-layers 2,3", {"num_layers": 2}),
        (
            "--num-experts 8 --moe-router-topk 2 --moe-layer-freq [0]*1+[1]*3 --moe-ffn-hidden-size 32",
            {"first_dense_layers": 1, "moe_layer_freq": 1, "expert_ffn_size": 32, "top_k": 2},
        ),
        (
            "--num-experts 8 --first-k-dense-replace 2 --moe-ffn-hidden-size 32 --n-shared-experts 2",
            {"first_dense_layers": 2, "shared_expert_ffn_size": 64},
        ),
        ("--num-experts 8 --moe-layer-freq '([1,0,0,1])'", {"mlp_pattern": "edde"}),
        (
            "--num-experts 8 --moe-expert-parallel-size 4",
            {"moe_layer_freq": 2, "top_k": 1, "expert_ffn_size": 128},
        ),
    ],
)
def test_flags_of_the_model(tmp_path, more, wanted):
    base = LLAMA.replace("--normalization RMSNorm", "") if "--normalization" in more else LLAMA
    model = flags(
        tmp_path, more, base.replace("--position-embedding-type rope", "") if "alibi" in more else base
    ).job["model"]

    assert {key: getattr(model, key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("--checkpoint-activations", {"recompute": "full"}),
        ("--activations-checkpoint-method uniform", {"recompute": "full"}),
        ("--recompute-activations", {"recompute": "selective"}),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": "full"},
        ),
        ("--deepspeed --zero-stage 3", {"zero_stage": 3, "recipe": "megatron-deepspeed"}),
        ("--use-distributed-optimizer", {"zero_stage": 1}),
        ("--use-megatron-fsdp", {"zero_stage": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero_stage": 2}),
        ("--context-parallel-size 2", {"cp": 2}),
        ("--ds-sequence-parallel-size 4", {"cp": 4}),
        ("--expert-model-parallel-size 2 --num-experts 4", {"ep": 2}),
        ("--tensor_model_parallel_size 2 --sequence_parallel true", {"tp": 2, "sequence_parallel": True}),
        ("--tensor-model-parallel-size 2 --sequence-parallel false", {"tp": 2, "sequence_parallel": False}),
        ("--pipeline-model-parallel-size 2", {"pp": 2, "schedule": "1f1b"}),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            {"vp": 2, "schedule": "interleaved"},
        ),
        ("--pipeline-model-parallel-size 2 --enable-zbh1-pipeline", {"schedule": "zb-h1"}),
        (
            "--pipeline-model-parallel-size 2 --enable-zero-bubble --zero-bubble-v-schedule",
            {"schedule": "zb-v", "vp": 2},
        ),
        (
            "--pipeline-model-parallel-size 2 --schedules-method dualpipev",
            {"schedule": "dualpipe-v", "vp": 2},
        ),
        (
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
            {"pipeline_layout": "Et|tttL"},
        ),
        ("--pipeline-model-parallel-size 2 --noop-layers 0", {"pipeline_layout": "Et|ttL"}),
        ("--fp8-format hybrid", {"precision": "fp8-delayed"}),
        ("--fp8-hybrid", {"precision": "fp8-delayed"}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", {"precision": "mxfp8"}),
        ("--fp4-format e2m1", {"precision": "nvfp4"}),
    ],
)
def test_flags_of_the_layout(tmp_path, more, wanted):
    job = flags(tmp_path, more).job

    assert {key: job[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("--cpu-optimizer", "offload_optimizer", True),
        ("--optimizer-cpu-offload", "offload_optimizer", True),
        ("--fp8-format hybrid --fp8-param-gather", "quantised_weights", "primary"),
        ("--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", "cp_method", "ulysses"),
        ("--ds-sequence-parallel-size 2", "cp_method", "ulysses"),
        ("--context-parallel-size 8 --cp-comm-type a2a+p2p", "cp_method", "a2a+p2p"),
        (
            "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 2",
            "cp_a2a_ranks",
            4,
        ),
        (
            "--recompute-granularity selective --recompute-modules moe layernorm",
            "selective_modules",
            ("moe", "layernorm"),
        ),
        ("--tp-comm-overlap", "tp_overlap", "pipelined"),
    ],
)
def test_flags_of_the_recipe(tmp_path, more, name, value):
    assert flags(tmp_path, more).job["switches"][name] == value


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--optimizer sophia", "optimizer sophia: priced as Adam"),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
            "only the first 2 layers",
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            "every 2 layers",
        ),
        ("--moe-layer-recompute", "--set selective_modules=moe"),
        ("--use-precision-aware-optimizer", "moments_bytes"),
        ("--train_type longlora", "longlora: has no price"),
        ("--lora-rank 8 --target-modules linear_qkv lm_head", "lora target lm_head"),
        ("--some-new-flag 3", "not read, and may matter: --some-new-flag"),
    ],
)
def test_what_has_no_price_is_said(tmp_path, more, words):
    assert any(words in remark for remark in flags(tmp_path, more).remarks)


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        # ms-swift, and MindSpeed-LLM.
        ("--train_type lora --lora_rank 16 --lora_alpha 32 --target_modules all-linear", {"lora_rank": 16}),
        ("--tuner_type lora", {"lora_rank": 8}),
        ("--tuner_type full --lora_rank 8", {}),
        (
            "--lora-r 4 --lora-fusion --lora-target-modules linear_qkv linear_proj --qlora",
            {"lora_rank": 4, "lora_targets": "linear_qkv,linear_proj", "base_dtype": "nf4"},
        ),
        ("", {}),
    ],
)
def test_adapters(tmp_path, more, fields):
    found = flags(tmp_path, more)
    assert {key: value for key, value in found.job.items() if key.startswith(("lora", "base"))} == fields
    assert not [name for name in found.ignored if "lora" in name]


def test_harmless_flags_are_not():
    more = "--lr 1e-4 --clip-grad 1.0 --save x --tensorboard-dir y --no-bias-gelu-fusion --manual-gc --eval-iters 3"
    from costmodel.interop.megatron_job import job_of_flags
    from costmodel.interop.megatron_text import Flags

    assert job_of_flags(Flags(f"{LLAMA} {more}")).remarks == ()


def test_vocabulary_of_a_tokenizer_that_is_known(tmp_path):
    base = LLAMA.replace("--vocab-size 1000", "")
    bpe = flags(tmp_path, "--tokenizer-type GPT2BPETokenizer", base)
    hub = flags(tmp_path, "--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B", base)

    assert (bpe.job["model"].vocab_size, hub.job["model"].vocab_size) == (50257, 151936)
    assert bpe.notes == ("vocabulary: 50257 tokens of GPT2BPETokenizer",)
    with pytest.raises(CostModelError, match="takes it from the tokenizer; give --vocab-size"):
        flags(tmp_path, "--tokenizer-model /my/own", base)
    assert flags(tmp_path, "", base, vocab_size=777).job["model"].vocab_size == 777


def test_linear_attention_is_refused_as_a_model_but_the_job_is_read(tmp_path):
    found = flags(tmp_path, "--linear-key-head-dim 16 --tensor-model-parallel-size 2")

    assert "model" not in found.job
    assert (found.job["tp"], found.shape["num_layers"], found.shape["num_heads"]) == (2, 4, 4)
    with pytest.raises(CostModelError, match="the flags do not say all sizes of these layers; give --model"):
        found.estimate_keywords()
    hybrid = flags(tmp_path, "--hybrid-layer-pattern M*M-", LLAMA.replace("--num-layers 4", ""))
    assert (hybrid.job["model"].attention_pattern, hybrid.job["model"].mlp_pattern) == ("mfmn", "nnnd")


def test_a_model_by_name_as_ms_swift_has_it(tmp_path):
    found = read(
        tmp_path,
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --global_batch_size 16 --max_length 4096\n",
    )

    assert found.job["model"].name == "qwen3-8b"
    wanted = {"gpus": 8, "precision": "bf16", "zero_stage": 1, "seq_len": 4096, "recompute": "selective"}
    assert {key: found.job[key] for key in wanted} == wanted


def test_fragments_without_a_command(tmp_path):
    found = read(tmp_path, f"MODEL_ARGS=( {LLAMA} --swiglu )\n")

    assert found.job["model"].num_layers == 4
    assert "gpus" in found.missing


def test_deepspeed_configuration_inside_the_script(tmp_path):
    found = read(
        tmp_path,
        'CFG=ds.json\ncat <<EOT > $CFG\n{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}\nEOT\n'
        f"deepspeed --num_nodes 2 --num_gpus 4 pretrain_gpt.py {LLAMA} --deepspeed --zero-stage=3 --deepspeed_config=$CFG\n",
    )

    assert (found.job["gpus"], found.job["zero_stage"]) == (8, 3)
    assert found.job["switches"]["offload_optimizer"] is True


def test_unset_variables_are_named_and_can_be_given(tmp_path):
    script = f"torchrun --nproc_per_node 8 pretrain_gpt.py {LLAMA} --tensor-model-parallel-size $TP\n"
    with pytest.raises(
        CostModelError, match=r"--tensor-model-parallel-size: .*\$TP is not set; give --env TP"
    ):
        read(tmp_path, script)

    assert read(tmp_path, script, env={"TP": "4"}).job["tp"] == 4
    assert read(tmp_path, script, tp=2).job["tp"] == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--recompute-granularity some", "expected none, selective or full, got 'some'"),
        ("--zero-stage 7", "expected 0 to 3, got 7"),
        ("--moe-layer-freq [0]*9 --num-experts 4", "has 9 layers, --num-layers is 4"),
        ("--num-query-groups 3 --group-query-attention", "does not divide by num_kv_heads 3"),
        ("--position-embedding-type spiral", "got 'spiral'"),
        ("--seq-length long", "--seq-length: expected a whole number, got 'long'"),
        (
            "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 1",
            "do not divide over 3 stages",
        ),
    ],
)
def test_wrong_values_are_one_line(tmp_path, more, words):
    with pytest.raises(CostModelError) as caught:
        flags(tmp_path, more)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_patterns_of_experts():
    assert layer_pattern("([0]*1+[1]*2)", 3) == [0, 1, 1]
    assert layer_pattern("[0,1]*2", 4) == [0, 1, 0, 1]


def test_ranks_of_context_shard_together_with_those_of_data(tmp_path):
    """16 GPUs, tensor 2, stages 2, context 2: four ranks of data and context share states, two to an instance."""
    more = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2 "
    more += "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    assert flags(tmp_path, more).job["shard_group"] == 2


def test_megatron_fsdp_shards_parameters_unless_told_otherwise(tmp_path):
    assert flags(tmp_path, "--use-megatron-fsdp").job["zero_stage"] == 3
    less = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"
    assert flags(tmp_path, less).job["zero_stage"] == 2


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("sgd", "sgd-momentum"),
        ("adam", None),
        ("dist_muon", "muon"),
        ("lion", "lion"),
        ("adafactor", "adafactor"),
    ],
)
def test_optimizers(tmp_path, name, ours):
    found = flags(tmp_path, f"--optimizer {name}")
    assert found.job.get("optimizer") == ours
    assert not [text for text in found.warnings if "priced as Adam" in text]


MEGATRON_DEEPSPEED = """#!/bin/bash
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16 \\
  --num_nodes 1 --deepspeed --deepspeed_config {config} {more}
"""


@pytest.mark.parametrize(
    ("config", "more", "stage", "said"),
    [
        ("ds.json", "", 2, "DeepSpeed's configuration: ZeRO stage 2"),
        ("conf/ds.json", "--zero-stage 1", 1, ""),
        ("other.json", "", 0, "other.json: is not beside the script; its offload and ZeRO stage are unknown"),
        ("other.json", "--zero-stage 3", 3, "other.json: is not beside the script; its offload is unknown"),
        ("ds_$SIZE.json", "", 0, "of a name that is not in the script: is not beside the script"),
    ],
)
def test_the_stage_of_a_configuration_beside_the_script(tmp_path, config, more, stage, said):
    (tmp_path / "ds.json").write_text('{"train_batch_size": 16, "zero_optimization": {"stage": 2}}')
    (tmp_path / "t.sh").write_text(MEGATRON_DEEPSPEED.format(config=config, more=more))
    found = read_file(tmp_path / "t.sh")
    assert found.job["zero_stage"] == stage
    assert said in "; ".join([*found.notes, *found.warnings])
