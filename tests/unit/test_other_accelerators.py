"""Accelerators beyond NVIDIA's: their numbers derived by hand, their kernels beside published products, their names."""

import pandas as pd
import pytest
from bands import error_bands

import costmodel as cm
from costmodel.base.errors import RecipeError
from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.hardware.profile_files import shipped_folder
from costmodel.estimates.priced_job import error_bands as shipped_bands
from costmodel.estimates.profile_check import check_profile
from costmodel.physics.kernels.roofline import matmul_time

CLUSTER_FILES = shipped_folder() / "clusters"


CLUSTERS = [
    "mi325x-roce400",
    "mi350x-roce400",
    "mi355x-roce400",
    "jureca-mi250",
    "gaudi2-roce",
    "gaudi3-roce",
    "atlas-900-a2",
    "aurora",
    "alps-gh200",
    "jedi-gh200",
    "polaris",
]


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_job_on_every_cluster_is_priced_run_and_checked(name):
    cluster = load_cluster(name)
    node = cluster.gpus_per_node
    assert cluster.max_gpus % node == 0
    est = cm.estimate(
        model="llama3-8b", cluster=cluster, gpus=2 * node, global_batch=4 * node, seq_len=4096, zero_stage=3
    )
    assert float(est.step_time_s) > 0
    assert cluster.storage is not None
    assert check_profile(CLUSTER_FILES / f"{name}.yaml") == []


# Published products: stas00/ml-engineering (best of a search), AMD-AGI/Primus (8,192), ALCF (best size, taken
# as 16,384), zzc0721/torch-performance-test-data issue 109 (Ascend 910B2). TPUs as the host times them, its part taken
# off: jax-ml/jax docs/pallas/tpu/matmul.ipynb (v5e, 107 us), yangwhale/gpu-tpu-pedia results_v6e.csv (108 and 113 us).
PRODUCTS = [
    ("mi325x", "bf16", (13312, 10240, 8192), 784.9, 0.03),
    ("gaudi2", "bf16", (14336, 15360, 2048), 418.7, 0.02),
    ("tpu-v5e", "bf16", (8192, 8192, 8192), 2e-6 * 8192**3 / (6047.1 - 107), 0.03),
    ("tpu-v5e", "bf16", (4096, 4096, 4096), 2e-6 * 4096**3 / (827.3 - 107), 0.03),
    ("tpu-v6e", "bf16", (8192, 4096, 7168), 2e-6 * 8192 * 4096 * 7168 / (754.6 - 108), 0.09),
    ("tpu-v6e", "bf16", (8192, 7168, 4096), 2e-6 * 8192 * 7168 * 4096 / (706.1 - 108), 0.09),
    ("tpu-v6e", "bf16", (4096, 8192, 8192), 2e-6 * 4096 * 8192 * 8192 / (798.0 - 108), 0.09),
    ("tpu-v6e", "int8", (4096, 8192, 8192), 2e-6 * 4096 * 8192 * 8192 / (539.7 - 113), 0.09),
    ("tpu-v6e", "int8", (8192, 8192, 8192), 2e-6 * 8192**3 / (973.9 - 113), 0.09),
    ("gaudi2", "fp8", (6144, 11264, 5120), 826.5, 0.02),
    ("gaudi3", "bf16", (16384, 4096, 768), 1243.0, 0.03),
    ("pvc-1550", "bf16", (16384, 16384, 16384), 2645.0 / 12.0, 0.03),
    ("ascend-910b", "bf16", (1024, 1024, 1024), 99.86, 0.05),
    ("ascend-910b", "bf16", (2048, 2048, 2048), 248.3, 0.05),
    ("ascend-910b", "bf16", (4096, 4096, 4096), 315.36, 0.07),
    ("ascend-910b", "bf16", (8192, 8192, 8192), 301.23, 0.05),
    ("ascend-910b", "bf16", (10240, 10240, 10240), 300.94, 0.05),
]


