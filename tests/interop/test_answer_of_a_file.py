"""What was read of a file as plain values, as a job file and as a model file: every part of it, by hand."""

import pytest

from costmodel.describe.models.model_files import load_model
from costmodel.interop.answer import job_yaml, model_yaml
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
