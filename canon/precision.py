"""Types that tensors are stored in, bfloat16 included: numpy has no such type, so its values are held in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
"""The upper half of a float32: 8 bits of exponent, 7 of fraction. Every value of it is a float32."""
_HALF, _TIE = np.uint32(0xFFFF), np.uint32(0x8000)


def roundoff(kind: str) -> float:
    """Unit roundoff u of a type by its name: the largest relative error of rounding to nearest."""
    return 2.0**-8 if kind == BFLOAT16 else float(np.finfo(kind).eps) / 2


def tiny(kind: str) -> float:
    """The smallest normal number of a type by its name."""
    return 2.0**-126 if kind == BFLOAT16 else float(np.finfo(kind).tiny)


def as_stored(values: NDArray[Any], kind: str) -> NDArray[Any]:
    """Values rounded as a type would hold them, in that type; those of bfloat16 in float32. Too large a value is infinite."""
    if kind == BFLOAT16:
        return from_bfloat16(to_bfloat16(values))
    return np.asarray(values).astype(np.dtype(kind), copy=False)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 numbers given as their bits, in float32: nothing is lost."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of values rounded to bfloat16, to the nearest and ties to even, as one rounding of the values themselves.

    Rounding float64 to float32 first may make a tie of what was none; such a float32 is moved back off the tie.
    """
    values = np.asarray(values)
    with np.errstate(over="ignore", under="ignore"):
        single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    if values.dtype.itemsize > 4:
        made = ((bits & _HALF) == _TIE) & (single != values)
        away = np.abs(single) < np.abs(values)  # the value lies beyond the tie, seen from zero
        bits = np.where(made, np.where(away, bits + np.uint32(1), bits - np.uint32(1)), bits)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    out = np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)
    return out.reshape(values.shape)
