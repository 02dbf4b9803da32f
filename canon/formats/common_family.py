"""Tensors by name that belong to a known family: its graph, and every tensor as the graph takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from canon.errors import UsageError
from canon.families import Known, Source, recognise
from canon.formats.common import Request
from canon.formats.common_layout import Place, Stack, to_memory
from canon.network import Network
from canon.ops.base import Array
from canon.run import Stored


class Held(Protocol):
    """An array of a file, not read yet (common_named.Named)."""

    @property
    def path(self) -> str:
        """Where it lies."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Its shape."""

    @property
    def load(self) -> Callable[[], Array]:
        """Reads it."""

    @property
    def precision(self) -> str:
        """Its type where numpy has none for it."""


@dataclass(frozen=True)
class Found:
    """network and layout: as a Run has them; the rest as families.Known says it."""

    network: Network
    layout: Mapping[str, Stored]
    activations_known: bool
    notes: tuple[str, ...]


def find(held: Mapping[str, Held], request: Request) -> Found | str | None:
    """The family's network; a note on the nearest family where none fits, None where there is no such thing.

    Raises UsageError for what only a configuration or an option can tell, unless options["ask"] is False, or a graph is lent,
    which takes the place of this one.
    """
    told = {"activation": request.activation, **{name: v for name, v in request.options.items() if name != "ask"}}
    try:
        known = recognise({name: h.shape or () for name, h in held.items()}, request.beside, told, blank=request.lent)
    except UsageError as missing:
        if request.options.get("ask") is False:
            return f"{missing.where}: {missing.what}" if missing.where else missing.what
        raise
    if known is None:
        return None
    if not isinstance(known, Known):
        return f"the nearest known family is {known.family}, but {known.key}: {known.why}"
    return _found(held, known)


def _found(held: Mapping[str, Held], known: Known) -> Found:
    used = dict.fromkeys(t for op in known.ops for t in op.params.values())
    order = [*used, *(t for t in known.sources if t not in used)]
    layout = {name: _stored(held, known.sources[name]) for name in order}
    tensors = {name: _tensor(held, known.sources[name], layout[name]) for name in order}
    notes = list(known.notes)
    one: dict[str, str] = {}
    for copy, other in known.copies.items():
        place, first = layout[copy], layout[other]
        if isinstance(place, Place) and isinstance(first, Place) and np.array_equal(tensors[copy], tensors[other]):
            one[copy] = other
            layout[other] = replace(first, also=(*first.also, place.path, *place.also))
            del layout[copy], tensors[copy]
        elif copy not in used:
            notes.append(f"{copy} differs from {other}, and is not used")
        elif known.tied:
            notes.append(f"{copy} differs from {other}, to which its configuration ties it: taken as two tensors")
    if one:
        copy, other = next(iter(one.items()))
        more = f", and {len(one) - 1} more" if len(one) > 1 else ""
        notes.append(f"{copy} and {other} are equal: tied, one tensor with several uses{more}")
    ops = tuple(replace(op, params={role: one.get(t, t) for role, t in op.params.items()}) for op in known.ops)
    precision = {name: p for name in tensors if (p := held[known.sources[name].keys[0]].precision)}
    network = Network(tensors, ops, known.inputs, known.outputs, precision)
    return Found(network, layout, known.activations_known, tuple(notes))


def _stored(held: Mapping[str, Held], source: Source) -> Stored:
    parts = tuple(
        Place(held[key].path, source.axes, _region(held[key].shape or (), source), final=source.shape, cut=source.cut)
        for key in source.keys
    )
    return parts[0] if len(parts) == 1 else Stack(parts[0].path, parts=parts, along=source.along)


def _region(shape: tuple[int, ...], source: Source) -> tuple[int, ...]:
    """The shape of what is meant of a stored array."""
    if source.cut is None:
        return shape
    axis, start, stop = source.cut
    return (*shape[:axis], stop - start, *shape[axis + 1 :])


def _tensor(held: Mapping[str, Held], source: Source, stored: Stored) -> Array:
    places = stored.parts if isinstance(stored, Stack) else (stored,)
    parts = [to_memory(held[key].load(), p) for key, p in zip(source.keys, places, strict=True) if isinstance(p, Place)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=source.along)
