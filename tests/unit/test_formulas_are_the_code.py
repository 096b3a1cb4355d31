"""A formula stands once: each line of a bill is the value of its own text, and of nothing else."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from famous_jobs import JOBS, famous

import costmodel as cm
from costmodel.bill.formula import evaluate, evaluate_steps
from costmodel.bill.lines import memory_line, time_line

PACKAGE = Path(cm.__file__).parent
MORE = {
    "host-adam": {
        "model": "llama3-8b",
        "cluster": "dgx-a100-hdr",
        "gpus": 16,
        "zero_stage": 2,
        "recipe": "deepspeed",
        "switches": {"offload_optimizer": True, "dp_overlap": "none", "offload_activations": 0.5},
    },
    "recomputed-ring": {
        "model": "llama3-70b",
        "cluster": "dgx-h100-ndr",
        "gpus": 128,
        "layout": "tp8 cp4 pp2",
        "recompute": "full",
        "recipe": "nemo",
    },
}


def estimate_of(name):
    if name in JOBS:
        return famous(name)
    return cm.estimate(global_batch=64, seq_len=8192, **MORE[name])


@pytest.mark.parametrize("name", [*JOBS, *MORE])
def test_every_line_is_the_value_of_its_text(name):
    bill = estimate_of(name).bill
    for line in bill.time_lines:
        steps = {step.name: step.value for step in evaluate_steps(line.formula, line.terms)}
        np.testing.assert_allclose(steps[""], line.exposed_each_s, rtol=1e-12, err_msg=line.name)
        np.testing.assert_allclose(steps.get("busy_s", steps[""]), line.each_s, rtol=1e-12, err_msg=line.name)
    for line in bill.memory_lines:
        np.testing.assert_allclose(
            evaluate(line.formula, line.terms), line.bytes, rtol=1e-12, err_msg=line.name
        )


def test_a_line_takes_no_value_beside_its_formula():
    told = {"terms", "count", "bytes_each", "tier", "algorithm"}
    for build in (time_line, memory_line):
        parameters = inspect.signature(build).parameters.values()
        assert {one.name for one in parameters if "Array" in str(one.annotation)} <= told


def test_nobody_builds_or_changes_a_line_past_its_formula():
    """Only bill/lines.py makes the records; elsewhere a copy of a line may have another count or name."""
    priced = {"each_s", "exposed_each_s", "bytes", "formula", "terms"}
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE) == Path("bill/lines.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                where = f"{path.name}:{node.lineno}"
                assert node.func.id not in ("TimeLine", "MemoryLine"), where
                if node.func.id == "replace":
                    assert not priced & {word.arg for word in node.keywords}, where
