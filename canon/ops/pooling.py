"""Poolings. An average is linear and commutes with any scale or sign; a maximum only with positive scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from canon.ops.base import Array, Equations, Op, OpKind, Shape
from canon.ops.geometry import (
    channel_axis,
    from_last,
    offsets,
    out_sizes,
    padded,
    spatial,
    to_last,
    with_channels,
)


class _Pool(OpKind):
    maximum: ClassVar[bool]
    holds_zero = True

    def _window(self, op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
        k = tuple(int(v) for v in op.attrs["pool"])
        return k, tuple(int(v) for v in op.attrs.get("strides") or k)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        k, strides = self._window(op)
        sizes = out_sizes(op, spatial(op, x), k, strides, (1,) * len(k))
        return with_channels(op, sizes, x[channel_axis(op)])

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op) % len(eq.out_shape)
        axes = []
        for i, (axis, n) in enumerate(zip(eq.inputs[0], eq.out_shape, strict=True)):
            if i == c:
                if self.maximum:
                    eq.units(axis)
                    eq.sign((axis, 1))
                axes.append(axis)
            else:
                eq.fix(axis, f"positions that {op.name} pools over")
                axes.append(eq.fixed(n, "positions"))
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        k, strides = self._window(op)
        there = Op(op.kind, op.name, op.inputs, op.output, attrs={**op.attrs, "strides": strides})
        raw = to_last(op, inputs[0])
        x, steps, dilation, sizes = padded(there, raw, k, -np.inf if self.maximum else 0.0)
        if self.maximum:
            y: Array | None = None
            for _, part in offsets(x, k, steps, dilation, sizes):
                y = part if y is None else np.maximum(y, part)
            return from_last(op, np.asarray(y))
        ones = padded(there, np.ones((1, *raw.shape[1:-1], 1), raw.dtype), k, 0.0)[0]
        total = sum(part for _, part in offsets(x, k, steps, dilation, sizes))
        count = sum(part for _, part in offsets(ones, k, steps, dilation, sizes))
        return from_last(op, np.asarray(total / count))


class MaxPool(_Pool):
    """Maximum in a window; padding never wins. attrs: pool, strides, padding, channels."""

    kind = "max_pool"
    maximum = True


class AvgPool(_Pool):
    """Mean over the cells of a window that are not padding. attrs: pool, strides, padding, channels."""

    kind = "avg_pool"
    maximum = False


class _GlobalPool(OpKind):
    maximum: ClassVar[bool]
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        c = x[channel_axis(op)]
        return with_channels(op, (1,) * (len(x) - 1), c) if op.attrs.get("keepdims") else (c,)

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        c = channel_axis(op) % len(axes)
        for i, axis in enumerate(axes):
            if i != c:
                eq.fix(axis, f"positions that {op.name} pools over")
        if self.maximum:
            eq.units(axes[c])
            eq.sign((axes[c], 1))
        if not op.attrs.get("keepdims"):
            eq.emit([axes[c]])
            return
        eq.emit([axes[c] if i == c else eq.fixed(1, "positions") for i in range(len(axes))])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        first = channel_axis(op) == 0
        axes = tuple(range(2, x.ndim)) if first else tuple(range(1, x.ndim - 1))
        keep = bool(op.attrs.get("keepdims"))
        return np.asarray(x.max(axis=axes, keepdims=keep) if self.maximum else x.mean(axis=axes, keepdims=keep))


class GlobalMaxPool(_GlobalPool):
    """Maximum over all positions. attrs: channels, keepdims."""

    kind = "global_max_pool"
    maximum = True


class GlobalAvgPool(_GlobalPool):
    """Mean over all positions. attrs: channels, keepdims."""

    kind = "global_avg_pool"
    maximum = False
