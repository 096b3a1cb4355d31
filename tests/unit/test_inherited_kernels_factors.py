"""An accelerator that inherits its kernels is off by what its parent is off by, and by something of its own."""

import numpy as np
import pytest

from costmodel.describe.factors import draw, factors, kin_of
from costmodel.describe.hardware.hardware import load_cluster

CHIP = """schema_version: 1
profile: accelerator
name: next-chip
title: A chip that nobody measured
inherit: {parent}
tdp: {{value: 800 W, source: assumed}}
"""
NODES = """schema_version: 1
profile: cluster
name: next-nodes
title: Nodes of it
inherit: dgx-h100-ndr
accelerator: {chip}
"""
OWN, PARENT = "matmul.other.16-bit", "matmul.hopper.16-bit"


def chip(folder, name, parent, more=""):
    text = CHIP.format(parent=parent).replace("next-chip", name) + more
    (folder / "accelerators").mkdir(exist_ok=True)
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "accelerators" / f"{name}.yaml").write_text(text, encoding="utf-8")
    nodes = NODES.format(chip=name).replace("next-nodes", f"{name}-nodes")
    (folder / "clusters" / f"{name}-nodes.yaml").write_text(nodes, encoding="utf-8")
    return load_cluster(f"{name}-nodes", profile_path=folder).accelerator


def test_the_generation_that_was_measured_is_found_through_the_chain(tmp_path):
    assert load_cluster("dgx-h100-ndr").accelerator.kernels_of == ""
    child = chip(tmp_path, "first", "h100-sxm-80gb", "generation: hopper-next\n")
    grandchild = chip(tmp_path, "second", "first", "generation: hopper-after-next\n")
    assert (child.generation, child.kernels_of) == ("hopper-next", "hopper")
    assert (grandchild.generation, grandchild.kernels_of) == ("hopper-after-next", "hopper")
    names = [OWN, "attention.other", "launch"]
    assert kin_of(grandchild, names) == {OWN: PARENT, "attention.other": "attention.hopper"}
    # One of the parent's generation has the parent's factors anyway.
    assert kin_of(chip(tmp_path, "third", "h100-sxm-80gb"), [PARENT]) == {}


def test_the_child_shares_the_parents_values_and_is_less_sure():
    drawn = draw([OWN, PARENT], 4000, seed=5, kin={OWN: PARENT})
    child, parent = np.log(drawn[OWN]), np.log(drawn[PARENT])
    assert np.std(child) == pytest.approx(factors()[OWN].spread, rel=0.03)
    # What is left without the parent's part has nothing to do with it.
    assert np.corrcoef(child - parent, parent)[0, 1] == pytest.approx(0.0, abs=0.05)
    assert np.std(child - parent) == pytest.approx(
        np.sqrt(factors()[OWN].spread ** 2 - factors()[PARENT].spread ** 2), rel=0.03
    )
    # A job of the child alone draws the same values as one beside its parent.
    assert np.array_equal(draw([OWN], 4000, seed=5, kin={OWN: PARENT})[OWN], drawn[OWN])
    apart = np.log(draw([OWN], 4000, seed=5)[OWN])
    assert abs(np.corrcoef(apart, parent)[0, 1]) < 0.05 < np.corrcoef(child, parent)[0, 1]
