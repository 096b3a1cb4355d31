"""Launch scripts of Megatron-LM, Megatron-DeepSpeed and their forks, as they are: followed, never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from costmodel.base.files import is_there
from costmodel.describe.models.model_files import load_model
from costmodel.interop.draft import Draft
from costmodel.interop.framework import FrameworkConfigError, Imported, known_model, own_head
from costmodel.interop.keys import Flags, matches
from costmodel.interop.megatron_job import MEGATRON, gpus_of, read_flags
from costmodel.interop.shell import Launch, Script, follow, gpus_per_node, options_of
from costmodel.interop.shell_words import UNKNOWN, UNSET, is_unknown, missing_in, without_marks
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
_CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot")
_WRAPPERS = (*_CONTAINERS, "nsys", "ncu", "sudo", "time", "numactl", "srun", "mpirun", "mpiexec", "ray")
_SWIFT = re.compile(r"\bswift/cli/_megatron/\w+\.py$")
_STARTERS = ("torchrun", "python", "python3", "deepspeed", "accelerate")


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a script, or a text of flags alone; ``env`` are variables that are set when it starts."""
    followed = followed_script(file, given)
    if overrides := next(filter(None, map(_overrides_of, followed.launches)), ()):
        return _of_bridge(overrides, followed, given)
    words = _command_of(followed)
    _require_sourced(words, followed)
    flags = Flags(_split_all(words))
    _take_defaults_of_forks(flags, words)
    _complete_gpus(flags, followed)
    own = own_head(file.text)
    # The name in our own first comment, without the folders of a path.
    name = str(own.get("model", "")).rstrip("/").rsplit("/", 1)[-1] or Path(file.name).stem or "megatron"
    draft = read_flags(flags, {"recipe": own.get("recipe"), **given}, name=name)
    skipped = [
        *followed.notes,
        *(
            f"a word behind {before}, which may hold flags, {missing_in(word).replace('it is', 'is')}: it is not read"
            for before, word in _unknown_words(words)
        ),
    ]
    for note in skipped:
        unread = note.endswith("not read")
        sourced = unread and note.startswith("source ")
        (draft.warnings if unread else draft.notes).append(
            f"{note}: what it sets is unknown" if sourced else note
        )
    _take_deepspeed(flags, followed, file, draft, stated=given.get("zero_stage") is not None)
    return draft.answer()


def _unknown_words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield words that may hold flags and that only running tells, each behind the word before it."""
    flag = ""
    for before, word in pairwise(words):
        flag = before if before.startswith("--") else flag
        is_value = flag not in MEGATRON.used and MEGATRON.knows(flag)
        if word.startswith(UNKNOWN) and not before.startswith("-") and not is_value:
            yield before, word


_BRIDGE = ("model.", "train.")
_RECIPE = re.compile(r"(?:_(pretrain|sft|peft|finetune|dpo)(?:_(\w+))?)?_config$")


def _overrides_of(launch: Launch) -> list[str]:
    """Return the words of a command where it starts a recipe of Megatron-Bridge with overrides, else none."""
    words = _split_all(launch.words)
    keys = [word.lstrip("+").partition("=")[0] for word in words if "=" in word]
    named = words[words.index("--recipe") + 1 :][:1] if "--recipe" in words else []
    return (
        words if named and (_RECIPE.search(named[0]) or any(key.startswith(_BRIDGE) for key in keys)) else []
    )


def _of_bridge(words: list[str], followed: Script, given: Mapping[str, Any]) -> Imported:
    """Read the overrides of a recipe, whose name says the model; what they leave out is the recipe's."""
    from costmodel.interop.nemo import import_nemo

    flags = Flags(words)
    _complete_gpus(flags, followed)
    named = flags.text("--recipe")
    match = _RECIPE.search(named)
    plain, stage, details = (named[: match.start()], match[1], match[2] or "") if match else (named, "", "")
    values: dict[str, str] = {}
    for key, equals, value in (word.partition("=") for word in words):
        if not equals or not re.fullmatch(r"\+*[a-z_]+(?:\.[a-z_0-9]+)*", key):
            continue
        if is_unknown(value) and key.startswith(_BRIDGE):
            raise FrameworkConfigError(f"{key}: its value is not in the script: {missing_in(value)}")
        values[key.lstrip("+")] = without_marks(value)
    bridge = MEGATRON.more["bridge"]
    for pattern, row in reversed(bridge["recipes"].items()):
        if re.fullmatch(pattern, named.removesuffix("_config")):
            values = {**row, **values}
    model = given.get("model") or known_model(bridge["models"].get(plain, plain), plain.replace("_", "-"))
    model = load_model(model) if isinstance(model, str) else model
    if model is None:
        raise FrameworkConfigError(
            f"--recipe: the model of {named!r} is not known offline; give --model config.json"
        )
    if stage == "dpo":
        raise FrameworkConfigError(
            "--recipe: a step of DPO has passes of another model; give a job file with rl:"
        )
    if stage == "peft" and given.get("lora_rank") is None and "peft.dim" not in values:
        raise FrameworkConfigError(
            f"--recipe: {named!r} trains adapters of a rank that is not said; give --lora-rank"
        )
    if re.search("fp[48]", details) and given.get("precision") is None and "mixed_precision" not in values:
        bundle = next((bundle for word, bundle in bridge["of_names"].items() if word in details), None)
        if bundle is None:
            raise FrameworkConfigError(f"--recipe: the precision of {named!r} is not known; give --precision")
        values["mixed_precision"] = bundle
    stated = bridge["stated"].split()
    if model.num_experts:
        stated.append("ep")
    if str(given.get("tp") or values.get(bridge["keys"]["tp"][1])) != "1":
        stated += ["sequence_parallel", *(["etp"] if model.num_experts else [])]
    for name in stated:
        key = bridge["keys"][name][1]
        if given.get(name) is None and key not in values:
            raise FrameworkConfigError(
                f"{key}: is the recipe's own, and not in the script; give --{name.replace('_', '-')}"
            )
    defaults = bridge["defaults"] | (bridge["tuned"] if stage in ("sft", "peft", "finetune") else {})
    gpus = given.get("gpus") or gpus_of(flags)
    bridge_names = {key for _, *keys in bridge["keys"].values() for key in keys}
    lines = [
        f"{key}={value.lower()}"
        for key, value in {**defaults, **values}.items()
        if key in bridge_names or not matches(bridge["irrelevant"], key)
    ]
    found = import_nemo("\n".join(lines), **{**given, "model": model, "gpus": gpus})
    left = f"--recipe {named}: what no override says is the recipe's own; its virtual stages, graphs and overlaps are not read"
    return replace(
        found,
        framework="Megatron-Bridge",
        notes=(*found.notes, *followed.notes),
        warnings=(*found.warnings, left),
    )


