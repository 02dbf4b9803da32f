"""Assignment between the units of two networks."""

from canon.matching.assign import Assignment, assign, runners_up
from canon.matching.problem import Problem, State
from canon.matching.search import Matching, anchored, descend, search, stored, turned
from canon.matching.settle import settle
from canon.matching.sketch import sketched

__all__ = [
    "Assignment",
    "Matching",
    "Problem",
    "State",
    "anchored",
    "assign",
    "descend",
    "runners_up",
    "search",
    "settle",
    "sketched",
    "stored",
    "turned",
]