def test_products_take_what_was_published():
    for name, dtype, (m, n, k), tflops, error in PRODUCTS:
        a = load_accelerator(name)
        time_s = matmul_time(
            m,
            n,
            k,
            constants=a.kernels.matmul[dtype],
            peak_flops_per_s=a.peak_flops_per_s[PEAK_KEY[dtype]],
            memory_bandwidth_bytes_per_s=a.memory_bandwidth_bytes_per_s,
            input_bytes=1.0 if dtype in ("fp8", "int8") else 2.0,
            sustained=False,
        ).value
        assert 2e-12 * m * n * k / float(time_s) == pytest.approx(tflops, rel=error), (name, dtype, m)


def test_an_all_gather_over_a_mesh_by_hand():
    """8 GB over eight MI355X: 7 of 8 shards arrive over 70 % of seven links of 76.5 GB/s."""
    found = cm.collective("all-gather", 8e9, ranks=8, cluster="mi355x")
    wire_s = 8e9 * 7 / 8 / (0.7 * 7 * 76.5e9)
    # RCCL's chunk pipeline of 6.7 us takes twice the root of its product with that; a start and seven steps 34 us.
    assert found.time_s.item() == pytest.approx(
        wire_s + 2 * (6.7e-6 * wire_s) ** 0.5 + 20e-6 + 7 * 2e-6, rel=1e-6
    )


def test_a_job_that_names_no_recipe_takes_that_of_the_device():
    job = {"model": "llama3-8b", "gpus": 16, "global_batch": 32, "seq_len": 4096, "zero_stage": 1}
    used = {
        name: cm.estimate(**job, cluster=name).job.recipe.name
        for name in ("mi355x", "gaudi2-roce", "atlas-900-a2")
    }
    assert used == {
        "mi355x": "megatron-rocm",
        "gaudi2-roce": "megatron-deepspeed-gaudi",
        "atlas-900-a2": "mindspeed",
    }


def test_what_is_announced_is_said():
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 4096}
    said = [cm.estimate(**job, cluster=name).warnings for name in ("vr-nvl144", "helios-mi455x", "mi355x")]
    assert ["announced, not measured" in " ".join(one) for one in said] == [True, True, False]


def test_the_band_is_wider_where_nobody_timed_the_kernels():
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 4096}
    bands = {
        name: cm.estimate(**job, cluster=name).error_band
        for name in ("helios-mi455x", "workstation-l40s", "dgx-h100-ndr")
    }
    assert bands["helios-mi455x"].of == bands["workstation-l40s"].of == "any-dense-estimated"
    guess, known = bands["helios-mi455x"], bands["dgx-h100-ndr"]
    assert guess.low < known.low < known.high < guess.high
    assert (load_accelerator("mi455x").is_estimated, load_accelerator("h100").is_estimated) == (True, False)


def test_bands_of_estimated_machines_are_of_their_runs_alone():
    runs = pd.DataFrame(
        {
            "accelerator": ["h100-sxm-80gb"] * 10 + ["mi355x"] * 10,
            "source": ["a"] * 10 + ["b"] * 10,
            "gpus": 8,
            "num_experts": 0,
            "quality": "A",
            "memory_error": 0.0,
        }
    )
    errors = pd.Series([0.0] * 10 + [-0.5] * 10)
    time = error_bands(runs, errors, errors)["time"]
    assert time["any-dense-estimated"] == {"low": 2.0, "high": 2.0, "runs": 10, "sources": 1}
    # Two sources are few: the band is wider than their runs.
    assert time["any-dense-unfitted"]["low"] < 1.0 < 2.0 < time["any-dense-unfitted"]["high"]


def beside_compute(**changes):
    """Return a collective of a v7x that hides behind products, and its seconds."""
    job = {
        "model": "llama3-8b",
        "cluster": "tpu-v7x",
        "gpus": 256,
        "layout": "tp4",
        "zero_stage": 3,
        "global_batch": 512,
        "seq_len": 8192,
    }
    est = cm.estimate(**{**job, **changes})
    (line,) = [one for one in est.bill.time_lines if one.name == "tp.mlp.all_gather.forward"]
    return est, float(line.each_s), float(line.exposed_each_s)


