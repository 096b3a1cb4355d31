"""Each notebook is paired with a Python file that reviews and linters read; both hold the same cells."""

import json
import re
from pathlib import Path

import pytest

import costmodel as cm

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert "01_first_estimate" in NOTEBOOKS
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_and_its_python_file_hold_the_same_code(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    code = ["".join(cell["source"]).strip() for cell in notebook["cells"] if cell["cell_type"] == "code"]
    parts = re.split(r"^# %%(.*)$", (FOLDER / f"{name}.py").read_text(), flags=re.MULTILINE)[1:]
    paired = zip(parts[::2], parts[1::2], strict=True)
    assert code == [text.strip() for kind, text in paired if "[markdown]" not in kind]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_was_run_from_top_to_bottom_without_an_error(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_needs_only_the_public_face(name):
    text = (FOLDER / f"{name}.py").read_text()
    below = [line for line in text.splitlines() if re.match(r"\s*(from|import) costmodel\.", line)]
    assert below == []
    public = re.findall(r"\bcm\.(\w+)", text)
    assert public
    assert set(public) <= set(cm.__all__)
