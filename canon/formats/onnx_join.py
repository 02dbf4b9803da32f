"""ONNX nodes on several values or on a value and a constant, entry by entry: sums, products, quotients, extrema, powers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from canon.errors import ShapeConflict
from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_known import Known
from canon.formats.onnx_size import Dim
from canon.formats.onnx_value import Batch, Unfit, Value

MOST_MASKED = 1 << 26
HIDES = -1e4
"""An added number so low hides a score from a softmax."""
_KERNELS = ("dense", "conv", "conv_transpose", "depthwise_conv", "grouped_conv")

# bringing together


def _operands(b: Builder, node: Node) -> list[Value | Known]:
    """All inputs; the second laid out as before operator set 7, where the node says so."""
    found = [b.get(v) for v in node.inputs if v]
    if node.version < 7 and "axis" in node.attrs and node.attrs.get("broadcast") and len(found) == 2:
        first, second = found
        rank = first.rank if isinstance(first, Value) else first.array.ndim
        width = second.rank if isinstance(second, Value) else second.array.ndim
        behind = rank - int(node.attrs["axis"]) % max(rank, 1) - width
        if isinstance(second, Value) or behind < 0:
            raise Unfit("it broadcasts as before operator set 7")
        found[1] = second.stepped(("reshape", (*second.array.shape, *[1] * behind)))
    return found


def _meeting(sizes: Sequence[Dim]) -> Dim:
    """The size of an axis on which these meet."""
    more = [d for d in sizes if d != 1]
    return next((d for d in more if isinstance(d, int)), more[0] if more else 1)


def together(b: Builder, node: Node, values: Sequence[Value]) -> tuple[list[Value], tuple[Dim, ...], Batch | None]:
    """The values with one number of axes and the batch at one place, the shape they broadcast to, and where the batch is."""
    rank = max(x.rank for x in values)
    at = {replace(x.batch, axis=x.batch.axis + rank - x.rank) for x in values if x.batch is not None}
    if len(at) > 1:
        raise Unfit("its values have their batches on different axes")
    batch = at.pop() if at else None
    wide = [(*[1] * (rank - x.rank), *x.shape) for x in values]
    shape = tuple(_meeting(sizes) for sizes in zip(*wide, strict=True))
    out = []
    for i, (x, s) in enumerate(zip(values, wide, strict=True)):
        if x.batch is None and batch is not None:
            if s[batch.axis] != 1:
                raise Unfit("a value without a batch meets one with it")
            s = (*s[: batch.axis], shape[batch.axis] if batch.pure else 1, *s[batch.axis + 1 :])
        elif batch is not None:
            s = (*s[: batch.axis], shape[batch.axis], *s[batch.axis + 1 :])
        out.append(b.relay(node, x, s, batch, f":{i}"))
    return out, shape, batch


def for_one(c: Known, axis: int) -> Known:
    """A constant that is the same for every sample of a batch, for one. Raises Unfit if it is not."""
    if c.array.shape[axis] == 1:
        return c
    first = c.stepped(("cut", axis, 0, 1))
    if c.array.strides[axis] and not (c.array == first.array).all():
        raise Unfit("a constant varies along the batch")
    return first


def against(x: Value, c: Known) -> Known:
    """A constant in the rank of a sample of the value, 1 where it does not vary. Raises Unfit where the value grows by it."""
    c = c.narrow()
    rank, shape = x.rank, c.array.shape
    if x.batch is not None and x.batch.pure and (at := x.batch.axis - rank + len(shape)) >= 0 and len(shape) <= rank:
        c = for_one(c, at)
        shape = c.array.shape
    if len(shape) > rank and any(n != 1 for n in shape[: len(shape) - rank]):
        raise Unfit("a constant has more axes than the value that it meets")
    wide = [*[1] * (rank - len(shape)), *shape[max(0, len(shape) - rank) :]]
    for n, d in zip(wide, x.shape, strict=True):
        if n != 1 and d == 1:
            raise Unfit("a constant is larger than the value that it meets")
        if n != 1 and isinstance(d, int) and d != n:
            raise ShapeConflict("", f"a constant of shape {shape} meets a value of shape {x.shape}")
    if x.batch is not None:
        if wide[x.batch.axis] != 1:
            raise Unfit("a constant varies along the batch")
        if x.batch.pure:
            del wide[x.batch.axis]
    return c if tuple(wide) == shape else c.stepped(("reshape", tuple(wide)))


def _one_number(b: Builder, x: Value, c: Known) -> float | None:
    """The constant's only number, unless it is the parameter of a layer with one unit."""
    number = c.number()
    if number is None or (c.path and c.array.ndim and b.draft.writer(x.name, *_KERNELS) and 1 in x.dims):
        return None
    return number


