"""What two architectures have in common: ops paired from the inputs until the graphs differ."""

from __future__ import annotations

from typing import Any

from canon.compare.pairing import differences, signature, value_keys
from canon.errors import MismatchError
from canon.network import Network
from canon.ops import Op


def common(a: Network, b: Network) -> tuple[Network, Network, dict[str, Any] | None]:
    """The two networks cut down to what they share, and what was compared and left; None where they share everything.

    Raises MismatchError where no parameter is shared.
    """
    keys = value_keys(a, ()), value_keys(b, ())
    open_: dict[str, list[Op]] = {}
    for op in b.ops:
        open_.setdefault(keys[1][op.output], []).append(op)
    pairs: list[tuple[Op, Op]] = []
    for op in a.ops:
        found = open_.get(keys[0][op.output])
        if found and signature(a, op) == signature(b, found[0]):
            pairs.append((op, found.pop(0)))
    if len(pairs) == len(a.ops) == len(b.ops):
        return a, b, None
    if not any(x.params for x, _ in pairs):
        raise MismatchError(
            "",
            "nothing in common from the inputs on: " + "; ".join(differences(a, b)),
            "Their inputs or first layers differ.",
        )
    kept = [x for x, _ in pairs], [y for _, y in pairs]
    ends = [v for v in (x.output for x in kept[0]) if _goes_on(a, kept[0], v) or _goes_on(b, kept[1], _partner(pairs, v))]
    cut_a = _cut(a, kept[0], ends)
    cut_b = _cut(b, kept[1], [_partner(pairs, v) for v in ends])
    info = {
        "compared": [x.name for x in kept[0]],
        "left_a": [op.name for op in a.ops if op not in kept[0]],
        "left_b": [op.name for op in b.ops if op not in kept[1]],
    }
    return cut_a, cut_b, info


def _partner(pairs: list[tuple[Op, Op]], value: str) -> str:
    return next(y.output for x, y in pairs if x.output == value)


def _goes_on(network: Network, kept: list[Op], value: str) -> bool:
    """Whether something that is left out reads the value, or nothing does."""
    readers = [op for op in network.ops if value in op.inputs]
    return value in network.outputs or any(op not in kept for op in readers)


def _cut(network: Network, kept: list[Op], ends: list[str]) -> Network:
    used = {t for op in kept for t in op.params.values()}
    end = Op("cut", "cut", tuple(ends), "cut")
    tensors = {n: t for n, t in network.tensors.items() if n in used}
    return Network(tensors, (*kept, end), network.inputs, ("cut",), network.precision)
