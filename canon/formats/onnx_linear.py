"""ONNX nodes that are affine maps: matrix products with a constant on either side, Gemm, convolutions and their transposes."""

from __future__ import annotations

from typing import Any

from canon.errors import ShapeConflict
from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_join import rescaled, shifted, together
from canon.formats.onnx_known import Known
from canon.formats.onnx_size import Dim, known, product
from canon.formats.onnx_value import Batch, Unfit, Value

# matrix products


def _matmul(b: Builder, node: Node) -> None:
    x, y = b.get(node.inputs[0]), b.get(node.inputs[1])
    if isinstance(x, Value) and isinstance(y, Known):
        b.put(node, _behind(b, node, x, y))
    elif isinstance(x, Known) and isinstance(y, Value):
        b.put(node, _in_front(b, node, x, y))
    elif isinstance(x, Value) and isinstance(y, Value):
        b.put(node, product_of(b, node, x, y))


def _flat(known_: Known, rank: int) -> Known:
    """A matrix that leads with axes of size one, without them."""
    shape = known_.array.shape
    if len(shape) > rank and all(n == 1 for n in shape[: len(shape) - rank]):
        return known_.stepped(("reshape", shape[len(shape) - rank :]))
    return known_


def _behind(b: Builder, node: Node, x: Value, w: Known) -> Value:
    """x W: a dense layer on the last axis."""
    w = _flat(w, 2)
    rank = w.array.ndim
    if rank not in (1, 2) or x.rank == 0:
        raise Unfit("a constant that is no matrix")
    if w.array.shape[0] != x.shape[-1] and isinstance(x.shape[-1], int):
        raise ShapeConflict(node.label, f"a matrix of shape {w.array.shape} meets a value of width {x.shape[-1]}")
    if x.axis(-1) != len(x.dims) - 1 or (x.batch is not None and x.batch.axis == x.rank - 1):
        raise Unfit("it works along the batch")
    if rank == 1:
        kernel = w.stepped(("reshape", (1, w.array.shape[0])))
        y = dense(b, node, x, kernel, ":column")
        return b.relay(node, y, x.shape[:-1], x.batch)
    return dense(b, node, x, w.stepped(("transpose", (1, 0))))


def dense(b: Builder, node: Node, x: Value, kernel: Known, suffix: str = "", factor: float = 1.0) -> Value:
    """A dense layer on the last axis. kernel (out, in)."""
    name = b.tensor(node, kernel, "kernel", factor)
    dims = (*x.dims[:-1], kernel.array.shape[0])
    return b.op(node, "dense", [x], {"kernel": name}, dims=dims, suffix=suffix)


def _in_front(b: Builder, node: Node, w: Known, x: Value) -> Value:
    """W x: a dense layer on the last axis but one."""
    w = _flat(w, 2)
    if w.array.ndim != 2 or x.rank == 0:
        raise Unfit("a constant that is no matrix")
    if x.rank == 1:
        return dense(b, node, x, w)
    if x.batch == Batch(x.rank - 1) and x.rank == 2:
        y = dense(b, node, Value(x.name, (x.shape[0],), None), w)
        return Value(y.name, (w.array.shape[0], x.shape[1]), Batch(1))
    x.axis(-2)
    x.axis(-1)
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    y = dense(b, node, b.turned(node, x, order, ":turned"), w, ":dense")
    return b.turned(node, y, order)


def product_of(b: Builder, node: Node, x: Value, y: Value, suffix: str = "") -> Value:
    """A product of two values, matrix by matrix."""
    if x.rank < 2 or y.rank < 2:
        raise Unfit("a product of values with fewer than two axes")
    for v in (x, y):
        v.axis(-1)
        v.axis(-2)
    rank = max(x.rank, y.rank)
    lead = [Value(v.name, (*v.shape[:-2], 1, 1), v.batch) for v in (x, y)]
    batches = {None if v.batch is None else (v.batch.axis + rank - v.rank, v.batch.before, v.batch.after) for v in lead} - {
        None
    }
    if len(batches) > 1:
        raise Unfit("its values have their batches on different axes")
    parts = []
    for i, v in enumerate((x, y)):
        wide = (*[1] * (rank - v.rank), *v.shape)
        found = next(iter(batches), None)
        batch = None if found is None else Batch(*found)
        if v.batch is None and batch is not None:
            if wide[batch.axis] != 1 or not batch.pure:
                raise Unfit("a value without a batch meets one with it")
            wide = (*wide[: batch.axis], b.batch_size, *wide[batch.axis + 1 :])
        parts.append(b.relay(node, v, wide, batch, f"{suffix}:{i}"))
    if len(parts[0].dims) < 2:
        raise Unfit("a product along the batch")
    return b.op(node, "matmul", parts, batch=parts[0].batch, suffix=suffix)


