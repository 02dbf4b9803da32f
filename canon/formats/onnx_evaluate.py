"""Nodes of what is known, evaluated: constants, views, shape arithmetic, and numbers computed from numbers.

Nothing large is made: an array of one number takes no memory, and what would be computed beyond a limit is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile
from canon.formats.onnx_file import TYPES, array_of
from canon.formats.onnx_graph import Node
from canon.formats.onnx_known import MOST, VIEWS, Known, stretches
from canon.formats.onnx_size import Size
from canon.ops.base import Array

_COMPUTED = 1 << 24
"""Entries of an array that is computed from others."""
_LITERALS: dict[str, Any] = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
}  # fmt: skip


def evaluate(node: Node, ins: Sequence[Known | None]) -> list[Known] | None:
    """The outputs of a node all of whose inputs are known; None where canon does not compute it."""
    if node.op in ("Constant", "Identity", "Dropout") or (node.op == "Cast" and ins[0] is not None):
        return _handed_on(node, ins)
    if not ins or ins[0] is None:
        return None
    view = VIEWS.get(node.op)
    steps = None if view is None else view(node, ins)
    if steps is not None:
        return [_settled(ins[0].stepped(*way)) for way in steps]
    arrays = [None if k is None else k.array for k in ins]
    if node.op == "Slice":
        made = _stepping(node, ins)
        return None if made is None else [Known(made)]
    found = _MADE.get(node.op)
    if found is not None:
        made = found(node, arrays)
        return None if made is None else [Known(np.asarray(made))]
    function = _FUNCTIONS.get(node.op)
    if function is None or any(a is None for a in arrays):
        return None
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays if a is not None))
        if prod(shape) > _COMPUTED:
            return None
        with np.errstate(all="ignore"):
            made = function(*arrays)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return [Known(_plain(np.asarray(made), arrays))]


def _settled(k: Known) -> Known:
    """Sizes none of which is open are numbers."""
    return Known(_plain(k.array, [])) if k.open else k


def _stepping(node: Node, ins: Sequence[Known | None]) -> Array | None:
    """Slices with steps, which leave entries out or turn them around."""
    assert ins[0] is not None
    x = ins[0].array
    rows = stretches(node, ins, x.ndim)
    if rows is None or any(step == 0 for *_, step in rows):
        return None
    for axis, lo, hi, step in rows:
        where = slice(lo, None if step < 0 and hi < -x.shape[axis] else hi, step)
        x = x[(slice(None),) * axis + (where,)]
    return x


def _plain(made: Array, arrays: Sequence[Array | None]) -> Array:
    """Objects that turned out to be numbers are numbers; the type is that of the first input."""
    if made.dtype == object:
        flat = made.reshape(-1)
        if not any(isinstance(x, Size) for x in flat):
            return np.array(list(flat), np.int64 if not any(isinstance(x, bool | np.bool_) for x in flat) else bool).reshape(
                made.shape
            )
        return made
    first = next((a for a in arrays if a is not None and a.dtype != object), None)
    with np.errstate(all="ignore"):
        return (
            made if made.dtype.kind == "b" or first is None or first.dtype.kind == "b" else made.astype(first.dtype, copy=False)
        )


def _handed_on(node: Node, ins: Sequence[Known | None]) -> list[Known] | None:
    if node.op == "Constant":
        for key, value in node.attrs.items():
            if key in _LITERALS:
                return [Known(np.asarray(value, _LITERALS[key]))]
        return None
    found = ins[0]
    if found is None:
        return None
    if node.op != "Cast":
        return [found]
    kind = TYPES.get(int(node.attrs.get("to", 1)), "")
    if found.open:
        return [found] if kind in ("int64", "int32") else None
    if kind not in TYPES.values():
        return None
    dtype: np.dtype[Any] = np.dtype(kind if kind != "bfloat16" else "float32")
    held = found.array.dtype
    if dtype == held or (held.kind == dtype.kind == "f" and dtype.itemsize > held.itemsize):
        return [found]  # nothing is lost, and the stored tensor stays what it is
    with np.errstate(all="ignore"):
        return [Known(found.array.astype(dtype))]


# arrays that are made


def _shape(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    assert arrays[0] is not None
    rank = arrays[0].ndim
    start, stop, _ = slice(node.attrs.get("start"), node.attrs.get("end")).indices(rank)
    return np.array(arrays[0].shape[start:stop], np.int64)


def _size(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    assert arrays[0] is not None
    return np.array(arrays[0].size, np.int64)


def _concat(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    found = [a for a in arrays if a is not None]
    if len(found) < len(arrays) or any(a.ndim == 0 for a in found) or sum(a.size for a in found) > _COMPUTED:
        return None
    try:
        return np.concatenate(found, axis=int(node.attrs.get("axis", 0)))
    except ValueError:
        return None


def _numbers(a: Array | None) -> list[int] | None:
    return None if a is None or a.dtype == object or a.dtype.kind not in "iu" else [int(n) for n in a.reshape(-1)]


def _filled(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    """One number everywhere, which takes no memory."""
    shape = _numbers(arrays[0])
    if shape is None or any(n < 0 for n in shape):
        return None
    if prod(shape) > MOST:
        raise CorruptFile(node.label, f"makes an array of {prod(shape):,} entries", "The file is made to harm.")
    value = node.attrs.get("value")
    filled = np.zeros((), np.float32)
    if value is not None:
        filled = array_of(value, Path("/"))[0].reshape(-1)[:1].reshape(()) if not value.external_data else filled
    return np.broadcast_to(filled, shape)


def _range(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    if len(arrays) != 3 or any(a is None or a.dtype == object or a.size != 1 for a in arrays):
        return None
    lo, hi, step = (a.reshape(()) for a in arrays if a is not None)
    if step == 0 or (hi - lo) / step > _COMPUTED:
        return None
    return np.asarray(np.arange(lo.item(), hi.item(), step.item(), dtype=lo.dtype))


def _reduced(function: Callable[..., Any]) -> Callable[[Node, Sequence[Array | None]], Array | None]:
    def reduce(node: Node, arrays: Sequence[Array | None]) -> Array | None:
        x = arrays[0]
        assert x is not None
        axes = node.attrs.get("axes") or (_numbers(arrays[1]) if len(arrays) > 1 else None)
        try:
            return np.asarray(
                function(x, axis=None if axes is None else tuple(axes), keepdims=bool(node.attrs.get("keepdims", 1)))
            )
        except (ValueError, TypeError):
            return None

    return reduce


def _trilu(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    k = _numbers(arrays[1]) if len(arrays) > 1 and arrays[1] is not None else [0]
    x = arrays[0]
    if x is None or k is None or x.ndim < 2 or x.size > _COMPUTED:
        return None
    return np.triu(x, k[0]) if int(node.attrs.get("upper", 1)) else np.tril(x, k[0])


def _tile(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    times, x = _numbers(arrays[1]) if len(arrays) > 1 else None, arrays[0]
    if times is None or x is None or len(times) != x.ndim or x.size * prod(times) > _COMPUTED:
        return None
    return np.tile(x, times)


def _gathered(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    """Entries picked out of order."""
    x, where = arrays[0], arrays[1] if len(arrays) > 1 else None
    if x is None or where is None or where.dtype == object or where.dtype.kind not in "iu" or x.ndim == 0:
        return None
    axis = int(node.attrs.get("axis", 0)) % x.ndim
    if (
        x.size // max(x.shape[axis], 1) * where.size > _COMPUTED
        or (where < -x.shape[axis]).any()
        or (where >= x.shape[axis]).any()
    ):
        return None
    return np.take(x, where, axis=axis)


def _along(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    x, where = arrays[0], arrays[1]
    if x is None or where is None or object in (x.dtype, where.dtype) or x.ndim != where.ndim:
        return None
    axis = int(node.attrs.get("axis", 0))
    try:
        return np.take_along_axis(x, where, axis)
    except (IndexError, ValueError):
        return None


def _summed(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    x, axis = arrays[0], _numbers(arrays[1])
    if x is None or axis is None or x.dtype == object or node.attrs.get("exclusive") or node.attrs.get("reverse"):
        return None
    return np.cumsum(x, axis=axis[0], dtype=x.dtype)


def _einsum(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    found = [a for a in arrays if a is not None and a.dtype != object]
    said = str(node.attrs.get("equation", "")).replace(" ", "")
    ins = said.split("->")[0].split(",")
    if len(found) < len(arrays) or [len(i) for i in ins] != [a.ndim for a in found] or "." in said:
        return None
    sizes = {k: n for i, a in zip(ins, found, strict=True) for k, n in zip(i, a.shape, strict=True)}
    return np.asarray(np.einsum(said, *found)) if prod(sizes.values()) <= _COMPUTED else None


def _product(node: Node, arrays: Sequence[Array | None]) -> Array | None:
    a, b = arrays[0], arrays[1]
    if a is None or b is None or object in (a.dtype, b.dtype) or max(a.size, b.size) > _COMPUTED:
        return None
    try:
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
        return np.asarray(a @ b) if prod(shape) <= _COMPUTED else None
    except ValueError:
        return None


_MADE: Mapping[str, Callable[[Node, Sequence[Array | None]], Array | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Range": _range,
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceMean": _reduced(np.mean),
    "Trilu": _trilu,
    "Tile": _tile,
    "Gather": _gathered,
    "GatherElements": _along,
    "CumSum": _summed,
    "MatMul": _product,
    "Einsum": _einsum,
}


def _divided(a: Array, b: Array) -> Any:
    if object in (a.dtype, b.dtype):
        return a // b
    if a.dtype.kind in "iu":  # towards zero, as C does
        if not (b != 0).all():
            raise ZeroDivisionError
        return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return a / b


def _same(p: Any, q: Any) -> bool | None:
    """Whether two sizes are one; None where it is not known. An open size is no number below one."""
    if not isinstance(p, Size) and not isinstance(q, Size):
        return bool(p == q)
    number = q if isinstance(p, Size) else p
    return True if p == q else False if not isinstance(number, Size) and number < 1 else None


def _equal(a: Array, b: Array) -> Any:
    if object not in (a.dtype, b.dtype):
        return a == b
    x, y = np.broadcast_arrays(a, b)
    pairs = zip(x.flat, y.flat, strict=True)
    found = [_same(p, q) for p, q in pairs]
    if None in found:
        raise ValueError
    return np.array(found, bool).reshape(x.shape)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divided,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda a: 1 / a,
    "Exp": np.exp,
    "Log": np.log,
    "Pow": np.power,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Min": lambda *a: np.minimum.reduce(a) if len(a) > 1 else a[0],
    "Max": lambda *a: np.maximum.reduce(a) if len(a) > 1 else a[0],
    "Equal": _equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Where": lambda c, a, b: np.where(c, a, b),
    "Mod": np.mod,
    "Cos": np.cos,
    "Sin": np.sin,
}
