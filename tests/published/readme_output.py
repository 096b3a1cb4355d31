"""Write what the README shows of the program: the output of its first command, fields and CSV columns.

python tests/published/readme_output.py            # rewrite README.md
python tests/published/readme_output.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from costmodel.cli import main as costmodel
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.estimates.frame import LONG_COLUMNS, WIDE_COLUMNS, ColumnDoc

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


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


def output_block(num_lines: int | None) -> str:
    """Return the first command and its real output, cut to `num_lines` as ``head`` would."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        costmodel(first_command())
    lines = printed.getvalue().splitlines()
    pipe = f" | head -{num_lines}" if num_lines else ""
    return "\n".join(["```", f"$ {shell_text(first_command())}{pipe}", *lines[:num_lines], "```"])


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
        default = "**required**" if field.required else field.default_said
        meaning = f"{field.meaning}: {field.hint}" if field.hint else field.meaning
        rows.append(
            f"| `{field.name}` | {flags} | {span} | {default} | {meaning.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(
        ["| Key and keyword | Flags | Range | Default | Meaning |", "|---|---|---|---|---|", *rows]
    )


def filled(text: str) -> str:
    """Return the README with all blocks written anew."""

    def output(match: re.Match[str]) -> str:
        cut = re.search(r"head -(\d+)", match[1])
        return f"{match[1]}\n{output_block(int(cut[1]) if cut else None)}\n{match[2]}"

    text = re.sub(r"(<!-- output:begin.*?-->).*?(<!-- output:end -->)", output, text, flags=re.DOTALL)
    blocks = {"fields": field_block(), "long": column_block(LONG_COLUMNS), "wide": column_block(WIDE_COLUMNS)}
    for marker, block in blocks.items():
        begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Rewrite or check the README."""
    before = README.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("README.md is out of date; run tests/published/readme_output.py", file=sys.stderr)
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
