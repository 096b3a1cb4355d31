"""What a long run loses, as lines of the bill: seconds for each step that counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from costmodel.bill.lines import TimeLine, time_line

if TYPE_CHECKING:
    from costmodel.whole_run.run import TrainingRun

_SOURCE = (
    "renewal process of checkpoints and failures: Daly, FGCS 22 (2006), equation 20, with delayed snapshots"
)


def loss_lines(run: TrainingRun) -> list[TimeLine]:
    """Return what each step that counts pays for checkpoints, failures, stops and missing nodes."""
    found, step = run.losses, run.step_time_s
    total, given = float(found.total), run.reliability
    down = float(found.downtime) * step
    # Failed restarts are dealt to detection, restart and loading as these share the downtime.
    parts = {
        "detection": given.detection_s,
        "restart": given.restart_s,
        "checkpoint_load": run.checkpoint.load_s,
    }
    whole = run.downtime_s
    up_terms = {
        "step_s": step,
        "failures_per_s": run.failures_per_s,
        "interval_s": run.interval_s,
        "pause_s": run.checkpoint.pause_s,
        "persist_s": run.checkpoint.persist_s,
    }
    up = float(found.total - found.downtime)
    lines = [
        _line(
            "checkpoint_pause",
            float(found.pause) * step,
            "step_s * pause_s / interval_s",
            {key: up_terms[key] for key in ("step_s", "pause_s", "interval_s")},
        ),
        _line(
            "rework",
            float(found.rework) * step,
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
    planned, short = run.planned_fraction, run.shortage_fraction
    running = step * total
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
            {"running_s": available, "share": short, "spare_nodes": float(run.spare_nodes)},
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
