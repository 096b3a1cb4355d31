"""``costmodel trace``: one step on a time axis."""

from typing import Any

from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel trace job.yaml --out step.json      # open in ui.perfetto.dev or chrome://tracing
  costmodel trace job.yaml --schedule zb-h1 --vp 1
"""


@takes_job()
def trace(given: dict[str, Any], output: dict[str, Any]) -> None:
    """Write one step as a trace: a process a pipeline stage, a thread a stream, a counter of memory.

    The schedule is simulated with the durations of the bill; the last slice ends at its step time.
    Without --out a table shows how long each stage works and stands idle.
    """
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.estimates.estimate import estimate
    from costmodel.estimates.timeline import step_timeline
    from costmodel.reporting import trace as report

    target = plan_output(**output)
    est = estimate(**merged_job(given))
    timeline = step_timeline(est)
    show(
        Result(
            grids=lambda: [report.trace_grid(timeline)],
            record=lambda: report.trace_record(timeline, est),
            table=lambda: report.trace_columns(timeline),
            json_text=lambda: report.trace_text(timeline, est),
        ),
        target,
    )
