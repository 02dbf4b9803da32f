"""Operations on positions and axes: permute, crop, upsample, repeat, reverse. None looks at single units.

Labels, scales and signs go through. Upsampling weighs positions with weights that sum to one, so flips about any point
go through as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect
from canon.ops.geometry import channel_axis, from_last, spatial, to_last, with_channels
from canon.ops.linear import emit_channels, hold_positions


class Permute(OpKind):
    """Axes in another order: axis i of what goes out is axis dims[i] of what comes in. attrs: dims (batch excluded, from 0)."""

    kind = "permute"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "order of the axes", sorted(op.attrs["dims"]), list(range(len(x))))
        return tuple(x[int(d)] for d in op.attrs["dims"])

    def equations(self, op: Op, eq: Equations) -> None:
        eq.emit([eq.inputs[0][int(d)] for d in op.attrs["dims"]])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0].transpose(0, *(1 + int(d) for d in op.attrs["dims"]))


class _OnPositions(OpKind):
    holds_zero = True

    def equations(self, op: Op, eq: Equations) -> None:
        hold_positions(op, eq)
        emit_channels(op, eq, eq.inputs[0][channel_axis(op)])


class Cropping(_OnPositions):
    """Positions cut off. attrs: cropping [[lo, hi], ...] per spatial axis, channels."""

    kind = "cropping"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        cuts = [(int(lo), int(hi)) for lo, hi in op.attrs["cropping"]]
        expect(op, "number of axes to crop", len(cuts), len(x) - 1)
        sizes = tuple(None if n is None else n - lo - hi for n, (lo, hi) in zip(spatial(op, x), cuts, strict=True))
        if any(n is not None and n < 1 for n in sizes):
            raise ShapeConflict(op.name, f"nothing is left of a value of shape {x}")
        return with_channels(op, sizes, x[channel_axis(op)])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x = to_last(op, inputs[0])
        kept = tuple(slice(int(lo), n - int(hi)) for n, (lo, hi) in zip(x.shape[1:], op.attrs["cropping"], strict=False))
        return from_last(op, x[(slice(None), *kept)])


class Upsampling(_OnPositions):
    """Each position repeated, or values in between taken linearly. attrs: size [...], channels; interpolation: "nearest" or
    "bilinear"; half_pixel (True): whether positions are the middles of pixels (TensorFlow 2) or their corners (1).
    """

    kind = "upsampling"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "number of axes to upsample", len(op.attrs["size"]), len(x) - 1)
        sizes = tuple(None if n is None else n * int(k) for n, k in zip(spatial(op, x), op.attrs["size"], strict=True))
        return with_channels(op, sizes, x[channel_axis(op)])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, how = to_last(op, inputs[0]), op.attrs.get("interpolation", "nearest")
        if how not in ("nearest", "bilinear"):
            raise UnsupportedOp(op.name, f"upsampling by {how} interpolation cannot be run")
        for i, k in enumerate(int(k) for k in op.attrs["size"]):
            if how == "nearest":
                x = np.repeat(x, k, axis=1 + i)
            elif k > 1:
                x = _between(x, 1 + i, k, bool(op.attrs.get("half_pixel", True)))
        return from_last(op, x)


def _between(x: Array, axis: int, factor: int, half_pixel: bool) -> Array:
    """Linear interpolation at `factor` times as many places along an axis."""
    n = x.shape[axis]
    at = np.arange(n * factor)
    place = np.maximum((at + 0.5) / factor - 0.5, 0.0) if half_pixel else at / factor
    lo = np.minimum(np.floor(place).astype(np.intp), n - 1)
    share = (place - lo).astype(x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    upper = np.take(x, np.minimum(lo + 1, n - 1), axis)
    return np.asarray(np.take(x, lo, axis) * (1 - share) + upper * share)


class RepeatVector(OpKind):
    """A vector at each of n steps. attrs: n."""

    kind = "repeat_vector"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return (int(op.attrs["n"]), *inputs[0])

    def equations(self, op: Op, eq: Equations) -> None:
        eq.emit([eq.fixed(int(op.attrs["n"]), "positions"), *eq.inputs[0]])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.repeat(inputs[0][:, None], int(op.attrs["n"]), axis=1)


class Reverse(OpKind):
    """An axis the other way round (the steps of a backward layer). attrs: axis (0; batch excluded)."""

    kind = "reverse"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        at = int(op.attrs.get("axis", 0)) % len(axes)
        eq.fix(axes[at], f"{op.name} reverses them")
        axes[at] = eq.fixed(eq.out_shape[at], "positions")
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        return np.flip(x, 1 + int(op.attrs.get("axis", 0)) % (x.ndim - 1))
