"""What files leave open or say twice: who wins, what is meant by default, in the readers' own words."""

import json
from textwrap import dedent

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.interop.nccl_tests import bus_factor, default_columns, read_row
from costmodel.interop.reading import read as read_file

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


def test_layers_on_each_stage_are_rounded_up():
    """27 layers on 2 ranks of 7 stages are 2 each, the last one alone, not 1."""
    job = {"model": "deepseek-v2-lite", "gpus": 16, "seq_len": 4096, "global_batch": 64}
    est = cm.estimate(**job, recipe="torchtitan", layout="pp2 vp7 ep8", schedule="interleaved", zero_stage=3)
    assert "pipeline_parallel_layers_per_stage=2," in str(cm.emit(est, "torchtitan"))


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
HRM = {
    "model_type": "hrm_text",
    "hidden_size": 4,
    "num_layers_per_stack": 1,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "vocab_size": 10,
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
        tmp_path,
        {**HRM, "speak": "up", "num_nextn_predict_layers": 1},
        "config.json",
        gpus=8,
        vocab_size=9,
    )
    assert found.job == {"gpus": 8}
    # Two tables of 4 * 10; in each of two stacks a layer of four projections 64, a gate 16, an MLP 72; a norm.
    assert found.shape["num_params"] == 2 * 40 + 2 * (64 + 16 + 72) + 4
    assert "hrm_text" in found.unpriced
    assert found.ignored == ()
    assert found.warnings == ("num_nextn_predict_layers: these layers are not counted",)
    with pytest.raises(CostModelError, match="model_type"):
        read(tmp_path, {**HRM, "model_type": "nobody's"}, "config.json")


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


def test_rows_with_and_without_counts_of_wrong_results():
    columns, row = "size count type redop time algbw busbw", "1048576 262144 float sum 10.0 104.86 183.5"
    counted = read_row(7, f"{row} 3".split(), f"{columns} #wrong".split())
    assert (counted.time_us, counted.wrong, counted.in_place_us == counted.in_place_us) == (10.0, 3, False)
    both = read_row(7, f"{row} 20.0 52.4 91.7".split(), f"{columns} time algbw busbw".split())
    assert (both.time_us, both.wrong, both.in_place_us) == (10.0, 0, 20.0)


def test_slime_sets_bf16_and_the_distributed_optimizer(tmp_path):
    flags = f"{MODEL.replace(' --bf16', '')} --rollout-batch-size 8"
    ray = "ray job submit --address=http://x -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8"
    found = read(tmp_path, f"{ray} {flags}\n")
    assert (found.job["precision"], found.job["zero_stage"], found.job["gpus"]) == ("bf16", 1, 16)
    assert any("step of training alone" in warning for warning in found.warnings)
    assert found.ignored == ()
    with pytest.raises(CostModelError, match=r"--train-backend: 'fsdp' is not supported \(megatron is\)"):
        read(tmp_path, f"python3 train.py --train-backend fsdp {flags}\n")


def test_epochs_of_a_file_reach_the_run(tmp_path):
    text = "base_model: llama3-8b\nsequence_len: 2048\nmicro_batch_size: 2\nnum_epochs: 3\n"
    job = read(tmp_path, text, "a.yaml", gpus=8, cluster="dgx-a100-hdr", dataset_samples=1000).job
    assert cm.run(**job).tokens == 3 * 1000 * 2048
