"""Tables cannot forget: what names a member finds it, what names none is an error; facts are no endings of names."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import costmodel
from costmodel.base.errors import CostModelError
from costmodel.bill.lines import Bill
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_cluster
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import Dispatcher, load_recipe, resolved_for
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.step.anatomy.param_block import ParamBlock
from costmodel.step.anatomy.params import _active_fraction
from costmodel.trust.validation import seen_memory_bytes


def test_every_dispatcher_of_recipes_is_a_record():
    assert set(get_args(Dispatcher)) == set(DISPATCHERS)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_attention_kernels_are_chosen_for_every_accelerator(kernel):
    recipe = load_recipe("megatron-core").replaced("attention_kernel", kernel)

    for name in list_profiles("accelerator"):
        software = load_accelerator(name).software
        chosen = {"auto": software.attention, "torch": software.torch_attention}[kernel]
        assert resolved_for(recipe, software).kernels.attention_kernel == chosen
        assert chosen not in ("auto", "torch")


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


def test_a_new_generation_is_data_and_a_known_one_brings_its_software(tmp_path, monkeypatch):
    monkeypatch.setenv("COSTMODEL_PROFILE_PATH", str(tmp_path))
    said = "software: {attention: flash2, torch_attention: cudnn, fp8: mxfp8, fp8_layouts: both}"
    text = (
        "schema_version: 1\nprofile: accelerator\ninherit: h100-sxm-80gb\nname: mine\ntitle: Mine\n"
        "generation: rubin\n{software}\n"
    )
    (tmp_path / "mine.yaml").write_text(text.replace("{software}", said))
    mine = load_accelerator("mine")
    assert (mine.generation, mine.software.torch_attention, mine.software.fp8) == ("rubin", "cudnn", "mxfp8")
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 4096, "zero_stage": 3}
    cluster = replace(load_cluster("dgx-h100-ndr"), accelerator=mine)
    assert (
        costmodel.estimate(cluster=cluster, recipe="torchtitan", **job).job.recipe.kernels.attention_kernel
        == "cudnn"
    )
    assert costmodel.estimate(cluster=cluster, precision="fp8", **job).job.precision.name == "mxfp8"
    (tmp_path / "mine.yaml").write_text(text.replace("{software}", "").replace("rubin", "blackwell"))
    assert load_accelerator("mine").software == load_accelerator("h100-sxm-80gb").software
