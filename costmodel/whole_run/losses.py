"""What a long run loses, as lines of the bill: seconds for each step that counts."""

from __future__ import annotations

from costmodel.bill.lines import TimeLine, time_line
from costmodel.bill.quantity import Quantity
from costmodel.describe.reliability import Reliability
from costmodel.physics.run.goodput import Losses

_SOURCE = (
    "renewal process of checkpoints and failures: Daly, FGCS 22 (2006), equation 20, with delayed snapshots"
)


def loss_lines(
    losses: Losses,
    *,
    step_s: float,
    load_s: float,
    reliability: Reliability,
    planned_fraction: float,
    shortage_fraction: float,
    missing_fraction: float,
    spare_nodes: int,
) -> list[TimeLine]:
    """Return what each step that counts pays for checkpoints, failures, stops and missing nodes.

    Parameters
    ----------
    losses : Losses
        For each second of useful work. [-]
    step_s : float
        A step while nothing fails. [s]
    load_s : float
        Loading a checkpoint after a failure. [s]
    reliability : Reliability
        What a failure takes beside that.
    planned_fraction, shortage_fraction : float
        Shares of the calendar in planned stops, and without enough nodes. [-]
    missing_fraction : float
        Share of the work that the nodes in repair would have done, where the job goes on without them. [-]
    spare_nodes : int
        Nodes that are kept ready. [-]
    """
    made = {
        "checkpoint_pause": losses.pause.then("pause", "step_s * pause", step_s=step_s),
        "rework": losses.rework.then("rework", "step_s * rework", step_s=step_s),
    }
    # Failed restarts are dealt to detection, restart and loading as these share the downtime.
    parts = {
        "detection": reliability.mean_detection_s,
        "restart": reliability.restart_s,
        "checkpoint_load": load_s,
    }
    if sum(parts.values()):
        for name, part_s in parts.items():
            made[name] = losses.downtime.then(
                "down", "step_s * down * part_s / downtime_s", step_s=step_s, part_s=part_s
            )
    made["planned_stops"] = losses.total.then(
        "total", "step_s * total * planned / (1 - planned)", step_s=step_s, planned=planned_fraction
    )
    made["waiting_for_nodes"] = losses.total.then(
        "total",
        "available_s = step_s * total / (1 - planned); available_s * short / (1 - short)",
        step_s=step_s,
        planned=planned_fraction,
        short=shortage_fraction,
        spare_nodes=float(spare_nodes),
    )
    made["missing_nodes"] = losses.total.then(
        "total",
        "running_s = step_s * total / ((1 - planned) * (1 - short)); running_s * missing / (1 - missing)",
        step_s=step_s,
        planned=planned_fraction,
        short=shortage_fraction,
        missing=missing_fraction,
    )
    lines = [_line(name, each) for name, each in made.items()]
    return [line for line in lines if float(line.each_s) > 0.0]


def _line(name: str, made: Quantity) -> TimeLine:
    """Make one line of the month."""
    return time_line(
        f"resilience.{name}",
        axis="resilience",
        category="overhead",
        phase="step",
        count=1.0,
        made=made,
        source=_SOURCE,
    )
