"""What a long run loses, as lines of the bill: seconds for each step that counts."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.bill.lines import TimeLine, time_line
from costmodel.describe.reliability import Reliability
from costmodel.physics.run.goodput import Losses
from costmodel.whole_run.checkpoints import Checkpoint

_SOURCE = (
    "renewal process of checkpoints and failures: Daly, FGCS 22 (2006), equation 20, with delayed snapshots"
)


def loss_lines(
    losses: Losses,
    *,
    step_s: float,
    failures_per_s: float,
    interval_s: float,
    checkpoint: Checkpoint,
    reliability: Reliability,
    planned_fraction: float,
    shortage_fraction: float,
    spare_nodes: int,
) -> list[TimeLine]:
    """Return what each step that counts pays for checkpoints, failures, stops and missing nodes.

    Parameters
    ----------
    losses : Losses
        For each second of useful work. [-]
    step_s : float
        A step while nothing fails. [s]
    failures_per_s : float
        Of the whole job. [1/s]
    interval_s : float
        Between two checkpoints. [s]
    checkpoint, reliability : Checkpoint, Reliability
        What a checkpoint takes, and what a failure takes.
    planned_fraction, shortage_fraction : float
        Shares of the calendar in planned stops, and without enough nodes. [-]
    spare_nodes : int
        Nodes that are kept ready. [-]
    """
    total = float(losses.total)
    down = float(losses.downtime) * step_s
    # Failed restarts are dealt to detection, restart and loading as these share the downtime.
    parts = {
        "detection": reliability.detection_s,
        "restart": reliability.restart_s,
        "checkpoint_load": checkpoint.load_s,
    }
    whole = sum(parts.values())
    up_terms = {
        "step_s": step_s,
        "failures_per_s": failures_per_s,
        "interval_s": interval_s,
        "pause_s": checkpoint.pause_s,
        "persist_s": checkpoint.persist_s,
    }
    up = float(losses.total - losses.downtime)
    lines = [
        _line(
            "checkpoint_pause",
            float(losses.pause) * step_s,
            "step_s * pause_s / interval_s",
            {key: up_terms[key] for key in ("step_s", "pause_s", "interval_s")},
        ),
        _line(
            "rework",
            float(losses.rework) * step_s,
            "step_s * (up - 1 - pause_s / interval_s)",
            {**up_terms, "up": up},
        ),
    ]
    for name, seconds in parts.items():
        if whole:
            lines.append(
                _line(
                    name,
                    down * seconds / whole,
                    "down_s * part_s / downtime_s",
                    {"down_s": down, "part_s": seconds, "downtime_s": whole},
                )
            )
    planned, short = planned_fraction, shortage_fraction
    running = step_s * total
    lines.append(
        _line(
            "planned_stops",
            running * planned / (1.0 - planned),
            "running_s * share / (1 - share)",
            {"running_s": running, "share": planned},
        )
    )
    available = running / (1.0 - planned)
    lines.append(
        _line(
            "waiting_for_nodes",
            available * short / (1.0 - short),
            "running_s * share / (1 - share)",
            {"running_s": available, "share": short, "spare_nodes": float(spare_nodes)},
        )
    )
    return [line for line in lines if float(line.each_s) > 0.0]


def _line(name: str, seconds: float, formula: str, terms: Mapping[str, float]) -> TimeLine:
    """Make one line of the month."""
    return time_line(
        f"resilience.{name}",
        axis="resilience",
        toll="overhead",
        phase="step",
        count=1.0,
        each_s=seconds,
        formula=formula,
        terms=terms,
        source=_SOURCE,
    )
