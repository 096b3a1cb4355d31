"""The README and docs/ do what they say: code runs, commands answer, tables are the program's."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from costmodel.cli import main
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.estimates.frame import LONG_COLUMNS, WIDE_COLUMNS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
from trace_files import nsight, step_events, write_trace  # noqa: E402

README = (ROOT / "README.md").read_text()
PAGES = {page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
ALL = "\n".join(PAGES.values())
SCRIPT = """#!/bin/bash
GPT_ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu
 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
 --normalization RMSNorm --position-embedding-type rope --vocab-size 128256
 --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 --bf16
 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py $GPT_ARGS
"""

LOG = "".join(
    f" [2026-01-29 10:{n // 3:02d}:{n % 3 * 20:02d}] iteration {n:8d}/    5000 | consumed samples: {1024 * n:12d} | elapsed"
    f" time per iteration (ms): {90000 if n == 1 else 16700 + 10 * (n % 5)}.0 | global batch size:  1024 |\n"
    for n in range(1, 61)
)
"""What Megatron-LM prints of the job in the README."""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_python_example_runs():
    (code,) = blocks("python")
    names = {}
    exec(code, names)
    assert float(names["est"].step_time_s) > 0
    assert np.shape(names["many"].step_time_s) == (4,)


def test_job_file_and_its_command_run(tmp_path, monkeypatch, capsys):
    (job,) = blocks("yaml")
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(job)
    command = next(block for block in blocks("sh") if block.startswith("costmodel estimate job.yaml"))
    assert main(shlex.split(command)[1:]) == 0
    assert '"switches"' in capsys.readouterr().out


@pytest.mark.parametrize("columns", [LONG_COLUMNS, WIDE_COLUMNS], ids=["long", "wide"])
def test_column_tables_are_those_of_the_program(columns):
    table = "\n".join(f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in columns)
    assert table in ALL


def test_fields_of_a_job_are_those_of_the_table():
    table = ALL.partition("<!-- fields:begin -->")[2].partition("<!-- fields:end -->")[0]
    rows = {line.split("|")[1].strip(" `"): line for line in table.splitlines() if line.startswith("| `")}
    assert list(rows) == [field.name for field in JOB_FIELDS]
    for field in JOB_FIELDS:
        assert all(f"`{flag}`" in rows[field.name] for flag in field.flags)
        assert field.meaning in rows[field.name]
        assert (
            "**required**" in rows[field.name] if field.required else field.shown_default in rows[field.name]
        )
        if field.kind == "whole":
            assert f"{field.least:,.0f} to {field.most:,.0f}" in rows[field.name]


def test_shown_output_has_the_lines_the_program_prints(capsys):
    setup = README.partition("<!-- setup:begin -->")[2].partition("<!-- setup:end -->")[0]
    command = setup.partition("bin/costmodel ")[2].partition("\n\n")[0]
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    printed = capsys.readouterr().out
    shown = re.search(r"output:begin -->\n```\n(.*?)```", README, flags=re.DOTALL)[1]

    def labels(text):
        return [line.split()[0] for line in text.splitlines() if re.match(r"[a-z]\S* ", line)]

    answer = [line for line in shown.splitlines() if not line.startswith(("$", "   "))]
    assert len(labels(printed)) > 8
    assert labels("\n".join(answer)) == labels(printed)


def test_markers_of_generated_tables_are_there_once():
    for marker in ("runs", "whole_runs", "validation", "all", "plans", "fields", "long", "wide", "commands"):
        for side in ("begin", "end"):
            assert ALL.count(f"<!-- {marker}:{side} -->") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_linked_files_exist(page):
    for target in re.findall(r"\]\(([\w./-]+)\)", PAGES[page]):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len(README.encode()) <= 16_500


def commands():
    """Return the command lines of all pages, once each, but those of the set-up."""
    found = {}
    for page, text in PAGES.items():
        for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("costmodel "):
                    found.setdefault(line, page)
    return sorted(found)


def files():
    """Return the files that pages have the reader write, by name."""
    return dict(re.findall(r"^<!-- file: (\S+) -->\n```yaml\n(.*?)^```", ALL, flags=re.DOTALL | re.MULTILINE))


def test_hardware_of_ones_own_takes_ten_and_fifteen_lines():
    lines = {name: len(text.splitlines()) for name, text in files().items()}
    assert lines == {"b400.yaml": 10, "b400-torus.yaml": 15}


def config_json():
    """Return what HuggingFace would publish of a model of Llama 3's shape."""
    shape = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    return {
        "model_type": "llama",
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        **shape,
    }


@pytest.mark.parametrize("line", commands())
def test_every_command_runs_as_printed(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (job,) = blocks("yaml")
    Path("job.yaml").write_text(job)
    Path("config.json").write_text(json.dumps(config_json()))
    Path("train.sh").write_text(SCRIPT)
    Path("train.log").write_text(LOG)
    Path("mine.csv").write_text("name,layout,step_time\nmonday,tp4 pp4 vp5,20.1s\ntuesday,tp8 pp4 vp5,23s\n")
    for name, text in files().items():
        Path(name).write_text(text)
    write_trace(Path("trace.json.gz"), step_events(200, 1), zipped=True)
    nsight(Path("report.sqlite"), [("kernel", 0, 10, 7, 1)])
    if "--out job.yaml" in line:
        Path("job.yaml").unlink()
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
