"""Probes: the samples that networks are run on, from a file, from a run that stores them, or seeded noise, said to be noise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from canon.errors import CanonError, MismatchError, UnsupportedOp, UsageError
from canon.formats.arrays import Arrays, arrays
from canon.forward import probe_inputs
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run
from canon.similarity.layer import check_finite

NOISE = 1000
"""Samples of noise, unless told otherwise."""
_DRAW = 64
"""Samples of noise drawn from one seed: what they are does not depend on the size of a batch."""


class Inputs(Protocol):
    """Where rows of inputs come from."""

    def rows(self, network: Network, first: int, last: int) -> dict[str, Array]:
        """Samples first to last (exclusive) for a network, by the names of its inputs."""


@dataclass(frozen=True)
class Probes:
    """Samples to run networks on.

    label: in words, for the report; name: a word for files; samples: how many; ids: their names where they are known;
    inputs: where they come from; noise: whether they are drawn and not real.
    """

    label: str
    name: str
    samples: int
    ids: tuple[str, ...] | None
    inputs: Inputs
    noise: bool = False

    def first(self, samples: int | None) -> Probes:
        """The first samples only; all where None."""
        if samples is None or samples >= self.samples:
            return self
        return replace(self, samples=samples, ids=None if self.ids is None else self.ids[:samples])


def noise(network: Network, samples: int | None, seed: int) -> Probes:
    """Normal noise of the right shapes, seeded; whole numbers where tokens are read."""
    count = NOISE if samples is None else samples
    return Probes(f"noise: {count:,} seeded normal samples", "noise", count, None, _Noise(network, seed), True)


@dataclass(frozen=True)
class _Noise:
    like: Network
    seed: int

    def rows(self, network: Network, first: int, last: int) -> dict[str, Array]:
        blocks = []
        try:
            for block in range(first // _DRAW, -(-last // _DRAW)):
                blocks.append(probe_inputs(self.like, np.random.default_rng([self.seed, block]), _DRAW, 1.0))
        except UnsupportedOp as e:
            raise UsageError("", f"noise cannot be drawn: {e.what}", "Give real samples: --probes FILE.") from e
        start = first // _DRAW * _DRAW
        drawn = [np.concatenate([b[v] for b in blocks])[first - start : last - start] for v in self.like.inputs]
        return _named(drawn, list(self.like.inputs), network)


def from_file(word: str) -> Probes:
    """Probes that FILE or FILE:DATASET names: an array of HDF5, .npz or .csv; for several inputs, a group of arrays so named.

    Raises ReadError and UsageError with the path in front.
    """
    path, under = _split(word)
    whole = arrays(path)
    if any(name.startswith("probes/") for name in whole.entries) and (under is None or f"probes/{under}" in whole.entries):
        found = arrays(path, "probes" if under is None else f"probes/{under}")  # a file of canon's own
    else:
        found = whole if under is None else arrays(path, under)
    return _probes(found, f"{Path(path).name}{f':{under}' if under else ''}")


def _probes(found: Arrays, label: str) -> Probes:
    counts = {entry.shape[0] for entry in found.entries.values()}
    if len(counts) > 1:
        raise UsageError(found.path, "holds arrays of different sample counts",
                         f"Name one as FILE:DATASET: {', '.join(list(found.entries)[:6])}.")  # fmt: skip
    ids = next((entry.ids for entry in found.entries.values() if entry.ids is not None), None)
    name = next(iter(found.entries)) if len(found.entries) == 1 else label.partition(":")[2] or Path(found.path).stem
    return Probes(label, name.rpartition("/")[2] or name, counts.pop(), ids, _Filed(found))


@dataclass(frozen=True)
class _Filed:
    found: Arrays

    def rows(self, network: Network, first: int, last: int) -> dict[str, Array]:
        names = list(self.found.entries)
        if len(names) == 1 and len(network.inputs) == 1:
            wanted = {next(iter(network.inputs)): names[0]}
        elif set(network.inputs) <= set(names):
            wanted = {v: v for v in network.inputs}
        else:
            raise UsageError(
                self.found.path,
                f"holds {', '.join(names[:6])}; the network's inputs are {', '.join(network.inputs)}",
                "Name the dataset as FILE:DATASET"
                + (", or name the arrays as the inputs." if len(network.inputs) > 1 else "."),
            )
        out: dict[str, Array] = {}
        with self.found.opened() as read:
            for value, name in wanted.items():
                x = read(self.found.prefix + name, first, last)
                if x.dtype.kind == "f":
                    flat = x.reshape(len(x), -1)
                    if not np.isfinite(flat.sum(dtype=np.float64)):
                        try:
                            check_finite(f"probes {name}", flat, first=first)
                        except CanonError as e:
                            raise e.at(self.found.path) from e
                out[value] = x
        return out


def stored(run: Run) -> dict[str, Probes]:
    """The probes that a run of canon's own format stores, by name."""
    if not run.probes:
        return {}
    found = arrays(run.path, "probes")
    out: dict[str, Probes] = {}
    for name in dict.fromkeys(n.partition("/")[0] for n in found.entries):
        below = arrays(run.path, f"probes/{name}")
        out[name] = replace(_probes(below, f"{name}, stored in {Path(run.path).name}"), name=name)
    return out


def _named(values: Sequence[Array], names: Sequence[str], network: Network) -> dict[str, Array]:
    """Inputs made for one network, for another whose inputs are as many."""
    if set(names) == set(network.inputs):
        return dict(zip(names, values, strict=True))
    if len(values) != len(network.inputs):
        raise MismatchError("", f"one network has {len(values)} inputs and the other {len(network.inputs)}",
                            "Give probes that name them: --probes FILE.")  # fmt: skip
    return dict(zip(network.inputs, values, strict=True))


def _split(word: str) -> tuple[str, str | None]:
    """FILE:DATASET into file and dataset; a file of the whole name wins, and a drive letter is no file."""
    path, colon, under = word.rpartition(":")
    if not colon or os.path.exists(word) or (len(path) == 1 and path.isalpha()) or not path:
        return word, None
    return path, under


def same_samples(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> str:
    """How the names of two sides' samples differ, in words; "" where they are the same or a side has none."""
    if a is None or b is None or a == b:
        return ""
    if set(a) == set(b) and len(a) == len(b):
        at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return f"the samples stand in another order: sample {at} is {a[at]!r} in one and {b[at]!r} in the other"
    only = next((i for side, other in ((a, set(b)), (b, set(a))) for i in side if i not in other), None)
    return (
        "a sample stands in one side more often" if only is None else f"the samples are not the same: {only!r} is in one only"
    )
