"""Operations on several values: difference, mean, maximum, minimum, inner products.

All summands of a difference or mean are one space, as those of a sum are; an extremum too, but signs would turn it around.
Flips about another point than zero are left out: their points would have to be told apart summand by summand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import ClassVar

import numpy as np

from canon.errors import UnsupportedOp
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect
from canon.ops.structure import Joining


class _OneSpace(Joining):
    signs: ClassVar[bool] = True

    def equations(self, op: Op, eq: Equations) -> None:
        out = []
        for here in self.aligned(eq):
            first, *others = here
            for other in others:
                eq.same(first, other)
            if not self.signs:
                eq.units(first)
                eq.sign((first, 1))
            if len(here) < len(eq.inputs):  # a value without this axis meets every unit alike
                eq.scale((first, 1))
                eq.sign((first, 1))
            for part in here:
                eq.centre(part, 0.0)
            out.append(first)
        eq.emit(out)


class Subtract(_OneSpace):
    """a - b: one labelling, scale and sign, as in a sum."""

    kind = "subtract"
    commutes = False

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        a, b = inputs
        return a - b

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        a, b = inputs
        return a + b


class Average(_OneSpace):
    """The mean of several values: one labelling, scale and sign."""

    kind = "average"

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return reduce(np.add, inputs) / len(inputs)


class Maximum(_OneSpace):
    """The largest of several values, unit by unit: one labelling and positive scale."""

    kind = "maximum"
    signs = False

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return reduce(np.maximum, inputs)


class Minimum(_OneSpace):
    """The smallest of several values, unit by unit: one labelling and positive scale."""

    kind = "minimum"
    signs = False

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return reduce(np.minimum, inputs)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return reduce(np.maximum, inputs)


class Dot(OpKind):
    """Sum of x y along one axis of each; what is left of x comes first, then what is left of y (a 1 where nothing is).

    Along the axis that is summed: one labelling, scales inverse to each other, one sign. The axes that are left keep their
    labels, scales and signs; normalised (cosines), they keep signs, and no scale is free along the sum. Left out: any
    matrix and its inverse along the sum. attrs: axes [a, b], batch excluded; normalize.
    """

    kind = "dot"
    mixing = True

    def _axes(self, op: Op, shapes: Sequence[Sequence[object]]) -> list[int]:
        return [int(a) % len(s) for a, s in zip(op.attrs["axes"], shapes, strict=True)]

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        x, y = inputs
        if len(x) > 2 or len(y) > 2:
            raise UnsupportedOp(op.name, "a dot product of values with more than two axes")
        a, b = self._axes(op, inputs)
        if x[a] is not None and y[b] is not None:
            expect(op, "length of the second value", y[b], x[a])
        left = (*x[:a], *x[a + 1 :], *y[:b], *y[b + 1 :])
        return left or (1,)

    def equations(self, op: Op, eq: Equations) -> None:
        a, b = self._axes(op, eq.in_shapes)
        left = [axis for axes, at in zip(eq.inputs, (a, b), strict=True) for i, axis in enumerate(axes) if i != at]
        one, other = eq.inputs[0][a], eq.inputs[1][b]
        eq.same_labels(one, other)
        for axis in (one, other):
            eq.units(axis)
            eq.centre(axis, 0.0)
        eq.scale((one, 1), (other, 1))
        eq.sign((one, 1), (other, -1))
        for axis in left:
            eq.centre(axis, 0.0)
        if op.attrs.get("normalize"):
            for axis in (one, *left):
                eq.units(axis)
                eq.scale((axis, 1))
        eq.emit(left or [eq.fixed(1, "a number")])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._product(op, [self._normal(op, i, x, x)[0] for i, x in enumerate(inputs)])

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._product(op, inputs)

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        pairs = [self._normal(op, i, x, m) for i, (x, m) in enumerate(zip(inputs, sizes, strict=True))]
        return self._product(op, [x for x, _ in pairs]), self._product(op, [m for _, m in pairs])

    def _normal(self, op: Op, i: int, x: Array, m: Array) -> tuple[Array, Array]:
        """Both divided by the norm of x, the input number i, along its axis, where asked for."""
        if not op.attrs.get("normalize"):
            return x, m
        at = 1 + int(op.attrs["axes"][i]) % (x.ndim - 1)
        norm = np.sqrt(np.maximum((x * x).sum(axis=at, keepdims=True), 1e-12))
        return x / norm, m / norm

    def _product(self, op: Op, inputs: Sequence[Array]) -> Array:
        x, y = inputs
        a, b = (1 + at for at in self._axes(op, [x.shape[1:], y.shape[1:]]))
        x, y = np.moveaxis(x, a, -1), np.moveaxis(y, b, -1)
        spread = x.reshape(len(x), -1, x.shape[-1]) @ np.swapaxes(y.reshape(len(y), -1, y.shape[-1]), 1, 2)
        return spread.reshape(len(x), *((*x.shape[1:-1], *y.shape[1:-1]) or (1,)))
