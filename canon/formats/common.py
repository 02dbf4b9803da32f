"""What the formats share in reading: HDF5 with care, strings, and the request.

Nothing in a file is trusted: links that leave the file, storage outside it and sizes it cannot hold are refused before
anything is read, and nothing it contains is run.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, CorruptFile, ReadError
from canon.formats.common_heap import check_heaps
from canon.ops.base import Array
from canon.precision import from_bfloat16

MOST_PACKED = 1100
"""No HDF5 filter in use packs better than deflate, whose limit is 1032 to 1."""
FREELY = 1 << 28
"""Bytes up to which whatever a filter can pack is unpacked."""
PACKS = 60
"""How much better than plain more than that may be packed: weights hardly pack at all, and zeros a thousandfold."""
MOST_OBJECTS, DEEPEST, MOST_LINKS = 100_000, 200, 16
DEFLATE = 1


@dataclass(frozen=True)
class Request:
    """What the caller asks of a file: which checkpoint, a Keras configuration lent to it, what nonlinearity;
    beside: the configuration that lies in the file's folder (config.json, as transformers writes it), if one does;
    options: what else was told of a network whose file does not say it (families.recognise); lent: whether a graph is lent.
    """

    checkpoint: str | None = None
    keras_config: Mapping[str, Any] | None = None
    activation: str | None = None
    beside: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    lent: bool = False


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


_TRIPS = (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, EOFError, zlib.error)
"""What h5py raises on damaged files."""


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
    except _TRIPS as e:
        raise CorruptFile("", _damage(path, e), "Fetch the file again, or compare its size with the original.") from e


def _damage(path: Path, e: Exception) -> str:
    said = " ".join(str(e).split())
    if sizes := re.search(r"truncated file: eof = (\d+).*stored_eof = (\d+)", said):
        return f"a truncated HDF5 file: {int(sizes[1]):,} of {int(sizes[2]):,} bytes are there"
    return f"a damaged HDF5 file ({said or type(e).__name__})"


def node(group: Any, path: str) -> Any:
    """What lies at a path, or None; a link that leaves the file is refused unopened."""
    for part in path.strip("/").split("/"):
        group = _child(group, part, MOST_LINKS)
        if group is None:
            return None
    return group


def _child(group: Any, name: str, hops: int) -> Any:
    """What a name in a group leads to, or None. Soft links are followed here, for the library would follow them out."""
    import h5py

    link = group.get(name, getlink=True) if isinstance(group, h5py.Group) and name not in ("", ".") else None
    where = "" if link is None else f"{group.name.rstrip('/')}/{name}"
    if isinstance(link, h5py.ExternalLink):
        raise CorruptFile(where, f"is a link into another file ({link.filename!r})",
                          "canon reads one file at a time and follows no link out of it.")  # fmt: skip
    if not isinstance(link, h5py.SoftLink):
        return None if link is None else group[name]
    if hops == 0:
        raise CorruptFile(where, "is a link that leads in a circle, or from link to link to link")
    here = group.file if link.path.startswith("/") else group
    for part in link.path.split("/"):
        if part not in ("", "."):
            here = _child(here, part, hops - 1)
    if here is None:
        raise CorruptFile(where, f"is a link to {link.path!r}, which is not there")
    return here


def walk(group: Any) -> Iterator[tuple[str, Any]]:
    """(path, dataset) of everything below a group, in the order the file lists it; cycles are walked once.

    Raises CorruptFile for more than any network has.
    """
    import h5py

    seen: set[int] = set()
    stack = [("", group)]
    met = 0
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
        met += len(here)
        if met > MOST_OBJECTS or at.count("/") > DEEPEST:
            raise CorruptFile("", f"holds more than {MOST_OBJECTS:,} groups and datasets, or groups {DEEPEST} deep",
                              "No network is kept so.")  # fmt: skip
        below = []
        for name in here:
            found = _child(here, name, MOST_LINKS)
            if found is not None:
                below.append((f"{at}/{name}" if at else name, found))
        stack += reversed(below)


def bounded(dataset: Any) -> None:
    """Raise CorruptFile for a dataset that declares more than its file can hold, or is packed to unpack without end."""
    if dataset.shape is None:
        return
    properties, chunk = dataset.id.get_create_plist(), dataset.chunks
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())] if chunk is not None else []
    declared, size, item = dataset.size * dataset.dtype.itemsize, dataset.file.id.get_filesize(), dataset.dtype.itemsize
    most = size * MOST_PACKED if filters else size
    if declared > FREELY:  # so large, numbers pack a little: what packs better was made to harm
        most = min(most, dataset.id.get_storage_size() * PACKS)
    if declared > most or (chunk is not None and item * prod(chunk) > max(FREELY, 2 * declared)):
        said = f"declares {max(declared, item * prod(chunk or ())):,} bytes in a file of {size:,}"
        raise CorruptFile(dataset.name, said, "The file is damaged or made to harm.")
    if len(set(filters)) < len(filters):
        raise CorruptFile(dataset.name, "is packed twice over", "The file is made to harm.")
    if DEFLATE in filters:
        _check_packed(dataset, item * prod(chunk or ()))


def _check_packed(dataset: Any, whole: int) -> None:
    """Raise CorruptFile for a chunk that unpacks to more than a chunk: the library would unpack all of it."""
    spare = whole + 64  # a checksum may follow
    for i in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(i)
        if info.size * MOST_PACKED <= FREELY or info.filter_mask:
            continue
        _, packed = dataset.id.read_direct_chunk(info.chunk_offset)
        if len(zlib.decompressobj().decompress(packed, spare + 1)) > spare:
            raise CorruptFile(dataset.name, f"holds a chunk of more than its {whole:,} bytes", "The file is made to harm.")


def check_string(dataset: Any) -> None:
    """Raise CorruptFile for one string of variable length that says it is longer than its file."""
    at = dataset.id.get_offset() if dataset.shape == () else None
    if at is None:
        return
    with Path(dataset.file.filename).open("rb") as file:
        file.seek(at + dataset.file.userblock_size)
        length = int.from_bytes(file.read(4), "little")
    if length > dataset.file.id.get_filesize():
        raise CorruptFile(dataset.name, f"declares a string of {length:,} bytes", "The file is damaged or made to harm.")


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether values are floating point numbers; two bytes of no type are bfloat16, which HDF5 has no word for."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2)


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
    if dataset.shape is None or not is_real(dataset.dtype):
        raise CorruptFile(
            where, f"holds {dataset.dtype if dataset.shape is not None else 'nothing'}, not floating point numbers"
        )
    bounded(dataset)
    values: Array = dataset[()]
    if values.dtype.kind == "V":
        return from_bfloat16(values.view("<u2"))
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
