"""A row of a table of measurements, read as the table means it."""

import pytest

from costmodel.base.errors import CostModelError
from costmodel.trust.published_runs import _attention_kernel, job_of_row
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
    "nic_gbit_per_gpu": "200",
    "network": "ib",
    "precision": "bf16",
    "tp": "1",
    "pp": "1",
    "mbs": "1",
    "gbs": "512",
    "recompute": "full",
}


@pytest.mark.parametrize(("framework", "gbit"), [("nemo", 200), ("aleph-scaling", 25)])
def test_the_rate_that_a_table_prints_is_that_of_a_gpu_unless_the_table_means_a_node(framework, gbit):
    between = job_of_row({**ROW, "framework": framework}).cluster.tiers[-1]
    assert between.bandwidth_bytes_per_s == pytest.approx(gbit * 1e9 / 8)


def test_nodes_of_four_share_the_rate_of_a_node_by_four():
    row = {**ROW, "framework": "aleph-scaling", "gpus_per_node": "4", "nvlink_domain": "4"}
    assert job_of_row(row).cluster.tiers[-1].bandwidth_bytes_per_s == pytest.approx(50e9 / 8)


@pytest.mark.parametrize(
    ("source", "reference", "named", "kernel"),
    [
        ("mlperf-v3.0", "results/dgxh100_n64_nemo", "flash", "flash1"),
        ("some", "results/n96_ngc23.04_pytorch", "flash", "flash1"),
        ("some", "results/eos_n64_ngc23.09_nemo", "flash", "flash"),
        ("some", "results/n96_ngc23.04_pytorch", "cudnn", "cudnn"),
        ("some", "a table of 2023", "flash", "flash"),
    ],
)
def test_flash_attention_is_the_first_version_in_containers_before_the_second(
    source, reference, named, kernel
):
    row = {**ROW, "source": source, "reference": reference, "attention_kernel": named}
    assert _attention_kernel(row) == kernel


@pytest.mark.parametrize(
    ("framework", "inferred", "part"),
    [
        ("torchtitan", "accelerator variant", "h100-hbm2e-96gb-500w"),
        ("torchtitan", "", "h100-sxm-80gb"),
        ("nemo", "accelerator variant", "h100-sxm-80gb"),
    ],
)
def test_an_h100_of_torchtitan_that_no_table_names(framework, inferred, part):
    row = {**ROW, "framework": framework, "inferred": inferred, "accelerator": "h100-sxm-80gb"}
    assert job_of_row(row).cluster.accelerator.name == part


@pytest.mark.parametrize(
    ("framework", "precision", "stage", "priced"),
    [
        ("megatron-deepspeed", "bf16", "0", 1),
        ("deepspeed", "bf16", "0", 1),
        ("megatron-deepspeed", "bf16", "3", 3),
        ("megatron-deepspeed", "fp16", "0", 0),
        ("nemo", "bf16", "0", 0),
    ],
)
def test_deepspeeds_optimizer_for_bf16_shards_its_states_at_stage_0(framework, precision, stage, priced):
    row = {**ROW, "framework": framework, "precision": precision, "zero_stage": stage}
    assert float(job_of_row(row).layout.zero_stage) == priced


@pytest.mark.parametrize(
    ("said", "fused"), [("fused RMSNorm off", False), ("fused RMSNorm on", True), ("", True)]
)
def test_a_norm_whose_kernel_a_row_says_is_off(said, fused):
    row = {**ROW, "framework": "paddlenlp", "notes": f"PaddleNLP; {said}"}
    assert job_of_row(row).recipe.kernels.fused_norm is fused


def test_a_node_of_no_gpus_shares_no_nic():
    row = {**ROW, "framework": "aleph-scaling", "gpus_per_node": "0", "nic_gbit_per_gpu": "800"}
    with pytest.raises(CostModelError, match=r"^gpus_per_node: expected at least 1, got 0$"):
        job_of_row(row)


def test_where_no_row_is_timed_tables_are_empty():
    checked = validate([{**ROW, "use": "oom", "id": "x", "source": "s", "quality": "A", "oom": "true"}])
    assert list(checked.summary("class"))[:3] == ["class", "runs", "skipped"]
    assert not len(checked.summary("class"))
    assert checked.grids()
