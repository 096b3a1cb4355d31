"""What files leave open or say twice: who wins, what is meant by default, in the readers' own words."""

import json
from textwrap import dedent

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.interop.nccl_rows import bus_factor, default_columns, read_row
from costmodel.interop.nemo import import_nemo
from costmodel.interop.reading import read as read_file
from costmodel.step.anatomy.params import num_params

MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--vocab-size 1000 --make-vocab-size-divisible-by 1 --swiglu --disable-bias-linear --bf16"
)
SCRIPT = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py "
    f"{MODEL} --micro-batch-size 2 --global-batch-size 16 --tp-comm-overlap --sequence-parallel "
    "--tensor-model-parallel-size 2 --overlap-grad-reduce --use-distributed-optimizer\n"
)


def read(tmp_path, text, name="train.sh", **given):
    file = tmp_path / name
    file.write_text(dedent(text) if isinstance(text, str) else json.dumps(text))
    return read_file(file, **given)


def test_what_is_given_wins_over_the_file(tmp_path):
    said = read(tmp_path, SCRIPT)
    assert (said.job["recompute"], said.job["precision"]) == ("none", "bf16")
    found = read(tmp_path, SCRIPT, recompute="full", precision="fp16")
    assert (found.job["recompute"], found.job["precision"]) == ("full", "fp16")


def test_given_switches_win_over_those_of_the_file_and_leave_the_others(tmp_path):
    said = read(tmp_path, SCRIPT).job["switches"]
    assert said
    for name, value in said.items():
        found = read(tmp_path, SCRIPT, switches={name: "given", "launch_s": 1e-6}).job["switches"]
        assert found == {**said, name: "given", "launch_s": 1e-6}, (name, value)


def test_of_two_commands_the_one_that_says_most_is_read(tmp_path):
    """A short one that converts a checkpoint stands first."""
    convert = (
        "torchrun --nnodes 1 --nproc_per_node 1 convert.py --num-layers 9 --hidden-size 32 --seq-length 8\n"
    )
    found = read(tmp_path, convert + SCRIPT)
    assert (found.job["gpus"], found.job["seq_len"], found.job["model"].num_layers) == (16, 32, 4)


NEMO = """
trainer: {{devices: 8, num_nodes: 4, precision: bf16-mixed}}
model:
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 128
  max_position_embeddings: 128
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  vocab_size: 512
  tensor_model_parallel_size: 2
  fp8: true
  fp8_e4m3: {e4m3}
  fp8_hybrid: {hybrid}
"""


def test_formats_of_eight_bits(tmp_path):
    """NeMo 1: fp8_e4m3 in both passes, or e5m2 for gradients; Megatron's delayed scaling takes only the second here."""
    hybrid = read(tmp_path, NEMO.format(e4m3="false", hybrid="true"), "nemo.yaml")
    assert hybrid.job["precision"] == "fp8-delayed"
    assert not [said for said in hybrid.warnings if "fp8" in said]


def test_zero_optimization_of_old_files(tmp_path):
    """`true` was ZeRO-1, `false` none."""
    for said, stage in ((True, 1), (False, 0), ({"stage": 2}, 2)):
        raw = {"train_batch_size": 16, "zero_optimization": said, "bf16": {"enabled": True}}
        assert read(tmp_path, raw, "ds_config.json", gpus=8).job["zero_stage"] == stage
    raw = {"train_batch_size": 16, "zero_optimization": "yes"}
    with pytest.raises(CostModelError, match="zero_optimization: expected a table, got 'yes'"):
        read(tmp_path, raw, "ds_config.json", gpus=8)


def test_layers_on_each_stage_are_rounded_up():
    """27 layers on 2 ranks of 7 stages are 2 each, the last one alone, not 1."""
    job = {"model": "deepseek-v2-lite", "gpus": 16, "seq_len": 4096, "global_batch": 64}
    est = cm.estimate(**job, recipe="torchtitan", layout="pp2 vp7 ep8", schedule="interleaved", zero_stage=3)
    assert "pipeline_parallel_layers_per_stage=2," in str(cm.emit(est, "torchtitan"))


