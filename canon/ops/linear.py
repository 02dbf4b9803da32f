"""Affine maps with a kernel: dense, convolution, depthwise convolution.

Their kernels absorb any relabelling, scale and sign on both sides (W -> c_out W / c_in, b -> c_out b), so they
add no equation but for flips about a point other than zero: those need a bias, and no zeros padded in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops.base import Array, AxisRef, Equations, Op, OpKind, Shape, across, expect, labels_only, plain, reads, writes
from canon.ops.geometry import (
    channel_axis,
    from_last,
    offsets,
    out_sizes,
    padded,
    pads_zero,
    spatial,
    to_last,
    window,
    with_channels,
)

_LARGE, _BLOCK = 1 << 20, 1 << 20
"""Kernels with at least so many entries are widened in blocks of so many."""


def anchor_flips(op: Op, eq: Equations, inner: AxisRef, out: AxisRef, zeros: bool) -> None:
    """Flips about another point than zero need a bias, here or in a batch norm right behind, and no zero padding."""
    absorbs = "bias" in op.params or eq.shift_carried()
    if zeros or not absorbs:
        eq.centre(inner, 0.0)
    if not absorbs:
        eq.centre(out, 0.0)


class Dense(OpKind):
    """y = x W^T + b over the last axis. kernel (out, in), bias (out,)."""

    kind = "dense"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "rank of the kernel", len(params["kernel"]), 2)
        if not x:
            raise UnsupportedOp(op.name, "a dense layer on a value without axes")
        out, inner = params["kernel"]
        if x[-1] is not None:
            expect(op, "input width of the kernel", inner, x[-1])
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out,))
        return (*x[:-1], out)

    def equations(self, op: Op, eq: Equations) -> None:
        *lead, inner = eq.inputs[0]
        n = eq.out_shape[-1] or 0
        out = eq.fresh(n)
        eq.param("kernel", writes(n, out), reads(eq.in_shapes[0][-1] or 0, inner))
        if "bias" in op.params:
            eq.param("bias", writes(n, out))
            labels_only(eq, *lead)
        for axis in lead:
            eq.centre(axis, 0.0)
        anchor_flips(op, eq, inner, out, zeros=False)
        eq.emit((*lead, out))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        y: Array = inputs[0] @ params["kernel"].T
        return y + params["bias"] if "bias" in params else y

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        kernel = params["kernel"]
        if kernel.dtype == inputs[0].dtype or kernel.size < _LARGE:
            return super().both(op, inputs, sizes, params)
        # a large kernel is widened a block at a time, along the axis that lies together in memory
        (x,), (m,) = inputs, sizes
        along = int(np.argmax(np.abs(kernel.strides)))
        y = np.zeros((*x.shape[:-1], len(kernel)), x.dtype)
        bound = np.zeros_like(y)
        rows = max(1, _BLOCK // kernel.shape[1 - along])
        for start in range(0, kernel.shape[along], rows):
            here = slice(start, start + rows)
            if along == 0:
                part = kernel[here].astype(x.dtype)
                y[..., here] = x @ part.T
                bound[..., here] = m @ np.abs(part, out=part).T
            else:
                part = kernel[:, here].T.astype(x.dtype)
                y += x[..., here] @ part
                bound += m[..., here] @ np.abs(part, out=part)
        bias = params.get("bias")
        return (y, bound) if bias is None else (y + bias, bound + np.abs(bias))

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        gain = params["kernel"] @ t_in if t_in is not None else 0.0
        return into_bias(params, gain, t_out)


def into_bias(params: dict[str, Array], gain: Array | float, t_out: Array | None) -> dict[str, Array]:
    """The bias with a constant added, or the constant itself where there is no bias."""
    moved = np.asarray(gain + (0.0 if t_out is None else t_out))
    return {"bias": params["bias"] + moved} if "bias" in params else {"out": moved}


class Conv(OpKind):
    """Cross-correlation over any number of spatial axes. kernel (out, in, *window), bias (out,)."""

    kind = "conv"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        out, inner, *k = params["kernel"]
        if op.attrs.get("groups", 1) != 1:
            raise UnsupportedOp(op.name, "a convolution in groups is an operation grouped_conv")
        expect(op, "number of spatial axes", len(k), len(x) - 1)
        if x[channel_axis(op)] is not None:
            expect(op, "input channels of the kernel", inner, x[channel_axis(op)])
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out,))
        sizes = out_sizes(op, spatial(op, x), k, window(op, "strides", len(k)), window(op, "dilation", len(k)))
        return with_channels(op, sizes, out)

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op)
        axes, shape = eq.inputs[0], eq.in_shapes[0]
        inner, n = axes[c], eq.out_shape[c] or 0
        k = eq.param_shapes["kernel"][2:]
        out = eq.fresh(n)
        hold_positions(op, eq)
        eq.param("kernel", writes(n, out), reads(shape[c] or 0, inner), *(plain(i) for i in k))
        if "bias" in op.params:
            eq.param("bias", writes(n, out))
        anchor_flips(op, eq, inner, out, pads_zero(op, spatial(op, shape), k))
        emit_channels(op, eq, out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        kernel = params["kernel"]
        k = kernel.shape[2:]
        x, strides, dilation, sizes = padded(op, to_last(op, inputs[0]), k, 0.0)
        y: Array | float = params.get("bias", 0.0)
        for at, part in offsets(x, k, strides, dilation, sizes):
            window = kernel.reshape(*kernel.shape[:2], -1)[:, :, np.ravel_multi_index(at, k)]
            y = y + part @ window.T
        return from_last(op, np.asarray(y))

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        kernel = params["kernel"]
        gain = kernel.sum(axis=tuple(range(2, kernel.ndim))) @ t_in if t_in is not None else 0.0
        return into_bias(params, gain, t_out)


class DepthwiseConv(OpKind):
    """Windows of single channels. kernel (channels * multiplier, 1, *window), bias (channels * multiplier,).

    Ties the labelling of both sides (output channel c * multiplier + m; the m are free inside each channel), while
    scale and sign are free on either side.
    """

    kind = "depthwise_conv"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        out, one, *k = params["kernel"]
        expect(op, "number of spatial axes", len(k), len(x) - 1)
        expect(op, "second axis of the kernel", one, 1)
        channels = x[channel_axis(op)]
        if channels is None or out % channels:
            raise ShapeConflict(op.name, f"a depthwise kernel of {out} windows meets {channels} channels")
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out,))
        sizes = out_sizes(op, spatial(op, x), k, window(op, "strides", len(k)), window(op, "dilation", len(k)))
        return with_channels(op, sizes, out)

    def equations(self, op: Op, eq: Equations) -> None:
        at = channel_axis(op)
        inner, shape = eq.inputs[0][at], eq.in_shapes[0]
        n, _, *k = eq.param_shapes["kernel"]
        m = n // (shape[at] or n)
        hold_positions(op, eq)
        eq.units(inner)
        if m > 1:
            inner = eq.product((inner, eq.over(m, inner)))
        out = eq.alike(inner)
        eq.units(out)
        eq.param("kernel", across(n, out, inner), plain(1), *(plain(i) for i in k))
        if "bias" in op.params:
            eq.param("bias", writes(n, out))
        anchor_flips(op, eq, inner, out, pads_zero(op, spatial(op, shape), k))
        emit_channels(op, eq, out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        kernel = params["kernel"]
        k = kernel.shape[2:]
        x, strides, dilation, sizes = padded(op, to_last(op, inputs[0]), k, 0.0)
        m = len(kernel) // x.shape[-1]
        if m > 1:
            x = np.repeat(x, m, axis=-1)
        y: Array | float = params.get("bias", 0.0)
        for at, part in offsets(x, k, strides, dilation, sizes):
            y = y + part * kernel.reshape(len(kernel), -1)[:, np.ravel_multi_index(at, k)]
        return from_last(op, np.asarray(y))

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        kernel = params["kernel"]
        total = kernel.reshape(len(kernel), -1).sum(axis=1)
        gain = total * np.repeat(t_in, len(kernel) // len(t_in)) if t_in is not None else 0.0
        return into_bias(params, gain, t_out)


def hold_positions(op: Op, eq: Equations) -> None:
    """Nothing moves along the axes over which a window slides."""
    c = channel_axis(op) % len(eq.inputs[0])
    for i, axis in enumerate(eq.inputs[0]):
        if i != c:
            eq.fix(axis, f"positions that {op.name} slides over")


def emit_channels(op: Op, eq: Equations, out: AxisRef) -> None:
    """The output: new positions, and `out` for its channels."""
    c = channel_axis(op) % len(eq.out_shape)
    eq.emit([out if i == c else eq.fixed(n, "positions") for i, n in enumerate(eq.out_shape)])
