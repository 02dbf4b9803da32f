"""Operations without parameters that carry values around: sums, products, concatenation, reshaping, padding, identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, AxisRef, Equations, Op, OpKind, Shape, labels_only, plain
from canon.ops.geometry import channel_axis, from_last, spatial, to_last, with_channels


class _Identity(OpKind):
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0]


class Linear(_Identity):
    """The identity written down as an activation."""

    kind = "linear"


class Dropout(_Identity):
    """Dropout and other noise of training: the identity at inference."""

    kind = "dropout"


class Bottleneck(_Identity):
    """The identity between linear maps whose product is too large to be written down: any matrix may turn its units, the last
    axis. Folding puts it there.
    """

    kind = "bottleneck"

    def equations(self, op: Op, eq: Equations) -> None:
        *lead, inner = eq.inputs[0]
        outer = eq.fresh(1)
        labels_only(eq, outer)
        eq.same(inner, eq.product((outer, eq.block(eq.in_shapes[0][-1] or 0, outer, TURNED))))
        eq.emit((*lead, inner))


TURNED = "units"
"""The name of a bottleneck's block, behind that of the op."""


class Joining(OpKind):
    """Elementwise operations on several values, which broadcast along axes of size one."""

    commutes = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        rank = max(len(s) for s in inputs)
        out: list[int | None] = []
        for i in range(rank):
            sizes = {s[i - rank] for s in inputs if len(s) >= rank - i} - {1}
            if len(sizes - {None}) > 1:
                raise ShapeConflict(op.name, f"values of shapes {' and '.join(map(str, inputs))} do not go together")
            out.append(next(iter(sizes - {None}), None) if sizes else 1)
        return tuple(out)

    def aligned(self, eq: Equations) -> list[list[AxisRef]]:
        """For each output axis, the input axes that meet there; where one is spread over many, nothing may move."""
        rank = len(eq.out_shape)
        found: list[list[AxisRef]] = []
        for i, n in enumerate(eq.out_shape):
            here = []
            for axes, shape in zip(eq.inputs, eq.in_shapes, strict=True):
                if len(shape) >= rank - i:
                    if shape[i - rank] == n:
                        here.append(axes[i - rank])
                    else:
                        eq.fix(axes[i - rank], "one value spread over many")
            found.append(here)
        return found


class Add(Joining):
    """A sum: all summands are one space, with one labelling, scale and sign."""

    kind = "add"

    def equations(self, op: Op, eq: Equations) -> None:
        out = []
        everywhere = len(eq.inputs)
        for here in self.aligned(eq):
            first, *others = here
            for other in others:
                eq.same_labels(first, other)
                eq.scale((first, 1), (other, -1))
                eq.sign((first, 1), (other, -1))
            if len(here) < everywhere:  # a summand without this axis is added to every unit alike
                eq.scale((first, 1))
                eq.sign((first, 1))
            axis = eq.alike(first)
            eq.scale((axis, 1), (first, -1))
            eq.sign((axis, 1), (first, -1))
            eq.centre_sum(axis, here)
            out.append(axis)
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        y = inputs[0]
        for x in inputs[1:]:
            y = y + x
        return y


class Multiply(Joining):
    """An elementwise product: one labelling; scales and signs of the factors multiply."""

    kind = "multiply"

    def equations(self, op: Op, eq: Equations) -> None:
        out = []
        for here in self.aligned(eq):
            axis = eq.alike(here[0])
            eq.units(axis)
            for part in here:
                eq.same_labels(here[0], part)
                eq.units(part)
                eq.centre(part, 0.0)
            eq.scale((axis, 1), *((part, -1) for part in here))
            eq.sign((axis, 1), *((part, -1) for part in here))
            eq.centre(axis, 0.0)
            out.append(axis)
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        y = inputs[0]
        for x in inputs[1:]:
            y = y * x
        return y


class Concat(OpKind):
    """Values one after the other along an axis: spaces stay apart. attrs: axis (batch excluded)."""

    kind = "concat"
    holds_zero = True

    def _axis(self, op: Op, rank: int) -> int:
        return int(op.attrs.get("axis", -1)) % rank

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        at = self._axis(op, len(inputs[0]))
        out: list[int | None] = []
        for i, sizes in enumerate(zip(*inputs, strict=True)):
            if i == at:
                out.append(None if None in sizes else sum(n or 0 for n in sizes))
            elif len(set(sizes) - {None}) > 1:
                raise ShapeConflict(op.name, f"values of shapes {' and '.join(map(str, inputs))} do not go together")
            else:
                out.append(next((n for n in sizes if n is not None), None))
        return tuple(out)

    def equations(self, op: Op, eq: Equations) -> None:
        at = self._axis(op, len(eq.out_shape))
        out = []
        for i, here in enumerate(zip(*eq.inputs, strict=True)):
            if i == at:
                out.append(eq.concat(here))
                continue
            for other in here[1:]:
                eq.same(here[0], other)
            out.append(here[0])
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.concatenate(inputs, axis=1 + self._axis(op, inputs[0].ndim - 1))


