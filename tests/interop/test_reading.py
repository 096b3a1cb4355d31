"""The command and the registry: kinds told from their content, forms of the answer, wrong files in one line."""

import json

import pytest

from costmodel.cli import main
from costmodel.interop.reading import READERS, kind_of
from costmodel.interop.text_file import TextFile

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "sparse_thing": 3,
}
FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --global-batch-size 8 --vocab-size 128 --tensor-model-parallel-size 2"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.sh").write_text(
        f"torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py {FLAGS} --odd 1\n"
    )
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (tmp_path / "job.yaml").write_text(
        "model: llama3-8b\ngpus: 8\nlayout: tp2\nglobal_batch: 16\nseq_len: 8192\n"
    )
    return tmp_path


def test_json_has_every_part(folder, capsys):
    assert main(["read", str(folder / "train.sh"), "--format", "json"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)

    parts = "schema_version kind framework job model sweeps notes warnings ignored missing"
    assert " ".join(answer) == parts
    assert (answer["job"]["tp"], answer["job"]["gpus"], answer["model"]["num_layers"]) == (2, 8, 2)
    # Table 128→256 rows of 64 (padded to 128·tp) tied, 32 positions, 2 layers, a norm: GPT with biases.
    layer = 4 * 64 * 64 + 4 * 64 + 2 * 4 * 64 * 64 + 5 * 64 + 2 * 128
    assert answer["model"]["num_params"] == (256 + 32) * 64 + 2 * layer + 128
    assert answer["ignored"] == ["--odd"]
    assert said.err.splitlines() == [
        "Warning: no --bf16, --fp16 or --fp8: priced in fp32, Megatron-LM's default; give --precision bf16",
        "Warning: not known here, and not read: --odd",
    ]


def test_flags_of_the_same_names_complete_a_file(folder, capsys):
    given = "--gpus 16 --micro-batch 2 --global-batch 64 --precision bf16 --model llama3-8b --seq-len 4096"
    assert main(["read", str(folder / "ds.json"), *given.split(), "--format", "json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]

    wanted = {"model": "llama3-8b", "gpus": 16, "micro_batch": 2, "global_batch": 64, "zero_stage": 2}
    assert {key: job[key] for key in wanted} == wanted


WRONG = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n ", "is empty"),
    "binary": (bytes(range(256)) * 20, "is not a text"),
    "truncated": (b'{"model_type": "llama", "hidden_size": 64,', "not JSON"),
    "another program": (
        b'{"name": "left-pad", "version": "1.0.0", "dependencies": {}}',
        "no file of a known kind",
    ),
    "prose": (b"This is a letter.\nIt trains nothing.\n", "no file of a known kind"),
    "script without training": (b"#!/bin/bash\nls -l\necho done\n", "starts no training"),
    "unset variable": (
        f"pretrain {FLAGS} --hidden-size $WIDTH\n".encode(),
        "$WIDTH is not set; give --env WIDTH",
    ),
    "unset in eval": (
        f'CMD="pretrain {FLAGS} --hidden-size $WIDTH"\neval $CMD\n'.encode(),
        "$WIDTH is not set; give --env WIDTH",
    ),
    "contradiction": (
        f"pretrain {FLAGS} --group-query-attention --num-query-groups 3\n".encode(),
        "does not divide",
    ),
    "registry": (
        b"from torchtitan.trainer import Trainer\n\n\ndef llama3_8b():\n    return Trainer.Config(seq_len=8192)\n",
        "expected one of its configurations, such as --env config=NAME",
    ),
    "circle": (b"#!/bin/bash\nsource circle.sh\n" + FLAGS.encode(), "in a circle"),
    "deep": (b"#!/bin/bash\n" + b"( " * 5000, "nested too deeply"),
    "deep json": (b'{"a":' * 50000, "not JSON"),
    "control characters": (b'{"model_type": "lla\\u001b[31mma\\u202e"}', "is not supported"),
    "utf-16 of nothing": ("hello".encode("utf-16"), "no file of a known kind"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_one_line_and_code_2(name, tmp_path, capsys):
    content, words = WRONG[name]
    file = tmp_path / ("circle.sh" if name == "circle" else "file.sh" if name == "deep" else "file")
    file.write_bytes(content)

    assert main(["read", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not any((ord(char) < 32 and char != "\n") or char in "\x1b\u202e" for char in said.err)


def test_what_cannot_be_priced_is_refused_where_a_price_is_asked(folder, capsys):
    (folder / "mixed.sh").write_text(f"train {FLAGS} --mamba-num-heads 4\n")

    assert main(["read", str(folder / "mixed.sh"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["priced"] is False
    assert main(["estimate", str(folder / "mixed.sh"), "--gpus", "8"]) == 2
    assert "the model cannot be priced: --mamba-num-heads" in capsys.readouterr().err


def test_long_texts_are_looked_at_once():
    # Were the time to grow with the square of the lines, this would take a quarter of an hour.
    for text in (
        "\n" * 200_000 + "a: 1",
        "_perf " * 30_000,
        "#\n" * 100_000,
        "k=\n" * 50_000 + "\t" * 100_000,
    ):
        assert kind_of(TextFile(text, "file")) in (*READERS, "job")
