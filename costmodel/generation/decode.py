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

from costmodel.bill.lines import Axis, Bill, Category, TimeLine, sum_exposed, time_line
from costmodel.bill.quantity import quantity
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
_DECODED_ATTENTION_SHARE = 0.5
"""Share of the 16-bit peak that kernels of decoded attention reach where MLA's latent makes them compute. Assumed. [-]"""
_CONVERTED = 0.5
"""Rate of the experts' products where the chip has no units for their format and converts it on the way. Assumed. [-]"""
_ONCE: Array = np.asarray(1.0)
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
    tokens of prompts and answers sequences come and go, and a step bears the prefill of ``batch / response`` prompts;
    without them the batch only decodes. A pipeline decodes `pp` micro-batches in turn: a token passes all stages, each
    at ``batch / pp`` sequences. Experts are visited at random.
    """
    running = np.asarray(batch, dtype=np.float64)
    of_group = np.maximum(running / (split.pp * split.dp), np.minimum(running, 1.0))
    of_replica = np.maximum(running / split.pp, np.minimum(running, 1.0))
    lines = [
        *_linear_lines(served, split, "decode", of_group, of_replica, _ONCE),
        _cache_line(served, split, of_group, context),
        *_communication(served, split, "decode", of_group, of_replica),
    ]
    rate = np.asarray(response, dtype=np.float64)
    if np.any(np.isfinite(rate)) and np.any(np.asarray(prompt) > 0.0):
        one = prefill_step(served, split, 1.0, prompt, host=False).step_time_s()
        lines.append(
            _line(
                "decode.prefill",
                "math",
                formula="sequences / response * prompt_s",
                terms={"sequences": of_group, "response": rate, "prompt_s": one},
                source="every sequence that ends makes room for a prompt, whose prefill the others wait for",
            )
        )
    # The groups that attend apart on one node share the process that takes sequences in and streams tokens out.
    groups = np.minimum(split.dp, np.maximum(served.cluster.gpus_per_node / split.tp, 1.0))
    lines += _kernels_and_host(served, lines, running / split.dp * groups)
    return Bill(tuple(lines), ())


def prefill_step(
    served: Deployment, split: Split, prompts: ArrayLike, prompt: ArrayLike, *, host: bool = True
) -> Bill:
    """Price the forward pass over prompts, in chunks: the time to the first token where nobody waits.

    Each attention group (of `tp` GPUs) takes so many `prompts` together, of `prompt` tokens each; `host` with the host's
    time of the steps.
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
        _line(
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
    """Return a row a line of a bill, as answers show it."""
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


def _line(name: str, category: Category, *, count: ArrayLike = 1.0, **more: Any) -> TimeLine:
    """Return a line of a forward pass that computes."""
    return time_line(name, axis="compute", category=category, phase="forward", count=count, **more)


def _message(name: str, axis: Axis, count: ArrayLike, cost: GroupCost, **more: Any) -> TimeLine:
    """Return a line of messages over the groups of an axis."""
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
    of_group: Array,
    of_replica: Array,
    passes: Array,
    sampled: Array | None = None,
) -> Iterable[TimeLine]:
    """Yield the products with weights: attention's, MLPs, experts, head; and what moves beside them."""
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
        category: Category = "hbm" if when == "decode" else "math"
        return _line(f"{when}.{name}", category, formula=formula, terms=terms, source=_POPE)

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
                tokens=of_replica,
                weights=part.split,
                shards=split.tp * split.dp,
                weight_bytes=element,
                top_k=float(model.top_k),
                experts=float(model.num_experts),
                ep=split.ep,
                deviations=expected_maximum_normal(split.ep),
                rate=1.0 if native else _CONVERTED,
            )
        else:
            yield line(
                part.name,
                _LINEAR,
                dtype,
                kernels.matmul[dtype],
                tokens=of_group,
                weights=part.split,
                replicated=part.whole,
                shards=split.tp,
                weight_bytes=element,
            )
    yield _activations(served, split, when, of_group)
    yield line(
        "head",
        _LINEAR,
        "bf16",
        kernels.matmul["bf16"],
        tokens=of_group if sampled is None else sampled,
        weights=float(model.vocab_size) * model.hidden_size,
        replicated=0.0,
        shards=split.tp,
        weight_bytes=2.0,
    )


