"""Every HuggingFace family that the readers know, as a tiny model of each, against transformers' own count."""

import pytest
from small_configs import CARDS, ENCODERS, GROUPED, PUBLISHED, SEVEN, TINY, WIDE

import costmodel as cm
from costmodel.base.errors import CostModelError, ModelConfigError
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.step.anatomy.params import model_flops_per_token, num_active_params, num_params


def test_parameters_are_those_of_the_family():
    for kind, (count, config) in (TINY | ENCODERS | PUBLISHED).items():
        read = read_hf_config({**config, "model_type": kind}, kind)
        assert num_params(read.model) == count, kind
        assert read.ignored == (), kind


def test_bias_and_norm_of_a_llama_by_hand():
    # Two layers of width 8, two heads of 4, MLP of 16, 10 tokens:
    # table 80 + 2·(q, k, v, o 4·64 + MLP 3·128 + norms 16) + last norm 8 + head 80.
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10}
    small |= {"intermediate_size": 16, "model_type": "llama"}
    assert num_params(read_hf_config(small).model) == 80 + 2 * (256 + 384 + 16) + 8 + 80
    # All-head norms add 8 + 8 a layer, a head's bias its vocabulary, norms without scale take 16·2 + 8 away.
    assert num_params(read_hf_config({**small, "model_type": "olmo2"}).model) == 1480 + 2 * 16
    assert num_params(read_hf_config({**small, "model_type": "olmo"}).model) == 1480 - 2 * 16 - 8


def test_irregular_windows_and_experts_become_patterns():
    count, config = TINY["flint"]
    model = read_hf_config({**config, "model_type": "flint"}).model

    assert count == num_params(model)
    assert (model.attention_pattern, model.mlp_pattern) == ("fwwf", "deed")
    assert [model.layer_kinds()[i].name for i in model.kind_of_layer] == [
        "dense",
        "moe-window",
        "moe-window",
        "dense",
    ]


def test_patterns_that_contradict_are_refused():
    config = {**TINY["flint"][1], "model_type": "flint"}
    for change, part in (
        ({"layer_types": ["full_attention"] * 3}, "layer_types: has 3 layers, num_hidden_layers is 4"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types: 'linear_attention' is not supported"),
    ):
        with pytest.raises(ModelConfigError, match=part):
            read_hf_config({**config, **change})


def test_wrappers_read_their_language_model_and_name_the_tower():
    for kind, inner, text in [
        ("qwen2_5_vl", "qwen2", {}),
        ("qwen3_vl", "qwen3_vl_text", {}),
        ("internvl_chat", "qwen2", {}),
        ("mistral3", "mistral", {}),
    ]:
        key = "llm_config" if kind == "internvl_chat" else "text_config"
        wrapper = {
            "model_type": kind,
            "vision_config": {"hidden_size": 1024, "depth": 24},
            key: {**GROUPED, "model_type": inner, **text},
        }

        read = read_hf_config(wrapper, "vl")

        language_model = read.model.model_copy(update={"tower_problem": ""})
        assert language_model == read_hf_config({**GROUPED, "model_type": inner}, "vl").model
        assert read.notes == (
            "vision_config: the vision model (24 layers of width 1024) is left out; only the language model is priced",
        )
        assert read.ignored == ()


def test_flat_wrappers_of_before_nesting():
    flat = read_hf_config({**GROUPED, "model_type": "qwen2_vl", "vision_config": {"depth": 2}}, "x")

    language_model = flat.model.model_copy(update={"tower_problem": ""})
    assert language_model == read_hf_config({**GROUPED, "model_type": "qwen2"}, "x").model
    with pytest.raises(ModelConfigError, match="'llava' without a text_config"):
        read_hf_config({**GROUPED, "model_type": "llava"})


def test_class_defaults_fill_a_nested_config_and_are_said():
    # As google/gemma-3-4b-it is published: heads, KV heads and vocabulary are the class's.
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text"}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"factor": 8.0}}
    read = read_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {}}, "gemma-3-4b")

    assert (read.model.num_heads, read.model.num_kv_heads, read.model.head_dim) == (8, 4, 256)
    assert num_params(read.model) == 3_880_263_168  # 4.30B with the tower, as its card says
    assert "num_attention_heads = 8: the file leaves it out" in read.notes
    with pytest.raises(ModelConfigError, match="missing 'num_attention_heads'"):
        read_hf_config(text)


