"""A row of a table of measurements, cell by cell."""

import csv
import json
from collections import Counter

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError, DataError
from costmodel.describe.recipe import list_recipes
from costmodel.trust.published_runs import REQUIRED_COLUMNS, job_of_row, read_rows, shipped_runs
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
        (f"{head}\n1,2".encode(), "line 2: has 2 cells, expected"),
        (f"{head}\n{'1,' * len(REQUIRED_COLUMNS)}1".encode(), "line 2: has "),
    ):
        if text is not None:
            file.write_bytes(text)
        with pytest.raises(DataError) as error:
            read_rows(file)
        assert said in str(error.value)
        assert str(file) in str(error.value)


PRECISIONS = ("fp16", "bf16", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4")


def test_every_published_run_is_counted_once_under_its_family():
    with shipped_runs().open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    table = cm.support().to_frame()
    assert table.runs.sum() == len(rows)
    latent = sum(row["attention"] == "mla" for row in rows)
    experts = sum(float(row["num_experts"] or 0) > 0 and row["attention"] != "mla" for row in rows)
    counted = table.groupby("family").runs.sum()
    assert counted[["MoE", "latent attention", "other mixers"]].tolist() == [experts, latent, 0]
    by_chip = Counter(row["accelerator"] for row in rows)
    assert table.groupby("accelerator").runs.sum().loc[lambda runs: runs > 0].to_dict() == dict(by_chip)
    nemo = [
        row["source"]
        for row in rows
        if (row["accelerator"], row["precision"], row["recipe"]) == ("h100-sxm-80gb", "bf16", "nemo")
        and not float(row["num_experts"] or 0)
        and row["attention"] != "mla"
    ]
    found = cm.support("llama3-8b", "dgx-h100-ndr").to_frame().set_index(["precision", "framework"])
    assert found.loc[("bf16", "nemo"), ["status", "runs", "sources"]].tolist() == [
        *("measured", len(nemo), len(set(nemo)))
    ]


def test_what_is_not_modelled_is_what_an_estimate_refuses():
    job = {"model": "llama3-8b", "gpus": 8, "layout": "tp2", "global_batch": 64, "seq_len": 4096}
    for cluster in ("dgx-a100-hdr", "dgx-h100-ndr", "hgx-b200-ndr", "mi300x", "tpu-v5p"):
        table = cm.support("llama3-8b", cluster).to_frame()
        for precision in PRECISIONS:
            states = set(table[table.precision == precision].status)
            if "not modelled" in states:
                with pytest.raises(cm.CostModelError, match=r"precision|peak"):
                    cm.estimate(**job, cluster=cluster, precision=precision)
            else:
                assert float(cm.estimate(**job, cluster=cluster, precision=precision).step_time_s) > 0


def test_families_follow_the_model_and_wrong_names_are_one_line():
    for model, family in (
        ("llama3-8b", "dense"),
        ("mixtral-8x7b", "MoE"),
        ("deepseek-v3", "latent attention"),
        ("qwen3-next-80b-a3b", "other mixers"),
    ):
        assert set(cm.support(model, "h100").to_frame().family) == {family}
    for wrong, said in (
        (("llama9", ""), "model: 'llama9' is unknown"),
        (("", "mi3"), "unknown accelerator 'mi3'"),
    ):
        with pytest.raises(cm.CostModelError, match=said):
            cm.support(*wrong)
