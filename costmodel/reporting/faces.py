"""What draws each kind of answer: its tables, and its figures by name.

An answer finds its face here when it is first seen. Each is imported when it is used: a table of an
estimate needs no matplotlib, and none of planning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.base.answer import Face, face
from costmodel.base.words import plural

if TYPE_CHECKING:
    from costmodel.base.grid import Grid


@face("Estimate")
class EstimateFace(Face):
    """Tables and figures of one estimate."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return headline, bills and mesh of one layout, or the first rows of many."""
        from costmodel.reporting.tables import estimate_grids, layouts_grid

        many = bool(self._answer.shape)
        return [layouts_grid(self._answer)] if many else estimate_grids(self._answer, **options)

    def html(self) -> str:
        """Return the tables with the warnings below the headline."""
        from costmodel.reporting.tables import estimate_html

        return estimate_html(self._answer)

    def remarks(self) -> list[str]:
        """Return the warnings."""
        return [f"Warning: {warning}" for warning in self._answer.warnings]

    def time(self) -> Any:
        """Draw the step as a waterfall of what it waits for."""
        from costmodel.reporting.plots.bill import draw_time

        return draw_time(self._answer)

    def memory(self) -> Any:
        """Draw the memory of every pipeline stage against the capacity."""
        from costmodel.reporting.plots.bill import draw_memory

        return draw_memory(self._answer)

    def pipeline(self) -> Any:
        """Draw the schedule task by task, the bubble in white."""
        from costmodel.reporting.plots.pipeline import draw_pipeline

        return draw_pipeline(self._answer)

    def compute_roofline(self) -> Any:
        """Draw operators under the roofs of the GPU."""
        from costmodel.reporting.plots.rooflines import draw_compute_roofline

        return draw_compute_roofline(self._answer)

    def communication_roofline(self) -> Any:
        """Draw axes against the ridge points of the fabric."""
        from costmodel.reporting.plots.rooflines import draw_communication_roofline

        return draw_communication_roofline(self._answer)

    def mesh(self) -> Any:
        """Draw which GPUs form a group of each axis."""
        from costmodel.reporting.plots.mesh_map import draw_mesh

        return draw_mesh(self._answer)

    def tornado(self) -> Any:
        """Draw what each number and each switch is worth."""
        from costmodel.what_if.sensitivity import sensitivity

        return sensitivity(self._answer).plot.named("tornado")


@face("Explanation")
class ExplanationFace(Face):
    """Tables of opened lines."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a table a line."""
        from costmodel.reporting.explanation import explain_grids

        return explain_grids(self._answer, **options)


@face("Runs")
class RunsFace(Face):
    """A table of whole runs side by side."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the runs, a column each."""
        from costmodel.reporting.runs import runs_grid

        return [runs_grid(self._answer)]


@face("Comparison")
class ComparisonFace(Face):
    """Tables and the figure of jobs side by side."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the jobs, and what moved on both bills of each."""
        from costmodel.reporting.comparison import compare_grids

        return compare_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say of each job in one sentence how it differs from the first."""
        from costmodel.reporting.comparison import compare_remarks

        return compare_remarks(self._answer)

    def bars(self) -> Any:
        """Draw a bar a job: time by part, and memory of the worst stage by part."""
        from costmodel.reporting.plots.comparison import draw_comparison

        return draw_comparison(self._answer)


@face("Sensitivity")
class SensitivityFace(Face):
    """Tables and figures of a sensitivity."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return numbers by elasticity, and switches by what turning them does."""
        from costmodel.reporting.sensitivity import sensitivity_grids

        return sensitivity_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say what is in the way, and which single switch would help most."""
        from costmodel.reporting.sensitivity import sensitivity_remarks

        return sensitivity_remarks(self._answer)

    def tornado(self) -> Any:
        """Draw what each number and each switch is worth."""
        from costmodel.reporting.plots.tornado import draw_tornado

        return draw_tornado(self._answer)


@face("Plan")
class PlanFace(Face):
    """Tables and figures of a search."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the best layouts, the front, scaling, and what is out."""
        from costmodel.reporting.plans import plan_grids

        return plan_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Explain the pick in a few sentences."""
        return list(self._answer.advice())

    def pareto(self) -> Any:
        """Draw step time against memory, with the front."""
        from costmodel.reporting.plots.plans import draw_pareto

        return draw_pareto(self._answer)

    def scaling(self) -> Any:
        """Draw throughput over the number of GPUs."""
        from costmodel.reporting.plots.plans import draw_scaling

        return draw_scaling(self._answer)


@face("Sweep")
class SweepFace(Face):
    """The table of a sweep."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row a point."""
        from costmodel.reporting.plans import sweep_grid

        return [sweep_grid(self._answer, **options)]

    def remarks(self) -> list[str]:
        """Say how many points failed."""
        failed = len(self._answer.failed)
        return [f"Warning: {plural(failed, 'point')} failed; run again with --resume"] if failed else []


