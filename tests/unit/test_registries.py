"""Tables cannot forget: what names a member finds it, what names none is an error; facts are no endings of names."""

import re
from pathlib import Path
from typing import get_args

import pytest

import costmodel
from costmodel.base.errors import CostModelError, RecipeError
from costmodel.bill.lines import Bill
from costmodel.describe.hardware.profile_schema import Generation
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Dispatcher, load_recipe, resolved_for
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.params import ParamBlock, _active_fraction
from costmodel.trust.validation import seen_memory_bytes


def test_every_dispatcher_of_recipes_is_a_record():
    assert set(get_args(Dispatcher)) == set(DISPATCHERS)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_attention_kernels_are_chosen_for_every_generation_and_no_other(kernel):
    recipe = load_recipe("megatron-core").replaced("attention_kernel", kernel)

    for generation in get_args(Generation):
        assert resolved_for(recipe, generation).kernels.attention_kernel != kernel
    with pytest.raises(RecipeError, match=f"which kernel '{kernel}' is on a GPU of generation 'rubin'"):
        resolved_for(recipe, "rubin")


def test_an_unknown_way_to_shard_is_an_error():
    with pytest.raises(KeyError):
        _active_fraction(load_model("mixtral-8x7b"), ParamBlock("new", 1.0, "heads"))  # type: ignore[arg-type]


def test_an_unknown_kind_of_measured_memory_is_an_error():
    with pytest.raises(
        CostModelError, match=r"memory_kind: 'max_alocated' is unknown; did you mean 'max_allocated'"
    ):
        seen_memory_bytes(Bill((), ()), "max_alocated")


def test_no_code_decides_by_the_ending_of_a_line_or_an_operator():
    # What a user asks `explain` for may be the beginning of a name.
    allowed = {"estimates/explain.py"}
    package = Path(costmodel.__file__).parent
    found = [
        f"{path.relative_to(package)}:{number}"
        for path in package.rglob("*.py")
        if path.relative_to(package).as_posix() not in allowed
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(line|operator|item|block)\.name\.(starts|ends)with|[\"'] in line\.name", text)
    ]
    assert not found