def _gemm(b: Builder, node: Node) -> None:
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    x, w = b.get(node.inputs[0]), b.get(node.inputs[1])
    turn_x, turn_w = bool(node.attrs.get("transA", 0)), bool(node.attrs.get("transB", 0))
    if isinstance(x, Known):
        if not isinstance(w, Value) or w.batch is not None:
            raise Unfit("a constant matrix multiplied from the left")
        kernel = x.stepped(("transpose", (1, 0))) if turn_x else x
        turned = b.turned(node, w, (1, 0), ":turned") if not turn_w else w
        y = b.turned(node, dense(b, node, turned, kernel, ":dense", alpha), (1, 0), ":back")
    else:
        if x.rank > 2:  # as MATLAB writes it: all but the first axis are one
            x = _flattened(b, node, x)
        if turn_x:
            x = b.turned(node, x, (1, 0), ":turned")
        if isinstance(w, Known):
            if w.array.ndim != 2 or x.rank != 2 or x.axis(-1) != len(x.dims) - 1:
                raise Unfit("it works along the batch")
            kernel = w if turn_w else w.stepped(("transpose", (1, 0)))
            bias = _bias(b, node, beta, kernel.array.shape[0])
            params = {"kernel": b.tensor(node, kernel, "kernel", alpha)} | bias
            y = b.op(node, "dense", [x], params, dims=(*x.dims[:-1], kernel.array.shape[0]))
            if bias or not b.given(node, 2):
                b.put(node, y)
                return
        else:
            w = b.turned(node, w, (1, 0), ":second") if turn_w else w
            y = rescaled(b, node, product_of(b, node, x, w, ":product"), alpha, suffix=":alpha")
    if b.given(node, 2) and beta != 0:
        c = b.get(node.inputs[2])
        if isinstance(c, Known):
            y = shifted(b, node, y, c if beta == 1 else Known(c.array * beta), 1.0)
        else:
            parts, shape, batch = together(b, node, [y, rescaled(b, node, c, beta, suffix=":beta")])
            y = b.op(node, "add", parts, batch=batch, dims=Value("", shape, batch).dims)
    b.put(node, y)


def _flattened(b: Builder, node: Node, x: Value) -> Value:
    if x.batch is not None and x.batch.axis != 0:
        raise Unfit("a product of a value with more than two axes")
    return b.relay(node, x, (x.shape[0], product(x.shape[1:])), x.batch, ":flat")


def _bias(b: Builder, node: Node, beta: float, n: int) -> dict[str, str]:
    """Gemm's C as a bias, if it is one number a unit."""
    c = b.known(node, 2)
    if c is None or c.open or c.array.dtype.kind != "f" or c.array.size != n or c.array.shape[-1:] != (n,):
        return {}
    return {"bias": b.tensor(node, c.stepped(("reshape", (n,))) if c.array.ndim != 1 else c, "bias", beta)}


# convolutions


