"""What of a model a job trains: all of it, low-rank adapters on a frozen base, or all but some parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from costmodel.base.errors import CostModelError, choices_hint

BASE_BYTES = {"bf16": 2.0, "fp8": 1.0, "nf4": 0.5 + 0.127 / 8.0}
"""Bytes of a frozen weight. NF4: four bits, and 0.127 for the constants of blocks of 64, themselves quantised
(T. Dettmers et al., "QLoRA," arXiv:2305.14314, section 3)."""

PARTS = ("tower", "embedding", "attention", "mixer", "mlp", "router", "experts", "head")
"""What may be frozen; the tower whole, with what joins it to the language model."""

TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "qkv", "fc1", "experts", "mixer", "magnitude")
"""What may get an adapter: a projection by itself; ``qkv`` and ``fc1``, those with one input as one layer, with one
adapter; experts' own layers beside ``gate``, ``up`` and ``down`` where ``experts`` is named; other mixers' layers;
``magnitude``, a learned length of each output beside them (DoRA)."""

_ALL = ("q", "k", "v", "o", "gate", "up", "down", "mixer")
_OTHER_WORDS = {
    ("q",): "q_proj linear_q",
    ("k",): "k_proj linear_k",
    ("v",): "v_proj linear_v",
    ("o",): "o_proj out linear_proj attention_dense",
    ("gate",): "gate_proj linear_fc1_gate",
    ("up",): "up_proj linear_fc1_up",
    ("down",): "down_proj fc2 linear_fc2",
    ("qkv",): "linear_qkv attention_qkv",
    ("fc1",): "linear_fc1",
    ("magnitude",): "dora",
    _ALL[:4]: "attention",
    _ALL[4:7]: "mlp",
    _ALL: "all all_linear",
}
"""Other words for them: PEFT's, Megatron-Bridge's and NeMo's names of modules, and groups."""
_MEANT = {word: targets for targets, words in _OTHER_WORDS.items() for word in words.split()}


@dataclass(frozen=True)
class Tuning:
    """What a job trains."""

    lora_rank: int = 0
    """Rank of the adapters; 0 for none, and then the base is trained but for what is `frozen`. [-]"""
    lora_targets: tuple[str, ...] = ()  # Of `TARGETS`
    base_dtype: str = "bf16"  # In which the matrices of frozen layers lie
    frozen: tuple[str, ...] = ()  # Parts without gradients, of `PARTS`; all of them where there are adapters

    @property
    def whole(self) -> bool:
        """Whether every parameter is trained."""
        return not self.frozen

    @property
    def magnitudes(self) -> bool:
        """Whether adapters learn lengths and directions apart: S.-Y. Liu et al., DoRA, arXiv:2402.09353."""
        return "magnitude" in self.lora_targets

    @property
    def fields(self) -> dict[str, int | str]:
        """The fields of a job that say it."""
        return {
            "lora_rank": self.lora_rank,
            "lora_targets": ",".join(self.lora_targets),
            "base_dtype": self.base_dtype,
            "frozen": "" if self.lora_rank else ",".join(self.frozen),
        }

    @property
    def base_bytes(self) -> float:
        """Bytes of a weight of a frozen layer. [B]"""
        return BASE_BYTES[self.base_dtype]

    @property
    def computes_in(self) -> bool:
        """Whether frozen weights are made into 16 bits for each product."""
        return self.base_dtype != "bf16"


def make_tuning(lora_rank: int = 0, lora_targets: str = "", base_dtype: str = "", frozen: str = "") -> Tuning:
    """Read what a job trains, as its fields have it."""
    if lora_targets and not lora_rank:
        raise CostModelError("lora_targets: needs lora_rank, such as 16")
    if lora_rank and frozen:
        raise CostModelError("frozen: with lora_rank all of the base is frozen; leave it out")
    parts = PARTS if lora_rank else _read(frozen, "frozen", PARTS, {"layers": PARTS[2:-1]})
    if base_dtype not in ("", "bf16") and not parts:
        raise CostModelError(
            f"base_dtype: {base_dtype!r} is for frozen weights; give lora_rank, or frozen with the parts"
        )
    targets = _read(lora_targets or "all", "lora_targets", TARGETS, _MEANT) if lora_rank else ()
    if targets == ("magnitude",):
        targets = (*_ALL, "magnitude")
    for fused, separate in (("qkv", ("q", "k", "v")), ("fc1", ("gate", "up"))):
        again = [word for word in separate if word in targets]
        if again and fused in targets:
            raise CostModelError(f"lora_targets: {fused!r} and {again[0]!r} both name its input; give one")
    return Tuning(lora_rank, targets, base_dtype or "bf16", parts)


def _read(text: str, name: str, words: tuple[str, ...], meant: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the words of a list, in the order of the table."""
    found: set[str] = set()
    for word in re.split(r"[\s,]+", text.strip().lower().replace("-", "_")):
        if not word:
            continue
        if word not in words and word not in meant:
            raise CostModelError(f"{name}: {word!r} is unknown; {choices_hint(word, (*words, *meant))}")
        found.update(meant.get(word, (word,)))
    return tuple(word for word in words if word in found)
