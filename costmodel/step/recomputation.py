"""What activation recomputation runs again, and what it keeps instead: the one reading of policy and modules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodel.bill.lines import Array
from costmodel.step.anatomy.operator_parts import Operator

_NONE, _SELECTIVE, _FULL = range(3)


class Recomputation(NamedTuple):
    """The policy of each layout, and what the framework means by it."""

    policy: Array
    """0 nothing, 1 the `modules`, 2 whole layers."""
    modules: tuple[str, ...]
    """What the selective policy runs again."""
    stops_early: bool
    """A recomputed layer stops once it has made all that its backward pass needs."""

    @property
    def anything(self) -> Array:
        """1 where anything is run again. [-]"""
        return np.asarray(self.policy > _NONE, dtype=np.float64)

    @property
    def whole_layers(self) -> Array:
        """1 where whole layers are run again. [-]"""
        return np.asarray(self.policy == _FULL, dtype=np.float64)

    @property
    def holds_inputs(self) -> Array:
        """1 where each layer keeps its input, to start again from it: as a whole or operator by operator. [-]"""
        return self.anything if "every_second_matmul" in self.modules else self.whole_layers

    def of_module(self, module: str) -> Array:
        """1 where the collectives of a module are run again: it is named, or whole layers are. [-]"""
        return self.anything if module in self.modules else self.whole_layers

    def of_sum_after(self, part: str) -> Array:
        """1 where the sum that ends attention or the MLP is run again; early stop leaves out the layer's last. [-]"""
        return self.whole_layers * (0.0 if self.stops_early and part == "mlp" else 1.0)

    def of_operator(self, operator: Operator) -> tuple[Array, Array]:
        """Return the share of an operator that is run again, and the bytes of its output that are selected."""
        if operator.part in ("embedding", "head"):
            # Checkpoints are of layers.
            return np.zeros(self.policy.shape), np.asarray(operator.saved_bytes)
        named, selected = self._selective(operator)
        # Nothing that a layer's backward pass needs is made by its last operators: their inputs are what it saved.
        last = operator.part == "mlp" and operator.role in ("row", "residual")
        shares = np.asarray([0.0, 0.0, 0.0] if last and self.stops_early else [0.0, named, 1.0])
        saved: Array = operator.saved_bytes
        still_saved = np.where(
            self.policy == _NONE, saved, np.where(self.policy == _SELECTIVE, selected, 0.0)
        )
        return shares[self.policy.astype(np.int64)], np.asarray(still_saved)

    def _selective(self, operator: Operator) -> tuple[float, Array]:
        """Return the same under the selective policy.

        Per-operator checkpointing ("every_second_matmul", torchtitan) keeps attention and the output
        of every second product, needed or not, and runs the rest again.
        """
        every_second = "every_second_matmul" in self.modules
        nothing = np.asarray(0.0)
        if operator.modules & set(self.modules):
            return 1.0, nothing
        after_attention = operator.part == "attention" and operator.role in ("row", "residual")
        if "attention_output" in self.modules and after_attention:
            return 1.0, nothing
        if every_second and operator.is_product:
            return 0.5, np.asarray(0.5 * 2.0 * operator.m * operator.n * operator.groups)
        if every_second and operator.kind == "memory":
            return 1.0, nothing
        if "all_but_qkv" in self.modules and "qkv" not in operator.modules:
            return 1.0, nothing
        if "every_second_layer" in self.modules:
            return 0.5, np.asarray(0.5 * operator.saved_bytes)
        return 0.0, np.asarray(operator.saved_bytes)
