"""ONNX nodes that move entries about: reshaping, transposing, cutting, joining, and sums along axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_join import for_one, rescaled
from canon.formats.onnx_known import Known, axes_of, bounds, parts_of, stretches
from canon.formats.onnx_linear import embedding
from canon.formats.onnx_size import Dim, product
from canon.formats.onnx_value import Unfit, Value, rebatched, target

MOST_REPEATS = 256

# the same entries in another shape


def _same(b: Builder, node: Node) -> None:
    b.unused(node, 1)
    b.put(node, b.value(node))


def _cast(b: Builder, node: Node) -> None:
    x, to = b.value(node), int(node.attrs.get("to", 1))
    if to in (1, 10, 11, 16):
        b.put(node, replace(x, integer=False))
    elif x.integer and to in (2, 3, 4, 5, 6, 7, 12, 13):
        b.put(node, x)
    else:
        raise Unfit("it rounds to whole numbers")


def _reshape(b: Builder, node: Node) -> None:
    x = b.value(node)
    wanted: Sequence[Dim] | None = node.attrs.get("shape")
    if wanted is None:
        given = b.known(node, 1)
        wanted = None if given is None else given.sizes()
    if wanted is None:
        raise Unfit("its shape is not known before it runs")
    b.put(node, reshaped(b, node, x, target(wanted, x, bool(node.attrs.get("allowzero", 0)))))


def reshaped(b: Builder, node: Node, x: Value, shape: Sequence[Dim], suffix: str = "") -> Value:
    """A value in another shape, its batch where row-major order leaves it."""
    return b.relay(node, x, shape, rebatched(x, shape, b.batch_size), suffix)


def _flatten(b: Builder, node: Node) -> None:
    x, at = b.value(node), int(node.attrs.get("axis", 1))
    at = at + x.rank if at < 0 else at
    b.put(node, reshaped(b, node, x, (product(x.shape[:at]), product(x.shape[at:]))))


def _without(b: Builder, node: Node, x: Value, axes: Sequence[int], suffix: str = "") -> Value:
    """Without some axes of size one."""
    if any(x.batch is not None and a == x.batch.axis for a in axes):
        raise Unfit("it takes the batch away")
    if any(isinstance(x.shape[a], int) and x.shape[a] != 1 for a in axes):
        raise Unfit("it takes away axes that are not of size one")
    batch = None if x.batch is None else replace(x.batch, axis=x.batch.axis - sum(a < x.batch.axis for a in axes))
    x = replace(x, shape=tuple(1 if i in axes else d for i, d in enumerate(x.shape)))
    return b.relay(node, x, tuple(d for i, d in enumerate(x.shape) if i not in axes), batch, suffix)


def _squeeze(b: Builder, node: Node) -> None:
    x = b.value(node)
    given = "axes" in node.attrs or b.given(node, 1)
    axes = axes_of(node, [None, b.known(node, 1)], 1, x.rank)
    if given and axes is None:
        raise Unfit("its axes are not known before it runs")
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1 and not (x.batch is not None and x.batch.axis == i)]
    b.put(node, _without(b, node, x, axes))


def _unsqueeze(b: Builder, node: Node) -> None:
    x = b.value(node)
    found = b.known(node, 1)
    given: Any = node.attrs.get("axes") or (None if found is None else found.sizes())
    if given is None or not all(isinstance(a, int) for a in given) or len(given) > 60:
        raise Unfit("its axes are not known before it runs")
    shape, rank = list(x.shape), x.rank + len(given)
    axis = None if x.batch is None else x.batch.axis
    for a in sorted(int(a) % rank for a in given):
        shape.insert(a, 1)
        axis = axis + 1 if axis is not None and a <= axis else axis
    batch = None if x.batch is None or axis is None else replace(x.batch, axis=axis)
    b.put(node, b.relay(node, x, shape, batch))


def _transpose(b: Builder, node: Node) -> None:
    x = b.value(node)
    perm = [int(p) for p in node.attrs.get("perm") or range(x.rank)[::-1]]
    if sorted(perm) != list(range(x.rank)):
        raise Unfit(f"an order of axes {perm} for a value with {x.rank}")
    b.put(node, b.turned(node, x, perm))


def _expand(b: Builder, node: Node) -> None:
    """Axes of size one repeated: the same value several times, one after the other."""
    x, found = b.value(node), b.known(node, 1)
    shape = None if found is None else found.sizes()
    if shape is None or len(shape) > x.rank:
        raise Unfit("it repeats values along new axes")
    wide = [*[1] * (x.rank - len(shape)), *shape]
    for i, d in enumerate(wide):
        if d in (1, x.shape[i]):
            continue
        if x.shape[i] != 1 or not isinstance(d, int) or d > MOST_REPEATS:
            raise Unfit("it repeats values more often than is known")
        at = x.axis(i)
        dims = [d if k == at else n for k, n in enumerate(x.dims)]
        x = replace(b.op(node, "concat", [x] * d, dims=dims, suffix=f":{i}", axis=at), integer=x.integer)
    b.put(node, x)


# cutting and joining


def cut(b: Builder, node: Node, x: Value, axis: int, start: int, stop: int, suffix: str = "") -> Value:
    """Entries start to stop along one of ONNX's axes."""
    at, n = x.axis(axis), x.shape[axis]
    if isinstance(n, int) and (start, stop) == (0, n):
        return x
    if not isinstance(n, int):
        raise Unfit("it cuts an axis whose size is not known")
    if stop <= start:
        raise Unfit("it leaves nothing")
    dims = tuple(stop - start if i == at else d for i, d in enumerate(x.dims))
    where: dict[str, Any] = {} if at == len(dims) - 1 else {"axis": at}
    return replace(b.op(node, "slice", [x], dims=dims, suffix=suffix, start=start, stop=stop, **where), integer=x.integer)


