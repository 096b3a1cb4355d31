"""Write docs/concepts: a page a concept, with a formula as the program prints it, a figure and a number by hand.

python tools/pages/concepts.py            # write the pages and their figures
python tools/pages/concepts.py --check    # exit 1 if a page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from pages import DOCS, settle

import costmodel as cm
from costmodel.base.screen import drawn
from costmodel.bill.formula import evaluate_steps

CONCEPTS = DOCS / "concepts"
_COLUMNS = 130
"""Of a line of the tables."""


def page(concept: dict[str, Any]) -> str:
    """Return the page of a concept."""
    job, line = concept["job"], concept["line"]
    est = cm.estimate(**job)
    opened = est.explain(line)
    printed = drawn(opened.grids(), opened.remarks(), width=_COLUMNS, styled=False)
    flags = " ".join(
        f'--{key.replace("_", "-")} "{value}"' if " " in str(value) else f"--{key.replace('_', '-')} {value}"
        for key, value in job.items()
    )
    parts = [
        "<!-- Written by tools/pages/concepts.py from tools/pages/concepts.yaml. -->",
        f"# {concept['title']}",
        concept["text"].strip(),
        f"![{concept['title']}](figures/{concept['name']}.png)",
        "## The formula",
        "As the program computes it, and prints it, for one job:",
        f"```sh\ncostmodel explain {flags} --line {line}\n```",
        f"```text\n{printed.rstrip()}\n```",
    ]
    if "by_hand" in concept:
        parts += ["## By hand", by_hand(est, line, **concept["by_hand"])]
    return "\n\n".join(parts) + "\n"


def by_hand(est: cm.Estimate, line: str, words: str, sum: str, within: float = 1e-9) -> str:
    """Return a number worked out by hand beside the bill's.

    Raises
    ------
    SystemExit
        Where they are further apart than `within`, a share.
    """
    frame = est.to_frame()
    billed = float(frame.loc[frame["name"] == line, "bytes"].iloc[0])
    hand = float(evaluate_steps(sum, {})[-1][2])
    if abs(billed / hand - 1.0) > within:
        raise SystemExit(f"{line}: {hand:.6g} bytes by hand, {billed:.6g} on the bill")
    return f"{words[0].upper()}{words[1:]}:\n\n`{sum}` = {hand / 1e9:,.2f} GB; the bill has {billed / 1e9:,.2f} GB."


def draw(concept: dict[str, Any], path: Path) -> None:
    """Draw the figure of a concept: one of an estimate's, or time and memory along what is varied."""
    if "figure" in concept:
        drawn = cm.estimate(**concept["job"]).plot(concept["figure"])
    else:
        [(key, values)] = concept["vary"].items()
        some = [cm.estimate(**{**concept["job"], key: value}) for value in values]
        labels = [str(value) if key == "layout" else f"{key} {value}" for value in values]
        comparison = cm.compare(*some, labels=labels)
        drawn = comparison.plot(comparison.plot.names()[0])
    drawn.savefig(path, dpi=80, bbox_inches="tight")


def main() -> int:
    """Write or check the pages; figures are drawn only where pages are written."""
    concepts = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    if "--check" not in sys.argv[1:]:
        (CONCEPTS / "figures").mkdir(parents=True, exist_ok=True)
        for concept in concepts:
            draw(concept, CONCEPTS / "figures" / f"{concept['name']}.png")
    return settle({CONCEPTS / f"{concept['name']}.md": page(concept) for concept in concepts})


if __name__ == "__main__":
    sys.exit(main())
