"""What draws each kind of answer: one table of functions, each imported when it is called.

A table of an estimate so needs no matplotlib, and none of planning.
"""

from __future__ import annotations

from costmodel.base.answer import Drawing

DRAWINGS: dict[str, Drawing] = {
    "Budget": Drawing("budgets:budget_grids"),
    "CollectiveCosts": Drawing(
        "collective:cost_grids", "collective:cost_remarks", {"time": "other_pictures:collective_chart"}
    ),
    "Comparison": Drawing(
        "comparison:compare_grids",
        "comparison:compare_remarks",
        {"bars": "pictures:comparison_chart"},
        "comparison:compare_summary",
    ),
    "Estimate": Drawing(
        "tables:estimate_grids",
        "tables:estimate_remarks",
        {
            "time": "pictures:time_chart",
            "memory": "pictures:memory_chart",
            "pipeline": "pictures:pipeline_chart",
            "compute_roofline": "pictures:compute_chart",
            "communication_roofline": "pictures:communication_chart",
            "mesh": "pictures:mesh_chart",
            "tornado": "pictures:tornado_of",
        },
        "summaries:estimate_summary",
    ),
    "Explanation": Drawing("looks:explain_grids", summary="looks:explain_summary"),
    "FabricCalibration": Drawing("calibration:fit_grids", figures={"sweeps": "other_pictures:fit_chart"}),
    "KernelCalibration": Drawing("calibration:kernel_grids"),
    "Listing": Drawing("lists:list_grids"),
    "Generation": Drawing("generation:generation_grids", "generation:warnings"),
    "MeshTable": Drawing("mesh:mesh_grids"),
    "RankTable": Drawing("mesh:rank_grids"),
    "ModelFacts": Drawing("lists:model_grids"),
    "Plan": Drawing(
        "plans:plan_grids",
        "plans:plan_remarks",
        {"pareto": "other_pictures:pareto_chart", "scaling": "other_pictures:scaling_chart"},
        "plans:plan_summary",
    ),
    "ProfilePage": Drawing("lists:page_grids"),
    "RLEstimate": Drawing(
        "generation:rl_grids", "generation:warnings", {"phases": "generation:phases_chart"}
    ),
    "RLPlan": Drawing("generation:plan_grids", "generation:plan_remarks"),
    "RLRun": Drawing("generation:run_grids", "generation:run_remarks"),
    "RecipePage": Drawing("lists:recipe_grids"),
    "Roofline": Drawing(
        "looks:roofline_grids",
        "looks:roofline_remarks",
        {"compute": "pictures:compute_chart", "communication": "pictures:communication_chart"},
        "looks:roofline_summary",
    ),
    "Runs": Drawing("training_runs:runs_grids"),
    "RunsCalibration": Drawing("calibration:runs_grids", "calibration:runs_remarks"),
    "Sensitivity": Drawing(
        "sensitivity:sensitivity_grids",
        "sensitivity:sensitivity_remarks",
        {"tornado": "pictures:tornado_chart"},
        "sensitivity:sensitivity_summary",
    ),
    "StepCalibration": Drawing("calibration:step_grids", "calibration:step_remarks"),
    "StepTimes": Drawing("calibration:step_time_grids"),
    "StepTree": Drawing("looks:tree_grids"),
    "Sweep": Drawing("plans:sweep_grids", "plans:sweep_remarks"),
    "Trace": Drawing("looks:trace_grids"),
    "TraceProfile": Drawing(
        "profiles:profile_grids",
        "profiles:profile_remarks",
        {"classes": "other_pictures:classes_chart", "beside": "other_pictures:beside_chart"},
    ),
    "TrainingRun": Drawing(
        "training_runs:run_grids", "training_runs:run_remarks", summary="training_runs:run_summary"
    ),
    "Validation": Drawing(
        "validation:validation_grids",
        "validation:validation_remarks",
        {"predicted": "other_pictures:predicted_chart"},
    ),
    "Watch": Drawing("training_runs:watch_grids", "training_runs:watch_remarks"),
}
"""By the name of the answer's class; functions as ``module:name`` inside `costmodel.reporting`."""
