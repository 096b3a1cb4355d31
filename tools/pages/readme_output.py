"""Write what README.md and docs/ show of the program: outputs, commands, fields and CSV columns.

python tools/pages/readme_output.py            # rewrite the pages
python tools/pages/readme_output.py --check    # exit 1 if one is out of date
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from pages import README, fill, read_pages, settle

import costmodel as cm
from costmodel.cli import main as costmodel
from costmodel.cli import root
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.estimates.frame import LONG_COLUMNS, WIDE_COLUMNS, ColumnDoc
from costmodel.estimates.samples import SAMPLE_COLUMNS


def first_command() -> list[str]:
    """Return the arguments of the estimate in the README's first command."""
    setup = README.read_text().partition("<!-- setup:begin -->")[2].partition("<!-- setup:end -->")[0]
    command = setup.partition("bin/costmodel ")[2].partition("\n\n")[0]
    return shlex.split(command.replace("\\\n", " "))


def shell_text(arguments: Iterable[str]) -> str:
    """Write a command as a person types it, in lines that fit a page."""
    words = [f'"{word}"' if " " in word else word for word in arguments]
    lines = ["costmodel"]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def output_block(more: list[str]) -> str:
    """Return the first command with `more` flags and its real output."""
    printed, arguments = io.StringIO(), [*first_command(), *more]
    with contextlib.redirect_stdout(printed):
        costmodel(arguments)
    return "\n".join(["```", f"$ {shell_text(arguments)}", printed.getvalue().rstrip(), "```"])


def column_block(columns: Iterable[ColumnDoc]) -> str:
    """Return documented columns as a Markdown table."""
    rows = [f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in columns]
    return "\n".join(["| Column | Unit | Meaning |", "|---|---|---|", *rows])


def field_block() -> str:
    """Return the fields of a job as a Markdown table."""
    rows = []
    for field in JOB_FIELDS:
        flags = " ".join(f"`{flag}`" for flag in (field.short, *field.flags) if flag)
        span = f"{field.least:,.0f} to {field.most:,.0f}" if field.kind == "whole" else ""
        if field.kind == "number":
            span = f"{field.least:g} to {field.most:g}"
        default = "**required**" if field.required else field.shown_default
        meaning = f"{field.meaning}: {field.hint}" if field.hint else field.meaning
        rows.append(
            f"| `{field.name}` | {flags} | {span} | {default} | {meaning.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(
        ["| Key and keyword | Flags | Range | Default | Meaning |", "|---|---|---|---|---|", *rows]
    )


def with_outputs(texts: dict[Path, str]) -> dict[Path, str]:
    """Write the output of the first command wherever a page shows it, with the flags that the page names."""

    def output(match: re.Match[str]) -> str:
        return f"{match[1]}\n{output_block(re.findall(r'--[a-z]+(?= )', match[1]))}\n{match[2]}"

    shown = re.compile(r"(<!-- output:begin.*?-->).*?(<!-- output:end -->)", re.DOTALL)
    return {page: shown.sub(output, text) for page, text in texts.items()}


def command_pages() -> str:
    """Return every command with its options and examples, as its help has them; what several share, once."""
    commands = list(_commands(typer.main.get_command(root), "costmodel"))
    rows = Counter(row for _, command in commands for row in _flag_rows(command).values())
    shared = {row for row, count in rows.items() if count > 2}
    parts = ["## Flags of several commands", "", "| Flags | Meaning |", "|---|---|"]
    parts += [*(row for row in rows if row in shared), ""]
    for name, command in commands:
        epilog = (command.epilog or "").replace("\b", "").strip()
        notes, _, examples = epilog.partition("Examples:")
        if not examples:
            notes, _, examples = epilog.partition("Example:")
        parts += [f"## {name}", "", (command.help or "").strip(), ""]
        if notes.strip():
            parts += [notes.strip(), ""]
        if examples.strip():
            parts += ["```text", *(line.strip() for line in examples.strip().splitlines()), "```", ""]
        flags = _flag_rows(command)
        if own := [row for row in flags.values() if row not in shared]:
            parts += ["| Flags | Meaning |", "|---|---|", *own, ""]
        if others := [f"`{flag}`" for flag, row in flags.items() if row in shared]:
            parts += ["[Of several commands](#flags-of-several-commands): " + " ".join(others), ""]
    return "\n".join(parts)


def _flag_rows(command: Any) -> dict[str, str]:
    """Return the row of each flag of a command, by its first name."""
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    return {
        one.opts[0]: f"| {' '.join(f'`{flag}`' for flag in one.opts)} | {_cell(one.help)} |"
        for one in options
    }


def api_page() -> str:
    """Return a directive of mkdocstrings for every public function of `costmodel`, in alphabetical order."""
    public = ((name, getattr(cm, name)) for name in cm.__all__)
    return "\n\n".join(f"::: {one.__module__}.{name}" for name, one in public if inspect.isfunction(one))


def support_table() -> str:
    """Return how many published runs stand behind each accelerator, width and family."""
    (grid,) = cm.support().grids()
    titles = [column.title for column in grid.columns]
    rows = [titles, ["---"] * len(titles), *grid.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").replace("<", "&lt;")


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with the words that call them."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from _commands(command.get_command(None, name), f"{path} {name}")


def blocks() -> dict[str, str]:
    """Return all blocks that follow from the program's own tables."""
    return {
        "fields": field_block(),
        "long": column_block(LONG_COLUMNS),
        "wide": column_block((*WIDE_COLUMNS, *SAMPLE_COLUMNS)),
        "commands": command_pages(),
        "api": api_page(),
        "support": support_table(),
    }


def main() -> int:
    """Rewrite or check the pages."""
    return settle(fill(with_outputs(read_pages()), blocks()))


if __name__ == "__main__":
    sys.exit(main())
