"""The same operation at every step: TimeDistributed around any other operation.

Steps are the first axis. They are laid beside the samples of the batch for the inner operation, which says all else itself;
steps keep their places. What works on the last axis anyway (dense, elementwise functions, batch norm on the last axis) is
better written down as itself: fold looks for those by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from canon.errors import UnsupportedOp
from canon.ops.base import Array, AxisRef, Equations, Op, OpKind, Shape, kind_of, labels_only


class TimeDistributed(OpKind):
    """An operation at every step. params: those of the inner one. attrs: inner {"kind": ..., "attrs": {...}}."""

    kind = "time_distributed"
    affine = True
    """So that it is asked to absorb shifts, which the inner operation only lets come where it can."""

    def _inner(self, op: Op) -> tuple[OpKind, Op]:
        said = op.attrs["inner"]
        inner = Op(str(said["kind"]), op.name, op.inputs, op.output, op.params, dict(said.get("attrs", {})))
        if len(op.inputs) != 1 or inner.kind == "grouped_conv":  # fold writes out the kernels of those that it finds
            raise UnsupportedOp(op.name, f"a {inner.kind} of {len(op.inputs)} values at every step")
        return kind_of(inner), inner

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        kind, inner = self._inner(op)
        missing = [r for r in kind.roles if r not in op.params and r not in kind.optional]
        if missing or not inputs[0]:
            raise UnsupportedOp(op.name, f"a {inner.kind} at every step without {missing[0] if missing else 'steps'}")
        return (inputs[0][0], *kind.shape(inner, [inputs[0][1:]], params))

    def equations(self, op: Op, eq: Equations) -> None:
        kind, inner = self._inner(op)
        labels_only(eq, eq.inputs[0][0])
        eq.centre(eq.inputs[0][0], 0.0)
        steps: Any = _OneStep(eq)
        kind.equations(inner, steps)

    def keeps_zero(self, op: Op) -> bool:
        kind, inner = self._inner(op)
        return kind.keeps_zero(inner)

    def mixes(self, op: Op) -> bool:
        kind, inner = self._inner(op)
        return kind.mixes(inner)

    def blind_axis(self, op: Op) -> int | None:
        kind, inner = self._inner(op)
        axis = kind.blind_axis(inner)
        return axis if axis is None or axis < 0 else axis + 1

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        kind, inner = self._inner(op)
        return _apart(kind.forward(inner, [_beside(inputs[0])], params), inputs[0])

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        kind, inner = self._inner(op)
        return _apart(kind.magnitude(inner, [_beside(inputs[0])], params), inputs[0])

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        kind, inner = self._inner(op)
        y, m = kind.both(inner, [_beside(inputs[0])], [_beside(sizes[0])], params)
        return _apart(y, inputs[0]), _apart(np.broadcast_to(m, y.shape), inputs[0])

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        kind, inner = self._inner(op)
        return kind.absorb(inner, params, t_in, t_out)


def _beside(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


def _apart(y: Array, x: Array) -> Array:
    return y.reshape(*x.shape[:2], *y.shape[1:])


class _OneStep:
    """The equations of the inner operation: without the axis of the steps, which is put back in what goes out."""

    def __init__(self, eq: Equations) -> None:
        self._eq = eq
        (self._steps, *rest) = eq.inputs[0]
        self.inputs = (tuple(rest),)
        self.in_shapes = (eq.in_shapes[0][1:],)
        self.out_shape = eq.out_shape[1:]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._eq, name)

    def emit(self, axes: Sequence[AxisRef]) -> None:
        """The axes of the output, behind the steps."""
        self._eq.emit([self._steps, *axes])
