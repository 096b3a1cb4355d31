"""`costmodel.model_facts`: exact parameters of a model by component, and its FLOPs per token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodel.base.answer import Answer, Listing
from costmodel.base.errors import CostModelError
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import list_models, load_model
from costmodel.step.anatomy.kv_cache import kv_cache_bytes
from costmodel.step.anatomy.params import (
    model_flops_per_token,
    num_active_params,
    num_params,
    params_by_component,
)

DEFAULT_SEQ_LEN = 4096


@dataclass(frozen=True, repr=False)
class ModelFacts(Answer):
    """What a model is made of."""

    model: Model
    seq_len: int

    @cached_property
    def num_params(self) -> float:
        """Parameters, exactly; without those of multi-token prediction. [-]"""
        return num_params(self.model)

    @cached_property
    def num_active_params(self) -> float:
        """Parameters that one token uses. [-]"""
        return num_active_params(self.model)

    @cached_property
    def params_by_component(self) -> dict[str, float]:
        """Parameters by component, over all layers. [-]"""
        return params_by_component(self.model)

    def flops_per_token(self, *, causal: bool = False) -> float:
        """Training FLOPs of a token: full attention matrix (PaLM, Megatron), or half of it. [FLOP]"""
        return float(model_flops_per_token(self.model, self.seq_len, causal))

    @cached_property
    def kv_cache_bytes_per_token(self) -> float:
        """16-bit key-value cache that a token adds where no window is full; constant states are not counted. [B]"""
        return float(kv_cache_bytes(self.model, 1.0) - kv_cache_bytes(self.model, 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return dimensions, exact parameter counts and FLOPs per token as plain data."""
        model = self.model
        return {
            "schema_version": 1,
            "name": model.name,
            "source": model.source,
            **{
                name: getattr(self, name)
                for name in ("num_params", "num_active_params", "params_by_component")
            },
            "layer_kinds": {
                kind.name: model.kind_of_layer.count(i) for i, kind in enumerate(model.layer_kinds())
            },
            "kv_cache_bytes_per_token": self.kv_cache_bytes_per_token,
            "seq_len": self.seq_len,
            "flops_per_token": self.flops_per_token(),
            "flops_per_token_causal": self.flops_per_token(causal=True),
            "dimensions": model.model_dump(mode="json", exclude={"name", "source"}),
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return the parameters by component."""
        parts = self.params_by_component
        return {"component": list(parts), "params": list(parts.values())}


def model_facts(model: str | Model, *, seq_len: int = DEFAULT_SEQ_LEN) -> ModelFacts:
    """Count a model: exact parameters by component, and training FLOPs per token.

    Parameters
    ----------
    model : str or Model
        As for `costmodel.estimate`.
    seq_len : int
        Tokens of a sequence, for attention. [-]

    Raises
    ------
    CostModelError
        If there is no such model, or `seq_len` is not positive.

    Examples
    --------
    >>> f"{model_facts('llama3-8b').num_params:,.0f}"
    '8,030,261,248'
    """
    if seq_len < 1:
        raise CostModelError(f"seq_len: expected a positive number of tokens, got {seq_len}")
    return ModelFacts(load_model(model) if isinstance(model, str) else model, seq_len)


_LISTED = ["num_layers", "hidden_size", "num_heads", "num_kv_heads", "attention", "num_experts", "vocab_size"]


def models_table() -> Listing:
    """List the shipped models with their exact parameter counts."""
    models = [load_model(name) for name in list_models()]
    table: dict[str, list[Any]] = {
        "name": [model.name for model in models],
        "num_params": [num_params(model) for model in models],
        "num_active_params": [num_active_params(model) for model in models],
        **{name: [getattr(model, name) for model in models] for name in _LISTED},
    }
    return Listing("models", table)
