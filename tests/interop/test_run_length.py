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


def test_steps_beside_a_deepspeed_configuration(tmp_path):
    text = "base_model: llama3-8b\nsequence_len: 2048\nmicro_batch_size: 2\nmax_steps: 300\ndeepspeed: zero2.json\n"
    assert read(tmp_path, text, "a.yaml", gpus=8).job["tokens"] == 300 * 16 * 2048


AXOLOTL = "base_model: llama3-8b\nsequence_len: 2048\nmicro_batch_size: 2\n{}\n"
FACTORY = "model_name_or_path: llama3-8b\nstage: sft\ncutoff_len: 2048\nper_device_train_batch_size: 2\n{}\n"


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        (AXOLOTL.format("num_epochs: 3"), 3),
        (FACTORY.format("num_train_epochs: 2.5"), 2.5),
        (FACTORY.format(""), None),
    ],
)
def test_epochs_over_a_data_set(tmp_path, text, epochs):
    job = read(tmp_path, text, "a.yaml", gpus=8, dataset_samples=52_000).job
    assert job.get("epochs") == epochs
    assert "tokens" not in job
    assert read(tmp_path, text, "a.yaml", gpus=8, dataset_samples=52_000, epochs=7).job["epochs"] == 7


def test_epochs_of_a_file_reach_the_run(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(AXOLOTL.format("num_epochs: 3"), encoding="utf-8")
    job = cm.read(str(path), gpus=8, cluster="dgx-a100-hdr", dataset_samples=1000).job
    assert cm.run(**job).tokens == 3 * 1000 * 2048


@pytest.mark.parametrize(
    ("more", "given", "said"),
    [
        ("", {}, True),
        # Neither what the caller says nor steps that end the run leave anything to tell.
        ("", {"tokens": 1e9}, False),
        ("", {"dataset_samples": 1000}, False),
        ("max_steps: 300", {}, False),
        ("max_steps: -1", {}, True),
    ],
)
def test_epochs_without_samples_are_told(tmp_path, more, given, said):
    found = read(tmp_path, AXOLOTL.format(f"num_epochs: 3\n{more}"), "a.yaml", gpus=8, **given)
    told = "num_epochs: 3; give --dataset-samples, and they set the tokens of the whole run"
    assert (told in found.notes) == said
    assert ("epochs" in found.job) == ("dataset_samples" in given)


@pytest.mark.parametrize("value", ["three", "0", "-1", "true", "[3]", ".nan"])
def test_wrong_epochs_are_refused(tmp_path, value):
    with pytest.raises(cm.CostModelError, match=r"num_epochs: expected a number from 0\.001 to 1e\+06, got "):
        read(tmp_path, AXOLOTL.format(f"num_epochs: {value}"), "a.yaml", gpus=8)
