"""The one renderer of columns: paths, units, what is missing, columns that are left out; unknown names are errors."""

import re
from types import SimpleNamespace

import pytest

from costmodel.reporting import cells
from costmodel.reporting.cells import cells_of, facts_of, grid_of, say, signed, spread_rows, table_of

RUN = SimpleNamespace(days=20.54, dollars=None, est=None, range_s=(0.5, 2.0), held={"cache": 2**30})


def test_a_path_ends_where_there_is_nothing_and_a_wrong_name_is_an_error():
    assert say("{est.job.gpus:,|–}, {dollars:$|no price}, {days:days}", RUN) == "–, no price, 20.5 days"
    assert say("{range_s[0]:s} to {range_s[1]:s}, {held[cache]:B}", RUN) == "500 ms to 2.00 s, 1.00 GiB"
    assert say("{nan:s|unknown}", {"nan": float("nan")}) == "unknown"
    for wrong in ("{day}", "{held[cash]}", "{days.real.no}"):
        with pytest.raises((AttributeError, KeyError)):
            say(wrong, RUN)


def test_units_of_differences_shares_and_sizes():
    units = {"left": -0.0025, "size": 2_000_000, "endless": float("inf"), "none": 0, "share": 0.001}
    shown = "{left:+s} {size:size} {endless:size} {none:size} {share:chance} {share:yes}"
    assert say(shown, units) == "-2.50 ms 2.00 MB – 0 B < 1% yes"
    assert (signed(3.0, str), signed(0.0, str)) == ("+3.0", "+0.0")
    assert say("{0:category}", {}, "hbm") == "memory-bound"
    assert spread_rows({"days": [1.0, 2.5]}) == [["days", "1.0", "2.5"]]


def test_a_column_that_says_nothing_is_left_out_where_it_may_be():
    columns = {"Name": "name", "Cost >?": "usd:$|no price", "Of >": "{used:B} of {held:B}"}
    rows = [
        {"name": "a", "usd": None, "used": None, "held": None},
        {"name": "b", "usd": 5.4, "used": 1, "held": 2},
    ]
    without, within = grid_of("T", rows[:1], columns), grid_of("T", rows, columns)
    assert [column.title for column in without.columns] == ["Name", "Of"]
    assert [column.title for column in within.columns] == ["Name", "Cost", "Of"]
    assert [column.number for column in within.columns] == [False, True, True]
    assert within.rows == [["a", "no price", ""], ["b", "$5.40", "1 B of 2 B"]]


def test_columns_are_those_of_the_table_and_no_others():
    assert list(cells_of("machines", {"Layout": str}, without=["Precision"])) == [
        "Machine",
        "GPUs >",
        "Layout",
        "Step >",
        "MFU >",
        "Memory >",
        "Fits >",
        "Days >",
    ]
    with pytest.raises(KeyError, match="has no column"):
        table_of("machines", [], {"Colour": str})
    with pytest.raises(KeyError, match="has no table"):
        facts_of("colours", RUN)


def test_every_form_of_the_tables_is_a_unit_or_a_format():
    forms = [row["text"] for row in cells._read("facts.csv")]
    for row in cells._read("tables.csv"):
        for column in row["columns"].split(" | "):
            form = column.partition("=")[2]
            forms.append(form if "{" in form else f"{{{form}}}" if form else "")
    found = {form for text in forms for form in re.findall(r"{[\w.\[\]]*:([^{}|]*)", text)}
    assert len(found) > 30
    for form in found:
        value = {"category": "hbm"}.get(form, 0.5)
        assert say(f"{{0:{form}}}", {}, value if form not in (",", "") else 5), form