class Flatten(OpKind):
    """All axes into one, row-major, channels last. attrs: channels ("first": they are moved last before)."""

    kind = "flatten"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        return (None,) if None in x else (prod(n or 1 for n in x),)

    def equations(self, op: Op, eq: Equations) -> None:
        axes = list(eq.inputs[0])
        if len(axes) > 1 and channel_axis(op) == 0:
            axes = [*axes[1:], axes[0]]
        eq.emit([eq.product(axes)])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x = to_last(op, inputs[0]) if inputs[0].ndim > 2 else inputs[0]
        return x.reshape(len(x), -1)


class Reshape(OpKind):
    """Row-major reshape. attrs: shape (batch excluded, one entry may be -1)."""

    kind = "reshape"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        wanted = [int(n) for n in op.attrs["shape"]]
        known = prod(n for n in wanted if n > 0)
        if None in x:
            return tuple(None if n < 0 else n for n in wanted)
        total = prod(n or 1 for n in x)
        out = tuple(total // max(known, 1) if n < 0 else n for n in wanted)
        if prod(out) != total:
            raise ShapeConflict(op.name, f"a value of shape {x} does not go into {tuple(wanted)}")
        return out

    def equations(self, op: Op, eq: Equations) -> None:
        if None in eq.in_shapes[0] or None in eq.out_shape:
            _keep_channels(op, eq)
            return
        left, right = list(zip(eq.inputs[0], eq.in_shapes[0], strict=True)), [n or 1 for n in eq.out_shape]
        out: list[AxisRef] = []
        while left or right:
            axes, sizes = ([left.pop(0)], []) if left else ([], [right.pop(0)])
            a, b = prod(n or 1 for _, n in axes), prod(sizes)
            while a != b or not sizes:
                if (a > b or not sizes) and right:
                    sizes.append(right.pop(0))
                    b *= sizes[-1]
                elif left:
                    axes.append(left.pop(0))
                    a *= axes[-1][1] or 1
                else:
                    break
            out += _regroup(op, eq, [axis for axis, _ in axes], sizes)
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0].reshape(len(inputs[0]), *(int(n) for n in op.attrs["shape"]))


def _keep_channels(op: Op, eq: Equations) -> None:
    """Sizes that are not known: the last (or the first) axis keeps its labels where it has one known size on both sides."""
    axes, shape, out = eq.inputs[0], eq.in_shapes[0], eq.out_shape
    kept = -1 if shape[-1] is not None and shape[-1] == out[-1] else 0 if shape[0] is not None and shape[0] == out[0] else None
    for i, axis in enumerate(axes):
        if kept is None or i != kept % len(axes):
            eq.fix(axis, f"{op.name} reshapes sizes that are not known")
    eq.emit([axes[kept] if kept is not None and i == kept % len(out) else eq.fixed(n, "reshaped") for i, n in enumerate(out)])


def _regroup(op: Op, eq: Equations, axes: list[AxisRef], sizes: list[int]) -> list[AxisRef]:
    """Axes whose sizes multiply to the same as the new sizes."""
    if not axes:
        return [eq.fixed(n, "an axis of size one") for n in sizes]
    if len(sizes) <= 1:
        joined = eq.product(axes) if len(axes) > 1 else axes[0]
        return [joined] if sizes else []
    if len(axes) == 1:
        return list(eq.factor(axes[0], sizes))
    for axis in axes:
        eq.fix(axis, f"{op.name} mixes these axes")
    return [eq.fixed(n, f"mixed by {op.name}") for n in sizes]


class ZeroPadding(OpKind):
    """Zeros around the positions: no flip about another point than zero. attrs: padding, channels."""

    kind = "zero_padding"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        sizes = tuple(
            None if n is None else n + lo + hi for n, (lo, hi) in zip(spatial(op, x), op.attrs["padding"], strict=True)
        )
        return with_channels(op, sizes, x[channel_axis(op)])

    def equations(self, op: Op, eq: Equations) -> None:
        c = channel_axis(op) % len(eq.out_shape)
        out = []
        for i, (axis, n) in enumerate(zip(eq.inputs[0], eq.out_shape, strict=True)):
            if i == c:
                eq.centre(axis, 0.0)
                out.append(axis)
            else:
                eq.fix(axis, f"positions that {op.name} pads")
                out.append(eq.fixed(n, "positions"))
        eq.emit(out)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        pads = [(int(lo), int(hi)) for lo, hi in op.attrs["padding"]]
        return from_last(op, np.pad(to_last(op, inputs[0]), [(0, 0), *pads, (0, 0)]))


class Opaque(OpKind):
    """An operation that canon does not know: nothing moves through it. attrs: class_name, shape (of its output)."""

    kind = "opaque"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return tuple(None if n is None else int(n) for n in op.attrs["shape"])

    def equations(self, op: Op, eq: Equations) -> None:
        why = f"{op.name} ({op.attrs.get('class_name', 'unknown')}) is opaque"
        for axes in eq.inputs:
            for axis in axes:
                eq.fix(axis, why)
        for role, shape in eq.param_shapes.items():
            eq.param(role, *(plain(n) for n in shape))
        eq.emit([eq.fixed(n, why) for n in eq.out_shape])


class Cut(OpKind):
    """Where a partial comparison stops: what reads on is left out, and holds nothing in place."""

    kind = "cut"
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return (1,)

    def equations(self, op: Op, eq: Equations) -> None:
        for axes in eq.inputs:
            for axis in axes:
                eq.units(axis)
        eq.emit([eq.fixed(1, "the end of what is compared")])
