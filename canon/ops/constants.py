"""Values meeting constants that the network holds: added, multiplied, or bounds between which it is clipped.

A constant runs along some axes of the value and has size one along the others. Added, it has the labels, scale and sign of
the value, s -> c s; multiplied, it is a gain with a factor on either side, g -> c_out g / c_in; as a bound it has labels alone.
Along an axis on which an added constant does not vary, no scale and no sign is free. Numbers common to all entries are
attributes (rescale, clip): they are no parameters of any unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, AxisRef, Equations, Leg, Op, OpKind, Shape, across, expect, labels_only, plain, writes


class _WithConstant(OpKind):
    """roles: tensors in the value's shape, with 1 along axes on which they do not vary."""

    affine = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        for role, found in params.items():
            expect(op, f"number of axes of the {role}", len(found), len(x))
            if any(c not in (1, n) for c, n in zip(found, x, strict=True) if n is not None):
                raise ShapeConflict(op.name, f"a {role} of shape {found} meets a value of shape {x}")
        return x


class AddConstant(_WithConstant):
    """x + constant. constant: in the value's shape, 1 where it does not vary."""

    kind = "add_constant"
    roles = ("constant",)

    def equations(self, op: Op, eq: Equations) -> None:
        shape = eq.param_shapes["constant"]
        along = [i for i, c in enumerate(shape) if c > 1]
        legs, axes = [], []
        for i, (inner, c, n) in enumerate(zip(eq.inputs[0], shape, eq.in_shapes[0], strict=True)):
            eq.units(inner)
            out = inner
            if along == [i]:  # it takes the shift of a flip about another point than zero
                out = eq.alike(inner)
                eq.scale((out, 1), (inner, -1))
                eq.sign((out, 1), (inner, -1))
            else:
                eq.centre(inner, 0.0)
            if c == 1 and n != 1:
                labels_only(eq, inner)
            legs.append(writes(c, out) if c > 1 else plain(1))
            axes.append(out)
        eq.param("constant", *legs)
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] + params["constant"]

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        constant = params["constant"]
        moved = (0.0 if t_in is None else t_in) + (0.0 if t_out is None else t_out)
        return {"constant": constant + np.asarray(moved).reshape([-1 if c > 1 else 1 for c in constant.shape])}


class MultiplyConstant(_WithConstant):
    """constant x. constant: in the value's shape, 1 where it does not vary.

    Of several axes along which it runs, the last carries the factors that are free: on the others too they would say the
    same thing twice.
    """

    kind = "multiply_constant"
    roles = ("constant",)
    holds_zero = True

    def equations(self, op: Op, eq: Equations) -> None:
        shape = eq.param_shapes["constant"]
        last = max((i for i, c in enumerate(shape) if c > 1), default=-1)
        legs: list[Leg] = []
        axes: list[AxisRef] = []
        for i, (inner, c) in enumerate(zip(eq.inputs[0], shape, strict=True)):
            eq.centre(inner, 0.0)
            out = inner
            if c > 1:
                eq.units(inner)
            if i == last:
                out = eq.alike(inner)
                eq.units(out)
                eq.centre(out, 0.0)
            legs.append(across(c, out, inner) if i == last else Leg(c, inner) if c > 1 else plain(1))
            axes.append(out)
        eq.param("constant", *legs)
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.asarray(inputs[0] * params["constant"])


class Rescale(OpKind):
    """factor x + offset, with two numbers for all entries: anything that is linear goes through where offset is zero, labels
    where it is not. attrs: factor (1), offset (0).
    """

    kind = "rescale"
    affine = True

    def _numbers(self, op: Op) -> tuple[float, float]:
        return float(op.attrs.get("factor", 1.0)), float(op.attrs.get("offset", 0.0))

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def keeps_zero(self, op: Op) -> bool:
        return self._numbers(op)[1] == 0

    def equations(self, op: Op, eq: Equations) -> None:
        factor, offset = self._numbers(op)
        for axis in eq.inputs[0]:
            if offset or not factor:
                labels_only(eq, axis)
            elif factor != 1:
                eq.centre(axis, 0.0)
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        factor, offset = self._numbers(op)
        return np.asarray(inputs[0] * factor + offset, inputs[0].dtype)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        factor, offset = self._numbers(op)
        return inputs[0] * abs(factor) + abs(offset)


class Clamp(_WithConstant):
    """x, but not below low and not above high, each entry with bounds of its own: labels only.

    low, high: in the value's shape, 1 where they do not vary.
    """

    kind = "clamp"
    roles = ("low", "high")
    affine = False

    def equations(self, op: Op, eq: Equations) -> None:
        labels_only(eq, *eq.inputs[0])
        for role, shape in eq.param_shapes.items():
            eq.param(role, *(Leg(c, a) if c > 1 else plain(1) for c, a in zip(shape, eq.inputs[0], strict=True)))
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.minimum(np.maximum(inputs[0], params["low"]), params["high"])

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        y = self.forward(op, inputs, {r: np.asarray(p, inputs[0].dtype) for r, p in params.items()})
        return y, np.maximum(sizes[0], np.abs(y))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.maximum(inputs[0], np.maximum(params["low"], params["high"]))
