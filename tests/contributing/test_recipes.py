"""The recipes of CONTRIBUTING.md, run as they are printed in a temporary copy of the repository."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = (
    "costmodel",
    "hardware_profiles",
    "tests",
    "README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "pyproject.toml",
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "contributing", ".*")
RECIPES = {
    "accelerator": 1,
    "cluster": 1,
    "collective": 1,
    "pipeline schedule": 3,
    "model family": 4,
    "framework": 2,
    "output": 5,
}
"""Files of the program that each may touch; tests come on top."""

_PART = re.compile(
    r"(?:<!-- (?P<said>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```\n", re.DOTALL | re.MULTILINE
)
_EDIT = re.compile(r"(?:insert|line): (?P<path>\S+) (?P<side>before:|after:|with:) (?P<anchor>\".*\")")


class Part(NamedTuple):
    """One block of a recipe: a file to write, lines to put into one, or commands to run."""

    said: str
    language: str
    body: str


def section(name: str) -> str:
    """Return the text of one recipe."""
    _, _, rest = (
        TEXT.partition(f"\n## A {name}\n")
        if f"\n## A {name}\n" in TEXT
        else TEXT.partition(f"\n## An {name}\n")
    )
    assert rest, f"CONTRIBUTING.md has no recipe for {name}"
    return rest.partition("\n## ")[0]


def parts(name: str) -> list[Part]:
    """Return the blocks of a recipe in order."""
    return [
        Part(found["said"] or "", found["language"], found["body"]) for found in _PART.finditer(section(name))
    ]


def apply(part: Part, folder: Path) -> None:
    """Write a file, put lines into one, or put a line in place of another, as the recipe says."""
    if part.said.startswith("file: "):
        path = folder / part.said.removeprefix("file: ")
        assert not path.exists(), f"{path} is there already"
        path.write_text(part.body, encoding="utf-8")
        return
    said = _EDIT.fullmatch(part.said)
    assert said is not None, f"a block that nobody runs: {part}"
    path, anchor = folder / said["path"], json.loads(said["anchor"])
    text = path.read_text(encoding="utf-8")
    assert text.count(anchor) == 1, f"{said['path']}: {anchor!r} stands there {text.count(anchor)} times"
    at, body = text.index(anchor), part.body
    if said["side"] == "with:":
        start, end = text.rindex("\n", 0, at) + 1, text.index("\n", at) + 1
    else:
        start = end = at + (len(anchor) if said["side"] == "after:" else 0)
        body += "\n\n" if body.startswith("def ") else ""
    path.write_text(text[:start] + body + text[end:], encoding="utf-8")


def run(commands: str, folder: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """Run commands in a copy, with `costmodel` and `python` those of the copy."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("COSTMODEL_PROFILE_PATH", None)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def contents(folder: Path) -> dict[str, str]:
    """Return a digest of every file that a person would commit, tests left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if (
            path.is_file()
            and not {"__pycache__", "tests"} & set(name.parts)
            and not str(name).startswith(".")
        ):
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    for name, command in (("costmodel", f"{sys.executable} -m costmodel"), ("python", sys.executable)):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_every_recipe_is_run_here():
    found = re.findall(r"^## An? (.+)$", TEXT, re.MULTILINE)
    assert found == list(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works_as_printed_and_touches_no_more_files_than_it_says(name, copy, tools):
    before = contents(copy)
    blocks = parts(name)
    shell = [part for part in blocks if part.language == "sh"]
    assert shell
    assert run(shell[0].body, copy, tools).returncode != 0, "works without the recipe"

    for part in blocks:
        if part.language == "sh":
            done = run(part.body, copy, tools)
            assert done.returncode == 0, f"{part.body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        else:
            apply(part, copy)

    after = contents(copy)
    touched = sorted(path for path in after if after[path] != before.get(path))
    assert f"<!-- touches: {len(touched)} -->" in section(name), touched
    assert len(touched) <= RECIPES[name]
    assert set(before) <= set(after)
