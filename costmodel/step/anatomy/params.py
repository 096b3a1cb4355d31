"""Exact parameter counts of a model, component by component, and its FLOPs per token.

Counts are of the whole, unsharded model. How tensor and expert parallelism divide a block is said
by its `sharding`; how pipeline stages divide the layers is not this module's concern.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.csv_text import read_rows
from costmodel.bill.formula import evaluate, inputs_of
from costmodel.bill.lines import Array
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.models.mixers import AnyMixer
from costmodel.describe.models.model import LayerKind, Model, tower_layers
from costmodel.step.anatomy.mixers import mixer_flops
from costmodel.step.anatomy.operator_parts import ParamBlock


def layer_param_blocks(model: Model, kind: LayerKind) -> tuple[ParamBlock, ...]:
    """Return the parameters of one layer of the given kind.

    Row-parallel biases (``*.out.bias``, ``mlp.fc2.bias``) are blocks of their own because every
    tensor rank holds them whole. MLA's down-projections are not split by tensor parallelism.
    """
    model = model.seen_by(kind)
    owners = ["mla" if model.attention == "mla" else "heads", "attention"] if kind.attends else []
    mixes = kind.attends or kind.mixer is not None
    # A layer that only mixes, or only has an MLP, has the norms of that half.
    whole = mixes and kind.has_mlp
    norms = model.norms_per_layer if whole else max(model.norms_per_layer // 2, 1)
    norm_size = model.hidden_size * (model.norm_scale + model.norm_bias)
    return (
        *(block for owner in owners for block in param_blocks(owner, model)),
        *(param_blocks(kind.mixer.kind, model, kind.mixer) if kind.mixer is not None else ()),
        *(param_blocks("moe" if kind.is_moe else "mlp", model) if kind.has_mlp else ()),
        *((ParamBlock("norm", "", float(norms * norm_size), "replicated"),) if norm_size else ()),
        *param_blocks("layer", model),
    )


def mtp_param_blocks(model: Model) -> tuple[ParamBlock, ...]:
    """Return the parameters of all multi-token-prediction layers (none: an empty tuple).

    Each is one transformer layer of the last kind (its blocks keep their names), two norms and a
    projection of the concatenated hidden state and embedding back to the width, and a final norm
    (``mtp.*``); it shares the token table and the output matrix (DeepSeek-AI, "DeepSeek-V3
    technical report," arXiv:2412.19437, section 2.2).
    """
    if not model.mtp_layers:
        return ()
    kind = model.layer_kinds()[model.kind_of_layer[-1]]
    layer = (replace(one, count=one.count * model.mtp_layers) for one in layer_param_blocks(model, kind))
    return (*param_blocks("mtp", model), *layer)


def num_params(model: Model) -> float:
    """Return the exact number of parameters [-], multi-token-prediction layers left out.

    >>> from costmodel.describe.models.model_files import load_model
    >>> f"{num_params(load_model('llama3-8b')):,.0f}"
    '8,030,261,248'
    """
    return sum(block.count for block in all_blocks(model))


def num_active_params(model: Model) -> float:
    """Return the parameters [-] a token meets: of the routed experts only its `top_k`.

    Embedding, head, router and shared experts count in full; the field's published "active"
    figures differ in whether they count the embeddings.
    """
    return sum(block.count * active_fraction(model, block) for block in all_blocks(model))


def params_by_component(model: Model) -> dict[str, float]:
    """Return the parameters [-] of the whole model by block name, in model order.

    Those of multi-token-prediction layers start with ``mtp.``, those of a tower with its name; both are on top of
    `num_params`.
    """
    total: dict[str, float] = {}
    for block in all_blocks(model):
        total[block.name] = total.get(block.name, 0.0) + block.count
    for block in mtp_param_blocks(model):
        total["mtp." + block.name.removeprefix("mtp.")] = block.count
    if tower := model.tower:
        layers = sum(block.count for block in _layer_blocks(tower_layers(tower)))
        parts = {"layers": layers, "patches": tower.patch_params, "projector": tower.projector_params}
        parts["rest"] = tower.other_params
        total |= {f"{tower.name}.{name}": float(count) for name, count in parts.items() if count}
    return total


def attended_tokens(seq_len: ArrayLike, window: ArrayLike = 0, *, causal: bool = False) -> Array:
    r"""Mean number of keys that a query meets.

    .. math:: \bar s = w \quad\text{or, causal,}\quad w \left(1 - \frac{w}{2 s}\right),
       \qquad w = \min(s, \mathrm{window})

    A window of 0 is none. The diagonal (half a key) is left out, so that causal is exactly half of full attention. [-]
    """
    s = np.asarray(seq_len, dtype=np.float64)
    limit = np.asarray(window, dtype=np.float64)
    w = np.where(limit > 0, np.minimum(s, limit), s)
    return np.asarray(w * (1.0 - w / (2.0 * s)) if causal else w)


def model_flops_per_token(model: Model, seq_len: ArrayLike, causal: bool = False) -> Array:
    r"""Training FLOPs per token, without recomputation.

    Three times the forward pass: 2 FLOPs for each weight of a matrix the token is multiplied with
    [1]_, the output matrix once and of the experts only the active ones, and in each layer the two
    attention products:

    .. math:: F = 3 \left( 2 N_\mathrm{matrix} + \sum_\mathrm{layers} 2 \bar s\, a\, (d_{qk} + d_v) \right)

    Layers with another mixer have `mixers.mixer_flops` in place of the two products.

    Parameters
    ----------
    model : Model
        The model.
    seq_len : array_like
        Tokens of a sequence. [-]
    causal : bool
        Halve the attention products, as a causal kernel does; otherwise the convention of PaLM
        and Megatron, which count the full matrix.

    Returns
    -------
    flops_per_token : ndarray
        Model FLOPs of forward and backward pass per token. [FLOP]

    Notes
    -----
    Norms, softmax, activations, the embedding lookup and the optimizer are not counted. Windowed
    layers meet `attended_tokens`.

    References
    ----------
    .. [1] A. Chowdhery et al., "PaLM," arXiv:2204.02311, appendix B; D. Narayanan et al., SC21,
       arXiv:2104.04473, eq. (3) (whose factor 96 counts one recomputed forward pass).

    Examples
    --------
    Six per weight, without the input table, and 8 % of the total in attention at 8,192 tokens:

    >>> from costmodel.describe.models.model_files import load_model
    >>> model = load_model("llama3-405b")
    >>> f"{model_flops_per_token(model, 8192) / (6 * num_params(model)):.3f}"
    '1.078'
    """
    head = float(model.vocab_size + model.head_dense * model.hidden_size) * model.hidden_size
    matrix = _active_matrix_weights(model, (*_layer_blocks(model), *param_blocks("embedding", model))) + head
    kinds = model.layer_kinds()
    layers = [kinds[index] for index in model.kind_of_layer]
    # Multi-token-prediction layers, each with its own pass through the output matrix.
    matrix += _active_matrix_weights(model, mtp_param_blocks(model)) + model.mtp_layers * head
    layers += [layers[-1]] * model.mtp_layers
    scores = np.asarray(0.0)
    other = np.asarray(0.0)
    for kind in kinds:
        if kind.attends:
            seen = model.seen_by(kind)
            per_key = 2.0 * seen.num_heads * (seen.head_dim + seen.v_head_dim)
            keys = attended_tokens(seq_len, kind.reach, causal=causal and model.causal)
            scores = scores + layers.count(kind) * per_key * keys
        if kind.mixer is not None:
            before = attended_tokens(seq_len, causal=causal)
            other = other + layers.count(kind) * mixer_flops(kind.mixer, before)
    return np.asarray(3.0 * (2.0 * matrix + scores + other))


_TABLE: dict[str, list[dict[str, str]]] = {
    owner: list(rows)
    for owner, rows in groupby(read_rows(Path(__file__).with_name("params.csv")), itemgetter("of"))
}
"""Rows of ``params.csv`` by what has such parameters: counts are formulas over the fields of the model, and of a mixer."""


def param_blocks(owner: str, model: Model, sizes: AnyMixer | None = None) -> tuple[ParamBlock, ...]:
    """Return the parameters of a part of the model, or of a kind of mixer; those that a model does not have are left out."""

    def number(name: str) -> float:
        if name == "learned_positions":
            return float(model.max_positions if model.position == "learned" else 0)
        return float(getattr(sizes if hasattr(sizes, name) else model, name))

    found = []
    for row in _TABLE.get(owner, ()):
        count = float(evaluate(row["count"], {name: number(name) for name in inputs_of(row["count"])}))
        # The gate is in the first matrix of an MLP.
        tensors = 1 + (row["leaf"] == "fc1" and model.gated_mlp)
        block = ParamBlock(
            row["part"],  # type: ignore[arg-type]
            row["leaf"],
            count,
            row["sharding"],  # type: ignore[arg-type]
            is_matrix=row["is_matrix"] == "yes",
            tensors=tensors,
        )
        if count:
            found.append(block)
    return tuple(found)


def _layer_blocks(model: Model) -> list[ParamBlock]:
    """All layers' blocks, those of one kind multiplied by the number of its layers."""
    index = model.kind_of_layer
    return [
        replace(block, count=block.count * index.count(number))
        for number, kind in enumerate(model.layer_kinds())
        for block in layer_param_blocks(model, kind)
    ]


def all_blocks(model: Model) -> list[ParamBlock]:
    """Return every block of the model but those of multi-token prediction."""
    return [*param_blocks("embedding", model), *_layer_blocks(model), *param_blocks("head", model)]


def _active_matrix_weights(model: Model, blocks: Iterable[ParamBlock]) -> float:
    """Matrix weights that a token is multiplied with."""
    return sum(block.count * active_fraction(model, block) for block in blocks if block.is_matrix)


def active_fraction(model: Model, block: ParamBlock) -> float:
    """Share of a block that one token meets."""
    routed = model.top_k / max(model.num_experts, 1)
    return {"tp": 1.0, "replicated": 1.0, "expert": routed}[block.sharding]


class Params(NamedTuple):
    """Parameters that one rank holds before data parallelism shards them: dense and expert. [-]"""

    dense: Array
    expert: Array

    def __add__(self, other: object) -> Params:
        """Add two sets block by block."""
        assert isinstance(other, Params)
        return Params(np.asarray(self.dense + other.dense), np.asarray(self.expert + other.expert))

    def of(self, part: str) -> Array:
        """Return the ``dense`` ones or the ``expert`` ones."""
        return {"dense": self.dense, "expert": self.expert}[part]

    def scaled(self, factor: Array) -> Params:
        """Return `factor` such sets."""
        return Params(np.asarray(self.dense * factor), np.asarray(self.expert * factor))

    def for_stages(self) -> Params:
        """Return the same with a trailing dimension for pipeline stages."""
        return Params(self.dense[..., None], self.expert[..., None])


def held_params(blocks: Iterable[ParamBlock], layout: Layout) -> Params:
    """Divide parameter blocks by the axes that split them."""
    dense: Array = np.zeros_like(layout.tp)
    expert: Array = np.zeros_like(layout.ep * layout.etp)
    for block in blocks:
        if block.sharding == "expert":
            expert = expert + block.count / (layout.ep * layout.etp)
        else:
            dense = dense + block.count / (layout.tp if block.sharding == "tp" else 1.0)
    return Params(np.asarray(dense), np.asarray(expert))
