"""Sequences: embedding of tokens, masking of steps, and the mean over the steps that are left.

A mask is a value of its own, computed by `step_mask` from what a masking layer reads, and the second input of what heeds
it (recurrent ops, masked_avg_pool): 1 at steps that count, 0 at steps that are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, labels_only, plain, writes


class Embedding(OpKind):
    """Row number x of a table. table (vocabulary, units): rows are anchored by their tokens, columns carry the units.

    Any relabelling, scale and sign of the units is absorbed; a flip about another point is not (there is no bias).
    """

    kind = "embedding"
    roles = ("table",)
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        expect(op, "rank of the table", len(params["table"]), 2)
        return (*inputs[0], params["table"][1])

    def tokens(self, op: Op, params: Mapping[str, tuple[int, ...]]) -> int | None:
        return params["table"][0]

    def equations(self, op: Op, eq: Equations) -> None:
        rows, n = eq.param_shapes["table"]
        labels_only(eq, *eq.inputs[0])
        out = eq.fresh(n)
        eq.centre(out, 0.0)
        eq.param("table", plain(rows), writes(n, out))
        eq.emit([*eq.inputs[0], out])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        rows = x.astype(np.intp)
        last = len(params["table"]) - 1
        if x.size and (rows.min() < 0 or rows.max() > last or (rows != x).any()):
            raise ShapeConflict(op.name, f"tokens are whole numbers from 0 to {last}, and some input is not")
        return params["table"][rows]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.forward(op, inputs, params)

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        rows = np.asarray(self.forward(op, inputs, params), inputs[0].dtype)  # only those that are read are widened
        return rows, np.abs(rows)


class _Masks(OpKind):
    mixing = True
    holds_zero = True

    def _value(self, op: Op) -> float:
        return float(op.attrs.get("mask_value", 0.0))

    def _looked_at(self, op: Op, eq: Equations) -> None:
        """Whether all units equal the mask's value: that they are zero has any scale and sign, another value has none."""
        *steps, features = eq.inputs[0]
        eq.units(features)
        eq.centre(features, 0.0)
        labels_only(eq, *steps, *([features] if self._value(op) else []))


class Masking(_Masks):
    """Steps whose units all equal mask_value become zero; the others stay. attrs: mask_value."""

    kind = "masking"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        self._looked_at(op, eq)
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        return np.asarray(x * (x != self._value(op)).any(axis=-1, keepdims=True))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0]


class StepMask(_Masks):
    """1 where some unit of a step differs from mask_value, 0 where none does. attrs: mask_value; tokens: whether the value
    holds tokens (no axis of units), 0 where the token is mask_value.
    """

    kind = "step_mask"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        if op.attrs.get("tokens"):
            return inputs[0]
        if not inputs[0]:
            raise UnsupportedOp(op.name, "a mask over a value without axes")
        return inputs[0][:-1]

    def equations(self, op: Op, eq: Equations) -> None:
        lead = list(eq.inputs[0])
        if not op.attrs.get("tokens"):
            self._looked_at(op, eq)
            lead.pop()
        for axis in lead:
            eq.fix(axis, f"steps that {op.name} looks at")
        eq.emit([eq.fixed(n, "positions") for n in eq.out_shape])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        found = x != self._value(op)
        return np.asarray(found if op.attrs.get("tokens") else found.any(axis=-1), x.dtype)

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        mask = self.forward(op, inputs, params)
        return mask, mask


class MaskedAvgPool(OpKind):
    """The mean over the steps that a mask leaves: sum of mask x / sum of mask. Inputs: the value (steps, units), the mask."""

    kind = "masked_avg_pool"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        x, mask = inputs
        expect(op, "rank of the value", len(x), 2)
        expect(op, "rank of the mask", len(mask), 1)
        return x[-1:]

    def equations(self, op: Op, eq: Equations) -> None:
        (steps, units), (mask,) = eq.inputs
        eq.fix(steps, f"steps that {op.name} averages over")
        eq.fix(mask, "the steps of a mask")
        eq.emit([units])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, mask = inputs
        with np.errstate(invalid="ignore"):  # a sample whose steps are all masked has no mean
            return np.asarray(np.einsum("bt,btf->bf", mask, x) / mask.sum(axis=1, keepdims=True))
