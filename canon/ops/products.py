"""Sums along axes, matrix products of two values, and quotients: what graphs spell out where layers have no name for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops.base import Array, AxisRef, Equations, Op, OpKind, Shape, expect, labels_only
from canon.ops.structure import Joining

_HOW: dict[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}


class Divide(Joining):
    """a / b, unit by unit: one labelling, scales and signs divide."""

    kind = "divide"
    commutes = False

    def equations(self, op: Op, eq: Equations) -> None:
        out = []
        rank = len(eq.out_shape)
        for i, here in enumerate(self.aligned(eq)):
            axis = eq.alike(here[0])
            top, bottom = ([a for a in here if len(axes) >= rank - i and a is axes[i - rank]][:1] for axes in eq.inputs)
            for part in here:
                eq.same_labels(here[0], part)
                eq.units(part)
                eq.centre(part, 0.0)
            eq.units(axis)
            terms = [*((a, -1) for a in top), *((a, 1) for a in bottom)]
            eq.scale((axis, 1), *terms)
            eq.sign((axis, 1), *terms)
            eq.centre(axis, 0.0)
            out.append(axis)
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(inputs[0] / inputs[1])

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.both(op, inputs, inputs, params)[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        y = self.forward(op, inputs, params)
        with np.errstate(all="ignore"):
            return y, np.asarray(np.abs(y) + (sizes[0] + np.abs(y) * sizes[1]) / np.abs(inputs[1]))


class Reduce(OpKind):
    """The mean, sum, maximum or minimum along axes: what is reduced is relabelled, the other axes go through.

    attrs: how ("mean", "sum", "max", "min"), axes (batch excluded), keepdims (False).
    """

    kind = "reduce"
    mixing = True
    holds_zero = True

    def _axes(self, op: Op, rank: int) -> tuple[int, ...]:
        return tuple(sorted(int(a) % rank for a in op.attrs["axes"]))

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        at = self._axes(op, len(x))
        if op.attrs.get("keepdims"):
            return tuple(1 if i in at else n for i, n in enumerate(x))
        return tuple(n for i, n in enumerate(x) if i not in at)

    def equations(self, op: Op, eq: Equations) -> None:
        at = self._axes(op, len(eq.inputs[0]))
        extreme = op.attrs["how"] in ("max", "min")
        out: list[AxisRef] = []
        for i, axis in enumerate(eq.inputs[0]):
            if i in at:
                labels_only(eq, axis)
                if op.attrs.get("keepdims"):
                    out.append(eq.fixed(1, "one number for all"))
                continue
            if extreme:
                eq.units(axis)
                eq.sign((axis, 1))
            elif op.attrs["how"] == "sum":
                eq.centre(axis, 0.0)
            out.append(axis)
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        axes = tuple(a + 1 for a in self._axes(op, x.ndim - 1))
        return np.asarray(_HOW[str(op.attrs["how"])](x, axis=axes, keepdims=bool(op.attrs.get("keepdims"))))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        how = op.attrs["how"]
        op = Op(op.kind, op.name, op.inputs, op.output, {}, {**op.attrs, "how": "max" if how == "min" else how})
        return self.forward(op, inputs, params)


class MatMul(OpKind):
    """Matrix products of two values, (..., n, k) with (..., k, m), and as many of them as there are leading entries.

    Along the sum: one labelling, scales inverse to each other, one sign (left out: any matrix and its inverse). Rows and
    columns keep theirs. Leading axes are labelled alike, and their scales and signs multiply.
    """

    kind = "matmul"
    mixing = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        x, y = inputs
        if len(x) < 2 or len(x) != len(y):
            raise UnsupportedOp(op.name, f"a product of values of shapes {x} and {y}")
        if x[-1] is not None and y[-2] is not None:
            expect(op, "rows of the second matrix", y[-2], x[-1])
        lead: list[int | None] = []
        for a, b in zip_longest(x[:-2], y[:-2]):
            if None not in (a, b) and a != b and 1 not in (a, b):
                raise ShapeConflict(op.name, f"a product of values of shapes {x} and {y}")
            lead.append(b if a in (1, None) else a)
        return (*lead, x[-2], y[-1])

    def equations(self, op: Op, eq: Equations) -> None:
        x, y = eq.inputs
        one, other = x[-1], y[-2]
        eq.same_labels(one, other)
        eq.scale((one, 1), (other, 1))
        eq.sign((one, 1), (other, -1))
        out: list[AxisRef] = []
        for a, b, n, m in zip(x[:-2], y[:-2], eq.in_shapes[0], eq.in_shapes[1], strict=False):
            if n != m and 1 in (n, m):  # one matrix for many
                eq.fix(a if n == 1 else b, "one value spread over many")
                out.append(b if n == 1 else a)
                continue
            eq.same_labels(a, b)
            axis = eq.alike(a)
            eq.scale((axis, 1), (a, -1), (b, -1))
            eq.sign((axis, 1), (a, -1), (b, -1))
            out.append(axis)
        for axis in (*x, *y, *out):
            eq.units(axis)
            eq.centre(axis, 0.0)
        eq.emit([*out, x[-2], y[-1]])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.asarray(inputs[0] @ inputs[1])

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        (x, y), (m, n) = inputs, sizes
        return np.asarray(x @ y), np.asarray(m @ np.abs(y) + np.abs(x) @ n)


class Take(OpKind):
    """One entry along an axis, which goes: the last step of a sequence, the first token. attrs: axis, index (from behind if
    negative). Labels, scales and signs of the other axes go through.
    """

    kind = "take"
    holds_zero = True

    def _at(self, op: Op, rank: int) -> int:
        return int(op.attrs["axis"]) % rank

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        at, index = self._at(op, len(x)), int(op.attrs["index"])
        n = x[at]
        if n is not None and not -n <= index < n:
            raise ShapeConflict(op.name, f"entry {index} of {n}")
        return (*x[:at], *x[at + 1 :])

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        eq.fix(axes.pop(self._at(op, len(axes))), f"{op.name} takes one of them")
        eq.emit(axes)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        return np.asarray(np.take(x, int(op.attrs["index"]), axis=1 + self._at(op, x.ndim - 1)))


class MirrorPadding(OpKind):
    """Positions repeated around the edge: mirrored without it ("reflect"), or its own value ("edge"). Anything on the
    channels goes through, flips about any point as well. attrs: how, padding [[lo, hi], ...] on all axes (batch excluded).
    """

    kind = "mirror_padding"
    holds_zero = True

    def _pads(self, op: Op) -> list[tuple[int, int]]:
        return [(int(lo), int(hi)) for lo, hi in op.attrs["padding"]]

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        pads = self._pads(op)
        if op.attrs["how"] not in ("reflect", "edge"):
            raise UnsupportedOp(op.name, f"padding by {op.attrs['how']!r}")
        expect(op, "number of axes to pad", len(pads), len(x))
        for n, pad in zip(x, pads, strict=True):
            if n is not None and op.attrs["how"] == "reflect" and max(pad) >= n:
                raise ShapeConflict(op.name, f"{max(pad)} positions mirrored of {n}")
        return tuple(None if n is None else n + sum(pad) for n, pad in zip(x, pads, strict=True))

    def equations(self, op: Op, eq: Equations) -> None:
        out = list(eq.inputs[0])
        for i, (axis, pad) in enumerate(zip(eq.inputs[0], self._pads(op), strict=True)):
            if any(pad):
                eq.fix(axis, f"positions that {op.name} pads")
                out[i] = eq.fixed(eq.out_shape[i], "positions")
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        how: Any = str(op.attrs["how"])
        return np.asarray(np.pad(inputs[0], [(0, 0), *self._pads(op)], mode=how))
