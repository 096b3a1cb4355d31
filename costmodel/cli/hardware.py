"""``costmodel hardware``: accelerators, links, clusters and storage."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import command_group

app = command_group("Accelerators, links, clusters and storage: list, show, check.")

KindOption = Annotated[
    str | None, typer.Option("--kind", "-k", help="accelerator, link, cluster or storage.")
]

LIST_EPILOG = """\b
Example:
  costmodel hardware list --kind cluster
"""
SHOW_EPILOG = """\b
Example:
  costmodel hardware show dgx-h100-ndr
"""
CHECK_EPILOG = """\b
Example:
  costmodel hardware check my-cluster.yaml
"""


@app.command("list", epilog=LIST_EPILOG)
@takes_output()
def list_all(
    output: Mapping[str, Any],
    kind: KindOption = None,
    profiles: opt.ProfilesOption = None,
) -> None:
    """List the hardware profiles: shipped ones, and yours."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.profiles_table(kind, profile_path=profiles)), target)


@app.command("show", epilog=SHOW_EPILOG)
@takes_output()
def show_one(
    output: Mapping[str, Any],
    name: Annotated[str, typer.Argument(help="Name, alias or file of a profile.")],
    kind: KindOption = None,
    profiles: opt.ProfilesOption = None,
) -> None:
    """Show every number of a profile with its source."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.hardware_profile(name, kind, profile_path=profiles)), target)


@app.command("check", epilog=CHECK_EPILOG)
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Profiles to check.")],
    profiles: opt.ProfilesOption = None,
) -> None:
    """Say everything that is wrong with a profile, a line each; exit with code 2 if anything is."""
    import costmodel as cm
    from costmodel.base.errors import one_line

    wrong = False
    for file in files:
        problems = cm.check_profile(file, profile_path=profiles)
        wrong = wrong or bool(problems)
        for problem in problems:
            print(one_line(f"Error: {problem}"), file=sys.stderr)
        if not problems:
            typer.echo(f"{file}: nothing wrong")
    if wrong:
        raise typer.Exit(2)
