"""The bubble of each pipeline schedule as text: the closed forms of `schedules.bubble_time_s`, in steps.

Tests hold every text to the function; `costmodel.bill.formula` evaluates them.
"""

_OTHERS = "others_s = sum_forward_s + sum_backward_s - forward_s - backward_input_s - backward_weight_s"
_HOPS = "hops = stages - 1"
_FORWARD_AND_INPUT = f"{_HOPS}; {_OTHERS}; others_fb_s = others_s - hops * backward_weight_s"
_UNEVEN = (
    f"{_HOPS}; {_OTHERS}; uneven_s = others_s - hops * (forward_s + backward_input_s + backward_weight_s)"
)
_HIGH_LOW = "high_s = max(forward_s, backward_input_s); low_s = min(forward_s, backward_input_s)"


def _dual(depth: str, part: str) -> str:
    """Return DualPipe's form: `depth` ranks from the turn, chunk times `part` of those of the stage."""
    return (
        f"{_UNEVEN}; depth = {depth}; f_s = {part}forward_s; b_s = {part}backward_input_s; "
        f"w_s = {part}backward_weight_s; "
        "max(max(depth * (2 * f_s + max(b_s - w_s, 0)), depth * (f_s + 2 * b_s - w_s) - f_s) + uneven_s, 0)"
    )


BUBBLE_FORMULAS = {
    "naive": f"{_OTHERS}; max(micro_batches * others_s, 0)",
    "gpipe": f"{_OTHERS}; max(others_s, 0)",
    "1f1b": f"{_OTHERS}; max(others_s, 0)",
    "interleaved": f"{_OTHERS}; max(others_s / virtual_stages, 0)",
    "zb-h1": f"{_FORWARD_AND_INPUT}; max(others_fb_s - min(hops, micro_batches - 1) * backward_weight_s, 0)",
    "zb-2p": f"{_FORWARD_AND_INPUT}; filled = min(2 * hops / pending_weight_fraction, micro_batches - 1); "
    "max(others_fb_s - filled * backward_weight_s, 0)",
    "zb-v": f"{_HOPS}; {_HIGH_LOW}; "
    "max(hops * max(high_s - backward_weight_s, 0.5 * (backward_weight_s - low_s)), 0)",
    "dualpipe": _dual("0.5 * stages - 1", ""),
    "dualpipe-v": _dual("hops", "0.5 * "),
    "v-half": f"{_UNEVEN}; max(0.5 * hops * (forward_s + 3 * backward_input_s - backward_weight_s) "
    "- 0.5 * forward_s + micro_batches * max(forward_s - backward_input_s, 0) + uneven_s, 0)",
    "v-min": f"{_UNEVEN}; {_HIGH_LOW}; max(hops * (forward_s + backward_input_s) - 0.5 * forward_s "
    "+ micro_batches * max(2 * high_s - low_s - backward_weight_s, 0) + uneven_s, 0)",
}
"""By schedule; names are the arguments of `schedules.bubble_time_s`. With one stage there is no bubble."""
