"""What is shipped, listed and shown: ``costmodel hardware``, ``model`` and ``recipe``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from costmodel.cli.command import command, command_group

hardware = command_group("hardware")
model = command_group("model")
recipe = command_group("recipe")


@command("costmodel hardware list --kind cluster", group=hardware, name="list", uses="profiles")
def list_hardware(kind: str | None, profiles: list[Path] | None) -> Any:
    """List the hardware profiles: shipped ones, and yours."""
    import costmodel as cm

    return cm.profiles_table(kind, profile_path=profiles)


@command("costmodel hardware show dgx-h100-ndr", group=hardware, name="show", uses="profiles")
def show_hardware(name: str, kind: str | None, profiles: list[Path] | None) -> Any:
    """Show every number of a profile with its source."""
    import costmodel as cm

    return cm.hardware_profile(name, kind, profile_path=profiles)


@command("costmodel hardware check my-cluster.yaml", group=hardware, name="check", output=(), uses="profiles")
def check_hardware(files: list[Path], profiles: list[Path] | None) -> None:
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


@command("costmodel model list --format csv", group=model, name="list")
def list_models() -> Any:
    """List the shipped models with their exact parameter counts."""
    import costmodel as cm

    return cm.models_table()


@command(
    """
    costmodel model show llama3-405b --seq-len 8192
    costmodel model show ./config.json
    """,
    group=model,
    name="show",
)
def show_model(name: str, seq_len: int) -> Any:
    """Show a model's parameters by component, its FLOPs per token and its dimensions."""
    import costmodel as cm

    return cm.model_facts(name, seq_len=seq_len)


@command(
    """
    costmodel support
    costmodel support llama3-70b h100
    """
)
def support(model: str, machine: str) -> Any:
    """Say what was measured, what is estimated and what is not modelled, by model family, machine and framework."""
    import costmodel as cm

    return cm.support(model, machine)


@command("costmodel recipe list", group=recipe, name="list")
def list_recipes() -> Any:
    """List the shipped recipes."""
    import costmodel as cm

    return cm.recipes_table()


@command("costmodel recipe show torchtitan --set dp_overlap=none", group=recipe, name="show", uses="switches")
def show_recipe(name: str, switches: list[str] | None) -> Any:
    """Show every switch of a recipe: its value, its default, its choices and what it changes."""
    import costmodel as cm

    return cm.recipe(name, switches=switches)