def rescaled(b: Builder, node: Node, x: Value, factor: float = 1.0, offset: float = 0.0, suffix: str = "") -> Value:
    """factor x + offset; x itself where that is nothing."""
    if factor == 1 and offset == 0:
        return x
    if not np.isfinite([factor, offset]).all():
        raise Unfit("a constant in it is not finite")
    attrs: dict[str, Any] = {k: v for k, v, none in (("factor", factor, 1.0), ("offset", offset, 0.0)) if v != none}
    return b.op(node, "rescale", [x], dims=x.dims, suffix=suffix, **attrs)


def shifted(b: Builder, node: Node, x: Value, c: Known, sign: float, suffix: str = "") -> Value:
    """x plus or minus a constant."""
    number = _one_number(b, x, c)
    if number is not None:
        return rescaled(b, node, x, offset=sign * number, suffix=suffix)
    name = b.tensor(node, against(x, c), "constant", sign)
    return b.op(node, "add_constant", [x], {"constant": name}, dims=x.dims, suffix=suffix)


def scaled(b: Builder, node: Node, x: Value, c: Known, power: int, suffix: str = "") -> Value:
    """x times a constant, or divided by it."""
    number = _one_number(b, x, c)
    if number is not None:
        if number == 0 and power < 0:
            raise Unfit("it divides by zero")
        return rescaled(b, node, x, number if power > 0 else 1 / number, suffix=suffix)
    name = b.tensor(node, against(x, c), "constant", 1.0, power)
    return b.op(node, "multiply_constant", [x], {"constant": name}, dims=x.dims, suffix=suffix)


def _grown(b: Builder, node: Node, x: Value, c: Known) -> Value:
    """The value with as many axes as the constant that it meets."""
    more = c.array.ndim - x.rank
    if more <= 0:
        return x
    batch = None if x.batch is None else replace(x.batch, axis=x.batch.axis + more)
    return b.relay(node, x, (*[1] * more, *x.shape), batch, ":wide")


# nodes


def _add(b: Builder, node: Node) -> None:
    xs = _operands(b, node)
    values = [x for x in xs if isinstance(x, Value)]
    constants = [c for c in xs if isinstance(c, Known)]
    if node.op == "Mean" and (constants or len(values) > 1):
        if constants:
            raise Unfit("a mean with a constant in it")
        parts, shape, batch = together(b, node, values)
        b.put(node, _joined(b, node, "average", parts, shape, batch))
        return
    y = values[0]
    if len(values) > 1 and len({v.name for v in values}) == 1 and len({v.shape for v in values}) == 1:
        y = rescaled(b, node, y, float(len(values)), suffix=":sum" if constants else "")
    elif len(values) > 1:
        parts, shape, batch = together(b, node, values)
        y = _joined(b, node, "add", parts, shape, batch, ":sum" if constants else "")
    for i, c in enumerate(constants):
        y = shifted(b, node, _grown(b, node, y, c), c, 1.0, "" if i == len(constants) - 1 else f":{i}")
    b.put(node, y)


def _joined(
    b: Builder, node: Node, kind: str, parts: Sequence[Value], shape: Sequence[Dim], batch: Batch | None, suffix: str = ""
) -> Value:
    dims = Value("", tuple(shape), batch).dims
    return b.op(node, kind, parts, batch=batch, dims=dims, suffix=suffix)


def _subtract(b: Builder, node: Node) -> None:
    x, y = _operands(b, node)
    if isinstance(x, Value) and isinstance(y, Known):
        b.put(node, shifted(b, node, _grown(b, node, x, y), y, -1.0))
    elif isinstance(y, Value) and isinstance(x, Known):
        number = _one_number(b, y, x)
        if number is not None:
            b.put(node, rescaled(b, node, _grown(b, node, y, x), -1.0, number))
            return
        turned = rescaled(b, node, _grown(b, node, y, x), -1.0, suffix=":negative")
        b.put(node, shifted(b, node, turned, x, 1.0))
    elif isinstance(x, Value) and isinstance(y, Value):
        parts, shape, batch = together(b, node, [x, y])
        b.put(node, _joined(b, node, "subtract", parts, shape, batch))


def _multiply(b: Builder, node: Node) -> None:
    x, y = _operands(b, node)
    if isinstance(x, Known):
        x, y = y, x
    assert isinstance(x, Value)
    if isinstance(y, Known):
        b.put(node, scaled(b, node, _grown(b, node, x, y), y, 1))
    elif (x.name, x.shape) == (y.name, y.shape):
        b.put(node, b.op(node, "square", [x], dims=x.dims))
    else:
        parts, shape, batch = together(b, node, [x, y])
        b.put(node, _joined(b, node, "multiply", parts, shape, batch))


