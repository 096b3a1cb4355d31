"""Copies of models: a changed field changes what follows from it, whatever was priced before."""

import pickle
from copy import copy, deepcopy

import pytest

import costmodel as cm
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.params import num_params

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


def test_a_field_that_there_is_not_is_refused():
    with pytest.raises(cm.CostModelError, match="'num_layer' is unknown; did you mean 'num_layers'"):
        cm.load_model("llama3-8b").model_copy(update={"num_layer": 48})


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
