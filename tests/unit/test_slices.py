"""Slices of a torus, from the profile to the bill: shapes, where axes come to lie, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import LayoutError, ProfileError
from costmodel.cli import main
from costmodel.describe.hardware.hardware import check_file, load_cluster
from costmodel.describe.hardware.slices import default_slice, parse_slice, sliced
from costmodel.physics.network.mesh import build_mesh, split_group

LINK = """
schema_version: 1
profile: link
name: wires
title: six links of 90 GB/s a chip
kind: ici
bandwidth: {value: 540 GB/s, source: assumed}
efficiency: {value: 1.0, source: assumed}
latency: {value: 0 us, source: assumed}
base_latency: {value: 0 us, source: assumed}
in_network_reduction: {value: false, source: assumed}
"""
CLUSTER = """
schema_version: 1
profile: cluster
name: chips
title: pods of 4,096 chips
accelerator: h100-sxm-80gb
gpus_per_node: {value: 4, source: assumed}
host:
  memory: {value: 1 TB, source: assumed}
  memory_bandwidth: {value: 400 GB/s, source: assumed}
  gpus_per_link: {value: 1, source: assumed}
tiers:
  - name: ici
    link: wires
    topology: torus
    shape: {value: [16, 16, 16], source: assumed}
    wrap_multiple: {value: 4, source: assumed}
  - name: dcn
    link: ib-ndr
    size: {value: 65536, source: assumed}
pue: {value: 1.1, source: assumed}
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch):
    (tmp_path / "wires.yaml").write_text(LINK)
    (tmp_path / "chips.yaml").write_text(CLUSTER)
    monkeypatch.setenv("COSTMODEL_PROFILE_PATH", str(tmp_path))
    return tmp_path


def price(**changes):
    job = {
        "model": "llama3-8b",
        "cluster": "chips",
        "gpus": 512,
        "layout": "tp8",
        "global_batch": 512,
        "seq_len": 8192,
        "slice": "8x8x8",
    }
    return cm.estimate(**{**job, **changes})


def test_a_job_without_a_slice_gets_all_ends_joined_or_what_is_most_like_a_cube():
    pod = load_cluster("chips").tiers[0]
    assert default_slice(pod, 512) == (8, 8, 8)
    assert default_slice(pod, 128) == (4, 4, 8)
    assert default_slice(pod, 192) == (4, 4, 12)
    assert default_slice(pod, 16) == (2, 2, 4)
    assert default_slice(pod, 4096) == (16, 16, 16)
    assert default_slice(pod, 3 * 4096) == (16, 16, 16)
    assert default_slice(pod, 6) == (1, 2, 3)
    trillium = load_cluster("tpu-v6e").tiers[0]
    assert [default_slice(trillium, chips) for chips in (8, 16, 64, 128, 256, 1024)] == [
        (2, 4),
        (4, 4),
        (8, 8),
        (8, 16),
        (16, 16),
        (16, 16),
    ]
    assert replace(trillium, shape=(8, 16)).wraps == (False, True)
    # 68 = 4 x 17 fits no box of sides to 16, but two slices of 34 neither; four of 17 neither.
    assert np.prod(default_slice(pod, 68)) == 4
    assert price(slice=None).job.slice == "8x8x8"


def test_an_axis_lies_along_dimensions_in_the_order_of_the_slice():
    """tp 8 is the first side of 8 x 16 x 16; dp is the other two, whole: two rings of 16."""
    mesh = build_mesh(tp=8, cp=1, pp=1, dp=256, ep=1, etp=1, tier_sizes=[2048], shape=(8, 16, 16))
    assert [float(side) for side in mesh.tp.box.sides] == [8, 1, 1]
    assert [float(side) for side in mesh.dp.box.sides] == [1, 16, 16]
    assert [float(span) for span in mesh.dp.box.spans] == [1, 16, 16]
    # tp 4 leaves half of the first side to dp, which skips over four chips there.
    mesh = build_mesh(tp=4, cp=1, pp=1, dp=512, ep=1, etp=1, tier_sizes=[2048], shape=(8, 16, 16))
    assert [float(side) for side in mesh.dp.box.sides] == [2, 16, 16]
    assert [float(span) for span in mesh.dp.box.spans] == [8, 16, 16]


