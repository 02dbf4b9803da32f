"""Writing whole or not at all: new files, and copies of a source with its tensors replaced."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, UsageError, WriteError
from canon.formats.common import node
from canon.formats.common_layout import Place, Stack, as_place, region, to_memory, to_stored
from canon.formats.common_norm import lengths_of
from canon.ops.base import Array
from canon.precision import BFLOAT16, as_stored, to_bfloat16
from canon.run import Run


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

    with replacing(path) as temporary:
        shutil.copyfile(source, temporary)
        with h5py.File(temporary, "r+", locking=False) as f:
            for at, (name, values) in outgoing(run, source, lambda at: getattr(node(f, at), "shape", None)).items():
                _put(node(f, at), name, values())
            for group in drop:
                if group in f:
                    del f[group]
            if "canon_action" in f:
                del f["canon_action"]
            write_arrays(f, "canon_action", actions)


Outgoing = dict[str, tuple[str, Callable[[], Array]]]
"""Path in the file -> the tensor it is named after, and what is to be stored there."""


def outgoing(run: Run, source: Path, shape_of: Callable[[str], Sequence[int] | None]) -> Outgoing:
    """What goes where in a copy of the file that a run was read from, whatever its layout; not yet in the stored type.

    shape_of: of the source's arrays, None for what is not there. Raises WriteError where they do not hold the same tensors.
    """
    tensors = run.network.tensors
    for name in {**run.layout, **tensors}:
        if name not in tensors or name not in run.layout:
            raise WriteError("", f"the network and {source} do not hold the same tensors: {name!r}",
                             "Write it in canon's own format.")  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {}
    pieces: dict[str, list[tuple[str, Place, Array]]] = {}
    for name, stored in run.layout.items():
        parts, along = (stored.parts, stored.along) if isinstance(stored, Stack) else ((as_place(stored),), 0)
        at = 0
        for place in parts:
            for path in (place.path, *place.also):
                shape = shape_of(path)
                if shape is None:
                    raise WriteError("", f"the source has no dataset {path!r} any more")
                shapes[path] = tuple(shape)
            tensor = tensors[name]
            if isinstance(stored, Stack):
                n = to_memory(np.broadcast_to(np.float32(0), shapes[place.path]), place).shape[along]
                tensor = tensor[(*(slice(None),) * along, slice(at, at + n))]
                at += n
            for path in (place.path, *place.also):
                pieces.setdefault(path, []).append((name, place, tensor))
    out: Outgoing = {path: (found[0][0], partial(_assembled, path, found, shapes[path])) for path, found in pieces.items()}
    for path, lengths in run.lengths.items():
        if path in out:
            if shape_of(lengths.path) is None:
                raise WriteError("", f"the source has no dataset {lengths.path!r} any more")
            name, values = out[path]
            out[lengths.path] = (name, partial(_lengths, values, lengths.shape))
    return out


def _lengths(kernel: Callable[[], Array], shape: tuple[int, ...]) -> Array:
    return lengths_of(kernel(), shape)


def _assembled(path: str, pieces: Sequence[tuple[str, Place, Array]], shape: tuple[int, ...]) -> Array:
    """A stored array from the tensors that are parts of it."""
    if sum(t.size * (1 + place.halves) for _, place, t in pieces) != prod(shape):
        name, _, t = pieces[0]
        raise WriteError("", f"tensor {name!r} of shape {t.shape} does not go into {path!r} of shape {shape}")
    if len(pieces) == 1:
        return to_stored(pieces[0][2], pieces[0][1], shape)
    whole = np.empty(shape, pieces[0][2].dtype)
    for _, place, tensor in pieces:
        here = whole[region(place)]
        here[...] = to_stored(tensor, place, here.shape)
    return whole


def fitted(name: str, values: Array, kind: str) -> Array:
    """Values in the type they are stored in, by its name; bfloat16 as its bits. WriteError where they do not fit it."""
    with np.errstate(over="ignore", under="ignore"):  # the one cast on the way out
        stored = as_stored(values, kind)
    narrower = kind == BFLOAT16 or stored.itemsize < values.itemsize
    if narrower and not np.array_equal(np.isfinite(stored), np.isfinite(values)):
        raise WriteError("", f"tensor {name!r} holds values beyond the range of {kind}, the source's type",
                         "Write it in canon's own format.")  # fmt: skip
    return to_bfloat16(values) if kind == BFLOAT16 else stored


def _put(dataset: Any, name: str, stored: Array) -> None:
    half = dataset.dtype.kind == "V"
    values = fitted(name, stored, BFLOAT16 if half else str(dataset.dtype.newbyteorder("=")))
    dataset[...] = values.astype("<u2").view(dataset.dtype) if half else values


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
