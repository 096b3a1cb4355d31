"""What fuzzing found after the first net: each input is one line and no traceback."""

import json
import os
import time

import pytest

from costmodel.cli import main
from costmodel.interop.keys import Flags
from costmodel.interop.megatron_job import read_flags

TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 0
"""
QWEN = """{"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 8,
 "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 16, "num_experts_per_tok": 4,
 "decoder_sparse_step": 0, "vocab_size": 32000}"""
SCRIPT = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 --vocab-size " + "9" * 400
)


DEEP = "[" * 3000
HEAD = "#       size         count      type   redop    root     xxxx   algbw   busbw #wrong\n"
ROW = "     1048576        262144     float     sum      -1    30.00   34.95   61.17      0\n"


@pytest.mark.parametrize(
    ("name", "text", "command", "said"),
    [
        ("f.toml", TITAN, ["read", "--gpus", "8"], "pipeline_parallel_degree: expected a whole number above 0, got 0"),
        ("config.json", QWEN, ["read"], "decoder_sparse_step: expected a whole number >= 1, got 0"),
        ("train.sh", SCRIPT, ["read", "--gpus", "8"], "vocab"),
        ("f.toml", "[training]\nseq_len = " + "9" * 5000 + "\n[parallelism]\n", ["read"], "not TOML: Exceeds the limit"),
        ("f.csv", "x" * 200_000 + "\n", ["observed", "calibrate", "runs"], "field larger than field limit"),
        ("f.csv", "x" * 200_000 + "\n", ["observed", "calibrate", "kernels", "-a", "h100"], "field larger than field limit"),
        ("f.csv", "x" * 200_000 + "\n", ["validate"], "field larger than field limit"),
        ("config.json", DEEP, ["model", "show"], "not JSON: it is nested too deeply"),
        ("f.log", "# nThread 1 nGpus 8\n" + HEAD + ROW, ["read"], "has no columns time, algbw and busbw"),
        ("f.toml", TITAN.replace("tensor_parallel_degree = 2\npipeline_parallel_degree = 0", "X = 0").replace(
            "X", "data_parallel_shard_degree"), ["read"], "data_parallel_shard_degree: expected at least 1, or -1"),
        ("t.sh", SCRIPT.replace("9" * 400, "32000 --num-layers-per-virtual-pipeline-stage 0"), ["read"],
         "--num-layers-per-virtual-pipeline-stage: expected at least 1, got 0"),
        ("config.json", QWEN.replace('"decoder_sparse_step": 0', '"mlp_only_layers": [null]'), ["model", "show"],
         "mlp_only_layers: expected names or numbers, got None among them"),
    ],
)  # fmt: skip
def test_what_was_a_traceback_or_read_as_something_else(name, text, command, said, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    assert main([*command, str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_shard_degree_that_makes_other_gpus_than_were_given_is_said(tmp_path, capsys):
    path = tmp_path / "f.toml"
    path.write_text(TITAN.replace("pipeline_parallel_degree = 0", "data_parallel_shard_degree = 4"))
    assert main(["read", str(path), "--gpus", "64"]) == 0
    assert "gpus = 64: the degrees of the file make 8 GPUs" in capsys.readouterr().err
    assert main(["read", str(path), "--gpus", "8"]) == 0
    assert "the degrees of the file" not in capsys.readouterr().err


def test_what_a_shell_hands_over_is_read(tmp_path, capsys):
    """A job file that another program writes: ``costmodel estimate <(…)``."""
    ours, theirs = os.pipe()
    os.write(theirs, b"model: dense-1b\ngpus: 8\nglobal_batch: 8\nseq_len: 2k\n")
    os.close(theirs)
    assert main(["mesh", f"/dev/fd/{ours}"]) in (0, 2)
    os.close(ours)
    assert "pipe or a device" not in capsys.readouterr().err


def test_experts_stand_in_the_layers_that_a_pattern_says():
    """Every pattern of up to seven layers, however it is kept: a start and a period, or letter by letter."""
    shape = "--hidden-size 64 --num-attention-heads 4 --vocab-size 512 --seq-length 8 --num-experts 4"
    for layers in range(1, 8):
        for number in range(2**layers):
            pattern = [number >> place & 1 for place in range(layers)]
            text = f"{shape} --num-layers {layers} --moe-layer-freq {str(pattern).replace(' ', '')}"
            model = read_flags(Flags(text), {}).job["model"]
            assert [int(model.layer_kinds()[kind].is_moe) for kind in model.kind_of_layer] == pattern


def test_a_degree_that_a_config_leaves_null_is_the_default(tmp_path, capsys):
    config = '{"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 2048}, "parallelism": %s}'
    path = tmp_path / "f.json"
    path.write_text(config % '{"tensor_parallel_degree": null, "context_parallel_degree": 2}')
    assert main(["read", str(path), "--gpus", "8", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    read = json.loads(out)
    assert "tensor_parallel_degree" not in err
    assert tuple(read["job"].get(key, 1) for key in ("tp", "cp")) == (1, 2)


def test_files_of_a_hundred_thousand_keys_are_read_in_seconds_and_warned_of_in_a_line_that_can_be_read(
    tmp_path, capsys
):
    before = time.process_time()
    keys = {f"k{place}": place for place in range(100_000)}
    config = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 1, **keys}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert main(["read", str(tmp_path / "ds.json"), "--gpus", "8"]) == 0
    err = capsys.readouterr().err
    assert " more" in err
    assert max(map(len, err.splitlines())) < 3000
    assert time.process_time() - before < 20


def test_a_pipe_an_empty_file_in_a_folder_and_an_unknown_format_are_called_what_they_are(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "config.json").touch()
    for line, said in (
        (["read", str(tmp_path / "pipe")], "pipe: is a pipe or a device, expected a file"),
        (["read", str(tmp_path)], "config.json: is empty"),
        (["estimate", "--format", "xml"], "'--format': 'xml' is not one of 'table', 'json', 'csv'"),
        (["mesh", "-n", "8", "--layout", "xx2"], "layout: cannot read 'xx2'"),
    ):
        assert main(line) == 2
        assert said in capsys.readouterr().err
