"""JSON Schemas: what they accept is what the program reads, for every shipped file and for slips of the hand."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.merge import read_job
from costmodel.describe.models.model import make_model
from costmodel.describe.models.model_files import shipped_models

ROOT = Path(__file__).parents[2]
DATA = ROOT / "costmodel" / "describe" / "data"
SHIPPED = {
    "recipe": sorted((DATA / "recipes").glob("*.yaml")),
    "hardware": sorted((ROOT / "hardware_profiles").glob("*/*.yaml")),
}


def problems(kind, content):
    plain = json.loads(json.dumps(content, default=str))
    return [error.message for error in Draft202012Validator(cm.schema(kind)).iter_errors(plain)]


def test_every_kind_has_a_schema_and_every_shipped_file_meets_it():
    for kind in ("job", "grid", "hardware", "model", "recipe"):
        Draft202012Validator.check_schema(cm.schema(kind))
    for kind, paths in SHIPPED.items():
        validator = Draft202012Validator(cm.schema(kind))
        assert paths
        for path in paths:
            content = json.loads(json.dumps(YAML(typ="safe").load(path.read_text()), default=str))
            assert not list(validator.iter_errors(content)), path
    validator = Draft202012Validator(cm.schema("model"))
    for name, row in shipped_models().items():
        assert not list(validator.iter_errors({key: row[key] for key in row.keys() - {"also"}})), name


JOB = """model: llama3-8b
gpus: 8
layout: tp2 cp1
global_batch: 64
seq_len: 8k
"""


LINES = (
    "",
    "tokens: 15T",
    "tokens: 4e6",
    "zero: 2",
    "set: {dp_overlap: none}",
    "switches: {fused_norm: false, allocator_slack: 0.1}",
    "switches: [dp_overlap=none]",
    "axis_order: [tp, cp, dp, pp]",
    "axis_order: tp cp dp pp",
    "recompute: full",
    "precision: fp8",
    "micro_batch:",
    "sequence_parallel: true",
    "gpu: 8",
    "gpus: -1",
    "tokens: many",
    "zero: 4",
    "set: {dp_overlap: sometimes}",
    "set: {overlap: none}",
    "axis_order: [tp, tp, dp, pp]",
    "recompute: half",
    "micro_batch: 1.5",
    "sequence_parallel: 3",
)


def test_the_schema_of_a_job_accepts_what_is_read(tmp_path):
    path = tmp_path / "job.yaml"
    for more in LINES:
        path.write_text(JOB.replace("gpus: 8\n", "") + more if more.startswith("gpus") else JOB + more)
        try:
            cm.estimate(**{"gpus": 8, **read_job(path)})
            reads = True
        except CostModelError:
            reads = False
        assert (not problems("job", YAML(typ="safe").load(path.read_text()))) == reads, more


def test_every_field_and_alias_of_a_job_is_a_key():
    keys = set(cm.schema("job")["properties"])
    assert keys == {"measured", *(name for field in JOB_FIELDS for name in (field.name, *field.aliases))}
    assert cm.schema("job")["properties"]["seq_len"]["description"].startswith("Tokens of a sequence")
    assert "torchtitan" in cm.schema("job")["properties"]["recipe"]["examples"]


def test_a_grid_takes_lists_where_a_sweep_does():
    grid = {"model": ["llama3-8b"], "gpus": [8, 16], "global_batch": 16, "seq_len": "2k", "headroom": "5%"}
    assert not problems("grid", grid)
    assert problems("grid", {**grid, "headroom": ["5%", "10%"]})
    assert problems("job", grid)


def test_a_model_may_leave_out_what_is_derived():
    mine = {
        "num_layers": 8,
        "hidden_size": 1024,
        "num_heads": 16,
        "vocab_size": 32000,
        "ffn_size": 4096,
        "gated_mlp": True,
    }
    assert not problems("model", mine)
    assert make_model({"name": "mine", **mine}).head_dim == 64
    for wrong in ({**mine, "num_layer": 8}, {**mine, "num_layers": "8"}, {**mine, "num_layers": 0}):
        assert problems("model", wrong)
        with pytest.raises(CostModelError):
            make_model({"name": "mine", **wrong})
    assert problems("model", {name: value for name, value in mine.items() if name != "hidden_size"})


def test_a_profile_that_inherits_may_leave_out_the_rest():
    mine = {"schema_version": 1, "profile": "accelerator", "name": "mine", "inherit": "h100-sxm-80gb"}
    assert not problems("hardware", mine)
    assert problems("hardware", {name: value for name, value in mine.items() if name != "inherit"})
    assert problems("hardware", {**mine, "memory": "80 GiB"})
    assert not problems("hardware", {**mine, "memory": {"value": "80 GiB", "source": "assumed"}})
    assert problems("hardware", {**mine, "memori": 3})


def test_an_unknown_kind_is_one_line():
    with pytest.raises(CostModelError, match=r"schema: 'jobs' is unknown; did you mean 'job'\?"):
        cm.schema("jobs")
