"""What a measure is: a function of two paired layers, its range and direction, and what it does not see.

Invariances, each of them a move of one side's activations that leaves the value as it is:

    permutation   the units in another order
    scale         a positive factor for each unit
    sign          a sign for each unit
    isotropic     one positive factor for all units
    orthogonal    a rotation or reflection of all units together
    linear        any invertible linear map of all units together (scale, sign and orthogonal among them)
    translation   a constant added to each unit
    shift         a number added to all units of a sample alike (logits mean the same)

Relabelled hidden units are a permutation; rescaled ones are a permutation and a scale. What a measure does not claim, it
may see or not; a test shows for each claim that it holds, and for each that is not made that it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from canon.similarity.pair import Pair

MOVES = ("permutation", "scale", "sign", "isotropic", "orthogonal", "linear", "translation", "shift")
NORMED = frozenset({"permutation", "sign", "isotropic", "orthogonal", "translation"})
"""What measures of X X^T, centred and divided by its size, allow."""
MATCHED = frozenset({"permutation", "scale", "isotropic", "translation"})
"""What measures of correlations unit by unit allow."""

Work = Literal["light", "assign", "spectral", "samples"]


@dataclass(frozen=True)
class Measure:
    """One measure.

    name: as the command and the JSON object call it; title: in words; of: its value for a pair (NumericError where it has
    none, with the reason); best: the value of a layer against itself; worst: the other end of its range;
    invariant: moves of either side that it does not see; predictor: further ones of the first side, where the sides are
    not alike; outputs: whether it is one of outputs with a class each, and not of hidden layers;
    work: what a value costs besides X^T Y.
    """

    name: str
    title: str
    of: Callable[[Pair], float]
    best: float
    worst: float
    invariant: frozenset[str]
    predictor: frozenset[str] = frozenset()
    outputs: bool = False
    work: Work = "light"

    @property
    def distance(self) -> bool:
        """Whether smaller is more alike."""
        return self.best < self.worst