def test_the_gather_of_tensor_parallelism_runs_both_ways_round_its_side():
    """8,192 tokens of 4,096 in bf16 over eight chips in a ring: two links of 90 GB/s, seven eighths received."""
    est = price()
    (line,) = est.explain("tp.attention.all_gather.forward")
    sent = 7 / 8 * 8192 * 4096 * 2
    assert line.each == pytest.approx(sent / 180e9, rel=1e-12)
    assert (line.tier, line.algorithm) == ("ici", "sides-at-once")
    # A side of eight in a slice whose first dimension has sixteen is a line with one link at its end.
    (line,) = price(slice="16x8x4").explain("tp.attention.all_gather.forward")
    assert line.each == pytest.approx(sent / 90e9, rel=1e-12)


def test_gradients_go_round_the_other_two_sides_at_once():
    (line,) = price().explain("dp.dense.grad_reduce_scatter")
    terms = {term.name: term.value for term in line.terms}
    steps = {step.name: step.value for step in line.steps}
    assert (terms["side_1"], terms["side_2"]) == (8, 8)
    assert steps["transfer_s"] == pytest.approx(63 / 64 * terms["size_bytes"] / (4 * 90e9), rel=1e-12)


def test_several_slices_meet_over_the_network():
    est = price(gpus=2048)
    (line,) = est.explain("dp.dense.grad_reduce_scatter")
    terms = {term.name: term.value for term in line.terms}
    steps = {step.name: step.value for step in line.steps}
    assert line.tier == "dcn"
    rate = terms["dcn_bytes_per_s"] * terms["dcn_rate_factor"]
    # Three quarters of the 64th that a chip has after the gather inside, over its own port.
    assert steps["between_s_per_byte"] == pytest.approx(3 / 4 / 64 / rate, rel=1e-12)
    assert steps["once_s_per_byte"] == pytest.approx(63 / 64 / (4 * 90e9), rel=1e-12)


def test_a_ring_over_slices_has_a_step_less_than_slices(profiles):
    """Three steps between four slices, each 3 us longer where the network's ring steps are."""
    hops_s = []
    for longer in ("", "fabric: {simple_step: 3 us}\n"):
        (profiles / "outer.yaml").write_text(LINK.replace("name: wires", "name: outer") + longer)
        (profiles / "chips.yaml").write_text(CLUSTER.replace("link: ib-ndr", "link: outer"))
        (line,) = price(gpus=2048).explain("dp.dense.grad_reduce_scatter")
        hops_s.append({step.name: step.value for step in line.steps}["outer_hops_s"])
    assert hops_s[1] - hops_s[0] == pytest.approx(9e-6, rel=1e-9)


def test_several_slices_wait_for_the_slowest(profiles):
    """Four slices that differ by 3 %: 1.029 standard deviations of all that is known before."""
    (profiles / "apart.yaml").write_text(
        LINK.replace("name: wires", "name: apart") + "spread: {value: 0.03, source: assumed}\n"
    )
    (profiles / "chips.yaml").write_text(CLUSTER.replace("link: ib-ndr", "link: apart"))
    est = price(gpus=2048)
    (line,) = est.explain("overhead.slowest_slice")
    terms = {term.name: term.value for term in line.terms}
    assert terms["slowest"] == pytest.approx(1.02938, abs=1e-5)
    made = [one for one in est.bill.time_lines if not one.name.startswith("overhead.")]
    known = sum(float(one.exposed_seconds) for one in made)
    assert line.each == pytest.approx(0.03 * 1.02938 * known, rel=1e-5)
    alone = [one.name for one in price(gpus=512).bill.time_lines]
    assert "overhead.slowest_slice" not in alone


def test_a_search_tries_slices_and_finds_what_each_alone_gives():
    asked = {"model": "llama3-8b", "cluster": "chips", "gpus": 64, "global_batch": 128, "seq_len": 8192}
    both = cm.plan(**asked, slice=["4x4x4", "2x2x16"])
    alone = [cm.plan(**asked, slice=one) for one in ("4x4x4", "2x2x16")]
    best = min(float(one.best.step_time_s) for one in alone)
    assert float(both.best.step_time_s) == pytest.approx(best, rel=1e-12)
    assert set(both.to_frame()["slice"]) == {"4x4x4", "2x2x16"}
    assert both.best.job.slice in ("4x4x4", "2x2x16")
    assert price(**{**asked, "layout": "tp1", "slice": both.best.job.slice}).step_time_s > 0