@face("TrainingRun")
class TrainingRunFace(Face):
    """Tables of a whole run."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the headline, where the hours go, and how sure that is."""
        from costmodel.reporting.training_runs import run_grids

        return run_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Return the warnings of the step, and of a layout that may not fit."""
        from costmodel.reporting.training_runs import run_remarks

        return run_remarks(self._answer)


@face("Budget")
class BudgetFace(Face):
    """Tables of a budget."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return what the budget buys, and what each rule would train."""
        from costmodel.reporting.budgets import budget_grids

        return budget_grids(self._answer, **options)


@face("Validation")
class ValidationFace(Face):
    """Tables and figures of a validation."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return errors by source, accelerator and axis, sweeps and memory."""
        from costmodel.reporting.validation import validation_grids

        return validation_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say why rows were left out."""
        return list(self._answer.skipped)

    def predicted(self) -> Any:
        """Draw predicted over measured step time."""
        from costmodel.reporting.plots.validation import draw_predicted

        return draw_predicted(self._answer)


@face("Roofline")
class RooflineFace(Face):
    """Tables and figures of both rooflines."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return roofs, operators, tiers and axes."""
        from costmodel.reporting.roofline import roofline_grids

        return roofline_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say which batch data parallelism needs."""
        from costmodel.reporting.roofline import roofline_remarks

        return roofline_remarks(self._answer)

    def compute(self) -> Any:
        """Draw operators under the roofs of the GPU."""
        from costmodel.reporting.plots.rooflines import draw_compute_roofline

        return draw_compute_roofline(self._answer.est)

    def communication(self) -> Any:
        """Draw axes against the ridge points of the fabric."""
        from costmodel.reporting.plots.rooflines import draw_communication_roofline

        return draw_communication_roofline(self._answer.est)


@face("StepTree")
class StepTreeFace(Face):
    """The table of a step as a tree."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the tree, indented."""
        from costmodel.reporting.tree import tree_grid

        return [tree_grid(self._answer, **options)]


@face("Trace")
class TraceFace(Face):
    """The table of a step in time."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row a stage."""
        from costmodel.reporting.trace import trace_grid

        return [trace_grid(self._answer.timeline, **options)]


@face("TraceProfile")
class TraceProfileFace(Face):
    """Tables and figures of a profiled step."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the bill beside the trace, classes, streams and steps."""
        from costmodel.reporting.profiles import profile_grids

        return profile_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say what could explain the largest differences."""
        from costmodel.reporting.profiles import profile_remarks

        return profile_remarks(self._answer)

    def classes(self) -> Any:
        """Draw what each class of kernels took, and what of it is exposed."""
        from costmodel.reporting.plots.profiles import draw_classes

        return draw_classes(self._answer)

    def beside(self) -> Any:
        """Draw bill and trace side by side, group by group."""
        from costmodel.reporting.plots.profiles import draw_beside

        return draw_beside(self._answer)


@face("MeshTable")
class MeshTableFace(Face):
    """The table of a mesh."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row an axis."""
        from costmodel.reporting.mesh import mesh_grid

        return [mesh_grid(self._answer.rows, **options)]


