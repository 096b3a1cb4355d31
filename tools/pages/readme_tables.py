"""Write the generated tables of README.md and docs/: ten known runs, and the validation summary.

    python tools/pages/readme_tables.py            # rewrite the pages
    python tools/pages/readme_tables.py --check    # exit 1 if one is out of date
    python tools/pages/readme_tables.py ALL.csv    # with the summary of a larger table of runs besides

Nothing here is tuned: the jobs stand in `ten_runs.yaml`, the published rows in `runs.csv`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pages import fill, read_pages, settle
from ruamel.yaml import YAML

from costmodel.describe.jobs.job import make_job
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.trust.validation import validate
from costmodel.whole_run.solve import run as run_training

PUBLISHED = Path(__file__).parents[2] / "tests" / "published"


def ten_runs() -> list[dict[str, Any]]:
    """Return the runs of `ten_runs.yaml`, each with its estimate."""
    runs: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((PUBLISHED / "ten_runs.yaml").read_text())
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


def _line(title: str, row: Any) -> str:
    return (
        f"| {title} | {row['runs']:.0f} | {row['skipped']:.0f} | {row['median_%']:.1f} % | {row['mean_%']:.1f} % | "
        f"{row['p90_%']:.1f} % | {row['bias_%']:+.1f} % |"
    )


def whole_runs_table() -> str:
    """Return the whole trainings of `whole_runs.yaml` as a Markdown table."""
    runs: list[dict[str, Any]] = YAML(typ="safe", pure=True).load((PUBLISHED / "whole_runs.yaml").read_text())
    lines = [
        "| training | published GPU-hours | predicted | error | days | effective time | checkpoint | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        found = run_training(tokens=run["tokens"], reliability=run["reliability"], **run["job"])
        share = found.effective_training_time_ratio if run["counts"] == "running" else 1.0
        hours, published = found.gpu_hours * share, run["published_gpu_hours"]
        notes = f"; steps only, as {found.gpus:,.0f} GPUs' throughput" if run["counts"] == "running" else ""
        notes += f"; assumed: {run['assumed']}" if "assumed" in run else ""
        lines.append(
            f"| {run['name']} | {published:,.0f} | {hours:,.0f} | {hours / published - 1.0:+.1%} | "
            f"{found.days:,.1f} | {found.effective_training_time_ratio:.1%} | "
            f"{found.checkpoint.size_bytes / 1e12:.2f} TB | {run['reference']}{notes} |"
        )
    return "\n".join(lines)


def validation_table(runs: Path) -> str:
    """Return how far published runs are off, as Markdown: time, memory, what fits, sweeps, and by source."""
    checked = validate(runs)
    head = ["| what | runs | skipped | median | mean | p90 | bias |", "|---|---|---|---|---|---|---|"]
    lines = [*head]
    for of, title in (("time", "step time"), ("memory", "peak memory")):
        lines += [_line(title, row) for _, row in checked.summary(of=of).iterrows()]
    lines += [_line(f"step time, quality {row['quality']}", row) for _, row in checked.cells().iterrows()]
    fits, sweeps = checked.out_of_memory(), checked.sweeps().query("layouts >= 6")
    lines += [
        "",
        f"{len(checked.runs):,} runs from {checked.judged.source.nunique()} sources. Does it fit: {fits['right']:.0%} of "
        f"{fits['rows']:.0f} runs right (of those said not to fit {fits['precision']:.0%} did not, and "
        f"{fits['recall']:.0%} of those that did not were found). Sweeps of six layouts and more: median rank correlation "
        f"{sweeps.spearman.median():.2f}, median regret {sweeps.regret.median():.1%}, p90 {sweeps.regret.quantile(0.9):.1%}.",
    ]
    large = checked.summary("source").query("runs >= 20")
    lines += ["", '<details markdown="1"><summary>Sources of 20 runs and more</summary>', "", *head]
    lines += [_line(row["source"], row) for _, row in large.iterrows()]
    return "\n".join([*lines, "", "</details>"])


def main() -> int:
    """Rewrite or check the pages."""
    blocks = {
        "runs": runs_table(),
        "validation": validation_table(PUBLISHED / "runs.csv"),
        "whole_runs": whole_runs_table(),
    }
    for larger in sys.argv[1:]:
        if not larger.startswith("--"):
            blocks["all"] = validation_table(Path(larger))
    return settle(fill(read_pages(), blocks))


if __name__ == "__main__":
    sys.exit(main())
