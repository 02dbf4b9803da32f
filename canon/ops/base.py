"""What an operation is: `Op`, one node of a graph, and `OpKind`, the class of all nodes of one kind.

A kind says three things about itself and nothing about any other kind:

* `shape`: the shape of what comes out;
* `equations`: how the labels, scales and signs of its inputs, output and parameters hang together. What these
  equations leave free over a whole network is its symmetry group (symmetry.py solves them);
* `forward` and `magnitude`: what it computes, and a bound on what rounding can have moved.

Conventions. Values have no batch axis in shapes and in equations, and have it as axis 0 in `forward`. Weights are
held as (out, in, *kernel) whatever the file's layout; values keep the file's layout and ops carry their channel axis.
A module in this package that defines an `OpKind` with a `kind` is found by itself: adding an op touches one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from canon.errors import ShapeConflict, UnsupportedOp

Array = NDArray[Any]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Op:
    """One operation of a network.

    kind: a name from the registry; name: unique, the layer's name where it has one; inputs, output: value names;
    params: tensor name for each role ("kernel": "dense_1/kernel"); attrs: plain JSON values.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    output: str
    params: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)


class AxisRef:
    """An axis of a value while equations are collected: opaque to ops, only handed back to `Equations`."""

    __slots__ = ()


@dataclass(frozen=True)
class Leg:
    """How one axis of a parameter tensor hangs on the values around it.

    label: the axis whose labelling it follows (None: nothing moves along it);
    up: axes whose factor multiplies it (what it writes); down: axes whose factor divides it (what it reads).
    power: name of an axis whose sign inverts the entry (the slope of a PReLU).
    role: "in" for incoming parameters of the units on `label`, "out" for outgoing, "label" for neither.
    blocks: more than one where the axis is the second of a block-diagonal tensor (geometry.written_out) of which only the
    blocks are stored; label, up and down then speak of the whole axis, `size` of what is stored.
    """

    size: int
    label: AxisRef | None = None
    up: tuple[AxisRef, ...] = ()
    down: tuple[AxisRef, ...] = ()
    role: str = "label"
    power: AxisRef | None = None
    blocks: int = 1


class Equations(Protocol):
    """What an op's `equations` talks to; one object per op, made by symmetry.py."""

    inputs: tuple[tuple[AxisRef, ...], ...]
    """The axes of each input value, batch excluded."""
    in_shapes: tuple[Shape, ...]
    out_shape: Shape
    param_shapes: Mapping[str, tuple[int, ...]]

    # making axes
    def fresh(self, size: int) -> AxisRef:
        """New units with a labelling and a gauge of their own, named after the op."""

    def alike(self, axis: AxisRef) -> AxisRef:
        """The labelling of `axis`, with a gauge of its own."""

    def fixed(self, size: int | None, why: str) -> AxisRef:
        """An axis along which nothing may move."""

    def concat(self, parts: Sequence[AxisRef]) -> AxisRef:
        """Parts one after the other."""

    def interleave(self, parts: Sequence[AxisRef]) -> AxisRef:
        """Parts of one size, an entry of each in turn."""

    def product(self, parts: Sequence[AxisRef]) -> AxisRef:
        """The row-major product of axes (a flatten)."""

    def over(self, size: int, outer: AxisRef) -> AxisRef:
        """Units of which each unit of `outer` has its own independent copy."""

    def rotates(self, axis: AxisRef) -> None:
        """Single units do not matter here to whoever asks for rotations: any orthogonal matrix may act; else as `units`."""

    def block(self, size: int, outer: AxisRef, name: str) -> AxisRef:
        """Units that any matrix may turn among each other, one matrix for each unit of `outer`."""

    def dual(self, block: AxisRef) -> AxisRef:
        """The units that meet those of a block in an inner product: the inverse transpose acts on them."""

    def turning(self, axis: AxisRef, size: int, pairs: tuple[tuple[tuple[int, int], ...], ...] | None) -> None:
        """Of the blocks of `size` along an axis only what commutes with turning these pairs (by class of those that turn
        alike) may act, or, with None, only signs.
        """

    def factor(self, axis: AxisRef, sizes: Sequence[int]) -> tuple[AxisRef, ...]:
        """Take an axis apart into row-major factors: its labelling must respect them."""

    # saying how they hang together
    def same(self, a: AxisRef, b: AxisRef) -> None:
        """One labelling, one scale, one sign (a sum of both, say)."""

    def same_labels(self, a: AxisRef, b: AxisRef) -> None:
        """One labelling; the gauges stay apart."""

    def fix(self, axis: AxisRef, why: str) -> None:
        """Nothing may move along this axis."""

    def units(self, axis: AxisRef) -> None:
        """Single units matter here (an elementwise function): no linear mixing of this space."""

    def scale(self, *terms: tuple[AxisRef, int]) -> None:
        """Sum of coefficient times log-scale is zero."""

    def sign(self, *terms: tuple[AxisRef, int]) -> None:
        """Sum of coefficient times sign (in two elements) is zero."""

    def centre(self, axis: AxisRef, about: float) -> None:
        """A sign flip of this value is v -> 2 about - v."""

    def centre_sum(self, out: AxisRef, parts: Sequence[AxisRef]) -> None:
        """The value is a sum, and so is the point about which it flips."""

    def slope(self, out: AxisRef, inner: AxisRef, tensor_role: str) -> None:
        """A flip of `inner` divides `out` by the size of the parameter (PReLU)."""

    def param(self, role: str, *legs: Leg) -> None:
        """The axes of a parameter tensor, in its own order."""

    def emit(self, axes: Sequence[AxisRef]) -> None:
        """The axes of the output."""

    def shift_carried(self) -> bool:
        """Whether a constant added to this op's output is absorbed by its only reader (a batch norm)."""


