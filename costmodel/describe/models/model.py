"""What a transformer is made of: the dimensions that the physics needs, and nothing else.

A model is a YAML file, a HuggingFace ``config.json``, a preset's name or a size (``dense-100b``).
Parameter and FLOP counts follow from it in `costmodel.step.anatomy.params`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from math import gcd
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import ModelConfigError, choices_hint
from costmodel.bill.formula import evaluate
from costmodel.describe.models.mixers import AnyMixer, OtherHeads

Attention = Literal["mha", "gqa", "mqa", "mla"]
Norm = Literal["rmsnorm", "layernorm"]
Position = Literal["learned", "rope", "alibi", "none"]


MOST = 1_000_000_000
"""Largest size of any part."""
MOST_LAYERS = 10_000

_OWN = {"num_heads", "num_kv_heads", "head_dim", "v_head_dim", "attention_sinks", "kv_projections"}
_WIDTHS = ("ffn_size", "shared_expert_ffn_size")
_RULES = read_rows(Path(__file__).parents[1] / "data" / "model_rules.csv")
DERIVED = {"num_kv_heads", "head_dim", "v_head_dim", "attention", "norm", "norm_bias", "norms_per_layer"}


_ANY = "model"
"""What errors call a model that nobody gave an origin."""


def _shared(heads: int, kv_heads: int) -> Attention:
    """Return how heads of queries share those of keys."""
    return "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"


class LayerKind(NamedTuple):
    """One sort of transformer layer; layers of one kind cost the same."""

    name: str
    """``dense`` or ``moe``, with ``-window`` where attention is windowed and the kind of another mixer;
    ``mlp`` or ``experts`` without a mixer, the mixer alone without an MLP."""
    is_moe: bool
    window: int  # Tokens a query looks back on, 0 for all
    attends: bool = True  # It has the model's attention
    mixer: AnyMixer | None = None  # What else mixes its tokens
    has_mlp: bool = True  # It has an MLP or experts
    heads: OtherHeads | None = None  # Its attention's own heads where they are not the model's

    @property
    def selects(self) -> int:
        """Tokens that its attention is left with for each query, 0 for all. [-]"""
        return self.mixer.selects if self.mixer is not None else 0

    @property
    def reach(self) -> int:
        """Tokens that its attention meets at most, in a window or chosen, 0 for all. [-]"""
        return self.selects or self.window


class Tower(BaseModel):
    """An encoder of images or audio, with what joins it to the language model. Sizes count elements."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    """``vision`` or ``audio``."""
    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ffn_size: int = Field(gt=0)
    gated_mlp: bool
    qkv_bias: bool
    attention_out_bias: bool
    linear_bias: bool
    norm_bias: bool
    window: int = Field(ge=0)
    """Tokens that see one another in layers that do not see all."""
    full_layers: int = Field(ge=0)
    """Layers that see all."""
    tokens: int = Field(ge=0)
    """Of an image or a clip in its layers; 0 where images are of any size."""
    merge: int = Field(gt=0)
    """Its tokens that become one of the language model's."""
    patch_params: int = Field(gt=0)
    """Weights of the matrix that makes its tokens."""
    projector_params: int = Field(ge=0)
    """Weights of the matrices that each token for the language model goes through."""
    other_params: int = Field(ge=0)
    """Positions, norms outside of layers, biases."""


