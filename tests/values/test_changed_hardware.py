"""Hardware with some numbers changed: what follows from each, against profiles that have those numbers."""

import shlex

import pytest
from fit_kernels import loss_at_power, share_power_limits
from kernel_tables import ShippedFit

import costmodel as cm
from costmodel import load_accelerator
from costmodel.base.errors import ProfileError
from costmodel.describe.hardware.changed import changed_values, with_hardware
from costmodel.describe.jobs.short_form import command_text
from costmodel.physics.kernels.roofline import MatmulConstants
from costmodel.physics.network.mesh import build_mesh
from costmodel.trust.calibration.kernel_csv import MATMUL, table_of

JOB = {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 64, "seq_len": 8192}
WIDE = JOB | {"gpus": 64, "tp": 1}


def test_an_h100_with_the_numbers_of_another_is_that_other():
    """Its profile states the clock at 500 W as a fraction, 0.894 = (5 / 7) ** (1 / 3), and the cut of products."""
    given = {"tdp": "500 W", "hbm_bandwidth": "2.4 TB/s", "memory": "94.99 GiB"}
    ours, theirs = cm.estimate(**JOB, cluster="h100", hw=given), cm.estimate(**JOB, cluster="h100-500w-roce")
    assert float(ours.step_time_s) == pytest.approx(float(theirs.step_time_s), rel=5e-4)
    assert ours.memory_capacity_bytes == theirs.memory_capacity_bytes
    device = with_hardware(cm.load_cluster("h100"), {"tdp": 500.0}).accelerator
    # 124 of 1,000 parts are lost at 700 W: 1 - 0.876 * (5 / 7) ** (1 / 3) = 0.217.
    for products in (device.kernels.matmul, device.kernels.grouped_matmul):
        assert products["bf16"].sustained_loss == pytest.approx(0.217, abs=5e-4)
    plain = cm.load_cluster("h100").accelerator.kernels
    kernels = with_hardware(cm.load_cluster("h100"), {"tdp": 7000.0}).accelerator.kernels
    assert kernels.matmul["bf16"].sustained_loss == 0
    # Attention gets faster by what the limit took of the burst clock, not by 10 ** (1 / 3).
    burst = 1 / (1 - max(one.sustained_loss for one in plain.matmul.values()))
    for name, one in plain.attention.items():
        shares = [min(share * burst, 1.0) for share in one.forward.peak_fractions]
        assert kernels.attention[name].forward.peak_fractions == pytest.approx(shares)


def test_a_profile_with_its_own_numbers_is_itself():
    own = {
        "peak": "989.4 TFLOP/s",
        "hbm_bandwidth": "3.35 TB/s",
        "tdp": "700 W",
        "nic": "400 Gbit/s",
        "nvlink": 450e9,
    }
    assert float(cm.estimate(**WIDE, hw=own).step_time_s) == pytest.approx(
        float(cm.estimate(**WIDE).step_time_s), rel=1e-12
    )


def test_what_follows_from_a_number():
    """Twice the rate of memory halves what streams it; half a link doubles what large messages pay on it."""
    plain = cm.estimate(**WIDE)

    def busy(est, name):
        return sum(float(line.seconds) for line in est.bill.time_lines if line.name == name)

    twice = cm.estimate(**WIDE, hw={"hbm_bandwidth": "6.7TB/s"})
    assert busy(twice, "optimizer.update") == pytest.approx(busy(plain, "optimizer.update") / 2, rel=0.01)
    name = "dp.dense.grad_reduce_scatter"
    for tier in ("nic", "leaf"):
        slow = cm.estimate(**WIDE, hw={tier: "25GB/s"})
        assert busy(slow, name) == pytest.approx(2 * busy(plain, name), rel=0.05)
    by_peak = cm.load_cluster("h100")
    half = with_hardware(by_peak, {"peak": 494.7e12}).accelerator.peak_flops_per_s
    assert half == {dtype: peak / 2 for dtype, peak in by_peak.accelerator.peak_flops_per_s.items()}
    # The spine behind the adapters is as slow as they are; NVLink is not.
    rates = [tier.bandwidth_bytes_per_s for tier in with_hardware(by_peak, {"nic": 25e9}).tiers]
    assert rates == [450e9, 25e9, 25e9]
    # What goes into a switch that adds up takes the same wires.
    inside, slower = by_peak.tiers[0], with_hardware(by_peak, {"nvlink": "50%"}).tiers[0]
    assert inside.reduction_bandwidth_bytes_per_s == 2 * slower.reduction_bandwidth_bytes_per_s > 0
    capped, free = (cm.run(**JOB, tokens=1e11, hw=hw) for hw in ({"tdp": "350 W"}, None))
    # The power of a board halves, its clock under load is (1/2) ** (1/3) = 0.794, so energy falls by a third.
    assert 0.55 < capped.energy_kwh / free.energy_kwh < 0.72


