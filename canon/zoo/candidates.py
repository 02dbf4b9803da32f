"""Which of many fingerprints lie within their tolerances of another: exact, by sorting on one figure and sliding a window.

Fingerprints a and b may be copies where |a_k - b_k| is at most the larger of room_a,k and room_b,k for every figure k. A
million of them take about a second; they are looked at a piece at a time, so that memory does not grow with the zoo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canon.symmetry import Floats, Indices

PIECE = 1 << 17
"""Fingerprints looked at together."""
_PAIRS = 1 << 21
"""Pairs looked at together."""
_DENSE = 4096
"""With so many others in its window a fingerprint counts as near one, unlooked."""


@dataclass(frozen=True)
class Prints:
    """Fingerprints of one structure: ids (n,), values and room (n, figures)."""

    ids: Indices
    values: Floats
    room: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, which: slice | Indices | NDArray[np.bool_]) -> Prints:
        return Prints(self.ids[which], self.values[which], self.room[which])

    def sorted(self) -> Prints:
        """In the order of the first figure."""
        return self[np.argsort(self.values[:, 0], kind="stable")]

    @staticmethod
    def joined(parts: list[Prints], figures: int) -> Prints:
        """Several one after the other."""
        if not parts:
            return Prints(np.zeros(0, np.intp), np.zeros((0, figures)), np.zeros((0, figures)))
        return Prints(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("ids", "values", "room")))

    def near(self, i: int, among: NDArray[np.bool_] | None = None) -> Indices:
        """The rows that may be copies of row i, itself left out. The rows are sorted. among: those that are asked about."""
        reach = max(self.room[i, 0], self.room[:, 0].max(initial=0.0))
        low, high = np.searchsorted(self.values[:, 0], [self.values[i, 0] - reach, self.values[i, 0] + reach], side="left")
        high = max(high, i + 1)
        while high < len(self) and self.values[high, 0] <= self.values[i, 0] + reach:
            high += 1
        rows = np.arange(low, high)
        if among is not None:
            rows = rows[among[rows]]
        rows = rows[rows != i]
        gap = np.abs(self.values[rows] - self.values[i])
        found: Indices = rows[(gap <= np.maximum(self.room[rows], self.room[i])).all(axis=1)]
        return found


def crowded(pieces: Iterable[Prints], wide: Prints | None = None) -> Iterator[Prints]:
    """The fingerprints that are near another one, each once.

    pieces: sorted, and one after the other in the order of the first figure; wide: those, sorted, whose room is so much
    larger than that of the others (is_wide) that with them no window could slide.
    """
    held: Prints | None = None
    told = np.zeros(0, bool)
    wide_near = np.zeros(0 if wide is None else len(wide), bool)
    if wide is not None and len(wide):
        _mark(wide, wide, wide_near, wide_near)
    reach = 0.0
    for piece in pieces:
        if not len(piece):
            continue
        whole = piece if held is None else Prints.joined([held, piece], piece.values.shape[1])
        before = np.concatenate([told, np.zeros(len(piece), bool)])
        mask = before.copy()
        _mark(whole, whole, mask, mask)
        if wide is not None and len(wide):
            _mark(whole, wide, mask, wide_near)
        fresh = mask & ~before
        if fresh.any():
            yield whole[fresh]
        # what lies within reach of the next piece is looked at once more, together with it
        reach = max(reach, WIDER * float(whole.room[:, 0].min()), float(whole.room[:, 0].max()))
        cut = int(np.argmax(whole.values[:, 0] + reach >= whole.values[-1, 0]))
        held, told = whole[cut:], mask[cut:]
    if wide is not None and wide_near.any():
        yield wide[wide_near]


WIDER = 30.0
"""Beyond so many times the smallest room of a structure, a fingerprint is wide."""


def is_wide(room: Floats, least: float) -> NDArray[np.bool_]:
    """Which first rooms are too wide for a window. least: the smallest of the structure."""
    return np.asarray(~(room <= WIDER * least))


def _mark(some: Prints, others: Prints, near_some: NDArray[np.bool_], near_others: NDArray[np.bool_]) -> None:
    """Mark which of some are near one of the others (sorted), and the other way round; none is near itself."""
    first, room = some.values[:, 0], some.room[:, 0]
    reach = np.minimum(np.maximum(room, others.room[:, 0].max()), np.finfo(float).max / 4)
    low = np.searchsorted(others.values[:, 0], first - reach, side="left")
    high = np.searchsorted(others.values[:, 0], first + reach, side="right")
    counts = high - low
    dense = counts > _DENSE
    for i in np.flatnonzero(dense):
        near_some[i] = True
        near_others[low[i] : high[i]] = True
    counts = np.where(dense, 0, counts)
    ends = np.cumsum(counts)
    start = 0
    while start < len(some):
        base = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + _PAIRS, side="right")))
        here = counts[start:stop]
        a = np.repeat(np.arange(start, stop), here)
        b = low[a] + np.arange(len(a)) - np.repeat(np.cumsum(here) - here, here)
        keep = some.ids[a] != others.ids[b]
        for k in range(some.values.shape[1]):
            a, b = a[keep], b[keep]
            keep = np.abs(some.values[a, k] - others.values[b, k]) <= np.maximum(some.room[a, k], others.room[b, k])
        near_some[a[keep]] = True
        near_others[b[keep]] = True
        start = stop


def split(prints: Prints) -> tuple[Prints, Prints]:
    """Fingerprints in memory as `crowded` takes them: those of ordinary room, and the wide ones, both sorted."""
    prints = prints.sorted()
    wide = is_wide(prints.room[:, 0], float(prints.room[:, 0].min(initial=np.inf)))
    return prints[~wide], prints[wide]


def pieces_of(prints: Prints, size: int = PIECE) -> Iterator[Prints]:
    """Sorted fingerprints in pieces."""
    for start in range(0, len(prints), size):
        yield prints[slice(start, start + size)]
