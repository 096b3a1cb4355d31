"""What is measured, estimated and not modelled: counted again from the published table, and asked of the pricing."""

import csv
from collections import Counter

import pytest

import costmodel as cm
from costmodel.trust.published_runs import shipped_runs

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
