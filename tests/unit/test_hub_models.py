"""Models of the hub by name, offline: their counts, and which names mean the same shapes."""

import pytest

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.model_files import _aliases, _hub, _plain, list_models, load_model
from costmodel.step.anatomy.params import num_params


def test_parameters_are_the_hubs():
    for name, entry in _hub().items():
        counted = num_params(load_model(name))
        if "params" in entry:
            assert counted == entry["params"], name
        else:
            assert counted == pytest.approx(float(entry["card"]), rel=0.01), name


@pytest.mark.parametrize(
    ("name", "same"),
    [
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
    ],
)
def test_names_of_the_same_shape(name, same):
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


def test_a_wrong_name_is_told_the_nearest():
    with pytest.raises(ModelConfigError, match="did you mean 'gemma-3-4b'"):
        load_model("google/gema-3-4b")
