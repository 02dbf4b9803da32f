"""A graph for a run that has none of its own: borrowed from another run, tensor for tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from canon.errors import MismatchError
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run

UNRECORDED = "nonlinearities are not recorded: only relabelling of units is certain"
NO_CHAIN = "the graph is not recorded and shapes prove no chain of layers: no unit is moved"
EPSILON = "the epsilon of batch norms is not recorded:"
"""How the notes begin that say what a file without a graph leaves open."""

_ABOUT_THE_OLD_GRAPH = (NO_CHAIN, UNRECORDED, EPSILON)


def borrow(run: Run, lender: Run) -> Run:
    """The run's tensors in the lender's graph.

    Paired by name where all names agree; else by names of which one ends in the other, by the layer that a paired tensor
    belongs to, and what is left in stored order, where shapes allow that one way alone. A tensor that equals another, which
    the lender's graph has once (a tied one), is left out.
    Raises MismatchError naming the first tensor that does not fit.
    """
    mine, theirs = run.network.tensors, lender.network.tensors
    copies = _copies(mine) if len(mine) > len(theirs) else {}
    if len(mine) - len(copies) != len(theirs):
        raise MismatchError("", f"holds {len(mine)} tensors, and the architecture of {lender.path} takes {len(theirs)}")
    pairs, paired = _paired({name: t for name, t in mine.items() if name not in copies}, lender)
    ops = tuple(replace(op, params={role: pairs[t] for role, t in op.params.items()}) for op in lender.network.ops)
    precision = {t: kind for t, kind in run.network.precision.items() if t not in copies}
    tensors = {t: x for t, x in mine.items() if t not in copies}
    network = Network(tensors, ops, lender.network.inputs, lender.network.outputs, precision)
    kept = tuple(note for note in run.notes if not note.startswith(_ABOUT_THE_OLD_GRAPH))
    notes = (*kept, f"the graph is borrowed from {lender.path}, tensors paired {paired}")
    if copies:
        name, of = next(iter(copies.items()))
        notes = (*notes, f"left out, for they are copies: {len(copies)} tensors, as {name!r} of {of!r}")
    return run.with_network(network, graph="borrowed", activations_known=lender.activations_known, notes=notes)


def _copies(tensors: Mapping[str, Array]) -> dict[str, str]:
    """Tensors of several axes that equal one before them."""
    found: dict[str, str] = {}
    seen: dict[tuple[int, ...], list[str]] = {}
    for name, t in tensors.items():
        if t.ndim < 2:
            continue
        before = seen.setdefault(t.shape, [])
        same = next((other for other in before if t.dtype == tensors[other].dtype and np.array_equal(t, tensors[other])), None)
        if same is None:
            before.append(name)
        else:
            found[name] = same
    return found


def _paired(mine: Mapping[str, Array], lender: Run) -> tuple[dict[str, str], str]:
    """The lender's tensors -> the run's, and how they were paired, in words."""
    theirs = lender.network.tensors
    if set(mine) == set(theirs):
        return _checked({b: b for b in theirs}, mine, lender), "by name"
    pairs = _by_ending(mine, theirs)
    named = len(pairs)
    _by_layer(pairs, mine, lender)
    left = [b for b in theirs if b not in pairs], [a for a in mine if a not in set(pairs.values())]
    shapes = [theirs[b].shape for b in left[0]], [mine[a].shape for a in left[1]]
    if shapes[0] != shapes[1] and sorted(shapes[0]) == sorted(shapes[1]):
        twice = [a for a, s in zip(left[1], shapes[1], strict=True) if shapes[1].count(s) > 1]
        if twice:
            raise MismatchError(
                twice[0],
                f"may be any of several tensors of the architecture of {lender.path}: neither names nor shapes tell",
                "Give the tensors the names of the architecture, or its order.",
            )
        by_shape = dict(zip(shapes[1], left[1], strict=True))
        left = left[0], [by_shape[s] for s in shapes[0]]
    in_order = dict(zip(*left, strict=True))
    pairs = _checked({**in_order, **pairs}, mine, lender)
    if not in_order:
        return pairs, "by what their names end in"
    some = f"in order, as {next(iter(in_order))!r} with {next(iter(in_order.values()))!r}"
    return pairs, some if not named else f"by what their names end in, and {len(in_order)} {some}"


def _checked(pairs: dict[str, str], mine: Mapping[str, Array], lender: Run) -> dict[str, str]:
    for b, a in pairs.items():
        if mine[a].shape != lender.network.tensors[b].shape:
            shape = lender.network.tensors[b].shape
            raise MismatchError(a, f"has shape {mine[a].shape}, and {b!r} of the architecture of {lender.path} has {shape}")
    return pairs


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.split(r"[./]", name))


def _by_ending(mine: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, str]:
    """Pairs of names of which one ends in the other, word for word, where each has one such partner of its shape."""
    found: dict[str, list[str]] = {}
    ends: dict[tuple[str, ...], list[str]] = {}
    for a in mine:
        words = _words(a)
        for i in range(len(words)):
            ends.setdefault(words[i:], []).append(a)
    whole = {_words(a): a for a in mine}
    for b, t in theirs.items():
        words = _words(b)
        near = set(ends.get(words, []))
        near |= {whole[words[i:]] for i in range(1, len(words)) if words[i:] in whole}
        found[b] = [a for a in near if mine[a].shape == t.shape]
    one = {b: names[0] for b, names in found.items() if len(names) == 1}
    several = {a for names in found.values() for a in names if sum(a in other for other in found.values()) > 1}
    return {b: a for b, a in one.items() if a not in several}


def _by_layer(pairs: dict[str, str], mine: Mapping[str, Array], lender: Run) -> None:
    """A layer's tensors with those beside what is paired already: its kernel with that beside its bias."""
    taken = set(pairs.values())
    beside: dict[tuple[str, ...], list[str]] = {}
    for a in mine:
        beside.setdefault(_words(a)[:-1], []).append(a)
    for op in lender.network.ops:
        layers = {_words(pairs[t])[:-1] for t in op.params.values() if t in pairs}
        if len(layers) != 1:
            continue
        for t in op.params.values():
            shape = lender.network.tensors[t].shape
            near = [a for a in beside[next(iter(layers))] if a not in taken and mine[a].shape == shape]
            if t not in pairs and len(near) == 1:
                pairs[t] = near[0]
                taken.add(near[0])
