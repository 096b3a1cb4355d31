"""One decode step, and the prefill of prompts, as bills: named lines of seconds whose sum is the step.

All numbers may be arrays that broadcast together: a dimension of splits, batches, contexts. `batch` is the sequences
that run together in one replica (of ``split.gpus`` GPUs), over all its attention groups (``dp``) and micro-batches of
its pipeline (``pp``); `context` the tokens of each so far, on average. A replica yields ``batch / step`` tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import Axis, Bill, Category, TimeLine, repeated, sum_exposed, time_line
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.generation.deployment import Deployment, Split
from costmodel.generation.memory import STATE_BYTES, layer_weights, weight_element_bytes
from costmodel.physics.kernels.roofline import MatmulConstants, attention_time
from costmodel.physics.network.expert_dispatch import DISPATCH_LATENCY_S, moe_exchange_time
from costmodel.physics.network.fabric import GroupCost
from costmodel.physics.network.nccl import collective_time
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step.anatomy.kv_cache import attended, attention_flops, cached_layers, state_elements
from costmodel.step.anatomy.params import attended_tokens

Array = NDArray[np.float64]

_POPE = (
    "R. Pope et al., arXiv:2211.05102, section 2: the larger of weights read and products, joined smoothly"
)
_LINEAR = (
    "held = weights / shards + replicated; read_bytes = weight_bytes * held; "
    "math_s = 2 * tokens * held / (peak_fraction * peak_flops_per_s); "
    "memory_s = read_bytes * passes / (memory_fraction * hbm_bytes_per_s); cbrt(math_s ** 3 + memory_s ** 3)"
)
_EXPERTS = (
    "touched = 1 - (1 - top_k / experts) ** tokens; "
    "busiest_touched = min(touched + deviations * sqrt(touched * (1 - touched) * ep / experts), 1); "
    "rank_tokens = tokens * top_k / ep; busiest = 1 + deviations / sqrt(max(rank_tokens, 1)); "
    "held = weights / shards; read_bytes = weight_bytes * busiest_touched * held; "
    "math_s = 2 * busiest * tokens * top_k / experts * held / (rate * peak_fraction * peak_flops_per_s); "
    "memory_s = read_bytes * passes / (memory_fraction * hbm_bytes_per_s); cbrt(math_s ** 3 + memory_s ** 3)"
)
_CACHE = (
    "memory_s = sequences * read_bytes / (memory_fraction * hbm_bytes_per_s); "
    "math_s = sequences * attention_flops / (tp * peak_fraction * peak_flops_per_s); "
    "cbrt(math_s ** 3 + memory_s ** 3)"
)
_ACTIVATIONS = "2 * tokens * (6 * hidden + 6 * inner / tp) / (memory_fraction * hbm_bytes_per_s)"
_DECODE_ATTENTION_PEAK_FRACTION = 0.5
"""Share of the 16-bit peak that kernels of decoded attention reach where MLA's latent makes them compute. Assumed. [-]"""
_CONVERSION_RATE = 0.5
"""Rate of the experts' products where the chip has no units for their format and converts it on the way. Assumed. [-]"""
_ONE_PASS: Array = np.asarray(1.0)
_KERNELS = {"attention": 6.0, "mla": 10.0, "mixer": 8.0, "mlp": 4.0, "experts": 10.0}
"""Kernels of a layer's parts, norms included: an engine's fused ones, as the decoder layers of vLLM launch them
(model_executor/models/llama.py, layers/fused_moe/fused_moe.py); `mla`, `mixer` roughly. Their time in a graph is fitted. [-]"""
_LAUNCH_S = 41e-6
"""Host time of each of them without graphs: the median of four published eager decode steps over the kernels counted here
(sgl-project/sglang#1401: 29 us of Llama 3 8B and 39 of DeepSeek-V2-Lite; vllm-project/vllm#45709: 44 of Qwen3-30B-A3B;
vllm-project/vllm-omni#7960: 79 of Qwen2.5-7B). Layers of as many calls in eager PyTorch 2.11 take 38 on an H200's host. [s]"""


