"""Elementwise nonlinearities, and softmax. Each class says what it lets through of a unit's scale and sign.

All keep labels. Homogeneous ones (relu, leaky relu, prelu) let positive scales through, odd ones (tanh, softsign) signs;
sigmoid, hard sigmoid and relu6 are odd about a point, so their flips move a constant into the readers' biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from canon.ops.base import Array, Equations, Leg, Op, OpKind, Shape, expect


class Elementwise(OpKind):
    """Common to all functions of single numbers.

    scale, odd: what goes through; centres: the points (input, output) about which a flip acts;
    bound: a factor and an offset with |f(z)| <= bound[0] |z| + bound[1] and |f'| <= bound[0].
    """

    scale: ClassVar[bool] = False
    odd: ClassVar[bool] = False
    bound: ClassVar[tuple[float, float]] = (1.0, 0.0)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def centres(self, op: Op) -> tuple[float, float]:
        """The points, of what comes in and of what goes out, about which a flip acts."""
        return 0.0, 0.0

    def scales(self, op: Op) -> bool:
        """`scale`, where attributes decide."""
        return self.scale

    def keeps_zero(self, op: Op) -> bool:
        return not self.forward(op, [np.zeros(1)], {}).any()

    def equations(self, op: Op, eq: Equations) -> None:
        about_in, about_out = self.centres(op)
        axes = []
        for inner in eq.inputs[0]:
            eq.units(inner)
            out = eq.alike(inner) if about_in != about_out else inner
            if not self.scales(op):
                eq.scale((inner, 1))
                eq.scale((out, 1))
            if not self.odd:
                eq.sign((inner, 1))
                eq.sign((out, 1))
            elif out is not inner:
                eq.sign((inner, 1), (out, -1))
            if self.odd:
                eq.centre(inner, about_in)
                eq.centre(out, about_out)
            axes.append(out)
        eq.emit(axes)

    def f(self, op: Op, z: Array) -> Array:
        raise NotImplementedError

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.f(op, inputs[0])

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] * self.bound[0] + self.bound[1]


class Relu(Elementwise):
    """max(z, 0): positive scales."""

    kind = "relu"
    scale = True

    def f(self, op: Op, z: Array) -> Array:
        return np.maximum(z, 0)


class LeakyRelu(Elementwise):
    """z or alpha z below zero, alpha fixed: positive scales. attrs: alpha."""

    kind = "leaky_relu"
    scale = True

    def f(self, op: Op, z: Array) -> Array:
        return np.where(z > 0, z, float(op.attrs["alpha"]) * z)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] * max(1.0, abs(float(op.attrs["alpha"])))


class Relu6(Elementwise):
    """clip(z, 0, cap): flips about cap / 2. attrs: cap."""

    kind = "relu6"
    odd = True

    def centres(self, op: Op) -> tuple[float, float]:
        return float(op.attrs.get("cap", 6.0)) / 2, float(op.attrs.get("cap", 6.0)) / 2

    def f(self, op: Op, z: Array) -> Array:
        return np.clip(z, 0, float(op.attrs.get("cap", 6.0)))


class Tanh(Elementwise):
    """Odd: signs."""

    kind = "tanh"
    odd = True

    def f(self, op: Op, z: Array) -> Array:
        return np.tanh(z)


class Softsign(Elementwise):
    """z / (1 + |z|), odd: signs."""

    kind = "softsign"
    odd = True

    def f(self, op: Op, z: Array) -> Array:
        return np.asarray(z / (1 + np.abs(z)))


class Sigmoid(Elementwise):
    """s(-z) = 1 - s(z): flips about 0, 1/2."""

    kind = "sigmoid"
    odd = True
    bound = (0.25, 1.0)

    def centres(self, op: Op) -> tuple[float, float]:
        return 0.0, 0.5

    def f(self, op: Op, z: Array) -> Array:
        from scipy.special import expit

        return np.asarray(expit(z))


class HardSigmoid(Elementwise):
    """clip(slope z + 1/2, 0, 1): flips about 0, 1/2. attrs: slope (0.2 in Keras 1 and 2, 1/6 in Keras 3)."""

    kind = "hard_sigmoid"
    odd = True
    bound = (0.25, 1.0)

    def centres(self, op: Op) -> tuple[float, float]:
        return 0.0, 0.5

    def f(self, op: Op, z: Array) -> Array:
        return np.clip(float(op.attrs["slope"]) * z + 0.5, 0, 1)


class Elu(Elementwise):
    """z or alpha (e^z - 1) below zero: labels only. attrs: alpha."""

    kind = "elu"

    def f(self, op: Op, z: Array) -> Array:
        return np.where(z > 0, z, float(op.attrs.get("alpha", 1.0)) * np.expm1(np.minimum(z, 0)))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] * max(1.0, abs(float(op.attrs.get("alpha", 1.0))))


class Selu(Elementwise):
    """Scaled elu of Klambauer et al. 2017: labels only."""

    kind = "selu"
    bound = (1.76, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        alpha, gain = 1.6732632423543772, 1.0507009873554805
        return np.asarray(gain * np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0))))


class Gelu(Elementwise):
    """z Phi(z): labels only. attrs: approximate (the tanh form)."""

    kind = "gelu"
    bound = (1.13, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        from scipy.special import erf

        if op.attrs.get("approximate", False):
            return np.asarray(0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))))
        return np.asarray(0.5 * z * (1 + erf(z / np.sqrt(2))))


class Silu(Elementwise):
    """z s(z): labels only."""

    kind = "silu"
    bound = (1.1, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        from scipy.special import expit

        return np.asarray(z * expit(z))


class Softplus(Elementwise):
    """log(1 + e^z): labels only."""

    kind = "softplus"
    bound = (1.0, 1.0)

    def f(self, op: Op, z: Array) -> Array:
        return np.logaddexp(z, 0)


class UnknownActivation(Elementwise):
    """A function of single numbers that the file does not record: only relabelling is certain."""

    kind = "unknown_activation"

    def keeps_zero(self, op: Op) -> bool:
        return False

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return OpKind.forward(self, op, inputs, params)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return OpKind.forward(self, op, inputs, params)


class PRelu(Elementwise):
    """z or alpha z below zero, alpha a parameter in the value's shape, with 1 where it is shared.

    Positive scales go through. Where alpha has one entry per unit, a unit may be flipped as well:
    (w, b, alpha, v) -> (-w, -b, 1 / alpha, -alpha v), so the output is divided by -alpha.
    """

    kind = "prelu"
    roles = ("alpha",)
    scale = True

    def keeps_zero(self, op: Op) -> bool:
        return True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "rank of alpha", len(params["alpha"]), len(x))
        for n, a in zip(x, params["alpha"], strict=True):
            if n is not None and a not in (1, n):
                expect(op, "shape of alpha", params["alpha"], x)
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        alpha = eq.param_shapes["alpha"]
        along = [i for i, a in enumerate(alpha) if a > 1]
        legs, axes = [], []
        for i, (inner, a) in enumerate(zip(eq.inputs[0], alpha, strict=True)):
            eq.units(inner)
            if along == [i]:
                out = eq.alike(inner)
                eq.sign((inner, 1), (out, -1))
                eq.centre(inner, 0.0)
                eq.centre(out, 0.0)
                eq.slope(out, inner, "alpha")
                legs.append(Leg(a, inner, power=inner))
            else:
                out = inner
                eq.sign((inner, 1))
                legs.append(Leg(a, inner if a > 1 else None))
            axes.append(out)
        eq.param("alpha", *legs)
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (z,) = inputs
        return np.where(z > 0, z, params["alpha"][None] * z)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] * np.maximum(1.0, params["alpha"][None])


class Softmax(OpKind):
    """e^z / sum e^z along an axis: labels only; a shift common to all logits is folded away. attrs: axis."""

    kind = "softmax"
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
        axis = _batch_axis(op, z)
        e = np.exp(z - z.max(axis=axis, keepdims=True))
        return np.asarray(e / e.sum(axis=axis, keepdims=True))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (z,) = inputs
        axis: Any = _batch_axis(op, z)
        return np.broadcast_to(1 + z.max(axis=axis, keepdims=True), z.shape)


def _batch_axis(op: Op, z: Array) -> int:
    axis = int(op.attrs.get("axis", -1))
    return axis if axis < 0 else axis + 1
