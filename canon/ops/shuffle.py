"""Channels dealt out anew: those of several groups one from each in turn (Zhang et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect


class ChannelShuffle(OpKind):
    """Channel number i of group g becomes channel number i groups + g. attrs: groups, axis (batch excluded).

    Nothing moves along the channels: what a relabelling in front would have to be behind is none of the axes' labellings
    (concatenations in front, stretches behind), so that is left out.
    """

    kind = "channel_shuffle"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        n, groups = x[int(op.attrs["axis"]) % len(x)], int(op.attrs["groups"])
        if n is not None:
            expect(op, f"rest of {n} channels in {groups} groups", n % groups, 0)
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        at = int(op.attrs["axis"]) % len(axes)
        why = f"channels that {op.name} deals out"
        eq.fix(axes[at], why)
        axes[at] = eq.fixed(eq.out_shape[at], why)
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        at, groups = 1 + int(op.attrs["axis"]) % (x.ndim - 1), int(op.attrs["groups"])
        apart = x.reshape(*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])
        return apart.swapaxes(at, at + 1).reshape(x.shape)
