"""Write the README's generated tables: ten known runs, and the validation summary.

    python tests/published/readme_tables.py            # rewrite README.md
    python tests/published/readme_tables.py --check    # exit 1 if it is out of date

Nothing here is tuned: the jobs stand in `ten_runs.yaml`, the published rows in `runs.csv`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from costmodel.describe.job import make_job
from costmodel.estimates import Estimate, estimate_job

HERE = Path(__file__).parent
README = HERE.parent.parent / "README.md"


def ten_runs() -> list[dict[str, Any]]:
    """Return the runs of `ten_runs.yaml`, each with its estimate."""
    runs: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((HERE / "ten_runs.yaml").read_text())
    for run in runs:
        run["estimate"] = estimate_job(make_job(**run["job"], check=False))
        run["error"] = float(run["estimate"].step_time_s) / run["measured_step_time_s"] - 1.0
    return runs


def runs_table() -> str:
    """Return the ten runs as a Markdown table."""
    lines = ["| run | published step | predicted | error | source |", "|---|---|---|---|---|"]
    for run in ten_runs():
        estimate: Estimate = run["estimate"]
        notes = "; ".join(str(run[key]) for key in ("stated", "assumed") if key in run)
        lines.append(
            f"| {run['name']} | {run['measured_step_time_s']:.2f} s | {float(estimate.step_time_s):.2f} s | "
            f"{run['error']:+.1%} | {run['reference']}{'. ' + notes if notes else ''} |"
        )
    return "\n".join(lines)


def validation_table() -> str:
    """Return the summary of the published runs in the repo as a Markdown table."""
    from costmodel.validate import validate

    checked = validate(HERE / "runs.csv")
    lines = [
        "| what | runs | skipped | median | mean | p90 | bias |",
        "|---|---|---|---|---|---|---|",
    ]
    for of, title in (("time", "step time"), ("memory", "peak memory")):
        for _, row in checked.summary(of=of).iterrows():
            lines.append(
                f"| {title} | {row['runs']:.0f} | {row['skipped']:.0f} | {row['median_%']:.1f} % | {row['mean_%']:.1f} % | "
                f"{row['p90_%']:.1f} % | {row['bias_%']:+.1f} % |"
            )
    sources = checked.judged.source.nunique()
    return "\n".join([*lines, "", f"{len(checked.runs)} runs from {sources} sources."])


def fill(text: str, marker: str, table: str) -> str:
    """Put a table between the markers of that name."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{table}\n{end}{tail}"


def main() -> int:
    """Rewrite or check the README."""
    before = README.read_text()
    after = fill(fill(before, "runs", runs_table()), "validation", validation_table())
    if "--check" in sys.argv[1:]:
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
