"""Tensors by name, as they are dumped: torch state dicts ("a.b.weight") and Keras-like ("a/kernel"), in any container."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from canon import borrow
from canon.errors import CorruptFile
from canon.formats import common_chain as chain
from canon.formats.common import Request, natural
from canon.formats.common_family import Found, find
from canon.formats.common_layout import Place, kernel_axes, to_memory
from canon.formats.common_prefix import unwrapped
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run, Stored

TORCH = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KERAS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "depthwise_kernel", "pointwise_kernel",
         "recurrent_kernel", "embeddings", "alpha")  # fmt: skip
STACKED = chain.JOINS | {"block", "blocks", "stage", "encoder", "decoder"}
"""A state dict does not list the layers without weights, so these names may hide a sum as well."""


@dataclass(frozen=True)
class Named:
    """An array of a file, not read yet. path: where it lies; shape: None for nothing; dtype: as `load` gives it;
    precision: the name of the type it is stored in, where numpy has none ("bfloat16").
    """

    path: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[np.generic]
    load: Callable[[], Array]
    precision: str = ""


def last(path: str) -> str:
    """The last word of a name: what the tensor is to its layer."""
    return re.split(r"[./]", re.sub(r":\d+$", "", path))[-1]


def looks_named(found: Mapping[str, Named]) -> bool:
    """Whether arrays look like tensors of layers: most named after a role, and a kernel among them."""
    numbers = {path: d for path, d in found.items() if d.shape is not None and d.dtype.kind == "f"}
    named = {path: d for path, d in numbers.items() if last(path) in (*TORCH, *KERAS)}
    kernels = [path for path, d in named.items() if last(path) in ("weight", "kernel") and len(d.shape or ()) >= 2]
    return bool(kernels) and 2 * len(named) > len(numbers)


def read_named(found: Mapping[str, Named], fmt: str, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UsageError."""
    arrays = {re.sub(r":\d+$", "", name): d for name, d in found.items()}
    if len(arrays) < len(found):
        raise CorruptFile("", "holds two tensors whose names differ in TensorFlow's output number alone")
    notes: list[str] = []
    left = [name for name, d in arrays.items() if d.shape is None or d.dtype.kind != "f"]
    if ignored := [name for name in left if last(name) != "num_batches_tracked"]:
        notes.append(f"not floating point, and left as they are: {', '.join(ignored[:5])}{' ...' if len(ignored) > 5 else ''}")
    named, unwrapping = unwrapped({name: d for name, d in arrays.items() if name not in left})
    notes += unwrapping
    torch = any(last(name) == "weight" for name in named)
    family = find(named, request) if torch else None
    if isinstance(family, Found):
        return Run(
            path=str(path),
            format=fmt,
            network=family.network,
            layout=family.layout,
            graph="family",
            activations_known=family.activations_known,
            notes=(*notes, *family.notes, *([] if family.activations_known else [borrow.UNRECORDED])),
        )
    notes += [] if family is None else [family]
    tensors: dict[str, Array] = {}
    layout: dict[str, Stored] = {}
    for name in _by_layer(named):
        place = Place(named[name].path) if torch else _keras_place(named, name)
        tensors[name], layout[name] = to_memory(named[name].load(), place), place
    if not tensors:
        raise CorruptFile("", "holds no floating point tensor")
    parts = _parts(tensors)
    network = _chain(parts, tensors, torch, request.activation)
    if network is None:
        notes.append(borrow.NO_CHAIN)
    else:
        notes += [] if request.activation is not None else [borrow.UNRECORDED]
        if any("mean" in part.roles for part in parts):
            notes.append(f"{borrow.EPSILON} {_eps(torch):g} is taken")
    return Run(
        path=str(path),
        format=fmt,
        network=_as_stored(network or chain.apart(parts, tensors), named),
        layout=layout,
        graph="chain" if network else "none",
        activations_known=network is not None and request.activation is not None,
        notes=tuple(notes),
    )


def _as_stored(network: Network, named: Mapping[str, Named]) -> Network:
    """The network, with the types that numpy has no name for."""
    found = {name: named[name].precision for name in network.tensors if name in named and named[name].precision}
    return replace(network, precision=found) if found else network


def _split(name: str) -> tuple[str, str]:
    at = max(name.rfind("."), name.rfind("/"))
    return (name[:at], name[at + 1 :]) if at > 0 else ("", name)


def _by_layer(named: Mapping[str, Named]) -> list[str]:
    """Names in the file's order of layers, and in each layer in the usual order of roles."""
    layers = {layer: i for i, layer in enumerate(dict.fromkeys(_split(name)[0] for name in named))}
    roles = {role: i for i, role in enumerate(dict.fromkeys((*TORCH, *KERAS)))}

    def order(name: str) -> tuple[int, int]:
        layer, role = _split(name)
        return layers[layer], roles.get(role, len(roles))

    return sorted(named, key=order)


def _keras_place(named: Mapping[str, Named], name: str) -> Place:
    role = _split(name)[1]
    shape = named[name].shape or ()
    n = len(shape)
    recurrent = name[: len(name) - len(role)] + "recurrent_kernel" in named
    if n >= 2 and ((role == "kernel" and not recurrent) or role == "pointwise_kernel"):
        return Place(named[name].path, kernel_axes(n))
    if n >= 3 and role == "depthwise_kernel":
        return Place(named[name].path, (n - 2, n - 1, *range(n - 2)), (*shape[:-2], shape[-2] * shape[-1], 1))
    return Place(named[name].path)


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