def decode_step(
    served: Deployment,
    split: Split,
    batch: ArrayLike,
    context: ArrayLike,
    *,
    prompt: ArrayLike = 0.0,
    response: ArrayLike = np.inf,
) -> Bill:
    """Price the step in which each sequence of a batch gets its next token: the sum of its lines is the inter-token latency.

    `batch` sequences run together in a replica, `context` tokens each so far, the prompt included, on average. With
    lengths of prompts and answers the batch is continuous: each step includes the prefill of ``batch / response``
    prompts; without them it only decodes. A pipeline decodes `pp` micro-batches in turn: a token passes all stages, each
    at ``batch / pp`` sequences. Tokens choose experts at random.

    With speculative decoding a step verifies the draft's tokens beside the next one, in one forward pass that reads the
    cache once, after the draft's own passes of one token a sequence; its time is that of `acceptance_length` tokens.
    """
    running = np.asarray(batch, dtype=np.float64)
    group_sequences = np.maximum(running / (split.pp * split.dp), np.minimum(running, 1.0))
    speculation = served.speculation
    lines = _forward(
        served, split, "decode", running, context, 1.0 + (speculation.tokens if speculation else 0)
    )
    answer_steps = np.asarray(response, dtype=np.float64)
    if speculation:
        # The last stage drafts, for one micro-batch after the other.
        last = split._replace(pp=1.0)
        drafted = _forward(speculation.draft, last, "draft", running / split.pp, context, 1.0)
        drafted.append(_kernels_line(speculation.draft, drafted, "draft", _ONE_PASS))
        lines += repeated(drafted, speculation.tokens * np.asarray(split.pp))
        answer_steps = answer_steps / speculation.acceptance_length
    if np.any(np.isfinite(answer_steps)) and np.any(np.asarray(prompt) > 0.0):
        prompt_s = prefill_step(served, split, 1.0, prompt, host=False).step_time_s()
        lines.append(
            _compute_line(
                "decode.prefill",
                "math",
                formula="sequences / response * prompt_s",
                terms={"sequences": group_sequences, "response": answer_steps, "prompt_s": prompt_s},
                source="every sequence that ends makes room for a prompt, whose prefill the others wait for",
            )
        )
    # Attention groups of one node share the host process that admits sequences and streams tokens.
    groups = np.minimum(split.dp, np.maximum(served.cluster.gpus_per_node / split.tp, 1.0))
    lines += _kernels_and_host(served, lines, running / split.dp * groups)
    if speculation:
        lines = repeated(lines, np.asarray(1.0 / speculation.acceptance_length))
    return Bill(tuple(lines), ())


def _forward(
    served: Deployment, split: Split, when: str, running: Array, context: ArrayLike, queries: float
) -> list[TimeLine]:
    """Return what a forward pass over some tokens of each running sequence takes on the GPUs."""
    sequences = np.maximum(running / (split.pp * split.dp), np.minimum(running, 1.0))
    replica_tokens = queries * np.maximum(running / split.pp, np.minimum(running, 1.0))
    return [
        *_linear_lines(served, split, when, queries * sequences, replica_tokens, _ONE_PASS),
        _cache_line(served, split, when, sequences, context, queries),
        *_communication(served, split, when, queries * sequences, replica_tokens),
    ]


def prefill_step(
    served: Deployment, split: Split, prompts: ArrayLike, prompt: ArrayLike, *, host: bool = True
) -> Bill:
    """Price the forward pass over prompts, in chunks: the time to first token without queueing.

    Each attention group (of `tp` GPUs) runs `prompts` prompts of `prompt` tokens together; `host` adds the host's time
    of the steps.
    """
    count, length = np.asarray(prompts, dtype=np.float64), np.asarray(prompt, dtype=np.float64)
    tokens = count * length
    passes = np.maximum(np.ceil(tokens / served.chunk_tokens), 1.0)
    lines = [
        *_linear_lines(served, split, "prefill", tokens, tokens * split.dp, passes, sampled=count),
        *_prefill_attention(served, split, count, length),
        *_communication(served, split, "prefill", tokens, tokens * split.dp, passes),
    ]
    lines.append(
        _compute_line(
            "prefill.other",
            "overhead",
            formula="(prefill_factor - 1) * priced_s",
            terms={"prefill_factor": served.engine.prefill_factor, "priced_s": sum_exposed(lines)},
            source=f"{served.engine.name} on {served.engine.generation}: {served.engine.basis}",
        )
    )
    if host:
        lines += _kernels_and_host(served, lines, count, "prefill", passes)
    return Bill(tuple(lines), ())


def line_rows(lines: Iterable[TimeLine], **before: str) -> list[dict[str, Any]]:
    """Return the lines of a bill as rows of an answer's table."""
    return [
        {
            **before,
            "line": line.name,
            "axis": line.axis,
            "category": line.category,
            "count": float(line.count),
            "exposed_s": float(line.exposed_seconds),
            "formula": line.formula,
            "source": line.source,
        }
        for line in lines
    ]


