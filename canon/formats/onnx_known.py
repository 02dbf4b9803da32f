"""What is known before anything runs: stored tensors, views of them, and what a graph computes from its own shapes.

A view keeps the way to the stored tensor (transposed, reshaped, cut), so that it can be put back; a number computed from
others does not. Open sizes are entries like others, of arrays of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from canon.errors import CorruptFile
from canon.formats.onnx_graph import Node
from canon.formats.onnx_size import Dim
from canon.ops.base import Array

MOST = 1 << 27
"""Entries of an array that a graph makes out of nothing, or of few."""

Step = tuple[Any, ...]
"""("reshape", shape), ("transpose", axes), ("cut", axis, start, stop), ("pick", axis, indices) or ("expand", from, to)."""


@dataclass(frozen=True)
class Known:
    """array: its values; path: the stored tensor that it is a view of ("" if it is computed), by steps; precision: the name of
    the type that it is stored in, where numpy has none.
    """

    array: Array
    path: str = ""
    steps: tuple[Step, ...] = ()
    precision: str = ""

    @property
    def open(self) -> bool:
        """Whether some of its entries are sizes that the file leaves open."""
        return self.array.dtype == object

    def stepped(self, *steps: Step) -> Known:
        """A view of it."""
        return Known(
            viewed(self.array, steps), self.path, simplified((*self.steps, *steps)) if self.path else (), self.precision
        )

    def narrow(self) -> Known:
        """Without what was repeated along its axes at the end."""
        if not self.steps or self.steps[-1][0] != "expand":
            return self
        _, few, many = self.steps[-1]
        cuts = [("cut", i, 0, 1) for i, (n, m) in enumerate(zip(few, many, strict=True)) if n != m]
        return Known(viewed(self.array, cuts), self.path, self.steps[:-1], self.precision)

    def number(self) -> float | None:
        """Its value, if it has one entry that is known."""
        return (
            None if self.open or self.array.size != 1 or self.array.dtype.kind not in "fiub" else float(self.array.reshape(()))
        )

    def sizes(self) -> list[Dim] | None:
        """Its entries as sizes."""
        if self.open:
            return list(self.array.reshape(-1))
        return [int(n) for n in self.array.reshape(-1)] if self.array.dtype.kind in "iu" else None


def viewed(array: Array, steps: Sequence[Step]) -> Array:
    """The view that the steps lead to."""
    for step in steps:
        if step[0] == "reshape":
            array = array.reshape(step[1])
        elif step[0] == "transpose":
            array = array.transpose(step[1])
        elif step[0] == "cut":
            _, axis, start, stop = step
            array = array[(slice(None),) * axis + (slice(start, stop),)]
        elif step[0] == "expand":
            array = np.broadcast_to(array, step[2])
        else:
            array = np.take(array, step[2], axis=step[1])
    return array


def simplified(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same way in fewer steps: reshapes in a row are one, transposes in a row are one or none."""
    out: list[Step] = []
    for step in steps:
        if out and step[0] == out[-1][0] == "reshape":
            out[-1] = step
        elif out and step[0] == out[-1][0] == "transpose":
            axes = tuple(out[-1][1][a] for a in step[1])
            out.pop()
            if axes != tuple(range(len(axes))):
                out.append(("transpose", axes))
        elif out and step[0] == "cut" and out[-1][0] == "expand" and _undone(out[-1], step):
            out.pop()
        elif step[0] != "transpose" or tuple(step[1]) != tuple(range(len(step[1]))):
            out.append(step)
    return tuple(out)


def _undone(expand: Step, cut: Step) -> bool:
    """Whether a cut leaves of an expanded array what it was before."""
    shape = list(expand[2])
    shape[cut[1]] = cut[3] - cut[2]
    return bool(tuple(shape) == expand[1])


def sizes_of(dims: Sequence[Dim]) -> Known:
    """Sizes as a vector."""
    if all(isinstance(d, int) for d in dims):
        return Known(np.array(dims, np.int64).reshape(len(dims)))
    out: Array = np.empty(len(dims), object)
    out[:] = list(dims)
    return Known(out)


# views


def axes_of(node: Node, ins: Sequence[Known | None], at: int, rank: int) -> list[int] | None:
    """Axes from an attribute, or from input `at`, counted from the front; None where they are not known or not given."""
    given: Any = node.attrs.get("axes")
    if given is None and at < len(ins):
        found = ins[at]
        given = None if found is None else found.sizes()
    if given is None or not all(isinstance(a, int) for a in given):
        return None
    if any(not -rank <= a < rank for a in given):
        raise CorruptFile(node.label, f"axes {list(given)} of a value with {rank}")
    return [int(a) % rank for a in given]