def _slice(b: Builder, node: Node) -> None:
    x = b.value(node)
    found = stretches(node, [b.known(node, i) for i in range(len(node.inputs))], x.rank)
    if found is None:
        raise Unfit("what it cuts is not known before it runs")
    work = [row for row in found if not (row[1] == 0 and row[2] >= 1 << 30 and row[3] == 1)]
    for i, (axis, lo, hi, step) in enumerate(work):
        n, suffix = x.shape[axis], "" if i == len(work) - 1 else f":{i}"
        if step == -1 and (not isinstance(n, int) or lo in (-1, n - 1) or lo >= n) and hi < -(1 << 30):
            x = b.op(node, "reverse", [x], dims=x.dims, suffix=suffix, axis=x.axis(axis))
        elif step != 1:
            raise Unfit("it cuts with a step")
        elif isinstance(n, int):
            x = cut(b, node, x, axis, *bounds(lo, hi, n), suffix)
        elif (lo < 0 and (lo + 1 == hi or (lo == -1 and hi >= 1 << 30))) or (
            lo >= 0 and lo + 1 == hi
        ):  # one entry, counted from behind
            x = _one(b, node, x, axis, lo, suffix, keep=True)
        else:
            raise Unfit("it cuts an axis whose size is not known")
    b.put(node, x)


def _one(b: Builder, node: Node, x: Value, axis: int, index: int, suffix: str = "", keep: bool = False) -> Value:
    """One entry along an axis, which goes unless it is kept with size one."""
    at = x.axis(axis)
    if x.shape[axis] == 1 and index in (0, -1):
        return x if keep else _without(b, node, x, [axis], suffix)
    dims = [d for i, d in enumerate(x.dims) if i != at]
    batch = None if x.batch is None else replace(x.batch, axis=x.batch.axis - (axis < x.batch.axis))
    taken = b.op(node, "take", [x], batch=batch, dims=dims, suffix=f"{suffix}:one" if keep else suffix, axis=at, index=index)
    taken = replace(taken, integer=x.integer)
    if not keep:
        return taken
    return b.relay(node, taken, [1 if i == axis else d for i, d in enumerate(x.shape)], x.batch, suffix)


def _split(b: Builder, node: Node) -> None:
    x = b.value(node)
    axis = int(node.attrs.get("axis", 0))
    x.axis(axis)
    axis %= x.rank
    n = x.shape[axis]
    parts = parts_of(node, [None, b.known(node, 1)], n) if isinstance(n, int) else None
    if parts is None or (b.given(node, 1) and b.known(node, 1) is None):
        raise Unfit("its parts are not known before it runs")
    for i in range(len(node.outputs)):
        if node.outputs[i]:
            named = replace(node, outputs=(node.outputs[i],))
            b.put(node, cut(b, named, x, axis, sum(parts[:i]), sum(parts[: i + 1])), i)


def _gather(b: Builder, node: Node) -> None:
    x, ids = b.get(node.inputs[0]), b.get(node.inputs[1])
    if isinstance(x, Known):
        embedding(b, node)
        return
    if not isinstance(ids, Known) or ids.open or ids.array.dtype.kind not in "iu" or not ids.array.size:
        raise Unfit("it picks entries by numbers that are computed")
    axis = int(node.attrs.get("axis", 0))
    x.axis(axis)
    axis %= x.rank
    flat = [int(i) for i in ids.array.reshape(-1)]
    if ids.array.size == 1:
        y = _one(b, node, x, axis, flat[0], keep=ids.array.ndim > 0)
        if ids.array.ndim > 1:
            raise Unfit("it picks entries in a shape of their own")
        b.put(node, y)
        return
    n = x.shape[axis]
    if isinstance(n, int):
        flat = [i + n if i < 0 else i for i in flat]
    if ids.array.ndim == 1 and isinstance(n, int) and flat == list(range(flat[0], flat[0] + len(flat))):
        b.put(node, cut(b, node, x, axis, flat[0], flat[0] + len(flat)))
        return
    raise Unfit("it picks entries out of order")