def test_what_was_changed_is_said_and_said_again(capsys):
    from costmodel.cli import main

    est = cm.estimate(**JOB, hw={"tdp": "500W", "hbm_bandwidth": "10TB/s"})
    assert cm.estimate(**est.to_dict()["inputs"]).step_time_s == est.step_time_s
    command = command_text(est.job)
    assert command.endswith("--hw tdp=500W --hw hbm_bandwidth=10TB/s")
    for more in ([], ["--details"]):
        assert main([*shlex.split(command)[1:], *more]) == 0
        assert "dgx-h100-ndr with tdp 500W, hbm_bandwidth 10TB/s" in capsys.readouterr().out
    assert (
        main(["plan", "llama3-8b", "8xh100", "--tp", "2", "--pp", "1", "--no-choose", "--hw", "nic=25GB/s"])
        == 0
    )
    assert "with nic 25GB/s" in (out := capsys.readouterr().out)
    assert "--hw nic=25GB/s" in out.partition("Next:")[2]


def test_percentages_are_of_the_profile():
    plain = cm.load_cluster("dgx-h100-ndr")
    half = with_hardware(plain, {"nic": "50%", "tdp": "80 %", "hbm_bandwidth": "200%"})
    assert [t.bandwidth_bytes_per_s for t in half.tiers[1:]] == [
        t.bandwidth_bytes_per_s / 2 for t in plain.tiers[1:]
    ]
    assert half.accelerator.tdp_w == pytest.approx(0.8 * plain.accelerator.tdp_w)
    assert half.accelerator.memory_bandwidth_bytes_per_s == 2 * plain.accelerator.memory_bandwidth_bytes_per_s
    for wrong in ("x%", "-5%", "0%", "%"):
        with pytest.raises(ProfileError, match=r"^hw: nic: expected a "):
            with_hardware(plain, {"nic": wrong})


def test_a_group_that_a_fragment_cuts_has_the_ports_of_its_smallest_piece():
    """Nodes of eight of a job that fills fragments in order, and members of a group in one pod, all worked out by hand."""
    pods = cm.load_cluster("llama3-roce")
    # Fragments, tp, dp, pp; members of the data-parallel group and of the expert group of 16 ranks in a pod.
    for text, tp, dp, pp, members, expert in (
        ("32", 8, 32, 1, 32, 16),
        ("16+16", 8, 32, 1, 16, 16),
        ("5+27", 8, 32, 1, 5, 8),  # two nodes an expert group: the third has one on each side of the fifth
        ("27+5", 8, 32, 1, 5, 8),
        ("6+9+17", 8, 32, 1, 6, 8),
        ("6+10+16", 8, 32, 1, 6, 16),
        ("5+27", 8, 8, 4, 3, 8),  # replicas of stages of eight nodes: the first is cut after five
        ("3+2+27", 8, 8, 4, 2, 8),  # all of a fragment lies in the first stage
        ("8+24", 8, 8, 4, 8, 16),  # no stage is cut
        ("5+27", 2, 128, 1, 20, 8),
        ("1+1+30", 1, 256, 1, 8, 8),
    ):
        placed = with_hardware(pods, {"placement": text})
        assert changed_values(placed) == {"placement": text}
        assert with_hardware(pods, changed_values(placed)).tiers == placed.tiers
        mesh = build_mesh(
            **{"tp": tp, "cp": 1, "pp": pp, "dp": dp, "ep": 16, "etp": 1},
            tier_sizes=[tier.size for tier in placed.tiers],
            ends=[tier.ends for tier in placed.tiers],
        )
        assert (float(mesh.dp.members[1]), float(mesh.ep.members[1])) == (members, expert), (text, tp, dp, pp)
    # Experts over four ranks of a stage lie on eight nodes with two stages: cut after six, two nodes have one rank each.
    for end, expert, members in ((8 * 6, 8, 3), (8 * 8, 32, 4)):
        mesh = build_mesh(
            **{"tp": 8, "cp": 1, "pp": 2, "dp": 16, "ep": 32, "etp": 1, "order": ("tp", "cp", "pp", "dp")},
            **{"tier_sizes": [8, 3072, 24576], "ends": [(), (end, 256), ()]},
        )
        assert (float(mesh.ep.members[1]), float(mesh.dp.members[1])) == (expert, members)


