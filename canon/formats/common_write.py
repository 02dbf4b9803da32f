"""Writing whole or not at all: new files, and copies of a source with its tensors replaced."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, UsageError, WriteError
from canon.formats.common import node
from canon.formats.common_layout import Place, Stack, as_place, to_memory, to_stored
from canon.ops.base import Array
from canon.run import Run, Stored


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file in the same folder: it takes the place of `path` when the block ends well, and goes otherwise."""
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise WriteError("", f"the folder {path.parent} does not exist")
    if path.exists() and not path.is_file():
        raise WriteError("", "is there already and is not a file")
    temporary = path.parent / f".{path.name[:200]}.{uuid.uuid4().hex}.tmp"
    try:
        temporary.open("xb").close()
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except CanonError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as e:
        said = e.strerror if isinstance(e, OSError) and e.strerror else " ".join(str(e).split())
        raise WriteError("", f"cannot be written: {said}", "What was there before is untouched.") from e
    finally:
        temporary.unlink(missing_ok=True)


def write_copy(
    run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop: Sequence[str] = ()
) -> None:
    """A copy of the HDF5 file the run was read from, with its tensors replaced.

    actions: space -> name -> array, stored under /canon_action; drop: groups to leave out.
    Raises WriteError where the network no longer has the file's tensors, or a value does not fit the stored type.
    """
    import h5py

    tensors = run.network.tensors
    for name in {**run.layout, **tensors}:
        if name not in tensors or name not in run.layout:
            raise WriteError("", f"the network and {source} do not hold the same tensors: {name!r}",
                             "Write it in canon's own format.")  # fmt: skip
    with replacing(path) as temporary:
        shutil.copyfile(source, temporary)
        with h5py.File(temporary, "r+", locking=False) as f:
            for name, place in run.layout.items():
                _overwrite(f, name, tensors[name], place)
            for group in drop:
                if group in f:
                    del f[group]
            if "canon_action" in f:
                del f["canon_action"]
            write_arrays(f, "canon_action", actions)


def _overwrite(f: Any, name: str, tensor: Array, place: Stored) -> None:
    if not isinstance(place, Stack):
        _put(f, name, tensor, as_place(place))
        return
    at = 0
    for part in place.parts:
        dataset = node(f, part.path)
        rows = 0 if dataset is None else len(to_memory(np.broadcast_to(np.float32(0), dataset.shape), part))
        _put(f, name, tensor[at : at + rows], part)
        at += rows


def _put(f: Any, name: str, tensor: Array, place: Place) -> None:
    dataset = node(f, place.path)
    if dataset is None:
        raise WriteError("", f"the source has no dataset {place.path!r} any more")
    shape = tuple(dataset.shape)
    if tensor.size * (1 + place.halves) != dataset.size:
        raise WriteError("", f"tensor {name!r} of shape {tensor.shape} does not go into {place.path!r} of shape {shape}")
    stored = to_stored(tensor, place, shape)
    with np.errstate(over="ignore"):
        values = _cast(stored, dataset.dtype)  # the one cast on the way out
    if (
        values.dtype.kind == "f"
        and values.itemsize < stored.itemsize
        and not np.array_equal(np.isfinite(values), np.isfinite(stored))
    ):
        raise WriteError("", f"tensor {name!r} holds values beyond the range of {dataset.dtype}, the source's type",
                         "Write it in canon's own format.")  # fmt: skip
    dataset[...] = values


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind != "V":
        return values.astype(dtype)
    bits = np.ascontiguousarray(values, "<f4").view("<u4")  # bfloat16: the upper half, rounded to nearest, ties to even
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2").view(dtype)


def write_arrays(f: Any, root: str, arrays: Mapping[str, Mapping[str, Array]]) -> None:
    """Arrays under /root/<first>/<second>."""
    for space, parts in arrays.items():
        for name, values in parts.items():
            check_name(f"{space}/{name}")
            f.create_dataset(f"{root}/{space}/{name}", data=np.ascontiguousarray(values), track_times=False)


def check_name(name: str) -> None:
    """Raise UsageError for a name that HDF5 would read as another path."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise UsageError("", f"{name!r} cannot be the name of a dataset")
