"""Nearest-neighbour Jaccard: the overlap of each sample's neighbours on both sides.

    mean over i of |N_X(i) & N_Y(i)| / |N_X(i) | N_Y(i)|,   N(i) the 10 nearest samples by cosine, not centred

Of more than 1024 rows a seeded choice is used.

Range 0 to 1, 1 the same. Invariant to rotations and to one factor for all units; not to constants or to a factor for
each unit.

Sources: Schumacher, Wolf, Ritzert, Lemmerich, Grohe, Strohmaier, "The Effects of Randomness on the Stability of Node
Embeddings", 2021; with these settings in Klabunde et al., "ReSi", 2024.
"""

from __future__ import annotations

from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.measures.neighbours import K, shared
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    found = shared(pair)
    return float((found / (2 * K - found)).mean())


JACCARD = Measure("neighbour_jaccard", "overlap of nearest neighbours", _of, 1.0, 0.0, NORMED - {"translation"}, work="samples")
