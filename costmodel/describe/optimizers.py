"""Optimizers: what each keeps of a parameter, what its step moves, multiplies and sends; one record each.

Formulas are text in the language of `costmodel.bill.formula`; the text is the code. A new optimizer is a row of
``describe/data/optimizers.csv``, which says how it steps matrices, tables and other parameters (`_UPDATES`).

Nothing heavy is imported here: ``costmodel --help`` names the optimizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_records, read_rows
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


_DATA = Path(__file__).parent / "data"
_UPDATES = read_records(_DATA / "optimizer_updates.csv", Update)
_PRODUCTS = read_rows(_DATA / "optimizer_products.csv")


def _products_of(name: str) -> tuple[Product, ...]:
    """Return the products of an optimizer's iterations."""
    return tuple(
        Product(**{key: row[key] for key in Product._fields} | {"times": float(row["times"])})
        for row in _PRODUCTS
        if row["optimizer"] == name
    )


OPTIMIZERS: dict[str, Optimizer] = read_records(
    _DATA / "optimizers.csv",
    Optimizer,
    matrices=lambda row: _UPDATES[row["matrices"]],
    tables=lambda row: _UPDATES[row["tables"]],
    others=lambda row: _UPDATES[row["others"]],
    products=lambda row: _products_of(row["name"]),
)
"""Every optimizer, by name."""


def optimizer(name: str) -> Optimizer:
    """Return the named optimizer; `RecipeError` if there is none of that name."""
    if name not in OPTIMIZERS:
        raise RecipeError(f"optimizer: {name!r} is unknown; {choices_hint(name, OPTIMIZERS)}")
    return OPTIMIZERS[name]