def _compute_line(name: str, category: Category, *, count: ArrayLike = 1.0, **more: Any) -> TimeLine:
    """Return a compute line of a forward pass."""
    return time_line(name, axis="compute", category=category, phase="forward", count=count, **more)


def _message_line(name: str, axis: Axis, count: ArrayLike, cost: GroupCost, **more: Any) -> TimeLine:
    """Return a communication line over the groups of an axis."""
    return time_line(
        name,
        axis=axis,
        category="communication",
        phase="forward",
        group=axis,
        count=count,
        bytes_each=cost.wire_bytes,
        tier=cost.tier,
        **more,
    )


def _linear_lines(
    served: Deployment,
    split: Split,
    when: str,
    group_tokens: Array,
    replica_tokens: Array,
    passes: Array,
    sampled: Array | None = None,
) -> Iterable[TimeLine]:
    """Yield the GEMMs with weights (attention, MLPs, experts, head), and the line of activations."""
    model = served.model
    accelerator = served.cluster.accelerator
    kernels = served.kernels

    def line(name: str, formula: str, dtype: str, constants: MatmulConstants, **terms: ArrayLike) -> TimeLine:
        terms |= {
            "passes": passes,
            "peak_fraction": constants.peak_fraction * (1.0 - constants.sustained_loss),
            "peak_flops_per_s": accelerator.peak_flops_per_s[PEAK_KEY[dtype]],
            "memory_fraction": constants.memory_fraction,
            "hbm_bytes_per_s": accelerator.memory_bandwidth_bytes_per_s,
        }
        category: Category = "math" if when == "prefill" else "hbm"
        return _compute_line(f"{when}.{name}", category, formula=formula, terms=terms, source=_POPE)

    for part in layer_weights(model):
        element = weight_element_bytes(served, part.name)
        # Quantised layers multiply in 16 bits where the chip has no units for the format.
        dtype = served.weights.matmul_dtype if element != 2.0 and served.has_units else "bf16"
        if part.name == "experts":
            native = served.has_units or element == 2.0
            yield line(
                part.name,
                _EXPERTS,
                dtype,
                kernels.grouped_matmul[dtype],
                tokens=replica_tokens,
                weights=part.split,
                shards=split.tp * split.dp,
                weight_bytes=element,
                top_k=float(model.top_k),
                experts=float(model.num_experts),
                ep=split.ep,
                deviations=expected_maximum_normal(split.ep),
                rate=1.0 if native else _CONVERSION_RATE,
            )
        else:
            yield line(
                part.name,
                _LINEAR,
                dtype,
                kernels.matmul[dtype],
                tokens=group_tokens,
                weights=part.split,
                replicated=part.whole,
                shards=split.tp,
                weight_bytes=element,
            )
    yield _activations(served, split, when, group_tokens)
    yield line(
        "head",
        _LINEAR,
        "bf16",
        kernels.matmul["bf16"],
        tokens=group_tokens if sampled is None else sampled,
        weights=float(model.vocab_size) * model.hidden_size,
        replicated=0.0,
        shards=split.tp,
        weight_bytes=2.0,
    )


def _hbm_terms(served: Deployment) -> dict[str, float]:
    """Return the terms of the HBM traffic of memory-bound kernels."""
    return {
        "memory_fraction": served.kernels.memory.bandwidth_fraction,
        "hbm_bytes_per_s": served.cluster.accelerator.memory_bandwidth_bytes_per_s,
    }


def _activations(served: Deployment, split: Split, when: str, tokens: Array) -> TimeLine:
    """Return HBM traffic besides weights and cache: hidden states through every kernel, and inner widths of MLPs."""
    model = served.model
    hidden_widths, inner_widths = 0.0, 0.0
    for number, kind in enumerate(model.layer_kinds()):
        count, kind_dims = model.kind_of_layer.count(number), model.seen_by(kind)
        hidden_widths += count * model.hidden_size * (2.0 if kind.has_mlp else 1.0)
        if kind.is_moe:
            inner_widths += count * (model.top_k * model.expert_ffn_size + model.shared_expert_ffn_size)
            hidden_widths += count * model.hidden_size * model.top_k
        elif kind.has_mlp:
            inner_widths += count * kind_dims.ffn_size
        if kind.attends:
            inner_widths += count * kind_dims.num_heads * kind_dims.head_dim
    return _compute_line(
        f"{when}.activations",
        "hbm",
        formula=_ACTIVATIONS,
        terms={
            "tokens": tokens,
            "hidden": hidden_widths,
            "inner": inner_widths,
            "tp": split.tp,
            **_hbm_terms(served),
        },
        source="16-bit inputs and outputs of every kernel; elements of a token summed over layers",
    )


