"""What may stand without a name: a job file or a model, and the machine, as in ``estimate llama3-70b 256xH100``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, shown

_COUNTED = re.compile(r"(?P<gpus>[0-9]{1,3}(,[0-9]{3})+|[0-9]+[kK]?)(\s*[x×*]\s*(?P<cluster>\S.*))?")
_COUNTED_TWICE = re.compile(r"\w[x×*][0-9]+$")
_NEARLY_COUNTED = re.compile(r"-?\d|[A-Za-z]\w*[x×*]\d+$")
_FILES = (
    *(".yaml", ".yml", ".json", ".toml", ".py", ".log"),
    *(".txt", ".cfg", ".sh", ".bash", ".slurm", ".sbatch"),
)


def jobs_and_machines(words: Iterable[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the job files or models among words, and by each word that counts GPUs their number and cluster.

    >>> jobs_and_machines(["llama3-8b", "64xh100", "32xb200"])
    (['llama3-8b'], {'64xh100': {'gpus': '64', 'cluster': 'h100'}, '32xb200': {'gpus': '32', 'cluster': 'b200'}})
    """
    jobs, machines = [], {}
    for word in filter(None, words):
        counted = _COUNTED.fullmatch(word.strip())
        if counted and not Path(word).exists():
            if _COUNTED_TWICE.search(counted["cluster"] or ""):
                raise CostModelError(
                    f"machine: expected GPUs such as 256xH100, got {shown(word)}, two counts"
                )
            found = {"gpus": counted["gpus"].replace(",", ""), "cluster": counted["cluster"]}
            machines[word] = {name: value for name, value in found.items() if value}
        else:
            jobs.append(word)
    return jobs, machines


def job_and_machine(first: str, second: str) -> tuple[str, dict[str, str]]:
    """Return a file, and model, GPUs and cluster, in whichever order they stand; a cluster needs no count.

    >>> job_and_machine("llama3-8b", "h100"), job_and_machine("8xa100", "job.yaml")
    (('', {'model': 'llama3-8b', 'cluster': 'h100'}), ('job.yaml', {'gpus': '8', 'cluster': 'a100'}))
    """
    files, machines = jobs_and_machines((first, second))
    if len(machines) > 1:
        raise CostModelError(f"machine: expected one such as 256xH100, got {shown(f'{first} {second}')}")
    machine = next(iter(machines.values()), {})
    if len(files) == 2:
        if is_file_name(files[1]):
            raise CostModelError(
                f"machine: expected GPUs such as 256xH100 after {files[0]}, got {shown(files[1])}"
            )
        if _NEARLY_COUNTED.match(files[1]):
            raise CostModelError(f"machine: expected GPUs such as 256xH100, got {shown(files[1])}")
        machine = {"cluster": files.pop()}
    if files and not is_file_name(files[0]):
        machine = {"model": files.pop(), **machine}
    return "".join(files), machine


def is_file_name(word: str) -> bool:
    """Tell whether a word is a file: it is there, or its ending or a leading ``./`` says so."""
    return Path(word).suffix.lower() in _FILES or word.startswith((".", "/")) or Path(word).exists()


def file_and_keywords(
    job: object, machine: object, keywords: Mapping[str, Any], *, who: str
) -> tuple[str, dict[str, Any]]:
    """Return the file among what a call was given without a name, and its keywords with the rest."""
    from costmodel.describe.hardware.cluster import Cluster

    if not isinstance(machine, str | Cluster | None):
        raise CostModelError(
            f"machine: expected GPUs such as 256xH100, or a cluster, got {shown(machine)} (gpus= is a number)"
        )
    texts = [str(word) if isinstance(word, str | Path) else "" for word in (job, machine)]
    file, named = job_and_machine(*texts)
    words: dict[str, Any] = {**named}
    if job is not None and not isinstance(job, str | Path):
        words["model"] = job
    if isinstance(machine, Cluster):
        words["cluster"] = machine
    for name, value in words.items():
        if keywords.get(name) is not None:
            raise CostModelError(
                f"{who}: {name} is given twice, as {shown(value)} and as {shown(keywords[name])}"
            )
    return file, {**keywords, **words}
