"""The README's known runs: each within 15 % of what was published."""

import pytest
import readme_tables

from costmodel.trust.shares import HELD_OUT_SOURCES

RUNS = {run["name"]: run for run in readme_tables.ten_runs()}


@pytest.mark.parametrize("name", RUNS)
def test_known_run_is_within_fifteen_percent(name):
    assert abs(RUNS[name]["error"]) <= 0.15


def test_no_known_run_is_in_a_fit():
    assert {"korthikanti22", "deepseek-v3", "llama3", "megatron-moe-modelzoo"} <= set(HELD_OUT_SOURCES)
