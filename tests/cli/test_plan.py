"""``costmodel plan`` and ``costmodel sweep``: what is printed where, exit codes, wrong input."""

import json
import re
import shlex
import subprocess

import pytest
import yaml

import costmodel as cm
from costmodel.base.units import format_seconds
from costmodel.cli import main
from costmodel.interop import script_changes
from costmodel.interop.answer import job_of_file
from costmodel.interop.text_file import TextFile
from costmodel.planning import launch
from costmodel.planning.request import requested

SHAPE = (
    "--num-layers",
    "--hidden-size",
    "--num-attention-heads",
    "--ffn-hidden-size",
    "--vocab-size",
    "--group-query-attention",
    "--num-query-groups",
    "--swiglu",
    "--disable-bias-linear",
)
SMALL = ["plan", "-m", "llama3-8b", "-n", "8", "--global-batch", "32", "--seq-len", "4096", "--cp", "1"]


def test_json_has_the_fields_of_the_issue(capsys):
    assert main([*SMALL, "--format", "json", "--top", "2", "--fix", "pp=1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["num_layouts_considered"] > record["num_layouts_priced"] > record["num_layouts_fit"] > 0
    assert len(record["top"]) == 2
    assert {row["pp"] for row in record["top"]} == {1}
    assert record["top"][0]["step_time_s"] == record["pareto"][0]["step_time_s"]
    sizes = [row["memory_bytes_per_gpu"] for row in record["pareto"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "does_not_fit" in record["rejected"]
    assert "pp = 1" in record["relaxed_gain_by_constraint"]
    plan = cm.plan(model="llama3-8b", gpus=8, global_batch=32, seq_len=4096, cp=1, pp=1)
    assert plan.to_dict()["relaxed_gain_by_constraint"] == record["relaxed_gain_by_constraint"]


def test_job_file_and_several_gpu_counts(capsys, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("model: llama3-8b\ngpus: 8\nlayout: tp2 pp1\nglobal_batch: 32\nseq_len: 4096\n")
    assert main(["plan", str(job), "--gpus", "8,16", "--objective", "gpu-hours", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {row["tp"] for row in record["top"]} == {1, 2}
    assert {row["gpus"] for row in record["top"]} <= {8, 16}
    assert (record["yours"]["tp"], record["yours"]["gpus"]) == (2, 8)


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "torchtitan", "nemo"])
def test_emit_prints_only_the_configuration(capsys, framework):
    assert main([*SMALL, "--emit", framework]) == 0
    out, err = capsys.readouterr()
    assert "MFU" not in out
    assert "MFU" in err


def test_check_exits_with_3_when_nothing_fits(capsys):
    assert main([*SMALL, "--max-memory", "1GiB", "--check"]) == 3
    assert "would do" in capsys.readouterr().err


def test_what_a_file_leaves_open_is_said_where_nothing_is_left(capsys, tmp_path):
    """Megatron-LM's default is fp32, which its grouped products refuse; the command that estimate prints adds bf16."""
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
        "--max-position-embeddings 512 --global-batch-size 8 --vocab-size 32000 --num-experts 8 --moe-grouped-gemm\n"
    )
    assert main(["plan", str(script), "8xH100"]) == 2
    err = capsys.readouterr().err
    assert "--moe-grouped-gemm needs bf16" in err
    assert err.endswith(
        "no --bf16, --fp16 or --fp8: priced in fp32, Megatron-LM's default; give --precision bf16\n"
    )
    assert err.count("\n") == 1
    for flags, added in (([], " --precision bf16"), (["--precision", "bf16"], "")):
        assert main(["estimate", str(script), "8xH100", *flags]) == 0
        words = shlex.join(["costmodel", "plan", str(script), "8xH100", *flags])
        assert f"{words}{added}\n" in capsys.readouterr().out
    assert main(["plan", str(script), "8xH100", "--precision", "bf16", "-q"]) == 0


CHANGES = (
    # A flag is found in an array, behind a variable, and not in a comment or in a longer one.
    (
        "--tp 8",
        "--tp 4",
        "A=(\n  --tp ${TP:-8} # --tp 8\n)\n#--tp 8\nx --tp-size 8\n",
        "A=(\n  --tp 4 # --tp 8\n)\n#--tp 8\nx --tp-size 8\n",
    ),
    # One that goes takes its value and, where it stood alone, its line; the last of a command leaves an empty one.
    (
        "--num-layers 2|--go 'a b'|--end",
        "--num-layers 2",
        "x \\\n  --num-layers 2 \\\n  --go 'a b' \\\n  --end\n",
        "x \\\n  --num-layers 2 \\\n  \n",
    ),
    # One that comes stands behind an anchor, on a line of its own where lines go on.
    (
        "--num-layers 2",
        "--num-layers 2|--sp|--cp 2",
        "x \\\n  --num-layers 2 \\\n  --go",
        "x \\\n  --num-layers 2 \\\n  --sp \\\n  --cp 2 \\\n  --go",
    ),
    ("--num-layers 2", "--num-layers 2|--sp", 'A="--num-layers 2 --go"\n', 'A="--num-layers 2 --sp --go"\n'),
    # Where one of several that say the same changes, the others go.
    (
        "--num-layers 2|--recompute-granularity full|--recompute-method uniform",
        "--num-layers 2|--recompute-granularity selective",
        "x --num-layers 2 --recompute-activations --recompute-num-layers 1 --recompute-granularity full y",
        "x --num-layers 2 --recompute-granularity selective y",
    ),
    ("--tp 8", "--tp 4|--sp", "x --lr 3", None),
    # In an array flags go and come a line each; a switch takes no variable with it, a list all its words.
    (
        "--num-layers 2|--sequence-parallel|--recompute-modules mlp norm",
        "--num-layers 2|--bf16",
        "A=(\n  --num-layers 2\n  --sequence-parallel\n)\nx --sequence-parallel $B --recompute-modules mlp norm a.py",
        "A=(\n  --num-layers 2\n  --bf16\n)\nx $B a.py",
    ),
    # What Megatron-LM refuses, or a fork lists for each stage, goes with what it belongs to, and stays with it.
    (
        "--num-layers 2|--use-megatron-fsdp",
        "--num-layers 2",
        "x --use-megatron-fsdp --fsdp-double-buffer --megatron-fsdp-main-grads-dtype bf16 --num-layers-per-stage 1 1",
        "x --num-layers-per-stage 1 1",
    ),
    (
        "--num-layers 2|--sp",
        "--num-layers 2",
        "x --use-megatron-fsdp --fsdp-double-buffer --sp",
        "x --use-megatron-fsdp --fsdp-double-buffer ",
    ),
    (
        "--pipeline-model-parallel-size 4",
        "--pipeline-model-parallel-size 2|--cuda-graph-impl local",
        "x --num-layers 4 --num-layers-per-stage 1 1 1 1 --use-legacy-models --pipeline-model-parallel-size 4",
        "x --num-layers 4 --cuda-graph-impl local --pipeline-model-parallel-size 2",
    ),
    # A batch that grows does so no more where another is given; a run has samples or steps.
    (
        "--global-batch-size 64",
        "--global-batch-size 32|--train-iters 9",
        "x --rampup-batch-size 8 8 100 --train-samples 5 --global-batch-size 64 y",
        "x --train-samples 5 --global-batch-size 32 y",
    ),
)


def test_a_script_changes_in_the_flags_that_differ_and_nowhere_else():
    for before, after, script, expected in CHANGES:
        old, new = (dict([*flag.split(" ", 1), ""][:2] for flag in one.split("|")) for one in (before, after))
        assert script_changes._changed(script, old, new) == expected, script


def test_sweep_is_the_same_on_two_workers_and_resumed(capsys, tmp_path):
    file, kept = tmp_path / "grid.yaml", tmp_path / "kept.jsonl"
    file.write_text(
        "model: llama3-8b\ngpus: [8, 16]\nglobal_batch: 32\nseq_len: 4096\ncp: 1\nmicro_batch: 1\n"
    )
    assert main(["sweep", str(file), "--format", "csv"]) == 0
    alone = capsys.readouterr().out
    assert main(["sweep", str(file), "--format", "csv", "--workers", "2", "--resume", str(kept)]) == 0
    assert capsys.readouterr().out == alone
    assert main(["sweep", str(file), "--format", "csv", "--resume", str(kept)]) == 0
    assert capsys.readouterr().out == alone
    assert main(["sweep", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_next_command_keeps_the_dates(capsys):
    dates = ["--tokens", "1T", "--days", "40", "--start", "2026-12-01"]
    assert main(["plan", "llama3-8b", "8xH100", "--tp", "2", *dates]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert "--start 2026-12-01 --days 40 --details" in following


def test_why_not_is_answered_beside_flags(capsys):
    job = ["-m", "llama3-8b", "-n", "16", "--global-batch", "64", "--seq-len", "4096"]
    assert main(["plan", *job, "--fix", "zero=1", "--emit", "megatron", "--why-not", "tp8 pp2"]) == 0
    shown = capsys.readouterr()
    assert "--tensor-model-parallel-size" in shown.out
    assert "Why not tp8 pp2" in shown.err


def test_the_layouts_to_try_are_saved_with_what_changes(tmp_path, capsys):
    """Each folder's flags are read back as its layout, and nothing is written over."""
    script = tmp_path / "train.sh"
    today = "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 32 --seq-length 4096"
    assert main([*SMALL, "-r", "megatron-core", "--emit", "megatron"]) == 0
    model = [line for line in capsys.readouterr().out.split(" \\\n    ") if not line.startswith("--micro")]
    shape = " ".join(one for one in model if one.split()[0] in SHAPE)
    start = "#!/bin/bash\nNODES=1\nEACH=16\ntorchrun --nnodes ${NODES} --nproc-per-node $EACH"
    script.write_text(f"{start} pretrain_gpt.py {shape} {today} --bf16\n")
    saved = tmp_path / "saved"
    given = ["16xH100", "--global-batch", "64"]
    assert main(["plan", str(script), *given, "--save", str(saved)]) == 0
    err = capsys.readouterr().err
    assert "No `job.yaml`: " in err
    assert "Not in `changes.diff`" not in err
    plan = cm.plan(str(script), "16xH100", global_batch=64)
    folders = sorted(saved.iterdir(), key=lambda folder: int(folder.name.partition("-")[0]))
    assert [int(folder.name.partition("-")[0]) for folder in folders] == [
        plan.ranks[one.row] for _, one in plan.trials()
    ]
    assert folders[-1].name.partition("-")[0] != str(len(folders))  # ranks, not a count
    assert len(folders) == len(plan.trials()) >= 2
    for folder, (est, _) in zip(folders, plan.trials(), strict=True):
        assert {one.name for one in folder.iterdir()} == {
            "launch.sh",
            "changes.diff",
            "README.md",
        }
        assert (folder / "launch.sh").read_text().startswith("#!/bin/bash\n")
        layout = cm.estimate(folder / "launch.sh", "16xH100").job.layout
        assert (layout.tp, layout.pp, layout.micro_batch) == (
            est.job.layout.tp,
            est.job.layout.pp,
            est.job.layout.micro_batch,
        )
        readme, patched = (folder / "README.md").read_text(), tmp_path / f"{folder.name}.sh"
        before = script.read_text()
        # As the README has it, of a script that was given by its absolute path.
        subprocess.run(re.search("`(patch .*)` here", readme)[1], shell=True, cwd=folder, check=True)
        script.rename(patched)
        script.write_text(before)
        assert "\nNODES=2\nEACH=8\n" in patched.read_text()
        assert cm.estimate(patched, "16xH100").job.global_batch == 64
        assert cm.estimate(patched, cluster="h100").job.layout.gpus == 16
        assert all(len(line) < 120 for line in patched.read_text().splitlines() if line.startswith("    --"))
        # Megatron pads the vocabulary of a script to a multiple of its own degree.
        assert cm.estimate(patched, "16xH100").step_time_s == pytest.approx(est.step_time_s, rel=1e-3)
        assert "describes is no preset" in readme
        assert "* data: --data-path" in readme
        assert "* 2 nodes of up to 8 GPUs" in readme
        assert "No `job.yaml`: " in readme
        ends = (format_seconds(est.step_time_s * end, 3) for end in (est.error_band.low, est.error_band.high))
        assert "({} to {})".format(*ends) in readme
    unsaid = launch._unsaid(est, plan.question.file, before)
    assert "--global-batch 64" in unsaid
    assert "the patched script alone is priced at" in unsaid
    refused = launch._unsaid(est, plan.question.file, before.replace("--bf16", "--bf16 --zero-stage 9"))
    assert refused.startswith("all of it; the patched script is refused: ")
    idle = launch._unsaid(est, plan.question.file, before.replace(" 8 --micro", " 3 --micro"))
    assert "refused: " in idle
    assert "--global-batch 64" in idle
    alone = tmp_path / "alone.sh"  # its batch divides among its own 8 GPUs, not among 16
    alone.write_text(before.replace("EACH=16", "EACH=8").replace("batch-size 32", "batch-size 1"))
    theirs = cm.plan(str(alone), "16xH100", global_batch=64)
    assert "--global-batch-size 1 " in launch._own(theirs.question.file, theirs.yours.est)
    toml = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\n"
    (tmp_path / "titan.toml").write_text(toml + "tensor_parallel_degree = 8\n")
    written = cm.plan(tmp_path / "titan.toml", "16xH100").launch_folders()
    diffs = [text for path, text in written.items() if path.endswith("changes.diff")]
    assert diffs
    assert all(text.startswith("--- titan.toml, written as costmodel_job.py\n") for text in diffs)
    assert "against the layout that titan.toml has, both as `costmodel_job.py`" in "".join(written.values())
    named = cm.plan("llama3-8b", "8xH100")
    assert "changes.diff" not in "".join(named.launch_folders())
    for (path, text), (est, _) in zip(
        [one for one in named.launch_folders().items() if one[0].endswith("job.yaml")],
        named.trials(),
        strict=True,
    ):
        again = cm.estimate(**yaml.safe_load(text))
        assert again.step_time_s == pytest.approx(est.step_time_s, rel=1e-12), path
    capsys.readouterr()
    assert main([*SMALL, "-r", "megatron-deepspeed", "--save", str(tmp_path / "readme")]) == 0
    nobody = "No framework's configuration, and no `changes.diff`: none is written for the recipe"
    assert f"{nobody} megatron-deepspeed.\n" in capsys.readouterr().err
    assert main(["plan", str(script), "8xH100", "--save", str(saved)]) == 2
    assert capsys.readouterr().err.strip().endswith("has files; --force writes among them")
    assert main(["plan", str(script), "8xH100", "--save", str(script)]) == 2
    assert "is a file, expected a folder" in capsys.readouterr().err


SFT = """model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
do_train: true
finetuning_type: full
deepspeed: zero.json
cutoff_len: 4096
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
"""
ZERO = '{"train_batch_size": "auto", "zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'


def test_the_file_of_a_trainer_is_planned_for_that_trainer():
    """Not for the framework of the recipe that it is priced with, which nobody named and which trains no adapters."""
    lora = SFT.replace("full", "lora")
    axolotl = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 2\nadapter: lora\n"
    plain = lora.replace("deepspeed: zero.json\n", "")
    zero = "deepspeed: zero2\n"
    given = {"cluster": "dgx-a100-hdr", "gpus": 8}
    for text, more, framework in (
        (axolotl, {}, "axolotl"),
        (axolotl + zero, {}, "axolotl"),
        (plain, {}, "accelerate"),
        (plain + zero, {}, "accelerate"),
        (plain.replace("lora", "full"), {}, "accelerate"),
        (plain.replace("lora", "full") + zero, {}, "deepspeed"),
        (axolotl, {"recipe": "megatron-bridge"}, "nemo"),
        (axolotl, {"framework": "nemo"}, "nemo"),
    ):
        file, above = job_of_file(TextFile(text, "sft.yaml"), given | more, layout=False)
        launches = requested(file, above).question.jobs[0].recipe.launches
        assert launches.framework == framework, (text, more)
    # FSDP2 overlaps, whatever a DeepSpeed configuration says of DeepSpeed.
    for framework, overlap in (("", "every-layer"), ("deepspeed", "none")):
        text = (plain if not framework else plain.replace("lora", "full")) + "deepspeed: ds_z2_config.json\n"
        file, above = job_of_file(
            TextFile(text, "sft.yaml"), given | ({"framework": framework} if framework else {}), layout=False
        )
        planned = requested(file, above)
        assert planned.question.jobs[0].switches["dp_overlap"] == overlap
        assert planned.own.switches["dp_overlap"] == "none"


def test_a_command_on_top_of_a_file_with_a_batch_for_each_gpu_has_the_plans_batch(
    tmp_path, capsys, monkeypatch
):
    """A micro-batch or a degree as a flag gives such a file another batch: the command names the planned one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.json").write_text(ZERO)
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "job.yaml").write_text("model: llama3-8b\nglobal_batch: 64\nseq_len: 4096\n")
    for file, *more in (
        ("sft.yaml",),
        ("sft.yaml", "--global-batch", "32"),
        ("sft.yaml", "--tp", "2"),
        ("job.yaml",),
    ):
        assert main(["plan", file, "8xH100", *more, "--format", "json"]) == 0
        best = json.loads(capsys.readouterr().out)["top"][0]
        assert main(["plan", file, "8xH100", *more]) == 0
        out = capsys.readouterr().out
        line = next(each for each in out.splitlines() if each.startswith("  costmodel estimate"))
        assert ("--global-batch" in line) is (file == "sft.yaml"), line
        assert main([*shlex.split(line)[1:], "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["step_time_s"] == best["step_time_s"], line
