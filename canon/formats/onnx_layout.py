"""Entries that a graph only moves about: which entry of which value each one is, however often it was reshaped and turned.

A run of reshapes, transposes and cuts is followed on the numbers of the entries themselves, so that two ways to the same
layout are the same. What amounts to nothing goes; what amounts to one stretch of an axis is a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from canon.formats.onnx_draft import Draft
from canon.formats.onnx_tidy import Rule, affine_numbers
from canon.ops import Op, kind_of
from canon.ops.base import Array

MOVES = ("reshape", "flatten", "permute", "take", "slice", "concat")
OPEN = 5
"""What an open size is taken as."""
MOST = 1 << 24
"""Entries that are followed."""


@dataclass(frozen=True)
class Way:
    """Where a value comes from. base: the value whose entries it has; ops: from there on; factor: what they are multiplied by;
    places: for each entry, the number of the base's entry, in the value's shape; shape: the base's, open sizes filled in.
    """

    base: str
    ops: tuple[Op, ...]
    factor: float
    places: Array
    shape: tuple[int, ...]


def moves(draft: Draft, value: str, scaled: bool) -> Op | None:
    """The operation that wrote a value, if it only moves entries about (or, `scaled`, multiplies them all by one number)."""
    op = draft.writer(value, *MOVES, "rescale")
    if op is None or (op.kind == "concat" and len(set(op.inputs)) > 1):
        return None
    if op.kind == "rescale" and (not scaled or affine_numbers(op)[1] != 0):
        return None
    return op


def way(draft: Draft, value: str, scaled: bool = False) -> Way | None:
    """The way to a value; None for more open sizes, or more entries, than are followed."""
    ops: list[Op] = []
    base = value
    while (op := moves(draft, base, scaled)) is not None:
        ops.append(op)
        base = op.inputs[0]
    shape = draft.shapes[base]
    whole = tuple(OPEN if n is None else n for n in shape)
    if shape.count(None) > 1 or prod(whole) > MOST:
        return None
    x: Array = np.arange(prod(whole)).reshape(1, *whole)
    factor = 1.0
    for op in reversed(ops):
        if op.kind == "rescale":
            factor *= affine_numbers(op)[0]
            continue
        if x.size * len(op.inputs) > MOST:
            return None
        try:
            x = kind_of(op).forward(op, [x] * len(op.inputs), {})
        except ValueError:  # a size that was open goes into one that is not
            return None
    return Way(base, tuple(reversed(ops)), factor, x[0], whole)


def stretch(places: Array, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(axis, start, stop) where these are the entries of a value of this shape in one stretch of an axis; None otherwise."""
    if places.ndim != len(shape) or not places.size:
        return None
    differ = [i for i, (n, m) in enumerate(zip(places.shape, shape, strict=True)) if n != m]
    if len(differ) > 1:
        return None
    axis = differ[0] if differ else 0
    first = int(np.unravel_index(int(places.reshape(-1)[0]), shape)[axis])
    stop = first + places.shape[axis]
    whole = np.arange(prod(shape)).reshape(shape)
    if stop > shape[axis] or not np.array_equal(whole[(slice(None),) * axis + (slice(first, stop),)], places):
        return None
    return axis, first, stop


def sliced(draft: Draft, base: str, found: tuple[int, int, int], name: str) -> str:
    """A stretch of a value: itself where that is all of it, a slice that is there already, or a new one."""
    axis, start, stop = found
    shape = draft.shapes[base]
    n = shape[axis]
    if n is None or (start, stop) == (0, n):
        return base
    at = -1 if axis == len(shape) - 1 else axis
    for op in draft.readers(base):
        if op.kind == "slice" and (int(op.attrs.get("axis", -1)) % len(shape), op.attrs["start"], op.attrs["stop"]) == found:
            return op.output
    attrs = {"axis": at} if at != -1 else {}
    return draft.add("slice", [base], f"{base}[{start}:{stop}]", name, {}, start=start, stop=stop, **attrs)


def relaid(draft: Draft, op: Op) -> bool:
    """Moves in a row that are nothing together, or a slice."""
    if op.kind not in MOVES:
        return False
    found = way(draft, op.output)
    if found is None or len(found.ops) < 2:
        return False
    here = stretch(found.places, found.shape)
    if here is None or (None in draft.shapes[op.output] and draft.shapes[found.base][here[0]] is None and here[1] != 0):
        return False
    value = sliced(draft, found.base, here, f"{op.name}/slice")
    if value == op.output:
        return False
    draft.redirect(op.output, value)
    draft.drop(op.output)
    return True


RULES: tuple[Rule, ...] = (relaid,)