def _hbm(served: Deployment) -> dict[str, float]:
    """Return the terms of traffic to memory by kernels that compute little."""
    return {
        "memory_fraction": served.kernels.memory.bandwidth_fraction,
        "hbm_bytes_per_s": served.cluster.accelerator.memory_bandwidth_bytes_per_s,
    }


def _activations(served: Deployment, split: Split, when: str, tokens: Array) -> TimeLine:
    """Return what moves beside weights and cache: the hidden state through every kernel, and MLPs' inner widths."""
    model = served.model
    whole, inner = 0.0, 0.0
    for number, kind in enumerate(model.layer_kinds()):
        count, seen = model.kind_of_layer.count(number), model.seen_by(kind)
        whole += count * model.hidden_size * (2.0 if kind.has_mlp else 1.0)
        if kind.is_moe:
            inner += count * (model.top_k * model.expert_ffn_size + model.shared_expert_ffn_size)
            whole += count * model.hidden_size * model.top_k
        elif kind.has_mlp:
            inner += count * seen.ffn_size
        if kind.attends:
            inner += count * seen.num_heads * seen.head_dim
    return _line(
        f"{when}.activations",
        "hbm",
        formula=_ACTIVATIONS,
        terms={"tokens": tokens, "hidden": whole, "inner": inner, "tp": split.tp, **_hbm(served)},
        source="16-bit inputs and outputs of every kernel; elements of a token summed over layers",
    )


def _cache_line(served: Deployment, split: Split, sequences: Array, context: ArrayLike) -> TimeLine:
    """Return what reading the cache of every sequence, and attending to it, takes."""
    tokens = np.asarray(context, dtype=np.float64)
    read = 2.0 * state_elements(served.model, tokens) * STATE_BYTES / split.tp
    for each in cached_layers(served.model):
        met = each.layers * each.elements * attended(tokens, each.reach)
        read = read + served.cache_bytes * met / np.minimum(split.tp, each.heads)
    terms = {
        "sequences": sequences,
        "read_bytes": read,
        "attention_flops": attention_flops(served.model, tokens),
        "tp": split.tp,
        "peak_fraction": _DECODED_ATTENTION_SHARE,
        "peak_flops_per_s": served.cluster.accelerator.peak_flops_per_s["bf16"],
        **_hbm(served),
    }
    source = "keys and values of every sequence once a step; states of other mixers read and written"
    return _line("decode.kv_cache", "hbm", formula=_CACHE, terms=terms, source=source)


