"""The README does what it says: its code runs, its commands answer, its tables are the program's."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from costmodel.cli import main
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.estimates.frame import LONG_COLUMNS, WIDE_COLUMNS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


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
    assert table in README


def test_fields_of_a_job_are_those_of_the_table():
    table = README.partition("<!-- fields:begin -->")[2].partition("<!-- fields:end -->")[0]
    rows = {line.split("|")[1].strip(" `"): line for line in table.splitlines() if line.startswith("| `")}
    assert list(rows) == [field.name for field in JOB_FIELDS]
    for field in JOB_FIELDS:
        assert all(f"`{flag}`" in rows[field.name] for flag in field.flags)
        assert field.meaning in rows[field.name]
        assert (
            "**required**" in rows[field.name] if field.required else field.default_said in rows[field.name]
        )
        if field.kind == "whole":
            assert f"{field.least:,.0f} to {field.most:,.0f}" in rows[field.name]


def test_shown_output_has_the_lines_the_program_prints(capsys):
    setup = README.partition("<!-- setup:begin -->")[2].partition("<!-- setup:end -->")[0]
    command = setup.partition("bin/costmodel ")[2].partition("\n\n")[0]
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    printed = capsys.readouterr().out
    shown = re.search(r"output:begin head -10 -->\n```\n(.*?)```", README, flags=re.DOTALL)[1]

    def labels(text):
        return [line[:18].strip() for line in text.splitlines() if re.match(r"\S.{17,18}  ?\S", line)]

    head = [line for line in shown.splitlines() if not line.startswith(("$", "   "))]
    assert len(head) == 10
    assert labels("\n".join(head[1:])) == labels("\n".join(printed.splitlines()[1:10]))


def test_markers_of_generated_tables_are_there_once():
    for marker in ("runs", "whole_runs", "validation", "all", "plans", "fields", "long", "wide"):
        for side in ("begin", "end"):
            assert README.count(f"<!-- {marker}:{side} -->") == 1


def test_linked_files_exist():
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target
