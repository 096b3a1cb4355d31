"""A HuggingFace config that notes what was read of it, and names that need no reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from costmodel.base.errors import ModelConfigError, shown
from costmodel.describe.models.model import MOST, MOST_LAYERS

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
    model_type n_ctx n_positions norm_topk_prob offset_alibi original_max_position_embeddings
    output_attentions output_hidden_states output_router_logits pad_token_id partial_rotary_factor
    prefix pretraining_tp quantization_config query_pre_attn_scalar rms_norm_eps rope_interleave
    rope_local_base_freq rope_parameters rope_scaling rope_theta rotary_emb_base rotary_pct
    routed_scaling_factor router_aux_loss_coef router_jitter_noise reorder_and_upcast_attn resid_pdrop
    scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func seq_aux seq_length
    skip_bias_add skip_bias_add_qkv slow_but_exact swiglu_limit
    summary_activation summary_first_dropout summary_proj_to_labels
    summary_type summary_use_proj task_specific_params topk_method torch_dtype
    transformers_version unk_token_id use_cache activation_function _remove_final_layer_norm
    embed_dropout resid_dropout unsloth_version
    activation_dropout attention_multiplier attention_probs_dropout_prob attention_softmax_in_fp32
    attention_value_scale beta_fast beta_slow chunk_size_feed_forward clip_qkv dynamic_image_size
    embedding_multiplier emb_pdrop end_token_id eod_token_id ffn_dropout for_causal_lm gradient_checkpointing
    hidden_dropout_prob inference_runner init_device input_jitter_noise layer_norm_epsilon logit_scale
    logits_scaling max_batch_size max_length max_sequence_length max_seq_len max_window_layers
    min_length moe_loss_weight moe_norm_min moe_router_dtype norm_eps norm_epsilon num_beams
    pad_key_length pre_allocate_kv_cache problem_type repetition_penalty residual_multiplier
    rope_ratio rotary rotary_dim scale_attention_softmax_in_fp32 scale_depth scale_emb
    scale_embedding seed seq_len softmax_scale swiglu_alpha temperature tokenizer_class top_p
    typical_p use_bfloat16 use_cache_quantization use_flash_attn use_sdpa use_mrope validate_runner_input verbose
    return_dict return_dict_in_generate torchscript tie_encoder_decoder length_penalty diversity_penalty
    early_stopping encoder_no_repeat_ngram_size no_repeat_ngram_size num_beam_groups num_return_sequences
    is_encoder_decoder remove_invalid_values output_scores tf_legacy_loss add_cross_attention
    attn_implementation _commit_hash version activation embedding_dropout residual_dropout
    embedding_initializer_range _from_model_config model_max_length attn_dropout_prob emb_dropout_prob bf16 fp16
    fp32 use_dynamic_ntk use_logn_attn
    mamba_hidden_act mlp_hidden_act num_logits_to_keep rescale_prenorm_residual residual_in_fp32 time_step_floor
    time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels use_associative_scan z_loss_coefficient
    attention_in_multiplier attention_out_multiplier key_multiplier lm_head_multiplier mamba_norm_before_gate
    mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier moe_renormalize block_size
    full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor
    mlp_beta_factor linear_a_log_max linear_a_log_min linear_allow_neg_eigval linear_dt_init_floor linear_dt_max
    linear_dt_min image_token_id video_token_id vision_start_token_id vision_end_token_id
    index_share_for_mtp_iteration
    afn begin_suppress_tokens classifier_activation classifier_dropout_prob cls_token_id context_length
    enable_moe_fp32_combine expert_selection_fn hc_magnitude hidden_mamba_act image_seq_length
    initializer_cutoff_factor kda_lower_bound kda_safe_gate lambda_std_dev log_scaling_alpha logits_soft_cap
    logits_mup_width_multiplier mamba_ssm_cache_dtype mlp_gate_softcap mlp_up_softcap moe_routed_scaling_factor
    moe_shared_expert_overlap mtp_hidden_states_first number_of_conv_states position_bias_max_distance
    qk_l2_clip_threshold rel_l2_clip_threshold rescale_every rms_norm_eps_moe_gate route_scale
    router_scaling_factor shared_expert_combination_strategy mtp_layers_block_type
    """
NOT_STRUCTURAL = frozenset(_HARMLESS.split())

_TOKEN = re.compile(r"_token_(id|ids|index)$")


def shapes_nothing(name: str) -> bool:
    """Tell whether a key has no part in any size: it is known, or the number of a token."""
    return name in NOT_STRUCTURAL or _TOKEN.search(name) is not None


_HYBRID = "layers without softmax attention (linear attention or state space) cannot be priced yet"
_SPARSE = "its sparse attention indexer cannot be priced yet"
_ENCODER = "an encoder, not a decoder"
_BOTH = "an encoder-decoder, not a decoder"

