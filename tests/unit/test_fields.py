"""The table of names: what follows from it agrees with it, and what it refuses is refused everywhere."""

import dataclasses
import inspect
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.base.errors import CostModelError, LayoutError
from costmodel.base.units import parse_number, read_quantity
from costmodel.cli import main
from costmodel.cli.options import complete
from costmodel.describe.hardware.profile_schema import memory_problem
from costmodel.describe.jobs.fields import (
    BUDGET_FIELDS,
    FIELD,
    FIELDS,
    JOB_FIELDS,
    KNOBS,
    LAYOUT_FIELDS,
    PLACE_FIELDS,
    PLAN_FIELDS,
    RUN_FIELDS,
    SWEEP_FIELDS,
    names,
)
from costmodel.describe.jobs.layout import Layout, parse_layout
from costmodel.describe.jobs.merge import read_job
from costmodel.describe.jobs.reading import read, read_array, read_several
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.physics.pipeline.schedule_table import SCHEDULES

SMALL = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192}
WHOLE = [field for field in FIELDS if field.kind == "whole"]


def test_names_aliases_and_flags_are_unique():
    for texts in (
        [name for field in FIELDS for name in (field.name, *field.aliases)],
        [flag for field in FIELDS for flag in (*field.flags, field.short) if flag],
    ):
        assert len(texts) == len(set(texts))


def test_the_layout_holds_the_fields_of_the_table():
    held = [field.name for field in dataclasses.fields(Layout)]
    assert sorted(held) == sorted(["gpus", *(field.name for field in LAYOUT_FIELDS if field.name != "dp")])
    assert set(KNOBS) == set(held) - {"gpus"}


def test_defaults_are_read_by_their_own_readers():
    for field in FIELDS:
        if field.default is not None:
            read(field.name, field.default)
    assert read("axis_order", FIELD["axis_order"].default) == DEFAULT_ORDER
    assert FIELD["schedule"].words == tuple(SCHEDULES)


