"""Where the numbers of an HDF5 file lie, for files that differ from one read before in nothing else.

What an HDF5 file means is said by all its bytes but those of its contiguous datasets, which the library never looks into.
So a file of the same size with the same bytes everywhere else is the same file with other numbers: they are read from their
places, and the library, whose work on a small file is nearly all of the cost, is not asked again. When a dataset was made
(old versions of h5py noted it) is no part of what it means, and an optimiser's state is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError
from canon.formats.common import hdf5, node, walk
from canon.formats.common_layout import Place, Stack, as_place
from canon.formats.magic import container
from canon.ops.base import Array
from canon.run import Run

_MOST_OBJECTS, _MOST_REST = 4096, 1 << 22
_OPTIMISER = re.compile(r"/?_?optimizer")
_TIME, _CONTINUED = 0x12, 0x10
"""Messages of an object's header, as the format numbers them: when it was changed, and where the header goes on."""


@dataclass(frozen=True)
class Numbers:
    """One dataset: where it begins, its type and shape as stored, and how it becomes the tensor."""

    tensor: str
    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: Place

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.at + prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Raw:
    """size: of the file; numbers: its datasets that are tensors; rest: (begin, end, bytes) of everything else that counts."""

    size: int
    numbers: tuple[Numbers, ...]
    rest: tuple[tuple[int, int, bytes], ...]

    def fits(self, data: bytes) -> bool:
        """Whether a file's bytes are those of the file this was made from, but for its numbers."""
        return len(data) == self.size and all(data[a:b] == there for a, b, there in self.rest)

    def stacked(self, files: Sequence[bytes]) -> dict[str, Array]:
        """The tensors of several files that fit, (files, *shape) each, in the stored type."""
        out: dict[str, Array] = {}
        for n in self.numbers:
            count = prod(n.shape)
            flat = np.empty((len(files), count), n.dtype)
            for row, data in zip(flat, files, strict=True):
                row[:] = np.frombuffer(data, n.dtype, count, n.at)
            out[n.tensor] = _to_memory(flat.reshape(len(files), *n.shape), n.place)
        return out


def _to_memory(stored: Array, place: Place) -> Array:
    """to_memory, with an axis of files in front."""
    for axis in place.flip:
        stored = np.flip(stored, axis % (stored.ndim - 1) + 1)
    if place.shape is not None:
        stored = stored.reshape(len(stored), *place.shape)
    if place.axes is not None:
        stored = stored.transpose(0, *(a + 1 for a in place.axes))
    return stored if place.final is None else stored.reshape(len(stored), *place.final)


def raw(path: Path, run: Run, data: bytes) -> Raw | None:
    """Where the numbers of a run lie in its file, whose bytes these are; None where they cannot be read from there alone."""
    try:
        if container(path) != "hdf5":
            return None
        with hdf5(path) as f:
            if f.userblock_size:
                return None
            numbers = _numbers(f, run)
            if numbers is None:
                return None
            holes = [(n.at, n.end) for n in numbers] + [(t, t + 4) for t in _times(f, data)] + list(_states(f))
    except CanonError:
        return None
    rest = tuple(_rest(data, holes))
    if sum(len(there) for _, _, there in rest) > _MOST_REST:
        return None
    found = Raw(len(data), numbers, rest)
    tensors = found.stacked([data])
    for name, t in run.network.tensors.items():
        if name not in tensors or tensors[name].dtype != t.dtype or not np.array_equal(tensors[name][0], t):
            return None
    return found


def _numbers(f: Any, run: Run) -> tuple[Numbers, ...] | None:
    out: list[Numbers] = []
    if set(run.layout) != set(run.network.tensors) or run.network.precision or run.lengths:
        return None
    for tensor, stored in run.layout.items():
        if isinstance(stored, Stack):
            return None
        place = as_place(stored)
        dataset = node(f, place.path)
        partly = place.halves or bool(place.cut or place.also)
        at = None if dataset is None or partly or dataset.size == 0 else dataset.id.get_offset()
        if at is None or dataset.dtype.kind != "f" or not dataset.dtype.isnative:
            return None
        out.append(Numbers(tensor, int(at), dataset.dtype, tuple(dataset.shape), place))
    out.sort(key=lambda n: n.at)
    apart = all(a.end <= b.at for a, b in pairwise(out))
    return tuple(out) if out and apart else None


def _rest(data: bytes, holes: list[tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
    """What lies between the holes."""
    at = 0
    for begin, end in [*sorted(holes), (len(data), len(data))]:
        if begin > at:
            yield at, begin, data[at:begin]
        at = max(at, end)


def _states(f: Any) -> Iterator[tuple[int, int]]:
    """Where an optimiser keeps its numbers."""
    for path, dataset in walk(f):
        at = dataset.id.get_offset() if _OPTIMISER.match(path) and dataset.size and dataset.dtype.kind in "fiu" else None
        if at is not None:
            yield int(at), int(at) + dataset.size * dataset.dtype.itemsize


def _times(f: Any, data: bytes) -> Iterator[int]:
    """Where headers of version 1 note when an object was changed: four bytes each."""
    import h5py

    for i, (_, dataset) in enumerate(walk(f)):
        if i >= _MOST_OBJECTS:
            return
        address = int(h5py.h5o.get_info(dataset.id).addr)
        if data[address : address + 1] == b"\x01":
            yield from _messages(data, address + 16, _number(data, address + 8, 4))


def _messages(data: bytes, at: int, size: int, hops: int = 8) -> Iterator[int]:
    end = at + size
    while at + 8 <= min(end, len(data)):
        kind, length = _number(data, at, 2), _number(data, at + 2, 2)
        if kind == _TIME and length >= 8:
            yield at + 12
        elif kind == _CONTINUED and hops:
            yield from _messages(data, _number(data, at + 8, 8), _number(data, at + 16, 8), hops - 1)
        at += 8 + length


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")
