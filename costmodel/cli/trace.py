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
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    found = cm.trace(cm.estimate(**merged_job(given)))
    show(answer_result(found)._replace(json_text=found.to_json), target)
