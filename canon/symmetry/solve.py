"""The small linear systems that the equations between gauges are: over the rationals for log-scales, over two elements
for signs. Variables are eliminated last writer first, so that what stays free is named after its first writer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class LinearSystem(Generic[K]):
    """Homogeneous equations sum(coefficient * variable) = 0, solved as they come.

    modulus: 0 for rationals, 2 for signs; rank: the variable of highest rank in an equation is eliminated.
    """

    def __init__(self, modulus: int, rank: Callable[[K], Any]) -> None:
        self._modulus, self._rank = modulus, rank
        self._solved: dict[K, dict[K, Fraction]] = {}
        self._used_by: dict[K, set[K]] = {}

    def add(self, terms: Iterable[tuple[K, int]]) -> None:
        """Impose one equation."""
        row: dict[K, Fraction] = {}
        for var, c in terms:
            for v, k in self.value(var).items():
                row[v] = self._reduced(row.get(v, Fraction(0)) + c * k)
        row = {v: k for v, k in row.items() if k}
        if not row:
            return
        pivot = max(row, key=self._rank)
        lead = row.pop(pivot)
        solution = {v: self._reduced(-k / lead) for v, k in row.items()}
        for user in self._used_by.pop(pivot, set()):
            old = self._solved[user]
            k = old.pop(pivot)
            for v, share in solution.items():
                old[v] = self._reduced(old.get(v, Fraction(0)) + k * share)
                self._used_by.setdefault(v, set()).add(user)
            for v in [v for v, share in old.items() if not share]:
                del old[v]
                self._used_by[v].discard(user)
        self._solved[pivot] = solution
        for v in solution:
            self._used_by.setdefault(v, set()).add(pivot)

    def value(self, var: K) -> dict[K, Fraction]:
        """A variable in terms of the free ones ({} is zero)."""
        found = self._solved.get(var)
        return {var: Fraction(1)} if found is None else found

    def users(self, var: K) -> frozenset[K]:
        """The solved variables that depend on a free one."""
        return frozenset(self._used_by.get(var, ()))

    def _reduced(self, k: Fraction) -> Fraction:
        return Fraction(int(k) % 2) if self._modulus else k