def test_rank_of_an_adapter_that_is_not_written():
    """Megatron-Bridge's LoRA is of rank 32 (megatron/bridge/peft/lora.py, `dim`)."""
    head = "# Megatron-Bridge overrides: llama3-8b on 8 GPUs of dgx-h100-ndr\n"
    plain = "train.global_batch_size=8\nmodel.seq_length=4096\n"
    found = import_nemo(f"{head}{plain}peft.target_modules=[linear_qkv]\n")
    assert (found.job["lora_rank"], found.job["lora_targets"]) == (32, "linear_qkv")
    assert import_nemo(f"{head}{plain}peft.dim=8\n").job["lora_rank"] == 8
    assert "lora_rank" not in import_nemo(head + plain).job


def test_nodes_and_gpus_that_the_launcher_leaves_to_slurm(tmp_path):
    """What the command says counts, the rest is Slurm's: 8 processes on each of 3 nodes, or 4 on each of 2."""
    head = "#!/bin/bash\n#SBATCH --nodes=3 --gpus-per-node=4\n"
    flags = SCRIPT.split(maxsplit=5)[5]
    for launcher, gpus in (
        ("torchrun --nproc_per_node 8", 24),
        ("torchrun --nnodes 2", 8),
        ("srun python", 12),
    ):
        found = read(tmp_path, f"{head}{launcher} {flags}")
        assert found.job["gpus"] == gpus, launcher


def test_both_times_of_a_row():
    """1 MiB out of place in 10 us, in place in 20."""
    text = "1048576 262144 float sum -1 10.0 104.86 183.50 0 20.0 52.43 91.75 0"
    words = text.split()
    row = read_row(7, words, default_columns(len(words)))
    assert (row.line, row.size, row.time_us, row.in_place_us) == (7, 2**20, 10.0, 20.0)
    assert (row.algbw, row.busbw, row.redop, row.wrong) == (104.86, 183.5, "sum", 0.0)
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1.0


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 10,
    "max_position_embeddings": 3,
    "type_vocab_size": 2,
}


def test_a_model_is_a_job_that_lacks_what_it_does_not_say(tmp_path):
    found = read(tmp_path, {**LLAMA, "speak": "up"}, "config.json", gpus=8, vocab_size=9)
    assert set(found.job) == {"gpus", "model"}
    assert found.job["model"].num_layers == 2
    assert found.missing == ("global_batch", "seq_len")
    assert found.ignored == ("speak",)
    assert (found.kind, found.unpriced, found.shape) == ("hf", "", {})
    whole = read(tmp_path, LLAMA, "config.json", gpus=8, global_batch=4, seq_len=32)
    assert (whole.missing, whole.ignored) == ((), ())


def test_a_model_without_a_price_has_its_size_and_says_why(tmp_path):
    found = read(
        tmp_path, {**BERT, "speak": "up", "num_nextn_predict_layers": 1}, "config.json", gpus=8, vocab_size=9
    )
    assert found.job == {"gpus": 8}
    # Tables 4 * (10 + 3 + 2), their norm 8; a layer's four projections 80, MLP 76, norms 16; head 20, its norm 8, biases 10.
    assert found.shape["num_params"] == 60 + 8 + 2 * (80 + 76 + 16) + 38
    assert found.unpriced.endswith("an encoder, not a decoder")
    assert found.ignored == ("speak",)
    assert found.warnings == ("num_nextn_predict_layers: these layers are not counted",)
    with pytest.raises(CostModelError, match="model_type"):
        read(tmp_path, {**BERT, "model_type": "nobody's"}, "config.json")


@pytest.mark.parametrize(
    ("folder", "name", "said", "called"),
    [
        ("mine", "config.json", "meta/Llama-9/", "Llama-9"),
        ("mine", "config.json", "", "mine"),
        ("mine", "tiny.json", "", "tiny"),
        ("mine", "mine.json", "", "mine"),
        ("mine", "config.json", None, "mine"),
    ],
)
def test_a_model_is_called_as_it_says_or_as_its_folder_or_its_file(tmp_path, folder, name, said, called):
    (tmp_path / folder).mkdir()
    found = read(tmp_path / folder, {**LLAMA, "_name_or_path": said}, name)
    assert found.job["model"].name == called


