"""The command line: parses, calls, formats; computes nothing.

Only typer is imported here: commands are read when one is asked for (`texts.Commands`), and import what they
need when they run.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from costmodel.base.version import __version__
from costmodel.cli.texts import EXAMPLES, GroupedCommands, show_help

__all__ = ["app", "main"]

app = typer.Typer(
    name="costmodel",
    cls=GroupedCommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"costmodel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Price any distributed LLM training layout before you run it, line by line.

    Exit codes: 0 answered (also when a job does not fit), 1 a bug, 2 wrong input, 3 with --check
    when the job does not fit.
    """
    if context.invoked_subcommand is None:
        show_help(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; wrong input is one line on stderr and code 2."""
    from costmodel.base.errors import CostModelError

    try:
        code = app(
            args=None if arguments is None else list(arguments), prog_name="costmodel", standalone_mode=False
        )
    except CostModelError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader (head, less) has gone: nobody is left to tell. Keep the interpreter's last flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnicodeDecodeError as error:
        return _refuse(f"a file that was given is not text in UTF-8 ({error.reason} at byte {error.start})")
    except OSError as error:
        if error.filename is None:
            # The output's end, such as a full disk: leave nothing for the interpreter to flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _refuse(f"cannot write the output: {error.strerror}")
        return _refuse(f"{error.filename}: {error.strerror}")
    except Exception as error:
        # Usage errors are classes of the parser that typer carries inside; they know their own message.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "costmodel"
        return _refuse(f"{message()} (see {command} --help)")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    """Print one line about wrong input, and return its exit code."""
    from costmodel.base.errors import one_line

    print(one_line(f"Error: {message}"), file=sys.stderr)
    return 2
