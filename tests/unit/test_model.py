"""Models: presets and their names, files, generic sizes, dimensions from tables, and refusals."""

import math
import pickle
import subprocess
import sys
from copy import copy, deepcopy

import pytest

import costmodel as cm
from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.mixers import OtherHeads
from costmodel.describe.models.model import Model, make_model
from costmodel.describe.models.model_families import model_from_dims
from costmodel.describe.models.model_files import _aliases, _hub, _plain, list_models, load_model
from costmodel.step.anatomy.params import num_params

SMALL = {
    "name": "small",
    "num_layers": 4,
    "hidden_size": 256,
    "num_heads": 4,
    "ffn_size": 1024,
    "gated_mlp": False,
    "vocab_size": 1000,
}
MLA = {
    "attention": "mla",
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
MOE = {"num_experts": 8, "top_k": 2, "expert_ffn_size": 512}


def test_every_preset_loads_and_says_where_it_is_from():
    for name in list_models():
        model = load_model(name)
        assert model.name == name
        assert len(model.source) > 20
        assert len(model.kind_of_layer) == model.num_layers


def test_names_in_use_mean_the_preset():
    for given, preset in [
        ("LLAMA3-405B", "llama3-405b"),
        ("llama-3.1-405b", "llama3-405b"),
        ("meta-llama/Llama-3.1-8B", "llama3-8b"),
        ("Llama_2_70B", "llama2-70b"),
        ("gpt3", "gpt3-175b"),
        ("DeepSeek-V3", "deepseek-v3-671b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("megatron-1008b", "megatron-1t"),
        ("MT-NLG", "mt-nlg-530b"),
        ("bloom", "bloom-176b"),
    ]:
        assert load_model(given) is load_model(preset)


def test_wrong_name_gets_the_nearest_right_ones_in_one_line():
    for given, part in [
        ("lama3-405b", "did you mean 'llama3-405b'"),
        ("deepsek-v3", "did you mean 'deepseek-v3-671b'"),
        ("nothing like it", "known: bloom-176b"),
        ("dense-xb", "dense-<N>b"),
        ("dense-0.01b", "N = 0.5 … 20000, got 0.01"),
        ("missing.yaml", "missing.yaml: no such file"),
        ("missing/config.json", "no such file"),
    ]:
        with pytest.raises(ModelConfigError) as caught:
            load_model(given)

        assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_named_by_its_path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("".join(f"{k}: {str(v).lower()}\n" for k, v in SMALL.items() if k != "name"))

    model = load_model(str(file))

    assert (model.name, model.num_kv_heads, model.head_dim, model.attention) == ("mine", 4, 64, "mha")


def test_a_malformed_file_is_named(tmp_path):
    for text, part in [
        ("num_layers: [1", "line 1: expected valid YAML"),
        ("- 1", "expected keys with values such as"),
        ("num_layer: 3", "field 'num_layer' is unknown; did you mean 'num_layers'"),
        ("num_layers: 3", "missing hidden_size, vocab_size, num_heads, gated_mlp"),
    ]:
        file = tmp_path / "bad.yaml"
        file.write_text(text)

        with pytest.raises(ModelConfigError) as caught:
            load_model(str(file))

        assert str(file) in str(caught.value)
        assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_contradictions_are_refused_with_the_numbers():
    for changes, part in [
        ({"num_layers": 0}, "num_layers: Input should be greater than 0, got 0"),
        ({"num_layers": "4"}, "num_layers: Input should be a valid integer, got '4'"),
        ({"gated_mlp": "yes"}, "gated_mlp"),
        ({"norm": "rms"}, "norm: Input should be 'rmsnorm' or 'layernorm', got 'rms'"),
        ({"num_heads": 3}, "hidden_size 256 does not divide by num_heads 3"),
        ({"num_kv_heads": 3}, "num_heads 4 does not divide by num_kv_heads 3"),
        ({"attention": "mha", "num_kv_heads": 2}, "attention mha needs num_kv_heads = num_heads 4, got 2"),
        ({"attention": "mqa", "num_kv_heads": 2}, "attention mqa needs num_kv_heads 1, got 2"),
        ({"attention": "mla"}, "head_dim"),
        ({**MLA, "kv_lora_rank": 0}, "attention mla needs kv_lora_rank > 0"),
        ({**MLA, "head_dim": 64}, "head_dim 64 is not qk_nope_head_dim 32 + qk_rope_head_dim 16"),
        ({"kv_lora_rank": 64}, "are for attention mla, not mha"),
        ({"top_k": 2}, "top_k is given but num_experts is 0"),
        ({**MOE, "top_k": 9}, "top_k must be 1 … num_experts 8, got 9"),
        ({**MOE, "expert_ffn_size": 0}, "a model with experts needs expert_ffn_size > 0"),
        ({**MOE, "first_dense_layers": 5}, "first_dense_layers 5 exceeds num_layers 4"),
        ({**MOE, "first_dense_layers": 1, "ffn_size": 0}, "a model with dense layers needs ffn_size > 0"),
        ({"position": "learned"}, "needs max_positions > 0"),
        ({"full_attention_every": 2}, "full_attention_every is given but sliding_window is 0"),
        ({"qk_norm_all_heads": True}, "qk_norm_all_heads is given but qk_norm is false"),
        ({"attention_pattern": "fff"}, "attention_pattern has 3 letters, num_layers is 4"),
        ({"attention_pattern": "fffw"}, "has windowed layers but sliding_window is 0"),
        ({"attention_pattern": "ffff", "sliding_window": 8, "full_attention_every": 2}, "windowed; give one"),
        ({"mlp_pattern": "ddd"}, "mlp_pattern has 3 letters, num_layers is 4"),
        ({"mlp_pattern": "ddde"}, "mlp_pattern has layers with experts but num_experts is 0"),
        ({**MOE, "mlp_pattern": "deee", "first_dense_layers": 1}, "which layers have experts; give one"),
        ({**MOE, "expert_groups": 3, "groups_per_token": 1}, "expert_groups 3 does not divide num_experts 8"),
        ({**MOE, "expert_groups": 4, "groups_per_token": 5}, "must be 1 … expert_groups 4, got 5"),
        ({**MOE, "expert_groups": 4}, "groups_per_token must be 1 … expert_groups 4, got 0"),
        ({"layer_embedding_size": 8}, "layer_embedding_size and layer_embedding_rows need each other"),
        ({**MLA, "kv_projections": 1}, "kv_projections and other-heads are not for attention mla"),
        ({**MLA, "qk_nope_head_dim": 0, "head_dim": 16}, "attention mla needs qk_nope_head_dim > 0"),
    ]:
        with pytest.raises(ModelConfigError) as caught:
            make_model({**SMALL, **changes})

        assert part in str(caught.value)
        assert str(caught.value).startswith("model small: ")
        assert "\n" not in str(caught.value)


def test_the_ends_of_what_can_be():
    for changes in (
        {**MOE, "first_dense_layers": 4},
        {**MOE, "top_k": 8, "mlp_pattern": "edee"},
        {**MOE, "expert_groups": 4, "groups_per_token": 4},
        {"sliding_window": 8, "full_attention_every": 4},
        {"attention_pattern": "fwwf", "sliding_window": 8},
        {"kv_projections": 1},
    ):
        assert make_model({**SMALL, **changes}).num_layers == 4


def test_defaults_follow_from_the_rest():
    assert make_model({**SMALL, "num_kv_heads": 2}).attention == "gqa"
    assert make_model({**SMALL, "num_kv_heads": 1}).attention == "mqa"
    assert make_model({**SMALL, "attention": "mqa"}).num_kv_heads == 1
    assert make_model({**SMALL, "norm": "layernorm"}).norm_bias
    assert not make_model({**SMALL, "norm": "layernorm", "norm_bias": False}).norm_bias
    assert make_model({**SMALL, "parallel_block": True}).norms_per_layer == 1
    latent = make_model({**SMALL, **MLA})
    assert (latent.head_dim, latent.v_head_dim, latent.num_kv_heads) == (48, 32, 4)


def test_kinds_of_layers_in_order():
    leading = make_model({**SMALL, **MOE, "first_dense_layers": 1})
    alternating = make_model({**SMALL, **MOE, "moe_layer_freq": 2})
    windowed = make_model({**SMALL, "sliding_window": 128})
    mostly_windowed = make_model({**SMALL, "sliding_window": 128, "full_attention_every": 4})
    both = make_model({**SMALL, **MOE, "moe_layer_freq": 2, "sliding_window": 8, "full_attention_every": 2})

    assert [kind.name for kind in leading.layer_kinds()] == ["dense", "moe"]
    assert leading.kind_of_layer == (0, 1, 1, 1)
    assert alternating.kind_of_layer == (0, 1, 0, 1)
    assert [kind.name for kind in windowed.layer_kinds()] == ["dense-window"]
    assert windowed.kind_of_layer == (0, 0, 0, 0)
    assert mostly_windowed.kind_of_layer == (0, 0, 0, 1)
    assert [(kind.is_moe, kind.window) for kind in both.layer_kinds()] == [(False, 8), (True, 0)]


def test_generic_dense_model_is_near_its_size_and_splits_well():
    for billions in (0.5, 1, 3, 7, 13, 30, 70, 100, 175, 405, 1000, 20000):
        model = load_model(f"dense-{billions}b")
        assert num_params(model) == pytest.approx(billions * 1e9, rel=0.05)
        assert model.num_layers % 4 == 0
        assert model.hidden_size % (1024 if billions >= 6 else 512) == 0
        assert 3 <= model.ffn_size / model.hidden_size <= 4
        if billions >= 6:
            assert model.num_kv_heads == 8
            assert 64 <= model.hidden_size / model.num_layers <= 320


# Columns as tables of published runs carry them (numbers arrive as floats, gaps as NaN): parameters in billions, model,
# layers, width, heads, KV heads, head width, MLP width, whether it is gated, vocabulary, tied, attention.
TABLE = """
22.074        gpt-22b       48.0 6144.0 64.0 64 96  24576.0 False 51200.0 True  mha
6.738415616   llama2-7b     32   4096   32   32 128 11008   true  32000   false mha
7.615616512   qwen2.5-7b    28   3584   28   4  128 18944   True  152064  False gqa
176.247271424 bloom-176b    70   14336  112  112 128 57344  False 250880  True  mha
179.522565120 falcon-180b   80   14848  232  8  64  59392   False 65024   nan   gqa
140.630071296 mixtral-8x22b 56   6144   48   8  128 nan     True  32768   False gqa
116.829156672 gpt-oss-120b  36   2880   64   8   64  nan     True  201088  False gqa
671.0264192   deepseek-v3   61   7168   128  128 192 18432  True  129280  False mla
"""
NAMED = (
    *("model", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated_mlp", "vocab"),
    *("tied_embeddings", "attention"),
)
NO_EXPERTS = dict.fromkeys(("top_k", "num_experts", "expert_ffn", "first_dense_layers"), math.nan)
ROUTED = {
    "mixtral-8x22b": {"num_experts": 8, "top_k": 2, "expert_ffn": 16384, "shared_expert_ffn": 0}
    | {"first_dense_layers": 0, "moe_layer_freq": 1},
    "gpt-oss-120b": {"num_experts": 128, "top_k": 4, "expert_ffn": 2880, "shared_expert_ffn": 0}
    | {"first_dense_layers": 0, "moe_layer_freq": 1},
    "deepseek-v3": {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    | {"v_head_dim": 128, "num_experts": 256, "top_k": 8, "expert_ffn": 2048, "shared_expert_ffn": 2048}
    | {"first_dense_layers": 3, "moe_layer_freq": 1, "mtp_layers": 0},
}


def cell(text):
    """Return a cell as a table has it: a number, a truth or a word."""
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def test_a_model_from_the_columns_of_a_table():
    for line in TABLE.strip().splitlines():
        billions, *cells = line.split()
        fields = dict(zip(NAMED, map(cell, cells), strict=True)) | {"seq_len": 4096, "unrelated": "x"}
        fields |= ROUTED.get(fields["model"], NO_EXPERTS)
        if fields["model"] == "gpt-22b":
            fields["seq_len"] = 2048.0  # a learned table of positions
        counted = num_params(model_from_dims(**fields)) / 1e9
        # Korthikanti et al. 2022, Table 3, prints five digits of the first.
        assert counted == pytest.approx(float(billions), rel=2e-5 if billions == "22.074" else 1e-12), line


def test_a_row_without_a_dimension_is_refused_by_name():
    with pytest.raises(ModelConfigError, match=r"model odd \(from its .*\): missing hidden_size, vocab"):
        model_from_dims(model="odd", layers=4, heads=8, gated_mlp=True)
    with pytest.raises(ModelConfigError, match="num_layers: Input should be a valid integer"):
        model_from_dims(model="odd", layers=4.5, hidden=64, heads=8, gated_mlp=True, vocab=10, ffn=64)


def test_listing_models_reads_no_file_and_loading_one_stays_light():
    code = (
        "import sys; from costmodel.describe.models.model_files import list_models, load_model; list_models();"
        "assert 'yaml' not in sys.modules; load_model('llama3-8b');"
        "heavy = {'ruamel.yaml', 'pandas', 'rich', 'typer', 'costmodel.describe.models.huggingface'} & set(sys.modules);"
        "assert not heavy, heavy"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_tensor_ranks_split_of_other_heads():
    heads = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 64, "v_head_dim": 32}
    split = (("attention heads of other layers", 8),)
    assert OtherHeads(**heads).split_over_tp() == split
    assert OtherHeads(**heads, ffn_size=96).split_over_tp() == (*split, ("MLP width of other layers", 96))


def test_parameters_are_the_hubs():
    for name, entry in _hub().items():
        counted = num_params(load_model(name))
        if "params" in entry:
            assert counted == entry["params"], name
        else:
            assert counted == pytest.approx(float(entry["card"]), rel=0.01), name


def test_names_of_the_same_shape():
    for name, same in [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-70b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama3-405b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3-671b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3-671b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("mistralai/Mistral-Nemo-Base-2407", "mistral-nemo-2407"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("qwen3-235b", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-30B", "qwen3-30b-a3b"),
    ]:
        assert load_model(name) == load_model(same)


def test_a_variant_with_another_vocabulary_is_a_model_of_its_own():
    base = load_model("mistralai/Mixtral-8x22B-v0.1")

    assert (base.vocab_size, load_model("Mixtral-8x22B-Instruct-v0.1").vocab_size) == (32000, 32768)


def test_no_name_means_two_models():
    names = [*list_models(), *_aliases(), *_hub()]

    assert len({_plain(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-23", "llama3-"])
def test_a_beginning_of_no_model_or_of_many_is_refused(name):
    with pytest.raises(ModelConfigError, match=f"model: '{name}' is unknown; did you mean"):
        load_model(name)


JOB = {"gpus": 8, "global_batch": 64, "seq_len": 4096, "layout": "tp2"}

# Of every kind: patterns of layers, experts, latent attention, other mixers, other heads.
MODELS = ("llama3-8b", "gpt-oss-20b", "deepseek-v3-671b", "qwen3-30b-a3b", "gemma3-27b", "nemotron-h-56b")


def changes(model: Model) -> dict[str, object]:
    """Return every number of a model a step larger, and every switch turned, where that still is a model."""
    found = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, bool):
            found[name] = not value
        elif isinstance(value, int):
            found[name] = 2 * value or 2
    return found


def test_a_copy_is_the_model_made_anew_whichever_field_is_changed():
    tried = 0
    for preset in MODELS:
        model = cm.load_model(preset)
        model.layer_kinds(), num_params(model), [model.seen_by(kind) for kind in model.layer_kinds()]
        for name, value in changes(model).items():
            try:
                anew = Model(**{**model.model_dump(), name: value})
            except ValueError:
                with pytest.raises(cm.CostModelError):
                    model.model_copy(update={name: value})
                continue
            tried += 1
            changed = model.model_copy(update={name: value})
            assert getattr(changed, name) == value, (preset, name)
            assert changed.kind_of_layer == anew.kind_of_layer, (preset, name)
            assert changed.layer_kinds() == anew.layer_kinds(), (preset, name)
            assert num_params(changed) == num_params(anew), (preset, name)
    assert tried > 100


def test_the_price_of_a_copy_does_not_depend_on_what_was_priced_before():
    model = cm.load_model("llama3-8b")
    before = float(cm.estimate(model=model, **JOB).step_time_s)
    longer = model.model_copy(update={"num_layers": 48})
    by_hand = Model(**{**model.model_dump(), "num_layers": 48})
    assert longer.kind_of_layer == (0,) * 48
    assert float(cm.estimate(model=longer, **JOB).step_time_s) == float(
        cm.estimate(model=by_hand, **JOB).step_time_s
    )
    # Sixteen more layers of 32, and the head once: between 1.3 and 1.5 times the step.
    assert 1.3 < float(cm.estimate(model=longer, **JOB).step_time_s) / before < 1.5
    assert float(cm.estimate(model=cm.load_model("llama3-8b"), **JOB).step_time_s) == before


def test_copies_without_a_change_are_equal():
    model = cm.load_model("gpt-oss-20b")
    model.layer_kinds()
    for same in (copy(model), deepcopy(model), pickle.loads(pickle.dumps(model)), model.model_copy()):
        assert same == model
        assert same.layer_kinds() == model.layer_kinds()


def test_a_model_that_is_made_wrongly_is_one_line():
    model = {"name": "m", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 128}
    for more, said in (
        ({}, "model: missing gated_mlp"),
        ({"gated_mlp": True}, "model: a model with dense layers needs ffn_size > 0"),
        ({"gated_mlp": "yes"}, "model: gated_mlp: Input should be a valid boolean, got 'yes'"),
        ({"gated_mlp": True, "ffn": 256}, "model: field 'ffn' is unknown; did you mean 'ffn_size'"),
    ):
        with pytest.raises(cm.CostModelError) as caught:
            cm.Model(**model, **more)
        assert str(caught.value).startswith(said)
        assert "\n" not in str(caught.value)
