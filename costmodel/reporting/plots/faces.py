"""`est.plot`, `plan.plot` and `validation.plot`: the figures of a result by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, choices_hint

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.planning.plan import Plan
    from costmodel.trust.validation import Validation
    from costmodel.what_if.sensitivity import Sensitivity


class Plots:
    """The figures that a result has; each method returns a matplotlib figure."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the figures."""
        return tuple(name for name in vars(cls) if not name.startswith("_"))

    def named(self, name: str) -> Any:
        """Draw the figure of that name.

        Raises
        ------
        CostModelError
            If there is none.
        """
        self.require(name)
        return getattr(self, name.replace("-", "_"))()

    @classmethod
    def require(cls, name: str) -> None:
        """Refuse a name of no figure.

        Raises
        ------
        CostModelError
            If there is none of that name.
        """
        if name.replace("-", "_") not in cls.names():
            raise CostModelError(f"figure: {name!r} is unknown; {choices_hint(name, cls.names())}")


class EstimatePlots(Plots):
    """Figures of one estimate."""

    def __init__(self, est: Estimate) -> None:
        self._est = est

    def time(self) -> Any:
        """Draw the step as a waterfall of what it waits for."""
        from costmodel.reporting.plots.bill import draw_time

        return draw_time(self._est)

    def memory(self) -> Any:
        """Draw the memory of every pipeline stage against the capacity."""
        from costmodel.reporting.plots.bill import draw_memory

        return draw_memory(self._est)

    def pipeline(self) -> Any:
        """Draw the schedule task by task, the bubble in white."""
        from costmodel.reporting.plots.pipeline import draw_pipeline

        return draw_pipeline(self._est)

    def compute_roofline(self) -> Any:
        """Draw operators under the roofs of the GPU."""
        from costmodel.reporting.plots.rooflines import draw_compute_roofline

        return draw_compute_roofline(self._est)

    def communication_roofline(self) -> Any:
        """Draw axes against the ridge points of the fabric."""
        from costmodel.reporting.plots.rooflines import draw_communication_roofline

        return draw_communication_roofline(self._est)

    def mesh(self) -> Any:
        """Draw which GPUs form a group of each axis."""
        from costmodel.reporting.plots.mesh_map import draw_mesh

        return draw_mesh(self._est)

    def tornado(self) -> Any:
        """Draw what each number and each switch is worth."""
        from costmodel.what_if.sensitivity import sensitivity

        return sensitivity(self._est).plot.tornado()


class SensitivityPlots(Plots):
    """Figures of a sensitivity."""

    def __init__(self, found: Sensitivity) -> None:
        self._found = found

    def tornado(self) -> Any:
        """Draw what each number and each switch is worth."""
        from costmodel.reporting.plots.tornado import draw_tornado

        return draw_tornado(self._found)


class PlanPlots(Plots):
    """Figures of a search."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def pareto(self) -> Any:
        """Draw step time against memory, with the front."""
        from costmodel.reporting.plots.plans import draw_pareto

        return draw_pareto(self._plan)

    def scaling(self) -> Any:
        """Draw throughput over the number of GPUs."""
        from costmodel.reporting.plots.plans import draw_scaling

        return draw_scaling(self._plan)


class ValidationPlots(Plots):
    """Figures of a validation."""

    def __init__(self, checked: Validation) -> None:
        self._checked = checked

    def predicted(self) -> Any:
        """Draw predicted over measured step time."""
        from costmodel.reporting.plots.validation import draw_predicted

        return draw_predicted(self._checked)
