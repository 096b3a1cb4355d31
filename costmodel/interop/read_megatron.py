"""Launch scripts of Megatron-LM, Megatron-DeepSpeed and their forks, as they are: followed, never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.files import is_there
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.interop.framework import FrameworkConfigError, Imported, fields_of, own_head
from costmodel.interop.megatron_job import job_of_flags
from costmodel.interop.megatron_text import MEGATRON, Flags
from costmodel.interop.shell import Followed, Launch, follow, gpus_per_node, options_of
from costmodel.interop.shell_words import missing_in, without_marks
from costmodel.interop.text_file import TextFile, read_text

_TELLING = (
    "--num-layers",
    "--hidden-size",
    "--num-attention-heads",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--global-batch-size",
    "--seq-length",
    "--num-experts",
    "--hybrid-layer-pattern",
    "--recompute-granularity",
)
_WRAPPERS = (
    "docker",
    "podman",
    "singularity",
    "apptainer",
    "enroot",
    "nsys",
    "ncu",
    "sudo",
    "time",
    "numactl",
    "srun",
    "mpirun",
    "mpiexec",
)
_STARTERS = ("torchrun", "python", "python3", "deepspeed", "accelerate")
_GIVEN = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq_len", "vocab_size")
"""What `given` says in the place of a flag."""


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a script, or a text of flags alone.

    Parameters
    ----------
    file : TextFile
        The script.
    given : mapping
        Keywords of a job that go on top, ``vocab_size``, and ``env``: variables that are set when it starts.

    Raises
    ------
    CostModelError
        If it starts no training that can be read, or a value depends on what is not in it.
    """
    words, followed = _command_of(file, given)
    _require_sourced(words, followed)
    flags = Flags(_split_all(words))
    _take_slime(flags)
    for name in _GIVEN:
        if given.get(name) is not None:
            flags.give(name, given[name])
    _complete_gpus(flags, followed)
    followed.notes += [
        f"a word behind {before}, which may hold flags, {missing_in(word).replace('it is', 'is')}: it is not read"
        for before, word in pairwise(words)
        if word.startswith("\ue002") and not before.startswith("-")
    ]
    notes = [note for note in followed.notes if not note.endswith("not read")]
    skipped = [note for note in followed.notes if note.endswith("not read")]
    model, name = _named_model(flags, words)
    own = own_head(file.text)
    recipe = given.get("recipe") or own.get("recipe")
    found = job_of_flags(flags, recipe=recipe, name=_name_in(own) or _stem(file), model=model)
    if name:
        notes.append(f"model: {name}")
    job = with_given(found.job, given)
    missing = tuple(key for key in found.missing if job.get(key) is None)
    named, deepspeed = _deepspeed_config(flags, followed, file)
    stated = given.get("zero_stage") is not None or "--zero-stage" in flags.names()
    unknown = []
    if deepspeed is not None:
        job, said = _joined(job, deepspeed, stage_is_stated=stated)
        notes += said
    elif named:
        unknown.append(
            f"--deepspeed-config {named}: is not beside the script; its offload"
            + (
                " is unknown"
                if stated
                else f" and ZeRO stage are unknown, priced as ZeRO-{job.get('zero_stage', 0)}"
            )
        )
    return replace(
        found,
        job=job,
        missing=missing,
        notes=(*found.notes, *notes),
        warnings=(*found.warnings, *unknown, *map(_unread, skipped)),
    )


def _require_sourced(words: Sequence[str], followed: Followed) -> None:
    """Refuse words that may hold flags and are not set, where a file that may set them was not read.

    Raises
    ------
    FrameworkConfigError
        Naming the variable and the file.
    """
    for before, word in pairwise(words):
        if followed.unread and word.startswith("\ue000") and not without_marks(word) and before[:1] != "-":
            name = missing_in(word)[1:].split()[0]
            raise FrameworkConfigError(
                f"${name} may hold flags and is not set; {followed.unread[0]}, which is sourced, was not read: "
                f"it is not there or outside of the script's folder; give --allow-source DIR, or --env {name}=…"
            )


def flags_to_job(words: Iterable[str], given: Mapping[str, Any], name: str) -> Imported:
    """Read flags that no script holds, such as those of a YAML file.

    Raises
    ------
    CostModelError
        If a flag has no readable value.
    """
    flags = Flags(list(words))
    for field in _GIVEN:
        if given.get(field) is not None:
            flags.give(field, given[field])
    model, _ = _named_model(flags, [])
    found = job_of_flags(flags, recipe=given.get("recipe"), name=name, model=model)
    job = with_given(found.job, given)
    return replace(found, job=job, missing=tuple(key for key in found.missing if job.get(key) is None))


