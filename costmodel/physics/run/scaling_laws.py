r"""Loss against parameters and tokens, and what to buy with a budget.

Hoffmann et al. and its refit write :math:`L = E + A N^{-\alpha} + B D^{-\beta}`; Kaplan et al.
:math:`L = \left((N_c/N)^{\alpha_N/\alpha_D} + D_c/D\right)^{\alpha_D}`. N counts all parameters in the
first, those outside embeddings in the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_records

Array = NDArray[np.float64]


class ScalingLaw(NamedTuple):
    """Constants E, A, B, alpha and beta of a law, and where they were fitted."""

    floor: float
    params_factor: float
    tokens_factor: float
    params_exponent: float
    tokens_exponent: float
    source: str


LAWS: dict[str, ScalingLaw] = read_records(Path(__file__).with_name("scaling_laws.csv"), ScalingLaw)
KAPLAN_SOURCE = "Kaplan et al., arXiv:2001.08361, equation 1.5 with table 2; compute-optimal size of table 6"
_KAPLAN_PARAMS, _KAPLAN_TOKENS = 6.4e13, 1.8e13
_KAPLAN_PARAMS_EXPONENT, _KAPLAN_TOKENS_EXPONENT = 0.076, 0.103
_KAPLAN_OPTIMUM, _KAPLAN_OPTIMUM_EXPONENT = 1.3e9, 0.73
PETAFLOPS_DAY = 1e15 * 86400.0


def loss(law: ScalingLaw, num_params: ArrayLike, tokens: ArrayLike) -> Array:
    """Return the loss of a model of N parameters after D tokens [nats a token].

    >>> round(float(loss(LAWS["hoffmann"], 70e9, 1.4e12)), 3)
    1.921
    """
    n, d = np.asarray(num_params, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    return np.asarray(
        law.floor + law.params_factor / n**law.params_exponent + law.tokens_factor / d**law.tokens_exponent
    )


def compute_optimal(law: ScalingLaw, flops: ArrayLike) -> tuple[Array, Array]:
    r"""Parameters and tokens of the least loss for a budget of training FLOPs.

    .. math:: N = G (C/6)^{\beta/(\alpha+\beta)}, \quad D = C / 6N, \quad
              G = \left(\frac{\alpha A}{\beta B}\right)^{1/(\alpha+\beta)}

    Parameters
    ----------
    law : ScalingLaw
        The fit.
    flops : array_like
        C = 6 N D. [FLOP]

    Returns
    -------
    num_params, tokens : ndarray
        [-]

    References
    ----------
    .. [1] J. Hoffmann et al., arXiv:2203.15556, equation 4.
    """
    budget = np.asarray(flops, dtype=np.float64) / 6.0
    a, b = law.params_exponent, law.tokens_exponent
    ratio = (a * law.params_factor / (b * law.tokens_factor)) ** (1.0 / (a + b))
    n = ratio * budget ** (b / (a + b))
    return np.asarray(n), np.asarray(budget / n)


def kaplan_loss(num_params: ArrayLike, tokens: ArrayLike) -> Array:
    """Return the loss by Kaplan et al., equation 1.5, N outside embeddings [nats a token]."""
    n, d = np.asarray(num_params, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    exponent = _KAPLAN_TOKENS_EXPONENT
    return np.asarray(
        ((_KAPLAN_PARAMS / n) ** (_KAPLAN_PARAMS_EXPONENT / exponent) + _KAPLAN_TOKENS / d) ** exponent
    )


def kaplan_optimal(flops: ArrayLike) -> tuple[Array, Array]:
    """Return parameters and tokens by Kaplan et al.: 1.3e9 x (petaflop/s-days)^0.73, and the rest of C = 6 N D."""
    budget = np.asarray(flops, dtype=np.float64)
    n = _KAPLAN_OPTIMUM * (budget / PETAFLOPS_DAY) ** _KAPLAN_OPTIMUM_EXPONENT
    return np.asarray(n), np.asarray(budget / (6.0 * n))


def tokens_for_loss(law: ScalingLaw, num_params: ArrayLike, target_loss: ArrayLike) -> Array:
    """Return tokens that bring a model of N parameters to a loss; infinite where it is too small [-]."""
    n = np.asarray(num_params, dtype=np.float64)
    left = np.asarray(target_loss, dtype=np.float64) - law.floor - law.params_factor / n**law.params_exponent
    return _size_for(left, law.tokens_factor, law.tokens_exponent)


def params_for_loss(law: ScalingLaw, tokens: ArrayLike, target_loss: ArrayLike) -> Array:
    """Return parameters that D tokens bring to a loss; infinite where they are too few [-]."""
    d = np.asarray(tokens, dtype=np.float64)
    left = np.asarray(target_loss, dtype=np.float64) - law.floor - law.tokens_factor / d**law.tokens_exponent
    return _size_for(left, law.params_factor, law.params_exponent)


def kaplan_params_for_loss(tokens: ArrayLike, target_loss: ArrayLike) -> Array:
    """Return parameters that D tokens, which may be endless, bring to a loss by Kaplan et al., equation 1.5 [-].

    Infinite where the tokens are too few.

    >>> round(float(kaplan_params_for_loss(np.inf, 2.0) / kaplan_params_for_loss(np.inf, 4.0)), 3)  # 2^(1/0.076)
    9139.47
    """
    d, wanted = np.asarray(tokens, dtype=np.float64), np.asarray(target_loss, dtype=np.float64)
    left = wanted ** (1.0 / _KAPLAN_TOKENS_EXPONENT) - _KAPLAN_TOKENS / d
    exponent = _KAPLAN_PARAMS_EXPONENT / _KAPLAN_TOKENS_EXPONENT
    return _size_for(left, _KAPLAN_PARAMS**exponent, exponent)


def _size_for(left: Array, factor: float, exponent: float) -> Array:
    """Return the size x with factor / x^exponent = left, infinite where nothing is left."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(left > 0.0, (factor / left) ** (1.0 / exponent), np.inf))


def cheapest_over_lifetime(
    law: ScalingLaw,
    target_loss: ArrayLike,
    served_tokens: ArrayLike,
    *,
    num_params: Array,
    train_usd_per_flop: float,
    serve_usd_per_token: Array,
) -> tuple[Array, Array, Array]:
    r"""Return parameters, tokens and dollars that reach a loss for the least cost of training and serving.

    .. math:: \min_N \; 6 N D(N, \ell)\, p_t + T\, p_s(N)

    over sizes `num_params`, N, of one dimension; D is what the law needs for `target_loss`, :math:`\ell`, and T are
    `served_tokens`, which broadcast. [nats a token, -, USD/FLOP, USD]
    N. Sardana et al., "Beyond Chinchilla-optimal," arXiv:2401.00448, equation 3 (in dollars: section 3).
    """
    wanted, served = np.broadcast_arrays(
        np.asarray(target_loss, dtype=np.float64)[..., None],
        np.asarray(served_tokens, dtype=np.float64)[..., None],
    )
    tokens = tokens_for_loss(law, num_params, wanted)
    cost = 6.0 * num_params * tokens * train_usd_per_flop + served * serve_usd_per_token
    best = np.argmin(cost, axis=-1)[..., None]
    return (
        np.asarray(num_params[best[..., 0]]),
        np.take_along_axis(tokens, best, axis=-1)[..., 0],
        np.take_along_axis(cost, best, axis=-1)[..., 0],
    )