def writes(size: int, axis: AxisRef) -> Leg:
    """A parameter axis over the units it writes."""
    return Leg(size, axis, up=(axis,), role="in")


def reads(size: int, axis: AxisRef) -> Leg:
    """A parameter axis over the units it reads."""
    return Leg(size, axis, down=(axis,), role="out")


def across(size: int, out: AxisRef, inner: AxisRef) -> Leg:
    """A parameter axis over units that come in and go out one by one (batch norm's gamma, a depthwise kernel)."""
    return Leg(size, out, up=(out,), down=(inner,), role="in")


def labels_only(eq: Equations, *axes: AxisRef) -> None:
    """Nothing but relabelling along these axes: the same numbers meet all their entries."""
    for axis in axes:
        eq.units(axis)
        eq.scale((axis, 1))
        eq.sign((axis, 1))


def plain(size: int) -> Leg:
    """A parameter axis along which nothing moves (a kernel's height and width)."""
    return Leg(size)


class OpKind:
    """One kind of operation. Subclasses set `kind` and are registered by being defined."""

    kind: ClassVar[str] = ""
    roles: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    affine: ClassVar[bool] = False
    """Whether it counts as an affine map in the rounding bound."""
    commutes: ClassVar[bool] = False
    """Whether the order of its inputs is immaterial."""
    holds_zero: ClassVar[bool] = False
    """Whether a unit that is zero coming in (or has no parameter but zeros) is zero going out; see `keeps_zero`."""
    mixing: ClassVar[bool] = False
    """Whether units see each other without a parameter between them, as in a softmax; see `mixes`."""
    registry: ClassVar[dict[str, OpKind]] = {}

    def __init_subclass__(cls) -> None:
        if cls.kind:
            OpKind.registry[cls.kind] = cls()

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        """Output shape without batch; raises ShapeConflict where shapes contradict each other."""
        raise NotImplementedError

    def equations(self, op: Op, eq: Equations) -> None:
        """Tell `eq` what this op lets free."""
        raise NotImplementedError

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        """Output for a batch; in the dtype of the inputs."""
        raise UnsupportedOp(op.name, f"a {op.kind} operation cannot be run")

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        """Bound on the size of everything summed into the output, from such bounds on the inputs.

        Parameters come as absolute values. By default the op run on them; activations hand theirs on.
        """
        return self.forward(op, inputs, params)

    def keeps_zero(self, op: Op) -> bool:
        """`holds_zero`, where attributes decide."""
        return self.holds_zero

    def mixes(self, op: Op) -> bool:
        """`mixing`, where attributes decide."""
        return self.mixing

    def blind_axis(self, op: Op) -> int | None:
        """The axis (batch excluded) along which a number added to all units alike goes unnoticed, if there is one."""
        return None

    def tokens(self, op: Op, params: Mapping[str, tuple[int, ...]]) -> int | None:
        """n where the input holds whole numbers from 0 to n - 1, None where it may hold any."""
        return None

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        """`forward` and `magnitude` at once; params as stored, of any type."""
        double = {r: np.asarray(p, inputs[0].dtype) for r, p in params.items()}
        absolute = {r: p if r == "variance" else np.abs(p) for r, p in double.items()}
        return self.forward(op, inputs, double), self.magnitude(op, sizes, absolute)

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        """The changed parameters of f'(x) = f(x + t_in) + t_out, with t_in and t_out one number per channel.

        Only called for ops whose equations allow it. What no parameter can take is returned as "out": it stays added
        to the output, and the only reader, a batch norm, takes it.
        """
        raise UnsupportedOp(op.name, f"a {op.kind} operation cannot absorb a shift")


def kind_of(op: Op) -> OpKind:
    """The kind's object; UnsupportedOp names what is not known."""
    try:
        return OpKind.registry[op.kind]
    except KeyError:
        raise UnsupportedOp(op.name, f"operation {op.kind!r} is not known") from None


def expect(op: Op, what: str, found: object, wanted: object) -> None:
    """Raise ShapeConflict unless two sizes agree."""
    if found != wanted:
        raise ShapeConflict(op.name, f"{what} is {found}, expected {wanted}")
