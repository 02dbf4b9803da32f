"""Recording: a run's activations on probes, as canon's own files keep them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import UsageError
from canon.formats.canon_record import Batch, Recording, write
from canon.run import Run
from canon.similarity.activations import Computed
from canon.similarity.layer import check_finite
from canon.similarity.probes import Probes
from canon.similarity.sums import BATCH, Tell


def record(
    runs: Sequence[Run],
    probes: Probes,
    path: Path,
    *,
    name: str | None = None,
    patterns: Sequence[str] = (),
    dtype: str | None = None,
    tell: Tell = lambda text: None,
) -> dict[str, tuple[int, ...]]:
    """Run checkpoints of one network on probes and store what they give; the shapes of the values stored, samples first.

    runs: the checkpoints, of one file; name: of the probes in the file; patterns: which values, the layers by default;
    dtype: float32 or float64, float32 for networks that are kept in no more.
    Raises WriteError, UsageError, NotFinite.
    """
    kind = np.dtype(dtype or (np.float64 if runs[0].network.dtype.itemsize > 4 else np.float32))
    called = name or probes.name
    shapes: dict[str, tuple[int, ...]] = {}
    recordings = []
    for run in runs:
        source = Computed(run, probes, patterns)
        if not source.layers:
            raise UsageError(run.path, "has no layers to record", "Name values with --layers.")
        inner = {v: _units_first(shape, source.axes[v])[1:] for v, shape in source.shapes.items()}
        shapes = {v: (probes.samples, *shape) for v, shape in inner.items()}
        step = run.checkpoint or "0"
        batches = _batches(source, kind, f"checkpoint {step}", tell)
        recordings.append(Recording(step, called, probes.samples, probes.ids, inner, kind, batches))
    write(runs[-1], path, recordings)
    return shapes


def _batches(source: Computed, dtype: np.dtype[Any], which: str, tell: Tell) -> Iterator[Batch]:
    size = max(min(BATCH // max(source.cost, 1), 2048), 1)
    names = list(source.layers)
    for k, values in enumerate(source.values(names, size)):
        first = k * size
        last = min(first + size, source.samples)
        for v, x in values.items():
            if not np.isfinite(x.sum()):
                check_finite(f"{source.path}: {v}", x.reshape(len(x), -1), first=first)
        inputs = source.probes.inputs.rows(source.run.network, first, last)
        tell(f"{which}: {last:,} of {source.samples:,} samples")
        yield inputs, {v: np.moveaxis(_columns(x), source.axes[v] if x.ndim > 1 else 1, 1) for v, x in values.items()}


def _columns(x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 1 else x


def _units_first(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    if len(shape) == 1:
        return (shape[0], 1)
    rest = [n for i, n in enumerate(shape) if i not in (0, axis)]
    return (shape[0], shape[axis], *rest)
