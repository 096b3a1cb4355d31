"""What a launch file says of a model and no price depends on: the base of its rotation and its norms' epsilon.

Values of each model's ``config.json`` on the hub (``rope_theta``, ``rms_norm_eps``), as of 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Details(NamedTuple):
    """Base of the rotary positions, and what norms add to the variance. [-]"""

    rope_theta: int
    norm_epsilon: float


_LLAMA2, _LLAMA3 = Details(10_000, 1e-5), Details(500_000, 1e-5)
_MIXTRAL, _QWEN = Details(1_000_000, 1e-5), Details(1_000_000, 1e-6)
_DEEPSEEK, _GPT_OSS = Details(10_000, 1e-6), Details(150_000, 1e-5)

DETAILS: Mapping[str, Details] = {
    "llama2-7b": _LLAMA2,
    "llama2-13b": _LLAMA2,
    "llama2-70b": _LLAMA2,
    "llama3-8b": _LLAMA3,
    "llama3-70b": _LLAMA3,
    "llama3-405b": _LLAMA3,
    "mixtral-8x7b": _MIXTRAL,
    "mixtral-8x22b": _MIXTRAL,
    "qwen2.5-7b": _QWEN,
    "qwen3-8b": _QWEN,
    "qwen3-32b": _QWEN,
    "qwen3-30b-a3b": _QWEN,
    "qwen3-235b-a22b": _QWEN,
    "deepseek-v2-236b": _DEEPSEEK,
    "deepseek-v3-671b": _DEEPSEEK,
    "gpt-oss-20b": _GPT_OSS,
    "gpt-oss-120b": _GPT_OSS,
}
"""Shipped models with rotary positions whose published configuration says both."""