def window_of(b: Builder, node: Node, kernel: tuple[int, ...]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Strides, dilations and explicit pads of a window."""
    rank = len(kernel)
    strides = [int(s) for s in node.attrs.get("strides") or [1] * rank]
    dilation = [int(d) for d in node.attrs.get("dilations") or [1] * rank]
    pads = [int(p) for p in node.attrs.get("pads") or [0] * (2 * rank)]
    if len(strides) != rank or len(dilation) != rank or len(pads) != 2 * rank:
        raise Unfit(f"a window over {rank} axes, with attributes for others")
    if any(s < 1 for s in (*strides, *dilation, *kernel)) or any(p < 0 for p in pads):
        raise Unfit("a window with strides, sizes or pads that are none")
    return strides, dilation, [(pads[i], pads[rank + i]) for i in range(rank)]


def padding_of(
    node: Node,
    sizes: tuple[Dim, ...],
    kernel: tuple[int, ...],
    strides: list[int],
    dilation: list[int],
    pads: list[tuple[int, int]],
) -> Any:
    """Padding in canon's words; explicit pads that are what "same" means at stride one are called so."""
    auto = str(node.attrs.get("auto_pad", "NOTSET") or "NOTSET")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if auto == "SAME_UPPER":
        return "same"
    if auto == "SAME_LOWER":
        if not all(isinstance(n, int) for n in sizes):
            raise Unfit("its padding hangs on sizes that are not known")
        out = []
        for n, r, s in zip((known(n) or 0 for n in sizes), reach, strides, strict=True):
            total = max((-(-n // s) - 1) * s + r - n, 0)
            out.append([total - total // 2, total // 2])
        return out if any(any(p) for p in out) else "valid"
    if auto not in ("NOTSET", "VALID"):
        raise Unfit(f"auto_pad {auto}")
    if auto == "VALID" or not any(any(p) for p in pads):
        return "valid"
    same = all(s == 1 and p == ((r - 1) // 2, r - 1 - (r - 1) // 2) for s, p, r in zip(strides, pads, reach, strict=True))
    return "same" if same else [list(p) for p in pads]


def sizes_of(x: Value) -> tuple[Dim, ...]:
    """The spatial sizes of a value in ONNX's layout: batch, channels, sizes."""
    x.needs_batch(0)
    if x.rank < 3:
        raise Unfit("a window over a value without positions")
    return x.shape[2:]


def _conv(b: Builder, node: Node) -> None:
    x, w = b.value(node), b.need(node, 1)
    sizes = sizes_of(x)
    out, inner, *k = w.array.shape
    kernel = tuple(k)
    if len(kernel) != len(sizes):
        raise Unfit(f"a window over {len(kernel)} axes meets a value with {len(sizes)}")
    groups = int(node.attrs.get("group", 1))
    strides, dilation, pads = window_of(b, node, kernel)
    attrs: dict[str, Any] = {"padding": padding_of(node, sizes, kernel, strides, dilation, pads), "channels": "first"}
    attrs |= {key: v for key, v in (("strides", strides), ("dilation", dilation)) if set(v) != {1}}
    kind = "conv"
    if groups != 1:
        depthwise = inner == 1 and x.shape[1] == groups and out % groups == 0
        kind = "depthwise_conv" if depthwise else "grouped_conv"
        attrs |= {} if depthwise else {"groups": groups}
    params = {"kernel": b.tensor(node, w, "kernel")}
    if b.given(node, 2):
        params["bias"] = b.tensor(node, b.need(node, 2), "bias")
    b.put(node, b.op(node, kind, [x], params, **attrs))


def _conv_transpose(b: Builder, node: Node) -> None:
    x, w = b.value(node), b.need(node, 1)
    sizes = sizes_of(x)
    if int(node.attrs.get("group", 1)) != 1:
        raise Unfit("a transposed convolution in groups")
    _, out, *k = w.array.shape
    kernel = tuple(k)
    if len(kernel) != len(sizes):
        raise Unfit(f"a window over {len(kernel)} axes meets a value with {len(sizes)}")
    strides, dilation, pads = window_of(b, node, kernel)
    more = [int(n) for n in node.attrs.get("output_padding") or [0] * len(kernel)]
    wanted = node.attrs.get("output_shape")
    auto = str(node.attrs.get("auto_pad", "NOTSET") or "NOTSET")
    if wanted is not None or auto.startswith("SAME"):
        given = [int(n) for n in wanted[-len(kernel) :]] if wanted is not None else None
        pads = []
        for i, n in enumerate(sizes):
            if not isinstance(n, int):
                raise Unfit("its padding hangs on sizes that are not known")
            full = strides[i] * (n - 1) + more[i] + (kernel[i] - 1) * dilation[i] + 1
            total = full - (given[i] if given is not None else n * strides[i])
            half = total // 2
            if total < 0:
                raise Unfit("its output is larger than its windows reach")
            pads.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    elif auto == "VALID":
        pads = [(0, 0)] * len(kernel)
    turned = w.stepped(("transpose", (1, 0, *range(2, w.array.ndim))))
    params = {"kernel": b.tensor(node, turned, "kernel")}
    if b.given(node, 2):
        params["bias"] = b.tensor(node, b.need(node, 2), "bias")
    attrs: dict[str, Any] = {"padding": [list(p) for p in pads], "channels": "first", "output_padding": more}
    attrs |= {key: v for key, v in (("strides", strides), ("dilation", dilation)) if set(v) != {1}}
    assert out == turned.array.shape[0]
    b.put(node, b.op(node, "conv_transpose", [x], params, **attrs))


# pools


def _pool(b: Builder, node: Node) -> None:
    x = b.value(node)
    sizes = sizes_of(x)
    kernel = tuple(int(k) for k in node.attrs.get("kernel_shape", ()))
    if len(kernel) != len(sizes):
        raise Unfit(f"a window over {len(kernel)} axes meets a value with {len(sizes)}")
    b.unused(node, 1)
    strides, dilation, pads = window_of(b, node, kernel)
    if set(dilation) != {1}:
        raise Unfit("a pool with a dilation")
    maximum = node.op == "MaxPool"
    padding = padding_of(node, sizes, kernel, strides, dilation, pads)
    counted = not maximum and bool(node.attrs.get("count_include_pad", 0)) and padding != "valid"
    if counted:
        if not isinstance(padding, list):
            padding = [list(p) for p in pads] if any(map(any, pads)) else None
        if padding is None:
            raise Unfit("a mean over padding whose size is not known")
        x = b.op(node, "zero_padding", [x], suffix=":padded", padding=padding, channels="first")
        sizes, padding = x.shape[2:], "valid"
    if int(node.attrs.get("ceil_mode", 0)):
        padding = "ceil" if padding == "valid" else _ceiled(sizes, kernel, strides, padding)
    kind = "max_pool" if maximum else "avg_pool"
    b.put(node, b.op(node, kind, [x], pool=list(kernel), strides=strides, padding=padding, channels="first"))


def _ceiled(sizes: tuple[Dim, ...], kernel: tuple[int, ...], strides: list[int], padding: Any) -> Any:
    """Padding with what a last window reaches over: windows begin in the value or in front of it."""
    if padding == "same":  # as many windows as strides, whatever is rounded
        return padding
    out = [list(p) for p in padding]
    for i, (n, k, s) in enumerate(zip(sizes, kernel, strides, strict=True)):
        if not isinstance(n, int):
            raise Unfit("its last window hangs on sizes that are not known")
        lo, hi = out[i]
        count = -(-(n + lo + hi - k) // s) + 1
        if (count - 1) * s >= n + lo:
            count -= 1
        out[i][1] = hi + max(0, (count - 1) * s + k - (n + lo + hi))
    return out


def _global_pool(b: Builder, node: Node) -> None:
    x = b.value(node)
    sizes = sizes_of(x)
    kind = "global_max_pool" if node.op == "GlobalMaxPool" else "global_avg_pool"
    b.put(node, b.op(node, kind, [x], dims=(x.shape[1], *[1] * len(sizes)), channels="first", keepdims=True))


def embedding(b: Builder, node: Node) -> None:
    """Gather from a table, rows by the numbers of a value; what else a Gather does is in onnx_shape."""
    table, ids = b.need(node, 0), b.value(node, 1)
    if int(node.attrs.get("axis", 0)) % max(table.array.ndim, 1) != 0 or table.array.ndim not in (1, 2):
        raise Unfit("it looks up what is no table of rows")
    one = table.array.ndim == 1
    rows = table.stepped(("reshape", (table.array.shape[0], 1))) if one else table
    name = b.tensor(node, rows, "table")
    dims = (*ids.dims, rows.array.shape[1])
    y = b.op(node, "embedding", [ids], {"table": name}, dims=dims, suffix=":rows" if one else "")
    b.put(node, b.relay(node, y, y.shape[:-1], y.batch) if one else y)


TABLE: dict[str, Convert] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
}
