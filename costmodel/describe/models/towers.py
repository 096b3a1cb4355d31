"""Towers: encoders of images or audio in front of a language model, with what joins them to it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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
