"""Sizes of axes that a file leaves open: products of a number and named sizes, so that shape arithmetic can go on.

A graph computes with its own shapes (the first size times the second, all but the last). Products and exact quotients of
open sizes are kept; what else is computed from them is a new open size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

_fresh = count()


@dataclass(frozen=True)
class Size:
    """factor times the product of named sizes."""

    factor: int
    names: tuple[str, ...]

    def __mul__(self, other: Dim) -> Dim:
        return times(self, other)

    def __rmul__(self, other: Dim) -> Dim:
        return times(self, other)

    def __add__(self, other: Dim) -> Dim:
        if other == 0:
            return self
        return unknown()

    def __radd__(self, other: Dim) -> Dim:
        return self + other

    def __sub__(self, other: Dim) -> Dim:
        return self if other == 0 else 0 if other == self else unknown()

    def __rsub__(self, other: Dim) -> Dim:
        return unknown()

    def __neg__(self) -> Dim:
        return times(self, -1)

    def __floordiv__(self, other: Dim) -> Dim:
        found = over(self, other)
        return unknown() if found is None else found

    def __rfloordiv__(self, other: Dim) -> Dim:
        return unknown()


Dim = int | Size


def named(name: str) -> Size:
    """The open size of this name."""
    return Size(1, (name,))


def unknown() -> Size:
    """An open size that is like no other."""
    return named(f"?{next(_fresh)}")


def times(a: Dim, b: Dim) -> Dim:
    """The product."""
    x, y = (Size(d, ()) if isinstance(d, int) else d for d in (a, b))
    names = tuple(sorted((*x.names, *y.names)))
    factor = x.factor * y.factor
    return Size(factor, names) if names and factor else factor


def over(a: Dim, b: Dim) -> Dim | None:
    """The quotient where it is known to be exact, else None."""
    x, y = (Size(d, ()) if isinstance(d, int) else d for d in (a, b))
    if y.factor == 0 or x.factor % y.factor:
        return None
    left = Counter(x.names)
    if Counter(y.names) - left:
        return None
    left.subtract(y.names)
    names = tuple(sorted(left.elements()))
    return Size(x.factor // y.factor, names) if names else x.factor // y.factor


def product(sizes: Iterable[Dim]) -> Dim:
    """The product of all."""
    total: Dim = 1
    for d in sizes:
        total = times(total, d)
    return total


def known(d: Dim) -> int | None:
    """The number, None for an open size."""
    return d if isinstance(d, int) else None
