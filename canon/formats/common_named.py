"""Tensors by name, as they are dumped: torch state dicts ("a.b.weight") and Keras-like ("a/kernel"), in any container."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from canon import borrow
from canon.errors import CorruptFile
from canon.formats import common_chain as chain
from canon.formats import common_norm as norm
from canon.formats.common import Request, natural
from canon.formats.common_family import Found, find
from canon.formats.common_layout import Place, Stack, kernel_axes, to_memory
from canon.formats.common_order import only_order
from canon.formats.common_prefix import unwrapped
from canon.network import Network
from canon.ops.base import Array
from canon.run import Lengths, Run, Stored

TORCH = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
KERAS = ("kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "depthwise_kernel", "pointwise_kernel",
         "recurrent_kernel", "embeddings", "alpha")  # fmt: skip
STACKED = chain.JOINS | {"block", "blocks", "stage", "encoder", "decoder"}
"""A state dict does not list the layers without weights, so these names may hide a sum as well."""
BY_WIDTHS = "the file does not keep the order of layers: it is the only one in which their widths fit"


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
    named = {path: d for path, d in numbers.items() if last(path) in (*TORCH, *KERAS, *norm.ROLES)}
    words = ("weight", "kernel", *norm.ROLES)
    kernels = [path for path, d in named.items() if last(path) in words and len(d.shape or ()) >= 2]
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
    normed = _Normed()
    named, unwrapping = unwrapped(normed.joined({name: d for name, d in arrays.items() if name not in left}))
    notes += [*normed.notes, *unwrapping]
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
            lengths=normed.lengths,
            kept=normed.kept(family.layout),
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
    network, said = _chain(parts, tensors, torch, request.activation)
    if network is None:
        notes.append(borrow.NO_CHAIN)
    else:
        notes += said
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
        lengths=normed.lengths,
        kept=normed.kept(layout),
    )


@dataclass
class _Normed:
    """Kernels under weight norm as they are read: the file's arrays are kept, for the kernel does not determine them."""

    lengths: dict[str, Lengths] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    read: dict[str, dict[str, Array]] = field(default_factory=dict)

    def joined(self, named: Mapping[str, Named]) -> dict[str, Named]:
        """The same arrays with W in the place of g and v, at the path of v."""
        found = norm.pairs({name: d.shape for name, d in named.items()})
        apart = {g for _, g, _ in found.values()}
        out: dict[str, Named] = {}
        for name, d in named.items():
            if name in found:
                kernel, g, _ = found[name]
                self.lengths[d.path] = Lengths(named[g].path, named[g].shape or ())
                out[kernel] = replace(d, load=cache(partial(self._kernel, named[g], d)))
            elif name not in apart:
                out[name] = d
        if found:
            kernel, _, _ = next(iter(found.values()))
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            self.notes.append(f"weight norm: {kernel}{more} computed from stored lengths and directions")
        return out

    def _kernel(self, g: Named, v: Named) -> Array:
        lengths, directions = g.load(), v.load()
        self.read[v.path] = {g.path: lengths, v.path: directions}
        return norm.effective(lengths, directions, v.precision or str(v.dtype.newbyteorder("=")))

    def kept(self, layout: Mapping[str, Stored]) -> dict[str, dict[str, Array]]:
        """What was read for each tensor of a network."""
        out: dict[str, dict[str, Array]] = {}
        for name, stored in layout.items():
            for place in stored.parts if isinstance(stored, Stack) else (stored,):
                if place.path in self.read:
                    out.setdefault(name, {}).update(self.read[place.path])
        return out


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


def _chain(
    parts: Sequence[chain.Part], tensors: Mapping[str, Array], torch: bool, activation: str | None
) -> tuple[Network | None, tuple[str, ...]]:
    """The first order of layers that makes a chain, and a note on it."""
    if chain.may_join((part.name for part in parts), STACKED) is None:
        for order, said in _orders(parts, tensors):
            found = chain.build(order, tensors, channels="first" if torch else "last", eps=_eps(torch), activation=activation)
            if found is not None:
                return found, said
    return None, ()


def _orders(
    parts: Sequence[chain.Part], tensors: Mapping[str, Array]
) -> Iterator[tuple[Sequence[chain.Part], tuple[str, ...]]]:
    """The file's order, then with numbers in names counted as numbers, then the only one that widths allow."""
    counted = sorted(parts, key=lambda part: natural(part.name))
    yield parts, ()
    yield counted, ()
    if (only := only_order(counted, tensors, lambda name: re.sub(r"[0-9]+", "", name))) is not None:
        yield only, (BY_WIDTHS,)
