"""Run the notebooks again and hold the numbers that they store to those of today.

    python tools/pages/notebook_numbers.py --check              # exit 1 where a number differs
    python tools/pages/notebook_numbers.py --check 01 04        # some of them
    python tools/pages/notebook_numbers.py 01                   # run and store

Compared are the numbers in printed text and in tables, in their order, to a last digit or half a per cent; pictures
are not, nor what says how long something took on this machine (a cell tagged `timing`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "notebooks"
RELATIVE = 0.005
"""How far two numbers may be apart: what another NumPy or another processor may make of a fit. [-]"""

_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")


def said(cell: dict[str, Any]) -> str:
    """Return what a cell prints or shows as text, without addresses and paths of a run."""
    texts = []
    for output in cell.get("outputs", []):
        text = output.get("text", output.get("data", {}).get("text/plain", ""))
        texts.append("".join(text))
    return re.sub(r"0x[0-9a-f]+|/tmp/\S+|<[^>]+>", "", "\n".join(texts))


def numbers(text: str) -> list[tuple[float, float]]:
    """Return the numbers of a text, each with the worth of its last digit.

    >>> numbers("step 1,234.5 s, tp8 of v0.3, 2e3")
    [(1234.5, 0.1), (2000.0, 1000.0)]
    """
    found = []
    for hit in _NUMBER.findall(text):
        plain = hit.replace(",", "").replace("−", "-")
        digits, _, power = plain.lower().partition("e")
        last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        found.append((float(plain), round(last, 12)))
    return found


def differences(stored: str, fresh: str) -> Iterator[str]:
    """Say which numbers of two texts differ; one line where they are not as many."""
    ours, theirs = numbers(stored), numbers(fresh)
    if len(ours) != len(theirs):
        yield f"{len(ours)} numbers stored, {len(theirs)} today"
        return
    for (one, digit), (other, _) in zip(ours, theirs, strict=True):
        if abs(one - other) > max(1.01 * digit, RELATIVE * max(abs(one), abs(other))):
            yield f"{one:g} stored, {other:g} today"


def compare(stored: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Return where two runs of a notebook differ."""
    found = []
    cells = zip(stored["cells"], fresh["cells"], strict=True)
    for number, (one, other) in enumerate(cells):
        if one["cell_type"] != "code" or "timing" in one["metadata"].get("tags", []):
            continue
        found += [f"cell {number}: {what}" for what in differences(said(one), said(other))]
    return found


def run(path: Path) -> Any:
    """Run a notebook in its folder and return it, with what it says."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran, which is another time always
    return notebook


def main(arguments: list[str]) -> int:
    """Check or store; return the exit code."""
    wanted = [word for word in arguments if not word.startswith("-")]
    failed = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        if wanted and not path.name.startswith(tuple(wanted)):
            continue
        fresh = run(path)
        if "--check" not in arguments:
            import nbformat

            nbformat.write(fresh, path)
            continue
        found = compare(json.loads(path.read_text()), fresh)
        for line in found[:20]:
            print(f"{path.name}: {line}")
        failed += len(found)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
