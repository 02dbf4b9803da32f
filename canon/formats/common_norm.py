"""Weight norm (Salimans and Kingma 2016): a kernel that its file keeps as lengths g and directions v, W = g v / |v|.

What a network computes with is W, and W is the tensor that canon holds: the length of v is no part of the function. Written
back, v is W and g the lengths of W. torch keeps the two as weight_g and weight_v, or, as a parametrization, as original0 and
original1. The axes of g are those of v, of size 1 where lengths are taken over them: all but the first, usually.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from canon.ops.base import Array
from canon.precision import as_stored

ROLES = ("weight_g", "weight_v", "original0", "original1")
"""Last words of the names of lengths and directions."""
_DIRECTIONS = re.compile(r"(?P<layer>.*)weight_v|(?P<other>.*)parametrizations(?P<dot>[./])weight[./]original1")


def pairs(shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, tuple[str, str, str]]:
    """Name of directions -> (names of the kernel, the lengths and the directions), where the shapes are such."""
    found = {}
    for v, shape in shapes.items():
        said = _DIRECTIONS.fullmatch(v)
        if said is None:
            continue
        front = said["other"] if said["layer"] is None else said["layer"]
        if said["layer"] is not None and front and front[-1] not in "./":
            continue
        kernel, g = f"{front}weight", f"{v[:-1]}{'g' if said['dot'] is None else '0'}"
        if kernel not in shapes and g in shapes and _fits(shapes[g], shape):
            found[v] = (kernel, g, v)
    return found


def _fits(lengths: tuple[int, ...] | None, directions: tuple[int, ...] | None) -> bool:
    if lengths is None or directions is None or len(directions) < 2:
        return False
    if not lengths:
        return True
    return len(lengths) == len(directions) and all(n in (1, m) for n, m in zip(lengths, directions, strict=True))


def effective(lengths: Array, directions: Array, kind: str) -> Array:
    """W = g v / |v|, computed in float64 and rounded once to a type by its name; not a number where a row of v is zero."""
    v = np.asarray(directions, np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return as_stored(np.asarray(lengths, np.float64) * (v / lengths_of(v, lengths.shape)), kind)


def lengths_of(kernel: Array, shape: tuple[int, ...]) -> Array:
    """|W| over the axes along which lengths of this shape have size 1, in float64."""
    w = np.asarray(kernel, np.float64)
    over = tuple(i for i in range(w.ndim) if not shape or shape[i] == 1)
    size = np.abs(w).max(axis=over, keepdims=True, initial=0.0)
    unit = np.where(size > 0, size, 1.0)  # squares of what is small or large would leave the range
    found: Array = size * np.sqrt(((w / unit) ** 2).sum(axis=over, keepdims=True))
    return found.reshape(shape)
