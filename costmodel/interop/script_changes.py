"""A launch script of Megatron-LM with another layout: the same lines but for the flags that change."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.interop.answer import JobFile, job_file
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
)
"""Flags that say one thing: where one of them changes, all that a script has of them go."""
_ANCHORS = ("--tensor-model-parallel-size", "--micro-batch-size", "--global-batch-size", "--num-layers")
"""Flags behind which others are written, the first that a script has."""
_WIDTH = 120  # Of a line that is not broken into several
_VALUE = r"""(?:(?:[ \t]+|=)(?!-{1,2}[A-Za-z])(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s\\"')]+))?"""


def script_changes(file: JobFile, before: str, after: str) -> str:
    """Return what to change in a script, as a diff that ``patch`` takes in its folder; empty where its lines do not say it.

    `before` and `after` are configurations as they are written for the script's own layout and another. The changed script
    is read again: it has to be the job of `after` in all in which they differ, and its own in the rest.
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
        return ""
    ours, theirs = (one.splitlines(keepends=True) for one in (source.text, _on_nodes(file, right, after)))
    name = PurePath(file.path).name  # patch takes no absolute path, and none with ..
    lines = difflib.unified_diff(ours, theirs, name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _flags(written: str) -> dict[str, str]:
    """Return the flags of a configuration that `costmodel.interop.megatron` wrote, a line each."""
    lines = (
        line.strip().removesuffix("\\").strip() for line in written.splitlines() if line.startswith("    --")
    )
    return {flag: value for flag, _, value in (line.partition(" ") for line in lines)}


def _on_nodes(file: JobFile, text: str, after: str) -> str:
    """Return a script whose number of nodes is that of a configuration, where the job is then on its GPUs."""
    wanted = re.search(r"--nnodes (\d+) --nproc-per-node (\d+)", after)
    if wanted is None:
        return text
    own = re.search(r"--nnodes[ =]+[\"']?\$\{?(\w+)", text)
    name = rf"\b{own[1]}=(?:\$\{{\w+:-)?" if own else "--nnodes[ =]+"
    changed = re.sub(rf"({name}|^#SBATCH +(?:--nodes[ =]|-N ?))\d+", rf"\g<1>{wanted[1]}", text, flags=re.M)
    reading = {name: value for name, value in file.reading.items() if name != "gpus"}
    try:
        found = job_file(read_text(file.path)._replace(text=changed), **reading).keywords.get("gpus")
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
    present = {flag for flag in {*put, *_ANCHORS} if any(_find(flag, line) for line in lines)}
    missing = [f"{flag} {put[flag]}".strip() for flag in put if flag not in present]
    anchor = next((flag for flag in _ANCHORS if flag in present), "")
    if missing and not anchor:
        return None
    found = []
    for line in lines:
        kept = _without(line, gone)
        for flag in present & put.keys():
            if match := _find(flag, kept):
                kept = f"{kept[: match.start()]}{flag} {put[flag]}".rstrip(" ") + kept[match.end() :]
        if missing and (match := _find(anchor, kept)):
            kept = _with_more(kept, match, missing, width)
        found.append(kept)
    return "".join(found)


def _find(flag: str, line: str) -> re.Match[str] | None:
    """Find a flag with its value in a line that is no comment."""
    return None if line.lstrip().startswith("#") else re.search(rf"(?<![\w-]){flag}(?![\w-]){_VALUE}", line)


def _without(line: str, flags: Collection[str]) -> str:
    """Return a line without some flags; nothing of one that held nothing else and goes on in the next."""
    kept = line
    for flag in sorted(flags):
        if match := _find(flag, kept):
            kept = kept[: match.start()] + kept[match.end() :].lstrip(" \t")
    return "" if kept != line and kept.strip() == "\\" else kept


def _with_more(line: str, match: re.Match[str], flags: Sequence[str], width: float) -> str:
    """Write flags behind the one that was found: on lines of their own where the line goes on in the next, or gets long."""
    if line.rstrip().endswith("\\") and not line[match.end() :].strip(" \t\\\n"):
        indent = line[: len(line) - len(line.lstrip())]
        return line + "".join(f"{indent}{flag} \\\n" for flag in flags)
    longer = " ".join([line[: match.end()], *flags]) + line[match.end() :]
    if len(longer) <= width:
        return longer
    rest = line[match.end() :].lstrip(" \t")
    *most, last = flags
    ends = [last, rest] if rest.startswith(("-", "$")) else [last + rest]
    indent = line[: len(line) - len(line.lstrip())]
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
    """Return the keywords of a script, each switch by itself; a list of layers that is even is none."""
    found = dict(job_file(text, **file.reading).keywords)
    return {**found, "model": None, "switches": None, **(found.get("switches") or {})}