@face("CollectiveCosts")
class CollectiveCostsFace(Face):
    """Tables and the figure of a collective."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return every algorithm at one size, or a row a size."""
        from costmodel.reporting.collective import cost_grids

        return cost_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Answer in a sentence: the time, by what, and what dominates."""
        from costmodel.reporting.collective import headline

        found = self._answer
        return [headline(found.title, found.prices)] if found.one_size else []

    def time(self) -> Any:
        """Draw time over size, and what is taken where."""
        from costmodel.reporting.plots.collectives import draw_collective

        return draw_collective(self._answer)


@face("ModelFacts")
class ModelFactsFace(Face):
    """Tables of a model."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return counts, components and dimensions."""
        from costmodel.reporting.models import model_grids

        return model_grids(self._answer, **options)


@face("ProfilePage")
class ProfilePageFace(Face):
    """Tables of a hardware profile."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return every number with its source."""
        from costmodel.reporting.hardware import page_grids

        return page_grids(self._answer, **options)


@face("RecipePage")
class RecipePageFace(Face):
    """The table of a recipe."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row a switch."""
        from costmodel.reporting.recipes import recipe_grid

        return [recipe_grid(self._answer, **options)]


@face("Listing")
class ListingFace(Face):
    """The table of what there is."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row each."""
        from costmodel.reporting.listings import list_grid

        return [list_grid(self._answer, **options)]


@face("FabricCalibration")
class FabricCalibrationFace(Face):
    """Tables and the figure of a fitted fabric."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return constants, errors by sweep and by size, straight lines."""
        from costmodel.reporting.calibration import fit_grids

        return fit_grids(self._answer.fit, self._answer.cluster, **options)

    def sweeps(self) -> Any:
        """Draw measured bus bandwidths as dots and the fit as lines."""
        from costmodel.reporting.calibration import draw_fit

        return draw_fit(self._answer.fit, self._answer.cluster)


@face("KernelCalibration")
class KernelCalibrationFace(Face):
    """The table of fitted kernels."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return a row a kernel."""
        from costmodel.reporting.steps import kernel_grid

        return [kernel_grid(self._answer.results, self._answer.accelerator.name, **options)]


@face("StepCalibration")
class StepCalibrationFace(Face):
    """Tables of measured steps."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the residual of each step, and what each part alone could explain."""
        from costmodel.reporting.steps import step_grids

        return step_grids(self._answer.steps, self._answer.parts, **options)

    def remarks(self) -> list[str]:
        """Say what was read of logs, and which constant fits best, where one was asked for."""
        from costmodel.reporting.step_times import log_remarks
        from costmodel.reporting.steps import far_off_remark, overhead_remark

        logs = [log_remarks(step.name, step.times) for step in self._answer.steps if step.times is not None]
        off = far_off_remark([step.time_s / float(step.estimate.step_time_s) for step in self._answer.steps])
        return [*(line for said in logs for line in said), *off, *overhead_remark(self._answer)]


@face("Watch")
class WatchFace(Face):
    """One look at a running training."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return where the steps lie."""
        from costmodel.reporting.watch import watch_grids

        return watch_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say in one line where steps lie, since when, and what that costs."""
        from costmodel.reporting.watch import watch_line

        return [watch_line(self._answer)]


@face("RunsCalibration")
class RunsCalibrationFace(Face):
    """Tables of what own runs say."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the factors before and after, and every measurement."""
        from costmodel.reporting.own_runs import runs_grids

        return runs_grids(self._answer, **options)

    def remarks(self) -> list[str]:
        """Say what was read of logs, which rows do not fit, and how errors fall."""
        from costmodel.reporting.own_runs import runs_remarks

        return runs_remarks(self._answer)


@face("StepTimes")
class StepTimesFace(Face):
    """Tables of the steps of a training log."""

    def grids(self, **options: Any) -> list[Grid]:
        """Return the measurement, and what was left out of it."""
        from costmodel.reporting.step_times import step_time_grids

        return step_time_grids(self._answer, **options)
