"""Channels dealt out anew: those of several groups one from each in turn (Zhang et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect


class ChannelShuffle(OpKind):
    """Channel number i of group g becomes channel number i groups + g. attrs: groups, axis (batch excluded).

    In front the axis is one stretch after another, each with a labelling, scale and sign of its own; behind, the same
    stretches are interleaved. Whatever is free inside each stretch goes through.
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
        n, groups = eq.out_shape[at], int(op.attrs["groups"])
        if n is None:
            why = f"an open number of channels that {op.name} deals out"
            eq.fix(axes[at], why)
            axes[at] = eq.fixed(n, why)
        else:
            parts = [eq.fresh(n // groups) for _ in range(groups)]
            whole = eq.concat(parts)
            eq.same(axes[at], whole)
            eq.centre_sum(whole, [axes[at]])
            axes[at] = eq.interleave(parts)
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        at, groups = 1 + int(op.attrs["axis"]) % (x.ndim - 1), int(op.attrs["groups"])
        apart = x.reshape(*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])
        return apart.swapaxes(at, at + 1).reshape(x.shape)
