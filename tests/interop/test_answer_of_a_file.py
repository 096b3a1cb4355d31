"""What was read of a file as plain values, as a job file and as a model file: every part of it, by hand."""

import pytest

from costmodel.describe.models.model_files import load_model
from costmodel.interop.answer import job_yaml, model_of, model_yaml, record
from costmodel.interop.framework import FrameworkConfigError, Imported

FOUND = Imported(
    {"model": "llama3-8b", "gpus": 8, "switches": {"tp_overlap": "none", "shares": (1, 2)}},
    missing=("cluster", "seq_len"),
    ignored=("odd", "even"),
    notes=("a note",),
    warnings=("a warning",),
    facts={"optimizer": "Adam", "gpus": 4},
    sweeps=({"primitive": "all_reduce"},),
    kind="trainer",
    framework="Axolotl",
)
UNPRICED = Imported({}, shape={"num_layers": 4}, unpriced="it is odd", warnings=("a warning",))


def test_everything_as_plain_values():
    held = record(FOUND)
    assert held.pop("model")["name"] == "llama3-8b"
    assert held == {
        "schema_version": 1,
        "kind": "trainer",
        "framework": "Axolotl",
        "job": {
            "model": "llama3-8b",
            "gpus": 4,
            "switches": {"tp_overlap": "none", "shares": (1, 2)},
            "optimizer": "Adam",
        },
        "sweeps": [{"primitive": "all_reduce"}],
        "notes": ["a note"],
        "warnings": ["a warning"],
        "ignored": ["odd", "even"],
        "missing": ["cluster", "seq_len"],
    }
    own = record(Imported({"model": load_model("llama3-8b"), "gpus": 8}))
    assert (own["job"], own["warnings"]) == ({"gpus": 8}, [])


def test_a_model_without_a_price():
    held = record(UNPRICED)
    assert held["warnings"] == ["a warning", "the model cannot be priced: it is odd"]
    assert held["model"] == {"num_layers": 4, "priced": False}
    assert model_of(Imported({})) is None
    assert UNPRICED.remarks == ("the model cannot be priced: it is odd", "a warning")
    with pytest.raises(FrameworkConfigError, match=r"^model: it is odd$"):
        UNPRICED.estimate_keywords(cluster="dgx-h100-ndr")


def test_a_model_with_its_parameters():
    """Llama 3 8B as published: 8,030,261,248, all of them active."""
    for model in ("llama3-8b", load_model("llama3-8b")):
        held = model_of(Imported({"model": model}))
        assert (held["name"], held["priced"], held["num_layers"]) == ("llama3-8b", True, 32)
        assert held["num_params"] == held["num_active_params"] == 8030261248
    mixtral = model_of(Imported({"model": "mixtral-8x7b"}))
    # Two of eight experts of 32 layers, three matrices of 4,096 x 14,336 each, are active.
    assert mixtral["num_params"] - mixtral["num_active_params"] == 6 * 32 * 3 * 4096 * 14336


def test_remarks_and_keywords():
    assert FOUND.remarks == ("a warning", "not known here, and not read: odd, even")
    with pytest.raises(FrameworkConfigError, match=r"does not say global_batch, seq_len; give it"):
        FOUND.estimate_keywords()
    more = {"cluster": "dgx-h100-ndr", "global_batch": 8, "seq_len": 1024}
    assert FOUND.estimate_keywords(**more, gpus=None) == {**FOUND.job, **more}
    assert FOUND.estimate_keywords(**more, gpus=16)["gpus"] == 16


def test_a_job_file():
    assert job_yaml(FOUND).splitlines() == [
        "# a note",
        "# a warning",
        "# not known here, and not read: odd, even",
        "# optimizer = Adam: read, without a price",
        "# missing: cluster",
        "# missing: seq_len",
        "model: llama3-8b",
        "gpus: 8",
        "switches:",
        "  tp_overlap: none",
        "  shares: [1, 2]",
    ]
    model = load_model("llama3-8b")
    assert job_yaml(Imported({"model": model})) == "model: llama3-8b\n"
    assert job_yaml(Imported({"model": model}), "mine.yaml") == "model: mine.yaml\n"
    assert job_yaml(UNPRICED).startswith("# the model cannot be priced: it is odd\n# a warning\n")


def test_a_model_file_holds_what_is_no_default():
    lines = model_yaml(load_model("llama3-8b")).splitlines()
    assert "hidden_size: 4096" in lines
    assert not [line for line in lines if line.startswith(("num_experts", "parallel_block"))]
