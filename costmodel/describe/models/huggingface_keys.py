"""A HuggingFace config that notes what was read of it, and names that need no reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import ModelConfigError

_MISSING = object()

# Keys that change no size: tokens, initialisation, rotary tables, regularisation, routing details,
# how a checkpoint was saved. Anything else that a reader passes over is reported as ignored.
_HARMLESS = """
    _name_or_path _attn_implementation_autoset apply_query_key_layer_scaling
    apply_residual_connection_post_layernorm
    architectures attention_dropout attention_softmax_in_fp32 attn_logit_softcapping attn_pdrop attn_scale
    attn_temperature_tuning auto_map aux_loss_alpha boi_token_index bos_token_id cache_implementation
    classifier_dropout do_layer_norm_before do_sample dropout dtype embd_pdrop eoi_token_index eos_token_id
    ep_size final_logit_softcapping floor_scale for_llm_compressor hidden_act hidden_activation
    hidden_dropout id2label image_token_index init_std initial_context_length initializer_range
    inference_prob is_decoder keys_to_ignore_at_inference label2id layer_norm_eps layer_norm_epsilon
    layerdrop max_position_embeddings max_window_layers masked_softmax_fusion mm_tokens_per_image
    model_type n_ctx n_group n_positions norm_topk_prob offset_alibi original_max_position_embeddings
    output_attentions output_hidden_states output_router_logits pad_token_id partial_rotary_factor
    prefix pretraining_tp quantization_config query_pre_attn_scalar rms_norm_eps rope_interleave
    rope_local_base_freq rope_parameters rope_scaling rope_theta rotary_emb_base rotary_pct
    routed_scaling_factor router_aux_loss_coef router_jitter_noise reorder_and_upcast_attn resid_pdrop
    scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func seq_aux seq_length
    skip_bias_add skip_bias_add_qkv slow_but_exact swiglu_limit
    summary_activation summary_first_dropout summary_proj_to_labels
    summary_type summary_use_proj task_specific_params topk_group topk_method torch_dtype
    transformers_version unk_token_id use_cache activation_function _remove_final_layer_norm
    embed_dropout resid_dropout unsloth_version
    """
NOT_STRUCTURAL = frozenset(_HARMLESS.split())

_HYBRID = "layers without softmax attention (linear attention or state space) cannot be priced yet"
_SPARSE = "its sparse attention indexer cannot be priced yet"

REFUSED_TYPES: dict[str, str] = {
    "deepseek_v32": _SPARSE,
    "deepseek_v4": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "jamba": _HYBRID,
    "mamba": _HYBRID,
    "mamba2": _HYBRID,
    "nemotron_h": _HYBRID,
    "qwen3_next": _HYBRID,
    "falcon_h1": _HYBRID,
    "rwkv": _HYBRID,
    "bert": "an encoder, not a decoder",
    "t5": "an encoder-decoder, not a decoder",
    "olmo2": "its query and key norms span all heads, which cannot be expressed yet",
    "phimoe": "its layer norms with biases cannot be expressed yet",
}


class Keys:
    """A config that notes which of its keys were looked at."""

    def __init__(self, raw: Mapping[str, Any], origin: str) -> None:
        self.raw, self.origin = raw, origin
        self.used: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first key that is present and not null, else the default."""
        self.used.update(names)
        return next((self.raw[name] for name in names if self.raw.get(name) is not None), default)

    def need(self, *names: str) -> Any:
        """Return the first key that is present and not null."""
        value = self.get(*names, default=_MISSING)
        if value is _MISSING:
            kind = self.raw.get("model_type", "")
            raise ModelConfigError(
                f"{self.origin}: missing {' or '.join(repr(name) for name in names)}"
                + (f", which model_type {kind!r} needs" if kind else "")
            )
        return value

    def need_or_null(self, name: str) -> Any:
        """Return a key that must be present, 0 where it is null."""
        if name not in self.raw:
            return self.need(name)
        return self.get(name, default=0)

    def refuse(self, reason: str) -> ModelConfigError:
        """Return the error for a config that cannot be expressed."""
        return ModelConfigError(f"{self.origin}: {reason}")
