"""Which activations to compare, from what the caller gives: named arrays, probes from a file, what files record, or noise.

The first that applies, for all sides alike: arrays named; a probe file named, on which networks are run; activations that
every side has recorded on probes of one name; probes that a side stores, on which networks are run; seeded noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from canon.errors import CanonError, UsageError
from canon.formats.arrays import Arrays, arrays, recorded
from canon.network import Network
from canon.run import Run
from canon.similarity.activations import Computed, Source, Stored
from canon.similarity.probes import Probes, from_file, noise, stored
from canon.similarity.values import Positions

ODD = ("tanh", "softsign", "hard_tanh", "sin", "erf")
"""Activations of which a unit's negative is the same unit, seen from behind."""


@dataclass(frozen=True)
class Given:
    """One side as named: its file, and the network where it holds one that was read."""

    path: str
    run: Run | None


@dataclass(frozen=True)
class Request:
    """What of it to take.

    probes: FILE or FILE:DATASET; activations: names of arrays, of every side, or of each in turn; layers: patterns;
    channels: "first" or "last", for arrays whose file does not say; samples: at most so many; seed: of noise.
    """

    probes: str | None = None
    activations: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    positions: Positions = "samples"
    channels: str | None = None
    samples: int | None = None
    seed: int = 0


def sources(given: Sequence[Given], request: Request) -> list[Source]:
    """A source for each side, all on the same samples. Raises UsageError, ReadError."""
    if request.activations:
        if request.probes is not None:
            raise UsageError("--probes", "activations are named: nothing is run", "Give --activations or --probes.")
        names = [request.activations[min(i, len(request.activations) - 1)] for i in range(len(given))]
        return [
            _stored(arrays(side.path, name), request, f"{name}, as stored") for side, name in zip(given, names, strict=True)
        ]
    runs = [side.run for side in given if side.run is not None]
    if request.probes is not None:
        for side in given:
            if side.run is None:
                raise UsageError(
                    side.path, "holds no network to run on probes", "Leave --probes out to compare what is stored."
                )
        return _run(runs, from_file(request.probes), request)
    if len(runs) < len(given):
        return [_recorded_or_table(side, request) for side in given]
    kept = [recorded(run.path, run.checkpoint) for run in runs]
    common = [probe for probe in kept[0] if all(probe in found for found in kept)]
    if common:
        probe = _one(common, "activations on several probes are recorded", "--activations activations/STEP/NAME names one.")
        return [_stored(found[probe], request, f"recorded on {probe}", run) for found, run in zip(kept, runs, strict=True)]
    probes: dict[str, Probes] = {}
    for run in runs:
        probes = {**stored(run), **probes}  # of two by one name the first side's; the report says whose
    if probes:
        name = _one(list(probes), "several probes are stored", "--probes FILE:NAME names one.")
        return _run(runs, probes[name], request)
    return _run(runs, noise(runs[0].network, request.samples, request.seed), request)


def odd_layers(network: Network, names: Sequence[str]) -> frozenset[str]:
    """Those of the values that an odd activation writes."""
    return frozenset(v for v in names if v in network.writer and network.writer[v].kind in ODD)


def _run(runs: Sequence[Run], probes: Probes, request: Request) -> list[Source]:
    probes = probes.first(request.samples)
    for run in runs:
        if run.graph == "none":
            raise UsageError(run.path, "holds tensors without a graph: it cannot be run",
                             "Lend it one with --architecture, or name stored activations: --activations NAME.")  # fmt: skip
    return [Computed(run, probes, request.layers, request.positions) for run in runs]


def _stored(found: Arrays, request: Request, origin: str, run: Run | None = None) -> Source:
    about = {} if run is None else {"format": run.format, "checkpoint": run.checkpoint}
    outputs = frozenset() if run is None else frozenset(run.network.outputs)
    return Stored(found, origin, request.layers, request.positions, request.channels, request.samples, about, outputs)


def _recorded_or_table(side: Given, request: Request) -> Source:
    """Where a side is no network: its arrays; and of a network beside it, what is recorded of it."""
    if side.run is None:
        return _stored(arrays(side.path), request, "as stored")
    found = recorded(side.run.path, side.run.checkpoint)
    if not found:
        raise UsageError(
            side.path,
            "is a network without recorded activations, and the other side is no network",
            "Record it on the same samples (canon record), or name arrays: --activations NAME.",
        )
    probe = _one(list(found), "activations on several probes are recorded", "--activations NAME names arrays.")
    return _stored(found[probe], request, f"recorded on {probe}", side.run)


def _one(names: Sequence[str], what: str, hint: str) -> str:
    if len(names) > 1:
        raise UsageError("", f"{what}: {', '.join(names)}", hint)
    return names[0]


def is_table(path: str) -> bool:
    """Whether a file can only hold arrays, and no network."""
    return Path(path).suffix.lower() in (".csv", ".tsv")


def only_arrays(path: str) -> bool:
    """Whether a file that is no network by its content is an archive of arrays, to be read as activations."""
    if Path(path).suffix.lower() != ".npz":
        return False
    try:
        return bool(arrays(path).entries)
    except CanonError:
        return False
