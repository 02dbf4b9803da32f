"""Activations into a file of canon's own: what a run gives on probes, stored with the run and the probes.

    /probes/<name>[/<input>]             inputs, (samples, ...), attribute sample_ids where known
    /activations/<step>/<probe>/<value>  (samples, units, ...), attributes sample_ids and checkpoint

The file appears whole or not at all, and the source is only read.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, NumericError, UsageError
from canon.formats import canon_hdf5
from canon.formats.common_arrays import SAMPLE_IDS, as_ids
from canon.formats.common_write import check_name, replacing
from canon.ops.base import Array
from canon.run import Run

Batch = tuple[Mapping[str, Array], Mapping[str, Array]]
"""Inputs and values of some samples, each (samples, ...); values with their units on axis 1."""


@dataclass(frozen=True)
class Recording:
    """What one checkpoint gives on one set of probes.

    step; probe: its name; samples; ids: their names where known; values: shape without samples of each value, units first;
    dtype: of the values as stored; batches: samples in their order.
    """

    step: str
    probe: str
    samples: int
    ids: tuple[str, ...] | None
    values: Mapping[str, tuple[int, ...]]
    dtype: np.dtype[Any]
    batches: Iterable[Batch]


def write(run: Run, path: Path, recordings: Sequence[Recording]) -> tuple[str, ...]:
    """Write the run with its recordings; of a file of canon's own, with all else that it holds. Returns notes.

    Raises WriteError, UsageError for probes of a name that other probes have, NumericError; with the path in front.
    """
    import h5py

    notes: list[str] = []
    try:
        with replacing(path) as temporary:
            if run.format == canon_hdf5.NAME:
                shutil.copyfile(run.path, temporary)
            else:
                canon_hdf5.write((run,), temporary, {})
            for recording in recordings:
                # groups first, in the oldest layout: the newer one, which alone takes long attributes, dates its groups
                with h5py.File(temporary, "r+", libver=("earliest", "v110"), locking=False) as f:
                    notes += _groups(f, recording)
                with h5py.File(temporary, "r+", libver=("v108", "v110"), locking=False) as f:
                    _fill(f, recording)
    except CanonError as e:
        raise (e if e.where.startswith(run.path) else e.at(str(path))) from e
    return tuple(notes)


def _groups(f: Any, recording: Recording) -> list[str]:
    root, notes = f"activations/{recording.step}/{recording.probe}", []
    for name in (recording.step, recording.probe):
        check_name(name)
        if "/" in name:
            raise UsageError("", f"{name!r} cannot be the name of probes: it would be a path", "Say --name.")
    if root in f:
        del f[root]
        notes.append(f"the activations of checkpoint {recording.step} on {recording.probe} took the place of earlier ones")
    for name in recording.values:
        check_name(name)
        f.require_group(f"{root}/{name}".rpartition("/")[0])
    f.require_group("probes")
    return notes


def _fill(f: Any, recording: Recording) -> None:
    known = f"probes/{recording.probe}" in f
    made: dict[str, Any] = {}
    root, first = f"activations/{recording.step}/{recording.probe}", 0
    for inputs, values in recording.batches:
        for name, x in inputs.items():
            at = f"probes/{recording.probe}" if len(inputs) == 1 else f"probes/{recording.probe}/{name}"
            x = x if x.dtype.kind == "f" else x.astype(np.float32 if np.abs(x).max(initial=0) < 1 << 24 else np.float64)
            if known:
                _check_same(f, at, x, first, recording)
                continue
            if at not in made:
                made[at] = _dataset(f, at, (recording.samples, *x.shape[1:]), x.dtype, recording.ids)
            made[at][first : first + len(x)] = x
        count = len(next(iter(inputs.values())))
        for name, y in values.items():
            at = f"{root}/{name}"
            if at not in made:
                made[at] = _dataset(f, at, (recording.samples, *recording.values[name]), recording.dtype, recording.ids)
            with np.errstate(over="ignore"):
                stored = y.astype(recording.dtype)
            if not np.isfinite(stored).all():
                raise NumericError(f"{recording.step}: {name}", f"activations that are not finite in {recording.dtype}",
                                   "Look for where the network overflows; --dtype float64 reaches further.")  # fmt: skip
            made[at][first : first + count] = stored
        first += count


def _dataset(f: Any, at: str, shape: tuple[int, ...], dtype: np.dtype[Any], ids: tuple[str, ...] | None) -> Any:
    made = f.create_dataset(at, shape=shape, dtype=dtype, track_times=False)
    if ids is not None:
        made.attrs[SAMPLE_IDS] = as_ids(ids)
    return made


def _check_same(f: Any, at: str, x: Array, first: int, recording: Recording) -> None:
    here = f[at] if at in f and hasattr(f[at], "shape") else None
    shape = (recording.samples, *x.shape[1:])
    if here is None or here.shape != shape or not np.array_equal(here[first : first + len(x)], x):
        raise UsageError("", f"holds other probes called {recording.probe!r} already", "Give these a name: --name.")
