"""Mutual nearest neighbours: the share of each sample's neighbours that are its neighbours on the other side as well.

    mean over i of |N_X(i) & N_Y(i)| / 10,   N(i) the 10 nearest samples by cosine, not centred

Of more than 1024 rows a seeded choice is used.

Range 0 to 1, 1 the same. Invariant to rotations and to one factor for all units; not to constants or to a factor for
each unit. It orders much as neighbour_jaccard does.

Source: Huh, Cheung, Wang, Isola, "The Platonic Representation Hypothesis", ICML 2024, appendix A.
"""

from __future__ import annotations

from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.measures.neighbours import K, shared
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    return float(shared(pair).mean()) / K


MUTUAL = Measure("mutual_knn", "mutual nearest neighbours", _of, 1.0, 0.0, NORMED - {"translation"}, work="samples")