def _command_of(file: TextFile, given: Mapping[str, Any]) -> tuple[list[str], Followed]:
    """Return the words of the training command, or of the variables that hold its flags."""
    environment = {str(key): str(value) for key, value in (given.get("env") or {}).items()}
    allowed = given.get("allow_source") or ()
    followed = follow(
        file.text,
        folder=file.folder,
        name=Path(file.name).name,
        environment=environment,
        allowed=(allowed,) if isinstance(allowed, str) else tuple(allowed),
    )
    trainings = [launch for launch in followed.launches if _telling(launch.words) >= 3]
    told = [launch for launch in trainings if launch.certain] or trainings
    if told:
        followed.notes += _others(told)
        chosen = max(told, key=lambda launch: _telling(launch.words))
        before = _before_start(chosen.words)
        if before[:1] == ["srun"]:
            # What starts the processes counts more than what the job asked for.
            followed.slurm |= options_of(before[1:])
        return _with_ranks(_words_of(chosen), before), followed
    parts = [
        text
        for value in followed.values.values()
        if _telling(text := value if isinstance(value, list) else [value])
    ]
    words = [word for part in parts for word in part]
    if not words:
        raise FrameworkConfigError(
            "starts no training that can be read: no command has flags such as --num-layers and "
            "--tensor-model-parallel-size"
        )
    return words, followed


def _others(told: list[Launch]) -> list[str]:
    """Say which trainings of a script are not read, and by what they differ."""
    alike = {tuple(launch.words) for launch in told}
    if len(alike) < 2:
        return []
    flags = [Flags(_split_all(_without_wrapper(list(words)))) for words in alike]
    names = dict.fromkeys(name for one in flags for name in one.names())
    differ = [name for name in names if len({tuple(one.words(name)) for one in flags}) > 1]
    telling = [name for name in differ if name in _TELLING] or differ
    return [
        f"{len(alike)} trainings are started, which differ by {', '.join(telling[:3]) or 'their programs'}: "
        "all but the first are not read"
    ]


def _without_wrapper(words: list[str]) -> list[str]:
    """Leave out a container's or a profiler's command with its options, before the one that starts processes."""
    return words[len(_before_start(words)) :] if Path(words[0]).name in _WRAPPERS else words


def _before_start(words: list[str]) -> list[str]:
    """Return a command's words before the one that starts the training; none where no such word is known."""
    starts = (place for place, word in enumerate(words) if Path(word).name in _STARTERS)
    return words[: next(starts, 0)]


def _with_ranks(words: list[str], before: list[str]) -> list[str]:
    """Add the number of ranks where MPI starts one for each GPU."""
    if not before or Path(before[0]).name not in ("mpirun", "mpiexec") or "torchrun" in words:
        return words
    for option, value in pairwise(before):
        if option in ("-np", "-n", "--np", "--n") and value.isdigit():
            return [*words, "--world-size", value]
    return words


def _telling(words: Iterable[str]) -> int:
    """Count the flags in some words that only a training job has."""
    text = " ".join(words).replace("_", "-")
    found = sum(bool(re.search(rf"{flag}[\s=]", f"{text} ")) for flag in _TELLING)
    return found + 2 * ("megatron sft" in text or "megatron pt" in text)


def _words_of(launch: Launch) -> list[str]:
    """Return the words of a command, with what its environment says of nodes and GPUs."""
    words = _without_wrapper(list(launch.words))
    for name, flag in (("NPROC_PER_NODE", "--nproc-per-node"), ("NNODES", "--nnodes")):
        value = launch.environment.get(name, "")
        if value.isdigit() and not any(word.replace("_", "-").startswith(flag) for word in words):
            words = [*words, flag, value]
    return words


def _split_all(words: Iterable[str]) -> list[str]:
    """Split words that hold several, as quoted strings of arguments do."""
    done: list[str] = []
    for word in words:
        if re.search(r"(?:^|\s)--[A-Za-z]", word) and re.search(r"\s", word.strip()):
            try:
                done += shlex.split(word, comments=False)
            except ValueError:
                done += word.split()
        else:
            done.append(word)
    return done


