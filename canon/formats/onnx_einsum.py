"""Einsum of a value with a constant or of two values: a dense layer, or matrix products, between transposes.

Letters in both operands and in what comes out are axes along which products are taken one by one; letters in both alone are
summed over; the rest are rows and columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_known import Known
from canon.formats.onnx_linear import dense, product_of
from canon.formats.onnx_shape import reshaped
from canon.formats.onnx_size import Dim, product
from canon.formats.onnx_value import Unfit, Value


def _equation(node: Node) -> tuple[list[str], str]:
    """Letters of each operand and of what comes out. Raises Unfit for what is more than a product of two."""
    said = str(node.attrs.get("equation", "")).replace(" ", "")
    found = re.fullmatch(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)", said)
    if found is None or any(len(set(part)) < len(part) for part in found.groups()):
        raise Unfit(f"its equation {said!r}")
    ins, out = [found[1], found[2]], found[3]
    if set(out) - set("".join(ins)) or any((set(a) - set(b)) - set(out) for a, b in (ins, ins[::-1])):
        raise Unfit(f"its equation {said!r} sums over one operand alone")
    return ins, out


def _einsum(b: Builder, node: Node) -> None:
    ins, out = _equation(node)
    x, y = b.get(node.inputs[0]), b.get(node.inputs[1])
    if isinstance(x, Known):
        x, y, ins = y, x, ins[::-1]
    if not isinstance(x, Value) or x.rank != len(ins[0]):
        raise Unfit("its operands do not have the axes of its equation")
    sizes = dict(zip(ins[0], x.shape, strict=True))
    if isinstance(y, Known):
        if y.array.ndim != len(ins[1]):
            raise Unfit("its operands do not have the axes of its equation")
        sizes |= dict(zip(ins[1], y.array.shape, strict=True))
        b.put(node, _with_constant(b, node, x, y, ins, out, sizes))
        return
    if y.rank != len(ins[1]):
        raise Unfit("its operands do not have the axes of its equation")
    sizes |= dict(zip(ins[1], y.shape, strict=True))
    each, summed, rows, columns = _letters(ins, out)
    left = _grouped(b, node, x, ins[0], (each, rows, summed), sizes, ":left")
    right = _grouped(b, node, y, ins[1], (each, summed, columns), sizes, ":right")
    z = product_of(b, node, left, right, ":product")
    b.put(node, _apart(b, node, z, each + rows + columns, out, sizes))


def _letters(ins: Sequence[str], out: str) -> tuple[str, str, str, str]:
    """Letters taken one by one, summed over, of rows, and of columns, each in the order in which they come out or in."""
    both = set(ins[0]) & set(ins[1])
    each = "".join(k for k in out if k in both)
    summed = "".join(k for k in ins[0] if k in both and k not in out)
    rows, columns = ("".join(k for k in out if k in one and k not in both) for one in ins)
    return each, summed, rows, columns


def _with_constant(b: Builder, node: Node, x: Value, w: Known, ins: Sequence[str], out: str, sizes: dict[str, Dim]) -> Value:
    each, summed, rows, columns = _letters(ins, out)
    if each or not summed:
        raise Unfit("a product with a constant that is no matrix")
    turned = b.turned(node, x, [ins[0].index(k) for k in rows + summed], ":turned")
    flat = reshaped(b, node, turned, (*(sizes[k] for k in rows), product(sizes[k] for k in summed)), ":flat")
    if flat.axis(-1) != len(flat.dims) - 1:
        raise Unfit("it works along the batch")
    kernel = w.stepped(("transpose", tuple(ins[1].index(k) for k in columns + summed)))
    shape = kernel.array.shape
    n = 1
    for k in shape[: len(columns)]:
        n *= k
    if len(columns) != 1 or len(summed) != 1:
        kernel = kernel.stepped(("reshape", (n, kernel.array.size // max(n, 1))))
    y = dense(b, node, flat, kernel, ":dense")
    return _apart(b, node, y, rows + columns, out, sizes)


def _grouped(
    b: Builder, node: Node, x: Value, letters: str, groups: Sequence[str], sizes: dict[str, Dim], suffix: str
) -> Value:
    """A value with its axes in the order of the groups, the last two groups one axis each."""
    order = [letters.index(k) for group in groups for k in group]
    turned = b.turned(node, x, order, suffix)
    shape = (*(sizes[k] for k in groups[0]), *(product(sizes[k] for k in group) for group in groups[1:]))
    return reshaped(b, node, turned, shape, f"{suffix} flat")


def _apart(b: Builder, node: Node, x: Value, letters: str, out: str, sizes: dict[str, Dim]) -> Value:
    """A value with one axis a letter, in the order in which they come out."""
    apart = reshaped(b, node, x, [sizes[k] for k in letters], ":apart")
    return b.turned(node, apart, [letters.index(k) for k in out])


TABLE: dict[str, Convert] = {"Einsum": _einsum}
