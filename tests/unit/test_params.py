"""Parameter and FLOP counts against published numbers and against each other."""

import csv
from pathlib import Path

import numpy as np
import pytest

from costmodel.describe.models.model_files import list_models, load_model
from costmodel.step.anatomy.params import (
    attended_tokens,
    model_flops_per_token,
    mtp_param_blocks,
    num_active_params,
    num_params,
)

PUBLISHED = Path(__file__).parents[1] / "published" / "param_counts.csv"


def _published() -> list[dict[str, str]]:
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


@pytest.mark.parametrize("row", _published(), ids=lambda row: row["model"])
def test_parameter_count_is_the_published_one(row):
    counted = num_params(load_model(row["model"]))

    assert abs(counted - int(row["params"])) <= int(row["tolerance"])


def test_every_preset_has_a_published_count():
    assert {row["model"] for row in _published()} == set(list_models())


def test_active_parameters_are_the_published_ones():
    for name, active_billion, half_digit, counts_input_table in [
        ("mixtral-8x7b", 12.9, 0.05, True),  # arXiv:2401.04088: 13B active (12.9 on the model card)
        ("gpt-oss-120b", 5.13, 0.005, False),  # arXiv:2508.10925, Table 1: without the input table
        ("gpt-oss-20b", 3.61, 0.005, False),
        ("deepseek-v3-671b", 36.6, 0.05, False),  # README_WEIGHTS.md of the release
        ("deepseek-v2-236b", 21.0, 0.5, True),  # arXiv:2405.04434, abstract
        ("qwen3-235b-a22b", 22.0, 0.5, True),  # arXiv:2505.09388, Table 2
    ]:
        model = load_model(name)
        counted = num_active_params(model)
        if not counts_input_table:
            counted -= model.vocab_size * model.hidden_size

        assert abs(counted / 1e9 - active_billion) <= half_digit


@pytest.mark.parametrize("name", ["megatron-1.7b", "megatron-145.6b", "megatron-1t"])
def test_flops_are_those_of_narayanan_2021(name):
    # Eq. (3): F = 96 B s l h^2 (1 + s/6h + V/16lh) with one recomputed forward pass; the head is
    # not recomputed, so without recomputation 72 B s l h^2 (1 + s/6h + V/12lh).
    model, s = load_model(name), 2048
    layers, h, v = model.num_layers, model.hidden_size, model.vocab_size

    expected = 72 * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))

    np.testing.assert_allclose(model_flops_per_token(model, s), expected, rtol=1e-14)


def test_flops_count_only_active_experts_and_every_prediction_pass():
    model = load_model("deepseek-v3")

    plain = model.model_copy(update={"mtp_layers": 0})
    with_mtp, without = (float(model_flops_per_token(one, 4096)) for one in (model, plain))

    head = 129280 * 7168
    active = num_active_params(model) - head  # the lookup is no matrix product
    attention = 6 * 61 * 128 * (192 + 128) * 4096
    assert without == pytest.approx(6 * active + attention, rel=1e-4)  # norms and biases in `active`
    mtp_layer = sum(
        b.count * (8 / 256 if b.sharding == "expert" else 1) for b in mtp_param_blocks(model) if b.is_matrix
    )
    assert with_mtp - without == pytest.approx(6 * (mtp_layer + head) + attention / 61, rel=1e-12)


def test_window_limits_attention_and_never_below_causal_counting():
    s = np.array([64, 128, 1024, 131072])

    full, causal = attended_tokens(s, 128), attended_tokens(s, 128, causal=True)

    np.testing.assert_array_equal(full, [64, 128, 128, 128])
    np.testing.assert_allclose(causal, [32, 64, 128 - 8, 128 - 0.0625])
    np.testing.assert_array_equal(attended_tokens(s), s)
    np.testing.assert_array_equal(attended_tokens(s, causal=True), s / 2)
