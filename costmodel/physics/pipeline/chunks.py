"""Which layers run on which pipeline stage, written out: Megatron's pipeline layout strings.

``Et*4|(t*4|)*14tmL`` reads: the embedding and four layers; then fourteen times four layers; then one
layer, the multi-token-prediction layer and the loss. A bar ends a chunk; chunks go round the ranks, so
that chunk i lies on rank i mod pp (NVIDIA/Megatron-LM megatron/core/transformer/pipeline_parallel_layer_layout.py,
`PipelineParallelLayerLayout`, and docs of ``--pipeline-model-parallel-layout``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from costmodel.base.errors import LayoutError

MOST_PARTS = 100_000  # Parts that a layout string may spell out; more is a slip of a repetition

_TOKEN = re.compile(r"[EtmL|(),]|\*\d+|\s+")


class Chunk(NamedTuple):
    """What one model chunk holds. [-]"""

    embedding: int = 0
    layers: int = 0
    mtp: int = 0
    loss: int = 0


def parse_chunks(text: str) -> tuple[Chunk, ...]:
    """Read a pipeline layout string into its chunks, in the order of the model.

    ``E`` embedding, ``t`` layer, ``m`` multi-token prediction, ``L`` loss, ``|`` end of a chunk, ``*n`` repeats the letter
    or the group in parentheses before it; commas and blanks do nothing. Anything else is a `LayoutError`.

    >>> [(c.embedding, c.layers, c.mtp, c.loss) for c in parse_chunks("Et*2|(t*3|)*2tmL")]
    [(1, 2, 0, 0), (0, 3, 0, 0), (0, 3, 0, 0), (0, 1, 1, 1)]
    """
    # The letters in the order of the fields of a chunk.
    return tuple(Chunk(*map(part.count, "EtmL")) for part in _expanded(text).split("|"))


def _expanded(text: str) -> str:
    """Write out the repetitions of a layout string."""
    what = f"pipeline_layout: {text[:60]!r}"
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text or not text.strip():
        wrong = next((c for c in _TOKEN.sub("", text)), "nothing")
        raise LayoutError(
            f"{what} holds {wrong!r}; allowed: E embedding, t layer, m multi-token prediction, L loss, "
            "| end of a chunk, (…)*n repetition"
        )
    # Each open group is a list of its parts; the outermost is the whole text.
    open_groups: list[list[str]] = [[]]
    for token in tokens:
        if token.isspace() or token == ",":
            continue
        if token == "(":
            open_groups.append([])
        elif token == ")":
            if len(open_groups) == 1:
                raise LayoutError(f"{what} closes a parenthesis that was not opened")
            group = "".join(open_groups.pop())
            open_groups[-1].append(group)
        elif token.startswith("*"):
            if not open_groups[-1]:
                raise LayoutError(f"{what} repeats nothing at {token!r}")
            times = int(token[1:9])
            if times < 1 or times * len(open_groups[-1][-1]) > MOST_PARTS:
                raise LayoutError(
                    f"{what} repeats {token[1:9]} times; allowed: 1 to {MOST_PARTS} parts in all"
                )
            open_groups[-1][-1] *= times
        else:
            open_groups[-1].append(token)
        if sum(len(part) for part in open_groups[-1]) > MOST_PARTS:
            raise LayoutError(f"{what} has more than {MOST_PARTS} parts")
    if len(open_groups) > 1:
        raise LayoutError(f"{what} opens a parenthesis that is not closed")
    return "".join(open_groups[0])


def chunks_text(chunks: Sequence[Chunk]) -> str:
    """Write chunks as a layout string, equal ones that follow each other once.

    >>> chunks_text(parse_chunks("Et*2|t*3|t*3|tmL"))
    'Et*2|(t*3|)*2tmL'
    """
    parts = []
    # The bar ends every chunk but the last, so the last one is never inside a repetition.
    for chunk, alike in groupby(chunks[:-1]):
        text, times = _chunk_text(chunk), len(list(alike))
        parts.append(f"({text}|)*{times}" if times > 1 else f"{text}|")
    return "".join([*parts, *map(_chunk_text, chunks[-1:])])


def _chunk_text(chunk: Chunk) -> str:
    counts = (("E", chunk.embedding), ("t", chunk.layers), ("m", chunk.mtp), ("L", chunk.loss))
    return "".join(letter if n == 1 else f"{letter}*{n}" for letter, n in counts if n)


def require_chunks(chunks: Sequence[Chunk], *, layers: int, mtp: int, pp: int, vp: int) -> None:
    """Refuse chunks, in order, that do not hold exactly `layers` and `mtp` layers on `pp` ranks of `vp` chunks."""

    def refuse(what: str) -> LayoutError:
        return LayoutError(f"pipeline_layout: {what}")

    if len(chunks) != pp * vp:
        raise refuse(f"has {len(chunks)} chunks, pp·vp = {pp}·{vp} needs {pp * vp}")
    found = Chunk(*(sum(each) for each in zip(*chunks, strict=True)))
    for name, has, needs in (
        ("layers (t)", found.layers, layers),
        ("multi-token-prediction layers (m)", found.mtp, mtp),
        ("embeddings (E)", found.embedding, 1),
        ("losses (L)", found.loss, 1),
    ):
        if has != needs:
            raise refuse(f"has {has} {name}, the model needs {needs}")
    if not chunks[0].embedding or not chunks[-1].loss:
        raise refuse("must begin with the embedding (E) and end with the loss (L)")
