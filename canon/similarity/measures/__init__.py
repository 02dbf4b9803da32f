"""The measures, one small file each: formula, range, direction, invariances and source stand in its docstring."""

from __future__ import annotations

from canon.similarity.measures.angular_shape import ANGULAR
from canon.similarity.measures.base import MOVES, Measure
from canon.similarity.measures.cca import CCA
from canon.similarity.measures.cka import BIASED, CKA, STANDARDISED
from canon.similarity.measures.cka_minibatch import MINIBATCH, RBF_MINIBATCH
from canon.similarity.measures.cka_rbf import RBF, RBF_BIASED
from canon.similarity.measures.disagreement import DISAGREEMENT
from canon.similarity.measures.dissimilarity import COSINE, PEARSON, SPEARMAN
from canon.similarity.measures.jensen_shannon import JENSEN_SHANNON
from canon.similarity.measures.matching_hard import HARD, UNSIGNED
from canon.similarity.measures.matching_partial import PARTIAL
from canon.similarity.measures.matching_soft import SOFT
from canon.similarity.measures.mutual_knn import MUTUAL
from canon.similarity.measures.neighbour_jaccard import JACCARD
from canon.similarity.measures.permutation_distance import ANGLE, SIZE
from canon.similarity.measures.procrustes import PROCRUSTES
from canon.similarity.measures.procrustes import SIZE as PROCRUSTES_SIZE
from canon.similarity.measures.pwcca import PWCCA
from canon.similarity.measures.regression import REGRESSION
from canon.similarity.measures.svcca import SVCCA

__all__ = ["DEFAULT", "MEASURES", "MOVES", "Measure"]

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        STANDARDISED, CKA, BIASED, MINIBATCH, RBF, RBF_BIASED, RBF_MINIBATCH,
        HARD, UNSIGNED, SOFT, PARTIAL,
        CCA, SVCCA, PWCCA, REGRESSION,
        PROCRUSTES, PROCRUSTES_SIZE, ANGULAR, ANGLE, SIZE,
        PEARSON, SPEARMAN, COSINE, JACCARD, MUTUAL,
        DISAGREEMENT, JENSEN_SHANNON,
    )
}  # fmt: skip
"""All measures by name, in the order in which they are listed."""

DEFAULT = ("matching_hard", "cka_standardised", "cka", "cca", "procrustes", "disagreement", "jensen_shannon")
"""Measures that are taken unless others are named; those of outputs where both sides have them."""
