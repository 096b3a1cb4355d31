"""HuggingFace configs of every supported family against presets and published counts."""

import json
from pathlib import Path

import pytest
from small_configs import CARDS, ENCODERS, PRESETS, PUBLISHED, RELEASED, TINY

from costmodel.base.errors import ModelConfigError
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.huggingface import families, model_from_hf_config, read_hf_config
from costmodel.describe.models.huggingface_keys import by_name
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.model import same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.describe.models.sizes import counted_types, size_of
from costmodel.step.anatomy.params import num_params

DATA = Path(__file__).parents[1] / "data"
CONFIGS = PRESETS | {
    name: json.loads((DATA / f"config-{name}.json").read_text())
    for name in ("deepseek-v3-671b", "gpt-oss-120b")
}


def test_configs_are_the_presets_and_count_what_was_released():
    for name, config in CONFIGS.items():
        read, preset = read_hf_config(config, name), load_model(name)
        # A config of a MoE model names a dense width that no layer uses.
        unused = {} if any(not kind.is_moe for kind in preset.layer_kinds()) else {"ffn_size": 0}
        # A preset has the context of its longest release (llama3-8b is Llama 3.1's too).
        unused["context_length"] = preset.context_length
        assert same_shape(read.model.model_copy(update=unused), preset), name
    for name, (count, config) in RELEASED.items():
        assert num_params(model_from_hf_config(config)) == count, name


def test_every_family_is_tested():
    """Of the types that are read alike one is in the tables."""
    tested = {config["model_type"] for config in CONFIGS.values()} | {*TINY, *ENCODERS, *PUBLISHED, *CARDS}
    tested |= {config["model_type"] for _, config in RELEASED.values()}
    tested |= {f"{kind}_encoder" for kind in ENCODERS}
    tested |= {"emu3_text_model", "mimo"}  # Llama without biases, and Qwen 2 with prediction layers
    read_by = families()
    assert {id(read_by[kind]) for kind in tested & read_by.keys()} == {id(one) for one in read_by.values()}


def test_resaved_keys_mean_the_same():
    old = {**CONFIGS["qwen3-30b-a3b"], "rope_theta": 1e6}
    new = {key: value for key, value in old.items() if key not in ("num_experts", "rope_theta")}
    new |= {"num_local_experts": 128, "rope_parameters": {"rope_theta": 1e6}, "dtype": "bfloat16"}

    assert model_from_hf_config(new, "x") == model_from_hf_config(old, "x")

    deepseek = CONFIGS["deepseek-v3-671b"]
    resaved = {**deepseek, "head_dim": 64, "num_key_value_heads": 1}
    assert model_from_hf_config(resaved, "x") == model_from_hf_config(deepseek, "x")


def test_prediction_layers_and_missing_query_rank():
    config = CONFIGS["deepseek-v3-671b"]

    assert model_from_hf_config(config).mtp_layers == 1
    assert model_from_hf_config({**config, "q_lora_rank": None}).q_lora_rank == 0
    without = {key: value for key, value in config.items() if key != "q_lora_rank"}
    with pytest.raises(ModelConfigError, match="missing 'q_lora_rank', which model_type 'deepseek_v3' needs"):
        model_from_hf_config(without)


def test_windows():
    mistral = RELEASED["mistral-7b-v0.1"][1]
    absent = {key: value for key, value in mistral.items() if key != "sliding_window"}
    assert model_from_hf_config(mistral).sliding_window == 4096
    assert model_from_hf_config(absent).sliding_window == 4096  # the class default
    assert model_from_hf_config({**mistral, "sliding_window": None}).sliding_window == 0

    gemma = model_from_hf_config(RELEASED["gemma-2-9b"][1])
    assert gemma.kind_of_layer[:4] == (0, 1, 0, 1)
    assert [kind.window for kind in gemma.layer_kinds()] == [4096, 0]

    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}
    qwen = {**CONFIGS["qwen3-32b"], **windows}
    assert model_from_hf_config(qwen).sliding_window == 4096
    assert model_from_hf_config({**qwen, "max_window_layers": 64}).sliding_window == 0
    late = {**qwen, "max_window_layers": 32}
    assert model_from_hf_config(late).attention_pattern == "f" * 32 + "w" * 32
    assert model_from_hf_config({**late, "use_sliding_window": False}).sliding_window == 0


