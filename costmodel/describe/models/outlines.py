"""The shape and the parameter count of HuggingFace models that cannot be priced yet.

An outline says what a config describes, so that a reader of it knows the size, and why no bill is written.
Counts are those of transformers 5.23 (sums of ``named_parameters`` of the causal model of each type);
`tests/unit/test_outlines.py` holds them for a tiny config of every type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.huggingface_keys import Keys, shapes_nothing
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.outline_hybrids import HYBRIDS
from costmodel.describe.models.outline_parts import Counted
from costmodel.describe.models.outline_recent import RECENT
from costmodel.describe.models.outline_sparse import SPARSE
from costmodel.describe.models.outline_stacks import STACKS
from costmodel.describe.models.outline_text import TEXT

# Keys that change how such a model runs or starts, and none of its sizes.
_RUNNING_KEYS = """
    attention_in_multiplier attention_out_multiplier attention_type autocast_kernel_dtype aux_loss_coef attn_type
    block_size chunk_size chunkwise_kernel clamp_len compress_rope_theta decoder_start_token_id embed_init_std
    embedding_scale end_n_top eps expert_dtype ff_activation forced_eos_token_id full_attn_alpha_factor
    full_attn_beta_factor gate_soft_cap gelu_activation hc_eps hc_sinkhorn_iters index_topk indexer_rope_interleave
    inference_state_dtype is_encoder key_multiplier linear_a_log_max linear_a_log_min linear_allow_neg_eigval
    linear_attn_alpha_factor linear_attn_beta_factor linear_dt_init_floor linear_dt_max linear_dt_min
    lm_head_multiplier mamba_hidden_act mamba_norm_before_gate mamba_ssm_cache_dtype mask_index
    max_inference_chunksize mem_len mixer_rms_eps mlp_alpha_factor mlp_beta_factor mlp_hidden_act mlp_multipliers
    mode moe_renormalize moe_shared_expert_overlap n_group norm_reduction_force_float32 num_expert_group
    num_experts_per_tok num_experts_per_token num_logits_to_keep num_random_blocks output_logit_soft_cap prefix_lm
    relative_max_distance rescale_prenorm_residual residual_in_fp32 return_last_states sep_token_id
    sequence_kernel share_encoder_decoder_embeddings sliding_window ssm_in_multiplier ssm_multipliers
    ssm_out_multiplier start_n_top step_kernel summary_last_dropout time_step_floor time_step_init_scheme
    time_step_limit time_step_max time_step_min time_step_rank time_step_scale topk_group unk_index
    use_associative_scan use_bidirectional_attention use_mamba_kernels use_mems_eval weight_mode
    """
_RUNNING = frozenset(_RUNNING_KEYS.split())
_PREDICTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers")

_COUNTS: Mapping[str, Callable[[Keys], Counted]] = {**HYBRIDS, **RECENT, **SPARSE, **STACKS, **TEXT}


class Outline(NamedTuple):
    """What is known of a model without a price."""

    shape: dict[str, Any]
    """Name, type, parameters, layers, widths."""
    ignored: tuple[str, ...]
    """Keys that were not read."""
    left_out: tuple[str, ...]
    """Sentences: towers and layers that are not counted."""


def outlined_types() -> tuple[str, ...]:
    """Return every type with an outline."""
    return tuple(sorted(_COUNTS))


def outline_of(raw: Mapping[str, Any], origin: str, name: str = "") -> Outline | None:
    """Return the outline of a config; None for a type without one.

    Raises
    ------
    ModelConfigError
        If a needed key is missing.
    """
    text = language_model(raw, origin)
    kind = str(text.raw.get("model_type"))
    if kind not in _COUNTS:
        return None
    keys = Keys(text.raw, origin, text.defaults)
    try:
        found = _COUNTS[kind](keys)
    except ModelConfigError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
        found = None
    if found is None or not isinstance(found.params, int) or found.params <= 0:
        raise ModelConfigError(
            f"{origin}: model_type {kind!r}: a size is no whole number above 0, or no list"
        )
    shape = {"name": name or kind, "model_type": kind, "num_params": found.params, **found.shape}
    shape["tied_embeddings"] = found.tied
    if found.layers:
        shape["layers"] = _runs(found.layers)
    predicting = [f"{key}: these layers are not counted" for key in _PREDICTING if keys.get(key)]
    unread = {key for key in keys.raw.keys() - keys.used - _RUNNING if not shapes_nothing(key)}
    left = sorted(key for key in unread if keys.raw[key] not in (None, False, []))
    return Outline(shape, tuple(left), (*text.left_out, *predicting))


def _runs(kinds: Sequence[str]) -> str:
    """Return a list of layer kinds in words: how many of each, and the order where it does not repeat often."""
    counts = {kind: sum(1 for other in kinds if other == kind) for kind in dict.fromkeys(kinds)}
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if len(runs) <= len(counts):
        return totals
    first = ", ".join(f"{count} {kind}" for kind, count in runs[:4])
    return f"{totals} (in order: {first}{', …' if len(runs) > 4 else ''})"