REFUSED_TYPES: dict[str, str] = {
    "albert": _ENCODER,
    "axk1": "its norms behind experts alone cannot be priced yet",
    "axk2": "its norms and queries gated by small products cannot be priced yet",
    "bailing_hybrid": "its delta rule with gates of full rank beside latent attention cannot be priced yet",
    "bart": _BOTH,
    "beam": "its gates of attention with a bias of each head cannot be priced yet",
    "bert": _ENCODER,
    "bert-generation": _ENCODER,
    "big_bird": _ENCODER,
    "bigbird_pegasus": _BOTH,
    "bitnet": "its norms before each way out cannot be priced yet",
    "blenderbot": _BOTH,
    "blenderbot-small": _BOTH,
    "blt": "its transformers of bytes and of patches cannot be priced yet",
    "camembert": _ENCODER,
    "cpmant": "its relative position biases and prompts cannot be priced yet",
    "ctrl": "its head has a bias of each token, which cannot be priced yet",
    "data2vec-text": _ENCODER,
    "deberta": _ENCODER,
    "deepseek_v4": "its compressed sparse attention and several residual streams cannot be priced yet",
    "diffllama": "its differential attention cannot be priced yet",
    "distilbert": _ENCODER,
    "doge": "its dynamic mask of attention cannot be priced yet",
    "dots3_note_text": _SPARSE,
    "electra": _ENCODER,
    "ernie": _ENCODER,
    "falcon_mamba": _HYBRID,
    "gemma3n": "its alternating streams and low-rank residuals cannot be priced yet",
    "gemma3n_text": "its alternating streams and low-rank residuals cannot be priced yet",
    "git": "a captioner whose decoder has its image encoder inside, which cannot be priced",
    "gpt_neox_japanese": "its biases of norms alone cannot be priced yet",
    "hrm_text": "its stacks that run several times over cannot be priced yet",
    "hy_v4": "its several residual streams cannot be priced yet",
    "inkling2_text": "its attention over earlier blocks and its short convolutions cannot be priced yet",
    "inkling_text": "its relative positions and short convolutions cannot be priced yet",
    "jetmoe": "its mixture of attention heads cannot be priced yet",
    "laguna": "its number of heads for each layer cannot be priced yet",
    "lfm3": _HYBRID,
    "longcat_flash": "its two attention blocks a layer and its empty experts cannot be priced yet",
    "mamba": _HYBRID,
    "mamba2": _HYBRID,
    "marian": _BOTH,
    "mbart": _BOTH,
    "megatron-bert": _ENCODER,
    "minimax_m3": "its sparse block attention cannot be priced yet",
    "minimax_m3_vl_text": "its sparse block attention cannot be priced yet",
    "mllama": "its cross-attention layers cannot be priced yet",
    "mllama_text_model": "its cross-attention layers cannot be priced yet",
    "modernbert-decoder": "its head with a projection of its own cannot be priced yet",
    "moshi": "its decoder of audio in depth cannot be priced",
    "mvp": _BOTH,
    "nanochat": "its norms without weights cannot be priced yet",
    "openai-gpt": "its norms behind attention and MLP, without one at the end, cannot be priced yet",
    "pegasus": _BOTH,
    "plbart": _BOTH,
    "prophetnet": _BOTH,
    "recurrent_gemma": _HYBRID,
    "rembert": _ENCODER,
    "roberta": _ENCODER,
    "roberta-prelayernorm": _ENCODER,
    "roc_bert": _ENCODER,
    "roformer": _ENCODER,
    "rwkv": _HYBRID,
    "t5": _BOTH,
    "trocr": _BOTH,
    "whisper": _BOTH,
    "xglm": "its biases beside positions of sines cannot be priced yet",
    "xlm": _ENCODER,
    "xlm-roberta": _ENCODER,
    "xlm-roberta-xl": _ENCODER,
    "xlnet": _ENCODER,
    "xlstm": _HYBRID,
    "xmod": _ENCODER,
    "zamba": "its block that several layers share cannot be priced yet",
    "zamba2": "its blocks that several layers share cannot be priced yet",
    "zaya": "its convolutional attention and its routers of several layers cannot be priced yet",
}


_COUNTS = re.compile(r"^(num|n)_(?!expert_group)|_(size|dim|layers|heads|rank|interval|period|offset|step)$")
"""Names of keys that count something."""
_NO_LISTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "hidden_size", "vocab_size")
_AUTO = ("mamba_dt_rank",)
"""Counts that a file may leave to a rule."""
_LISTS = (
    "mlp_only_layers",
    "layer_types",
    "layers_block_type",
    "no_rope_layers",
    "mlp_layer_types",
    "full_attn_idxs",
)


class Keys:
    """A config that notes which of its keys were looked at, and which defaults of its class it took.

    Parameters
    ----------
    raw : mapping
        The file.
    origin : str
        Its name, for errors.
    defaults : mapping, optional
        What the class fills in where the file leaves a key out.
    """

    def __init__(
        self, raw: Mapping[str, Any], origin: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.raw, self.origin, self.defaults = raw, origin, defaults or {}
        self.used: set[str] = set()
        self.defaulted: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first key that is present and not null, else the default."""
        self.used.update(names)
        for name in names:
            if self.raw.get(name) is not None:
                return self._checked(name, self.raw[name])
        for name in names:
            if self.defaults.get(name) is not None and name not in self.raw:
                self.defaulted.add(name)
                return self.defaults[name]
        return default

    def _checked(self, name: str, value: Any) -> Any:
        """Return a value whose kind is what the key's name says."""
        if name in _LISTS and not isinstance(value, list):
            raise self.refuse(f"{name}: expected a list, got {shown(value)}")
        if name in _LISTS and (strange := [each for each in value if not isinstance(each, (int, str))]):
            raise self.refuse(f"{name}: expected names or numbers, got {shown(strange[0])} among them")
        if name == "model_type" and not isinstance(value, str):
            raise self.refuse(f"model_type: expected a name, got {shown(value)}")
        if name in _NO_LISTS and isinstance(value, (list, dict)):
            raise self.refuse(f"{name}: expected a whole number, got {shown(value)}")
        if not _COUNTS.search(name) or "adjust" in name or "_all_" in name or isinstance(value, (list, dict)):
            return value
        if value == "auto" and name in _AUTO:
            return value
        most = MOST_LAYERS if name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers") else MOST
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self.refuse(f"{name}: expected a whole number from 0 to {most:,}, got {shown(value)}")
        return value

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
