"""Write docs/other-chips.md's tables: errors on accelerators beyond NVIDIA's, and loss by scale over slices of TPU pods.

    python tools/pages/other_chips.py ALL.csv            # rewrite the page
    python tools/pages/other_chips.py ALL.csv --check    # exit 1 if it is out of date

ALL.csv is a table of published runs in the columns of `runs.csv`. Beside the model stands what the simplest rule makes
of the same rows: FLOPs of the model over peak times one efficiency, the median of the very rows it is judged on.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable

import pandas as pd
from pages import fill, read_pages, settle

from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.estimates.estimate import estimate_job
from costmodel.trust.published_runs import Row, job_of_row, read_rows
from costmodel.trust.shares import fitted_runs, left_out_errors
from costmodel.trust.validation import validate

NVIDIA = ("v100", "a100", "a800", "h100", "h200", "h800", "h20", "b200", "b300", "gb200", "gb300", "gh200")
_SERIES = re.compile(r"(maxtext-v\w+-\d+b)-(\d+)x(\d+)$")


def others(rows: Iterable[Row]) -> list[Row]:
    """Return the scored rows of accelerators beyond NVIDIA's."""
    kept = (row for row in rows if not row["accelerator"].startswith(NVIDIA))
    return [row for row in kept if "time" in (row.get("use") or "time")]


def beside(row: Row) -> dict[str, object]:
    """Return where the measured time lies beside what is predicted, and FLOPs over the peak of the run's precision.

    Both ways to say how far off: the error band, in which 80 % of like runs lie around a prediction, and p10 to p90 of
    the uncertain factors.
    """
    est = estimate_job(job_of_row(row))
    measured = float(row["step_time_s"])
    low, high = est.interval(0.8)
    band = est.error_band
    assert band is not None
    return {
        "id": row["id"],
        "inside": bool(low <= measured <= high),
        "in_band": bool(band.low <= measured / float(est.step_time_s) <= band.high),
        "naive_s": float(est.mfu) * float(est.step_time_s),
    }


def judged(rows: list[Row]) -> pd.DataFrame:
    """Return the scored runs with their errors, those with the source left out, and where they lie in what was stated."""
    runs = fitted_runs(validate(rows).judged)
    runs = runs.assign(left_out=left_out_errors(runs, "source")).set_index("id")
    more = []
    for row in rows:
        if row["id"] in runs.index:
            try:
                more.append(beside(row))
            except CostModelError as error:
                raise SystemExit(f"{row['id']}: {error}") from None
    return runs.join(pd.DataFrame(more).set_index("id"))


def chips_table(runs: pd.DataFrame) -> str:
    """Return rows, errors, errors with the source left out, coverage of bands, and the naive rule, by accelerator."""
    lines = [
        "| accelerator | rows | median | bias | source left out | inside the error band | inside p10 to p90 | naive: median "
        "| naive: p90 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in runs.groupby("accelerator"):
        ratio = group.naive_s / group.measured_step_time_s
        naive = (ratio / ratio.median() - 1.0).abs()
        lines.append(
            f"| {name} | {len(group)} | {group.time_error.abs().median():.1%} | {group.time_error.mean():+.1%} | "
            f"{group.left_out.abs().median():.1%} | {group.in_band.mean():.0%} | {group.inside.mean():.0%} | "
            f"{naive.median():.1%} | {naive.quantile(0.9):.1%} |"
        )
    return "\n".join(lines)


def likely(runs: int, share: float = 0.8, mass: float = 0.9) -> tuple[float, float]:
    """Return the shares between which a band of `share` holds so many runs, nine times of ten. [-]

    >>> likely(10)
    (0.6, 1.0)
    """
    odds = [math.comb(runs, k) * share**k * (1.0 - share) ** (runs - k) for k in range(runs + 1)]
    sums = list(itertools.accumulate(odds))
    low, high = (
        next(k for k, at in enumerate(sums) if at >= edge) for edge in ((1 - mass) / 2, (1 + mass) / 2)
    )
    return low / runs, high / runs


def stacks_table(runs: pd.DataFrame) -> str:
    """Return how often the bands held by stack of software, and what so many runs can tell of a band of 80 %."""
    stack = runs.accelerator.map(lambda name: load_accelerator(name).software.recipe)
    lines = [
        "| stack | rows | inside the error band | inside p10 to p90 | a band of 80 % holds so many |",
        "|---|---|---|---|---|",
    ]
    for name, group in [*runs.groupby(stack), ("all", runs)]:
        low, high = likely(len(group))
        lines.append(
            f"| {name} | {len(group)} | {group.in_band.mean():.0%} | {group.inside.mean():.0%} | {low:.0%} to {high:.0%} |"
        )
    return "\n".join(lines)


def int8_table(rows: Iterable[Row]) -> str:
    """Return the runs in int8, which no score counts and no constant was fitted to."""
    lines = ["| run in int8 | chips | measured | predicted | error |", "|---|---|---|---|---|"]
    for row in rows:
        # One says nothing of what it recomputes.
        if row["precision"] != "int8" or row["id"] == "v5p-gpt3-175b-512":
            continue
        measured, predicted = float(row["step_time_s"]), float(estimate_job(job_of_row(row)).step_time_s)
        lines.append(
            f"| {row['id']} | {row['gpus']} | {measured:.2f} s | {predicted:.2f} s | {predicted / measured - 1:+.1%} |"
        )
    return "\n".join(lines)


def slices_table(rows: list[Row]) -> str:
    """Return how much of its rate a chip loses from one slice to several: published and predicted."""
    times: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        found = _SERIES.match(row["id"])
        if found:
            predicted = float(estimate_job(job_of_row(row)).step_time_s)
            name = f"{found[1].removeprefix('maxtext-')}, {found[3]} chips a slice"
            times.setdefault(name, {})[int(found[2])] = (float(row["step_time_s"]), predicted)
    lines = ["| model and slice | slices | published loss | predicted | apart |", "|---|---|---|---|---|"]
    for name, by_count in times.items():
        for count in sorted(by_count)[1:]:
            lost = [1.0 - one / many for one, many in zip(by_count[1], by_count[count], strict=True)]
            lines.append(
                f"| {name} | {count} | {lost[0]:.1%} | {lost[1]:.1%} | {100 * (lost[1] - lost[0]):+.1f} points |"
            )
    return "\n".join(lines)


def main() -> int:
    """Rewrite or check the page."""
    every = read_rows(next(one for one in sys.argv[1:] if not one.startswith("--")))
    rows = others(every)
    runs = judged(rows)
    blocks = {
        "chips": chips_table(runs),
        "stacks": stacks_table(runs),
        "int8": int8_table(every),
        "slices": slices_table(rows),
    }
    return settle(fill(read_pages(), blocks))


if __name__ == "__main__":
    sys.exit(main())
