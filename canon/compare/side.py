"""One of two networks, made ready: folded, centred, in a gauge, with its tensors normalised when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.action import Action
from canon.fold import Folded
from canon.gauge import Gauged, balanced, heads, incoming
from canon.ops.base import Array
from canon.symmetry import Floats, Symmetry

_KEEP = 1 << 28
"""Bytes of normalised tensors that are kept; beyond, they are computed when asked for."""
_SINGLE = 1 << 22
"""Tensors of float32 with at least this many entries stay so: what is found on them is proved entry by entry after."""
_PASSES = 8
"""How often scales and heads are balanced in turn: more than once where one reads what the other writes."""
_SETTLED = 1e-9


class Normalised(Mapping[str, Array]):
    """Centred tensors under what acts linearly, in float64, very large ones in the type they are stored in.

    absolute: sizes of entries instead, under the absolute values of what acts.
    """

    def __init__(
        self, tensors: Mapping[str, Array], action: Action, source: Mapping[str, Array], absolute: bool = False
    ) -> None:
        self._tensors, self._action, self._absolute = tensors, action, absolute
        self._values = action.values_of(source)
        self._keep = 8 * sum(int(t.size) for t in source.values()) <= _KEEP
        self._kept: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name in self._kept:
            return self._kept[name]
        t = self._tensors[name]
        kind = np.dtype(np.float32 if t.dtype == np.float32 and t.size >= _SINGLE else np.float64)
        t = np.asarray(self._action.linear(name, t, self._values, kind, self._absolute), kind)
        if self._keep:
            self._kept[name] = t
        return t

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Turned(Mapping[str, Array]):
    """Tensors with their heads balanced; those without heads as they were."""

    def __init__(self, tensors: Mapping[str, Array], action: Action, absolute: bool = False) -> None:
        self._tensors, self._action = tensors, action
        self._moved = Normalised(tensors, action, tensors, absolute)

    def __getitem__(self, name: str) -> Array:
        return self._moved[name] if self._action.turning(name) else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Side:
    """A folded network in its gauges.

    folded; symmetry (shared by both sides); tensors: centred, heads balanced; gauge: the incoming one of these; turns: what
    balanced the heads.
    """

    def __init__(self, folded: Folded, symmetry: Symmetry) -> None:
        self.folded, self.symmetry = folded, symmetry
        self.turns: Mapping[str, Floats] = {}
        self._heads = Action(symmetry)
        centred, self._sizes = folded.centred
        self.tensors: Mapping[str, Array] = centred
        self.gauge: Gauged = incoming(folded.network, centred, symmetry)
        self.dead = folded.dead
        self._balanced: Gauged | None = None
        if symmetry.blocks:
            self._balance_heads(centred)

    def _balance_heads(self, centred: Mapping[str, Array]) -> None:
        for _ in range(_PASSES):
            before = self.gauge
            self.turns = heads(centred, self.symmetry, self.scaling().values_of(centred))
            self._heads = Action(self.symmetry, turns=self.turns)
            self.tensors = _Turned(centred, self._heads)
            self.gauge = incoming(self.folded.network, self.tensors, self.symmetry)
            if _alike(before, self.gauge):
                break

    def scaling(self, gauge: Gauged | None = None) -> Action:
        """A gauge (the incoming one unless another is given) as an action on `tensors`."""
        return Action(self.symmetry, {}, (self.gauge if gauge is None else gauge).gauges)

    def action(self, gauge: Gauged | None = None) -> Action:
        """A gauge and balanced heads as an action on the folded network."""
        return self.scaling(gauge) @ self._heads

    def normalised(self, gauge: Gauged | None = None) -> Normalised:
        """The tensors in a gauge (the incoming one unless another is given)."""
        return Normalised(self.tensors, self.scaling(gauge), self.tensors)

    @property
    def balanced(self) -> Gauged:
        """The balanced gauge, computed once."""
        if self._balanced is None:
            self._balanced = balanced(self.folded.network, self.tensors, self.symmetry, self.gauge)
        return self._balanced

    def size(self, tensor: str) -> Array | None:
        """The size of each entry of a tensor, with what was summed into it; None where it is the entry's own."""
        turn = self._heads
        known = self._sizes.get(tensor)
        if not turn.turning(tensor):
            return known
        whole = np.abs(self.folded.centred[0][tensor]) if known is None else known
        return np.asarray(turn.linear(tensor, whole, {}, absolute=True))


def _alike(a: Gauged, b: Gauged) -> bool:
    names = {*a.gauges, *b.gauges}
    ratios = [np.asarray(a.gauges.get(g, 1.0)) / np.asarray(b.gauges.get(g, 1.0)) for g in names]
    return all(np.abs(r - 1.0).max(initial=0.0) <= _SETTLED for r in ratios)
