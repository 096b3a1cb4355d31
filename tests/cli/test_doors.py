"""One request is one result: at every door, by every kind of file with every flag, and by the commands that are printed."""

import json
import re
import shlex
from itertools import product
from pathlib import Path

import pytest
from doors import TOOL, answers, called, different, page, plans, steps

import costmodel as cm
from costmodel.cli import main
from costmodel.cli.command import merged_job
from costmodel.describe.jobs.fields import GENERATE_FIELDS, JOB_FIELDS, LENGTH_FIELDS, PLAN_FIELDS, RUN_FIELDS

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
FILES = {
    "job.yaml": "model: llama3-8b\ngpus: 8\ntp: 2\nglobal_batch: 64\nseq_len: 4096\n",
    "train.sh": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 "
    "--rampup-batch-size 16 16 1000 "
    "--vocab-size 32000 --tensor-model-parallel-size ${TP:-2}\n",
    "config.json": json.dumps(MODEL),
    "titan.toml": '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    "[parallelism]\ntensor_parallel_degree = 2\n",
}
"""A file of each kind; the batch of some follows from the GPUs, some say none."""
SHARED = Path(__file__).parents[3] / "shared" / "interop" / "files"
REAL = (
    "megatron/THUDM--scripts__models__glm4.5-355B-A32B.sh",
    "megatron/Ascend--mcore__seed_oss__pretrain_seed_oss_36b_ptd_2k_A3.sh",
    "torchtitan/2024-12-train_configs__llama3_70b.toml",
    "hf/Mistral-7B-Instruct-v0.2.json",
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write the files into a folder, and work there."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return [*FILES]


def test_one_job_is_one_answer_at_every_door(files):
    with page() as ask:
        for file in files:
            found = answers(steps(file, "16xH100", ask))
            assert isinstance(found["estimate"], tuple), found["estimate"]
            assert different(found) == [], found
        for file in ("train.sh", "titan.toml"):
            found = answers(plans(file, "16xH100", ask))
            assert different(found) == [], found


@pytest.mark.skipif(not SHARED.exists(), reason="other people's files are not here")
def test_a_real_file_is_one_answer_at_every_door():
    with page() as ask:
        for file in REAL:
            found = answers(steps(SHARED / file, "256xH100", ask))
            assert different(found) == [], found


def test_what_a_file_leaves_open_follows_from_the_machine(files):
    """A sequence on each of 8 pairs of GPUs; what a search is bound to says nothing of the file."""
    assert cm.estimate("titan.toml", "16xH100").job.global_batch == 8
    found = cm.plan("titan.toml", "16xH100", tp=4, choose=False)
    assert found.question.jobs[0].global_batch == 8


def test_what_was_assumed_is_said_at_every_door(files, capsys):
    est = cm.estimate("config.json", "16xH100", precision="bf16")
    assert est.assumed == {"recipe", "global_batch", "seq_len", "layout"}
    assert est.assumptions == ["Assumed: recipe=megatron-core, global_batch=1024, seq_len=4096."]
    named = cm.estimate("config.json", "16xH100", global_batch=1024, seq_len=4096)
    assert named.step_time_s == est.step_time_s
    assert cm.plan("config.json", "16xH100", tp=1, pp=1, choose=False).assumptions[0].endswith("4096.")
    assert cm.run("config.json", "16xH100", tokens=1e9).est.assumptions[0].endswith("seq_len=4096.")
    text = {"file": FILES["config.json"], "gpus": 16, "cluster": "H100", "precision": "bf16"}
    assert est.assumptions[0] in TOOL["estimate"](text).text
    assert main(["estimate", "config.json", "16xH100", "--precision", "bf16", "--details"]) == 0
    flags = "Assumed: --recipe megatron-core, --global-batch 1024, --seq-len 4096."
    assert flags in " ".join(capsys.readouterr().out.split())


WRONG = """
gpus=x; gpus=7; model=lama3; cluster=H1000; tp=3; tp=nan; global_batch=63; precision=fp7;
recipe=fsdp; schedule=1f1bb; ep=2; switches=fused_norm; hw=tpd=500W; axis_order=tp pp; tokens=-5;
gpus=0; gpus=1e30; seq_len=-1; seq_len=8kk; micro_batch=0; pp=64; vp=3; cp=0; dp=3; zero=4;
recompute=all; optimizer=sgdx; layout=tp2 zz4; layout=tp4; pipeline_layout=Etx; lora_rank=-2;
slice=8x; switches=dp_overlap=sometimes; hw=tdp=500; axis_order=tp cp dp xx; shard_group=3
"""
"""Fields with a value that is refused."""


def test_what_is_wrong_is_one_sentence_at_every_door():
    job = {"model": "llama3-8b", "cluster": "h100", "gpus": "8", "tp": "2"}
    job |= {"global_batch": "64", "seq_len": "8192"}
    with page() as ask:
        for name, value in (one.strip().split("=", 1) for one in WRONG.split(";")):
            asked = {**job, name: value}
            flags = [word for key in asked for word in (f"--{key.replace('_', '-')}", asked[key])]
            doors = (
                (called, ["estimate", *flags], {}),
                (ask, ["answer"], asked),
                (TOOL["estimate"], [asked], {}),
            )
            for door, words, keywords in doors:
                with pytest.raises(cm.CostModelError) as said:
                    door(*words, **keywords)
                with pytest.raises(cm.CostModelError) as usual:
                    cm.estimate(**asked)
                # The command line names the flag that was typed.
                sentence = str(said.value).removeprefix("Error: ").replace("--zero:", "zero_stage:")
                assert sentence == str(usual.value), (name, value)


def test_no_flag_of_a_command_is_refused_by_the_reader_of_a_file(files):
    """Of its words the first, else a number, which some flags refuse."""
    for fields in (PLAN_FIELDS, (*JOB_FIELDS, *LENGTH_FIELDS, *RUN_FIELDS), GENERATE_FIELDS):
        for field, file in product(fields, files):
            given = {"job": file, "gpus": "16", "cluster": "h100", "note": list, field.name: "2"}
            given |= {field.name: field.words[0]} if field.words else {}
            try:
                found = merged_job(given, several=fields is PLAN_FIELDS)
            except cm.CostModelError as error:
                assert "is not a field" not in str(error), error  # noqa: PT017
            else:
                assert found.get(field.name) is not None or field.name == "layout", (field.name, file)


COMMANDS = (
    "estimate",
    "plan",
    "run --tokens 1e10",
    "compare --vary recompute=none,full",
    "explain",
    "sensitivity",
)


def printed(text):
    """Return the commands of a shown answer as a shell reads them: a line that ends in a backslash goes on."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\\\n", "")
    return re.findall(r"^\s*(costmodel \S.*)$", text, flags=re.MULTILINE)


def test_every_printed_command_runs_as_printed(files, capsys, monkeypatch):
    """In a terminal of 80 columns, from the folder in which it was printed."""
    monkeypatch.setattr("costmodel.cli.output._terminal_width", lambda: 80)
    ran = 0
    for file in ("job.yaml", "titan.toml"):
        found = set()
        for line in COMMANDS:
            assert main([*line.split(), file, "16xH100"]) == 0, (line, capsys.readouterr().err)
            shown = printed(capsys.readouterr().out)
            assert shown, line
            found |= {*shown}
        for one in sorted(found):
            assert main([*shlex.split(one)[1:], "-q"]) == 0, (one, capsys.readouterr().err)
        capsys.readouterr()
        ran += len(found)
    assert ran > 15


@pytest.mark.skipif(not SHARED.exists(), reason="other people's files are not here")
def test_commands_printed_for_a_real_file_run(capsys, monkeypatch):
    """One of them is a part of a script that Megatron-LM would refuse without the flags of the rest."""
    monkeypatch.setattr("costmodel.cli.output._terminal_width", lambda: 80)
    for file in REAL:
        assert main(["estimate", str(SHARED / file), "256xH100"]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80 + 2 * len(str(SHARED / file))
        shown = printed(text)
        assert len(shown) > 1
        for one in shown:
            assert main([*shlex.split(one)[1:], "-q"]) == 0, (one, capsys.readouterr().err)
        capsys.readouterr()  # what those printed is not the next file's
