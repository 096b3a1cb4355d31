"""How far published runs are from the model, on made-up rows: errors, sweeps, memory, all by hand."""

import pandas as pd
import pytest

from costmodel.trust.validation import RUN_COLUMNS, Validation

NAMES = list(RUN_COLUMNS)
ROW = {
    "source": "a",
    "accelerator": "h100-sxm-80gb",
    "framework": "megatron",
    "recipe": "megatron-core",
    "model": "m",
    "num_experts": 0,
    "gpus": 8,
    "global_batch": 64,
    "parallelism": "tp",
    "precision": "bf16",
    "layout": "x",
    "use": "time",
    "quality": "A",
    "oom": False,
    "predicted_fits": True,
    "skipped_reason": "",
}


def checked(*rows):
    """Compare rows of some fields, all others being alike."""
    found = [{**dict.fromkeys(NAMES), **ROW, "id": str(number), **row} for number, row in enumerate(rows)]
    return Validation(pd.DataFrame(found, columns=NAMES))


def times(*pairs, **more):
    """Return rows of (predicted, measured) step times."""
    return [{"predicted_step_time_s": p, "measured_step_time_s": m, **more} for p, m in pairs]


def test_errors_are_relative_to_what_was_measured():
    """11 for 10 is 10 % too long, 8 for 10 is 20 % too short, 15 for 10 is 50 % too long."""
    (row,) = checked(*times((11, 10), (8, 10), (15, 10))).summary().to_dict("records")
    assert (row["runs"], row["skipped"]) == (3, 0)
    assert row["median_%"] == pytest.approx(20)
    assert row["mean_%"] == pytest.approx(80 / 3)
    # Nine tenths of the way through 10, 20 and 50.
    assert row["p90_%"] == pytest.approx(20 + 0.8 * 30)
    assert row["bias_%"] == pytest.approx(40 / 3)


def test_what_counts():
    """A row for memory has no error of time, one of quality C counts in nothing, a skipped one is counted."""
    found = checked(
        *times((11, 10), (90, 10), (90, 10)),
        {"measured_step_time_s": 10.0, "skipped_reason": "no such recipe", "predicted_fits": None},
    )
    rows = found.runs.assign(use=["time", "memory", "time", "time"], quality=["A", "A", "C", "B"])
    (row,) = Validation(rows.drop(columns=["time_error", "memory_error"])).summary().to_dict("records")
    assert (row["runs"], row["skipped"], row["mean_%"]) == (2, 1, pytest.approx(10))


def test_groups():
    """By what they run on, by their axes one by one, and dense or not with generation and bits."""
    found = checked(
        *times((11, 10), parallelism="tp+pp"),
        *times((13, 10), parallelism="tp", num_experts=8, precision="fp8-delayed"),
    )
    by_axis = {row["axis"]: row["mean_%"] for row in found.summary("axis").to_dict("records")}
    assert by_axis == pytest.approx({"pp": 10, "tp": 20})
    by_class = {row["class"]: row["mean_%"] for row in found.summary("class").to_dict("records")}
    assert by_class == pytest.approx({"dense hopper 16-bit": 10, "moe hopper 8-bit": 30})


def test_sweeps():
    """Six layouts of one job: the one that is predicted to be best takes 12 s, the best one 10 s."""
    (row,) = checked(*times((1, 12), (2, 10), (3, 14), (4, 16), (5, 18), (6, 20))).sweeps().to_dict("records")
    assert (row["layouts"], row["regret"]) == (6, pytest.approx(0.2))
    # One pair of neighbours in the wrong order: 1 - 6 x 2 / (6 x 35).
    assert row["spearman"] == pytest.approx(1 - 12 / 210)
    assert checked(*times((1, 12), (2, 10), (3, 14), (4, 16), (5, 18))).sweeps().empty


def test_out_of_memory():
    """Of four rows two ran out; one of them is seen, and one that ran is taken for one that did not."""
    found = checked(
        {"oom": True, "predicted_fits": False, "use": "memory"},
        {"oom": True, "predicted_fits": True, "use": "memory"},
        {"predicted_fits": False},
        {"predicted_fits": True},
        {"predicted_fits": True, "use": "other"},
        {"predicted_fits": None},
    ).out_of_memory()
    assert found == {"rows": 4, "oom_rows": 2, "right": 0.5, "precision": 0.5, "recall": 0.5}
    more = checked(
        {"oom": True, "predicted_fits": False}, *[{"predicted_fits": False}] * 3, {}
    ).out_of_memory()
    assert (more["precision"], more["recall"], more["right"]) == (0.25, 1.0, 0.4)


