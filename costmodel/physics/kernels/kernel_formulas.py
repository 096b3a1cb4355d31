"""The kernel models of `roofline` as text: each formula in named steps, with references to its numbers.

One function for each time function of `roofline`, with the same arguments, so that whoever prices a
kernel can hand its formula on. Parts that the constants of an accelerator switch off are left out of the
text. The numbers are only gathered when somebody reads them: a search that prices millions of layouts
pays for a reference. `costmodel.bill.formula` evaluates the texts, and tests hold them to `roofline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.physics.kernels.roofline import (
    SMALL_TILE,
    AttentionConstants,
    MatmulConstants,
    MemoryConstants,
)

Terms = Mapping[str, ArrayLike]


class KernelFormula(NamedTuple):
    """A formula in steps, and a function that returns the numbers of its names."""

    text: str
    terms: Callable[[], Terms]

    def then(self, name: str, expression: str, more: Terms) -> KernelFormula:
        """Call the result `name` and go on with `expression`, which may use it and the names of `more`."""
        return KernelFormula(
            f"{named_result(self.text, name)}; {expression}", lambda: {**self.terms(), **more}
        )


def named_result(text: str, name: str) -> str:
    """Give the unnamed result of a formula a name, so that steps can follow.

    >>> named_result("a = 2 * x; a + 1", "b")
    'a = 2 * x; b = a + 1'
    """
    steps = text.split("; ")
    return "; ".join([*steps[:-1], f"{name} = {steps[-1]}"])


def matmul_formula(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    groups: ArrayLike,
    constants: MatmulConstants,
    peak_flops_per_s: float,
    memory_bandwidth_bytes_per_s: float,
    input_bytes: ArrayLike,
    output_bytes: ArrayLike,
    accumulate: bool,
) -> KernelFormula:
    """Return the formula of `roofline.matmul_time_s` for the same arguments."""

    def terms() -> Terms:
        c = constants
        numbers: dict[str, ArrayLike] = {
            "m": m,
            "n": n,
            "k": k,
            "groups": groups,
            "peak_flops_per_s": peak_flops_per_s,
            "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
            "input_bytes": input_bytes,
            "output_bytes": output_bytes,
            "num_sms": c.num_sms,
            "fixed_s": c.fixed_s,
            "peak_fraction": c.peak_fraction,
            "memory_fraction": c.memory_fraction,
            "tile_m": c.tile_m,
            "tile_n": c.tile_n,
            "ramp_k": c.ramp_k,
        }
        for name in (
            "wave_fraction",
            "split_k",
            "small_tile_fraction",
            "epilogue_fraction",
            "sustained_loss",
            "fixed_per_group_s",
        ):
            if getattr(c, name):
                numbers[name] = getattr(c, name)
        if c.sustained_loss:
            numbers["sustained_flops"] = c.sustained_flops
        return numbers

    return KernelFormula(_matmul_text(constants, bool(accumulate)), terms)


@lru_cache(maxsize=512)
def _matmul_text(c: MatmulConstants, accumulate: bool) -> str:
    """Return the steps of a matrix product, without the parts that `c` switches off."""
    lost = "wave_fraction * min(1, split_k / k)" if c.split_k else "wave_fraction"

    def waves(prefix: str) -> str:
        whole = f"{prefix}tiles / num_sms"
        return f"{whole} + {lost} * (ceil({whole}) - {whole})" if c.wave_fraction else whole

    steps = ["tiles = ceil(m / tile_m) * ceil(n / tile_n) * groups", f"waves = {waves('')}"]
    area = "waves * num_sms * tile_m * tile_n"
    if c.small_tile_fraction:
        side = f"{SMALL_TILE:.0f}"
        steps += [
            f"small_tiles = ceil(m / {side}) * ceil(n / {side}) * groups",
            f"small_waves = {waves('small_')}",
        ]
        area = f"min({area}, small_waves * num_sms * {side} * {side} / small_tile_fraction)"
    steps += [f"padded_area = {area}", "flops = 2 * m * n * k * groups"]
    rate = "peak_fraction * peak_flops_per_s"
    if c.sustained_loss:
        rate += " * (1 - sustained_loss * flops / (flops + sustained_flops))"
    steps.append(f"math_s = 2 * padded_area * (k + ramp_k) / ({rate})")
    written = "2 * output_bytes * m * n * groups" if accumulate else "output_bytes * m * n * groups"
    steps += [
        f"written_bytes = {written}",
        "moved_bytes = input_bytes * (m + n) * k * groups + written_bytes",
        "memory_s = moved_bytes / (memory_fraction * hbm_bytes_per_s)",
    ]
    total = "fixed_s + cbrt(math_s ** 3 + memory_s ** 3)"
    if c.epilogue_fraction:
        total += " + epilogue_fraction * written_bytes / (memory_fraction * hbm_bytes_per_s)"
    if c.fixed_per_group_s:
        total += " + fixed_per_group_s * groups"
    return "; ".join([*steps, total])


def attention_formula(
    batch: ArrayLike,
    seq_q: ArrayLike,
    seq_kv: ArrayLike,
    heads: ArrayLike,
    *,
    kv_heads: ArrayLike,
    qk_head_dim: float,
    v_head_dim: float,
    causal: bool,
    backward: bool,
    constants: AttentionConstants,
    peak_flops_per_s: float,
    memory_bandwidth_bytes_per_s: float,
    keys_per_query: ArrayLike,
    element_bytes: float = 2.0,
) -> KernelFormula:
    """Return the formula of `roofline.attention_time_s` for the same arguments."""
    c = constants.backward if backward else constants.forward
    with_side = bool(c.side_bytes_per_element)
    with_waves = bool(c.wave_fraction)

    def terms() -> Terms:
        mean_dim = 0.5 * (float(qk_head_dim) + float(v_head_dim))
        numbers: dict[str, ArrayLike] = {
            "batch": batch,
            "seq_q": seq_q,
            "seq_kv": seq_kv,
            "heads": heads,
            "kv_heads": kv_heads,
            "qk_head_dim": qk_head_dim,
            "v_head_dim": v_head_dim,
            "keys_per_query": keys_per_query,
            "element_bytes": element_bytes,
            "peak_flops_per_s": peak_flops_per_s,
            "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
            "num_sms": c.num_sms,
            "fixed_s": c.fixed_s,
            "peak_fraction": float(np.interp(np.log(mean_dim), np.log(c.head_dims), c.peak_fractions)),
            "memory_fraction": c.memory_fraction,
            "ramp_seq": c.ramp_seq,
            "tile_rows": c.tile_rows,
        }
        if causal:
            numbers["causal_fraction"] = c.causal_fraction
        if with_waves:
            numbers["wave_fraction"] = c.wave_fraction
        if with_side:
            numbers["side_bytes_per_element"] = c.side_bytes_per_element
        return numbers

    return KernelFormula(_attention_text(backward, causal, with_waves, with_side), terms)


@lru_cache(maxsize=16)
def _attention_text(backward: bool, causal: bool, with_waves: bool, with_side: bool) -> str:
    """Return the steps of fused attention: two products a score forward, five backward."""
    products = "(3 * qk_head_dim + 2 * v_head_dim)" if backward else "(qk_head_dim + v_head_dim)"
    rows, moves = ("seq_kv", "2 * ") if backward else ("seq_q", "")
    waves = "per_sm + wave_fraction * (ceil(tiles / num_sms) - tiles / num_sms)" if with_waves else "per_sm"
    rate = "peak_fraction * causal_fraction" if causal else "peak_fraction"
    steps = [
        f"flops = 2 * batch * heads * seq_q * keys_per_query * {products}",
        "keys = max(keys_per_query, 1)",
        f"tiles = batch * heads * ceil({rows} / tile_rows)",
        "per_sm = max(tiles / num_sms, 1e-9)",
        f"busiest_sm = max({waves}, min(seq_kv / keys, 2))",
        f"math_s = flops / ({rate} * peak_flops_per_s) * (1 + ramp_seq / keys) * busiest_sm / per_sm",
        f"moved_bytes = {moves}element_bytes * (qk_head_dim + v_head_dim) * batch"
        " * (seq_q * heads + seq_kv * kv_heads)",
        "memory_s = moved_bytes / (memory_fraction * hbm_bytes_per_s)",
    ]
    total = "fixed_s + cbrt(math_s ** 3 + memory_s ** 3)"
    if with_side:
        side = "side_bytes_per_element * qk_head_dim * batch * seq_q * heads"
        total += f" + {side} / (memory_fraction * hbm_bytes_per_s)"
    return "; ".join([*steps, total])


def memory_formula(
    size_bytes: ArrayLike,
    *,
    constants: MemoryConstants,
    memory_bandwidth_bytes_per_s: float,
    kernels: ArrayLike = 1.0,
    cast_slowdown: float = 1.0,
) -> KernelFormula:
    """Return the formula of `roofline.memory_time_s`; quantising kernels move bytes slower."""

    def terms() -> Terms:
        numbers: dict[str, ArrayLike] = {
            "kernels": kernels,
            "fixed_s": constants.fixed_s,
            "moved_bytes": size_bytes,
            "memory_fraction": constants.bandwidth_fraction,
            "hbm_bytes_per_s": memory_bandwidth_bytes_per_s,
        }
        return numbers if cast_slowdown == 1.0 else {**numbers, "cast_slowdown": cast_slowdown}

    factor = "" if cast_slowdown == 1.0 else "cast_slowdown * "
    return KernelFormula(
        f"kernels * fixed_s + {factor}moved_bytes / (memory_fraction * hbm_bytes_per_s)", terms
    )
