"""Arrays of samples in a numpy archive (.npz): every array is one, and sample_ids names the samples. Nothing is unpickled."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from canon.errors import CorruptFile, UnknownFormat
from canon.formats.common_arrays import SAMPLE_IDS, Arrays, Entry, Reader, names_of_samples
from canon.formats.common_zip import archive, check, members
from canon.ops.base import Array

_SUFFIX = ".npy"


def read(path: Path) -> Arrays:
    """All arrays of numbers with at least one axis."""
    with archive(path) as f:
        inside = members(f)
        if not inside or not all(name.endswith(_SUFFIX) for name in inside):
            raise UnknownFormat("", "a zip archive, and no numpy archive")
        held = {name.removesuffix(_SUFFIX): _values(f, info) for name, info in inside.items()}
    ids = held.pop(SAMPLE_IDS, None)
    held = {name: values for name, values in held.items() if values.ndim and values.dtype.kind in "fiub"}
    entries = {
        name: Entry(values.shape, values.dtype, None if ids is None else names_of_samples(ids, len(values), SAMPLE_IDS))
        for name, values in held.items()
    }
    return Arrays(str(path), entries, partial(_opened, held))


@contextmanager
def _opened(held: Mapping[str, Array]) -> Iterator[Reader]:
    yield lambda name, first, last: held[name][first:last]


def _values(f: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One member; CorruptFile where its bytes are not as many as it declares, or it holds objects."""
    check(info)
    stream = io.BytesIO(f.read(info))
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        if dtype.hasobject or prod(shape) * dtype.itemsize != info.file_size - stream.tell():
            raise CorruptFile(info.filename, "holds objects, or not as many bytes as it declares")
        stream.seek(0)
        values: Array = np.lib.format.read_array(stream, allow_pickle=False)
    except ValueError as e:
        raise CorruptFile(info.filename, f"is no plain numpy array ({' '.join(str(e).split())[:80]})") from e
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
