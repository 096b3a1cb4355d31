"""What may stand without a flag: a job file or a model, and the machine, as in ``estimate llama3-70b 256xH100``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from costmodel.base.errors import CostModelError, shown

_COUNTED = re.compile(r"(?P<gpus>[0-9]+[kK]?)(\s*[x×*]\s*(?P<cluster>\S.*))?")
_FILES = {
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".sh",
    ".bash",
    ".slurm",
    ".sbatch",
    ".py",
    ".log",
    ".txt",
    ".cfg",
}


def parted(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the job files or models among words, and GPUs and cluster where a word counts them.

    >>> parted(["a.yaml", "b.yaml", "256xH100"]), parted(["8", "llama3-8b"])
    ((['a.yaml', 'b.yaml'], {'gpus': '256', 'cluster': 'H100'}), (['llama3-8b'], {'gpus': '8'}))
    """
    given = [word for word in words if word]
    counted = [word for word in given if _COUNTED.fullmatch(word.strip()) and not Path(word).exists()]
    if len(counted) > 1:
        raise CostModelError(f"machine: expected one such as 256xH100, got {shown(' '.join(counted))}")
    found = _COUNTED.fullmatch(counted[0].strip()) if counted else None
    fields = {name: value for name, value in found.groupdict().items() if value} if found else {}
    return [word for word in given if word not in counted], fields


def job_and_machine(first: str, second: str) -> tuple[str, dict[str, str]]:
    """Return a job file or model, and GPUs and cluster, in whichever order they stand; a cluster needs no count.

    >>> job_and_machine("llama3-8b", "h100"), job_and_machine("8xa100", "llama3-8b")
    (('llama3-8b', {'cluster': 'h100'}), ('llama3-8b', {'gpus': '8', 'cluster': 'a100'}))
    """
    files, machine = parted((first, second))
    if len(files) == 2:
        if is_file_name(files[1]):
            raise CostModelError(
                f"machine: expected GPUs such as 256xH100 after {files[0]}, got {shown(files[1])}"
            )
        machine = {"cluster": files.pop()}
    return "".join(files), machine


def is_file_name(word: str) -> bool:
    """Tell whether a word is a file: it is there, or its ending or a leading ``./`` says so."""
    return Path(word).suffix.lower() in _FILES or word.startswith((".", "/")) or Path(word).exists()
