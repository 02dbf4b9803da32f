"""Disagreement: the share of samples to which the two networks give another class.

    mean over i of [argmax_c x_ic  is not  argmax_c y_ic]

of outputs with a unit a class: probabilities or logits, it is the same.

Range 0 (the same answers) to 1. Invariant to one factor for all units and to a number added to all units of a sample. Not
to relabelling: a class is a class. What hidden units are called and how they are scaled does not change outputs.

Source: Milani Fard, Cormier, Canini, Gupta, "Launch and Iterate: Reducing Prediction Churn", NeurIPS 2016.
"""

from __future__ import annotations

from canon.errors import NumericError
from canon.similarity.measures.base import Measure
from canon.similarity.pair import Pair


def check(pair: Pair) -> None:
    """Raise NumericError for outputs that cannot be classes, the same on both sides."""
    if pair.a.units != pair.b.units:
        raise NumericError("", f"{pair.a.units} outputs and {pair.b.units}: not the same classes")
    if pair.a.units < 2:
        raise NumericError("", "a single output is no choice between classes")


def _of(pair: Pair) -> float:
    check(pair)
    x, y = (side.once("classes", lambda layer: (layer.rows + layer.mean).argmax(axis=1)) for side in (pair.a, pair.b))
    return float((x != (y if pair.index is None else y[pair.index])).mean())


DISAGREEMENT = Measure(
    "disagreement", "share of samples given another class", _of, 0.0, 1.0, frozenset({"isotropic", "shift"}), outputs=True
)
