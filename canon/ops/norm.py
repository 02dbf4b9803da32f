"""Batch norm at inference, and the scale and shift it folds to.

z -> gamma (z - mean) / sqrt(variance + eps) + beta, per channel. The labelling of both sides is one; scale and sign are
free on either side: gamma takes c_out / c_in, mean c_in, beta c_out. That rule is exact whatever eps, and never touches
the variance; the rule of a training step, variance -> c^2 (variance + eps) - eps, is the same function folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.ops.base import Array, Equations, Leg, Op, OpKind, Shape, across, expect, labels_only, writes


def _axis(op: Op, rank: int) -> int:
    return int(op.attrs.get("axis", -1)) % rank


def _per_channel(op: Op, x: Array, p: Array) -> Array:
    """A vector over channels, shaped to meet a batch value."""
    shape = [1] * x.ndim
    shape[1 + _axis(op, x.ndim - 1)] = -1
    return p.reshape(shape)


class BatchNorm(OpKind):
    """gamma, beta (optional), mean, variance: (channels,). attrs: axis (batch excluded), eps."""

    kind = "batch_norm"
    roles = ("gamma", "beta", "mean", "variance")
    optional = ("gamma", "beta")
    affine = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        n = x[_axis(op, len(x))]
        for role, found in params.items():
            expect(op, f"shape of {role}", found, (n,) if n is not None else found[:1])
        return (*x[: _axis(op, len(x))], params["mean"][0], *x[_axis(op, len(x)) + 1 :])

    def equations(self, op: Op, eq: Equations) -> None:
        at = _axis(op, len(eq.out_shape))
        inner, n = eq.inputs[0][at], eq.out_shape[at] or 0
        labels_only(eq, *(axis for i, axis in enumerate(eq.inputs[0]) if i != at))
        eq.units(inner)
        out = eq.alike(inner)
        eq.units(out)
        if "gamma" in op.params:
            eq.param("gamma", across(n, out, inner))
        else:
            eq.scale((out, 1), (inner, -1))
            eq.sign((out, 1), (inner, -1))
        if "beta" in op.params:
            eq.param("beta", writes(n, out))
        eq.param("mean", Leg(n, inner, up=(inner,)))
        eq.param("variance", Leg(n, inner))
        eq.emit([out if i == at else axis for i, axis in enumerate(eq.inputs[0])])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        gain, shift = folded_gain(op, params)
        return (x - _per_channel(op, x, params["mean"])) * _per_channel(op, x, gain) + _per_channel(op, x, shift)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        gain, shift = folded_gain(op, params)
        return (x + _per_channel(op, x, params["mean"])) * _per_channel(op, x, gain) + _per_channel(op, x, shift)

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        mean = params["mean"] - (0.0 if t_in is None else t_in)
        if t_out is None:
            return {"mean": mean}
        if "beta" in params:
            return {"mean": mean, "beta": params["beta"] + t_out}
        return {"mean": mean - t_out / folded_gain(op, params)[0]}


def folded_gain(op: Op, params: Mapping[str, Array]) -> tuple[Array, Array]:
    """gamma / sqrt(variance + eps) and beta, each (channels,), in the dtype of the variance but never below float64."""
    variance = np.asarray(params["variance"], np.float64)
    gain = 1.0 / np.sqrt(variance + float(op.attrs["eps"]))
    if "gamma" in params:
        gain = gain * params["gamma"]
    return gain, np.asarray(params.get("beta", np.zeros_like(variance)), np.float64)


class ScaleShift(OpKind):
    """y = scale x + shift per channel: what a batch norm folds to where no kernel can take it. attrs: axis."""

    kind = "scale_shift"
    roles = ("scale", "shift")
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        for role, found in params.items():
            expect(op, f"shape of {role}", found, (inputs[0][_axis(op, len(inputs[0]))],))
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        at = _axis(op, len(eq.out_shape))
        inner, n = eq.inputs[0][at], eq.out_shape[at] or 0
        labels_only(eq, *(axis for i, axis in enumerate(eq.inputs[0]) if i != at))
        eq.units(inner)
        out = eq.alike(inner)
        eq.units(out)
        eq.param("scale", across(n, out, inner))
        eq.param("shift", writes(n, out))
        eq.emit([out if i == at else axis for i, axis in enumerate(eq.inputs[0])])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        return x * _per_channel(op, x, params["scale"]) + _per_channel(op, x, params["shift"])

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        moved = params["shift"] + (0.0 if t_out is None else t_out)
        return {"shift": moved + params["scale"] * t_in if t_in is not None else moved}
