"""What fuzzing found after the first net: each input is one line and no traceback."""

import warnings

import pytest

import costmodel as cm
from costmodel.base.yaml_files import parse_mapping
from costmodel.cli import main

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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.toml", TITAN, "the pp degree: expected at least 1, got 0"),
        ("config.json", QWEN, "decoder_sparse_step: expected a whole number >= 1, got 0"),
        ("train.sh", SCRIPT, "vocab"),
    ],
)
def test_one_line_and_exit_code_2(name, text, said, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    assert main(["read", str(path), "--gpus", "8"]) in (0, 2)
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_an_anchor_that_is_named_twice_says_nothing():
    with warnings.catch_warnings(action="error"):
        assert parse_mapping("a: &x 1\nb: &x 2\nc: *x\n", "f", example="") == {"a": 1, "b": 2, "c": 2}


def test_compared_jobs_that_say_how_far_they_train_show_days_and_dollars():
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 2048, "tokens": 1e12}
    one, two = cm.estimate(**job, layout="tp2"), cm.estimate(**job, layout="tp4")
    rows = {row[0]: row[1:] for row in cm.compare(one, two).grids()[0].rows}
    assert rows["days"] == [f"{float(est.days(1e12)):,.1f}" for est in (one, two)]
    price = one.job.cluster.price_usd_per_gpu_hour
    assert rows["dollars"][1].startswith(f"${float(two.gpu_hours(1e12)) * price:,.0f} (${price:.2f}/h, 20")
    without = [cm.estimate(**{**job, "tokens": None}, tp=tp) for tp in (2, 4)]
    assert "days" not in {row[0] for row in cm.compare(*without).grids()[0].rows}
