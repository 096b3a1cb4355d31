"""A row of a table of measurements, cell by cell."""

import json

import pytest

from costmodel.base.errors import CostModelError, DataError
from costmodel.describe.recipe import list_recipes
from costmodel.trust.published_runs import (
    REQUIRED_COLUMNS,
    job_of_row,
    read_rows,
    shipped_runs,
)
from costmodel.trust.validation import validate

ROW = {
    "id": "a",
    "source": "some",
    "framework": "nemo",
    "layers": "40",
    "hidden": "5120",
    "ffn": "13824",
    "heads": "40",
    "vocab": "128000",
    "seq_len": "2048",
    "accelerator": "a100-sxm-80gb",
    "gpus": "64",
    "gpus_per_node": "8",
    "nvlink_domain": "8",
    "nic_gbit_per_gpu": "100",
    "network": "roce",
    "precision": "bf16",
    "tp": "2",
    "pp": "1",
    "mbs": "1",
    "gbs": "512",
    "recompute": "full",
    "recipe": "megatron-core",
    "switches": "",
}


def test_cells_are_the_job():
    switches = {"dropout": True, "moe_balance": "balanced", "selective_modules": ["core_attn"]}
    row = {**ROW, "cp": "2", "pp": "4", "vp": "5", "zero_stage": "2", "switches": json.dumps(switches)}
    job = job_of_row(row)
    layout = {
        name: float(getattr(job.layout, name)) for name in ("tp", "cp", "pp", "vp", "zero_stage", "etp")
    }
    assert layout == {"tp": 2, "cp": 2, "pp": 4, "vp": 5, "zero_stage": 2, "etp": 2}
    assert (job.recipe.name, job.recipe.moe.moe_balance) == ("megatron-core", "balanced")
    assert job.recipe.memory.selective_modules == ("core_attn",)
    nodes = job.cluster.tiers[-1]
    assert (nodes.size, nodes.bandwidth_bytes_per_s) == (64, pytest.approx(100e9 / 8))


def test_a_layout_string_and_a_named_cluster_are_taken():
    deep = {**ROW, "pp": "2", "vp": "2", "layers": "4", "pp_layout": "Et|t|t|tL"}
    assert len(job_of_row(deep).pipeline_layout) == 4
    torus = {**ROW, "cluster": "tpu-v5e", "accelerator": "tpu-v5e", "gpus": "512", "nvlink_domain": "256"}
    assert job_of_row(torus).slice == "16x16"
    # Without the cell: an accelerator that comes in pods, in as few as hold the job.
    assert job_of_row({**torus, "cluster": "", "nvlink_domain": ""}).slice == "16x16"


def test_an_empty_cell_is_zero_1_without_recomputation_or_switches_and_needs_no_network_in_one_domain():
    bare = {key: cell for key, cell in ROW.items() if key not in ("switches", "recompute")}
    job = job_of_row(bare)
    assert (float(job.layout.zero_stage), float(job.layout.recompute)) == (1, 0)
    assert job.recipe.switches == job_of_row({**bare, "switches": "{}"}).recipe.switches
    rack = {"accelerator": "mi300x", "gpus_per_node": "4", "nvlink_domain": "8", "gpus": "8"}
    assert [tier.size for tier in job_of_row({**bare, **rack, "nic_gbit_per_gpu": ""}).cluster.tiers] == [8]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({"switches": "{dropout"}, "switches: not JSON"),
        ({"switches": "[1]"}, "switches: expected names and values"),
        ({"switches": '{"dropuot": true}'}, "dropuot"),
        ({"recipe": "megatron-cor"}, "megatron-core"),
        ({"recipe": ""}, "recipe is not given"),
        ({"mbs": ""}, "mbs is not given"),
        ({"mbs": "two"}, "mbs: expected a whole number, got 'two'"),
        ({"accelerator": "mi300x", "nic_gbit_per_gpu": ""}, "nic_gbit_per_gpu is not given"),
    ],
)
def test_what_a_row_cannot_say(cells, sentence):
    with pytest.raises(CostModelError, match=sentence) as refused:
        job_of_row({**ROW, **cells})
    assert "\n" not in str(refused.value)


def test_shipped_rows_name_their_recipes():
    rows = read_rows(shipped_runs())
    assert {row["recipe"] for row in rows} <= set(list_recipes())
    assert len({row["framework"] for row in rows}) > 20


def test_where_no_row_is_timed_tables_are_empty():
    checked = validate([{**ROW, "use": "oom", "id": "x", "source": "s", "quality": "A", "oom": "true"}])
    assert list(checked.summary("class"))[:3] == ["class", "runs", "skipped"]
    assert not len(checked.summary("class"))
    assert checked.grids()


def test_a_table_that_is_none_is_one_line(tmp_path):
    file, head = tmp_path / "runs.csv", ",".join(REQUIRED_COLUMNS)
    for text, said in (
        (None, "no such file"),
        (b"", "is empty"),
        (head.encode(), "no rows below the header"),
        (f"{head[3:]}\n{'1,' * 20}".encode(), f"lacks the column '{REQUIRED_COLUMNS[0]}'"),
        (f"{head}\n1,2".encode(), "line 2: has more or fewer cells than the header"),
        (f"{head}\n{'1,' * len(REQUIRED_COLUMNS)}1".encode(), "line 2: has more or fewer cells"),
    ):
        if text is not None:
            file.write_bytes(text)
        with pytest.raises(DataError) as error:
            read_rows(file)
        assert said in str(error.value)
        assert str(file) in str(error.value)
