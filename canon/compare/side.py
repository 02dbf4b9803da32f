"""One of two networks, made ready: folded, centred, in a gauge, with its tensors normalised when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.action import Action
from canon.fold import Folded
from canon.gauge import Gauged, balanced, incoming
from canon.ops.base import Array
from canon.symmetry import Floats, Symmetry

_KEEP = 1 << 28
"""Bytes of normalised tensors that are kept; beyond, they are computed when asked for."""


class Normalised(Mapping[str, Array]):
    """Centred tensors times the factors of a gauge, in float64."""

    def __init__(self, tensors: Mapping[str, Array], action: Action, source: Mapping[str, Array]) -> None:
        self._tensors, self._action = tensors, action
        self._values = action.values_of(source)
        self._keep = 8 * sum(int(t.size) for t in tensors.values()) <= _KEEP
        self._kept: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name in self._kept:
            return self._kept[name]
        t = np.asarray(self._action.linear(name, self._tensors[name], self._values), np.float64)
        if self._keep:
            self._kept[name] = t
        return t

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Side:
    """A folded network in its gauges.

    folded; symmetry (shared by both sides); tensors, magnitudes: centred; incoming: the gauge and the tensors in it.
    """

    def __init__(self, folded: Folded, symmetry: Symmetry) -> None:
        self.folded, self.symmetry = folded, symmetry
        self.tensors, self.magnitudes = folded.centred
        self.gauge: Gauged = incoming(folded.network, self.tensors, symmetry)
        self.dead = folded.dead
        self._balanced: Gauged | None = None

    def action(self, gauge: Gauged | None = None) -> Action:
        """The gauge as an action on the folded network."""
        return Action(self.symmetry, {}, (self.gauge if gauge is None else gauge).gauges)

    def normalised(self, gauge: Gauged | None = None) -> Normalised:
        """The centred tensors in a gauge (the incoming one unless another is given)."""
        return Normalised(self.tensors, self.action(gauge), self.tensors)

    @property
    def balanced(self) -> Gauged:
        """The balanced gauge, computed once."""
        if self._balanced is None:
            self._balanced = balanced(self.folded.network, self.tensors, self.symmetry, self.gauge)
        return self._balanced

    def magnitude(self, tensor: str) -> Array:
        """The size of each centred entry, with what was summed into it."""
        return self.magnitudes[tensor] if tensor in self.magnitudes else np.abs(self.tensors[tensor])

    def scales(self, gauge: Gauged) -> dict[str, Floats]:
        """All factor vectors of a gauge."""
        return {g.name: gauge.gauges.get(g.name, np.ones(g.size)) for g in self.symmetry.gauges.values() if g.kind != "slope"}
