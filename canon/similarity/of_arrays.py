"""Measures of two arrays, for those who have activations at hand and no files."""

from __future__ import annotations

from collections.abc import Sequence

from canon.errors import UsageError
from canon.ops.base import Array
from canon.similarity.layer import layer
from canon.similarity.measures import DEFAULT, MEASURES, Measure
from canon.similarity.null import PERMUTATIONS, Figure, figures
from canon.similarity.pair import Pair


def measure(name: str, x: Array, y: Array) -> float:
    """One measure of x (samples, units) and y (the same samples, units), without its null.

    Raises UsageError for a name that is none, MismatchError for unequal sample counts, NotFinite, NumericError where the
    measure has no value.
    """
    return _measure(name).of(Pair(layer("x", x), layer("y", y)))


def measured(
    x: Array, y: Array, names: Sequence[str] = DEFAULT, permutations: int = PERMUTATIONS, seed: int = 0
) -> dict[str, Figure]:
    """Several measures of x and y, each with its null. Raises as `measure`, but a measure without a value says why in `why`."""
    return figures(Pair(layer("x", x), layer("y", y)), [_measure(name) for name in names], permutations, seed)


def _measure(name: str) -> Measure:
    if name not in MEASURES:
        raise UsageError("", f"there is no measure {name!r}", f"There are {', '.join(MEASURES)}.")
    return MEASURES[name]