def _cache_line(
    served: Deployment, split: Split, when: str, sequences: Array, context: ArrayLike, queries: float
) -> TimeLine:
    """Return the time to read the KV cache of every sequence and attend to it."""
    tokens = np.asarray(context, dtype=np.float64)
    read_bytes = 2.0 * state_elements(served.model, tokens) * STATE_BYTES / split.tp
    for cache in cached_layers(served.model):
        attended_elements = cache.layers * cache.elements * attended(tokens, cache.reach)
        read_bytes = read_bytes + served.cache_bytes * attended_elements / np.minimum(split.tp, cache.heads)
    terms = {
        "sequences": sequences,
        "read_bytes": read_bytes,
        "attention_flops": queries * attention_flops(served.model, tokens),
        "tp": split.tp,
        "peak_fraction": _DECODE_ATTENTION_PEAK_FRACTION,
        "peak_flops_per_s": served.cluster.accelerator.peak_flops_per_s["bf16"],
        **_hbm_terms(served),
    }
    source = "keys and values of every sequence once a step; states of other mixers read and written"
    return _compute_line(f"{when}.kv_cache", "hbm", formula=_CACHE, terms=terms, source=source)


def _prefill_attention(served: Deployment, split: Split, prompts: Array, prompt: Array) -> Iterable[TimeLine]:
    """Yield attention over the prompts themselves, by kind of layer; MLA decompresses its latent first."""
    accelerator = served.cluster.accelerator
    constants_of = served.kernels.attention
    model = served.model
    for number, kind in enumerate(model.layer_kinds()):
        if not kind.attends:
            continue
        kind_dims = model.seen_by(kind)
        time = attention_time(
            prompts,
            prompt,
            prompt,
            kind_dims.num_heads / split.tp,
            kv_heads=np.maximum(kind_dims.num_kv_heads / split.tp, 1.0),
            qk_head_dim=float(kind_dims.head_dim),
            v_head_dim=float(kind_dims.v_head_dim),
            causal=True,
            backward=False,
            constants=constants_of.get(accelerator.software.attention) or next(iter(constants_of.values())),
            peak_flops_per_s=accelerator.peak_flops_per_s["bf16"],
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            keys_per_query=attended_tokens(prompt, kind.reach, causal=True) if kind.reach else None,
            windowed=bool(kind.window),
        )
        yield _compute_line(
            f"prefill.attention_core.{kind.name}",
            "math",
            count=model.kind_of_layer.count(number),
            made=time,
            source="costmodel.physics.kernels.roofline.attention_time, as in training",
        )


_OWN_ALL_REDUCE = (
    "own_s = all_reduce_s + 2 * (members - 1) / members * summed_bytes / bytes_per_s; "
    "where(members > 1, where(inside, min(own_s, library_s), library_s), 0)"
)


