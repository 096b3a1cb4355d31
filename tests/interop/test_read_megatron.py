"""Megatron's scripts and flags read: small scripts of our own, each rule with values worked out by hand."""

from textwrap import dedent

import pytest

from costmodel.base.errors import CostModelError
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


def test_layers_of_a_provider_of_ones_own_have_no_price_unless_the_model_is_given(tmp_path):
    found = flags(tmp_path, "--custom-model-provider-path my.py --tensor-model-parallel-size 2")
    assert found.unpriced.startswith("--custom-model-provider-path: the layers are in that code")
    assert (found.job.get("model"), found.job["tp"], found.shape["num_layers"]) == (None, 2, 4)
    known = flags(tmp_path, "--custom-model-provider-path my.py", model="llama3-8b")
    assert (known.unpriced, known.job["model"]) == ("", "llama3-8b")


def test_a_model_by_name_as_ms_swift_has_it(tmp_path):
    found = read(
        tmp_path,
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-8B --global_batch_size 16 --max_length 4096\n",
    )

    assert found.job["model"].name == "qwen3-8b"
    wanted = {"gpus": 8, "precision": "bf16", "zero_stage": 1, "seq_len": 4096, "recompute": "selective"}
    assert {key: found.job[key] for key in wanted} == wanted

    converted = read(
        tmp_path,
        "NPROC_PER_NODE=8 megatron sft --load x/Qwen3-8B-mcore --global_batch_size 16 --max_length 4096\n",
    )
    assert {**converted.job, "model": converted.job["model"].name} == {**found.job, "model": "qwen3-8b"}
    other = read(
        tmp_path, "NPROC_PER_NODE=8 megatron sft --load mine --global_batch_size 16 --max_length 4096\n"
    )
    assert (other.job["precision"], "model" in other.missing) == ("bf16", True)


def test_a_batch_that_grows_is_said(tmp_path):
    for length, tokens, said in [
        (
            "--train-iters 9",
            None,
            "the batch grows; priced is a step of --global-batch-size, and iterations say no tokens",
        ),
        ("--train-samples 64", 64 * 32, "the batch grows; priced is a step of --global-batch-size"),
    ]:
        grows = f"python pretrain_gpt.py {LLAMA} --global-batch-size 8 {length} --step-batch-size-schedule '0:4 1B:8'\n"
        found = read(tmp_path, grows)
        assert (found.job["global_batch"], found.job.get("tokens"), found.batches) == (8, tokens, (4, 8))
        assert any(warning.startswith(f"--step-batch-size-schedule: {said}") for warning in found.warnings)
        plain = read(tmp_path, grows.partition(" --step-batch")[0] + "\n")
        assert not any("grows" in warning for warning in plain.warnings)
        assert plain.batches == ()
        ramp = read(
            tmp_path, f"python pretrain_gpt.py {LLAMA} --global-batch-size 16 --rampup-batch-size 4 6 100\n"
        )
        assert ramp.batches == (4, 10, 16)


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


MEGATRON_DEEPSPEED = """#!/bin/bash
deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16 \\
  --num_nodes 1 --deepspeed --deepspeed_config {config} {more}
"""


def test_the_stage_of_a_configuration_beside_the_script(tmp_path):
    for config, more, stage, said in [
        ("ds.json", "", 2, "DeepSpeed's configuration: ZeRO stage 2"),
        ("conf/ds.json", "--zero-stage 1", 1, ""),
        ("other.json", "", 0, "other.json: is not beside the script; its offload and ZeRO stage are unknown"),
        ("other.json", "--zero-stage 3", 3, "other.json: is not beside the script; its offload is unknown"),
        ("ds_$SIZE.json", "", 0, "of a name that is not in the script: is not beside the script"),
    ]:
        (tmp_path / "ds.json").write_text('{"train_batch_size": 16, "zero_optimization": {"stage": 2}}')
        (tmp_path / "t.sh").write_text(MEGATRON_DEEPSPEED.format(config=config, more=more))
        found = read_file(tmp_path / "t.sh")
        assert found.job["zero_stage"] == stage
        assert said in "; ".join([*found.notes, *found.warnings])
