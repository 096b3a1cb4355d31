"""What low precision changes on the bill: products, casts, parameters, what is gathered and reduced."""

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError, RecipeError
from costmodel.describe.precision import (
    precision as read_precision,
)
from costmodel.describe.precision import (
    quantised_weight_bytes,
    without_weight_gradients,
)
from costmodel.describe.reliability import make_reliability
from costmodel.step.anatomy.params import num_params

JOB = {
    "model": "llama3-8b",
    "cluster": "hgx-b200-ndr",
    "gpus": 16,
    "tp": 1,
    "global_batch": 64,
    "seq_len": 4096,
    "micro_batch": 1,
    "zero_stage": 1,
}
PARAMS = 8.03e9


def price(precision="bf16", switches=None, **changes):
    return cm.estimate(**{**JOB, **changes}, precision=precision, switches=switches)


def memory(est, name):
    return sum(float(line.bytes.max()) for line in est.bill.memory_lines if line.name == name)


def test_fewer_bits_multiply_faster_and_cost_casts():
    plain = float(price().exposed_by("category")["math"])
    for precision in ("fp8-delayed", "fp8-current", "fp8-block", "mxfp8", "mxfp4", "nvfp4"):
        est = price(precision)
        assert float(est.exposed_by("category")["math"]) < plain
        assert any("cast" in line.name or "quantise" in line.name for line in est.bill.time_lines)
    assert float(price("nvfp4").exposed_by("category")["math"]) < float(
        price("mxfp8").exposed_by("category")["math"]
    )


def test_a_scale_a_row_costs_another_pass_and_a_slower_kernel():
    """One more read of 16 bits while casting, 8 bytes an element and not 6; products take a twentieth longer."""
    job = {"cluster": "dgx-h100-ndr", "gpus": 8}
    tensor, row = (
        {line.name: line for line in price(f"fp8-{way}", **job).bill.time_lines}
        for way in ("current", "rowwise")
    )
    for name in ("attention.qkv.forward", "mlp.fc1.backward_weight", "mlp.fc2.backward_input"):
        one, other = (float(lines[f"compute.{name}"].each_s) for lines in (tensor, row))
        assert other == pytest.approx(1.05 * one, rel=1e-9)
    elements = 4096 * (4096 + 14336)
    cast = float(row["compute.mlp.quantise.forward"].bytes_each)
    assert cast == 8 * elements
    assert float(tensor["compute.mlp.quantise.forward"].bytes_each) == 6 * elements
    assert float(row["compute.head.logits.forward"].each_s) == float(
        tensor["compute.head.logits.forward"].each_s
    )


def test_int8_needs_matrix_units_of_int8():
    with pytest.raises(
        cm.CostModelError, match="precision: 'int8' needs int8 matrix units, which h100-sxm-80gb does"
    ):
        price("int8", cluster="dgx-h100-ndr")


def test_quantised_weights_beside_or_in_place_of_the_parameters():
    each, cached, primary = (
        price("mxfp8", {"quantised_weights": how}) for how in ("none", "cached", "primary")
    )
    assert memory(each, "state.dense.parameters") == pytest.approx(2 * PARAMS, rel=0.001)
    assert memory(cached, "state.dense.parameters.quantised") == pytest.approx(1.03 * PARAMS, rel=0.001)
    assert memory(primary, "state.dense.parameters") == pytest.approx(1.03 * PARAMS, rel=0.001)
    assert primary.memory_bytes_per_gpu < each.memory_bytes_per_gpu < cached.memory_bytes_per_gpu

    def gathered(est):
        return sum(
            float(line.bytes) for line in est.bill.time_lines if line.name == "dp.dense.param_all_gather"
        )

    assert gathered(primary) == pytest.approx(gathered(each) * 1.03 / 2)
    assert gathered(cached) == gathered(each)
    hopper = {"cluster": "dgx-h100-ndr"}
    both = price("fp8-delayed", {"quantised_weights": "cached"}, **hopper)
    assert memory(both, "state.dense.parameters.quantised") == pytest.approx(2 * PARAMS, rel=0.001)
    assert float(price(switches={"quantised_weights": "primary"}).memory_bytes_per_gpu) == float(
        price().memory_bytes_per_gpu
    )