def test_multimodal_config_is_read_from_its_text_part():
    scout = {
        "model_type": "llama4",
        "tie_word_embeddings": False,
        "vision_config": {"hidden_size": 1408},
        "text_config": {
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "hidden_size": 5120,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "use_qk_norm": True,
            "vocab_size": 202048,
            "for_llm_compressor": False,
        },
    }

    read = read_hf_config(scout, "scout")

    assert num_params(read.model) / 1e9 == pytest.approx(107.77, abs=0.005)  # 109B with the vision part
    assert read.model.kind_of_layer[:5] == (0, 0, 0, 1, 0)
    assert read.ignored == ()
    assert read.notes[0].startswith("vision_config: the vision model is left out")
    every_second = {**scout["text_config"], "interleave_moe_layer_step": 2}
    model = model_from_hf_config(every_second)
    first_kinds = [model.layer_kinds()[index].is_moe for index in model.kind_of_layer[:3]]
    assert first_kinds == [False, True, False]


def test_leading_dense_layers_of_qwen_moe():
    config = {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [0, 1]}

    assert model_from_hf_config(config).first_dense_layers == 2
    one = model_from_hf_config({**config, "mlp_only_layers": [5]})
    assert one.mlp_pattern == "e" * 5 + "d" + "e" * 42


def test_ignored_keys_are_reported_and_harmless_ones_are_not():
    read = read_hf_config({**CONFIGS["llama3-8b"], "residual_scale": 0.5, "use_something": False})

    assert read.ignored == ("residual_scale",)


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    for change, part in [
        (
            {"model_type": "lama"},
            "hidden_size 4,096, vocab_size 128,256) is not supported; did you mean 'llama'",
        ),
        ({"model_type": "rwkv"}, "linear attention or state space"),
        ({"model_type": "deepseek_v4"}, "sparse attention"),
        ({"model_type": None, "architectures": None}, "missing 'model_type'"),
        ({"num_hidden_layers": None}, "missing 'num_hidden_layers' or 'n_layer' or 'n_layers', which"),
        ({"intermediate_size": None}, "missing 'intermediate_size'"),
        (
            {"num_attention_heads": "32"},
            "num_attention_heads: expected a whole number from 0 to 1,000,000,000, got '32'",
        ),
        ({"num_key_value_heads": 7}, "num_heads 32 does not divide by num_kv_heads 7"),
    ]:
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**CONFIGS["llama3-8b"], **change}))

        with pytest.raises(ModelConfigError) as caught:
            load_model(str(file))

        assert part in str(caught.value)
        assert str(caught.value).startswith(str(file))
        assert "\n" not in str(caught.value)


def test_files_and_folders(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]))

    assert load_model(str(folder)).name == "My-Model"
    assert load_model(str(folder / "config.json")) == load_model(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match="not JSON"):
        load_model(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="expected a JSON object"):
        load_model(str(folder))
    with pytest.raises(ModelConfigError, match="cannot be read"):
        model_from_hf_config(tmp_path / "none.json")


def test_values_of_another_kind_are_one_line():
    for kind, changes in [
        ("deepseek_v3", {"moe_layer_freq": "abc"}),
        ("deepseek_v3", {"topk_group": "abc", "n_group": 8}),
        ("gemma4_unified_text", {"per_layer_config": "abc"}),
        ("glm_moe_dsa", {"indexer_types": "abc"}),
        ("lfm2", {"block_ffn_dim_multiplier": "abc"}),
    ]:
        _, config = TINY[kind]
        with pytest.raises(ModelConfigError):
            read_hf_config({**config, **changes, "model_type": kind}, "x")