def test_outer_file_says_how_embeddings_are_tied_where_the_inner_one_does_not():
    inner = {**GROUPED, "model_type": "qwen2"}
    tied = {"model_type": "qwen2_5_vl", "tie_word_embeddings": True}

    assert read_hf_config({**tied, "text_config": inner}).model.tied_embeddings
    inner |= {"tie_word_embeddings": False}
    assert not read_hf_config({**tied, "text_config": inner}).model.tied_embeddings


def test_scout_has_no_dense_width():
    text = {**WIDE, "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1}
    text |= {"intermediate_size_mlp": 200, "interleave_moe_layer_step": 1}

    assert read_hf_config(text).model.ffn_size == 0
    assert read_hf_config({**text, "interleave_moe_layer_step": 2}).model.ffn_size == 200


def test_remote_code_has_the_parameters_of_its_card():
    for kind, (config, whole, active) in CARDS.items():
        model = read_hf_config({**config, "model_type": kind}).model
        assert num_params(model) / 1e9 == pytest.approx(whole, rel=4e-3), kind
        assert num_active_params(model) / 1e9 == pytest.approx(active, rel=4e-3), kind


def test_the_first_internlm_has_biases_and_orion_layernorm():
    plain = num_params(read_hf_config({**CARDS["xverse"][0], "model_type": "llama"}).model)
    biased = num_params(read_hf_config({**CARDS["xverse"][0], "model_type": "internlm"}).model)
    assert biased - plain == 32 * 4 * 4096
    normed = num_params(read_hf_config({**CARDS["xverse"][0], "model_type": "orion"}).model)
    assert normed - plain == 65 * 4096


LLAMA = {**SEVEN, "vocab_size": 32000}


def test_files_that_do_not_say_their_type():
    for config in [
        {**LLAMA, "architectures": ["LlamaForCausalLM"]},
        {**LLAMA, "architectures": ["LlamaForCausalLM"], "model_type": None},
        {"model_type": "llava", "text_config": LLAMA},
        {"model_type": "internvl_chat", "llm_config": {**LLAMA, "architectures": ["LlamaForCausalLM"]}},
    ]:
        assert num_params(read_hf_config(config, "x").model) == 6_738_415_616


def test_encoders_see_all_tokens_and_have_published_sizes():
    """BERT-large's and ModernBERT-base's cards, T5 v1.1 XXL's encoder as image models ship it; attention by hand."""
    bert = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    bert |= {"vocab_size": 30522, "max_position_embeddings": 512, "model_type": "bert"}
    modern = {
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
    }
    xxl = {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 32128}
    xxl |= {"feed_forward_proj": "gated-gelu", "architectures": ["T5EncoderModel"], "model_type": "t5"}
    large, base, t5 = (
        read_hf_config(config).model
        for config in (bert, {**modern, "vocab_size": 50368, "model_type": "modernbert"}, xxl)
    )
    assert [num_params(model) for model in (large, base, t5)] == [335_174_458, 149_655_232, 4_762_310_656]
    # Two products of 512 keys in 24 layers: all are met, whoever asks for half of them.
    matrices = 24 * 12 * 1024**2 + 1024**2 + 30522 * 1024
    assert model_flops_per_token(large, 512, causal=True) == 3 * (2 * matrices + 24 * 4 * 512 * 1024)
    decoder = large.model_copy(update={"causal": True})
    assert model_flops_per_token(decoder, 512, causal=True) == 3 * (2 * matrices + 24 * 2 * 512 * 1024)
    # Windows of 128 in two of three layers: the first of each three sees everything.
    assert base.attention_pattern == ("fww" * 8)[:22]
    with pytest.raises(ModelConfigError, match="its encoder alone is priced where architectures says"):
        read_hf_config({**xxl, "architectures": ["T5ForConditionalGeneration"]})
    job = {"cluster": "h100", "gpus": 8, "global_batch": 64, "seq_len": 512, "micro_batch": 8}
    seen, masked = (cm.estimate(model=model, **job) for model in (large, decoder))
    work = [
        next(op.attention for op in tree_operators(est) if op.attention is not None) for est in (seen, masked)
    ]
    assert [float(shape.keys_share) for shape in work] == [1.0, 0.5]
    assert seen.model_flops() == masked.model_flops()
    with pytest.raises(CostModelError, match="only decoders are written"):
        cm.emit(seen, "megatron")
    with pytest.raises(CostModelError, match="is an encoder, which generates no tokens"):
        cm.generate(large, "h100", gpus=8, prompt_len=128, response_len=128)


def tree_operators(est):
    """The operators of the blocks of an estimate."""
    return [item.operator for block in est.priced.step.blocks for item in block.by_operator.values()]
