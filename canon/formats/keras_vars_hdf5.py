"""Keras 3's weights-only HDF5 (.weights.h5): variables by class and number, no configuration and no order of layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from canon.borrow import EPSILON, NO_CHAIN, UNRECORDED
from canon.errors import CorruptFile
from canon.formats import common_chain as chain
from canon.formats import keras_vars
from canon.formats.common import Request, is_real, load, natural, node
from canon.formats.common_layout import to_memory
from canon.formats.common_order import only_order, widths
from canon.formats.common_write import write_copy
from canon.formats.keras_groups import Entry, Era
from canon.formats.keras_run import from_vars, holding_together
from canon.formats.keras_weights import EPSILON_TAKEN, ROLES, place_of
from canon.ops.base import Array
from canon.run import Run, Stored

NAME = "keras-3 weights hdf5"
OPTIMIZER = "optimizer"
NOW = Era(3, theano=False, unknown_backend=False)
LOOK_AT = 1000
"""Groups looked at before a file is taken for something else."""
IN_ORDER = {
    "dense": ("kernel", "bias"),
    "conv": ("kernel", "bias"),
    "depthwise_conv": ("depthwise_kernel", "bias"),
    "separable_conv": ("depthwise_kernel", "pointwise_kernel", "bias"),
    "cell": ("kernel", "recurrent_kernel", "bias"),
    "embedding": ("embeddings",),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"),
}
"""Roles of numbered variables, by class."""


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file holds numbered variables of layers."""
    layers = keras_vars.root(f)
    first = islice(layers or (), LOOK_AT)
    return any(node(layers, f"{name}/vars") is not None or _deeper(layers, name) for name in first)


def _deeper(layers: Any, name: str) -> bool:
    below = node(layers, name)
    return any(node(below, f"{path}/vars") is not None for path in ("cell", "forward_layer/cell", "layer")) or (
        keras_vars.root(below) is not None
    )


def read(f: Any, path: Path, request: Request) -> Run:
    """The run: with the configuration lent, or a chain where shapes prove one order, else tensors without a graph."""
    if request.keras_config is not None:
        with holding_together("architecture"):
            return from_vars(f, path, request.keras_config, {}, "weights hdf5", lent=True)
    tensors: dict[str, Array] = {}
    layout: dict[str, Stored] = {}
    parts: list[chain.Part] = []
    plain = True
    for name, entries in _groups(f, ""):
        roles, known = _roles(name, entries)
        plain &= known
        own = dict(zip(roles, entries, strict=True))
        for role, entry in own.items():
            place = place_of(name, role, entry, own, NOW)
            tensors[f"{name}/{role}"], layout[f"{name}/{role}"] = to_memory(load(entry.dataset), place), place
        parts.append(chain.Part(name, {ROLES.get(role, role): f"{name}/{role}" for role in own}))
    if not tensors:
        raise CorruptFile("", "Keras weights without a single tensor")
    known = plain and not _may_join(f, parts, tensors)
    order = only_order(parts, tensors, lambda name: re.sub(r"_\d+$", "", name)) if known else None
    found = None
    if order is not None:
        found = chain.build(order, tensors, channels="last", eps=EPSILON_TAKEN, activation=request.activation)
    notes = [NO_CHAIN] if found is None else [] if request.activation is not None else [UNRECORDED]
    if found is not None and any("mean" in part.roles for part in parts):
        notes.append(f"{EPSILON} Keras's {EPSILON_TAKEN:g} is taken")
    return Run(
        path=str(path),
        format=NAME,
        network=found or chain.apart(parts, tensors),
        layout=layout,
        graph="chain" if found else "none",
        activations_known=found is not None and request.activation is not None,
        notes=tuple(notes),
    )


def _groups(model: Any, prefix: str) -> Iterator[tuple[str, list[Entry]]]:
    """Every group of variables by its path without what is the same for all, in the order of their numbers."""
    layers = keras_vars.root(model)
    for name in sorted(layers, key=natural):
        yield from _below(node(layers, name), prefix + name)


def _below(group: Any, name: str, depth: int = 0) -> Iterator[tuple[str, list[Entry]]]:
    import h5py

    if not isinstance(group, h5py.Group) or depth > 40:
        return
    if entries := [e for e in keras_vars.variables(group) if is_real(e.dataset.dtype)]:
        yield name, entries
    if keras_vars.root(group) is not None:
        yield from _groups(group, f"{name}/")
    for below in sorted(group, key=natural):
        if below not in ("vars", "seed_generator", *keras_vars.ROOTS):
            yield from _below(node(group, below), f"{name}/{below}", depth + 1)


def _roles(name: str, entries: Sequence[Entry]) -> tuple[Sequence[str], bool]:
    """Roles by class, and whether they are known; by number where they are not."""
    cls = re.sub(r"(\dd)?(_\d+)?$", "", name.rsplit("/", 1)[-1])
    found = IN_ORDER.get(cls, ())
    shapes = [len(e.dataset.shape) for e in entries]
    whole = len(entries) == len(found) or (len(found) - len(entries) == 1 and found[-1] == "bias")
    if (
        not whole
        or not found
        or (found[-1] == "bias" and len(entries) == len(found) and shapes[-1] > (2 if cls == "cell" else 1))
    ):
        return [str(i) for i in range(len(entries))], False
    return found[: len(entries)], True


def _may_join(f: Any, parts: Sequence[chain.Part], tensors: Mapping[str, Array]) -> bool:
    """Whether values may meet somewhere: some versions leave layers without weights out, and a sum of two values may hide."""
    if node(f, "vars") is not None:
        return chain.may_join(keras_vars.root(f)) is not None
    found = [widths(part, tensors)[1] for part in parts if "mean" not in part.roles]
    return len(set(found)) < len(found)


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors."""
    write_copy(run, path, source, actions, drop=(OPTIMIZER,) if drop_optimizer else ())
