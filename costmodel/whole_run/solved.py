"""Problems solved by k samples each: what a sample costs, how many solve a problem, and what model to train for them.

How often a sample solves a problem is the user's measurement, never assumed here: one rate, pass@k at two k, or a Beta
distribution of difficulties; of one model, or of two whose sizes and training tokens are given. Between and beyond two
models the logit of the mean rate and the logarithm of the distribution's a + b are linear in the loss of a scaling law,
as accuracies are in Llama 3 (arXiv:2407.21783, section 3.2.1) and in arXiv:2405.10938.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError, UnitError
from costmodel.base.units import parse_number
from costmodel.physics.run.answers import beta_of_points, pass_at_k, pass_at_k_beta, usd_per_solved
from costmodel.physics.run.scaling_laws import LAWS, ScalingLaw, loss

Array = NDArray[np.float64]

SAMPLES: Array = 2.0 ** np.arange(11.0)  # Samples of a problem that are tried where none are named. [-]
_EXPECTED = (
    "expected a rate such as 0.2, points such as '1=0.2 16=0.55', 'beta 0.4 2', or two models such as "
    "'8B/15T: 0.3; 70B/15T: 0.55'"
)
_POINT = re.compile(r"([\d.]+[kK]?)\s*=\s*([\d.e-]+)%?")


class Difficulty(NamedTuple):
    """Distribution over problems of the rate at which a sample solves them."""

    rate: ArrayLike  # Mean share of the samples that solve a problem. [-]
    concentration: ArrayLike = np.inf  # a + b of the Beta distribution; infinite where all are alike

    def solved(self, k: ArrayLike) -> Array:
        """Return the share of problems that one of k samples solves. [-]"""
        rate, concentration = (np.asarray(each, dtype=np.float64) for each in self)
        if np.all(np.isinf(concentration)):
            return pass_at_k(k, rate)
        return pass_at_k_beta(k, rate * concentration, (1.0 - rate) * concentration)


class Measured(NamedTuple):
    """The measured rates of a model; size and tokens are 0 where not given."""

    num_params: float
    tokens: float
    difficulty: Difficulty


def read_pass_rate(text: str) -> tuple[Measured, ...]:
    """Read how often samples solve a problem, of one model or of two.

    Examples
    --------
    >>> read_pass_rate("8B/15T: 0.3; 70B/15T: 0.5")[1].num_params
    70000000000
    """
    parts = [part.strip() for part in str(text).split(";") if part.strip()]
    if len(parts) == 1 and ":" not in parts[0]:
        return (Measured(0.0, 0.0, _difficulty(parts[0])),)
    found = []
    for part in parts:
        size, _, rates = part.partition(":")
        params, _, tokens = size.partition("/")
        try:
            numbers = parse_number(params.strip()), parse_number(tokens.strip())
            found.append(Measured(*numbers, _difficulty(rates)))
        except UnitError:
            raise CostModelError(f"pass_rate: {_EXPECTED}; got {part[:60]!r}") from None
    if len(found) != 2:
        raise CostModelError(f"pass_rate: two models are needed, got {len(found)}; {_EXPECTED}")
    if any(not (1e6 <= one.num_params <= 1e14 and 1e6 <= one.tokens <= 1e16) for one in found):
        raise CostModelError("pass_rate: expected models of 1M to 100T parameters and 1M to 10,000T tokens")
    if np.isinf(found[0].difficulty.concentration) != np.isinf(found[1].difficulty.concentration):
        raise CostModelError("pass_rate: give both models by one rate, or both by two points or a Beta")
    if any(_slopes(law, found)[0] >= 0.0 for law in LAWS.values()):
        raise CostModelError("pass_rate: the model of the lower loss must solve more")
    return tuple(found)


def _difficulty(text: str) -> Difficulty:
    """Read one rate, points of pass@k, or a Beta distribution."""
    text = text.strip()
    refused = CostModelError(f"pass_rate: {_EXPECTED}; got {text[:60]!r}")
    try:
        if text.startswith("beta"):
            a, b = (float(part) for part in re.split(r"[\s,()]+", text.removeprefix("beta")) if part)
            if not (0.0 < a < 1e6 and 0.0 < b < 1e6):
                raise refused
            return Difficulty(a / (a + b), a + b)
        if "=" not in text:
            rate = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
            if not 0.0 < rate < 1.0:
                refused = CostModelError(f"pass_rate: expected a share between 0 and 1, got {text}")
                raise refused
            return Difficulty(rate)
        points = sorted((float(parse_number(k)), float(share)) for k, share in _POINT.findall(text))
    except (ValueError, UnitError):
        raise refused from None
    if len(points) != 2 or _POINT.sub("", text).strip(" ,"):
        raise refused
    a, b = beta_of_points(*points[0], *points[1])
    return Difficulty(a / (a + b), a + b)


def _slopes(law: ScalingLaw, measured: tuple[Measured, ...] | list[Measured]) -> tuple[float, float]:
    """Return how the logit of the rate, and the logarithm of a + b, change with the loss."""
    first, second = measured
    apart = float(loss(law, second.num_params, second.tokens) - loss(law, first.num_params, first.tokens))
    if not apart:
        raise CostModelError("pass_rate: the two models have the same loss; give models that differ")
    one, other = first.difficulty, second.difficulty
    of_rate = (_logit(other.rate) - _logit(one.rate)) / apart
    if np.isinf(one.concentration):
        return of_rate, 0.0
    return of_rate, float(np.log(other.concentration) - np.log(one.concentration)) / apart


def _logit(rate: ArrayLike) -> float:
    share = float(np.asarray(rate))
    return float(np.log(share / (1.0 - share)))


def difficulty_at(law: ScalingLaw, measured: tuple[Measured, ...], at: ArrayLike) -> Difficulty:
    """Return the rates of a model at a loss, from those of two models. [-]"""
    first = measured[0]
    rate_slope, concentration_slope = _slopes(law, measured)
    loss_difference = np.asarray(at, dtype=np.float64) - loss(law, first.num_params, first.tokens)
    with np.errstate(over="ignore"):
        rate = 1.0 / (1.0 + np.exp(-(_logit(first.difficulty.rate) + rate_slope * loss_difference)))
        concentration = np.asarray(first.difficulty.concentration) * np.exp(
            np.clip(concentration_slope * loss_difference, -30.0, 30.0)
        )
    return Difficulty(np.clip(rate, 1e-12, 1.0 - 1e-12), np.clip(concentration, 1e-6, np.inf))


@dataclass(frozen=True)
class Solved:
    """Problems solved by one way to spend a budget, with the dollars of training and of samples."""

    rule: str
    num_params: float
    tokens: float | None  # Training tokens; None for an existing model. [-]
    samples_per_prompt: float
    solved: float  # Share of the problems that one of the samples solves. [-]
    train_usd: float
    serve_usd: float
    usd_per_solved: float  # Training and samples, over the problems that are solved. [USD]


def solved_by(
    rule: str,
    num_params: float,
    difficulty: Difficulty,
    *,
    samples: Array,
    problems: float,
    usd_per_sample: float,
    train_usd: float,
) -> list[Solved]:
    """Return what numbers of samples of an existing model solve, and their cost."""
    found = []
    for k in np.ravel(samples):
        share = float(difficulty.solved(k))
        usd = problems * float(k) * usd_per_sample
        each = float(usd_per_solved((usd + train_usd) / (problems * k), k, share))
        found.append(Solved(rule, num_params, None, float(k), share, train_usd, usd, each))
    return found


def train_and_sample(
    law: ScalingLaw,
    measured: tuple[Measured, ...],
    *,
    rule: str,
    dollars: float,
    problems: float,
    samples: Array,
    sizes: Array,
    usd_per_sample: Array,
    train_usd_per_flop: float,
) -> Solved | None:
    r"""Return model, tokens and samples that solve the most problems for one budget of training and sampling.

    .. math:: \max_{N, k}\; \text{pass@}k\big(L(N, D)\big), \quad
              6 N D\, c + Q\, k\, s(N) = B

    L is the loss of the law, N a size that can be served and s what a sample of it costs [USD], D the tokens, c what a
    FLOP of training costs [USD], Q the problems and B the budget [USD]. None where no size leaves money for training.

    References
    ----------
    .. [1] N. Roberts et al., "Test-time scaling makes overtraining compute-optimal," arXiv:2604.01411.
    """
    k = np.ravel(samples)[:, None]
    serve = problems * k * usd_per_sample
    left = np.maximum(dollars - serve, 0.0)
    tokens = left / (6.0 * sizes * train_usd_per_flop)
    # Fewer tokens than parameters are outside of what the laws were fitted to.
    possible = tokens >= sizes
    if not np.any(possible):
        return None
    share = difficulty_at(law, measured, loss(law, sizes, np.where(possible, tokens, sizes))).solved(k)
    at = np.unravel_index(int(np.argmax(np.where(possible, share, -1.0))), share.shape)
    return Solved(
        rule,
        float(sizes[at[1]]),
        float(tokens[at]),
        float(k[at[0], 0]),
        float(share[at]),
        float(left[at]),
        float(serve[at]),
        float(dollars / (problems * share[at])),
    )
