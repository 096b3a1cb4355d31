"""The length of a run, as other programs' files have it."""

import pytest

import costmodel as cm

MEGATRON = """torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\
 --vocab-size 1000 --seq-length 128 --micro-batch-size 1 --global-batch-size 16 {more}
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
steps = {steps}
"""


def read(tmp_path, text, name, **given):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return cm.read(str(path), **given)


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ("--train-iters 500", 500 * 16 * 128),
        ("--train-samples 3200", 3200 * 128),
        ("--train-samples 1", 128),
        ("", None),
        # A batch that grows: its mean is not in the flags.
        ("--train-iters 500 --rampup-batch-size 4 4 1000", None),
        ("--train-samples 3200 --rampup-batch-size 4 4 1000", 3200 * 128),
        ("--train-iters 0", None),
        ("--train-iters $STEPS", None),
        ("--train-iters 1e300", None),
    ],
)
def test_iterations_and_samples_of_megatron(tmp_path, more, tokens):
    assert read(tmp_path, MEGATRON.format(more=more), "train.sh").job.get("tokens") == tokens


def test_what_the_caller_gives_stands(tmp_path):
    text = MEGATRON.format(more="--train-iters 500")
    assert read(tmp_path, text, "train.sh", tokens=1e9).job["tokens"] == 1e9
    of_data = read(tmp_path, text, "train.sh", dataset_samples=1000).job
    assert "tokens" not in of_data
    assert of_data["dataset_samples"] == 1000


def test_steps_of_torchtitan(tmp_path):
    job = read(tmp_path, TITAN.format(steps=1000), "job.toml", gpus=8).job
    assert job["tokens"] == 1000 * 16 * 4096
    assert "tokens" not in read(tmp_path, TITAN.format(steps=10**17), "job.toml", gpus=8).job


def test_steps_of_axolotl(tmp_path):
    text = "base_model: llama3-8b\nsequence_len: 2048\nmicro_batch_size: 2\nmax_steps: {}\n"
    assert read(tmp_path, text.format(300), "a.yaml", gpus=8).job["tokens"] == 300 * 16 * 2048
    assert "tokens" not in read(tmp_path, text.format(-1), "a.yaml", gpus=8).job