@pytest.mark.parametrize(
    ("columns", "words", "wrong", "in_place"),
    [
        ("size count type redop time algbw busbw", "1048576 262144 float sum 10.0 104.86 183.5", 0, None),
        (
            "size count type redop time algbw busbw #wrong",
            "1048576 262144 float sum 10.0 104.86 183.5 3",
            3,
            None,
        ),
        (
            "size count type redop time algbw busbw time algbw busbw",
            "1048576 262144 float sum 10.0 104.86 183.5 20.0 52.4 91.7",
            0,
            20,
        ),
        (
            "size count type redop time algbw busbw #wrong time algbw busbw #wrong",
            "1048576 262144 float sum 10.0 104.86 183.5 0 20.0 52.4 91.7 5",
            0,
            20,
        ),
    ],
)
def test_rows_with_and_without_counts_of_wrong_results(columns, words, wrong, in_place):
    row = read_row(7, words.split(), columns.split())
    assert (row.time_us, row.algbw, row.busbw, row.redop, row.wrong) == (10.0, 104.86, 183.5, "sum", wrong)
    assert row.in_place_us == in_place or (in_place is None and row.in_place_us != row.in_place_us)


# A small file of each kind, in which a key more can be put.
_SIZES = "num_layers: 2, hidden_size: 64, num_attention_heads: 2, position_embedding_type: rope"
_FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --position-embedding-type rope --vocab-size 128"
)
_FILES = {
    "a.json": '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "%s": 3}',
    "a.toml": "[training]\nseq_len = 2048\n%s = 3\n",
    "trainer.yaml": "model_name_or_path: llama3-8b\nper_device_train_batch_size: 1\ncutoff_len: 2048\n%s: 3\n",
    "accelerate.yaml": "distributed_type: MULTI_GPU\n%s: 3\n",
    "maxtext.yml": "model_name: llama3-8b\nmax_target_length: 2048\nper_device_batch_size: 1\n%s: 3\n",
    "arguments.yaml": f"MODEL_ARGS: {{{_SIZES}, --%s: 3}}\n",
    "nemo.yaml": f"trainer: {{devices: 8}}\nmodel: {{encoder_seq_length: 2048, {_SIZES}, %s: 3}}\n",
    "neuronx.yaml": f"distributed_strategy: {{%s: 3}}\nmodel: {{encoder_seq_length: 2048, {_SIZES}}}\n",
    "bridge.yaml": f"train: {{global_batch_size: 8}}\nmodel: {{{_SIZES}, %s: 3}}\n",
    "primus.yaml": "modules: {a: {framework: megatron, model: llama3-8b, overrides: {%s: 3}}}\n",
    "neox.yml": "pipe_parallel_size: 1\nnum_layers: 2\nhidden_size: 64\nnum_attention_heads: 2\npos_emb: rotary\n%s: 3\n",
    "run.sh": f"torchrun pretrain.py {_FLAGS} --%s 3\n",
    "overrides.txt": "# Megatron-Bridge overrides: llama3-8b on 8 GPUs of x\nmodel.context_parallel_size=1\nmodel.%s=3\n",
}


def test_a_key_that_changes_the_price_and_is_not_understood_stops_every_reader(tmp_path):
    names = ["odd_parallel_size", "odd_dtype", "odd_optimizer", "odd_experts", "odd_batch_size"]
    for file, text in _FILES.items():
        path = tmp_path / file
        path.write_text(text % "odd_word")
        assert "odd" in str(read_file(path, gpus=8, vocab_size=100).ignored), file
        for name in names:
            path.write_text(text % name)
            said = (
                rf"odd[_-]{name[4:].replace('_', '[_-]')}: .*3.* is not understood, and by its name changes"
            )
            with pytest.raises(CostModelError, match=said):
                pytest.fail(f"{file} {name}: {read_file(path, gpus=8, vocab_size=100)}")


