"""Set up this checkout in `.venv` and run something in it; needs nothing but Python 3.11.

    python3.11 dev.py estimate    price Llama 3 405B on 16,384 H100
    python3.11 dev.py test        run all tests
    python3.11 dev.py lint        ruff and mypy
    python3.11 dev.py run ...     any `costmodel` command

What follows the command is passed on. COSTMODEL_VENV names another folder for the environment.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = Path(os.environ.get("COSTMODEL_VENV", ROOT / ".venv"))
SCRIPTS = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")

# The Llama 3 paper's 8K stage: 16M tokens a step, interleaved 1F1B, CP 1 (table 4, second row).
ESTIMATE = [
    "estimate",
    "--model=llama3-405b",
    "--cluster=llama3-roce",
    "--gpus=16384",
    "--layout=tp8 cp1 pp16 vp4",
    "--zero=2",
    "--axis-order=tp cp pp dp",
    "--schedule=interleaved",
    "--seq-len=8192",
    "--global-batch=2048",
    "--micro-batch=1",
    "--recipe=llama3",
    "--tokens=15.6e12",
]


def call(program: str, *arguments: str) -> int:
    """Run a program of the environment in the checkout, and return its exit code."""
    return subprocess.call([str(SCRIPTS / program), *arguments], cwd=ROOT)


def set_up(extras: str) -> None:
    """Create the environment and install the checkout, unless that is already done."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = ENVIRONMENT / f"installed{extras}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"setting up {ENVIRONMENT.name} …", file=sys.stderr, flush=True)
    venv.create(ENVIRONMENT, with_pip=True)
    quietly = ("--quiet", "--disable-pip-version-check")
    if failed := call("python", "-m", "pip", "install", *quietly, "--editable", f".{extras}"):
        sys.exit(failed)
    stamp.write_text(wanted)


def main(command: str = "help", *arguments: str) -> int:
    """Run one of the commands of the module's text."""
    if command in ("estimate", "run"):
        set_up("")
        return call("costmodel", *(ESTIMATE if command == "estimate" else ()), *arguments)
    if command == "test":
        set_up("[dev,plot,report]")
        return call("python", "-m", "pytest", *arguments)
    if command == "lint":
        set_up("[dev,plot,report]")
        return call("python", "-m", "ruff", "check", ".") or call("python", "-m", "mypy")
    print(__doc__)
    return 0 if command == "help" else 2


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 (this file is what an older Python gets to see)
        sys.exit(f"costmodel needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    sys.exit(main(*sys.argv[1:]))
