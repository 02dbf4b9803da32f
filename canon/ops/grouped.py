"""Convolutions in groups: each group of output channels reads its own group of input channels.

On C channels in G groups acts S_{C/G} wr S_G on either side, with one element of S_G for both, times any scale and sign
a channel: what keeps P_out K P_in^-1 block-diagonal. Relabelling inside each group, scales and signs are all here. The
S_G that moves whole groups is not: both sides would be spaces over one space of groups, and what matches units knows one
inner space to an outer one, so groups keep their places.

Stored as (out, in / groups, *window); a move acts on the block-diagonal kernel (out, in, *window), geometry.written_out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.ops.base import Array, Equations, Leg, Op, OpKind, Shape, expect, plain, writes
from canon.ops.geometry import channel_axis, from_last, out_sizes, pads_zero, spatial, to_last, window, with_channels
from canon.ops.linear import anchor_flips, emit_channels, hold_positions, into_bias


class GroupedConv(OpKind):
    """Cross-correlation in groups. kernel (out, in / groups, *window) or, written out, (out, in, *window); bias (out,).

    attrs: groups, strides, dilation, padding, channels.
    """

    kind = "grouped_conv"
    roles = ("kernel", "bias")
    optional = ("bias",)
    affine = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        out, inner, *k = params["kernel"]
        groups, channels = int(op.attrs["groups"]), x[channel_axis(op)]
        expect(op, "number of spatial axes", len(k), len(x) - 1)
        expect(op, f"rest of {out} output channels in {groups} groups", out % groups, 0)
        if channels is not None and inner != channels:
            expect(op, f"input channels of a kernel for {groups} groups", inner * groups, channels)
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], (out,))
        sizes = out_sizes(op, spatial(op, x), k, window(op, "strides", len(k)), window(op, "dilation", len(k)))
        return with_channels(op, sizes, out)

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op)
        inner, shape = eq.inputs[0][c], eq.in_shapes[0]
        n, stored, *k = eq.param_shapes["kernel"]
        groups = int(op.attrs["groups"])
        channels = shape[c] or stored * groups
        hold_positions(op, eq)
        eq.same_labels(inner, eq.concat([eq.fresh(channels // groups) for _ in range(groups)]))
        out = eq.concat([eq.fresh(n // groups) for _ in range(groups)])
        reads = Leg(stored, inner, down=(inner,), role="out", blocks=channels // stored)
        eq.param("kernel", writes(n, out), reads, *(plain(i) for i in k))
        if "bias" in op.params:
            eq.param("bias", writes(n, out))
        anchor_flips(op, eq, inner, out, pads_zero(op, spatial(op, shape), k))
        emit_channels(op, eq, out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        conv = Op("conv", op.name, op.inputs, op.output, attrs={**op.attrs, "groups": 1, "channels": "last"})
        run = OpKind.registry["conv"].forward
        kernel = params["kernel"]
        x = to_last(op, inputs[0])
        if kernel.shape[1] == x.shape[-1]:
            y = run(conv, [x], {"kernel": kernel})
        else:
            groups = int(op.attrs["groups"])
            parts = zip(np.split(x, groups, axis=-1), np.split(kernel, groups), strict=True)
            y = np.concatenate([run(conv, [part], {"kernel": k}) for part, k in parts], axis=-1)
        return from_last(op, y + params["bias"] if "bias" in params else y)

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        gain: Array | float = 0.0
        if t_in is not None:
            kernel = params["kernel"].reshape(*params["kernel"].shape[:2], -1).sum(axis=2)
            groups = len(t_in) // kernel.shape[1]
            read = t_in.reshape(groups, -1).repeat(len(kernel) // groups, axis=0)
            gain = (kernel * read).sum(axis=1)
        return into_bias(params, gain, t_out)
