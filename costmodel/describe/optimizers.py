"""Optimizers: what each keeps of a parameter, what its step moves, multiplies and sends; one record each.

Formulas are text in the language of `costmodel.bill.formula`; the text is the code. A new optimizer is a new
record: no field has a default, and an unknown name is an error.

Nothing heavy is imported here: ``costmodel --help`` names the optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from costmodel.base.errors import RecipeError, choices_hint


class Update(NamedTuple):
    """How one sort of parameters is stepped.

    Attributes
    ----------
    kernel : str
        Name of the line of its kernel.
    holds : str
        What it keeps.
    state_bytes : str
        Bytes a parameter of what it keeps, over `moments_bytes` (what the recipe keeps of Adam's two moments)
        and, per parameter, `sides` (rows and columns of its matrices) or `squares` (their squares, of the sides
        that the optimizer keeps square matrices of).
    moved_bytes : str
        Bytes a parameter that its kernels read and write in HBM, over `grad_bytes`, `state_bytes` (its own
        states and the main weights) and `weight_bytes`.
    """

    kernel: str
    holds: str
    state_bytes: str
    moved_bytes: str

    @property
    def counts_sides(self) -> bool:
        """Whether what it keeps depends on the shapes of matrices."""
        return "sides" in self.state_bytes or "squares" in self.state_bytes


class Product(NamedTuple):
    """A matrix product of each step of an iteration on whole matrices.

    `rows`, `columns` and `depth` say which sides of the matrix they are: ``short`` or ``long``; `basis` the side
    whose square matrix it needs, empty for none. `times` is how long it takes in such products, per step.
    """

    name: str
    rows: str
    columns: str
    depth: str
    dtype: str = "bf16"
    basis: str = ""
    times: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer.

    Attributes
    ----------
    name : str
        For ``--optimizer``.
    matrices : Update
        How the matrices of the layers are stepped.
    tables : Update
        How the token table, learned positions and the output matrix are.
    others : Update
        How norms and biases are.
    products : tuple of Product
        Products that each iteration makes of a matrix of the layers before it is stepped.
    iterations : int
        How often.
    largest_side : float
        Sides beyond it have no square matrix; infinite where all have one, or none has. [-]
    block : float
        Matrices are cut into blocks of at most so many rows and columns. [-]
    gathered_bytes : float
        Bytes an element in which the rank that iterates gathers a matrix which ranks share; 0 where each steps
        its part alone. [B]
    paged : bool
        Whether its states live on the host, and come and go with every step.
    on_host : bool
        Whether a vectorised step of the host exists, which ``offload_optimizer`` needs.
    source : str
        Where that is stated.
    """

    name: str
    matrices: Update
    tables: Update
    others: Update
    products: tuple[Product, ...]
    iterations: int
    largest_side: float
    block: float
    gathered_bytes: float
    paged: bool
    on_host: bool
    source: str

    @property
    def keeps_moments(self) -> bool:
        """Whether it steps everything as Adam does, whose unfused kernels make temporaries."""
        return {update.kernel for update in self.updates} == {"adam"}

    @property
    def updates(self) -> tuple[Update, ...]:
        """Its different ways to step parameters."""
        return tuple(dict.fromkeys((self.matrices, self.tables, self.others)))


# Read gradient and states, write states and the parameter.
_IN_PLACE = "grad_bytes + 2 * state_bytes + weight_bytes"

_ADAM = Update("adam", "moments", "moments_bytes", _IN_PLACE)
_ADAM_16_BITS = Update("adam", "moments", "4", _IN_PLACE)
# A byte for each of two moments, and their fp32 scales by blocks of 2,048.
_ADAM_8_BITS = Update("adam", "moments", "2 + 2 * 4 / 2048", _IN_PLACE)
_MOMENTUM = Update("momentum", "momentum", "moments_bytes / 2", _IN_PLACE)
_LION = Update("lion", "momentum", "moments_bytes / 2", _IN_PLACE)
_SGD = Update("sgd", "nothing", "0", _IN_PLACE)
# The gradient is read for its rows' and columns' means, and again for the update, which is written in fp32 and
# read for its root mean square before it is applied.
_FACTORED = Update("adafactor", "factors", "4 * sides", "2 * grad_bytes + 8 + 2 * state_bytes + weight_bytes")
_UNFACTORED = Update(
    "adafactor_vectors", "squares", "4", "2 * grad_bytes + 8 + 2 * state_bytes + weight_bytes"
)
# The momentum is written in 16 bits for the iteration, whose result is read.
_MUON = Update("muon", "momentum", "moments_bytes / 2", "grad_bytes + 2 + 2 + 2 * state_bytes + weight_bytes")

# X <- a X + (b A + c A^2) X with A = X X^T, of the matrix on its short side.
_NEWTON_SCHULZ = (
    Product("outer", "short", "short", "long"),
    Product("square", "short", "short", "short"),
    Product("applied", "short", "long", "short"),
)

# Statistics of gradients on both sides, and the bases or roots made of them, in fp32: four square matrices.
_SOAP = Update("soap", "moments_and_bases", "moments_bytes + 8 * squares", _IN_PLACE)
# A momentum, and the second moment of Adam, whose length the update takes (grafting).
_SHAMPOO = Update("shampoo", "moments_and_roots", "moments_bytes + 8 * squares", _IN_PLACE)

# G G^T and G^T G.
_STATISTICS = (
    Product("left_statistics", "short", "short", "long", "fp32", "short"),
    Product("right_statistics", "long", "long", "short", "fp32", "long"),
)


def _on_both_sides(name: str, times: float) -> tuple[Product, ...]:
    """Return the products of a gradient with a square matrix from the left and from the right."""
    return (
        Product(f"left_{name}", "short", "long", "short", "fp32", "short", times),
        Product(f"right_{name}", "short", "long", "long", "fp32", "long", times),
    )


def _now_and_then(name: str, times: float, every: float) -> tuple[Product, ...]:
    """Return what is made of both square matrices every so many steps, as long as so many products of them."""
    return (
        Product(f"left_{name}", "short", "short", "short", "fp32", "short", times / every),
        Product(f"right_{name}", "long", "long", "long", "fp32", "long", times / every),
    )


# A QR factorisation and its Q are 8/3 n^3 FLOPs, 1.33 products, and the power step before it is one; symmetric
# eigenvalues and vectors are 9 n^3, 4.5 products (Golub and Van Loan, Matrix Computations, 4th ed., sections 5.2 and
# 8.3). Assumed, as no GPU's timings are at hand: a quarter and a twentieth of a product's rate.
_QR_TIMES = 1.0 + 4.0 * 8.0 / 6.0
_EIGEN_TIMES = 20.0 * 4.5


def _elementwise(
    name: str,
    update: Update,
    *,
    on_host: bool,
    source: str,
    paged: bool = False,
    others: Update | None = None,
) -> Optimizer:
    """Return an optimizer that steps every parameter by itself."""
    return Optimizer(
        name=name,
        matrices=update,
        tables=update,
        others=others or update,
        products=(),
        iterations=0,
        largest_side=inf,
        block=inf,
        gathered_bytes=0.0,
        paged=paged,
        on_host=on_host,
        source=source,
    )


_RECORDS = (
    _elementwise(
        "adamw",
        _ADAM,
        on_host=True,
        source="Adam: reads gradient, main weight and two moments, writes the latter three and the weight",
    ),
    _elementwise(
        "adamw-bf16",
        _ADAM_16_BITS,
        on_host=False,
        source="moments in 16 bits: DeepSeek-V3, arXiv:2412.19437, section 3.3.2; Megatron-Core's "
        "--use-precision-aware-optimizer with --exp-avg-dtype and --exp-avg-sq-dtype bf16",
    ),
    _elementwise(
        "adamw-8bit",
        _ADAM_8_BITS,
        on_host=False,
        source="Dettmers et al., arXiv:2110.02861, section 2: blocks of 2,048 with an fp32 scale each; "
        "bitsandbytes/optim/optimizer.py (Optimizer2State.init_state)",
    ),
    _elementwise(
        "paged-adamw-8bit",
        _ADAM_8_BITS,
        paged=True,
        on_host=False,
        source="bitsandbytes/optim/optimizer.py (prefetch_state) and QLoRA, arXiv:2305.14314, section 3: pages "
        "that the GPU has no room for; priced as all of them, which come and go with every step",
    ),
    _elementwise(
        "adafactor",
        _FACTORED,
        others=_UNFACTORED,
        on_host=False,
        source="Shazeer and Stern, arXiv:1804.04235, algorithms 4 and 5, without momentum",
    ),
    _elementwise(
        "lion",
        _LION,
        on_host=True,
        source="Chen et al., arXiv:2302.06675, algorithm 2: one momentum, whose sign is the update; on the host "
        "as fast as Adam (DeepSpeed's csrc/lion/cpu_lion.cpp)",
    ),
    _elementwise("sgd", _SGD, on_host=False, source="the gradient alone, without momentum"),
    _elementwise(
        "sgd-momentum", _MOMENTUM, on_host=False, source="Sutskever et al., ICML 2013: one momentum"
    ),
    Optimizer(
        name="muon",
        matrices=_MUON,
        tables=_ADAM,
        others=_ADAM,
        products=_NEWTON_SCHULZ,
        iterations=5,
        largest_side=inf,
        block=inf,
        gathered_bytes=2.0,
        paged=False,
        on_host=False,
        source="Liu et al., arXiv:2502.16982, section 2.3 and algorithm 1: whole matrices are gathered in bf16 and "
        "orthogonalised by five steps of Newton-Schulz; embeddings, head, norms and biases take AdamW",
    ),
    Optimizer(
        name="soap",
        matrices=_SOAP,
        tables=_ADAM,
        others=_ADAM,
        # Gradient and momentum into the bases, the update out of them.
        products=(*_STATISTICS, *_on_both_sides("rotation", 3.0), *_now_and_then("basis", _QR_TIMES, 10.0)),
        iterations=1,
        largest_side=10_000.0,
        block=inf,
        gathered_bytes=4.0,
        paged=False,
        on_host=False,
        source="Vyas et al., arXiv:2409.11321, algorithm 3: Adam in Shampoo's eigenbases, in fp32; nikhilvyas/SOAP "
        "soap.py: bases by QR every 10 steps, none of sides beyond 10,000; embeddings, head, norms and biases take "
        "AdamW; the rate of QR is assumed",
    ),
    Optimizer(
        name="shampoo",
        matrices=_SHAMPOO,
        tables=_ADAM,
        others=_ADAM,
        products=(*_STATISTICS, *_on_both_sides("root", 1.0), *_now_and_then("eigen", _EIGEN_TIMES, 100.0)),
        iterations=1,
        largest_side=inf,
        block=8192.0,
        gathered_bytes=4.0,
        paged=False,
        on_host=False,
        source="Gupta et al., arXiv:1802.09568, algorithm 1; Shi et al., arXiv:2309.06497, sections 2 and 3, as "
        "facebookresearch/optimizers distributed_shampoo/README.md sets it: blocks of 8,192, roots every 100 steps, "
        "Adam's grafting; embeddings, head, norms and "
        "biases take AdamW; the rate of eigenvalues is assumed",
    ),
)

OPTIMIZERS: dict[str, Optimizer] = {optimizer.name: optimizer for optimizer in _RECORDS}
"""Every optimizer, by name."""


def optimizer(name: str) -> Optimizer:
    """Return the named optimizer.

    Raises
    ------
    RecipeError
        If there is none of that name.
    """
    if name not in OPTIMIZERS:
        raise RecipeError(f"optimizer: {name!r} is unknown; {choices_hint(name, OPTIMIZERS)}")
    return OPTIMIZERS[name]