def _concat(b: Builder, node: Node) -> None:
    xs = [b.get(v) for v in node.inputs if v]
    values = [x for x in xs if isinstance(x, Value)]
    first = values[0]
    axis = int(node.attrs.get("axis", 1))
    if any(x.rank != first.rank or x.batch != first.batch for x in values):
        raise Unfit("its values have their batches on different axes")
    at = first.axis(axis)
    axis %= first.rank
    if len(values) == 1 and len(xs) > 1:
        b.put(node, _with_tokens(b, node, xs, first, axis))
        return
    if len(values) < len(xs):
        raise Unfit("it joins values with constants")
    sizes = [x.shape[axis] for x in values]
    total: Dim = sizes[0]
    for n in sizes[1:]:
        total = total + n
    dims = tuple(total if i == at else d for i, d in enumerate(first.dims))
    b.put(node, b.op(node, "concat", values, dims=dims, axis=at) if len(values) > 1 else first)


def _with_tokens(b: Builder, node: Node, xs: Sequence[Value | Known], x: Value, axis: int) -> Value:
    """Learned tokens in front of all positions."""
    front = xs[0]
    if len(xs) != 2 or not isinstance(front, Known) or len(x.dims) != 2 or x.axis(axis) != 0:
        raise Unfit("it joins values with constants")
    if x.batch is not None and x.batch.pure and front.array.ndim == x.rank:
        front = for_one(front, x.batch.axis)
    rows = front.array
    if rows.ndim != x.rank or any(n != 1 for i, n in enumerate(rows.shape) if i not in (axis, x.rank - 1)):
        raise Unfit("it joins values with constants")
    tokens = b.tensor(node, front.stepped(("reshape", (rows.shape[axis], rows.shape[-1]))), "tokens")
    dims = (x.dims[0] + rows.shape[axis], x.dims[1])
    return b.op(node, "prepend_tokens", [x], {"tokens": tokens}, dims=dims)


# along axes


def _reduce(b: Builder, node: Node, how: str) -> None:
    x = b.value(node)
    given = "axes" in node.attrs or b.given(node, 1)
    axes = axes_of(node, [None, b.known(node, 1)], 1, x.rank)
    if given and axes is None:
        raise Unfit("its axes are not known before it runs")
    if axes is None:
        if int(node.attrs.get("noop_with_empty_axes", 0)):
            b.put(node, x)
            return
        axes = list(range(x.rank))
    b.put(node, reduced(b, node, x, axes, bool(node.attrs.get("keepdims", 1)), how))


def reduced(b: Builder, node: Node, x: Value, axes: Sequence[int], keep: bool, how: str, suffix: str = "") -> Value:
    """Along some of ONNX's axes; a pool over all positions where that is what it is."""
    at = sorted(x.axis(a) for a in axes)
    dims = (
        tuple(1 if i in at else d for i, d in enumerate(x.dims))
        if keep
        else tuple(d for i, d in enumerate(x.dims) if i not in at)
    )
    batch = x.batch
    if batch is not None and not keep:
        batch = replace(batch, axis=batch.axis - sum(a % x.rank < batch.axis for a in axes))
    rank, kind = len(x.dims), {"mean": "global_avg_pool", "max": "global_max_pool"}.get(how)
    if kind and rank >= 2 and at in (list(range(1, rank)), list(range(rank - 1))) and x.batch is not None:
        first = at == list(range(1, rank)) and rank > 2
        if rank > 2 or at == [0]:
            extra: dict[str, Any] = {"keepdims": True} if keep else {}
            extra |= {"channels": "first"} if first else {}
            return b.op(node, kind, [x], batch=batch, dims=dims, suffix=suffix, **extra)
    extra = {"keepdims": True} if keep else {}
    return b.op(node, "reduce", [x], batch=batch, dims=dims, suffix=suffix, how=how, axes=at, **extra)


def _norm(b: Builder, node: Node) -> None:
    """ReduceL2 and ReduceSumSquare."""
    root = node.op == "ReduceL2"
    x = b.value(node)
    axes = axes_of(node, [None, b.known(node, 1)], 1, x.rank)
    if axes is None:
        raise Unfit("its axes are not known before it runs")
    squares = b.op(node, "square", [x], dims=x.dims, suffix=":squares")
    y = reduced(b, node, squares, axes, bool(node.attrs.get("keepdims", 1)), "sum", ":sum" if root else "")
    b.put(node, b.op(node, "power", [y], dims=y.dims, exponent=0.5) if root else y)


def _negative(b: Builder, node: Node) -> None:
    b.put(node, rescaled(b, node, b.value(node), -1.0))


TABLE: dict[str, Convert] = {
    "Identity": _same,
    "Dropout": _same,
    "Cast": _cast,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "ReduceMean": partial(_reduce, how="mean"),
    "ReduceSum": partial(_reduce, how="sum"),
    "ReduceMax": partial(_reduce, how="max"),
    "ReduceMin": partial(_reduce, how="min"),
    "ReduceL2": _norm,
    "ReduceSumSquare": _norm,
    "Neg": _negative,
}
