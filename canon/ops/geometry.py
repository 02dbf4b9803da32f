"""Where the windows of convolutions and poolings lie: padding, strides, dilation, channel axes.

Follows the conventions of Keras and TensorFlow: "same" pads so that ceil(n / stride) outputs come out, the odd cell
at the end; "causal" pads only in front; "ceil" pads behind, until the last window that begins inside fits as a whole (torch's
ceil_mode); explicit padding is a list of (low, high) pairs, one per spatial axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, Op, Shape


def channel_axis(op: Op) -> int:
    """Axis of the channels in a value without batch: 0 or -1."""
    return 0 if op.attrs.get("channels", "last") == "first" else -1


def spatial(op: Op, shape: Shape) -> Shape:
    """The spatial sizes of a value without batch."""
    return shape[1:] if channel_axis(op) == 0 else shape[:-1]


def with_channels(op: Op, sizes: Shape, channels: int | None) -> Shape:
    """A value's shape from its spatial sizes and channels."""
    return (channels, *sizes) if channel_axis(op) == 0 else (*sizes, channels)


def pads(
    op: Op, sizes: Shape, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]] | None:
    """(low, high) padding per spatial axis; None where it depends on a size that is not known."""
    how = op.attrs.get("padding", "valid")
    if how == "valid":
        return [(0, 0)] * len(kernel)
    if not isinstance(how, str):
        return [(int(lo), int(hi)) for lo, hi in how]
    out: list[tuple[int, int]] = []
    for n, k, s, d in zip(sizes, kernel, strides, dilation, strict=True):
        reach = (k - 1) * d + 1
        if how == "causal":
            out.append((reach - 1, 0))
        elif how == "ceil":
            if n is None:
                return None
            last = min(-(-(n - reach) // s), (n - 1) // s)
            out.append((0, max(last * s + reach - n, 0)))
        elif how != "same":
            raise ShapeConflict(op.name, f"padding {how!r} is not known")
        elif s == 1:
            out.append(((reach - 1) // 2, (reach - 1) - (reach - 1) // 2))
        elif n is None:
            return None
        else:
            total = max((-(-n // s) - 1) * s + reach - n, 0)
            out.append((total // 2, total - total // 2))
    return out


def window(op: Op, name: str, rank: int) -> tuple[int, ...]:
    """A per-axis attribute (strides, dilation), ones by default."""
    given = op.attrs.get(name)
    return (1,) * rank if given is None else tuple(int(v) for v in given)


def out_sizes(op: Op, sizes: Shape, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Shape:
    """Spatial sizes of the output."""
    if len(sizes) != len(kernel):
        raise ShapeConflict(op.name, f"a window over {len(kernel)} axes meets a value with {len(sizes)} spatial axes")
    padding = pads(op, sizes, kernel, strides, dilation)
    out: list[int | None] = []
    for i, (n, k, s, d) in enumerate(zip(sizes, kernel, strides, dilation, strict=True)):
        if n is None or padding is None:
            out.append(None)
            continue
        room = n + sum(padding[i]) - ((k - 1) * d + 1)
        if room < 0:
            raise ShapeConflict(op.name, f"a window of {k} (dilation {d}) does not fit into {n}")
        out.append(room // s + 1)
    return tuple(out)


def pads_zero(op: Op, sizes: Shape, kernel: Sequence[int]) -> bool:
    """Whether zeros are padded in (taken as yes where it depends on a size that is not known)."""
    rank = len(kernel)
    padding = pads(op, sizes, kernel, window(op, "strides", rank), window(op, "dilation", rank))
    return padding is None or any(lo or hi for lo, hi in padding)


def padded(op: Op, x: Array, kernel: Sequence[int], fill: float) -> tuple[Array, tuple[int, ...], tuple[int, ...], Shape]:
    """x (batch, *sizes, channels) padded; with strides, dilation and output sizes."""
    rank = len(kernel)
    strides, dilation = window(op, "strides", rank), window(op, "dilation", rank)
    sizes = x.shape[1:-1]
    padding = pads(op, sizes, kernel, strides, dilation) or []
    if any(lo or hi for lo, hi in padding):
        x = np.pad(x, [(0, 0), *padding, (0, 0)], constant_values=fill)
    return x, strides, dilation, out_sizes(op, sizes, kernel, strides, dilation)


def offsets(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int], sizes: Shape
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each position in the window, its index and the slice of padded x that it sees: (batch, *sizes, channels)."""
    for at in product(*map(range, kernel)):
        cut = tuple(
            slice(a * d, a * d + ((n or 0) - 1) * s + 1, s) for a, d, s, n in zip(at, dilation, strides, sizes, strict=True)
        )
        yield at, x[(slice(None), *cut)]


def to_last(op: Op, x: Array) -> Array:
    """Batch value with its channels moved last."""
    return np.moveaxis(x, 1, -1) if channel_axis(op) == 0 else x


def from_last(op: Op, x: Array) -> Array:
    """Batch value with its channels moved back to where the op keeps them."""
    return np.moveaxis(x, -1, 1) if channel_axis(op) == 0 else x


def written_out(kernel: Array, groups: int) -> Array:
    """The block-diagonal (out, in, *window) of a kernel (out, in / groups, *window) that acts on groups of channels."""
    out, inner = kernel.shape[:2]
    whole = np.zeros((out, inner * groups, *kernel.shape[2:]), kernel.dtype)
    for g in range(groups):
        rows = slice(g * out // groups, (g + 1) * out // groups)
        whole[rows, g * inner : (g + 1) * inner] = kernel[rows]
    return whole


def blocks_of(whole: Array, groups: int) -> Array:
    """The blocks on the diagonal, (out, in / groups, *window): the inverse of `written_out`."""
    out, inner = whole.shape[0] // groups, whole.shape[1] // groups
    rows = [whole[g * out : (g + 1) * out, g * inner : (g + 1) * inner] for g in range(groups)]
    return np.concatenate(rows)
