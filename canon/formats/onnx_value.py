"""Values of an ONNX graph and where their batch axis is, which canon's values leave out.

The batch may be any axis (the second, in front of a recurrent layer), and reshaping may fold it into another one: (batch,
steps, units) as (batch * steps, units), (steps, batch * heads, units). Row-major order is kept by reshaping, so that what
lies inside one sample stays together: the value without its batch is the same however it is folded in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canon.formats.onnx_size import Dim, known, over, product, times
from canon.ops.base import Shape


class Unfit(Exception):
    """A node that canon's operations do not express, and why."""


@dataclass(frozen=True)
class Batch:
    """The batch is on this axis, in row-major order between `before` and `after` others that share it."""

    axis: int
    before: Dim = 1
    after: Dim = 1

    @property
    def pure(self) -> bool:
        """Whether nothing shares its axis."""
        return self.before == 1 and self.after == 1

    @property
    def inside(self) -> Dim:
        """How many entries of a sample share its axis."""
        return times(self.before, self.after)


@dataclass(frozen=True)
class Value:
    """A value that is computed when the network runs. name: canon's; shape: ONNX's, batch included; batch: None where it
    has none of its own; integer: whether it holds whole numbers.
    """

    name: str
    shape: tuple[Dim, ...]
    batch: Batch | None
    integer: bool = False

    @property
    def rank(self) -> int:
        """How many axes ONNX sees."""
        return len(self.shape)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape without the batch."""
        return without(self.shape, self.batch)

    @property
    def open(self) -> Shape:
        """`dims` as canon has them: None for open sizes."""
        return tuple(known(d) for d in self.dims)

    def axis(self, i: int) -> int:
        """The axis of a sample that ONNX's axis i is. Raises Unfit for the batch's."""
        if not -self.rank <= i < self.rank:
            raise Unfit(f"axis {i} of a value with {self.rank}")
        i %= self.rank
        if self.batch is None:
            return i
        if i == self.batch.axis:
            raise Unfit("it works along the batch")
        return i - (i > self.batch.axis and self.batch.pure)

    def axes(self) -> list[int | None]:
        """For each of ONNX's axes that of a sample; None for the batch alone."""
        out: list[int | None] = []
        for i in range(self.rank):
            if self.batch is not None and i == self.batch.axis:
                out.append(None if self.batch.pure else i)
            else:
                out.append(self.axis(i))
        return out

    def needs_batch(self, axis: int) -> None:
        """Raise Unfit where the batch is not this axis of ONNX's, alone."""
        if self.batch != Batch(axis):
            raise Unfit(f"its axis {axis} is the batch, and here it is {'none' if self.batch is None else 'another'}")


def without(shape: Sequence[Dim], batch: Batch | None) -> tuple[Dim, ...]:
    """A shape without its batch."""
    if batch is None:
        return tuple(shape)
    own = () if batch.pure else (batch.inside,)
    return (*shape[: batch.axis], *own, *shape[batch.axis + 1 :])


def within(dims: Sequence[Dim], batch: Batch | None, size: Dim) -> tuple[Dim, ...]:
    """A shape with its batch: the inverse of `without`."""
    if batch is None:
        return tuple(dims)
    rest = dims[batch.axis + (not batch.pure) :]
    return (*dims[: batch.axis], times(size, batch.inside), *rest)


def target(wanted: Sequence[Dim], value: Value, keep_zero: bool) -> tuple[Dim, ...]:
    """The shape that a Reshape leads to, its 0 (as before) and -1 (what is left) filled in."""
    shape = [value.shape[i] if d == 0 and not keep_zero and i < value.rank else d for i, d in enumerate(wanted)]
    if -1 in shape:
        rest = over(product(value.shape), product(d for d in shape if d != -1))
        if shape.count(-1) > 1 or rest is None:
            raise Unfit("it reshapes sizes that are not known")
        shape[shape.index(-1)] = rest
    return tuple(shape)


def rebatched(value: Value, shape: Sequence[Dim], size: Dim) -> Batch | None:
    """Where the batch is once a value is reshaped, row-major order kept. Raises Unfit where it cannot be told."""
    batch = value.batch
    if batch is None:
        return None
    inner = times(product(value.shape[batch.axis + 1 :]), batch.after)
    outer = times(product(value.shape[: batch.axis]), batch.before)
    found: list[Batch] = []
    for i, d in enumerate(shape):
        after, before = over(inner, product(shape[i + 1 :])), over(outer, product(shape[:i]))
        if after is not None and before is not None and times(times(before, size), after) == d:
            found.append(Batch(i, before, after))
    if not found:
        raise Unfit("it reshapes the batch into other axes")
    return next((b for b in found if b.pure), found[0])
