"""Tensors dumped by name into HDF5: torch state dicts ("a.b.weight") and Keras-like dumps ("a/kernel")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from canon import borrow
from canon.errors import CorruptFile
from canon.formats import common_chain as chain
from canon.formats.common import Place, Request, kernel_axes, load, natural, to_memory, walk, write_copy
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run, Stored

NAME = "hdf5 tensors"
TORCH = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KERAS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "depthwise_kernel", "pointwise_kernel",
         "recurrent_kernel", "embeddings", "alpha")  # fmt: skip
WRAPPERS = ("module.", "_orig_mod.")
STACKED = chain.JOINS | {"block", "blocks", "stage", "encoder", "decoder"}
"""A state dict does not list the layers without weights, so these names may hide a sum as well."""


def _last(path: str) -> str:
    return re.split(r"[./]", re.sub(r":\d+$", "", path))[-1]


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file looks like tensors of layers: most named after a role, and a kernel among them."""
    found = [(path, d) for path, d in walk(f) if d.shape is not None and d.dtype.kind == "f"]
    named = [(path, d) for path, d in found if _last(path) in (*TORCH, *KERAS)]
    kernels = [path for path, d in named if _last(path) in ("weight", "kernel") and d.ndim >= 2]
    return bool(kernels) and 2 * len(named) > len(found)


def read(f: Any, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UsageError."""
    datasets = {re.sub(r":\d+$", "", name): d for name, d in walk(f)}
    notes: list[str] = []
    left = [name for name, d in datasets.items() if d.shape is None or d.dtype.kind != "f"]
    if ignored := [name for name in left if _last(name) != "num_batches_tracked"]:
        notes.append(f"not floating point, and left as they are: {', '.join(ignored[:5])}{' ...' if len(ignored) > 5 else ''}")
    named, prefix = _unwrapped({name: d for name, d in datasets.items() if name not in left})
    if prefix:
        notes.append(f"every name begins with {prefix!r}, which is left out")
    torch = any(_last(name) == "weight" for name in named)
    tensors: dict[str, Array] = {}
    layout: dict[str, Stored] = {}
    for name in _by_layer(named):
        place = Place(named[name].name) if torch else _keras_place(named, name)
        tensors[name], layout[name] = to_memory(load(named[name]), place), place
    if not tensors:
        raise CorruptFile("", "holds no floating point tensor")
    parts = _parts(tensors)
    found = _chain(parts, tensors, torch, request.activation)
    if found is None:
        notes.append(borrow.NO_CHAIN)
    else:
        notes += [] if request.activation is not None else [borrow.UNRECORDED]
        if any("mean" in part.roles for part in parts):
            notes.append(f"{borrow.EPSILON} {_eps(torch):g} is taken")
    return Run(
        path=str(path),
        format=NAME,
        network=found or chain.apart(parts, tensors),
        layout=layout,
        graph="chain" if found else "none",
        activations_known=found is not None and request.activation is not None,
        notes=tuple(notes),
    )


def _unwrapped(named: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Names without the prefixes of wrappers that every one of them carries."""
    prefix = ""
    while wrapper := next((w for w in WRAPPERS if named and all(n.startswith(prefix + w) for n in named)), None):
        prefix += wrapper
    return {name[len(prefix) :]: d for name, d in named.items()}, prefix


def _split(name: str) -> tuple[str, str]:
    at = max(name.rfind("."), name.rfind("/"))
    return (name[:at], name[at + 1 :]) if at > 0 else ("", name)


def _by_layer(named: Mapping[str, Any]) -> list[str]:
    """Names in the file's order of layers, and in each layer in the usual order of roles."""
    layers = {layer: i for i, layer in enumerate(dict.fromkeys(_split(name)[0] for name in named))}
    roles = {role: i for i, role in enumerate(dict.fromkeys((*TORCH, *KERAS)))}

    def order(name: str) -> tuple[int, int]:
        layer, role = _split(name)
        return layers[layer], roles.get(role, len(roles))

    return sorted(named, key=order)


def _keras_place(named: Mapping[str, Any], name: str) -> Place:
    role = _split(name)[1]
    shape = named[name].shape
    n = len(shape)
    recurrent = name[: len(name) - len(role)] + "recurrent_kernel" in named
    if n >= 2 and ((role == "kernel" and not recurrent) or role == "pointwise_kernel"):
        return Place(named[name].name, kernel_axes(n))
    if n >= 3 and role == "depthwise_kernel":
        return Place(named[name].name, (n - 2, n - 1, *range(n - 2)), (*shape[:-2], shape[-2] * shape[-1], 1))
    return Place(named[name].name)


def _parts(tensors: Mapping[str, Array]) -> list[chain.Part]:
    """Layers by prefix, roles in a chain's words."""
    found: dict[str, dict[str, str]] = {}
    for name in tensors:
        layer, role = _split(name)
        found.setdefault(layer or "tensors", {})[role] = name
    parts = []
    for layer, roles in found.items():
        norm = "running_mean" in roles or "moving_mean" in roles
        words = {"running_mean": "mean", "running_var": "variance",
                 "moving_mean": "mean", "moving_variance": "variance",
                 "depthwise_kernel": "depthwise", "pointwise_kernel": "pointwise",
                 "weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}  # fmt: skip
        parts.append(chain.Part(layer, {words.get(role, role): name for role, name in roles.items()}))
    return parts


def _eps(torch: bool) -> float:
    return 1e-5 if torch else 1e-3


def _chain(parts: Sequence[chain.Part], tensors: Mapping[str, Array], torch: bool, activation: str | None) -> Network | None:
    """In the file's order, else with numbers in names counted as numbers."""
    if chain.may_join((part.name for part in parts), STACKED) is not None:
        return None
    for order in (parts, sorted(parts, key=lambda part: natural(part.name))):
        found = chain.build(order, tensors, channels="first" if torch else "last", eps=_eps(torch), activation=activation)
        if found is not None:
            return found
    return None


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors; there is no optimizer state to drop."""
    write_copy(run, path, source, actions)