def test_sparse_cores_leave_the_cores_that_compute_their_speed():
    """What a collective hides behind takes 15 % of it where cores that compute move the data, and nothing otherwise."""
    _, busy, exposed = beside_compute(switches={"collectives_on": "sparse-cores"})
    _, same, slowed = beside_compute(switches={"collectives_on": "compute-cores"})
    assert same == busy
    assert 0.0 < exposed < busy
    assert slowed == pytest.approx(exposed + 0.15 * (busy - exposed), rel=1e-12)
    _, _, less = beside_compute(switches={"collectives_on": "compute-cores", "overlap_contention": 0.05})
    assert less == pytest.approx(exposed + 0.05 * (busy - exposed), rel=1e-12)


@pytest.mark.parametrize(
    ("cluster", "cores"),
    [("tpu-v7x", "sparse-cores"), ("tpu-v6e", "compute-cores"), ("tpu-v5e", "compute-cores")],
)
def test_collectives_lie_where_published_recipes_of_the_chip_put_them(cluster, cores):
    est, _, _ = beside_compute(cluster=cluster, recipe="maxtext-tpu")
    assert est.job.recipe.overlap.collectives_on == cores
    assert est.job.switched({"collectives_on": "auto"}).recipe.overlap.collectives_on == cores


def test_experts_exchange_beside_products_by_the_same_cores():
    job = {
        "model": "mixtral-8x7b",
        "layout": "tp1",
        "ep": 8,
        "cluster": "tpu-v7x",
        "gpus": 64,
        "recipe": "megatron-core",
    }
    overlap = {"ep_overlap": True, "moe_dispatcher": "all-to-all"}
    found = []
    for cores in ("sparse-cores", "compute-cores"):
        switches = {**overlap, "collectives_on": cores}
        est = cm.estimate(**job, global_batch=256, seq_len=4096, zero_stage=1, switches=switches)
        found += [one for one in est.bill.time_lines if one.name == "ep.moe.dispatch.forward"]
    (free, slowed), busy = (float(one.exposed_each_s) for one in found), float(found[0].each_s)
    assert slowed == pytest.approx(free + 0.15 * (busy - free), rel=1e-12)
    assert slowed > free


def test_sparse_cores_are_refused_where_there_are_none():
    for cluster in ("tpu-v5e", "dgx-h100-ndr"):
        with pytest.raises(RecipeError, match="sparse-cores needs a device that has them"):
            beside_compute(cluster=cluster, switches={"collectives_on": "sparse-cores"})


def test_an_imagined_chip_is_no_surer_than_others_that_nobody_timed(tmp_path):
    header = "schema_version: 1\n"
    faster = "{value: 2 PFLOP/s, source: assumed}"
    (tmp_path / "x1.yaml").write_text(
        f"{header}profile: accelerator\nname: x1\ninherit: h200-sxm-141gb\npeak_dense: {{bf16: {faster}}}\n"
        "tdp: {value: 900 W, source: assumed}\n"
    )
    (tmp_path / "xc.yaml").write_text(
        f"{header}profile: cluster\nname: xc\ninherit: dgx-h200-ndr\naccelerator: x1\n"
    )
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 4096, "tp": 8}
    bands = shipped_bands().time
    imagined = cm.estimate(**job, cluster=load_cluster("xc", profile_path=tmp_path))
    assert imagined.error_band == bands["any-dense-estimated"]
    assert cm.estimate(**job, cluster="dgx-h200-ndr").error_band == bands["hopper-dense"]


def test_a_gh200_runs_at_the_clock_that_its_module_leaves():
    """Of 680 W Grace takes 100; the clock under load goes with the cube root of 580 over H100's 700."""
    own, h100 = (load_accelerator(name).kernels.matmul for name in ("gh200", "h100-sxm-80gb"))
    for dtype in ("bf16", "fp8", "fp8-block"):
        clock = (1.0 - h100[dtype].sustained_loss) * (580 / 700) ** (1 / 3)
        assert 1.0 - own[dtype].sustained_loss == pytest.approx(clock, abs=5e-4)
