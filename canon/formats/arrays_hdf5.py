"""Arrays of samples in HDF5: any dataset of numbers, with attribute sample_ids where its samples have names.

canon's own files keep them as

    /activations/<step>/<probe>/<value>  (samples, units, ...), attribute sample_ids
    /probes/<name>                       (samples, ...), attribute sample_ids
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile, UsageError
from canon.formats.common import bounded, hdf5, node, walk
from canon.formats.common_arrays import SAMPLE_IDS, Arrays, Entry, Reader, names_of_samples
from canon.ops.base import Array

_NUMBERS = "fiub"


def sniff(path: Path) -> bool:
    """Whether a file is HDF5."""
    import h5py

    return path.is_file() and bool(h5py.is_hdf5(path))


def read(path: Path, under: str | None = None) -> Arrays:
    """All datasets of numbers, or those at or below a path."""
    with hdf5(path) as f:
        root = f if under is None else node(f, under)
        if root is None:
            raise UsageError("", f"holds no dataset {under!r}", f"At its top are {', '.join(list(f)[:8])}.")
        at = "" if under is None else under.strip("/")
        recordings = "canon_format" in f.attrs
        found = {"/".join(p for p in (at, name) if p): dataset for name, dataset in walk(root)}
        entries = {name: _entry(name, d, recordings) for name, d in found.items() if _is_samples(d)}
    return Arrays(str(path), entries, partial(_opened, path))


def recorded(path: Path, step: str) -> dict[str, Arrays]:
    """The activations recorded in a file of canon's own for a checkpoint, by probe."""
    with hdf5(path) as f:
        group = node(f, f"activations/{step}") if "canon_format" in f.attrs else None
        found: dict[str, Arrays] = {}
        for probe in group if group is not None else ():
            root = f"activations/{step}/{probe}"
            datasets = [(name, d) for name, d in walk(node(f, root)) if _is_samples(d)]
            entries = {name: _entry(f"{root}/{name}", d, True) for name, d in datasets}
            found[probe] = Arrays(str(path), entries, partial(_opened, path), f"{root}/")
    return found


def _is_samples(dataset: Any) -> bool:
    return bool(dataset.shape and dataset.dtype.kind in _NUMBERS)


def _entry(name: str, dataset: Any, recordings: bool) -> Entry:
    if dataset.external or dataset.is_virtual:
        raise CorruptFile(name, "keeps its values in another file", "canon reads one file at a time.")
    bounded(dataset)
    ids = None
    if SAMPLE_IDS in dataset.attrs:
        ids = names_of_samples(dataset.attrs[SAMPLE_IDS], dataset.shape[0], f"{name}: {SAMPLE_IDS}")
    own = recordings and name.startswith("activations/") and len(dataset.shape) > 1
    return Entry(tuple(dataset.shape), dataset.dtype, ids, 1 if own else None)


@contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    with hdf5(path) as f:

        def rows(name: str, first: int, last: int) -> Array:
            dataset = node(f, name)
            if dataset is None:
                raise CorruptFile(name, "is not there any more")
            values: Array = dataset[first:last]
            return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))

        yield rows