def _transpose(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    rank = ins[0].array.ndim
    perm = [int(a) for a in node.attrs.get("perm") or range(rank)[::-1]]
    return [[("transpose", tuple(perm))]] if sorted(perm) == list(range(rank)) else None


def _reshape(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    shape = ins[0].array.shape
    wanted: Any = ins[1].sizes() if len(ins) > 1 and ins[1] is not None else node.attrs.get("shape")
    if wanted is None or not all(isinstance(n, int) for n in wanted):
        return None
    out = [shape[i] if n == 0 and i < len(shape) and not node.attrs.get("allowzero") else int(n) for i, n in enumerate(wanted)]
    rest = prod(n for n in out if n != -1)
    if out.count(-1) > 1 or (-1 in out and (rest == 0 or ins[0].array.size % rest)) or any(n < -1 for n in out):
        return None
    out = [ins[0].array.size // rest if n == -1 else n for n in out]
    return [[("reshape", tuple(out))]] if prod(out) == ins[0].array.size else None


def _squeeze(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    shape = ins[0].array.shape
    axes = axes_of(node, ins, 1, len(shape))
    if axes is None:
        axes = [i for i, n in enumerate(shape) if n == 1]
    return [[("reshape", tuple(n for i, n in enumerate(shape) if i not in axes))]] if all(shape[a] == 1 for a in axes) else None


def _unsqueeze(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    given: Any = node.attrs.get("axes") or (ins[1].sizes() if len(ins) > 1 and ins[1] is not None else None)
    shape = list(ins[0].array.shape)
    if given is None or len(given) > 60:
        return None
    rank = len(shape) + len(given)
    for a in sorted(int(a) % rank for a in given):
        shape.insert(a, 1)
    return [[("reshape", tuple(shape))]]


def _flatten(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    shape = ins[0].array.shape
    at = int(node.attrs.get("axis", 1))
    at = at + len(shape) if at < 0 else at
    return [[("reshape", (prod(shape[:at]), prod(shape[at:])))]]


def bounds(start: int, stop: int, n: int) -> tuple[int, int]:
    """A stretch of n entries as given by a slice: from behind if negative, and cut to what there is."""
    start, stop, _ = slice(start, stop).indices(n)
    return start, max(start, stop)


def stretches(node: Node, ins: Sequence[Known | None], rank: int) -> list[tuple[int, int, int, int]] | None:
    """(axis, start, stop, step) for each axis that a Slice cuts; None where they are not known."""
    if "starts" in node.attrs:
        starts, stops, steps = node.attrs["starts"], node.attrs["ends"], None
        axes = node.attrs.get("axes")
    else:
        starts, stops, axes, steps = ((None if k is None else k.sizes()) for k in (*ins[1:], None, None, None, None)[:4])
        if len(ins) > 3 and ins[3] is not None and axes is None:
            return None
        if len(ins) > 4 and ins[4] is not None and steps is None:
            return None
    if starts is None or stops is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    rows = list(zip(axes, starts, stops, steps, strict=False))
    if len({len(starts), len(stops), len(axes), len(steps)}) > 1 or not all(isinstance(x, int) for row in rows for x in row):
        return None
    if any(not -rank <= a < rank for a, *_ in rows):
        raise CorruptFile(node.label, f"cuts axes {axes} of a value with {rank}")
    whole: Any = rows
    return [(int(a) % rank, int(lo), int(hi), int(s)) for a, lo, hi, s in whole]


def _slice(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    shape = ins[0].array.shape
    found = stretches(node, ins, len(shape))
    if found is None or any(step != 1 for *_, step in found):
        return None
    return [[("cut", axis, *bounds(lo, hi, shape[axis])) for axis, lo, hi, _ in found]]


def parts_of(node: Node, ins: Sequence[Known | None], n: int) -> list[int] | None:
    """The sizes into which a Split cuts n entries."""
    given: Any = node.attrs.get("split")
    if given is None and len(ins) > 1 and ins[1] is not None:
        given = ins[1].sizes()
    if given is None:
        count = int(node.attrs.get("num_outputs", len(node.outputs)))
        if count < 1:
            return None
        size = -(-n // count)
        given = [min(size, n - i * size) for i in range(count)]
    if not all(isinstance(k, int) and k >= 0 for k in given) or sum(given) != n or len(given) < len(node.outputs):
        return None
    return [int(k) for k in given]


def _split(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    rank = ins[0].array.ndim
    axis = int(node.attrs.get("axis", 0)) % max(rank, 1)
    parts = parts_of(node, ins, ins[0].array.shape[axis]) if rank else None
    if parts is None:
        return None
    return [[("cut", axis, sum(parts[:i]), sum(parts[: i + 1]))] for i in range(len(node.outputs))]


def _gather(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    """One entry, or a stretch of entries, along an axis."""
    assert ins[0] is not None
    if len(ins) < 2 or ins[1] is None or ins[1].open or ins[1].array.dtype.kind not in "iu":
        return None
    shape, at = ins[0].array.shape, int(node.attrs.get("axis", 0))
    if not shape or not -len(shape) <= at < len(shape):
        return None
    at %= len(shape)
    where = ins[1].array
    flat = np.where(where < 0, where + shape[at], where).reshape(-1)
    if not flat.size or (flat < 0).any() or (flat >= shape[at]).any():
        return None
    lo = int(flat[0])
    if flat.size > 1 and (flat == lo).all() and prod(shape) // shape[at] * flat.size <= MOST:
        one, many = ((*shape[:at], *n, *shape[at + 1 :]) for n in ((1,) * where.ndim, where.shape))
        return [[("cut", at, lo, lo + 1), ("reshape", one), ("expand", one, many)]]
    if (np.diff(flat) != 1).any():
        return None
    cut: list[Step] = [("cut", at, lo, lo + flat.size)]
    return [cut if where.ndim == 1 else [*cut, ("reshape", (*shape[:at], *where.shape, *shape[at + 1 :]))]]


def _expand(node: Node, ins: Sequence[Known | None]) -> list[list[Step]] | None:
    assert ins[0] is not None
    shape = ins[0].array.shape
    wanted: Any = ins[1].sizes() if len(ins) > 1 and ins[1] is not None else None
    if wanted is None or not all(isinstance(n, int) and n >= 0 for n in wanted):
        return None
    try:
        whole = np.broadcast_shapes(shape, tuple(wanted))
    except ValueError:
        return None
    if whole == shape:
        return [[]]
    front = (1,) * (len(whole) - len(shape)) + shape
    more: list[Step] = [] if front == shape else [("reshape", front)]
    return [[*more, ("expand", front, whole)]] if prod(whole) <= MOST else None


VIEWS: Mapping[str, Callable[[Node, Sequence[Known | None]], list[list[Step]] | None]] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Expand": _expand,
}
"""By type: the way, or ways, from the first input to the outputs."""
