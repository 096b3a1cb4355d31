"""`hardware check` refuses what an estimate would refuse, and numbers left over from another device."""

from pathlib import Path

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.cli import main
from costmodel.describe.hardware.hardware import compose_cluster, load_accelerator, load_cluster
from costmodel.estimates.profile_check import check_profile

PROFILES = Path(__file__).parents[2] / "hardware_profiles"

MI325X = """schema_version: 1
profile: accelerator
name: mi325x
title: AMD Instinct MI325X 256 GB
aliases: [mi325]
generation: cdna3
peak_dense:
  fp16: {value: 1307 TFLOP/s, source: sheet}
  bf16: {value: 1307 TFLOP/s, source: sheet}
  fp8: {value: 2615 TFLOP/s, source: sheet}
memory: {value: 255.9 GiB, source: assumed}
memory_vendor: {value: 256 GiB, source: sheet}
memory_bandwidth: {value: 6 TB/s, source: sheet}
num_sms: {value: 304, source: sheet}
tdp: {value: 1000 W, source: sheet}
host_link: {value: 63 GB/s, source: sheet}
scale_up_link: xgmi-mi300x
pcie_link: pcie5
kernels: {like: mi300x, because: same chip with more memory}
sources:
  sheet:
    title: AMD Instinct MI325X data sheet
"""


def check(tmp_path, text=MI325X, name="mi325x"):
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return check_profile(path)


def test_a_lent_block_is_an_estimate_that_names_its_lender(tmp_path):
    assert check(tmp_path) == []
    ours, lender = load_accelerator(tmp_path / "mi325x.yaml"), load_accelerator("mi300x")
    assert ours.kernels.matmul["bf16"] == lender.kernels.matmul["bf16"]
    blocks = ours.kernels.blocks
    for block in (blocks.matmul["bf16"], blocks.attention["flash2"].backward, blocks.memory):
        assert (block.basis, block.points, block.held_out_error) == ("estimated", 0, None)
        assert block.source == "as mi300x: same chip with more memory"


def test_a_loan_from_a_measured_device_counts_its_own_units(tmp_path):
    text = MI325X.replace("like: mi300x", "like: h100-sxm-80gb").replace("cdna3", "hopper")
    assert check(tmp_path, text) == []
    ours = load_accelerator(tmp_path / "mi325x.yaml")
    assert ours.kernels.matmul["bf16"].num_sms == 304
    assert ours.kernels.blocks.matmul["fp8"].basis == "estimated"


WRONG = {
    "an alias of another": (
        ("[mi325]", "[mi325, mi300x-192gb]"),
        "aliases.1: expected a name that no other accelerator has; 'mi300x-192gb' means mi300x",
    ),
    "the name of another": (
        ("[mi325]", "[MI300X]"),
        "aliases.0: expected a name that no other accelerator has",
    ),
    "memory left in": (
        ("255.9 GiB", "191.98 GiB"),
        "memory: expected at least 90% of memory_vendor; got 75%",
    ),
    "no kernels": (
        ("kernels: {like: mi300x, because: same chip with more memory}\n", ""),
        "has no 'kernels' block",
    ),
    "a lender that is not there": (("like: mi300x", "like: mi301x"), "unknown accelerator 'mi301x'"),
    "no reason": ((", because: same chip with more memory", ""), "expected {like: an accelerator, because:"),
    "a loan from itself": (("like: mi300x", "like: mi325x"), "with constants of its own"),
    "two kernels like each other": (
        (
            "memory}\n",
            "memory, attention: {flash1: {like: flash2, because: a}, flash2: {like: flash1, because: b}}}\n",
        ),
        "attention.flash1.like: expected a chain with an end, got a circle",
    ),
}


