"""Models without a price: every type as a tiny model, against transformers' own count, and what is said of it."""

import json

import pytest
from small_outlines import OUTLINED

import costmodel as cm
from costmodel.base.errors import CostModelError, ModelConfigError
from costmodel.describe.models.huggingface import read_hf_config, supported_types
from costmodel.describe.models.huggingface_hybrids import HYBRID_READERS
from costmodel.describe.models.huggingface_keys import REFUSED_TYPES
from costmodel.describe.models.outlines import outline_of, outlined_types
from costmodel.step.anatomy.params import num_params

HUB_ONLY = {"minimax_m1", "minimax_m3", "minimax_text_01"}


@pytest.mark.parametrize("kind", sorted(OUTLINED))
def test_parameters_are_those_of_the_type(kind):
    count, config = OUTLINED[kind]

    outline = outline_of({**config, "model_type": kind}, kind)

    assert outline.shape["num_params"] == count


def test_every_outlined_type_has_a_small_config():
    assert set(outlined_types()) == set(OUTLINED) | HUB_ONLY


@pytest.mark.parametrize("kind", sorted(set(OUTLINED) & set(supported_types()) - {"deepseek_v2"}))
def test_outlined_types_that_are_priced_have_the_same_parameters(kind):
    """The sum of a priced model's blocks is the outline's count, which is transformers' own."""
    count, config = OUTLINED[kind]

    found = read_hf_config({**config, "model_type": kind})

    assert num_params(found.model) == count


def test_types_with_other_mixers_are_priced():
    assert set(HYBRID_READERS) <= set(supported_types())
    assert not set(HYBRID_READERS) & set(REFUSED_TYPES)


def test_a_bert_by_hand():
    # Width 4, 2 layers, MLP of 8, 10 tokens, 3 positions, 2 types. Tables 4·15, their norm 8;
    # layer: four projections 4·(16 + 4), MLP 4·8 + 8 + 8·4 + 4, two norms 16; head 16 + 4, its norm 8, 10 biases.
    config = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {
        "intermediate_size": 8,
        "vocab_size": 10,
        "max_position_embeddings": 3,
        "type_vocab_size": 2,
    }

    assert outline_of(config, "x").shape["num_params"] == 60 + 8 + 2 * (80 + 76 + 16) + 38


def test_published_files_write_the_pattern_in_their_own_way():
    """Nemotron's letters, MiniMax' ones and zeros, Kimi's numbers from one, DeepSeek's rates."""
    count, config = OUTLINED["nemotron_h"]
    letters = {key: value for key, value in config.items() if key != "layers_block_type"}
    letters |= {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*EM"}
    assert outline_of(letters, "x").shape["num_params"] == count

    count, config = OUTLINED["minimax"]
    listed = {key: value for key, value in config.items() if key != "layer_types"}
    listed |= {"model_type": "minimax_m1", "attn_type_list": [0, 1, 0, 1]}
    assert outline_of(listed, "x").shape["num_params"] == count

    count, config = OUTLINED["kimi_linear"]
    numbered = {key: value for key, value in config.items() if key not in ("layer_types", "linear_num_heads")}
    numbered["linear_attn_config"] = {
        "full_attn_layers": [3],
        "num_heads": 4,
        "head_dim": 12,
        "short_conv_kernel_size": 3,
    }
    assert outline_of({**numbered, "model_type": "kimi_linear"}, "x").shape["num_params"] == count

    count, config = OUTLINED["glm_moe_dsa"]
    balanced = {**config, "model_type": "glm_moe_dsa", "topk_method": "noaux_tc"}
    assert outline_of(balanced, "x").shape["num_params"] == count + 3 * 6


def test_experts_of_a_latent_width():
    """Six experts of 24 instead of 64 wide, two matrices of 40 each, and a projection each way."""
    count, config = OUTLINED["nemotron_h"]
    latent = outline_of({**config, "moe_latent_size": 24, "model_type": "nemotron_h"}, "x")

    assert latent.shape["num_params"] == count - 6 * 2 * (64 - 24) * 40 + 2 * 64 * 24


def test_what_chooses_blocks_of_keys_as_both_files_write_it():
    """Two of four layers have four index heads of 16, one index key, and a norm of each."""
    count, config = OUTLINED["minimax_m3_vl_text"]
    kinds = ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"]
    chosen = {"index_n_heads": 4, "index_head_dim": 16}
    wanted = count + 2 * (64 * 5 * 16 + 2 * 16)
    new = outline_of({**config, **chosen, "layer_types": kinds, "model_type": "minimax_m3_vl_text"}, "x")
    assert new.shape["num_params"] == wanted
    # The repository's own file.
    older = {key: value for key, value in config.items() if not key.endswith("layer_types")}
    inside = {"sparse_attention_freq": [0, 1, 1, 0], "sparse_num_index_heads": 4, "sparse_index_dim": 16}
    older |= {"sparse_attention_config": inside, "moe_layer_freq": [0, 1, 1, 1], "model_type": "minimax_m3"}
    assert outline_of(older, "x").shape["num_params"] == wanted


def test_the_order_of_layers_is_said():
    config = OUTLINED["qwen3_next"][1]
    outline = outline_of({**config, "model_type": "qwen3_next", "num_nextn_predict_layers": 1}, "x")

    assert outline.shape["layers"] == (
        "3 linear_attention, 1 full_attention "
        "(in order: 2 linear_attention, 1 full_attention, 1 linear_attention)"
    )
    assert outline.left_out == ("num_nextn_predict_layers: these layers are not counted",)


def test_what_is_missing_or_strange_is_one_line():
    config = OUTLINED["jamba"][1]
    with pytest.raises(ModelConfigError, match=r"x: missing 'mamba_d_conv', which model_type 'jamba' needs"):
        outline_of({**{k: v for k, v in config.items() if k != "mamba_d_conv"}, "model_type": "jamba"}, "x")
    config = OUTLINED["nemotron_h"][1]
    with pytest.raises(ModelConfigError, match=r"hybrid_override_pattern: '\?' is not supported"):
        outline_of({**config, "model_type": "nemotron_h", "hybrid_override_pattern": "M?"}, "x")
    said = {"hidden_size": "a whole number", "layers_block_type": "a list", "num_attention_heads": "above 0"}
    for key, value in (("hidden_size", "x"), ("layers_block_type", 7), ("num_attention_heads", 0)):
        with pytest.raises(ModelConfigError, match=said[key]):
            outline_of({**config, "model_type": "nemotron_h", "head_dim": None, key: value}, "x")
    assert outline_of({"model_type": "llama"}, "x") is None


def test_the_bill_of_an_outlined_model_is_refused(tmp_path):
    count, config = OUTLINED["deepseek_v4"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "model_type": "deepseek_v4"}))

    found = cm.read(path)

    assert (found.shape["num_params"], found.shape["model_type"]) == (count, "deepseek_v4")
    assert (
        found.unpriced
        == "model_type 'deepseek_v4': its compressed sparse attention and several residual streams cannot be priced yet"
    )
    with pytest.raises(CostModelError, match="compressed sparse attention"):
        found.estimate_keywords(cluster="dgx-h100-ndr", gpus=8, global_batch=8, seq_len=128)
    with pytest.raises(ModelConfigError, match="compressed sparse attention"):
        read_hf_config(path)
