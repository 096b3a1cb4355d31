"""The published runs that are shipped, priced on every change: no error may grow past what is recorded.

`recorded_errors.json` holds the figures of the last accepted change (write them with
``python tests/measured/test_recorded_errors.py``); one percentage point more fails.
"""

import json
from pathlib import Path

import pytest

from costmodel.trust.published_runs import shipped_runs
from costmodel.trust.validation import Validation, validate

RECORDED = Path(__file__).parent / "recorded_errors.json"
MARGIN_PERCENT = 1.0


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


@pytest.mark.parametrize("name", json.loads(RECORDED.read_text()) if RECORDED.exists() else [])
def test_no_error_is_worse_than_recorded(checked, name):
    recorded = json.loads(RECORDED.read_text())[name]
    assert figures(checked)[name] <= recorded + MARGIN_PERCENT


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
    values = figures(validate(shipped_runs()))
    RECORDED.write_text(
        json.dumps({name: round(value, 2) for name, value in values.items()}, indent=1) + "\n"
    )
