"""Optimizers: what each keeps of a parameter, what its step moves, multiplies and sends; one record each.

Formulas are text in the language of `costmodel.bill.formula`; the text is the code. A new optimizer is a row of
``describe/data/optimizers.csv``, which says how it steps matrices, tables and other parameters (`_UPDATES`).

Nothing heavy is imported here: ``costmodel --help`` names the optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_records
from costmodel.base.errors import RecipeError, choices_hint


class Update(NamedTuple):
    """How one sort of parameters is stepped: the name of its kernel's line, and what it keeps.

    `state_bytes` are bytes a parameter of what it keeps, over `moments_bytes` (what the recipe keeps of Adam's two
    moments) and, per parameter, `sides` (rows and columns of its matrices) or `squares` (their squares, of the sides that
    the optimizer keeps square matrices of). `moved_bytes` are bytes a parameter that its kernels read and write in HBM,
    over `grad_bytes`, `state_bytes` (its own states and the main weights) and `weight_bytes`.
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
    """One optimizer: a row of ``describe/data/optimizers.csv``."""

    name: str
    matrices: Update
    tables: Update
    others: Update
    """How the matrices of the layers are stepped; the token table, learned positions and the output matrix; norms and
    biases."""
    products: tuple[Product, ...]
    """Products that each iteration makes of a matrix of the layers before it is stepped."""
    iterations: int
    largest_side: float
    """Sides beyond it have no square matrix; infinite where all have one, or none has. [-]"""
    block: float  # Matrices are cut into blocks of at most so many rows and columns. [-]
    gathered_bytes: float
    """Bytes an element in which the rank that iterates gathers a matrix which ranks share; 0 where each steps its part
    alone. [B]"""
    paged: bool  # Whether its states live on the host, and come and go with every step
    on_host: bool  # Whether a vectorised step of the host exists, which ``offload_optimizer`` needs
    source: str

    @property
    def has_own_steps(self) -> bool:
        """Whether it steps matrices in a way of their own, whose states do not follow from a part of them."""
        return len(self.updates) > 1 or self.matrices.counts_sides

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

# The gradient is read for its rows' and columns' means, and again for the update, which is written in fp32 and
# read for its root mean square before it is applied.
_TWICE_READ = "2 * grad_bytes + 8 + 2 * state_bytes + weight_bytes"
_ADAM = Update("adam", "moments", "moments_bytes", _IN_PLACE)

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


def _now_and_then(name: str, times: float) -> tuple[Product, ...]:
    """Return what is made of both square matrices now and then, as long as so many products of them a step."""
    return (
        Product(f"left_{name}", "short", "short", "short", "fp32", "short", times),
        Product(f"right_{name}", "long", "long", "long", "fp32", "long", times),
    )


# A QR factorisation and its Q are 8/3 n^3 FLOPs, 1.33 products, and the power step before it is one; symmetric
# eigenvalues and vectors are 9 n^3, 4.5 products (Golub and Van Loan, Matrix Computations, 4th ed., sections 5.2 and
# 8.3). Assumed, as no GPU's timings are at hand: a quarter and a twentieth of a product's rate.
_QR_TIMES = 1.0 + 4.0 * 8.0 / 6.0
_EIGEN_TIMES = 20.0 * 4.5


_UPDATES = {
    "adam": _ADAM,
    "adam-16-bits": Update("adam", "moments", "4", _IN_PLACE),
    # A byte for each of two moments, and their fp32 scales by blocks of 2,048.
    "adam-8-bits": Update("adam", "moments", "2 + 2 * 4 / 2048", _IN_PLACE),
    "momentum": Update("momentum", "momentum", "moments_bytes / 2", _IN_PLACE),
    "lion": Update("lion", "momentum", "moments_bytes / 2", _IN_PLACE),
    "sgd": Update("sgd", "nothing", "0", _IN_PLACE),
    "factored": Update("adafactor", "factors", "4 * sides", _TWICE_READ),
    "unfactored": Update("adafactor_vectors", "squares", "4", _TWICE_READ),
    # The momentum is written in 16 bits for the iteration, whose result is read.
    "muon": Update(
        "muon", "momentum", "moments_bytes / 2", "grad_bytes + 2 + 2 + 2 * state_bytes + weight_bytes"
    ),
    # Statistics of gradients on both sides, and the bases made of them, in fp32: four square matrices.
    "soap": Update("soap", "moments_and_bases", "moments_bytes + 8 * squares", _IN_PLACE),
    # A momentum, and the second moment of Adam, whose length the update takes (grafting); roots as SOAP's bases.
    "shampoo": Update("shampoo", "moments_and_roots", "moments_bytes + 8 * squares", _IN_PLACE),
}

_PRODUCTS = {
    # X <- a X + (b A + c A^2) X with A = X X^T, of the matrix on its short side: Newton-Schulz.
    "muon": (
        Product("outer", "short", "short", "long"),
        Product("square", "short", "short", "short"),
        Product("applied", "short", "long", "short"),
    ),
    # Gradient and momentum into the bases, the update out of them.
    "soap": (*_STATISTICS, *_on_both_sides("rotation", 3.0), *_now_and_then("basis", _QR_TIMES / 10.0)),
    "shampoo": (*_STATISTICS, *_on_both_sides("root", 1.0), *_now_and_then("eigen", _EIGEN_TIMES / 100.0)),
}


OPTIMIZERS: dict[str, Optimizer] = read_records(
    Path(__file__).parent / "data" / "optimizers.csv",
    Optimizer,
    matrices=lambda row: _UPDATES[row["matrices"]],
    tables=lambda row: _UPDATES[row["tables"]],
    others=lambda row: _UPDATES[row["others"]],
    products=lambda row: _PRODUCTS.get(row["name"], ()),
)
"""Every optimizer, by name."""


def optimizer(name: str) -> Optimizer:
    """Return the named optimizer; `RecipeError` if there is none of that name."""
    if name not in OPTIMIZERS:
        raise RecipeError(f"optimizer: {name!r} is unknown; {choices_hint(name, OPTIMIZERS)}")
    return OPTIMIZERS[name]
