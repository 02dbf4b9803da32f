"""What a file's arrays of samples are to their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from canon.errors import CorruptFile
from canon.ops.base import Array

SAMPLE_IDS = "sample_ids"
Reader = Callable[[str, int, int], Array]
"""(name, first row, row after the last) -> those rows."""


@dataclass(frozen=True)
class Entry:
    """One array: shape (samples first), dtype, the samples' names where they are known, and its axis of units where the
    file says so (counted with the samples').
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ids: tuple[str, ...] | None = None
    units: int | None = None


@dataclass(frozen=True)
class Arrays:
    """The arrays of one file. opened: a context that gives their Reader; prefix: what its names begin with."""

    path: str
    entries: Mapping[str, Entry]
    opened: Callable[[], AbstractContextManager[Reader]]
    prefix: str = ""


def names_of_samples(values: Array, count: int, where: str) -> tuple[str, ...]:
    """Sample names from what a file keeps of them: text or whole numbers, one a sample. Raises CorruptFile."""
    flat = np.asarray(values).reshape(-1)
    if len(flat) != count:
        raise CorruptFile(where, f"names {len(flat):,} samples, and there are {count:,}")
    if flat.dtype.kind == "f" and not (flat == np.round(flat)).all():
        raise CorruptFile(where, "names samples by fractions")
    if flat.dtype.kind == "f":
        flat = flat.astype(np.int64)
    return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in flat.tolist())


def as_ids(ids: tuple[str, ...]) -> Array:
    """Sample names as an attribute keeps them: whole numbers where all are, else text of one length."""
    if all(i.isascii() and i.isdigit() and str(int(i)) == i and len(i) < 19 for i in ids):
        return np.array([int(i) for i in ids], np.int64)
    return np.array([i.encode("utf-8") for i in ids])
