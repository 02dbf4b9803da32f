"""Who to compare for a common descent: for each file, those nearest by their figures and by the order of their units.

All pairs of a zoo are too many to compare. Fine-tunes and checkpoints of a run keep their units in place, and so have
sketches of their order at a small angle; what was disguised as well is looked for among the nearest figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from canon.symmetry import Indices
from canon.zoo.candidates import Prints
from canon.zoo.fingerprint import ORDER, OUTPUTS
from canon.zoo.lookup import Lookup

_ROWS = 1 << 22
"""Pairs of sketches that are multiplied at once."""
MOST = 1 << 15
"""Structures of more files are looked at by figures alone: sketches are all multiplied with all."""


def to_compare(index: Lookup, count: int, left_out: Set[int]) -> list[tuple[int, int]]:
    """Pairs of files looked at, of one structure each: for every file its `count` nearest by figures, and by order."""
    pairs: set[tuple[int, int]] = set()
    for structure, kinds in index.structures():
        for kind in kinds:
            if kind in (OUTPUTS, ORDER, ""):
                continue
            parts = [*index.prints(structure, kind, wide=False), *index.prints(structure, kind, wide=True)]
            prints = Prints.joined(parts, 1).sorted()
            prints = prints[~np.isin(prints.ids, list(left_out))]
            pairs.update(_by_figures(prints, count))
            if len(prints) <= MOST:
                pairs.update(_by_order(index, structure, count, left_out))
    return sorted(pairs)


def _by_figures(prints: Prints, count: int) -> Iterator[tuple[int, int]]:
    """Among twice as many on either side by the first figure, the nearest by all."""
    n = len(prints)
    best = np.full((n, count), -1)
    gaps = np.full((n, count), np.inf)
    for shift in [s for k in range(1, 2 * count + 1) for s in (k, -k)]:
        rows = np.arange(max(0, -shift), min(n, n - shift))
        gap = np.linalg.norm(prints.values[rows] - prints.values[rows + shift], axis=1)
        worst = gaps[rows].argmax(axis=1)
        better = gap < gaps[rows, worst]
        gaps[rows[better], worst[better]] = gap[better]
        best[rows[better], worst[better]] = rows[better] + shift
    yield from _pairs(prints.ids, best)


def _by_order(index: Lookup, structure: int, count: int, left_out: Set[int]) -> Iterator[tuple[int, int]]:
    parts = list(index.orders(structure, heads=True))
    if not parts:
        return
    ids = np.concatenate([i for i, _ in parts])
    sketches = np.concatenate([s for _, s in parts])
    kept = ~np.isin(ids, list(left_out))
    ids, sketches = ids[kept], sketches[kept]
    n = len(ids)
    if n < 2:
        return
    step = max(1, _ROWS // n)
    best = np.empty((n, min(count, n - 1)), np.intp)
    for start in range(0, n, step):
        likeness = sketches[start : start + step] @ sketches.T
        likeness[np.arange(len(likeness)), np.arange(start, start + len(likeness))] = -np.inf
        best[start : start + step] = np.argpartition(-likeness, best.shape[1] - 1, axis=1)[:, : best.shape[1]]
    yield from _pairs(ids, best)


def _pairs(ids: Indices, partners: Indices) -> Iterator[tuple[int, int]]:
    for i, row in zip(ids.tolist(), partners.tolist(), strict=True):
        for j in row:
            if j >= 0:
                other = int(ids[j])
                yield min(i, other), max(i, other)