def test_what_no_slice_can_be_is_refused_in_one_line():
    for changes, said in [
        ({"slice": "8x8"}, "slice: 8x8 does not fit on the 16x16x16 torus of chips: expected 3 sides"),
        ({"slice": "8x8x32"}, "slice: 8x8x32 does not fit"),
        ({"slice": "8x8x16"}, "slice: 8x8x16 has 1024 chips, which do not divide gpus = 512"),
        ({"slice": "8,8,8"}, "slice: expected chips along each dimension such as 8x16x16, got '8,8,8'"),
        ({"slice": "8x0x8"}, "slice: expected chips"),
        (
            {"layout": "tp8", "slice": "12x4x4", "gpus": 192, "global_batch": 192},
            "not lie along the sides of the 12x4x4",
        ),
        (
            {"cluster": "dgx-h100-ndr"},
            "slice: 8x8x8 needs a torus; the tier nvlink of dgx-h100-ndr is a switch",
        ),
        (
            {
                "layout": "tp8",
                "zero_stage": 3,
                "shard_group": 32,
                "slice": "8x4x12",
                "gpus": 384,
                "global_batch": 384,
            },
            "not lie along",
        ),
        (
            {"layout": None, "gpus": [512, 1024], "slice": None},
            "a job on the torus of chips has one number of chips",
        ),
        (
            {"layout": "tp2 pp2 ep2", "model": "mixtral-8x7b", "axis_order": "tp cp pp dp"},
            "not lie along the sides",
        ),
    ]:
        with pytest.raises(LayoutError, match=said) as caught:
            price(**changes)
        assert "\n" not in str(caught.value)


def test_the_command_line_takes_a_slice_and_gives_it_back(capsys):
    argv = (
        "estimate -m llama3-8b -c chips --gpus 512 --slice 8x8x8 --layout tp8 --global-batch 512 --seq-len 8k"
    )
    assert main([*argv.split(), "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["inputs"]["slice"] == "8x8x8"
    again = cm.estimate(**record["inputs"])
    assert float(again.step_time_s) == pytest.approx(float(price().step_time_s), rel=1e-12)
    assert main([*argv.replace("8x8x8", "8x8x9").split()]) == 2
    assert "slice: 8x8x9 has 576 chips" in capsys.readouterr().err
    assert main(["mesh", "-c", "chips", "--gpus", "512", "--slice", "4x8x16", "--layout", "tp4"]) == 0
    assert main(["collective", "all-gather", "-c", "chips", "--ranks", "512", "--size", "1GB"]) == 0
    assert "sides-at-once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("topology: torus", "topology: tours", "tiers.0: topology: unknown 'tours'; did you mean 'torus'"),
        ("    shape: {value: [16, 16, 16], source: assumed}\n", "", "shape: expected one to three lengths"),
        ("[16, 16, 16]", "[16, 16, 0]", "shape.value.2: expected a number greater than 0; got 0"),
        ("[16, 16, 16]", "[2, 2, 2, 2]", "shape: expected one to three lengths"),
        ("    wrap_multiple: {value: 4, source: assumed}\n", "", "wrap_multiple: expected a whole number"),
        ("    topology: torus\n", "", "shape: expected none, because a switch has no dimensions"),
        (
            "size: {value: 65536",
            "topology: full-mesh\n    size: {value: 65536",
            "can only be the innermost tier",
        ),
        ("size: {value: 65536", "size: {value: 65000", "expected a multiple of the tier inside"),
        ("    size: {value: 65536, source: assumed}\n", "", "size: expected {value: ..., source: ...}"),
        (
            "    wrap_multiple:",
            "    size: {value: 4095, source: assumed}\n    wrap_multiple:",
            "size: expected 4096, the product of shape, or no size; got 4095",
        ),
        ("[16, 16, 16]", "16x16x16", "shape.value: expected a list such as [16, 16]; got '16x16x16'"),
        (
            "gpus_per_node: {value: 4",
            "gpus_per_node: {value: 3",
            "expected whole nodes in every tier (of 4096,",
        ),
        (
            "gpus_per_link: {value: 1",
            "gpus_per_link: {value: 3",
            "expected a part of gpus_per_node, 4; got 3",
        ),
        (
            "tiers:",
            "tier:",
            "tiers: expected a list of {name: ..., link: ..., size: {value: ..., source: ...}}",
        ),
        ("host:\n", "hosts:\n", "host: expected {memory: ..., memory_bandwidth: ..., gpus_per_link: ...}"),
    ],
)
def test_a_profile_that_is_no_torus_is_refused_by_check_and_estimate_alike(profiles, before, after, said):
    path = profiles / "chips.yaml"
    assert check_file(path) == []
    assert before in CLUSTER
    path.write_text(CLUSTER.replace(before, after, 1))
    found = check_file(path)
    assert any(said in line for line in found), found
    with pytest.raises(ProfileError) as caught:
        price()
    assert "\n" not in str(caught.value)


