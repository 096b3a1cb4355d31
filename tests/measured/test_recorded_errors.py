"""The published runs that are shipped, priced on every change: no error may grow past what is recorded.

`recorded_errors.json` holds the figures of the last accepted change (write them with
``python tests/measured/test_recorded_errors.py``): of all rows together, and the median of every source
and accelerator with eight rows or more, so that no part may pay for another. Without the file nothing passes.
"""

import json
from pathlib import Path

import pytest

from costmodel.estimates.priced_job import error_bands
from costmodel.trust.bands import coverage
from costmodel.trust.published_runs import shipped_runs
from costmodel.trust.validation import Validation, validate

RECORDED = Path(__file__).parent / "recorded_errors.json"
MARGIN_PERCENT = 1.0
"""By which a figure of all rows may be worse."""
GROUP_MARGIN_PERCENT = 2.0
"""By which the median of one source or accelerator may be worse: a group is 8 to 130 rows."""
FEWEST_ROWS = 8
COVERAGE_MARGIN = 8.0
"""Percentage points by which the share of rows inside the band of their class may differ from what is recorded."""
GROUPS = ("source", "accelerator")
PARTS = ("all", *GROUPS, "coverage")
# Run as a script, which writes the file, it may be missing; collecting the tests without it is an error.
KNOWN = {part: {} for part in PARTS} if __name__ == "__main__" else json.loads(RECORDED.read_text())


@pytest.fixture(scope="module")
def checked() -> Validation:
    return validate(shipped_runs())


def figures(checked: Validation) -> dict[str, float]:
    found = {}
    for of in ("time", "memory"):
        row = checked.summary(of=of).iloc[0]
        found |= {f"{of} {name}": float(row[name]) for name in ("median_%", "mean_%", "p90_%")}
        found[f"{of} absolute bias_%"] = abs(float(row["bias_%"]))
    found["time skipped"] = float(checked.summary().iloc[0]["skipped"])
    found["fits wrong_%"] = 100.0 * (1.0 - checked.out_of_memory()["right"])
    return found


def medians(checked: Validation, by: str) -> dict[str, float]:
    """Return the median error of time of every group of enough rows."""
    summary = checked.summary(by)
    summary = summary[summary.runs >= FEWEST_ROWS]
    return dict(zip(summary[by], summary["median_%"], strict=True))


def coverages(checked: Validation) -> dict[str, float]:
    """Return the percentage of rows inside the shipped band of their class, for classes of 30 rows and more."""
    bands = error_bands()
    found = {}
    for of, held in (("time", bands.time), ("memory", bands.memory)):
        judged = checked.judged
        inside = coverage(judged, judged[f"{of}_error"].dropna(), {k: b._asdict() for k, b in held.items()})
        found |= {f"{of} {row['class']}": 100 * row.inside for _, row in inside[inside.runs >= 30].iterrows()}
    return found


@pytest.mark.parametrize("name", KNOWN["coverage"])
def test_bands_hold_as_many_runs_as_recorded(checked, name):
    assert abs(coverages(checked)[name] - KNOWN["coverage"][name]) <= COVERAGE_MARGIN


@pytest.mark.parametrize("name", KNOWN["all"])
def test_no_error_is_worse_than_recorded(checked, name):
    assert figures(checked)[name] <= KNOWN["all"][name] + MARGIN_PERCENT


@pytest.mark.parametrize(("by", "name"), [(by, name) for by in GROUPS for name in KNOWN[by]])
def test_no_group_is_worse_than_recorded(checked, by, name):
    assert medians(checked, by)[name] <= KNOWN[by][name] + GROUP_MARGIN_PERCENT


def test_every_figure_and_group_is_recorded(checked):
    assert KNOWN["all"].keys() == figures(checked).keys()
    for by in GROUPS:
        assert KNOWN[by].keys() == medians(checked, by).keys()
        assert len(KNOWN[by]) >= 4


def test_sources_with_many_rows_have_a_median_below_fifteen_percent(checked):
    by_source = checked.summary("source")
    assert (by_source[by_source.runs >= 20]["median_%"] <= 15.0).all()


def test_results_have_the_documented_columns_and_every_row(checked):
    results = checked.to_frame()
    assert list(results.columns) == [
        "id",
        "measured_step_time_s",
        "predicted_step_time_s",
        "measured_peak_memory_gib",
        "predicted_peak_memory_gib",
        "oom",
        "predicted_fits",
        "skipped_reason",
    ]
    assert results.id.is_unique
    assert (results.predicted_step_time_s.notna() | (results.skipped_reason != "")).all()


if __name__ == "__main__":
    current = validate(shipped_runs())
    parts = {
        "all": figures(current),
        **{by: medians(current, by) for by in GROUPS},
        "coverage": coverages(current),
    }
    rounded = {part: {name: round(value, 2) for name, value in held.items()} for part, held in parts.items()}
    RECORDED.write_text(json.dumps(rounded, indent=1) + "\n")