def _divide(b: Builder, node: Node) -> None:
    x, y = _operands(b, node)
    if (isinstance(x, Value) and x.integer) or (isinstance(y, Value) and y.integer):
        raise Unfit("it divides whole numbers")
    if isinstance(x, Value) and isinstance(y, Known):
        b.put(node, scaled(b, node, _grown(b, node, x, y), y, -1))
    elif isinstance(y, Value) and isinstance(x, Known):
        plain = x.number() == 1
        turned = b.op(node, "power", [_grown(b, node, y, x)], dims=None, suffix="" if plain else ":inverse", exponent=-1.0)
        b.put(node, turned if plain else scaled(b, node, turned, x, 1))
    elif isinstance(x, Value) and isinstance(y, Value):
        parts, shape, batch = together(b, node, [x, y])
        b.put(node, _joined(b, node, "divide", parts, shape, batch))


def _extreme(b: Builder, node: Node, kind: str) -> None:
    xs = _operands(b, node)
    values = [x for x in xs if isinstance(x, Value)]
    numbers = [c.number() for c in xs if isinstance(c, Known)]
    found = [n for n in numbers if n is not None]
    if len(found) < len(numbers):
        raise Unfit("an extremum with a constant that varies")
    y = values[0]
    if len(values) > 1:
        parts, shape, batch = together(b, node, values)
        y = _joined(b, node, kind, parts, shape, batch, ":extreme" if found else "")
    if found:
        low, high = (max(found), None) if kind == "maximum" else (None, min(found))
        y = clipped(b, node, y, low, high)
    b.put(node, y)


def clipped(b: Builder, node: Node, x: Value, low: float | None, high: float | None) -> Value:
    """x between two bounds, under the name that the field has for them."""
    low = None if low is None or low < -1e30 else low
    high = None if high is None or high > 1e30 else high
    if low is None and high is None:
        return x
    if low == 0:
        if high is None:
            return b.op(node, "relu", [x], dims=x.dims)
        return b.op(node, "relu6", [x], dims=x.dims, cap=high)
    if (low, high) == (-1.0, 1.0):
        return b.op(node, "hard_tanh", [x], dims=x.dims)
    return b.op(node, "clip", [x], dims=x.dims, low=low, high=high)


def _clip(b: Builder, node: Node) -> None:
    bounds: list[float | None] = [None, None]
    for i, key in enumerate(("min", "max")):
        if key in node.attrs:
            bounds[i] = float(node.attrs[key])
        elif b.given(node, i + 1):
            bounds[i] = b.need(node, i + 1).number()
            if bounds[i] is None:
                raise Unfit("its bounds are no numbers")
    b.put(node, clipped(b, node, b.value(node), *bounds))


def _power(b: Builder, node: Node) -> None:
    exponent = b.need(node, 1).number()
    if exponent is None or exponent == 0:
        raise Unfit("its exponent is no number, or zero")
    x = b.value(node)
    if exponent == 1:
        b.put(node, x)
    elif exponent == 2:
        b.put(node, b.op(node, "square", [x], dims=x.dims))
    else:
        b.put(node, b.op(node, "power", [x], dims=x.dims, exponent=exponent))


def _prelu(b: Builder, node: Node) -> None:
    x, slope = b.value(node), b.need(node, 1)
    if node.version < 7 and slope.array.ndim == 1 and x.rank > 2:  # one a channel, on the second axis
        slope = slope.stepped(("reshape", (slope.array.size, *[1] * (x.rank - 2))))
    alpha = b.tensor(node, against(x, slope), "alpha")
    b.put(node, b.op(node, "prelu", [x], {"alpha": alpha}, dims=x.dims))


def _where(b: Builder, node: Node) -> None:
    """Entries of a value hidden behind a number so low that a softmax does not see them."""
    mask, x, y = (b.get(v) for v in node.inputs)
    if not isinstance(mask, Known) or mask.open:
        raise Unfit("what it chooses by is not known before it runs")
    if mask.array.size > MOST_MASKED:
        raise Unfit("it chooses by more entries than are looked at")
    kept = mask.array.astype(bool)
    if isinstance(x, Known) and isinstance(y, Value):
        x, y, kept = y, x, ~kept
    if not isinstance(x, Value) or not isinstance(y, Known):
        raise Unfit("it chooses between values")
    if kept.all():
        b.put(node, x)
        return
    number = y.number()
    if number is None or number > HIDES:
        raise Unfit("it chooses between a value and a constant")
    hidden = against(x, Known(np.where(kept, 0.0, -np.inf)))
    made = b.op(node, "opaque", [x], dims=x.dims, class_name="Where", shape=list(x.open))
    b.masks[made.name] = hidden
    b.put(node, made)


TABLE: dict[str, Convert] = {
    "Add": _add,
    "Sum": _add,
    "Mean": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Max": partial(_extreme, kind="maximum"),
    "Min": partial(_extreme, kind="minimum"),
    "Clip": _clip,
    "Pow": _power,
    "PRelu": _prelu,
    "Where": _where,
}