def test_shapes_are_read_as_people_write_them():
    assert parse_slice("8X16X16") == (8, 16, 16)
    cluster = sliced(load_cluster("chips"), 1024, (8, 8, 16))
    assert (cluster.tiers[0].size, cluster.tiers[0].wraps) == (1024, (True, True, True))
    assert sliced(load_cluster("chips"), 12, (2, 2, 3)).tiers[0].wraps == (False, False, False)


def test_switches_between_cubes_join_all_ends_of_whole_cubes_or_none():
    """A 2 x 2 x 4 of a v5p has no wrap-around, an 8 x 16 of a v5e along its longer side (scaling book, tpus.md)."""
    for shape, joined in [
        ((2, 2, 4), (False, False, False)),
        ((2, 4, 4), (False, False, False)),
        ((4, 4, 4), (True, True, True)),
        ((4, 4, 8), (True, True, True)),
        ((4, 4, 6), (False, False, False)),
    ]:
        for name in ("tpu-v4", "tpu-v5p", "tpu-v7x"):
            assert sliced(load_cluster(name), np.prod(shape), shape).tiers[0].wraps == joined
        assert sliced(load_cluster("tpu-v5e"), 128, (8, 16)).tiers[0].wraps == (False, True)


def test_a_torus_says_one_rule_of_its_ends(profiles):
    path = profiles / "chips.yaml"
    rule = "    wrap_multiple: {value: 4, source: assumed}\n"
    path.write_text(CLUSTER.replace(rule, rule.replace("multiple", "cube")))
    assert check_file(path) == []
    assert sliced(load_cluster("chips"), 16, (2, 2, 4)).tiers[0].wraps == (False, False, False)
    path.write_text(CLUSTER.replace(rule, rule + rule.replace("multiple", "cube")))
    assert any("wrap_cube: expected none beside wrap_multiple" in line for line in check_file(path))


def test_products_of_an_ironwood_chip_take_what_was_measured_of_its_cores():
    """4,096 and 16,384 cubed on a core of 1,153.5 TFLOP/s: 893 and 950 (tpu-recipes at c8cfe2f, README L250-259)."""
    from costmodel.physics.kernels.roofline import matmul_time

    chip = load_cluster("tpu-v7x").accelerator
    for side, measured in ((4096, 892.9e12), (16384, 950.1e12), (32768, 956.4e12)):
        made = matmul_time(
            side,
            side,
            side,
            constants=chip.kernels.matmul["bf16"],
            peak_flops_per_s=chip.peak_flops_per_s["bf16"] / 2,
            memory_bandwidth_bytes_per_s=chip.memory_bandwidth_bytes_per_s / 2,
        )
        assert 2 * side**3 / float(made.value) == pytest.approx(measured, rel=0.03), side


def test_shards_are_neighbours_and_replicas_lie_across_them():
    """dp of 8 x 8 in shards of 16: a side of eight and two of the other; replicas skip over two chips there."""
    mesh = build_mesh(tp=8, cp=1, pp=1, dp=64, ep=1, etp=1, tier_sizes=[512], shape=(8, 8, 8))
    shards, replicas = split_group(mesh.grad, 16.0)
    assert [(float(a), float(b)) for a, b in zip(*shards.box, strict=True)] == [(1, 1), (8, 8), (2, 2)]
    assert [(float(a), float(b)) for a, b in zip(*replicas.box, strict=True)] == [(1, 1), (1, 8), (4, 8)]


def test_a_slice_may_lie_in_any_direction_of_its_pod():
    pod = load_cluster("tpu-v5p")
    assert sliced(pod, 28 * 16, (28, 4, 4)).tiers[0].shape == (28, 4, 4)
    with pytest.raises(LayoutError, match="does not fit on the 16x20x28"):
        sliced(pod, 28 * 20 * 20, (28, 20, 20))
