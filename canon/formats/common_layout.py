"""How a stored array becomes the tensor that canon holds, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canon.ops.base import Array
from canon.run import Stored


@dataclass(frozen=True)
class Place(Stored):
    """A `Stored` with more on the way to memory, in this order: `cut` (axis, start, stop), the stretch of the stored array that
    is meant; `flip` along some of its axes (Theano's convolution kernels), `shape`, `axes`, `final` (a reshape after the
    permutation); `halves`: the stored array is two halves whose sum is the tensor (the biases of CuDNN's LSTM).

    also: other arrays of the file that hold the same numbers (tied weights), and are to hold the same again.
    """

    flip: tuple[int, ...] = ()
    final: tuple[int, ...] | None = None
    halves: bool = False
    cut: tuple[int, int, int] | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stack(Stored):
    """A tensor that the file keeps in parts, which follow each other along one of its axes (Keras 1's gates, experts)."""

    parts: tuple[Place, ...] = ()
    along: int = 0


def to_memory(stored: Array, place: Place) -> Array:
    """The tensor as canon holds it: a view of the stored array wherever that is possible."""
    if place.cut is not None:
        stored = stored[region(place)]
    for axis in place.flip:
        stored = np.flip(stored, axis)
    if place.halves:
        stored = stored.reshape(2, -1).sum(axis=0)
    if place.shape is not None:
        stored = stored.reshape(place.shape)
    if place.axes is not None:
        stored = stored.transpose(place.axes)
    return stored if place.final is None else stored.reshape(place.final)


def to_stored(tensor: Array, place: Place, shape: tuple[int, ...]) -> Array:
    """The inverse of `to_memory`; shape: the stored array's, or of what is meant of it where it is cut."""
    if place.axes is not None:
        before = place.shape if place.shape is not None else shape
        tensor = tensor.reshape([before[a] for a in place.axes]).transpose(np.argsort(place.axes))
    if place.halves:
        tensor = np.concatenate([tensor.reshape(-1), np.zeros(tensor.size, tensor.dtype)])
    tensor = tensor.reshape(shape)
    for axis in place.flip:
        tensor = np.flip(tensor, axis)
    return tensor


def region(place: Place) -> tuple[slice, ...]:
    """Where in the stored array the numbers lie."""
    if place.cut is None:
        return ()
    axis, start, stop = place.cut
    return (*(slice(None),) * axis, slice(start, stop))


def as_place(stored: Stored) -> Place:
    """Any `Stored` but a `Stack` as a `Place`."""
    return stored if isinstance(stored, Place) else Place(stored.path, stored.axes, stored.shape)


def kernel_axes(ndim: int) -> tuple[int, ...]:
    """Permutation from Keras's (*window, in, out) to (out, in, *window)."""
    return (ndim - 1, ndim - 2, *range(ndim - 2))
