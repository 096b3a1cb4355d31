"""A row of a table of measurements, cell by cell."""

import json

import pytest

from costmodel.base.errors import CostModelError, DataError
from costmodel.describe.recipe import list_recipes
from costmodel.trust.published_runs import (
    REQUIRED_COLUMNS,
    _table,
    job_of_row,
    read_rows,
    recipe_of_row,
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


def test_an_empty_cell_takes_what_is_usual():
    """2 x A100's NICs of 200 Gbit/s, ZeRO-1, and the framework's recipe of the year."""
    bare = {key: cell for key, cell in ROW.items() if key not in ("recipe", "switches", "recompute")}
    rack = {"accelerator": "mi300x", "gpus_per_node": "4", "nvlink_domain": "8", "gpus": "8"}
    # Inside one domain of several nodes no network is needed.
    assert [tier.size for tier in job_of_row({**bare, **rack, "nic_gbit_per_gpu": ""}).cluster.tiers] == [8]
    job = job_of_row({**bare, "nic_gbit_per_gpu": "", "network": ""})
    assert job.cluster.tiers[-1].bandwidth_bytes_per_s == pytest.approx(200e9 / 8)
    assert (float(job.layout.zero_stage), float(job.layout.recompute)) == (1, 0)
    assert (job.recipe.name, job.recipe.moe.moe_balance) == ("nemo", "balanced")
    years = {
        year: recipe_of_row({**bare, "framework": "megatron-lm", "year": year})
        for year in ("2021", "2022", "")
    }
    assert years == {"2021": "megatron-2021", "2022": "megatron-2022", "": "megatron-core"}


def test_without_a_column_of_switches_plain_columns_count():
    bare = {key: cell for key, cell in ROW.items() if key != "switches"}
    bare |= {"grad_dtype": "bf16", "dropout": "true", "attention_kernel": "flash"}
    recipe = job_of_row(bare).recipe
    assert (recipe.dtypes.grad_reduce_dtype, recipe.kernels.dropout) == ("bf16", True)
    assert recipe.kernels.attention_kernel == job_of_row(ROW).recipe.kernels.attention_kernel
    assert job_of_row({**bare, "switches": ""}).recipe == job_of_row(ROW).recipe


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({"switches": "{dropout"}, "switches: not JSON"),
        ({"switches": "[1]"}, "switches: expected names and values"),
        ({"switches": '{"dropuot": true}'}, "dropuot"),
        ({"recipe": "megatron-cor"}, "megatron-core"),
        ({"recipe": "", "framework": "ours"}, "recipe is not given, and none is known for framework 'ours'"),
        ({"mbs": ""}, "mbs is not given"),
        ({"mbs": "two"}, "mbs: expected a whole number, got 'two'"),
        ({"accelerator": "mi300x", "nic_gbit_per_gpu": ""}, "nic_gbit_per_gpu is not given"),
    ],
)
def test_what_a_row_cannot_say(cells, sentence):
    with pytest.raises(CostModelError, match=sentence) as refused:
        job_of_row({**ROW, **cells})
    assert "\n" not in str(refused.value)


def test_usual_recipes_exist_and_shipped_rows_name_theirs():
    assert {usual["recipe"] for usual in _table("framework_recipes.csv")} <= set(list_recipes())
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