def test_a_key_that_is_off_or_one_stops_nothing(tmp_path):
    path = tmp_path / "trainer.yaml"
    text = _FILES["trainer.yaml"].replace(" 3", " %s")
    for value in ("false", "0", "null", "'none'", "1"):
        path.write_text(text % ("odd_parallel_size", value))
        assert read_file(path, gpus=8).job["seq_len"] == 2048
    path.write_text(text % ("odd_experts", 1))
    with pytest.raises(CostModelError, match="experts"):
        read_file(path, gpus=8)


NEURONX = """
trainer: {devices: 32, num_nodes: 16, max_steps: 10}
distributed_strategy: {tensor_model_parallel_size: 32, pipeline_model_parallel_size: 4, zero1: True, sequence_parallel: True}
data: {micro_batch_size: 1, global_batch_size: 128}
model: {encoder_seq_length: 4096, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32,
        num_kv_heads: 8, normalization: rmsnorm, position_embedding_type: rope, activation: swiglu, has_bias: False,
        share_embeddings_and_output_weights: False, make_vocab_size_divisible_by: 1,
        moe: {num_experts: 8, top_k: 2, frequency: 1, dropless: True}, optim: {name: %s}}
precision: {type: %s}
"""


def test_a_trainium_launch_file_is_read_with_its_strategy(tmp_path):
    path = tmp_path / "mixtral.yaml"
    path.write_text(NEURONX % ("adamw_fp32OptState", "mixed_precision"))
    found = read_file(path, vocab_size=32000)
    wanted = {"gpus": 512, "tp": 32, "pp": 4, "zero_stage": 1, "sequence_parallel": True, "micro_batch": 1}
    wanted |= {"global_batch": 128, "seq_len": 4096, "precision": "bf16", "tokens": 10 * 128 * 4096.0}
    assert {key: found.job[key] for key in wanted} == wanted
    # Mixtral 8x7B as published; the file's vocabulary is padded to nothing.
    assert round(num_params(found.job["model"])) == 46_702_792_704
    assert found.warnings == ()
    path.write_text(NEURONX % ("adamw", "bf16SR"))
    assert read_file(path, vocab_size=32000).job["switches"]["master_weights_bytes"] == 0
    path.write_text(NEURONX % ("adamw", "manual"))
    with pytest.raises(
        CostModelError, match=r"precision\.type: expected one of mixed_precision, .*got 'manual'"
    ):
        read_file(path, vocab_size=32000)
    path.write_text(NEURONX % ("adamw", "fp32") + "model_alignment_strategy: {dpo: {beta: 0.1}}\n")
    with pytest.raises(CostModelError, match=r"model_alignment_strategy\.dpo: is not supported \(sft is\)"):
        read_file(path, vocab_size=32000)


def test_slime_sets_bf16_and_the_distributed_optimizer(tmp_path):
    path = tmp_path / "run.sh"
    flags = f"{_FLAGS} --rollout-batch-size 8"
    path.write_text(
        f"ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 {flags}\n"
    )
    found = read_file(path)
    assert (found.job["precision"], found.job["zero_stage"], found.job["gpus"]) == ("bf16", 1, 16)
    assert any("step of training alone" in warning for warning in found.warnings)
    path.write_text(f"python3 train.py --train-backend fsdp {flags}\n")
    with pytest.raises(CostModelError, match=r"--train-backend: 'fsdp' is not supported \(megatron is\)"):
        read_file(path)


def test_compiling_the_loss_alone_compiles_no_model(tmp_path):
    path = tmp_path / "a.toml"
    for parts, compiled in (('["loss"]', False), ('["model"]', True), ('["model", "loss"]', True)):
        path.write_text(
            f"[training]\nseq_len = 2048\n[parallelism]\n[compile]\nenable = true\ncomponents = {parts}\n"
        )
        assert read_file(path, gpus=8).job["switches"].get("compiled", True) is compiled
