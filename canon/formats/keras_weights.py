"""Keras's weights-only HDF5: layers in order and their tensors, no configuration, no nonlinearities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from canon import borrow
from canon.errors import CorruptFile
from canon.formats import common_chain as chain
from canon.formats import keras_groups
from canon.formats.common import Request, load
from canon.formats.common_layout import Place, kernel_axes, to_memory
from canon.formats.common_write import write_copy
from canon.formats.keras_groups import Entry, Era
from canon.ops.base import Array
from canon.run import Run, Stored

NAME = "keras weights hdf5"
EPSILON_TAKEN = 1e-3
ROLES = {
    "moving_mean": "mean",
    "moving_variance": "variance",
    "depthwise_kernel": "depthwise",
    "pointwise_kernel": "pointwise",
}
"""Roles in a chain's words, where they are not Keras's."""


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file holds Keras weights without a configuration."""
    return "model_config" not in f.attrs and bool({"layer_names", "layer_names0", "nb_layers"} & set(f.attrs))


def read(f: Any, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UsageError."""
    groups = keras_groups.layers(f)
    era = keras_groups.era(f)
    tensors: dict[str, Array] = {}
    layout: dict[str, Stored] = {}
    parts: list[chain.Part] = []
    for layer, entries in groups.items():
        for name, own in _sublayers(layer, entries).items():
            roles = {}
            for role, entry in own.items():
                tensor = f"{name}/{role}"
                place = place_of(layer, role, entry, own, era)
                tensors[tensor], layout[tensor] = to_memory(load(entry.dataset), place), place
                roles[ROLES.get(role, role)] = tensor
            parts.append(chain.Part(name, roles))
    if not tensors:
        raise CorruptFile("", "Keras weights without a single tensor")
    found = None
    if all(len(_sublayers(layer, entries)) <= 1 for layer, entries in groups.items()):
        bare = [layer for layer, entries in groups.items() if not entries]
        if chain.may_join(bare) is None:
            found = chain.build(parts, tensors, channels="last", eps=EPSILON_TAKEN, activation=request.activation)
    network = found or chain.apart(parts, tensors)
    windows = {t: v for t, v in tensors.items() if v.ndim > 2 and t.endswith("/kernel")} if era.unknown_backend else {}
    flipped = {t: np.flip(v, tuple(range(2, v.ndim))) for t, v in windows.items()}
    return Run(
        path=str(path),
        format=NAME,
        network=network,
        layout=layout,
        graph="chain" if found else "none",
        activations_known=found is not None and request.activation is not None,
        alternatives=(network.with_tensors(flipped),) if flipped else (),
        notes=tuple(_notes(parts, tensors, era, chained=found is not None, told=request.activation)),
    )


def _sublayers(layer: str, entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """The entries of a group by role; a model's or wrapper's group holds several layers, told apart by their prefix."""
    roles = [e.role for e in entries]
    if len(set(roles)) == len(roles):
        return {layer: dict(zip(roles, entries, strict=True))} if entries else {}
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        own = found.setdefault("/".join((layer, *entry.parts[:-1])), {})
        if entry.role in own:
            raise CorruptFile(f"layer {layer!r}", f"holds two weights called {entry.name!r}")
        own[entry.role] = entry
    return found


def place_of(layer: str, role: str, entry: Entry, own: Mapping[str, Entry], era: Era) -> Place:
    """How a stored weight becomes (out, in, *window), from its role and those beside it."""
    shape = entry.dataset.shape
    n = len(shape)
    if role == "kernel" and "recurrent_kernel" not in own and n >= 2:
        bias = own["bias"].dataset.shape if "bias" in own else ()
        if era.major < 2 and n == 4 and shape[1] == 1 and "1d" in layer:
            return Place(entry.path, (2, 1, 0), (shape[0], *shape[2:]))
        if era.major < 2 and n == 4 and bias == shape[:1] != shape[-1:]:  # Keras 1 in Theano's order: as canon holds it
            return Place(entry.path)
        return Place(entry.path, kernel_axes(n), None, tuple(range(n - 2)) if era.theano else ())
    if role == "pointwise_kernel" and n >= 3:
        return Place(entry.path, kernel_axes(n))
    if role == "depthwise_kernel" and n >= 3:
        return Place(entry.path, (n - 2, n - 1, *range(n - 2)), (*shape[:-2], shape[-2] * shape[-1], 1))
    return Place(entry.path)


def _notes(
    parts: Sequence[chain.Part], tensors: Mapping[str, Array], era: Era, *, chained: bool, told: str | None
) -> list[str]:
    if not chained:
        return [borrow.NO_CHAIN]
    notes = [] if told is not None else [borrow.UNRECORDED]
    if any("mean" in part.roles for part in parts):
        notes.append(f"{borrow.EPSILON} Keras's {EPSILON_TAKEN:g} is taken")
    if era.theano and any(t.ndim > 2 for t in tensors.values()):
        notes.append(keras_groups.THEANO)
    if era.unknown_backend and any(t.ndim > 2 for t in tensors.values()):
        notes.append(keras_groups.UNKNOWN_BACKEND)
    return notes


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors; there is no optimizer state to drop."""
    write_copy(run, path, source, actions)
