"""A launch script of Megatron-LM with another layout: the same lines but for the flags that change."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.interop.answer import READING, JobFile, job_file
from costmodel.interop.megatron_job import MEGATRON
from costmodel.interop.text_file import TextFile, read_text

_TOGETHER = (
    (
        *("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"),
        *("--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"),
        *("--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split"),
        *("--account-for-loss-in-pipeline-split",),
    ),
    (
        *("--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules"),
        *("--recompute-activations", "--checkpoint-activations"),
    ),
    ("--cuda-graph-impl", "--cuda-graph-scope", "--enable-cuda-graph", "--external-cuda-graph"),
    ("--global-batch-size", "--rampup-batch-size", "--step-batch-size-schedule"),
)
"""Flags that say one thing: where one of them changes, all that a script has of them go."""
_OF_FSDP = re.compile(
    r"--(?:(?:megatron-)?fsdp-[\w-]+|init-model-with-meta-device|outer-dp-sharding-strategy|"
    r"keep-fp8-transpose-cache[\w-]*)"
)
"""Flags that go with ``--use-megatron-fsdp``: megatron/training/arguments.py asserts it of some, the rest do nothing."""
_PER_STAGE = re.compile(r"--[\w-]+-per-stage")
"""Flags of forks that list a value for each stage: they go where the stages or what they recompute change."""
_OF_CORE = {"--pipeline-model-parallel-layout", "--cuda-graph-impl", "--use-megatron-fsdp"}
"""Flags that only models of Megatron-Core have: ``--use-legacy-models`` goes where they come."""
_ANCHORS = ("--tensor-model-parallel-size", "--micro-batch-size", "--global-batch-size", "--num-layers")
"""Flags behind which others are written, the first that a script has."""
_WIDTH = 120  # Of a line that is not broken into several
_VALUE = r"""(?:(?:[ \t]+|=)(?!-{1,2}[A-Za-z])(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s\\"')]+))?"""
_MORE_VALUES = r"""(?:[ \t]+[\w.]+(?<!\.py)(?![\w./=]))*"""
_TRUTH = r"""(?:(?:[ \t]+|=)(?i:true|false)\b)?"""
_KINDS = {flag: field.kind for field in MEGATRON.fields.values() for flag in field.keys} | {
    "--cuda-graph-impl": "text"
}


def read_alone(file: JobFile, text: str | None = None) -> JobFile:
    """Read a script, or another text of it, by itself: nothing that is given beside it completes it."""
    source = read_text(file.path)
    how = {name: file.reading[name] for name in READING if file.reading.get(name)}
    return job_file(source if text is None else source._replace(text=text), **how)


def script_changes(file: JobFile, before: str, after: str) -> tuple[str, str]:
    """Return what to change in a script, as a diff that ``patch`` takes in its folder, and the script with it.

    Both are empty where its lines do not say it. `before` and `after` are configurations as they are written for the
    script's own job and another. The changed script is read again: it has to be the job of `after` in all in which they
    differ, and its own in the rest.
    """
    source, old = read_text(file.path), _flags(before)
    # Quotes inside a text that a shell splits into words are no quotes, and a line ends in none that it leaves alone.
    texts = (
        _changed(source.text, old, _flags(written), width)
        for width in (_WIDTH, math.inf)
        for written in (after, after.replace("'", ""))
    )
    right = next((text for text in texts if text and _is_right(file, text, before, after)), "")
    if not right:
        return "", ""
    right = _on_nodes(file, right, after)
    ours, theirs = (one.splitlines(keepends=True) for one in (source.text, right))
    name = PurePath(file.path).name  # patch takes no absolute path, and none with ..
    lines = difflib.unified_diff(ours, theirs, name, name)
    diff = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return diff, right


def _flags(written: str) -> dict[str, str]:
    """Return the flags of a configuration that `costmodel.interop.megatron` wrote, a line each."""
    lines = (
        line.strip().removesuffix("\\").strip() for line in written.splitlines() if line.startswith("    --")
    )
    return {flag: value for flag, _, value in (line.partition(" ") for line in lines)}


def _on_nodes(file: JobFile, text: str, after: str) -> str:
    """Return a script whose nodes and GPUs of each are those of a configuration, where the job is then on its GPUs."""
    wanted = re.search(r"--nnodes (\d+) --nproc-per-node (\d+)", after)
    if wanted is None:
        return text
    nodes = (r"--nnodes", r"^#SBATCH +(?:--nodes[ =]|-N ?)", wanted[1])
    each = (r"--nproc[-_]per[-_]node", r"^#SBATCH +--gpus-per-node[ =]", wanted[2])
    changed = text
    for flag, other, count in (nodes, each):
        own = re.search(rf"{flag}[ =]+[\"']?\$\{{?(\w+)", text)
        name = rf"\b{own[1]}=(?:\$\{{\w+:-)?" if own else f"{flag}[ =]+"
        changed = re.sub(rf"({name}|{other})\d+", rf"\g<1>{count}", changed, flags=re.M)
    try:
        found = read_alone(file, changed).keywords.get("gpus")
    except CostModelError:
        return text
    return changed if found == int(wanted[1]) * int(wanted[2]) else text


def _changed(
    text: str, before: Mapping[str, str], after: Mapping[str, str], width: float = math.inf
) -> str | None:
    """Return a script with the flags of `after` that `before` has not so; none where it has no place for them."""
    put = {flag: value for flag, value in after.items() if before.get(flag) != value}
    gone = before.keys() - after.keys()
    for group in _TOGETHER:
        if not gone.isdisjoint(group) or not put.keys().isdisjoint(group):
            put |= {flag: after[flag] for flag in group if flag in after}
            gone |= {*group} - after.keys()
    lines = text.splitlines(keepends=True)
    if any(_find("--train-samples", line) for line in lines):
        put.pop("--train-iters", None)  # Megatron-LM takes one of the two
    gone |= _tied(lines, {*put, *gone}, gone, put) - after.keys()
    present = {flag for flag in {*put, *_ANCHORS} if any(_find(flag, line) for line in lines)}
    missing = [f"{flag} {put[flag]}".strip() for flag in put if flag not in present]
    anchor = next((flag for flag in _ANCHORS if flag in present), "")
    if missing and not anchor:
        return None
    found: list[str] = []
    for line in lines:
        kept = _without(line, gone)
        for flag in present & put.keys():
            if match := _find(flag, kept):
                kept = f"{kept[: match.start()]}{flag} {put[flag]}".rstrip(" ") + kept[match.end() :]
        goes_on = bool(found) and found[-1].rstrip().endswith("\\")
        if missing and (match := _find(anchor, kept)):
            is_listed = kept.strip() == match[0] and kept.endswith("\n") and not goes_on
            kept = _with_more(kept, match, missing, width, is_listed=is_listed)
        if kept and (kept == line or kept.strip() or goes_on):
            found.append(kept)
    return "".join(found)


def _tied(
    lines: Sequence[str], changed: Collection[str], gone: Collection[str], put: Collection[str]
) -> set[str]:
    """Return the flags of a script that mean nothing, or are refused, once others have changed."""
    there = {
        flag
        for line in lines
        if not line.lstrip().startswith("#")
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", line)
    }
    stages = {"--pipeline-model-parallel-size", *_TOGETHER[0], *_TOGETHER[1]}
    patterns = [_OF_FSDP] if "--use-megatron-fsdp" in gone else []
    patterns += [] if stages.isdisjoint(changed) else [_PER_STAGE]
    patterns += [] if _OF_CORE.isdisjoint(put) else [re.compile("--use-legacy-models")]
    return {flag for flag in there if any(pattern.fullmatch(flag) for pattern in patterns)}


def _find(flag: str, line: str) -> re.Match[str] | None:
    """Find a flag with its value in a line that is no comment."""
    if line.lstrip().startswith("#"):
        return None
    kind = "words" if _PER_STAGE.fullmatch(flag) else _KINDS.get(flag)
    is_switch = kind == "switch" or (_OF_FSDP.fullmatch(flag) and not flag.endswith(("dtype", "strategy")))
    values = _TRUTH if is_switch else _VALUE + _MORE_VALUES * (kind == "words")
    return re.search(rf"(?<![\w-]){flag}(?![\w-]){values}", line)


def _without(line: str, flags: Collection[str]) -> str:
    """Return a line without some flags; nothing of one that held nothing else and goes on in the next."""
    kept = line
    for flag in sorted(flags):
        if match := _find(flag, kept):
            kept = kept[: match.start()] + kept[match.end() :].lstrip(" \t")
    return "" if kept != line and kept.strip() == "\\" else kept


def _with_more(
    line: str, match: re.Match[str], flags: Sequence[str], width: float, *, is_listed: bool
) -> str:
    """Write flags behind the one that was found: on lines of their own where the line goes on in the next, or gets long.

    `is_listed` says that the flag is alone in its line, an element of an array.
    """
    indent = line[: len(line) - len(line.lstrip())]
    if is_listed:
        return line + "".join(f"{indent}{flag}\n" for flag in flags)
    if line.rstrip().endswith("\\") and not line[match.end() :].strip(" \t\\\n"):
        return line + "".join(f"{indent}{flag} \\\n" for flag in flags)
    longer = " ".join([line[: match.end()], *flags]) + line[match.end() :]
    if len(longer) <= width:
        return longer
    rest = line[match.end() :].lstrip(" \t")
    *most, last = flags
    ends = [last, rest] if rest.startswith(("-", "$")) else [last + rest]
    return f" \\\n{indent}    ".join([line[: match.end()], *most, *ends])


def _is_right(file: JobFile, changed: str, before: str, after: str) -> bool:
    """Tell whether a changed script is the job of a configuration in all in which that differs from another."""
    try:
        source = read_text(file.path)
        own, theirs = _job(file, source), _job(file, source._replace(text=changed))
        left, right = (_job(file, TextFile(text, "launch.sh")) for text in (before, after))
    except CostModelError:
        return False
    return all(
        theirs.get(name) == (right if left.get(name) != right.get(name) else own).get(name)
        for name in {*own, *theirs, *left, *right}
    )


def _job(file: JobFile, text: TextFile) -> dict[str, Any]:
    """Return the keywords of a script, each switch by itself; not its model, nor the length that its batch makes."""
    beside = {name: file.reading[name] for name in (*READING, "gpus") if file.reading.get(name)}
    found = dict(job_file(text, **beside).keywords)
    return {**found, "model": None, "tokens": None, "switches": None, **(found.get("switches") or {})}
