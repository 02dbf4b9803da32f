"""Locally connected layers: convolutions whose window has weights of its own at every position.

y[o, p] = sum over c and a of K[o, c, p, a] x[c, s p + a] + b[o, p]. Positions are anchored; on the channels the kernel
absorbs any relabelling, scale and sign on both sides, and as nothing is padded, any flip that the bias can take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, plain, reads, writes
from canon.ops.geometry import channel_axis, from_last, offsets, out_sizes, spatial, to_last, window, with_channels
from canon.ops.linear import emit_channels, hold_positions


class LocallyConnected(OpKind):
    """kernel (out, in, *positions, *window), bias (out, *positions). Nothing is padded. attrs: strides, channels."""

    kind = "locally_connected"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        out, inner, *rest = params["kernel"]
        rank = len(x) - 1
        expect(op, "number of axes of the kernel", len(rest), 2 * rank)
        if x[channel_axis(op)] is not None:
            expect(op, "input channels of the kernel", inner, x[channel_axis(op)])
        places, k = tuple(rest[:rank]), rest[rank:]
        valid = Op(op.kind, op.name, op.inputs, op.output)
        sizes = out_sizes(valid, spatial(op, x), k, window(op, "strides", rank), (1,) * rank)
        for n, m in zip(sizes, places, strict=True):
            if n is not None:
                expect(op, "number of positions of the kernel", m, n)
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out, *places))
        return with_channels(op, places, out)

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op)
        inner, n = eq.inputs[0][c], eq.out_shape[c] or 0
        out = eq.fresh(n)
        hold_positions(op, eq)
        eq.param("kernel", writes(n, out), reads(eq.in_shapes[0][c] or 0, inner), *map(plain, eq.param_shapes["kernel"][2:]))
        if "bias" in op.params:
            eq.param("bias", writes(n, out), *map(plain, eq.param_shapes["bias"][1:]))
        else:
            eq.centre(inner, 0.0)
            eq.centre(out, 0.0)
        emit_channels(op, eq, out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, kernel = to_last(op, inputs[0]), np.moveaxis(params["kernel"], (0, 1), (-2, -1))
        rank = x.ndim - 2
        sizes, k = kernel.shape[:rank], kernel.shape[rank : 2 * rank]
        y: Array | float = np.moveaxis(params["bias"], 0, -1) if "bias" in params else 0.0
        for at, part in offsets(x, k, window(op, "strides", rank), (1,) * rank, sizes):
            weights = kernel[(slice(None),) * rank + at]
            y = y + (weights @ part[..., None])[..., 0]
        return from_last(op, np.asarray(y))

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        bias = params["bias"]
        if t_in is not None:
            gain = np.moveaxis(params["kernel"], 1, -1) @ t_in
            bias = bias + gain.sum(axis=tuple(range(bias.ndim, gain.ndim)))
        return {"bias": bias if t_out is None else bias + t_out.reshape(-1, *[1] * (bias.ndim - 1))}
