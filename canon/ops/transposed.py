"""Transposed convolutions: each input position writes a window of outputs, and windows that overlap are added.

y[s p + d a - lo] += K[a] x[p]. The kernel absorbs any relabelling, scale and sign on both sides, as that of a convolution
does. How many windows an output lies in depends on where it is, so what comes in can only flip about zero; what goes out
about any point that a bias can take. Source: the shape rules are those of Keras (deconv_output_length).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, plain, reads, writes
from canon.ops.geometry import channel_axis, from_last, spatial, to_last, window, with_channels
from canon.ops.linear import anchor_flips, emit_channels, hold_positions, into_bias


class ConvTranspose(OpKind):
    """The transpose of a convolution. kernel (out, in, *window), bias (out,).

    attrs: strides, dilation, channels; padding: "valid", "same", or [[lo, hi], ...] that is cut off; output_padding:
    further outputs at the end of each axis (absent: as many as the padding asks for).
    """

    kind = "conv_transpose"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        out, inner, *k = params["kernel"]
        expect(op, "number of spatial axes", len(k), len(x) - 1)
        if x[channel_axis(op)] is not None:
            expect(op, "input channels of the kernel", inner, x[channel_axis(op)])
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out,))
        sizes = tuple(None if n is None else _length(op, i, n, k)[0] for i, n in enumerate(spatial(op, x)))
        return with_channels(op, sizes, out)

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op)
        inner, n = eq.inputs[0][c], eq.out_shape[c] or 0
        out = eq.fresh(n)
        hold_positions(op, eq)
        k = eq.param_shapes["kernel"][2:]
        eq.param("kernel", writes(n, out), reads(eq.in_shapes[0][c] or 0, inner), *(plain(i) for i in k))
        if "bias" in op.params:
            eq.param("bias", writes(n, out))
        anchor_flips(op, eq, inner, out, zeros=True)
        emit_channels(op, eq, out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        kernel, x = params["kernel"], to_last(op, inputs[0])
        k, sizes = kernel.shape[2:], x.shape[1:-1]
        strides, dilation = window(op, "strides", len(k)), window(op, "dilation", len(k))
        wanted, lows = zip(*(_length(op, i, n, k) for i, n in enumerate(sizes)), strict=True)
        full = [(n - 1) * s + (a - 1) * d + 1 for n, s, d, a in zip(sizes, strides, dilation, k, strict=True)]
        room = [max(f, lo + m) for f, lo, m in zip(full, lows, wanted, strict=True)]
        y = np.zeros((len(x), *room, len(kernel)), x.dtype)
        flat = kernel.reshape(*kernel.shape[:2], -1)
        for at in product(*map(range, k)):
            here = tuple(
                slice(a * d, a * d + (n - 1) * s + 1, s) for a, d, n, s in zip(at, dilation, sizes, strides, strict=True)
            )
            y[(slice(None), *here)] += x @ flat[:, :, np.ravel_multi_index(at, k)].T
        y = y[(slice(None), *(slice(lo, lo + m) for lo, m in zip(lows, wanted, strict=True)))]
        return from_last(op, y + params["bias"] if "bias" in params else y)

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        return into_bias(params, 0.0, t_out)


def _length(op: Op, i: int, n: int, kernel: Sequence[int]) -> tuple[int, int]:
    """Output size along spatial axis i, and how much is cut off in front."""
    s, d = window(op, "strides", len(kernel))[i], window(op, "dilation", len(kernel))[i]
    reach, how, given = (kernel[i] - 1) * d + 1, op.attrs.get("padding", "valid"), op.attrs.get("output_padding")
    full, more = (n - 1) * s + reach, None if given is None else int(given[i])
    if not isinstance(how, str):
        lo, hi = (int(v) for v in how[i])
        size = full - lo - hi + (more or 0)
    elif how == "valid":
        lo, size = 0, n * s + max(reach - s, 0) if more is None else full + more
    elif how == "same":
        size = n * s if more is None else full - 2 * (reach // 2) + more
        lo = max(full - size, 0) // 2
    else:
        raise ShapeConflict(op.name, f"padding {how!r} is not known")
    if size < 1:
        raise ShapeConflict(op.name, f"nothing is left of {n} positions")
    return size, lo