class Model(BaseModel):
    """A transformer of one stack. Sizes count elements; 0 means that the part is absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    source: str = ""
    """Where the dimensions are from."""

    num_layers: int = Field(gt=0, le=MOST_LAYERS)
    """Transformer layers, without embedding, head and multi-token-prediction layers."""
    hidden_size: int = Field(gt=0, le=MOST)
    vocab_size: int = Field(gt=0, le=MOST)
    """Rows of the token table, padding included where it is stored."""
    tied_embeddings: bool = False
    """The output matrix is the token table."""

    causal: bool = True
    """A query sees only the keys before it; false for encoders (BERT), which see all."""
    attention: Attention
    """Default: from the number of KV heads."""
    num_heads: int = Field(gt=0, le=MOST)
    num_kv_heads: int = Field(gt=0, le=MOST)
    """Default: `num_heads` (1 for mqa)."""
    head_dim: int = Field(gt=0, le=MOST)
    """Width of a query or key head; default hidden / heads, for mla nope + rope part."""
    v_head_dim: int = Field(gt=0, le=MOST)
    """Width of a value head; default `head_dim`."""
    q_lora_rank: int = Field(default=0, ge=0, le=MOST)
    """Rank of the query's low-rank projection (mla), 0 for a full one."""
    kv_lora_rank: int = Field(default=0, ge=0, le=MOST)
    qk_nope_head_dim: int = Field(default=0, ge=0, le=MOST)
    qk_rope_head_dim: int = Field(default=0, ge=0, le=MOST)
    qk_norm: bool = False
    """A norm of `head_dim` on every query and key head."""
    qk_norm_all_heads: bool = False
    """Those norms span all heads of a projection instead of each by itself (OLMo 2, MiniMax-M2)."""
    attention_sinks: bool = False
    """One learned logit a head in the softmax (gpt-oss)."""
    sliding_window: int = Field(default=0, ge=0, le=MOST)
    """Tokens a query of a windowed layer looks back on, 0 for no windows."""
    full_attention_every: int = Field(default=0, ge=0, le=MOST)
    """Among windowed layers every n-th attends to all tokens (gpt-oss 2), 0 for none."""
    attention_pattern: str = Field(default="", pattern="^[a-z]*$")
    """A letter a layer where no "every n-th" says it (MiMo-V2): ``w`` windowed, ``f`` full, ``n`` neither, or
    one of `mixers`; else empty."""
    mixers: dict[str, AnyMixer] = Field(default_factory=dict)
    """Other mixers than attention, by the letter that `attention_pattern` has for them."""
    kv_projections: int = Field(default=2, ge=0, le=2)
    """Projections of keys and values: 1 where values are the keys before their norm and rotation, 0 where both are an
    earlier layer's (Gemma 4)."""
    attention_gate: bool = False
    """A gate on every element of attention's output, made of the same input (Qwen3-Next)."""

    ffn_size: int = Field(default=0, ge=0, le=MOST)
    """Inner width of the dense MLP, 0 where no layer has one."""
    gated_mlp: bool
    """Three matrices (SwiGLU) instead of two."""
    activation_params: int = Field(default=0, ge=0, le=MOST)
    """Learned scalars of each MLP's activation (xIELU 2)."""
    activation_clamp: bool = False
    """What enters the activation is clamped first (gpt-oss), which frameworks do in kernels of their own."""
    num_experts: int = Field(default=0, ge=0, le=MOST)
    top_k: int = Field(default=0, ge=0, le=MOST)
    """Routed experts a token visits."""
    expert_groups: int = Field(default=0, ge=0, le=MOST)
    """Groups that the experts are divided into, where routing is limited to some of them; 0 for no limit."""
    groups_per_token: int = Field(default=0, ge=0, le=MOST)
    """Groups that the experts of one token may lie in (DeepSeek-V3 4 of 8)."""
    expert_ffn_size: int = Field(default=0, ge=0, le=MOST)
    shared_expert_ffn_size: int = Field(default=0, ge=0, le=MOST)
    """Inner width of all shared experts together."""
    shared_expert_gate: bool = False
    """A learned scalar gate on the shared expert (Qwen2-MoE)."""
    router_bias: bool = False
    first_dense_layers: int = Field(default=0, ge=0, le=MOST)
    """Leading layers of a MoE model that are dense."""
    moe_layer_freq: int = Field(default=1, ge=1)
    """After those every n-th layer is MoE, the last of each n."""
    mlp_pattern: str = Field(default="", pattern="^[den]*$")
    """A letter a layer, ``d`` dense, ``e`` experts or ``n`` neither, where the two fields above cannot say it;
    else empty."""

    norm: Norm
    norm_bias: bool
    """Default: true for layernorm."""
    norm_scale: bool = True
    """A learned scale; OLMo 1 normalises without one."""
    norms_per_layer: int = Field(ge=1, le=8)
    """Default 2, 1 for a parallel block; 4 where outputs are normed too (Grok-1, Gemma 2); 8 where a dense MLP and
    the router beside it have theirs as well (Gemma 4 with experts)."""
    parallel_block: bool = False
    """Attention and MLP read the same input (GPT-J, PaLM, Falcon)."""
    qkv_bias: bool = False
    attention_out_bias: bool = False
    linear_bias: bool = False
    """Biases in the MLP, and in each expert."""
    head_bias: bool = False
    """A bias of the output matrix (GPT-J, Phi)."""
    head_dense: bool = False
    """A linear layer of the model's width before the output matrix (BERT)."""
    head_norms: int = Field(default=1, ge=1, le=2)
    """Norms before the output matrix: 2 where one stands behind that layer too (ModernBERT)."""
    token_types: int = Field(default=0, ge=0, le=MOST)
    """Rows of a table of segments (BERT 2)."""
    relative_positions: int = Field(default=0, ge=0, le=MOST)
    """Learned biases of scores for each head, over all layers (T5 32 in its first)."""
    layer_embedding_size: int = Field(default=0, ge=0, le=MOST)
    """Width of a second embedding that every layer has for itself, gates and adds (Gemma 4)."""
    layer_embedding_rows: int = Field(default=0, ge=0, le=MOST)
    """Rows of its table."""
    embedding_norm: bool = False
    """A norm right after the embedding (BLOOM)."""
    position: Position = "rope"
    rope_concentration: bool = False
    """Rotated queries and keys are multiplied by a factor besides (YaRN, gpt-oss), which fused kernels do not take."""
    max_positions: int = Field(default=0, ge=0, le=MOST)
    """Rows of a learned position table."""
    # No price depends on the next four; a launch file without them trains another model.
    rope_theta: float = Field(default=0.0, ge=0.0)
    """Base of the rotary positions, 0 where nobody says it."""
    rotary_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of a head that is rotated."""
    norm_epsilon: float = Field(default=0.0, ge=0.0, lt=1.0)
    """What norms add to the variance, 0 where nobody says it."""
    context_length: int = Field(default=0, ge=0, le=MOST)
    """Longest sequence that its positions are made for, 0 where nobody says it."""
    mtp_layers: int = Field(default=0, ge=0, le=MOST_LAYERS)
    """Multi-token-prediction layers on top of `num_layers`; see `physics.params.mtp_param_blocks`."""
    tower: Tower | None = None
    """What encodes images or audio in front of it; no part of its own counts."""
    tower_problem: str = ""
    """Why the sizes of its tower could not be read."""

    def __init__(self, **fields: Any) -> None:
        """Make a model of its fields; what follows from the rest may be left out."""
        unknown = sorted(fields.keys() - type(self).model_fields.keys())
        if unknown:
            hint = choices_hint(unknown[0], type(self).model_fields)
            raise ModelConfigError(f"{_ANY}: field {unknown[0]!r} is unknown; {hint}")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ModelConfigError(f"{_ANY}: {_first_problem(error)}") from None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, given: Any) -> Any:
        """Derive what a model card leaves out because it follows from the rest."""
        if not isinstance(given, dict) or not all(
            type(given.get(key)) is int and given[key] > 0 for key in ("hidden_size", "num_heads")
        ):
            return given
        filled = {key: value for key, value in given.items() if value is not None}
        heads = filled["num_heads"]
        kv_heads = filled.setdefault("num_kv_heads", 1 if filled.get("attention") == "mqa" else heads)
        filled.setdefault("attention", _shared(heads, kv_heads))
        if filled["attention"] == "mla":
            parts = [filled.get(key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
            filled.setdefault("head_dim", sum(parts) if all(type(part) is int for part in parts) else 0)
        elif "head_dim" not in filled:
            if filled["hidden_size"] % heads:
                raise ValueError(
                    f"hidden_size {filled['hidden_size']} does not divide by num_heads {heads}; give head_dim"
                )
            filled["head_dim"] = filled["hidden_size"] // heads
        filled.setdefault("v_head_dim", filled["head_dim"])
        filled.setdefault("norm", "rmsnorm")
        filled.setdefault("norm_bias", filled["norm"] == "layernorm")
        filled.setdefault("norms_per_layer", 1 if filled.get("parallel_block") else 2)
        return filled

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        """Refuse what a rule of ``describe/data/model_rules.csv`` says cannot be."""
        stated = dict(self)
        stated |= {name: self.attention == name for name in ("mha", "mqa", "mla")}
        stated |= {
            "learned": self.position == "learned",
            "attention_letters": len(self.attention_pattern),
            "windowed_letters": self.attention_pattern.count("w"),
            "mlp_letters": len(self.mlp_pattern),
            "expert_letters": self.mlp_pattern.count("e"),
        }
        numbers = {name: value for name, value in stated.items() if isinstance(value, int | float)}
        for row in _RULES:
            if evaluate(row["broken"], numbers):
                raise ValueError(row["sentence"].format(**stated))
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong about mixers and kinds of layers."""
        used = set(self.attention_pattern) - set("fwn")
        for letter in sorted(letter for letter in self.mixers if letter in "fwn" or len(letter) != 1):
            yield f"mixers: {letter!r} is no letter of its own (f, w and n are taken)"
        for letter in sorted(used - self.mixers.keys()):
            known = ", ".join(sorted(self.mixers)) or "there are none"
            yield f"attention_pattern: {letter!r} is no letter of mixers ({known}), f, w or n"
        for letter in sorted(self.mixers.keys() - used):
            yield f"mixers: {letter!r} stands nowhere in attention_pattern"
        for number, pair in enumerate(zip(self.attention_pattern, self.mlp_pattern, strict=False), start=1):
            if pair == ("n", "n"):
                yield f"layer {number} has neither a mixer nor an MLP"
        if not self.ffn_size and any(kind.has_mlp and not kind.is_moe for kind in self.layer_kinds()):
            yield "a model with dense layers needs ffn_size > 0"
        if self.attention == "mla" and any(kind.heads for kind in self.layer_kinds()):
            yield "kv_projections and other-heads are not for attention mla"

    def split_over_tp(self) -> tuple[tuple[str, int], ...]:
        """Return what tensor parallelism must divide in the mixers of its layers, in words, and their number. [-]"""
        attends = any(kind.attends and kind.heads is None for kind in self.layer_kinds())
        heads = (("attention heads", self.num_heads),) if attends else ()
        return (*heads, *(each for one in self.mixers.values() for each in one.split_over_tp()))

    def heads_of_queries(self) -> int:
        """Return the query heads that dividing heads has to divide, in layers of all kinds. [-]"""
        return gcd(*(self.seen_by(kind).num_heads for kind in self.layer_kinds() if kind.attends))

    def heads_of_keys(self) -> int:
        """Return the heads of keys that it has to; latent attention has one for each query head. [-]"""
        if self.attention == "mla":
            return self.num_heads
        return gcd(*(self.seen_by(kind).num_kv_heads for kind in self.layer_kinds() if kind.attends))

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Return the distinct kinds of layers, in order of first appearance."""
        return self._kinds[0]

    def seen_by(self, kind: LayerKind) -> Model:
        """Return the model as a layer of a kind sees it: with the heads and the MLP of its own."""
        return self if kind.heads is None else self._changed[kind.heads]

    @cached_property
    def _changed(self) -> dict[OtherHeads, Model]:
        """The model with each of its other heads."""
        made = {}
        for own in (kind.heads for kind in self.layer_kinds() if kind.heads is not None):
            update = own.model_dump(include=_OWN) | {"attention": _shared(own.num_heads, own.num_kv_heads)}
            update |= {name: own.ffn_size for name in _WIDTHS if own.ffn_size and getattr(self, name)}
            made[own] = self._with(update)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed, checked as any model is."""
        # What is checked here is copied below, so that a subclass stays one.
        make_model({**self.model_dump(), **(update or {})})
        return self._with(update or {}, deep=deep)

    def _with(self, update: Mapping[str, Any], *, deep: bool = False) -> Self:
        """Return a changed copy, without what was derived from the fields as they were."""
        made = super().model_copy(update=update, deep=deep)
        for name in made.__dict__.keys() - type(made).model_fields.keys():
            del made.__dict__[name]
        return made

    @property
    def kind_of_layer(self) -> tuple[int, ...]:
        """Index into `layer_kinds` for each of the `num_layers` layers."""
        return self._kinds[1]

    @cached_property
    def _kinds(self) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
        kinds: dict[LayerKind, int] = {}
        index = [kinds.setdefault(self._kind_at(layer), len(kinds)) for layer in range(self.num_layers)]
        return tuple(kinds), tuple(index)

    def _kind_at(self, layer: int) -> LayerKind:
        """Return the kind of layer number `layer`, counted from 0."""
        after_dense = layer - self.first_dense_layers
        is_moe = self.num_experts > 0 and after_dense >= 0 and (after_dense + 1) % self.moe_layer_freq == 0
        if self.mlp_pattern:
            is_moe = self.mlp_pattern[layer] == "e"
        full = self.full_attention_every > 0 and (layer + 1) % self.full_attention_every == 0
        letter = "f" if full else "w"
        if self.attention_pattern:
            letter = self.attention_pattern[layer]
        mixer = self.mixers.get(letter)
        heads = mixer if isinstance(mixer, OtherHeads) else None
        attends = letter in "fw" or heads is not None or (mixer is not None and mixer.beside_attention)
        has_mlp = self.mlp_pattern[layer : layer + 1] != "n"
        window = self.sliding_window if letter == "w" else heads.window if heads is not None else 0
        name = self._kind_name(
            letter, mixer, attends, "moe" if is_moe else "dense" if has_mlp else "", window
        )
        return LayerKind(name, is_moe, window, attends, None if heads else mixer, has_mlp, heads)

    def _kind_name(self, letter: str, mixer: AnyMixer | None, attends: bool, mlp: str, window: int) -> str:
        """Return what a kind of layer is called in the bill."""
        if mixer is None and not attends:
            return {"moe": "experts", "dense": "mlp"}[mlp] if mlp else "nothing"
        parts = [mlp] if mlp else []
        changed = isinstance(mixer, OtherHeads)
        if attends and not changed and (not mlp or (mixer is not None and not mixer.selects)):
            parts.append("attention")
        if mixer is not None:
            parts.append(mixer.kind)
            if sum(other.kind == mixer.kind for other in self.mixers.values()) > 1:
                parts.append(letter)
        return "-".join([*parts, "window"] if window else parts)


