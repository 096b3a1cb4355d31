"""What a sequence holds: documents of several lengths, and images beside text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.bill.quantity import quantity
from costmodel.describe.models.model import Model

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Packing:
    """How long the documents of a sequence are; attention stays inside each."""

    mean: float = 0.0  # Tokens of a document, 0 for one a sequence. [-]
    spread: float = 0.0
    """Standard deviation of its length over the mean; lengths are taken to be lognormal. [-]"""

    @property
    def fields(self) -> dict[str, float]:
        """The fields of a job that say it."""
        return {"packed_len": round(self.mean), "packed_spread": self.spread}

    def span(self, seq_len: Array) -> Array:
        """Return the length of the sequence without documents whose attention costs as much a token. [-]

        Scores are a sum of squares: of documents of length l, E[l^2] / E[l] = mean (1 + spread^2) a token (M. Krell et
        al., arXiv:2107.02027, section 3.2), and never more than the sequence itself.
        """
        if not self.mean:
            return seq_len
        return quantity(
            "min(seq_len, mean * (1 + spread ** 2))", seq_len=seq_len, mean=self.mean, spread=self.spread
        ).value


@dataclass(frozen=True)
class Images:
    """Images of a sequence, or clips of audio, for the tower of a model."""

    per_sample: float = 0.0  # Images of a sequence; with 0 the tower has no price. [-]
    tokens: float = 0.0  # Tokens of the language model that an image becomes, the mean. [-]
    spread: float = 0.0  # Standard deviation of them over the mean. [-]

    @property
    def fields(self) -> dict[str, float]:
        """The fields of a job that say it."""
        return {
            "images_per_sample": self.per_sample,
            "image_tokens": round(self.tokens),
            "image_spread": self.spread,
        }


def make_images(
    model: Model, per_sample: float | None, tokens: float, spread: float, seq_len: Array
) -> Images:
    """Return the images of a sequence (`per_sample` None: not named); refuse those without a tower, a size or room."""
    if not per_sample:
        if per_sample is None and (tokens or spread):
            raise CostModelError(
                "image_tokens, image_spread: need images_per_sample, the images of a sequence"
            )
        return Images()
    tower = model.tower
    if tower is None and model.tower_problem:
        raise CostModelError(f"images_per_sample: the tower of {model.name}: {model.tower_problem}")
    if tower is None:
        raise CostModelError(f"images_per_sample: {model.name} has no tower that is known; leave it out")
    tokens = tokens or tower.tokens // tower.merge
    if not tokens:
        raise CostModelError(
            f"image_tokens: the {tower.name} tower of {model.name} takes images of any size; give the mean tokens of one"
        )
    if np.any(per_sample * tokens > seq_len):
        raise CostModelError(
            f"images_per_sample: {per_sample:g} images of {tokens:,.0f} tokens are more than seq_len "
            f"{float(np.min(seq_len)):,.0f}"
        )
    return Images(per_sample, tokens, spread)


def make_packing(mean: float, spread: float, seq_len: Array) -> Packing:
    """Refuse documents that are longer than their sequence, or a spread without their length."""
    if spread and not mean:
        raise CostModelError("packed_spread: needs packed_len, the mean tokens of a document")
    if np.any(mean > seq_len):
        raise CostModelError(
            f"packed_len: {mean:,.0f} tokens of a document are more than seq_len {float(np.min(seq_len)):,.0f}"
        )
    return Packing(mean, spread)
