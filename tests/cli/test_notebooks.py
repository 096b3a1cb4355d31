"""Each notebook is paired with a Python file that reviews and linters read; both hold the same cells."""

import json
import re
from pathlib import Path

import pytest
from notebook_numbers import differences, numbers

import costmodel as cm

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


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


def test_numbers_of_a_text_are_found_with_their_last_digit():
    assert numbers("step 1,234.5 s, tp8 of v0.3: −2e3 and 7%") == [
        (1234.5, 0.1),
        (-2000.0, 1000.0),
        (7.0, 1.0),
    ]


def test_a_number_of_another_day_is_told_and_a_last_digit_is_not():
    """6.140 s against 6.959 s is another answer; 6.959 against 6.960, 1 % against 2 % of a share, are not."""
    assert list(differences("step 6.140 s, 44.3% MFU", "step 6.959 s, 44.3% MFU")) == [
        "6.14 stored, 6.959 today"
    ]
    assert not list(differences("step 6.959 s, 1%", "step 6.960 s, 2%"))
    assert list(differences("step 1,000 s", "step 1,006 s"))
    assert not list(differences("step 1,000 s", "step 1,004 s"))
    assert list(differences("1 2", "1 2 3")) == ["2 numbers stored, 3 today"]
