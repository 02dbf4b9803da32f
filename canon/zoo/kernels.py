"""Powers of a kernel met by what comes in: the inner loop of the path kernel, in float64.

A flow is what arrives along all paths, one array for each power. A kernel is read once, a block at a time, in the order in
which it lies in memory; no copy of its size is made.
"""

from __future__ import annotations

from math import prod

import numpy as np

from canon.ops.base import Array

SIZES, SIGNED, EVEN = -1, (1, 3), (2, 4)
ALL = (SIZES, 1, 2, 3, 4)
"""Powers by key: 2 and 4; 1 and 3 with their signs; SIZES for the first power of absolute values."""
Flow = dict[int, Array]

_BLOCK = 1 << 16
"""Entries of a kernel handled at a time: they stay in the processor's cache."""


def power(t: Array, key: int) -> Array:
    """t to the power that a key stands for."""
    if key == SIZES:
        return np.abs(t)
    if key == 1:
        return t
    square = t * t
    return square if key == 2 else square * (t if key == 3 else square)


def contract(kernel: Array, flow: Flow, upper: Array | None = None) -> Flow:
    """Sum over what comes in, and over the window, of kernel ** power times the flow.

    kernel: (files, out, in, *window); flow: (files, rows, places, in) for each power; upper: what row 1 meets instead.
    Returns (files, rows, places, out) for each power.
    """
    if upper is not None:
        first = contract(kernel, {key: x[:, :1] for key, x in flow.items()})
        second = contract(upper, {key: x[:, 1:] for key, x in flow.items() if x.shape[1] > 1})
        return {key: np.concatenate([y, second[key]], axis=1) if key in second else y for key, y in first.items()}
    matrix, out_first = _matrix(kernel)
    window = prod(kernel.shape[3:])
    if window > 1:
        flow = {key: np.repeat(x, window, axis=-1) if out_first else np.tile(x, window) for key, x in flow.items()}
    if len(kernel) > 1 or matrix[0].size <= _BLOCK:
        return _whole(matrix, out_first, flow)
    found = _in_blocks(matrix[0], out_first, {key: x.reshape(-1, x.shape[-1]) for key, x in flow.items()})
    return {key: y.reshape(*flow[key].shape[:-1], -1) for key, y in found.items()}


def _matrix(kernel: Array) -> tuple[Array, bool]:
    """The kernel as (files, out, in * window) or (files, window * in, out), whichever is how it lies in memory."""
    n, out, inner, *window = kernel.shape
    back = kernel.transpose(0, *range(3, kernel.ndim), 2, 1)
    if back[0].flags.c_contiguous and not kernel[0].flags.c_contiguous:
        return back.reshape(n, prod(window) * inner, out), False
    return kernel.reshape(n, out, inner * prod(window)), True


def _whole(matrix: Array, out_first: bool, flow: Flow) -> Flow:
    out: Flow = {}
    w = np.asarray(matrix, np.float64)
    square = w * w
    for key, x in flow.items():
        t = np.abs(w) if key == SIZES else w if key == 1 else square if key == 2 else square * (w if key == 3 else square)
        rows = x.reshape(len(x), -1, x.shape[-1])
        out[key] = np.matmul(rows, t.swapaxes(-1, -2) if out_first else t).reshape(*x.shape[:-1], -1)
    return out


def _in_blocks(matrix: Array, out_first: bool, flow: Flow) -> Flow:
    """One file's kernel, a few rows at a time; flow: (rows, in)."""
    rows, columns = matrix.shape
    step = max(1, _BLOCK // columns)
    w, t = np.empty((step, columns)), np.empty((step, columns))
    found: Flow = {key: np.zeros((len(x), rows if out_first else columns)) for key, x in flow.items()}
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        a, b = w[: here.stop - start], t[: here.stop - start]
        np.copyto(a, matrix[here])
        for key in ALL:
            if key == 2:
                np.multiply(a, a, out=b)
            elif key == 4 and 4 in flow:
                np.multiply(b, b, out=b)
            if key not in flow:
                continue
            block = a if key == 1 else b
            if key == SIZES:
                np.abs(a, out=b)
            elif key == 3:
                block = np.multiply(a, b, out=a)
            for x, y in zip(flow[key], found[key], strict=True):
                if out_first:
                    np.dot(block, x, out=y[here])
                else:
                    y += np.dot(x[here], block)
    return found
