"""Run: what one file holds, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from canon.network import Network
from canon.ops.base import Array


@dataclass(frozen=True)
class Stored:
    """Where a tensor lives in its file and how to put it back.

    path: dataset path or key; axes: the permutation that made the tensor from the stored array,
    tensor = stored.reshape(shape).transpose(axes) (None: as stored); shape: a reshape before that (None: none).
    """

    path: str
    axes: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Lengths:
    """Where a file keeps the lengths of a kernel under weight norm, apart from its directions, and their shape."""

    path: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One checkpoint of a file, ready to compare.

    path, format: where it came from ("keras-2 hdf5", "canon hdf5", "hdf5 tensors" ...);
    network: graph and tensors of the chosen checkpoint; checkpoint: its step ("" where there are none);
    checkpoints: all steps in order; layout: tensor -> Stored, for writing a copy of the source;
    graph: how the graph is known: "config", "stored", "borrowed", "chain" (proved by shapes), "family" (known
    by names and shapes), "none";
    activations_known: whether the nonlinearities are recorded;
    probes: name -> inputs stored with the run; actions: what led here; notes: one line each, worth telling;
    alternatives: other networks that the same file may mean, each as likely as `network` (kernels flipped or not);
    readings: a few words on each ("" or left out: as a note tells); whole: the network with what its file says beside it
    (how its inputs are normalised): where both files of a comparison have one, it counts;
    lengths: path of a kernel's directions -> its lengths, where the file keeps the two apart (weight norm);
    kept: tensor -> the arrays of the file, by path, from which it was computed and which it does not determine.
    """

    path: str
    format: str
    network: Network
    checkpoint: str = ""
    checkpoints: tuple[str, ...] = ()
    layout: Mapping[str, Stored] = field(default_factory=dict)
    graph: str = "config"
    activations_known: bool = True
    probes: Mapping[str, Array] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    alternatives: tuple[Network, ...] = ()
    readings: tuple[str, ...] = ()
    whole: Network | None = None
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def with_network(self, network: Network, **changes: Any) -> Run:
        """The same run with another network (moved weights, borrowed graph)."""
        same = {t: k for t, k in self.kept.items() if network.tensors.get(t) is self.network.tensors.get(t)}
        return replace(self, network=network, **{"kept": same, **changes})
