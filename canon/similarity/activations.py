"""Where activations come from: recorded in a file, or computed by running a network on probes; read in batches either way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CanonError, UsageError
from canon.formats.arrays import Arrays
from canon.forward import steps
from canon.ops.base import Array
from canon.run import Run
from canon.similarity.layer import rounding_of
from canon.similarity.probes import Probes
from canon.similarity.values import Positions, arranged, chosen, layers, size, unit_axes


@dataclass(frozen=True)
class Extent:
    """What one layer gives for each sample: positions x units; rounding: u of the type its values are kept in."""

    positions: int
    units: int
    rounding: float = 2.0**-53


class Source(ABC):
    """One side's activations.

    path: the file; origin: in words, where the values come from; samples: how many; ids: their names where known;
    layers: name -> Extent, in their order; outputs: those that are the network's outputs; cost: bytes a sample takes while
    it is computed; positions: what places of images are; about: what the file is, for the report.
    """

    path: str
    origin: str
    samples: int
    ids: tuple[str, ...] | None
    layers: Mapping[str, Extent]
    outputs: frozenset[str]
    cost: int
    positions: Positions
    about: Mapping[str, Any]

    @abstractmethod
    def batches(self, names: Sequence[str], batch: int) -> Iterator[dict[str, Array]]:
        """Rows (samples x positions, units) of the named layers, `batch` samples at a time, in order."""


class Computed(Source):
    """Activations that a network gives on probes.

    patterns: which values (see `chosen`); shapes: of every value chosen, one sample first; axes: of their units.
    """

    def __init__(self, run: Run, probes: Probes, patterns: Sequence[str] = (), positions: Positions = "samples") -> None:
        network = run.network
        self.run, self.probes, self.positions = run, probes, positions
        self.path, self.origin = run.path, f"computed on {probes.label}"
        self.samples, self.ids = probes.samples, probes.ids
        self.about = {"format": run.format, "checkpoint": run.checkpoint}
        names = chosen([*network.inputs, *(op.output for op in network.ops)], layers(network), patterns, run.path)
        found = {v: x.shape for v, x in self._run(0, 1)}
        self.axes = unit_axes(network)
        self.shapes = {v: found[v] for v in names}
        self.layers = {v: Extent(*size(found[v], self.axes[v], positions)) for v in names}
        self.outputs = frozenset(network.outputs) & frozenset(names)
        self.cost = 8 * sum(prod(shape) for shape in found.values())

    def batches(self, names: Sequence[str], batch: int) -> Iterator[dict[str, Array]]:
        """See Source."""
        for values in self.values(names, batch):
            yield {v: arranged(x, self.axes[v], self.positions) for v, x in values.items()}

    def values(self, names: Sequence[str], batch: int) -> Iterator[dict[str, Array]]:
        """The named values as the network gives them, (samples, ...)."""
        wanted = set(names)
        for first in range(0, self.samples, batch):
            yield {v: x for v, x in self._run(first, min(first + batch, self.samples)) if v in wanted}

    def _run(self, first: int, last: int) -> Iterator[tuple[str, Array]]:
        try:
            with np.errstate(all="ignore"):  # what overflows is found by name, when it is summed
                yield from steps(self.run.network, self.probes.inputs.rows(self.run.network, first, last))
        except CanonError as e:
            raise (e if e.where.startswith(self.run.path) else e.at(self.run.path)) from e


class Stored(Source):
    """Activations kept in a file, a layer an array."""

    def __init__(
        self,
        found: Arrays,
        origin: str,
        patterns: Sequence[str] = (),
        positions: Positions = "samples",
        channels: str | None = None,
        samples: int | None = None,
        about: Mapping[str, Any] | None = None,
        outputs: frozenset[str] = frozenset(),
    ) -> None:
        self.found, self.origin, self.positions = found, origin, positions
        self.path, self.about = found.path, about or {}
        names = chosen(list(found.entries), list(found.entries), patterns, found.path)
        self._axes = {name: _axis(found, name, channels, positions) for name in names}
        counts = {name: found.entries[name].shape[0] for name in names}
        if len(set(counts.values())) > 1:
            few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise UsageError(self.path, f"{few} has {counts[few]:,} samples and {many} {counts[many]:,}",
                             "Name the arrays that belong together with --activations or --layers.")  # fmt: skip
        whole = counts[names[0]]
        self.samples = whole if samples is None else min(samples, whole)
        ids = {found.entries[name].ids for name in names if found.entries[name].ids is not None}
        if len(ids) > 1:
            raise UsageError(self.path, "its layers name their samples differently", "Record them together.")
        named = ids.pop() if ids else None
        self.ids = None if named is None else named[: self.samples]
        self.layers = {
            name: Extent(*size(found.entries[name].shape, self._axes[name], positions), rounding_of(found.entries[name].dtype))
            for name in names
        }
        self.outputs = frozenset(names) & outputs
        self.cost = 8 * sum(e.positions * e.units for e in self.layers.values())

    def batches(self, names: Sequence[str], batch: int) -> Iterator[dict[str, Array]]:
        """See Source."""
        try:
            with self.found.opened() as read:
                for first in range(0, self.samples, batch):
                    last = min(first + batch, self.samples)
                    yield {
                        name: arranged(read(self.found.prefix + name, first, last), self._axes[name], self.positions)
                        for name in names
                    }
        except CanonError as e:
            raise (e if e.where.startswith(self.path) else e.at(self.path)) from e


def _axis(found: Arrays, name: str, channels: str | None, positions: Positions) -> int | None:
    """The axis of units of a stored array; UsageError where it has several axes and nothing says which."""
    entry = found.entries[name]
    rank = len(entry.shape)
    if entry.units is not None:
        return entry.units
    if rank <= 2 or (positions == "units" and channels is None):
        return None
    if channels is None:
        raise UsageError(
            f"{Path(found.path).name}: {name}",
            f"of shape {entry.shape}, and the file does not say which axis is that of its units",
            "Say --channels first or --channels last, or --positions units to flatten it.",
        )
    return 1 if channels == "first" else rank - 1
