"""Arrays of samples in files, for probes and activations: found by name, described, and read some rows at a time.

HDF5 is read in slices; an .npz archive and a .csv table are held, for neither can be read from the middle.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from canon.errors import CanonError, ReadError, UnknownFormat, UsageError
from canon.formats import arrays_csv, arrays_hdf5, arrays_npz
from canon.formats.common_arrays import Arrays, Entry

__all__ = ["Arrays", "Entry", "arrays", "recorded"]


def arrays(path: str | os.PathLike[str], under: str | None = None) -> Arrays:
    """The arrays that a file holds: all of them, or those called `under` or lying below it.

    Raises ReadError, UsageError where there is none of that name; with the path in front.
    """
    try:
        found = _all(Path(path), under)
        if under is not None:
            root = under.strip("/")
            kept = {n: e for n, e in found.entries.items() if n == root or n.startswith(f"{root}/")}
            if not kept:
                raise UsageError("", f"holds no array {under!r}", f"It holds {_some(list(found.entries))}.")
            if list(kept) != [root]:
                kept = {n.removeprefix(f"{root}/"): e for n, e in kept.items()}
                return Arrays(found.path, kept, found.opened, f"{root}/")
            return Arrays(found.path, kept, found.opened)
        if not found.entries:
            raise UsageError("", "holds no arrays of samples")
        return found
    except CanonError as e:
        raise e.at(str(path)) from e


def _all(path: Path, under: str | None) -> Arrays:
    if not path.is_file():
        raise ReadError("", "is a folder, not a file" if path.is_dir() else "no such file")
    if arrays_hdf5.sniff(path):
        return arrays_hdf5.read(path, under)
    if zipfile.is_zipfile(path):
        return arrays_npz.read(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return arrays_csv.read(path)
    raise UnknownFormat("", "holds no arrays of samples that canon reads", "It reads HDF5, .npz and .csv.")


def recorded(path: str | os.PathLike[str], step: str) -> dict[str, Arrays]:
    """The activations recorded in a file of canon's own for a checkpoint: probe -> arrays. None recorded: {}."""
    try:
        return arrays_hdf5.recorded(Path(path), step) if arrays_hdf5.sniff(Path(path)) else {}
    except CanonError as e:
        raise e.at(str(path)) from e


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
