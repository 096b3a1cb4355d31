"""What one flag or key more means to the readers of launch files: the rows of `reader_cases.yaml`."""

import json
from pathlib import Path

import pytest
from texts import read_as

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import document_text, read_mapping
from costmodel.describe.recipe import load_recipe
from costmodel.interop.reading import kind_of
from costmodel.interop.text_file import TextFile
from costmodel.step.anatomy.params import num_params

CASES = read_mapping(Path(__file__).with_name("reader_cases.yaml"), example="read:")


def laid_over(content, more):
    """Return tables with others laid over them; null takes a key out."""
    found = dict(content)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = laid_over(found[key], value) if both else value
    return {key: value for key, value in found.items() if value is not None or key not in more}


def found_on(base, more, given=None):
    """Read a base with flags behind it, or keys laid over it."""
    base = CASES["bases"][base]
    text = f"{base['text']} {more}" if "text" in base else json.dumps(laid_over(base["content"], more))
    beside = {
        key: value for key, value in {**base.get("given", {}), **(given or {})}.items() if value is not None
    }
    return read_as(base["kind"], text, "job", **beside)


def value_of(found, key):
    """Return a part of an answer, or a field of its job, of its switches over the recipe's, or of the model."""
    job, model = found.job, found.job.get("model")
    if key in ("missing", "ignored", "notes", "warnings", "switches"):
        held = job.get(key) if key == "switches" else list(getattr(found, key))
        return held
    if key == "framework":
        return found.framework
    if key.startswith("facts."):
        return found.facts[key.removeprefix("facts.")]
    if key == "num_params":
        return round(num_params(model))
    if key == "experts_in":
        return "".join("e" if model.layer_kinds()[kind].is_moe else "d" for kind in model.kind_of_layer)
    if key == "model":
        return getattr(model, "name", model)
    switches = {**load_recipe(job.get("recipe", "torchtitan")).switches, **job.get("switches", {})}
    if key in job or key in switches:
        value = job[key] if key in job else switches[key]
    else:
        value = model
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("base", CASES["bases"])
def test_what_is_read(base):
    cases = [case for case in CASES["read"] if case[0] == base]
    assert cases
    for _, more, expected, *given in cases:
        found = found_on(base, more, *given)
        assert {key: value_of(found, key) for key in expected} == expected, more


def test_the_kind_is_told_by_the_content():
    for name, base in CASES["bases"].items():
        as_json = base["kind"] in ("hf", "deepspeed", "torchtitan")
        text = base.get("text") or (json.dumps if as_json else document_text)(base["content"])
        suffix = "txt" if "text" in base else "json" if as_json else "yaml"
        assert kind_of(TextFile(text, f"file.{suffix}")) == base["kind"], name
    flags = "model: x\nmicro_batch_size: 1\nnum_layers: 2\nhidden_size: 8\ntensor_model_parallel_size: 2\n"
    assert kind_of(TextFile(flags, "f.yaml")) == "megatron-yaml"


def test_what_has_no_price_is_said():
    for base, more, words in CASES["said"]:
        found = found_on(base, more)
        assert any(words in text for text in (*found.remarks, *found.notes)), (base, more)
    for base, more in CASES["silent"]:
        assert found_on(base, more).remarks == (), (base, more)


def test_wrong_values_are_one_line():
    for base, more, words in CASES["refused"]:
        with pytest.raises(CostModelError) as caught:
            found_on(base, more)
        assert words in str(caught.value), (base, more)
        assert "\n" not in str(caught.value)
