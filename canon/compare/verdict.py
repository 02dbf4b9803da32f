"""The word, and the sentence that says what it rests on: the first row of the table that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canon.compare.check import Agreement
from canon.compare.evidence import ENOUGH, FEWEST, STORED_ORDER, StandingOut, StoredOrder
from canon.compare.measure import Worst

VERDICTS = ("identical", "equivalent", "same-to-precision", "same-function", "related", "independent", "undecided")
"""From the strongest to the weakest."""
TIGHT = 1e-3
"""Outputs that agree within a bound larger than this share of their spread are not called the same function."""
TYPES = {2.0**-11: "float16", 2.0**-8: "bfloat16", 2.0**-24: "float32", 2.0**-53: "float64"}


@dataclass(frozen=True)
class Facts:
    """What is known when the word is said.

    worst: in units of the bound of float32 or finer; coarse: the same in units of the stored type's bound; unit: rounding
    of the coarser stored type; hindrances: what stands in the way of calling two networks independent.
    """

    worst: Worst | None
    coarse: float | None
    unit: float
    outputs: Agreement | None
    order: StoredOrder | None
    standing: StandingOut | None
    hindrances: Sequence[str] = ()
    moved: Sequence[Agreement] = ()
    partial: bool = False


def verdict(facts: Facts) -> tuple[str, str]:
    """(word, reason) for two networks whose tensors are not all the same bytes."""
    failed = any(
        check.deviation is not None and check.deviation > 1 for check in (facts.outputs, *facts.moved) if check is not None
    )
    if facts.worst is not None and not facts.partial and not failed:
        if facts.worst.deviation <= 1:
            return (
                "equivalent",
                f"one is the other relabelled and rescaled, each entry within {facts.worst.deviation:.2g} of its bound",
            )
        if facts.coarse is not None and facts.coarse <= 1:
            kind = TYPES.get(facts.unit, "its type")
            return (
                "same-to-precision",
                f"the same up to the rounding of {kind}, every entry within {facts.coarse:.2g} of that bound",
            )
    outputs = facts.outputs
    agreed = outputs is not None and outputs.deviation is not None and outputs.deviation <= 1 and outputs.bound <= TIGHT
    if outputs is not None and agreed and not facts.partial:
        return (
            "same-function",
            f"outputs agree on {outputs.probes} probes to {outputs.deviation:.2g} of the rounding bound, "
            "but no relabelling and rescaling was found",
        )
    return _descent(facts)


def _descent(facts: Facts) -> tuple[str, str]:
    order, standing = facts.order, facts.standing
    if order is not None and standing is None and min(order.z, order.near) >= STORED_ORDER:
        return "related", f"units stand in the same places (z = {order.z:.1f}, {STORED_ORDER:.0f} is asked)"
    if standing is None:
        return "undecided", "; ".join(facts.hindrances) or "nothing to weigh evidence on"
    figures = f"score {standing.score:.2f} over {standing.units} units"
    if standing.score >= standing.threshold and standing.units >= FEWEST:
        return "related", f"partners stand clear of every rival ({figures}, {standing.threshold:.2f} is asked)"
    if standing.units < ENOUGH:
        return (
            "undecided",
            f"too narrow to tell: {standing.units} units, {ENOUGH} are needed; run both on the same data",
        )
    if standing.score >= standing.threshold / 2:
        return (
            "undecided",
            f"some partners stand out, too few to call ({figures}, {standing.threshold:.2f} is asked); "
            "an earlier checkpoint of either would settle it",
        )
    if facts.hindrances:
        return "undecided", f"no trace of common descent, but {facts.hindrances[0]}"
    return "independent", f"no trace of common descent in the two files ({figures}, under {standing.threshold / 2:.2f})"