def _communication(
    served: Deployment,
    split: Split,
    when: str,
    group_tokens: Array,
    replica_tokens: Array,
    passes: Array = _ONE_PASS,
) -> Iterable[TimeLine]:
    """Yield communication: all-reduce over tp, expert exchange under data-parallel attention, sends between stages."""
    model, tiers, mesh = served.model, served.tiers(split), served.mesh(split)
    moe = sum(model.layer_kinds()[kind].is_moe for kind in model.kind_of_layer)
    hidden, parts = 2.0 * model.hidden_size, {part.name: part.layers for part in layer_weights(model)}
    if np.any(split.tp > 1.0):
        # With one attention group experts' outputs are all-reduced as an MLP's; with several the combine returns them.
        mlps = parts.get("mlp", 0) if not moe else model.num_layers - moe + moe * (split.dp <= 1.0)
        summed = group_tokens * hidden / passes
        cost = collective_time("all_reduce", summed, mesh.tp, tiers)
        # Engines have their own kernel within a node, or an NVLink domain of several, and call NCCL beyond it.
        made = cost.made.then(
            "library_s",
            _OWN_ALL_REDUCE,
            all_reduce_s=served.engine.all_reduce_s,
            members=mesh.tp.ranks,
            summed_bytes=summed,
            bytes_per_s=tiers[0].achieved_bandwidth_bytes_per_s,
            inside=(np.asarray(mesh.tp.members[0]) >= mesh.tp.ranks)
            & (mesh.tp.ranks <= max(served.engine.all_reduce_gpus, served.cluster.gpus_per_node)),
        )
        source = "engines' own all-reduce over peer memory (vLLM custom_all_reduce, TensorRT-LLM AllReduce), or NCCL's"
        count = (parts.get("attention", 0) + mlps) * passes
        yield _message_line(f"{when}.tp.all_reduce", "tp", count, cost, made=made, source=source)
    if np.any(split.dp > 1.0) and moe:
        for name, element in (("dispatch", served.weights.weight_bytes), ("combine", 2.0)):
            cost = moe_exchange_time(
                replica_tokens / (split.tp * split.dp * passes),
                min(max(element, 1.0), 2.0) * model.hidden_size,
                float(model.top_k),
                mesh.ep,
                tiers,
                deduplicate=False,
            )
            made = cost.made.then(
                "kernel_s",
                "where(spread_over > 1, max(kernel_s - kernel_start_s, 0) + exchange_s, 0)",
                spread_over=mesh.ep.ranks,
                kernel_start_s=DISPATCH_LATENCY_S,
                exchange_s=served.engine.exchange_s,
            )
            count = np.where(split.dp > 1.0, moe, 0) * passes
            source = "tokens to their experts and back, one copy an expert (DeepEP's low-latency kernels)"
            yield _message_line(f"{when}.ep.{name}", "ep", count, cost, made=made, source=source)
    if np.any(split.pp > 1.0):
        cost = collective_time("send_recv", group_tokens * hidden / (split.tp * passes), mesh.pp, tiers)
        source = "hidden states from stage to stage"
        yield _message_line(
            f"{when}.pp.send", "pp", (split.pp - 1.0) * passes, cost, made=cost.made, source=source
        )


def kernels_of(served: Deployment) -> float:
    """Return the kernels of a forward pass over all layers and the head. [-]"""
    model = served.model
    count = 4.0 + served.weights.kernels * model.num_layers * served.has_units
    for number, kind in enumerate(model.layer_kinds()):
        parts = [
            ("mla" if model.attention == "mla" else "attention") if kind.attends else "",
            "mixer" if kind.mixer is not None else "",
            ("experts" if kind.is_moe else "mlp") if kind.has_mlp else "",
            "mlp" if kind.is_moe and model.shared_expert_ffn_size else "",
        ]
        count += model.kind_of_layer.count(number) * sum(_KERNELS[part] for part in parts if part)
    return count


def _kernels_line(served: Deployment, before: list[TimeLine], when: str, passes: Array) -> TimeLine:
    """Return the start and drain of kernels, or what launching them from the host takes beyond the GPU's time."""
    terms: dict[str, ArrayLike] = {"kernels": kernels_of(served), "kernel_s": served.engine.kernel_s}
    formula = "kernels * kernel_s"
    if not served.cuda_graphs:
        formula = "max(kernels * kernel_s, kernels * launch_s - gpu_s)"
        terms |= {
            "launch_s": _LAUNCH_S * served.cluster.accelerator.host_slowdown,
            "gpu_s": sum_exposed(before) / passes,
        }
    source = "kernels start and drain one after the other; without graphs the host issues each"
    return _overhead_line(f"{when}.kernels", passes, formula, terms, source)


def _overhead_line(
    name: str, count: ArrayLike, formula: str, terms: dict[str, ArrayLike], source: str
) -> TimeLine:
    return _compute_line(
        name, "overhead", count=count, cause="host", formula=formula, terms=terms, source=source
    )


def _kernels_and_host(
    served: Deployment,
    before: list[TimeLine],
    sequences: Array,
    when: str = "decode",
    passes: Array = _ONE_PASS,
) -> list[TimeLine]:
    """Return overheads that neither FLOPs nor bytes explain: kernel launches, and the host between steps."""
    engine = served.engine
    fitted = f"{engine.name} on {engine.generation}: {engine.basis}"
    kernels = _kernels_line(served, before, when, passes)
    each: dict[str, ArrayLike] = {"sequences": sequences, "sequence_s": engine.sequence_s}
    every = "sequences * sequence_s"
    if engine.overlaps:
        every = "max(sequences * sequence_s - gpu_s, 0)"
        each |= {"gpu_s": sum_exposed([*before, kernels])}
    return [
        kernels,
        _overhead_line(f"{when}.host.step", passes, "step_s", {"step_s": engine.step_s}, fitted),
        _overhead_line(f"{when}.host.sequences", 1.0, every, each, fitted),
    ]