def test_gradients_and_parameters_travel_in_any_dtype():
    for dtype, width in [("fp32", 4.0), ("bf16", 2.0), ("fp8", 1.0), ("fp4", 0.5625)]:
        est = price(switches={"grad_reduce_dtype": dtype, "gather_dtype": dtype})
        lines = {line.name: float(line.bytes) for line in est.bill.time_lines}
        params = num_params(cm.load_model("llama3-8b"))
        for name in ("dp.dense.grad_reduce_scatter", "dp.dense.param_all_gather"):
            assert lines[name] == pytest.approx(15 / 16 * width * params, rel=1e-6)


def test_a_gpu_without_the_units_says_so():
    with pytest.raises(cm.CostModelError, match="mxfp4"):
        price("mxfp4", cluster="dgx-h100-ndr")


def test_bytes_of_a_cast():
    """Of an element: quantised, in the other orientation, where either layout will do, without weight gradients."""
    for name, cast, transpose, either_layout, forward_only, copies in [
        ("bf16", 0, 0, 0, 0, 0),
        ("int8", 6, 0, 6, 5, 1),
        ("fp8-delayed", 4, 2, 3, 3, 2),
        ("fp8-current", 6, 2, 5, 5, 2),
        ("mxfp8", 4.06, 0, 4.06, 3.03, 1.03),
        ("mxfp4", 6, 0, 6, 5.46875, 0.53125),
    ]:
        found = read_precision(name)
        assert (found.cast_bytes, found.transpose_bytes) == pytest.approx((cast, transpose))
        other = read_precision(name, transposes=False)
        assert (other.cast_bytes, other.transpose_bytes) == pytest.approx((either_layout, 0))
        assert found.cast_as_measured
        assert not other.cast_as_measured
        frozen = without_weight_gradients(found)
        assert (frozen.cast_bytes, frozen.transpose_bytes) == pytest.approx((forward_only, 0))
        assert quantised_weight_bytes(found) == pytest.approx(copies)
        with pytest.raises(RecipeError, match="precision: 'fp9' is unknown; did you mean"):
            read_precision("fp9")


def test_rates_of_failures():
    """0.008 a node of eight and day; or a rate of each GPU."""
    known = make_reliability("llama3", {"failures_per_node_day": 0.008, "detection_s": None})
    assert known.failures_per_second(1000) * 86400 == pytest.approx(1.0)
    assert known.detection_s == 300
    own = make_reliability("llama3", {"failures_per_gpu_day": 0.002})
    assert own.failures_per_second(1000) * 86400 == pytest.approx(2.0)
    for name, changes, said in (
        ("lama3", {}, "reliability: 'lama3' is unknown; did you mean 'llama3'"),
        ("llama3", {"detection": 3}, "reliability: 'detection' is not a field; did you mean 'detection_s'"),
        (
            "llama3",
            {"failures_per_gpu_day": 1, "failures_per_node_day": 1},
            "failures_per_node_day and failures_per_gpu_day exclude each other",
        ),
        ("llama3", {"restart_s": -1}, "restart_s: expected greater than or equal to 0, got -1"),
        # Of several the first.
        (
            "llama3",
            {"restart_s": -1, "detection_s": -2},
            "detection_s: expected greater than or equal to 0, got -2",
        ),
        ("llama3", {"zeal": 1, "alms": 2}, "'alms' is not a field"),
    ):
        with pytest.raises(CostModelError, match=said):
            make_reliability(name, changes)


def test_mxfp8_needs_matrix_units_that_scale_blocks():
    for cluster in ["dgx-h100-ndr", "mi300x-roce400"]:
        with pytest.raises(
            cm.CostModelError,
            match=r"precision: 'mxfp8' needs matrix units that scale blocks, which .* fp8-delayed",
        ):
            cm.estimate(
                model="llama3-8b", cluster=cluster, gpus=8, precision="mxfp8", global_batch=8, seq_len=4096
            )
