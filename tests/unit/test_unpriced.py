"""HuggingFace types without a price: the parameters that transformers counts, and one line for what cannot be counted."""

from pathlib import Path

import pytest

from costmodel.base.errors import ModelConfigError
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.huggingface_keys import by_name
from costmodel.describe.models.sizes import counted_types, size_of

SMALL = read_mapping(Path(__file__).with_name("small_unpriced.yaml"), example="tiny: {}")


def test_parameters_are_those_that_transformers_counts():
    for kind, config in SMALL.items():
        size = size_of({**config, "model_type": kind}, kind)
        assert (kind, size.shape["num_params"]) == (kind, config["num_params"])
        assert (size.shape["model_type"], size.shape["name"]) == (kind, kind)


def test_every_counted_type_is_refused_with_a_reason_and_names_only_types_that_exist():
    assert set(counted_types()) - {"deepseek_v2"} <= set(by_name("refused"))
    assert size_of({"model_type": "_decoder"}, "x") is None
    assert size_of({"model_type": "llama"}, "x") is None


def test_of_a_type_without_a_row_layers_and_widths_are_read():
    kind = next(kind for kind in by_name("refused") if kind not in counted_types())
    config = {
        "model_type": kind,
        "d_model": 512,
        "vocab_size": 51865,
        "num_hidden_layers": 6,
        "decoder_layers": 4,
    }
    assert size_of(config, "x").shape == {
        **{"name": kind, "model_type": kind},
        **{"num_layers": 6, "hidden_size": 512, "vocab_size": 51865},
    }


def test_widths_of_a_published_pattern():
    """Layers that a hub file writes as ratios: 0 a window, 4 sparse, 128 heavily compressed; a longer list is cut."""
    config = {**SMALL["deepseek_v4"], "model_type": "deepseek_v4", "compress_ratios": [0, 128, 4, 4, 0]}
    listed = config.pop("layer_types")
    config.pop("compress_rates")
    by_ratio, by_type = size_of(config, "x"), size_of({**config, "layer_types": listed}, "x")
    assert by_ratio.shape == by_type.shape
    assert [by_ratio.shape[name] for name in ("num_layers", "hidden_size", "vocab_size")] == [4, 64, 1000]


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("lfm3", {"layer_types": ["conv", "full_attention", "odd", "conv"]}, "layer_types: 'odd' cannot"),
        ("lfm3", {"layer_types": ["conv"]}, "layer_types: has 1 layers, the model has 4"),
        ("lfm3", {"layer_types": "conv"}, "layer_types: expected a list"),
        ("hrm_text", {"vocab_size": None}, "x: missing 'vocab_size', which model_type 'hrm_text' needs"),
        ("hrm_text", {"hidden_size": "wide"}, "hidden_size: expected a whole number"),
        ("hrm_text", {"intermediate_size": [96, 96, 96, 80]}, "intermediate_size: expected a number"),
        ("axk1", {"num_hidden_layers": -1}, "num_hidden_layers: expected a whole number"),
        ("hrm_text", {"num_attention_heads": 0, "head_dim": None}, "a size of 0 cannot be counted"),
        ("falcon_mamba", {"state_size": 0.3}, "state_size: expected a whole number"),
        (
            "hrm_text",
            {"add_cross_attention": True},
            "add_cross_attention: a 'hrm_text' with it cannot be counted",
        ),
        ("xlm", {"asm": True}, "asm: a 'xlm' with it cannot be counted"),
        ("xlstm", {"qk_dim_factor": "half"}, "qk_dim_factor: expected a number"),
    ],
)
def test_what_cannot_be_counted_is_one_line(kind, changes, said):
    with pytest.raises(ModelConfigError, match=said) as caught:
        size_of({**SMALL[kind], "model_type": kind, **changes}, "x")
    assert "\n" not in str(caught.value)
