"""The command line: parses, calls, formats; computes nothing.

Only typer is imported here: commands are read when one is asked for (`group.LazyGroup`), and import what they
need when they run.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from costmodel.base.version import __version__
from costmodel.cli.group import LazyGroup

__all__ = ["main", "root"]

# Looking for other programs' plugins of pydantic reads the metadata of every package that is installed, and
# a pool of threads for matrix products is started that nothing here multiplies with.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What imports make stays until the end: looking for garbage among it takes a twentieth of a short command.
gc.set_threshold(500_000)

root = typer.Typer(
    name="costmodel",
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES = """\b
Examples:
  costmodel estimate llama3-8b 64xH100 -l tp2 --global-batch 512
  costmodel plan llama3-70b 256xH100
  costmodel generate llama3-70b 8xH100 --prompt 128 --response 3000 --batch 256
  costmodel mesh -c llama3-roce -n 16384 -l "tp8 pp16" --axis-order "tp cp pp dp"
  costmodel hardware show h100-sxm-80gb
  costmodel model show deepseek-v3-671b
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"costmodel {__version__}")
        raise typer.Exit


@root.callback(epilog=_EXAMPLES)
def _start(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Price any distributed LLM training layout before you run it, line by line.

    Exit codes: 0 answered (also when nothing fits), 1 a bug, 2 wrong input, 3 with --check when the job does
    not fit, with --expect when an expectation is not met, and where a file or a record of the best layout was to be
    written and none fits, 4 and 5 of watch when steps leave the band, 141 when the reader of a pipe has gone.
    """


_READER_GONE = 141
"""128 and the number of SIGPIPE, as a shell counts programs that end so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; wrong input is one line on stderr and code 2."""
    from costmodel.base.errors import CostModelError
    from costmodel.cli.streams import drop_output, prepare

    prepare()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = root(args=words, prog_name="costmodel", standalone_mode=False)
    except CostModelError as error:
        return _refuse(_by_flag(str(error), words))
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) has gone, of which the parser makes an exit of its own: nobody is left to tell.
        drop_output()
        return _READER_GONE
    except UnicodeDecodeError as error:
        return _refuse(f"a file that was given is not text in UTF-8 ({error.reason} at byte {error.start})")
    except OSError as error:
        if error.filename is None:
            # The output's end, such as a full disk.
            drop_output()
            return _refuse(f"cannot write the output: {error.strerror}")
        return _refuse(f"{error.filename}: {error.strerror}")
    except Exception as error:
        # Usage errors are classes of the parser that typer carries inside; they know their own message.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "costmodel"
        return _refuse(f"{_usage(error)} (see {command} --help)")
    return code if isinstance(code, int) else 0


def _by_flag(message: str, arguments: Sequence[str]) -> str:
    """Begin a message with the flag that was typed where its field is called by another word: --budget, not dollars.

    >>> _by_flag("dollars: expected …", ["run", "--budget=x"]), _by_flag("gpus: expected …", ["run", "-n", "x"])
    ('--budget: expected …', 'gpus: expected …')
    >>> _by_flag("max_memory_bytes: expected …", ["plan", "--max-memory", "x"])
    '--max-memory: expected …'
    """
    from costmodel.cli.output import with_flags
    from costmodel.describe.jobs.fields import FIELD

    message = with_flags(message)
    name, colon, rest = message.partition(":")
    flags = FIELD[name].flags if name in FIELD and colon else ()
    typed = {word.partition("=")[0] for word in arguments}
    used = next((flag for flag in flags if flag in typed), None)
    alike = used is None or used.removeprefix("--").replace("-", "_") == name
    return message if alike else f"{used}:{rest}"


def _usage(error: Any) -> str:
    from costmodel.cli.unknown_option import unknown_option

    is_unknown = hasattr(error, "option_name") and hasattr(error, "possibilities")
    return unknown_option(error) if is_unknown else str(error.format_message()).replace("Value error, ", "")


def _refuse(message: str) -> int:
    """Print one line about wrong input, and return its exit code."""
    from costmodel.base.errors import one_line
    from costmodel.cli.streams import say

    say(one_line(f"Error: {message}"))
    return 2
