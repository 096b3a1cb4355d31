"""Whole answers of the readers of foreign files: `whole_answers.yaml` states every field of what small files mean."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from costmodel.interop.reading import read as read_file

CASES = YAML(typ="safe", pure=True).load(Path(__file__).with_name("whole_answers.yaml").read_text())


def told(found):
    """What a reader answers, models by name, without the parts that are empty."""
    job = {key: getattr(value, "name", value) for key, value in found.job.items()}
    lists = {part: list(getattr(found, part)) for part in ("missing", "ignored", "notes", "warnings")}
    answer = {"kind": found.kind, "job": job, **lists, "facts": dict(found.facts)}
    return {part: value for part, value in answer.items() if value}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_whole_answer(tmp_path, case):
    file = tmp_path / case["file"]
    file.write_text(case["text"])
    assert told(read_file(file, **case.get("given", {}))) == case["answer"]
