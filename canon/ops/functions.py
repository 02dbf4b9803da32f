"""More elementwise functions, and log-softmax. What goes through: odd ones let signs through, homogeneous ones scales.

Even ones (abs, square, cos) see no sign of what comes in: that sign is free and goes no further. Left out, as they need
gauges that are no factor: the shift of exp (b + t, v e^-t), and the lattice of sin and cos (b + pi k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from canon.ops.activations import Elementwise
from canon.ops.base import Array, Equations, Op, OpKind, Shape


class Exp(Elementwise):
    """e^z: labels only."""

    kind = "exp"

    def f(self, op: Op, z: Array) -> Array:
        return np.exp(z)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.asarray(np.exp(inputs[0]) * (1 + inputs[0]))

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        y = np.exp(inputs[0])
        return y, y * (1 + sizes[0])


class Sin(Elementwise):
    """sin z, odd: signs."""

    kind = "sin"
    odd = True

    def f(self, op: Op, z: Array) -> Array:
        return np.sin(z)


class HardTanh(Elementwise):
    """clip(z, -1, 1), odd: signs."""

    kind = "hard_tanh"
    odd = True

    def f(self, op: Op, z: Array) -> Array:
        return np.clip(z, -1, 1)


class _Even(Elementwise):
    """f(-z) = f(z); degree: f(c z) = c^degree f(z) for positive c, 0 where there is no such degree."""

    degree: ClassVar[int] = 0

    def equations(self, op: Op, eq: Equations) -> None:
        axes = []
        for inner in eq.inputs[0]:
            eq.units(inner)
            out = eq.alike(inner)
            eq.sign((out, 1))
            eq.centre(inner, 0.0)
            eq.centre(out, 0.0)
            if self.degree:
                eq.scale((out, 1), (inner, -self.degree))
            else:
                eq.scale((inner, 1))
                eq.scale((out, 1))
            axes.append(out)
        eq.emit(axes)


class Abs(_Even):
    """|z|: the sign of what comes in, and scales."""

    kind = "abs"
    degree = 1

    def f(self, op: Op, z: Array) -> Array:
        return np.abs(z)


class Square(_Even):
    """z^2: the sign of what comes in; a scale c goes out as c^2."""

    kind = "square"
    degree = 2

    def f(self, op: Op, z: Array) -> Array:
        return z * z

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return 2 * inputs[0] * inputs[0]


class Cos(_Even):
    """cos z: the sign of what comes in."""

    kind = "cos"
    bound = (1.0, 1.0)

    def f(self, op: Op, z: Array) -> Array:
        return np.cos(z)


class HardSwish(Elementwise):
    """z clip(z + 3, 0, 6) / 6: labels only."""

    kind = "hard_swish"
    bound = (1.5, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        return np.asarray(z * np.clip(z + 3, 0, 6) / 6)


class Mish(Elementwise):
    """z tanh(log(1 + e^z)): labels only."""

    kind = "mish"
    bound = (1.1, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        return np.asarray(z * np.tanh(np.logaddexp(z, 0)))


class Celu(Elementwise):
    """z or alpha (e^(z / alpha) - 1) below zero: labels only. attrs: alpha."""

    kind = "celu"

    def f(self, op: Op, z: Array) -> Array:
        alpha = float(op.attrs.get("alpha", 1.0))
        return np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0) / alpha))


class LogSigmoid(Elementwise):
    """log s(z): labels only."""

    kind = "log_sigmoid"
    bound = (1.0, 1.0)

    def f(self, op: Op, z: Array) -> Array:
        return -np.logaddexp(-z, 0)


class ThresholdedRelu(Elementwise):
    """z above theta, else 0: scales where theta is 0. attrs: theta."""

    kind = "thresholded_relu"

    def scales(self, op: Op) -> bool:
        return float(op.attrs["theta"]) == 0

    def f(self, op: Op, z: Array) -> Array:
        return np.where(z > float(op.attrs["theta"]), z, 0)


class GeneralRelu(Elementwise):
    """max_value from max_value on, z from threshold on, negative_slope (z - threshold) below: a Keras ReLU layer.

    Scales where threshold is 0 and no max_value is given; labels otherwise. attrs: negative_slope, threshold, max_value.
    """

    kind = "general_relu"

    def _attrs(self, op: Op) -> tuple[float, float, float]:
        cap = op.attrs.get("max_value")
        slope, threshold = (float(op.attrs.get(name, 0.0)) for name in ("negative_slope", "threshold"))
        return slope, threshold, np.inf if cap is None else float(cap)

    def scales(self, op: Op) -> bool:
        _, threshold, cap = self._attrs(op)
        return threshold == 0 and cap == np.inf

    def f(self, op: Op, z: Array) -> Array:
        slope, threshold, cap = self._attrs(op)
        return np.where(z >= cap, cap, np.where(z >= threshold, z, slope * (z - threshold)))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        slope, threshold, _ = self._attrs(op)
        return max(1.0, abs(slope)) * (inputs[0] + abs(threshold))


class LogSoftmax(OpKind):
    """z - log sum e^z along an axis: labels only; a shift common to all logits is folded away. attrs: axis."""

    kind = "log_softmax"
    mixing = True

    def blind_axis(self, op: Op) -> int | None:
        return int(op.attrs.get("axis", -1))

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        for inner in eq.inputs[0]:
            eq.units(inner)
            eq.scale((inner, 1))
            eq.sign((inner, 1))
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (z,) = inputs
        z = z - z.max(**self._along(op))
        return np.asarray(z - np.log(np.exp(z).sum(**self._along(op))))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (m,) = inputs
        along = self._along(op)
        return np.asarray(m + m.max(**along) + np.log(m.shape[along["axis"]]))

    def _along(self, op: Op) -> dict[str, Any]:
        axis = int(op.attrs.get("axis", -1))
        return {"axis": axis if axis < 0 else axis + 1, "keepdims": True}