def test_towers_are_left_out_at_every_depth():
    inner = {"model_type": "llama", "hidden_size": 64}
    speaks = {"model_type": "qwen2_5_omni_thinker", "audio_config": {"d_model": 4}, "text_config": inner}
    found = language_model(
        {"model_type": "llava", "vision_config": {"hidden_size": 8}, "text_config": speaks}, "x"
    )
    assert found.raw == inner
    assert [said.split(":")[0] for said in found.left_out] == ["vision_config", "audio_config"]
    with pytest.raises(ModelConfigError, match="vision_config: sizes are counts, got -1"):
        language_model({"model_type": "llava", "vision_config": {"depth": -1}, "text_config": inner}, "x")


def test_falcon_7b_shares_one_head_of_keys():
    """32 x (4,544 x (4,544 + 2 x 64) + 9 x 4,544^2 + 2 x 4,544) + 65,024 x 4,544 + 2 x 4,544, as the hub counts it."""
    config = {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "vocab_size": 65024,
        "multi_query": True,
    }
    model = model_from_hf_config(config)
    assert num_params(model) == 6_921_720_704
    assert (model.num_kv_heads, model.parallel_block, model.norms_per_layer) == (1, True, 1)
    new = {**config, "new_decoder_architecture": True, "num_kv_heads": 71, "parallel_attn": True}
    assert model_from_hf_config(new).norms_per_layer == 2


def test_layers_with_attention_where_no_list_names_them():
    """Every second of a Qwen3-Next, the third of four of a Jamba; a Kimi counts from one."""
    for kind, changes, pattern in (
        ("qwen3_next", {"layer_types": None, "full_attention_interval": 2, "num_hidden_layers": 4}, "dfdf"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 2, "num_hidden_layers": 4}, "mmfm"),
        ("bamba", {"attn_layer_indices": [1], "num_hidden_layers": 4}, "mfmm"),
        (
            "kimi_linear",
            {"layer_types": None, "linear_attn_config": {"full_attn_layers": [2]}, "num_hidden_layers": 4},
            "kfkk",
        ),
    ):
        config = {**TINY[kind][1], **changes, "model_type": kind}
        assert model_from_hf_config(config).attention_pattern == pattern, kind


def test_no_ending_of_a_key_hides_a_precision():
    _, config = TINY["llama"]
    for key in ("expert_dtype", "quantization_of_experts"):
        with pytest.raises(ModelConfigError, match=f"{key}: .* is not understood"):
            read_hf_config({**config, "model_type": "llama", key: "fp4"}, "x")


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


def test_what_cannot_be_counted_is_one_line():
    for kind, changes, said in [
        ("lfm3", {"layer_types": ["conv", "full_attention", "odd", "conv"]}, "layer_types: 'odd' cannot"),
        ("lfm3", {"layer_types": ["conv"]}, "layer_types: has 1 layers, the model has 4"),
        ("lfm3", {"layer_types": "conv"}, "layer_types: expected a list"),
        ("hrm_text", {"vocab_size": None}, "x: missing 'vocab_size', which model_type 'hrm_text' needs"),
        ("hrm_text", {"hidden_size": "wide"}, "hidden_size: expected a whole number"),
        ("hrm_text", {"intermediate_size": [96, 96, 96, 80]}, "intermediate_size: expected a number"),
        ("longcat_flash", {"num_layers": -1}, "num_layers: expected a whole number"),
        ("hrm_text", {"num_attention_heads": 0, "head_dim": None}, "a size of 0 cannot be counted"),
        ("falcon_mamba", {"state_size": 0.3}, "state_size: expected a whole number"),
        (
            "hrm_text",
            {"add_cross_attention": True},
            "add_cross_attention: a 'hrm_text' with it cannot be counted",
        ),
        ("xlm", {"asm": True}, "asm: a 'xlm' with it cannot be counted"),
        ("xlstm", {"qk_dim_factor": "half"}, "qk_dim_factor: expected a number"),
    ]:
        with pytest.raises(ModelConfigError, match=said) as caught:
            size_of({**SMALL[kind], "model_type": kind, **changes}, "x")
        assert "\n" not in str(caught.value)