def _require_sourced(words: Sequence[str], followed: Script) -> None:
    """Refuse words that may hold flags and are not set, where a file that may set them was not read."""
    for before, word in pairwise(words):
        if followed.unread and word.startswith(UNSET) and not without_marks(word) and before[:1] != "-":
            name = missing_in(word)[1:].split()[0]
            raise FrameworkConfigError(
                f"${name} may hold flags and is not set; {followed.unread[0]}, which is sourced, was not read: "
                f"it is not there or outside of the script's folder; give --allow-source DIR, or --env {name}=…"
            )


def followed_script(file: TextFile, given: Mapping[str, Any]) -> Script:
    """Follow a script with the variables and the folders that are given beside it."""
    allowed = given.get("allow_source") or ()
    return follow(
        file.text,
        folder=file.folder,
        name=Path(file.name).name,
        environment={str(key): str(value) for key, value in (given.get("env") or {}).items()},
        allowed=(allowed,) if isinstance(allowed, str) else tuple(allowed),
    )


def _command_of(followed: Script) -> list[str]:
    """Return the words of the training command, or of the variables that hold its flags."""
    trainings = [launch for launch in followed.launches if _telling(launch.words) >= 3]
    certain = [launch for launch in trainings if launch.certain] or trainings
    if certain:
        followed.notes += _others(certain)
        chosen = max(certain, key=lambda launch: _telling(launch.words))
        before = _before_start(chosen.words)
        if before[:1] == ["srun"]:
            # What starts the processes counts more than what the job asked for.
            followed.slurm |= options_of(before[1:])
        return _with_ranks(_words_of(chosen), before)
    values = (value if isinstance(value, list) else [value] for value in followed.values.values())
    words = [word for value in values if _telling(value) for word in value]
    if not words:
        raise FrameworkConfigError(
            "starts no training that can be read: no command has flags such as --num-layers and "
            "--tensor-model-parallel-size"
        )
    return words


def _others(trainings: list[Launch]) -> list[str]:
    """Say which trainings of a script are not read, and by what they differ."""
    alike = {tuple(launch.words) for launch in trainings}
    if len(alike) < 2:
        return []
    flags = [Flags(_split_all(_without_wrapper(list(words)))).raw for words in alike]
    names = dict.fromkeys(name for raw in flags for name in raw)
    differ = [name for name in names if len({str(raw.get(name)) for raw in flags}) > 1]
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
    return found + 2 * any(message in text for message in ("megatron sft", "megatron pt", "/-megatron/"))


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
            done += split_words(word)
        else:
            done.append(word)
    return done