TAKES = {
    "estimate": JOB_FIELDS,
    "plan": PLAN_FIELDS,
    "sweep": SWEEP_FIELDS,
    "run": (*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"]),
    "budget": BUDGET_FIELDS,
    "mesh": PLACE_FIELDS,
}


def test_every_call_shows_its_fields_and_asks_what_an_unknown_one_was_meant_to_be():
    for verb, fields in TAKES.items():
        call = getattr(cm, verb)
        assert set(names(fields)) <= set(inspect.signature(call).parameters), verb
        asked = {} if verb in ("budget", "mesh") else SMALL
        with pytest.raises(CostModelError, match=f"^{verb}: 'gpu' is not a field; did you mean 'gpus'"):
            call(**{**asked, "gpu": 8})


def test_every_call_says_what_is_missing():
    for verb in ("estimate", "plan", "sweep", "run"):
        with pytest.raises(CostModelError, match=f"^{verb}: model.*missing"):
            getattr(cm, verb)(gpus=8)


# --- reading ---------------------------------------------------------------------------------


def test_what_people_write_is_read():
    for name, said, value in (
        ("seq_len", "32k", 32768),
        ("seq_len", "128K", 131072),
        ("seq_len", "1M", 1048576),
        ("seq_len", "8192", 8192),
        ("tokens", "15T", 15e12),
        ("tokens", "15.6T", 15.6e12),
        ("tokens", "300B", 300e9),
        ("tokens", "3M", 3e6),
        ("tokens", 2e12, 2e12),
        ("days", "24h", 1.0),
        ("days", "6 weeks", 42.0),
        ("global_batch", "4e6", 4_000_000),
        ("global_batch", "2Ki", 2048),
        ("gpus", "16_384", 16384),
        ("gpus", 8.0, 8),
        ("gpus", np.int64(8), 8),
        ("recompute", "Full", "full"),
        ("sequence_parallel", "on", True),
        ("sequence_parallel", 0, False),
        ("axis_order", "tp-cp-pp-dp", ("tp", "cp", "pp", "dp")),
        ("axis_order", ["tp", "cp", "pp", "dp"], ("tp", "cp", "pp", "dp")),
        ("switches", ["dp_overlap=none"], {"dp_overlap": "none"}),
        ("switches", {"dp_overlap": "none"}, {"dp_overlap": "none"}),
        ("max_memory_bytes", "72GiB", 72 * 2**30),
        ("max_memory_bytes", 1e9, 1e9),
        ("headroom", "10%", 0.1),
        ("headroom", 0.25, 0.25),
        ("fix", ["pp=1", "zero=2"], {"pp": "1", "zero_stage": "2"}),
        ("price_usd_per_gpu_hour", "$2.10", 2.1),
        ("dollars", "3M", 3e6),
        ("dollars", "$5e6", 5e6),
        ("served_tokens", "1e13", 10**13),
        ("repair_s", "2d", 172800.0),
        ("repair_s", 60, 60.0),
        ("storage_bytes_per_s", "100GB/s", 1e11),
    ):
        assert read(name, said) == value, (name, said)


NO_NUMBER = (
    *(
        float("nan"),
        float("inf"),
        -1,
        1.5,
        True,
        10**400,
        1e20,
        "many",
        "1e400",
        "-3",
        "9" * 5000,
        "\x1b[31m",
    ),
    *(None, {}, [[1], [2, 3]], np.asarray([]), b"8", object),
)


def test_a_whole_number_is_inside_its_range_or_refused_in_one_line():
    for field in WHOLE:
        for value in (field.least, field.most):
            assert read(field.name, int(value)) == value
            assert read_array(field.name, [int(value)]).tolist() == [value]
        for value in (*NO_NUMBER, int(field.least) - 1, 2 * int(field.most)):
            several = isinstance(value, np.ndarray | list)
            for reader in [read_array] if several else [read, read_array]:
                with pytest.raises(LayoutError) as error:
                    reader(field.name, value)
                message = str(error.value)
                expected = (
                    f"{field.name}: expected a whole number from {field.least:,.0f} to {field.most:,.0f}"
                )
                assert message.startswith(expected)
                assert len(message) < 200
                assert message.isprintable()


def test_tokens_stay_in_their_range():
    for bad in ("1e30", "inf", "nan", "0", "-5", "15 trillion", True, 1e19, 10**400):
        with pytest.raises(LayoutError, match="tokens: expected a number from 1 to 1e\\+18"):
            read("tokens", bad)


def test_a_prefix_with_two_readings_is_refused():
    with pytest.raises(LayoutError, match=r"gpus: .* got '16k' \('k' has two readings"):
        read("gpus", "16k")


def test_arrays_are_read_like_single_values():
    assert read_array("seq_len", ["8k", 4096]).tolist() == [8192, 4096]
    assert read_array("recompute", [["none"], ["full"]]).tolist() == [[0], [2]]
    assert read_array("recompute", 2).tolist() == 2
    assert read_array("schedule", ["1f1b", "gpipe"]).tolist() == [list(SCHEDULES).index("1f1b"), 2]
    assert read_array("sequence_parallel", [True, False]).tolist() == [1, 0]
    assert read_several("recompute", "none, full") == ["none", "full"]
    assert read_several("gpus", np.asarray([8, 16])) == [8, 16]
    assert read_several("axis_order", ("tp", "cp", "pp", "dp")) == [("tp", "cp", "pp", "dp")]
    assert len(read_several("axis_order", ["tp cp pp dp", "tp cp dp pp"])) == 2
    for bad in (3, -1, "ful", [0, 7], True):
        with pytest.raises(LayoutError, match="recompute"):
            read_array("recompute", bad)


@given(st.integers(1, 2**20), st.integers(1, 10_000))
def test_a_value_as_text_array_and_number_is_one(gpus, tp):
    assert read("gpus", str(gpus)) == read("gpus", gpus) == read_array("gpus", str(gpus))
    assert parse_layout(f"tp{tp}pp4") == parse_layout(f"tp={tp} pp:4") == {"tp": tp, "pp": 4}


def refused(name, text):
    """What is said where a text is refused; nothing where it is read."""
    try:
        read(name, text)
    except CostModelError as error:
        return str(error)
    return name


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_in_one_line(text):
    for field in FIELDS:
        assert refused(field.name, text).isprintable()


def test_times_and_sizes_have_one_reader():
    assert read_quantity("restart", "3h", "s") == 10800
    assert read_quantity("restart", "2 d", "s") == 172800
    assert read_quantity("alpha", "1us", "s") == 1e-6
    assert read_quantity("bandwidth", "450GB/s", "B/s") == 450e9
    for text in ("80", "72G", "1 fortnight", "", "x" * 9999, None):
        with pytest.raises(CostModelError, match=r"^memory: "):
            read_quantity("memory", text, "B")
    assert parse_number("1_000") == 1000
    assert isinstance(parse_number("32k"), int)


# --- the same under every name, from everywhere ----------------------------------------------


def test_aliases_mean_the_same_in_python():
    plain = cm.estimate(**SMALL, zero_stage=2, switches={"dp_overlap": "none"})
    other = cm.estimate(**SMALL, zero=2, set=["dp_overlap=none"])
    assert plain.to_dict() == other.to_dict()
    with pytest.raises(CostModelError, match="zero_stage is given twice, as 2 and as 3"):
        cm.estimate(**SMALL, zero_stage=2, zero=3)


def test_wrong_keywords_get_one_line():
    for change, expected in (
        ({"gpu": 8}, "'gpu' is not a field; did you mean 'gpus'?"),
        ({"zero_stag": 8}, "'zero_stag' is not a field; did you mean 'zero_stage'"),
        ({"model": 0.5}, "model: expected a text, got 0.5"),
        ({"model": object()}, "model: expected a text or a Model"),
        ({"cluster": []}, "cluster: expected a text"),
        ({"recipe": []}, "recipe: expected a text"),
        ({"precision": []}, "precision: expected a text"),
        ({"layout": 1}, "layout: expected degrees in one text"),
        ({"switches": [1]}, "switches: expected a mapping"),
        ({"switches": {1: 2}}, "switches: expected names of switches"),
        ({"axis_order": 5}, "axis_order: expected the axes"),
        ({"tokens": [1, 2]}, "tokens: expected a number"),
        ({"gpus": []}, "gpus: expected a whole number"),
        ({"tp": [[1], [2, 3]]}, "tp: expected a whole number"),
        ({"gpus": None}, "gpus missing"),
    ):
        with pytest.raises(CostModelError) as error:
            cm.estimate(**{**SMALL, **change})
        assert expected in str(error.value)
        assert len(str(error.value)) < 300


# --- three doors -----------------------------------------------------------------------------

DOORS = {
    "cluster": ("dgx-h200-ndr", "dgx-h200-ndr"),
    "recipe": ("nemo", "nemo"),
    "precision": ("fp8", "fp8"),
    "gpus": ("16", 16),
    "layout": ("tp2pp2", "tp2 pp2"),
    "tp": ("2", 2),
    "cp": ("2", 2),
    "pp": ("2", 2),
    "dp": ("8", 8),
    "micro_batch": ("2", 2),
    "zero_stage": ("2", 2),
    "shard_group": ("4", 4),
    "recompute": ("full", "full"),
    "global_batch": ("128", 128),
    "seq_len": ("4k", 4096),
    "switches": ("dp_overlap=none", {"dp_overlap": "none"}),
    "axis_order": ("tp-cp-pp-dp", ["tp", "cp", "pp", "dp"]),
    "tokens": ("1T", 1e12),
    "model": ("llama3-70b", "llama3-70b"),
}


def test_a_field_means_the_same_as_a_flag_in_a_file_and_in_python(tmp_path, capsys):
    file = tmp_path / "job.yaml"

    def printed(*command):
        assert main(["estimate", *command, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)["inputs"]

    for name, (text, value) in DOORS.items():
        named = {} if FIELD[name].degree or name == "layout" else {"tp": 1}
        others = {key: held for key, held in {**SMALL, **named}.items() if key != name}
        expected = cm.estimate(**others, **{name: value}).to_dict()["inputs"]
        for key in (name, *FIELD[name].aliases):
            written = value if name == "switches" else text
            file.write_text(json.dumps({**others, key: written}))
            assert printed(str(file)) == expected
            assert cm.estimate(**others, **{key: text}).to_dict()["inputs"] == expected
        file.write_text(json.dumps(others))
        # All flags of a field are names of one option.
        for flag in {FIELD[name].flags[0], FIELD[name].flags[-1]}:
            assert printed(str(file), flag, text) == expected


def test_every_flag_of_the_table_is_an_option_of_its_command(capsys):
    for command, fields in (("estimate", JOB_FIELDS), ("plan", PLAN_FIELDS), ("mesh", PLACE_FIELDS)):
        assert main([command, "--help-all"]) == 0
        shown_help = capsys.readouterr().out
        for field in fields:
            assert all(re.search(rf"{flag}\b", shown_help) for flag in field.flags), field.name


def test_a_shell_completes_names_and_words():
    assert complete("schedule", "zb-h") == [name for name in SCHEDULES if name.startswith("zb-h")]
    assert complete("recompute", "none,f") == ["none,full"]
    assert "fp8" in complete("precision", "fp")
    assert complete("model", "llama3-405") == ["llama3-405b"]
    assert "dp_overlap=none" in complete("switches", "dp_ov")
    for name in FIELD:
        assert isinstance(complete(name, ""), list)


def test_a_job_that_never_ends_is_still_a_number(capsys):
    job = {"model": "llama2-7b", "cluster": "mi300x-roce400", "gpus": 256, "layout": "tp16cp4pp2vp3"}
    run = cm.run(**job, global_batch=4, seq_len="128k", tokens="1T", failures_per_node_day=30)
    assert np.isfinite(run.days)
    assert all(np.isfinite(value) for value in run.spread()["days"])
    assert run.spread()["days"][0] > 0


JOB = {"model": "llama3-8b", "cluster": "dgx-a100-hdr", "gpus": 64, "global_batch": 256, "seq_len": 4096}


def refusal(**more):
    with pytest.raises(CostModelError) as error:
        cm.estimate(**{**JOB, **more})
    return str(error.value)


def test_lists_of_two_lengths():
    for more, said in [
        (
            {"gpus": [64, 128], "tp": [1, 2, 4]},
            ("gpus, tp: expected lists of one length", "2 of gpus, 3 of tp"),
        ),
        ({"tp": [1, 2], "pp": [1, 2, 4]}, ("2 of tp, 3 of pp",)),
        ({"seq_len": [4096] * 2, "micro_batch": [1] * 3}, ("2 of seq_len, 3 of micro_batch",)),
        ({"global_batch": [256] * 2, "gpus": [64] * 3}, ("3 of gpus, 2 of global_batch",)),
    ]:
        text = refusal(**more)
        assert "costmodel.sweep takes every combination" in text
        assert all(part in text for part in said)


def test_lists_that_go_together():
    assert cm.estimate(**{**JOB, "gpus": [[64], [128]], "tp": [1, 2, 4]}).step_time_s.shape == (2, 3)
    assert cm.estimate(**{**JOB, "gpus": [64, 128], "tp": [4]}).step_time_s.shape == (2,)


def test_one_value_where_a_list_stands():
    text = refusal(precision=["bf16", "fp8"])
    assert text.startswith(
        "precision: expected a text, got ['bf16', 'fp8'] (one value, bf16, fp16, fp32, fp8"
    )
    assert text.endswith("; costmodel.sweep takes several)")
    assert "Python API" not in text


def test_memory_above_the_fitted_one_shows_both():
    assert memory_problem(120 * 2**30, 128e9) == (
        "memory: expected at most memory_vendor, what is fitted (119.2 GiB, 128.0 GB), got 120.0 GiB, 128.8 GB"
    )
    assert memory_problem(128e9, 128e9) == ""


def test_what_was_measured_is_checked_in_every_job_file(tmp_path):
    for measured, said in [
        ("{step_time: soon}", "step_time"),
        ("{step_time: 0}", "step_time: expected more than 0, got '0'"),
        ("{memory: 3 apples}", "memory"),
        ("{memory: 61GiB, memory_kind: guessed}", "memory_kind: 'guessed' is unknown"),
        ("{memory_kind: stated}", "expected step_time or memory"),
        ("{pace: 3}", "'pace' is unknown"),
        ("soon", "expected what was measured"),
    ]:
        path = tmp_path / "job.yaml"
        path.write_text(f"gpus: 8\nmeasured: {measured}\n", encoding="utf-8")
        with pytest.raises(CostModelError) as error:
            read_job(path)
        assert str(error.value).startswith(f"{path}: measured: ")
        assert said in str(error.value)


def test_what_was_measured_is_no_field_of_the_job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("gpus: 8\nmeasured: {step_time: 5.2s, memory_kind: stated}\n", encoding="utf-8")
    assert read_job(path) == {"gpus": 8}


def test_what_is_no_estimate_is_named_by_what_compares_estimates():
    est = cm.estimate(**JOB, tp=2, precision="bf16")
    for call, said in [
        (lambda: cm.sensitivity(model="llama3-8b"), "sensitivity: model: expected an estimate"),
        (lambda: cm.sensitivity("llama3-8b"), "sensitivity: expected an estimate.* got 'llama3-8b'"),
        (lambda: cm.compare(est, 4), "compare: expected estimates .* got 4"),
        (lambda: cm.compare([est, est]), r"compare: expected estimates one by one, such as compare\(a, b\)"),
        (lambda: cm.compare(est), r"compare: 1 job given, expected two or more, such as compare\(a, b\)"),
    ]:
        with pytest.raises(CostModelError, match=said):
            call()