def _complete_gpus(flags: Flags, followed: Followed) -> None:
    """Fill in nodes and GPUs from Slurm's options where the launcher takes them from Slurm."""
    nodes = followed.slurm.get("nodes") or ""
    each = gpus_per_node(followed.slurm)
    if (
        not each
        and followed.slurm.get("ntasks-per-node", "").isdigit()
        and "--nproc-per-node" not in flags.names()
    ):
        each = followed.slurm["ntasks-per-node"]
    for name, value in (("nodes", nodes), ("gpus_per_node", each)):
        flag = MEGATRON.key(name)
        if value.isdigit() and (flag not in flags.names() or flags.lacks(flag)):
            flags.give(name, value)
    said = set(flags.names())
    # DeepSpeed's launcher without a file of hosts stays on its node (deepspeed/launcher/runner.py), and so does
    # torchrun (torch/distributed/run.py).
    if not flags.said("nodes") and (
        "--nproc-per-node" in said or ("--num-gpus" in said and "--hostfile" not in said)
    ):
        flags.give("nodes", 1)


def _take_slime(flags: Flags) -> None:
    """Set what slime's own parser does (slime/backends/megatron_utils/arguments.py).

    Raises
    ------
    FrameworkConfigError
        If it trains by another program than Megatron.
    """
    if not {"--rollout-batch-size", "--actor-num-nodes", "--num-rollout"} & {*flags.names()}:
        return
    backend = flags.text("--train-backend", "megatron")
    if backend != "megatron":
        raise FrameworkConfigError(f"--train-backend: {backend!r} is not supported (megatron is)")
    for flag, value in MEGATRON.more["words"]["slime_defaults"].items():
        flags.setdefault(flag, value)


def _named_model(flags: Flags, words: Iterable[str]) -> tuple[Model | None, str]:
    """Return the model that ms-swift's ``--model`` names."""
    named = flags["model"] if not flags.said("num_layers") else ""
    if not named:
        return None, ""
    if "megatron" in list(words)[:3]:
        for flag, value in MEGATRON.more["words"]["swift_defaults"].items():
            flags.setdefault(flag, value)
    try:
        return load_model(named), named
    except CostModelError:
        raise FrameworkConfigError(
            f"--model: {named!r} is not known offline; give --model config.json"
        ) from None


def with_given(job: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Lay keywords of a job over what a file says."""
    own = {key: value for key, value in fields_of(given).items() if key != "switches"}
    switches = {**(job.get("switches") or {}), **(given.get("switches") or {})}
    merged = {**job, **own}
    if "dataset_samples" in own and "tokens" not in own:
        # Epochs over a data set take the place of the script's steps.
        merged.pop("tokens", None)
    return {**merged, "switches": switches} if switches else merged


def _deepspeed_config(flags: Flags, followed: Followed, file: TextFile) -> tuple[str, str | None]:
    """Return the name of the DeepSpeed configuration, and its text where the script writes it or it lies beside."""
    given = flags.names()
    named = flags.text("--deepspeed-config", "") if not flags.lacks("--deepspeed-config") else ""
    inside = list(followed.files.values())
    name = Path(without_marks(named)).name
    if named and (text := followed.files.get(name)) is not None:
        return name, text
    if len(inside) == 1 and '"zero_optimization"' in inside[0]:
        return name, inside[0]
    if not named and "--deepspeed-config" in given:
        return "of a name that is not in the script", None
    if name and file.folder is not None and is_there(file.folder / name):
        return name, read_text(file.folder / name).text
    return name, None


def _joined(job: Mapping[str, Any], text: str, *, stage_is_stated: bool) -> tuple[dict[str, Any], list[str]]:
    """Take from DeepSpeed's configuration what the flags do not say: the stage, offload and overlap."""
    from costmodel.interop.deepspeed import beside_flags

    if missing_in(text):
        text = without_marks(text)
    stage, found = beside_flags(text)
    notes = []
    if not stage_is_stated and stage is not None and stage != job.get("zero_stage"):
        job = {**job, "zero_stage": stage}
        notes.append(f"DeepSpeed's configuration: ZeRO stage {stage}")
    if not found:
        return dict(job), notes
    switches = {**(job.get("switches") or {}), **found}
    said = ", ".join(f"{key} = {value}" for key, value in found.items())
    return {**job, "switches": switches}, [*notes, f"DeepSpeed's configuration in the script: {said}"]


def _unread(note: str) -> str:
    """Return the warning of something that was not read."""
    return f"{note}: what it sets is unknown" if note.startswith("source ") else note


def _name_in(own: Mapping[str, Any]) -> str:
    """Return the model's name in our own first comment, without the folders of a path."""
    return str(own.get("model", "")).rstrip("/").rsplit("/", 1)[-1]


def _stem(file: TextFile) -> str:
    return Path(file.name).stem or "megatron"
