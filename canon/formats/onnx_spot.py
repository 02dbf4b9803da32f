"""Where a tensor lies in an ONNX file, and how it is put back: a view of a stored tensor, times a number or inverted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canon.formats.onnx_known import Known, Step, viewed
from canon.ops.base import Array
from canon.run import Stored


@dataclass(frozen=True)
class Spot(Stored):
    """tensor = factor * view(stored) ** power; path: the stored tensor's name. plus: a second view that is added to the first
    (the two biases of a recurrent layer): it is zero once the sum is put back. copies: further places with the same values.
    """

    steps: tuple[Step, ...] = ()
    factor: float = 1.0
    power: int = 1
    plus: tuple[Step, ...] | None = None
    copies: tuple[Spot, ...] = ()

    def values(self, stored: Array) -> Array:
        """The tensor, a view of the stored array wherever that is possible."""
        x = viewed(stored, self.steps)
        if self.plus is not None:
            x = x + viewed(stored, self.plus)
        if self.power == -1:
            with np.errstate(all="ignore"):
                x = 1.0 / x.astype(np.float64)
        if self.factor == -1.0:
            return -x
        return x if self.factor == 1.0 else self.factor * x.astype(np.float64)

    def put(self, stored: Array, tensor: Array) -> None:
        """Write the tensor into a copy of the stored array, in place: in its type, where that holds it."""
        if self.factor != 1.0 or self.power != 1:
            with np.errstate(all="ignore"):
                tensor = np.asarray((tensor.astype(np.float64) / self.factor) ** self.power)
        flat = stored.reshape(-1)
        if self.steps or self.plus is not None:
            places = np.arange(stored.size).reshape(stored.shape)
            if self.plus is not None:
                flat[viewed(places, self.plus).reshape(-1)] = 0
            flat[viewed(places, self.steps).reshape(-1)] = tensor.reshape(-1)
        else:
            flat[:] = tensor.reshape(-1)


def spot_of(known: Known, factor: float = 1.0, power: int = 1) -> Spot | None:
    """The place of a view of a stored tensor; None for what is computed."""
    if not known.path:
        return None
    axes = known.steps[0][1] if len(known.steps) == 1 and known.steps[0][0] == "transpose" else None
    shape = (-1,) if known.steps and axes is None else None  # what only counts axes knows that there is more to it
    return Spot(known.path, axes, shape, known.steps, factor, power)