def same_shape(one: Model, other: Model) -> bool:
    """Tell whether two models differ in their names alone, or in what one of them does not say."""
    unsaid = {"rope_theta", "norm_epsilon", "context_length"}
    a, b = (model.model_dump(exclude={"name", "source"}) for model in (one, other))
    return all(a[key] == b[key] or (key in unsaid and not (a[key] and b[key])) for key in a)


def make_model(values: Mapping[str, Any], origin: str = "") -> Model:
    """Validate the fields of a model; `origin` (a path) is named in errors."""
    where = origin or f"model {values.get('name', '')}".strip()
    try:
        return Model(**{str(key): value for key, value in values.items()})
    except ModelConfigError as error:
        raise ModelConfigError(str(error).replace(_ANY, where, 1)) from None


@cache
def tower_layers(tower: Tower) -> Model:
    """Return the layers of a tower as a model without tokens."""
    shared = ("num_layers", "hidden_size", "num_heads", "head_dim", "ffn_size", "gated_mlp")
    flags = ("qkv_bias", "attention_out_bias", "linear_bias", "norm_bias")
    values: dict[str, Any] = {name: getattr(tower, name) for name in (*shared, *flags)}
    if tower.window and tower.full_layers < tower.num_layers:
        windowed = tower.num_layers - tower.full_layers
        values |= {
            "sliding_window": tower.window,
            "attention_pattern": "w" * windowed + "f" * tower.full_layers,
        }
    norm = "layernorm" if tower.norm_bias else "rmsnorm"
    return make_model(
        {**values, "name": tower.name, "vocab_size": 1, "causal": False, "norm": norm, "position": "none"}
    )


def _first_problem(error: ValidationError) -> str:
    """Say what to mend first; fields that could not be derived only follow from other problems."""
    problems = [e for e in error.errors() if not (e["type"] == "missing" and e["loc"][0] in DERIVED)]
    missing = [str(e["loc"][0]) for e in problems if e["type"] == "missing"]
    if missing:
        return f"missing {', '.join(missing)}"
    first = (problems or error.errors())[0]
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {message}, got {first['input']!r}" if key else message
