"""Linear spaces: units that only linear maps touch have no identity of their own, any invertible matrix may act on them.

The maps around such a space are composed, W2 W1, which is all that the function knows of them. Where the product would
be far larger than its factors (a pair of thin maps, as in LoRA), the space stays, and its units are turned as those of heads
are. Where zeros are padded in between, it stays with relabelling and nonzero scale, and what is larger than that is said.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from canon.fold.work import Step, Work
from canon.ops import Op
from canon.ops.base import Array
from canon.ops.geometry import channel_axis, pads_zero, spatial, written_out

_ROOM = 4
"""How many times larger than its factors a product may be, above a million entries."""
_AVERAGES = ("avg_pool", "global_avg_pool")


def write_out_groups(work: Work) -> None:
    """Write kernels that act on groups of channels as block-diagonal ones, whose axes carry all units of both sides."""
    for op in [op for op in work.ops if op.kind == "grouped_conv"]:
        whole = work.shapes[op.inputs[0]][channel_axis(op)]
        for store in (work.tensors, work.magnitudes):
            t = store.get(op.params["kernel"])
            if t is not None and t.shape[1] != whole:
                store[op.params["kernel"]] = written_out(t, int(op.attrs["groups"]))


def compose(work: Work) -> None:
    """Compose what can be composed, front to back, until nothing changes."""
    changed = True
    while changed:
        changed = any(_compose_at(work, op) for op in list(work.ops))
    for op in list(work.ops):
        _hold_apart(work, op)


def _hold_apart(work: Work, first: Op) -> None:
    """Let any matrix act between dense layers that are composed in principle, but whose product would be too large."""
    ways = _ways(work, first) if first.kind == "dense" else []
    if not ways or any(average is not None or last.kind != "dense" for last, average in ways):
        return
    bias = work.get(first, "bias")
    if bias is not None and bias[0].any():
        return
    middle = Op("bottleneck", bottleneck_name(first.name), (first.output,), bottleneck_name(first.output))
    work.shapes[middle.output] = work.shapes[first.output]
    for last, _ in ways:
        work.swap(last, replace(last, inputs=(middle.output,)))
    work.ops.insert(work.ops.index(first) + 1, middle)


def bottleneck_name(name: str) -> str:
    """The name of the bottleneck behind an op, or behind its value."""
    return f"{name}@bottleneck"


def _compose_at(work: Work, first: Op) -> bool:
    ways = _ways(work, first)
    sizes = [_kernel(work, first).size + _kernel(work, last).size for last, _ in ways]
    products = [_product_size(work, first, last) for last, _ in ways]
    if not ways or any(p > max(_ROOM * s, 2**20) for p, s in zip(products, sizes, strict=True)):
        return False
    for last, average in ways:
        _replace(work, first, last, average)
    work.swap(first, None)
    return True


def _ways(work: Work, first: Op) -> list[tuple[Op, Op | None]]:
    """The linear maps, each with a pooling on the way if there is one, that alone read what `first` writes."""
    if first.kind not in ("dense", "conv", "depthwise_conv") or first not in work.ops or not work.unshared(first):
        return []
    if first.output in work.outputs:
        return []
    ways: list[tuple[Op, Op | None]] = []
    for reader in work.readers(first.output):
        average = reader if reader.kind in _AVERAGES else None
        last = work.only_reader(reader.output) if average else reader
        if last is None or not _fits(work, first, average, last):
            return []
        ways.append((last, average))
    return ways if len({last.name for last, _ in ways}) == len(ways) else []


def _kernel(work: Work, op: Op) -> Array:
    return work.tensors[op.params["kernel"]]


def _product_size(work: Work, first: Op, last: Op) -> int:
    a, b = _kernel(work, first).shape, _kernel(work, last).shape
    inner = a[1]
    if first.kind == "depthwise_conv":
        inner = work.shapes[first.inputs[0]][channel_axis(first)] or 1
    return int(b[0] * inner * prod(a[2:]) * prod(b[2:]))


def _pointwise(work: Work, op: Op) -> bool:
    """A convolution that is a dense map at each position."""
    k = _kernel(work, op).shape[2:]
    strides = op.attrs.get("strides") or [1]
    return (
        op.kind == "conv"
        and prod(k) == 1
        and all(int(s) == 1 for s in strides)
        and not isinstance(op.attrs.get("padding", "valid"), list)
    )


def _fits(work: Work, first: Op, average: Op | None, last: Op) -> bool:
    if last.kind not in ("dense", "conv") or not work.unshared(last):
        return False
    if average is not None and (work.only_reader(first.output) is None or None in work.shapes[first.output]):
        return False
    if first.kind == "dense":
        return average is None and (last.kind == "dense" or _pointwise(work, last))
    rank = len(work.shapes[first.output])
    same_axis = (last.kind == "dense" and channel_axis(first) % rank == rank - 1) or (
        last.kind == "conv" and channel_axis(last) == channel_axis(first)
    )
    if average is not None:
        flat = average.kind == "global_avg_pool" and not average.attrs.get("keepdims")
        if first.kind == "depthwise_conv" or not (last.kind == "dense" if flat else _pointwise(work, last) and same_axis):
            return False
        return bool(average.attrs.get("channels", "last") == first.attrs.get("channels", "last"))
    if not same_axis:
        return False
    if first.kind == "depthwise_conv":  # with one window a channel, a nonzero scale a unit is the whole freedom
        channels = work.shapes[first.inputs[0]][channel_axis(first)] or 0
        return channels > 0 and len(_kernel(work, first)) > channels and _pointwise(work, last)
    if last.kind == "dense" or _pointwise(work, last):
        return True
    if not _pointwise(work, first):
        return False
    bias = work.get(first, "bias")
    padded = pads_zero(last, spatial(last, work.shapes[last.inputs[0]]), _kernel(work, last).shape[2:])
    return not padded or bias is None or not bias[0].any()


def _replace(work: Work, first: Op, last: Op, average: Op | None) -> None:
    a, b = work.get(first, "kernel"), work.get(last, "kernel")
    assert a is not None
    assert b is not None
    channels = work.shapes[first.inputs[0]][channel_axis(first)] or 1
    kernel, size = (_product(first, channels, x, y) for x, y in zip(a, b, strict=True))
    reads = [y.sum(axis=tuple(range(2, y.ndim))) for y in b]
    front, back = work.get(first, "bias"), work.get(last, "bias")
    tensors: dict[str, tuple[Array, Array]] = {"kernel": (kernel, size)}
    if front is not None or back is not None:
        n = len(b[0])
        zero = (np.zeros(n), np.zeros(n))
        own = back or zero
        through = (reads[0] @ front[0], reads[1] @ front[1]) if front is not None else zero
        tensors["bias"] = (own[0] + through[0], own[1] + through[1])
    keeps_first = first.kind != "dense" and (last.kind == "dense" or _pointwise(work, last))
    shape_of = first if keeps_first else last
    kind = "conv" if shape_of.kind == "depthwise_conv" else shape_of.kind
    output = last.output if average is None else f"{last.output}@unpooled"
    names = {role: f"{last.name}/{role}" for role in tensors}
    for role, (t, m) in tensors.items():
        work.tensors[names[role]], work.magnitudes[names[role]] = t, m
    if average is not None:
        work.shapes[output] = (
            (*work.shapes[first.output][:-1], len(kernel))
            if channel_axis(first)
            else (len(kernel), *work.shapes[first.output][1:])
        )
    new = Op(kind, last.name, first.inputs, output, names, dict(shape_of.attrs))
    work.swap(last, new)
    if average is not None:
        work.swap(average, replace(average, inputs=(output,), output=last.output))
        work.shapes[last.output] = work.shapes.get(last.output, work.shapes[average.output])
    work.record.append(Step("linear", first.name, f"composed into {last.name}", into=last.name))


def _product(first: Op, channels: int, a: Array, b: Array) -> Array:
    """last o first as one kernel, both as (out, in, *window)."""
    if first.kind == "depthwise_conv":
        wide = b.reshape(len(b), -1)[:, :, None] * a.reshape(1, len(a), -1)
        grouped = wide.reshape(len(b), channels, -1, wide.shape[-1]).sum(axis=2)
        return np.asarray(grouped.reshape(len(b), channels, *a.shape[2:]))
    flat = b.reshape(*b.shape[:2], -1)
    if prod(a.shape[2:]) == 1:
        out = np.einsum("omk,mi->oik", flat, a.reshape(a.shape[:2]), optimize=True)
        return np.asarray(out.reshape(len(b), a.shape[1], *(b.shape[2:] or a.shape[2:])))
    return np.asarray((flat[:, :, 0] @ a.reshape(len(a), -1)).reshape(len(b), *a.shape[1:]))
