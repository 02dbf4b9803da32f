"""What the formats share in reading: HDF5 with care, strings, and the request.

Nothing in a file is trusted: links that leave the file, storage outside it and sizes it cannot hold are refused before
anything is read, and nothing it contains is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, CorruptFile, ReadError
from canon.formats.common_heap import check_heaps
from canon.ops.base import Array

MOST_PACKED = 1100
"""No HDF5 filter in use packs better than deflate, whose limit is 1032 to 1."""


@dataclass(frozen=True)
class Request:
    """What the caller asks of a file: which checkpoint, a Keras configuration lent to it, what nonlinearity."""

    checkpoint: str | None = None
    keras_config: Mapping[str, Any] | None = None
    activation: str | None = None


# strings


def text(value: Any) -> str:
    """An attribute as str, whether it was stored as bytes, str, fixed or variable length, scalar or array of one."""
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise CorruptFile("", f"expected one string, found an array of shape {value.shape}")
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ == "Empty":
        return ""
    raise CorruptFile("", f"expected a string, found {type(value).__name__}")


def strings(node: Any, name: str) -> list[str] | None:
    """A list of strings from an attribute; None where there is none.

    An empty list may be stored as float64. Long lists may be split over attributes name0, name1 and so on.
    """
    if name in node.attrs:
        return _strings(node.attrs[name])
    if f"{name}0" not in node.attrs:
        return None
    found: list[str] = []
    part = 0
    while f"{name}{part}" in node.attrs:
        found += _strings(node.attrs[f"{name}{part}"])
        part += 1
    return found


def _strings(value: Any) -> list[str]:
    if isinstance(value, np.ndarray):
        return [text(v) for v in value.reshape(-1)]
    return [text(value)] if isinstance(value, bytes | str) else []


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which conv2d_2 comes before conv2d_10."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"([0-9]+)", name) if part)


# reading HDF5


@contextmanager
def hdf5(path: Path) -> Iterator[Any]:
    """The file, opened for reading; whatever h5py trips over is a CorruptFile."""
    import h5py

    check_heaps(path)
    try:
        # no lock: canon only reads, and a read-only or network file system may have none
        with h5py.File(path, "r", locking=False) as f:
            yield f
    except CanonError:
        raise
    except MemoryError as e:
        raise ReadError("", "needs more memory than there is") from e
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as e:
        raise CorruptFile("", _damage(path, e), "Fetch the file again, or compare its size with the original.") from e


def _damage(path: Path, e: Exception) -> str:
    said = " ".join(str(e).split())
    if sizes := re.search(r"truncated file: eof = (\d+).*stored_eof = (\d+)", said):
        return f"a truncated HDF5 file: {int(sizes[1]):,} of {int(sizes[2]):,} bytes are there"
    return f"a damaged HDF5 file ({said or type(e).__name__})"


def node(group: Any, path: str) -> Any:
    """What lies at a path, or None; a link that leaves the file is refused unopened."""
    import h5py

    for part in path.strip("/").split("/"):
        if not isinstance(group, h5py.Group) or group.get(part, getlink=True) is None:
            return None
        _stay_inside(group, part)
        group = group[part]
    return group


def _stay_inside(group: Any, name: str) -> None:
    import h5py

    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise CorruptFile(f"{group.name.rstrip('/')}/{name}", f"is a link into another file ({link.filename!r})",
                          "canon reads one file at a time and follows no link out of it.")  # fmt: skip


def walk(group: Any) -> Iterator[tuple[str, Any]]:
    """(path, dataset) of everything below a group, in the order the file lists it; cycles are walked once."""
    import h5py

    seen: set[int] = set()
    stack = [("", group)]
    while stack:
        at, here = stack.pop()
        if isinstance(here, h5py.Dataset):
            yield at, here
        if not isinstance(here, h5py.Group):
            continue
        address = h5py.h5o.get_info(here.id).addr
        if address in seen:
            continue
        seen.add(address)
        below = []
        for name in here:
            _stay_inside(here, name)
            below.append((f"{at}/{name}" if at else name, here[name]))
        stack += reversed(below)


def bounded(dataset: Any) -> None:
    """Raise CorruptFile for a dataset that declares more than its file can hold."""
    if dataset.shape is None:
        return
    declared, size = dataset.size * dataset.dtype.itemsize, dataset.file.id.get_filesize()
    packed = dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters() > 0
    if declared > size * (MOST_PACKED if packed else 1):
        said = f"declares {declared:,} bytes in a file of {size:,}"
        raise CorruptFile(dataset.name, said, "The file is damaged or made to harm.")


def load(dataset: Any) -> Array:
    """A tensor's stored values, in the machine's byte order; CorruptFile for what cannot be one.

    One read and no copy. The declared size is checked against the file's before memory is asked for.
    """
    where = dataset.name
    if dataset.external:
        raise CorruptFile(where, f"keeps its values in another file ({dataset.external[0][0]!r})",
                          "canon reads one file at a time.")  # fmt: skip
    if dataset.is_virtual:
        raise CorruptFile(where, "is a virtual dataset, whose values lie in other files", "canon reads one file at a time.")
    if dataset.shape is None or dataset.dtype.kind != "f":
        raise CorruptFile(
            where, f"holds {dataset.dtype if dataset.shape is not None else 'nothing'}, not floating point numbers"
        )
    bounded(dataset)
    values: Array = dataset[()]
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