def split_words(text: str) -> list[str]:
    """Split a text as a shell does, at spaces where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _complete_gpus(flags: Flags, followed: Script) -> None:
    """Fill in nodes and GPUs from Slurm's options where the launcher takes them from Slurm."""
    slurm = followed.slurm
    each = gpus_per_node(slurm)
    if not each and "--nproc-per-node" not in flags.raw:
        each = slurm.get("ntasks-per-node", "")
    for name, value in (("nodes", slurm.get("nodes") or ""), ("gpus_per_node", each)):
        flag = MEGATRON.key(name)
        if value.isdigit() and (flag not in flags.raw or flags.unresolved(flag)):
            flags.set(name, value)
    # DeepSpeed's launcher without a file of hosts stays on its node (deepspeed/launcher/runner.py), and so does
    # torchrun (torch/distributed/run.py).
    launched = {*flags.raw}
    if not flags.has("nodes") and (
        "--nproc-per-node" in launched or ("--num-gpus" in launched and "--hostfile" not in launched)
    ):
        flags.set("nodes", 1)


def _take_defaults_of_forks(flags: Flags, words: Sequence[str]) -> None:
    """Set what slime (slime/backends/megatron_utils/arguments.py) and ms-swift set where no flag does."""
    defaults: Mapping[str, str] = {}
    if {"--rollout-batch-size", "--actor-num-nodes", "--num-rollout"} & {*flags.raw}:
        backend = flags.text("--train-backend") or "megatron"
        if backend != "megatron":
            raise FrameworkConfigError(f"--train-backend: {backend!r} is not supported (megatron is)")
        defaults = dict(MEGATRON.more["words"]["slime_defaults"])
        prompts, samples, steps = (
            flags.text(f"--{name}")
            for name in ("rollout-batch-size", "n-samples-per-prompt", "num-steps-per-rollout")
        )
        if prompts.isdigit() and steps.isdigit() and int(steps) > 0:
            defaults["--global-batch-size"] = str(int(prompts) * int(samples or 1) // int(steps))
    elif ("megatron" in words[:3] or any(map(_SWIFT.search, words))) and not flags.has("num_layers"):
        defaults = MEGATRON.more["words"]["swift_defaults"]
        # A converted checkpoint is named for its model (ms-swift's `swift export --to_mcore`).
        converted = Path(without_marks("".join((flags.raw.get("--load") or [])[:1]))).name.removesuffix(
            "-mcore"
        )
        if known_model(converted) is not None:
            flags.raw.setdefault("--model", [converted])
    for flag, value in defaults.items():
        flags.raw.setdefault(flag, [value])


def _take_deepspeed(flags: Flags, followed: Script, file: TextFile, draft: Draft, *, stated: bool) -> None:
    """Take stage and offload from the DeepSpeed configuration that the script writes or that lies beside it."""
    from costmodel.interop.deepspeed import stage_and_switches

    stated = stated or "--zero-stage" in flags.raw
    named, text = _deepspeed_config(flags, followed, file)
    if text is None:
        if named:
            lost = (
                "is unknown"
                if stated
                else f"and ZeRO stage are unknown, priced as ZeRO-{draft['zero_stage']}"
            )
            draft.warnings.append(f"--deepspeed-config {named}: is not beside the script; its offload {lost}")
        return
    stage, switches = stage_and_switches(without_marks(text))
    if not stated and stage is not None and stage != draft["zero_stage"]:
        draft.job["zero_stage"] = stage
        draft.notes.append(f"DeepSpeed's configuration: ZeRO stage {stage}")
    if switches:
        draft.job["switches"] = {**(draft["switches"] or {}), **switches}
        settings = ", ".join(f"{key} = {value}" for key, value in switches.items())
        draft.notes.append(f"DeepSpeed's configuration in the script: {settings}")


def _deepspeed_config(flags: Flags, followed: Script, file: TextFile) -> tuple[str, str | None]:
    """Return the name of the DeepSpeed configuration, and its text where the script writes it or it lies beside."""
    flag = "--deepspeed-config"
    named = "" if flags.unresolved(flag) else flags.text(flag)
    inside = list(followed.files.values())
    name = Path(without_marks(named)).name
    if named and (text := followed.files.get(name)) is not None:
        return name, text
    if len(inside) == 1 and '"zero_optimization"' in inside[0]:
        return name, inside[0]
    if not named and flag in flags.raw:
        return "of a name that is not in the script", None
    if name and file.folder is not None and is_there(file.folder / name):
        return name, read_text(file.folder / name).text
    return name, None
