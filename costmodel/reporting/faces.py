"""What draws each kind of answer: one table of functions, each imported when it is called.

A table of an estimate so needs no matplotlib, and none of planning.
"""

from __future__ import annotations

from costmodel.base.answer import Drawing

DRAWINGS: dict[str, Drawing] = {
    "Budget": Drawing("budgets:budget_grids"),
    "CollectiveCosts": Drawing(
        "collective:cost_grids", "collective:cost_remarks", {"time": "plots.collectives:draw_collective"}
    ),
    "Comparison": Drawing(
        "comparison:compare_grids", "comparison:compare_remarks", {"bars": "plots.comparison:draw_comparison"}
    ),
    "Estimate": Drawing(
        "tables:estimate_grids",
        "tables:estimate_remarks",
        {
            "time": "plots.bill:draw_time",
            "memory": "plots.bill:draw_memory",
            "pipeline": "plots.pipeline:draw_pipeline",
            "compute_roofline": "plots.rooflines:draw_compute_roofline",
            "communication_roofline": "plots.rooflines:draw_communication_roofline",
            "mesh": "plots.mesh_map:draw_mesh",
            "tornado": "plots.tornado:draw_tornado_of",
        },
    ),
    "Explanation": Drawing("explanation:explain_grids"),
    "FabricCalibration": Drawing("calibration:fit_grids", figures={"sweeps": "calibration:draw_fit"}),
    "KernelCalibration": Drawing("steps:kernel_grids"),
    "Listing": Drawing("listings:list_grids"),
    "MeshTable": Drawing("mesh:mesh_grids"),
    "ModelFacts": Drawing("models:model_grids"),
    "Plan": Drawing(
        "plans:plan_grids",
        "plans:plan_remarks",
        {"pareto": "plots.plans:draw_pareto", "scaling": "plots.plans:draw_scaling"},
    ),
    "ProfilePage": Drawing("hardware:page_grids"),
    "RecipePage": Drawing("recipes:recipe_grids"),
    "Roofline": Drawing(
        "roofline:roofline_grids",
        "roofline:roofline_remarks",
        {"compute": "plots.rooflines:draw_compute", "communication": "plots.rooflines:draw_communication"},
    ),
    "Runs": Drawing("runs:runs_grids"),
    "RunsCalibration": Drawing("own_runs:runs_grids", "own_runs:runs_remarks"),
    "Sensitivity": Drawing(
        "sensitivity:sensitivity_grids",
        "sensitivity:sensitivity_remarks",
        {"tornado": "plots.tornado:draw_tornado"},
    ),
    "StepCalibration": Drawing("steps:step_grids", "steps:step_remarks"),
    "StepTimes": Drawing("step_times:step_time_grids"),
    "StepTree": Drawing("tree:tree_grids"),
    "Sweep": Drawing("plans:sweep_grids", "plans:sweep_remarks"),
    "Trace": Drawing("trace:trace_grids"),
    "TraceProfile": Drawing(
        "profiles:profile_grids",
        "profiles:profile_remarks",
        {"classes": "plots.profiles:draw_classes", "beside": "plots.profiles:draw_beside"},
    ),
    "TrainingRun": Drawing("training_runs:run_grids", "training_runs:run_remarks"),
    "Validation": Drawing(
        "validation:validation_grids",
        "validation:validation_remarks",
        {"predicted": "plots.validation:draw_predicted"},
    ),
    "Watch": Drawing("watch:watch_grids", "watch:watch_remarks"),
}
"""By the name of the answer's class; functions as ``module:name`` inside `costmodel.reporting`."""