@pytest.mark.parametrize(("change", "expected"), WRONG.values(), ids=WRONG)
def test_what_an_estimate_would_refuse_is_refused(change, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COSTMODEL_PROFILE_PATH", str(tmp_path))
    assert change[0] in MI325X
    found = check(tmp_path, MI325X.replace(*change))
    assert len(found) == 1, found
    assert found[0].startswith("mi325x.yaml: ")
    assert expected in found[0]
    assert main(["hardware", "check", str(tmp_path / "mi325x.yaml")]) == 2
    assert expected in capsys.readouterr().err


H100, TILE, SHARE = "accelerators/h100-sxm-80gb", "tile: [128, 128]", "{64: 0.513"
NO_KERNEL = (
    (H100, TILE, "tile: [0, 128]", "tile.0: expected a number greater"),
    (H100, TILE, "tile: [.inf, 128]", "tile.0: expected a finite number"),
    (H100, TILE, "tile: [true, 128]", "tile: expected a number or a text"),
    (H100, SHARE, "{64: 100", "peak_fractions.64: expected a number less"),
    (H100, SHARE, "{64: false", "peak_fractions: expected a number or a text"),
    ("clusters/dgx-h100-ndr", "pue: {value: ", "pue: {value: true} #", "pue: value: expected a number"),
)


def test_a_constant_that_no_kernel_has_is_refused(tmp_path):
    for profile, old, new, said in NO_KERNEL:
        text = (PROFILES / f"{profile}.yaml").read_text("utf-8")
        assert old in text
        found = check(tmp_path, text.replace(old, new, 1), profile.partition("/")[2])
        assert any(said in problem for problem in found), new


def test_constants_of_a_device_with_other_units_are_refused(tmp_path):
    text = (PROFILES / "accelerators" / "h100-sxm-80gb.yaml").read_text("utf-8")
    text = text.replace("num_sms: {value: 132", "num_sms: {value: 114").replace(
        "h100-sxm-80gb\n", "mine\n", 1
    )
    text = text.replace("aliases: [h100, h100-sxm, h100-80gb]\n", "")
    assert check(tmp_path, text, "mine") == ["mine.yaml: kernels.num_sms: expected num_sms, 114; got 132"]


def test_a_cluster_is_priced_too(tmp_path):
    (tmp_path / "mi325x.yaml").write_text(MI325X)
    text = (PROFILES / "clusters" / "dgx-h100-ndr.yaml").read_text("utf-8")
    aliases = next(line for line in text.splitlines() if line.startswith("aliases:"))
    text = text.replace("name: dgx-h100-ndr", "name: mine").replace(aliases + "\n", "")
    text = text.replace("accelerator: h100-sxm-80gb", "accelerator: mi325x")
    assert check(tmp_path, text, "mine") == []
    assert load_cluster(tmp_path / "mine.yaml").accelerator.name == "mi325x"
    (tmp_path / "mi325x.yaml").write_text(
        MI325X.replace("kernels: {like: mi300x, because: same chip with more memory}\n", "")
    )
    assert check(tmp_path, text, "mine") == [
        "mine.yaml: accelerator mi325x: has no 'kernels' block; costmodel observed calibrate writes one"
    ]


NODE_JOB = {"model": "llama3-8b", "gpus": 16, "global_batch": 64, "seq_len": 4096, "zero_stage": 3}
OWN_RATE = "kernels: {like: mi300x, because: same chip with more memory, matmul: {bf16: {%s}}}\n"
LOAN = "kernels: {like: mi300x, because: same chip with more memory}\n"
CHANGES = {
    "nothing": ("", ""),
    "a rate of its own": (LOAN, OWN_RATE % "peak_fraction: 0.6, source: ours"),
    "a rate without source": (LOAN, OWN_RATE % "peak_fraction: 0.6"),
    "a rate above the peak": (LOAN, OWN_RATE % "peak_fraction: 1.6, source: ours"),
    "a group that is none": (LOAN, LOAN.replace("}", ", vector: {source: ours}}")),
    "a group that is a number": (LOAN, LOAN.replace("}", ", memory: 0.8}")),
    "another vendor's kernels": ("like: mi300x", "like: h100-sxm-80gb"),
    "a new generation": ("generation: cdna3", "generation: cdna9"),
    "a new generation and its software": (
        "generation: cdna3",
        "generation: cdna9\nsoftware: {attention: flash2, torch_attention: flash2, fp8: fp8-delayed, fp8_layouts: one}",
    ),
    "no such link": ("scale_up_link: xgmi-mi300x", "scale_up_link: xgmi-mi999x"),
    "no 16-bit peak": (
        "  fp16: {value: 1307 TFLOP/s, source: sheet}\n  bf16: {value: 1307 TFLOP/s, source: sheet}\n",
        "",
    ),
    "no unit": ("1000 W", "1000"),
    "no source": ("sheet}\ntdp", "sheets}\ntdp"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_check_refuses_is_what_an_estimate_refuses(change, tmp_path, monkeypatch):
    monkeypatch.setenv("COSTMODEL_PROFILE_PATH", str(tmp_path))
    assert change[0] in MI325X
    found = check(tmp_path, MI325X.replace(*change))
    cluster = (PROFILES / "clusters" / "mi300x-roce400.yaml").read_text("utf-8")
    cluster = cluster.replace("name: mi300x-roce400", "name: mine").replace("aliases: [mi300x]\n", "")
    (tmp_path / "mine.yaml").write_text(cluster.replace("accelerator: mi300x", "accelerator: mi325x"))
    try:
        cm.estimate(**NODE_JOB, cluster=compose_cluster("mi325x", 8, 8, 50e9, "roce", 16))
        cm.estimate(**NODE_JOB, cluster="mine")
        refused = False
    except CostModelError:
        refused = True
    assert bool(found) == refused, found


def test_what_is_known_of_the_device_goes_over_the_loan(tmp_path):
    own = OWN_RATE % "peak_fraction: 0.6, source: ours"
    assert check(tmp_path, MI325X.replace(LOAN, own)) == []
    ours, lender = load_accelerator(tmp_path / "mi325x.yaml"), load_accelerator("mi300x")
    for table in ("matmul", "grouped_matmul"):
        block = getattr(ours.kernels.blocks, table)["bf16"]
        assert (block.peak_fraction, block.source, block.basis) == (0.6, "ours", "estimated")
        assert block.memory_fraction == getattr(lender.kernels.blocks, table)["bf16"].memory_fraction
    assert ours.kernels.attention == lender.kernels.attention


def test_another_chip_says_its_own_power(tmp_path):
    head = "schema_version: 1\nprofile: accelerator\nname: mine\ntitle: Mine\ninherit: h100-sxm-80gb\n"
    for change in (
        "peak_dense:\n  bf16: {value: 2000 TFLOP/s, source: assumed}\n",
        "memory_bandwidth: {value: 4 TB/s, source: assumed}\n",
        "num_sms: {value: 144, source: assumed}\n",
    ):
        assert check(tmp_path, head + change, "mine") == [
            "mine.yaml: tdp: expected {value: ..., source: ...}; the key is missing"
        ]
    assert check(tmp_path, head, "mine") == []
    assert load_accelerator(tmp_path / "mine.yaml").tdp_w == 700


def test_inherited_kernels_are_an_estimate_on_another_device(tmp_path):
    head = "schema_version: 1\nprofile: accelerator\nname: mine\ntitle: Mine\ninherit: h100-sxm-80gb\n"
    peaks = (
        "peak_dense:\n  bf16: {value: 2000 TFLOP/s, source: assumed}\ntdp: {value: 1 kW, source: assumed}\n"
    )
    for text, basis in ((head, "measured"), (head + peaks, "estimated")):
        assert check(tmp_path, text, "mine") == []
        mine = load_accelerator(tmp_path / "mine.yaml")
        assert mine.kernels.blocks.matmul["bf16"].basis == basis
        assert mine.kernels.matmul["bf16"] == load_accelerator("h100").kernels.matmul["bf16"]
        assert mine.software == load_accelerator("h100").software
