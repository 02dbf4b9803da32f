"""Tensors dumped by name into HDF5: torch state dicts ("a.b.weight") and Keras-like dumps ("a/kernel")."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from canon.formats.common import Request, load, walk
from canon.formats.common_dump import entries, lost
from canon.formats.common_named import Named, looks_named, read_named
from canon.formats.common_write import check_name, replacing, write_copy
from canon.ops.base import Array
from canon.run import Run

NAME = "hdf5 tensors"


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file looks like tensors of layers: most named after a role, and a kernel among them."""
    return looks_named(_found(f))


def read(f: Any, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UsageError."""
    return read_named(_found(f), NAME, path, request)


def _found(f: Any) -> dict[str, Named]:
    return {path: Named(str(d.name), d.shape, d.dtype, partial(load, d)) for path, d in walk(f)}


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors; there is no optimizer state to drop."""
    write_copy(run, path, source, actions)


def write_new(run: Run, path: Path) -> tuple[str, ...]:
    """A state dict in HDF5; what it cannot keep, a line each."""
    import h5py

    with replacing(path) as temporary, h5py.File(temporary, "w", track_order=True) as f:
        for name, (values, _) in entries(run).items():
            check_name(name)
            f.create_dataset(name, data=np.ascontiguousarray(values), track_times=False)
    return lost(run)