def test_a_job_on_fragments_is_never_faster_than_a_whole_one():
    pods = cm.load_cluster("llama3-roce")
    job = {"model": "llama3-8b", "cluster": pods, "gpus": 256, "global_batch": 256, "seq_len": 8192, "tp": 8}
    # All sums of gradients are over 32 nodes, on ports of 50 GB/s shared by 7 above the pods.
    whole, *parts = (cm.estimate(**job, hw={"placement": text}) for text in ("32", "16+16", "4+28", "1+31"))
    times = [float(est.step_time_s) for est in (whole, *parts)]
    assert times[1:] == sorted(times[1:])
    assert times[1] >= times[0]
    assert times[-1] > 1.02 * times[0]
    for est in parts[1:]:
        moved = [line for line in cm.compare(whole, est).largest("time", 1) if abs(line.difference(1)) > 1e-6]
        assert {line.axis for line in moved if line.category == "communication"} == {"dp"}
    others = (
        {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 256, "global_batch": 256, "tp": 2},
        {
            "model": "llama3-8b",
            "cluster": "dgx-h100-ndr",
            "gpus": 256,
            "global_batch": 256,
            "tp": 2,
            "zero": 3,
        },
        {
            "model": "mixtral-8x7b",
            "cluster": "dgx-h100-ndr",
            "gpus": 256,
            "global_batch": 512,
            "layout": "pp2 ep8",
        },
    )
    for asked in others:
        healthy = float(cm.estimate(**asked, seq_len=8192).step_time_s)
        for text in ("32", "16+16", "5+27", "27+5", "6+9+17", "1+31"):
            assert cm.estimate(**asked, seq_len=8192, hw={"placement": text}).step_time_s >= healthy, text


def test_between_and_beyond_what_was_seen():
    """With one power limit it is what was seen there; more power never loses more, whatever was seen."""
    seen = [(1000.0, 0.334), (1200.0, 0.095)]
    assert loss_at_power(1100, seen) == pytest.approx(0.2145)
    assert loss_at_power(1400, seen) == 0.0
    assert loss_at_power(900, seen) == pytest.approx(0.4535)
    assert loss_at_power(1400, [(1000.0, 0.1), (1200.0, 0.2)]) == pytest.approx(0.15)
    assert loss_at_power(350, [(700.0, 0.124)]) == 0.124


@pytest.mark.parametrize(("name", "loss"), [("b300", 0.214), ("gb300", 0.0)])
def test_blackwell_ultra_as_shipped(name, loss):
    """1,100 W lies half way between B200 (1,000 W, 0.334) and GB200 (1,200 W, 0.095); 1,400 W is beyond."""
    kernels = load_accelerator(name).kernels
    assert kernels is not None
    # Products of nvfp4 were timed at the clock that the limit leaves.
    lost = {name: round(one.sustained_loss, 3) for name, one in kernels.matmul.items()}
    assert {**lost, "nvfp4": loss} == dict.fromkeys(lost, loss)
    assert lost["nvfp4"] == 0.0


def fits(*seen):
    """Return fits and rows of (accelerator, dtype, loss, whether it was timed for long)."""
    made, rows = {}, {}
    for name, dtype, loss, sustained in seen:
        key = (name, "matmul", dtype)
        constants = MatmulConstants(
            num_sms=148, fixed_s=0, peak_fraction=0.7, memory_fraction=0.8, tile_m=128, tile_n=128
        )._replace(sustained_loss=loss)
        made[key] = ShippedFit(constants, 9, 0.1, ("one",))
        rows[key] = table_of(MATMUL, [[1.0] * 6 + [sustained, False, 1.0]])
    return {key: found.constants.sustained_loss for key, found in share_power_limits(made, rows).items()}


def test_a_dtype_timed_in_bursts_takes_the_least_of_its_own_and_its_siblings_losses():
    """No mean of two machines: GB200's bf16 loses what its fp8 does, B200's fp8 what GB200's does."""
    found = fits(
        ("b200-sxm-180gb", "bf16", 0.334, True),
        ("b200-sxm-180gb", "fp8", 0.0, False),
        ("gb200", "bf16", 0.0, False),
        ("gb200", "fp8", 0.095, True),
        ("gb200", "nvfp4", 0.0, True),
    )
    assert found["gb200", "matmul", "bf16"] == 0.095
    assert found["b200-sxm-180gb", "matmul", "fp8"] == 0.095
    assert found["b200-sxm-180gb", "matmul", "bf16"] == 0.334


def test_without_a_sibling_at_the_dtype_it_is_the_largest_of_its_own():
    found = fits(("gb200", "fp8", 0.095, True), ("gb200", "nvfp4", 0.02, True), ("gb200", "bf16", 0.0, False))
    assert found["gb200", "matmul", "bf16"] == 0.095


@pytest.mark.parametrize(("name", "dtype"), [("gb200", "bf16"), ("b200-sxm-180gb", "fp8")])
def test_blackwell_as_shipped(name, dtype):
    assert load_accelerator(name).kernels.matmul[dtype].sustained_loss == 0.095
    assert load_accelerator(name).kernels.grouped_matmul[dtype].sustained_loss == 0.095
