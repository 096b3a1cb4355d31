"""Rooms import only what stands below them, and answers share one protocol."""

import ast
import json
import tomllib
from pathlib import Path

import pytest
from famous_jobs import FSDP_8B
from trace_files import step_events, write_trace

import costmodel as cm
from costmodel.base.answer import Answer, Views, to_json
from costmodel.reporting.renderers import RENDERERS

RL_SMALL = {
    **{"model": "llama3-8b", "gpus": 8, "layout": "tp2", "prompts": 8, "samples_per_prompt": 8},
    **{"prompt_len": 100, "response_len": 500, "max_response_len": 2000},
}
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "costmodel"
LOGS = ROOT / "tests" / "data" / "nccl_logs"
SMALL = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 16, "seq_len": 8192}
LAYERS = ["base", "bill", "physics", "describe", "step", "estimates", "generation", "interop"]
LAYERS += ["trust", "whole_run", "planning", "what_if", "reporting", "cli : app"]


def test_the_contract_holds_every_room_and_excuses_no_import():
    layers, circles = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    assert layers["layers"] == LAYERS[::-1]
    assert layers["exhaustive"]
    assert "ignore_imports" not in {**layers, **circles}
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == {room for names in LAYERS for room in names.split(" : ")}


def test_only_the_face_of_the_package_and_the_registry_import_by_name():
    """What a linter cannot see: a module imported by its name as text."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("import_module", "__import__")
    }
    # The exporters and the readers of files are in the room of the tables that name them; a command is read when called.
    known = {
        "__init__.py",
        "base/answer.py",
        "cli/group.py",
        "interop/emit.py",
        "interop/reading.py",
    }
    assert found <= known


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "train.log"
    log.write_text("".join(f"steps: {n} loss: 5.5 iter time (s): 2.{n}\n" for n in range(1, 9)))
    traced = write_trace(tmp_path_factory.mktemp("traces") / "trace.json", step_events(200, 1))
    est = cm.estimate(**FSDP_8B)
    row = dict.fromkeys(("id", "source", "accelerator", "framework", "gpus", "gbs", "precision"), "1")
    return {
        "Estimate": est,
        "Explanation": est.explain("compute.mlp"),
        "Comparison": cm.compare(est, est),
        "Sensitivity": cm.sensitivity(cm.estimate(**SMALL, tp=2)),
        "Plan": cm.plan(**SMALL, fix={"pp": 1, "schedule": "none"}),
        "Sweep": cm.sweep(**SMALL, layout="tp2"),
        "TrainingRun": cm.run(**SMALL, tp=2, tokens=1e12),
        "Runs": cm.runs(*(cm.run(**SMALL, tp=tp, tokens=1e12) for tp in (2, 4))),
        "Budget": cm.budget(dollars=1e6),
        "Validation": cm.validate([row]),
        "Roofline": cm.roofline(est),
        "Trace": cm.trace(est),
        "TraceProfile": cm.profile(traced, est),
        "Generation": cm.generate(model="llama3-8b", gpus=8, layout="tp8", batch=8),
        "MeshTable": cm.mesh(cluster="dgx-h100-ndr", gpus=64, layout="tp8"),
        "RankTable": cm.mesh(cluster="dgx-h100-ndr", gpus=64, layout="tp8").of_ranks(9),
        "CollectiveCosts": cm.collective("all-reduce", "1 GB", ranks=64),
        "ModelFacts": cm.model_facts("llama3-8b"),
        "ProfilePage": cm.hardware_profile("h100-sxm-80gb"),
        "RecipePage": cm.recipe("torchtitan"),
        "Listing": cm.recipes_table(),
        "RunsCalibration": cm.calibrate.runs({"fsdp": (est, 5.0)}),
        "Watch": cm.watch(log, **SMALL, tp=2),
        "RLEstimate": cm.estimate_rl(**RL_SMALL),
        "RLPlan": cm.plan_rl(**RL_SMALL),
        "RLRun": cm.run_rl(10, **RL_SMALL),
        "StepTimes": cm.calibrate.step_times(log),
        "FabricCalibration": cm.calibrate.fabric(sorted(LOGS.glob("*.log")), cluster="h100-ndr"),
    }


def test_every_answer_keeps_the_protocol(answers):
    for kind, answer in answers.items():
        assert isinstance(answer, Answer)
        assert type(answer).__name__ == kind
        record = answer.to_dict()
        assert json.loads(to_json(record)) == record or kind in ("Plan", "Comparison")
        # A trace is in the form of the programs that open it.
        assert kind == "Trace" or record["schema_version"] == 1
        columns = answer.columns()
        assert len({len(values) for values in columns.values()}) == 1, kind
        assert list(answer.to_frame()) == list(columns)
        assert len(answer.to_frame()) == len(next(iter(columns.values()))) > 0
        page = answer._repr_html_()
        for grid in answer.grids():
            assert grid.columns
            assert all(len(row) == len(grid.columns) for row in grid.rows), kind
        assert page.count("<table>") == len(answer.grids()) > 0
        assert all(isinstance(remark, str) for remark in answer.remarks())
        assert isinstance(answer.plot, Views)


def test_every_answer_is_drawn(answers):
    assert set(RENDERERS) == {*answers, "KernelCalibration"}


# --- the face of the package -----------------------------------------------------------------


def test_every_public_name_is_in_the_stub_once_and_is_no_room():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imported = [alias for node in stub.body for alias in node.names]
    assert all(alias.name == alias.asname for alias in imported)
    names = [alias.name for alias in imported]
    assert len(names) == len(set(names))
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not rooms & set(names)
    for name in names:
        assert getattr(cm, name) is not None
    listed = set(cm.__all__)
    assert cm.__all__ == dir(cm)
    assert {"estimate", "plan", "run", "vary"} <= listed < set(names)
    assert not {"points_of", "read_grid", "read_expected"} & listed
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cm.nothing  # noqa: B018


READS = (
    "app",
    "base",
    "cli",
    "describe.jobs",
    "describe.models.model",
    "interop",
    "reporting.charts",
    "reporting.terminal",
    "reporting.lists",
)
"""What commands use beside the public face: errors and units, themselves, readers of flags and files, picture files, the
doors of strangers."""


def test_the_command_line_can_nothing_that_the_package_cannot():
    beyond = [
        f"{path.name}: {node.module}"
        for path in sorted((PACKAGE / "cli").glob("*.py"))
        for node in ast.walk(_without_types(ast.parse(path.read_text())))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("costmodel.")
        if not node.module.removeprefix("costmodel.").startswith(READS)
    ]
    assert beyond == []


def _without_types(tree):
    """Drop what only type checkers import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    return tree


def test_every_answer_is_one_line_and_says_which_name_was_meant(answers):
    # What explains is text to be read.
    for name, answer in answers.items():
        assert name == "Explanation" or len(repr(answer).splitlines()) == 1, name
        assert name == "Explanation" or len(repr(answer)) < 300, name
    with pytest.raises(AttributeError, match="Estimate has no 'step_tim'; did you mean 'step_time_s'"):
        answers["Estimate"].step_tim  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'estimate'"):
        cm.estimat  # noqa: B018


def test_figures_of_one_layout_are_plain_numbers(answers):
    est = answers["Estimate"]
    kinds = {
        name: type(getattr(est, name))
        for name in ("step_time_s", "mfu", "hfu", "memory_bytes_per_gpu", "fits")
    }
    assert kinds == {**dict.fromkeys(kinds, float), "fits": bool}
    assert json.loads(json.dumps([est.step_time_s, est.fits])) == [est.step_time_s, est.fits]
    assert cm.estimate(**{**FSDP_8B, "micro_batch": [1, 2]}).step_time_s.shape == (2,)