def told_rows():
    """Six layouts of one job, two runs with experts, peaks, runs out of memory, rows that were skipped."""
    sweep = times((1, 12), (2, 10), (3, 14), (4, 16), (5, 18), (6, 20), source="other", gpus=4096)
    peaks = [
        {"predicted_peak_memory_gib": 11.0, "measured_peak_memory_gib": 10.0, "use": "memory"},
        {
            "predicted_peak_memory_gib": 8.0,
            "measured_peak_memory_gib": 10.0,
            "use": "memory",
            "source": "other",
        },
        {"oom": True, "predicted_fits": True, "use": "memory"},
        {"oom": True, "predicted_fits": False, "use": "memory"},
        {"skipped_reason": "no such recipe", "predicted_fits": None},
        {"skipped_reason": "no such model", "predicted_fits": None},
        {"skipped_reason": "no such recipe", "predicted_fits": None},
    ]
    return checked(*times((11, 10), (8, 10), num_experts=8), *sweep, *peaks)


def test_tables_of_a_validation():
    """10 and 20 % off: 15 % in the middle, 19 % nine tenths of the way, 5 % too short; 12 s for 10 is regret of 20 %."""
    found = told_rows()
    tables = {grid.title: grid for grid in found.grids(worst=2)}
    rows = {title: [list(row) for row in grid.rows] for title, grid in tables.items()}
    figures = ["15.0 %", "15.0 %", "19.0 %", "-5.0 %"]
    assert rows["Step time by class"][1] == ["moe hopper 16-bit", "2", "0", *figures]
    assert rows["Step time by source"][0] == ["a", "5", "3", *figures]
    assert rows["Peak memory by source"] == [
        ["a", "3", "0", *["10.0 %"] * 4],
        ["other", "1", "0", *["20.0 %"] * 3, "-20.0 %"],
    ]
    # Of twelve runs eleven are told right; of two that ran out one is.
    assert rows["Does it fit? Runs that ran out of memory, and runs that did not"] == [
        ["12", "2", "91.7%", "100.0%", "50.0%"]
    ]
    sweeps = "Sweeps: layouts of one job, ranked"
    assert rows[sweeps] == [["other", "m", "4096", "64", "6", "0.94", "20.0%"]]
    assert rows["The 2 runs furthest off"] == [
        ["2", "m", "4096", "tp", "12 s", "1 s", "-91.7%"],
        ["3", "m", "4096", "tp", "10 s", "2 s", "-80.0%"],
    ]
    assert "The 2 runs furthest off" not in {grid.title for grid in found.grids()}
    assert found.remarks() == ["skipped 2 rows: no such recipe", "skipped 1 row: no such model"]


def test_a_record_of_a_validation():
    found = told_rows()
    record = found.to_dict()
    assert list(record["time"]) == ["all", "cells", "class", "family", "source", "accelerator", "axis"]
    assert record["memory"]["source"][1]["bias_%"] == pytest.approx(-20)
    assert record["out_of_memory"] == pytest.approx(
        {"rows": 12, "oom_rows": 2, "right": 11 / 12, "precision": 1.0, "recall": 0.5}
    )
    assert record["sweeps"][0]["regret"] == pytest.approx(0.2)
    assert record["skipped"] == found.skipped
    columns = found.columns()
    assert columns["measured_step_time_s"][:2] == [10, 10]
    assert columns["predicted_peak_memory_gib"][8] == 11
    assert list(found.to_frame().columns) == list(columns)
    # What nobody measured is none in a record, not a number that is none.
    assert checked(*times((11, 10))).to_dict()["memory"]["all"][0]["median_%"] is None


def test_the_chart_of_a_validation_has_lines_of_ten_and_twenty_five_percent():
    """11 for 10 and 15 for 20: 10 % too long and 25 % too short, between lines from 0.7 of the least to 1.4 of the most."""
    chart = checked(*times((11, 10), (15, 20), accelerator="x")).plot.chart("predicted")
    *lines, dots = chart.panels[0].marks
    slopes = [float(y / x) for line in lines for x, y in zip(line.x, line.y, strict=True)]
    assert slopes[::2] == slopes[1::2] == pytest.approx([1, 1.1, 0.9, 1.25, 0.75])
    assert all(list(line.x) == pytest.approx([0.7 * 10, 1.4 * 20]) for line in lines)
    assert (list(dots.x), list(dots.y), dots.label) == ([10, 20], [11, 15], "x (2)")
    assert "of 2 published runs: median error 17.5%, 90 % within 23.5%, bias -7.5%" in chart.title
    # One run out of memory, seen: nothing is left of it that could be right by halves.
    seen = checked({"oom": True, "predicted_fits": False, "use": "memory"}).out_of_memory()
    assert (seen["precision"], seen["recall"], seen["right"]) == (1, 1, 1)