def _prefill_attention(served: Deployment, split: Split, prompts: Array, prompt: Array) -> Iterable[TimeLine]:
    """Yield attention over the prompts themselves, by kind of layer; MLA unpacks its latent for it."""
    accelerator = served.cluster.accelerator
    known = served.kernels.attention
    model = served.model
    for number, kind in enumerate(model.layer_kinds()):
        if not kind.attends:
            continue
        seen = model.seen_by(kind)
        made = attention_time(
            prompts,
            prompt,
            prompt,
            seen.num_heads / split.tp,
            kv_heads=np.maximum(seen.num_kv_heads / split.tp, 1.0),
            qk_head_dim=float(seen.head_dim),
            v_head_dim=float(seen.v_head_dim),
            causal=True,
            backward=False,
            constants=known.get(accelerator.software.attention) or next(iter(known.values())),
            peak_flops_per_s=accelerator.peak_flops_per_s["bf16"],
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            keys_per_query=attended_tokens(prompt, kind.reach, causal=True) if kind.reach else None,
            windowed=bool(kind.window),
        )
        yield _line(
            f"prefill.attention_core.{kind.name}",
            "math",
            count=model.kind_of_layer.count(number),
            made=made,
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
    of_group: Array,
    of_replica: Array,
    passes: Array = _ONCE,
) -> Iterable[TimeLine]:
    """Yield what ranks send: sums over tp, tokens to experts and back where groups attend apart, stage to stage."""
    model, tiers, mesh = served.model, served.tiers(split), served.mesh(split)
    moe = sum(model.layer_kinds()[kind].is_moe for kind in model.kind_of_layer)
    hidden, parts = 2.0 * model.hidden_size, {part.name: part.layers for part in layer_weights(model)}
    if np.any(split.tp > 1.0):
        # With one attention group the experts' outputs are summed as an MLP's are; apart they come back by the exchange.
        mlps = parts.get("mlp", 0) if not moe else model.num_layers - moe + moe * (split.dp <= 1.0)
        summed = of_group * hidden / passes
        cost = collective_time("all_reduce", summed, mesh.tp, tiers)
        # By the engine's own kernel in the innermost domain, else by the library.
        made = cost.made.then(
            "library_s",
            _OWN_ALL_REDUCE,
            all_reduce_s=served.engine.all_reduce_s,
            members=mesh.tp.ranks,
            summed_bytes=summed,
            bytes_per_s=tiers[0].achieved_bandwidth_bytes_per_s,
            inside=np.asarray(mesh.tp.members[0]) >= mesh.tp.ranks,
        )
        source = "engines' own all-reduce over peer memory (vLLM custom_all_reduce, TensorRT-LLM AllReduce), or NCCL's"
        count = (parts.get("attention", 0) + mlps) * passes
        yield _message(f"{when}.tp.all_reduce", "tp", count, cost, made=made, source=source)
    if np.any(split.dp > 1.0) and moe:
        for name, element in (("dispatch", served.weights.weight_bytes), ("combine", 2.0)):
            cost = moe_exchange_time(
                of_replica / (split.tp * split.dp * passes),
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
            yield _message(f"{when}.ep.{name}", "ep", count, cost, made=made, source=source)
    if np.any(split.pp > 1.0):
        cost = collective_time("send_recv", of_group * hidden / (split.tp * passes), mesh.pp, tiers)
        source = "hidden states from stage to stage"
        yield _message(
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


def _kernels_and_host(
    served: Deployment,
    before: list[TimeLine],
    sequences: Array,
    when: str = "decode",
    passes: Array = _ONCE,
) -> Iterable[TimeLine]:
    """Yield what no byte or product explains: starts of kernels, and the host between steps."""
    engine = served.engine
    kernels: dict[str, ArrayLike] = {"kernels": kernels_of(served), "kernel_s": engine.kernel_s}
    formula = "kernels * kernel_s"
    if not served.cuda_graphs:
        formula = "max(kernels * kernel_s, kernels * launch_s - gpu_s)"
        kernels |= {
            "launch_s": _LAUNCH_S * served.cluster.accelerator.host_slowdown,
            "gpu_s": sum_exposed(before) / passes,
        }
    one_by_one = "kernels start and drain one after the other; without graphs the host issues each"
    fitted = f"{engine.name} on {engine.generation}: {engine.basis}"
    step = {"step_s": engine.step_s}
    each = {"sequences": sequences, "sequence_s": engine.sequence_s}
    every = "sequences * sequence_s"
    if engine.overlaps:
        every = "max(sequences * sequence_s - gpu_s - passes * starts_s, 0)"
        starts_s = quantity(formula, **kernels).value
        each |= {"gpu_s": sum_exposed(before), "passes": passes, "starts_s": starts_s}
    rows: tuple[tuple[str, ArrayLike, str, Any, str], ...] = (
        ("kernels", passes, formula, kernels, one_by_one),
        ("host.step", passes, "step_s", step, fitted),
        ("host.sequences", 1.0, every, each, fitted),
    )
    for name, count, text, terms, source in rows:
        yield _line(
            f"{when}.{name}",
            "overhead",
            count=count,
            cause="host",
            formula=text,
            terms=terms,
            source=source,
        )
