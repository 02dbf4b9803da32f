"""A stretch of an axis: parts of a fused projection, halves of a channel split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops.base import Array, Equations, Op, OpKind, Shape


class Slice(OpKind):
    """Entries start to stop along an axis. attrs: axis (-1; batch excluded), start, stop.

    The axis is one stretch after another, each with a labelling, scale and sign of its own, and this is one of them.
    """

    kind = "slice"
    holds_zero = True

    def _range(self, op: Op, n: int) -> tuple[int, int]:
        start, stop = int(op.attrs["start"]), int(op.attrs["stop"])
        if not 0 <= start < stop <= n:
            raise ShapeConflict(op.name, f"entries {start} to {stop} of {n}")
        return start, stop

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        at = int(op.attrs.get("axis", -1)) % len(x)
        n = x[at]
        if n is None:
            raise UnsupportedOp(op.name, "a stretch of an axis of open size")
        start, stop = self._range(op, n)
        return (*x[:at], stop - start, *x[at + 1 :])

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        at = int(op.attrs.get("axis", -1)) % len(axes)
        n = eq.in_shapes[0][at] or 0
        start, stop = self._range(op, n)
        parts = [eq.fresh(k) for k in (start, stop - start, n - stop)]
        whole = eq.concat([p for p, k in zip(parts, (start, stop - start, n - stop), strict=True) if k])
        eq.same(axes[at], whole)
        eq.centre_sum(whole, [axes[at]])
        axes[at] = parts[1]
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        at = 1 + int(op.attrs.get("axis", -1)) % (x.ndim - 1)
        return x[(slice(None),) * at + (slice(int(op.attrs["start"]), int(op.attrs["stop"])),)]
