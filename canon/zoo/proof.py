"""Whether two files hold the same network: `compare` says so, element by element; a few cheap questions come before.

Each of those can only say no, and only where comparing could not say yes: the outputs on the check's own probes differ by
more than their bound; or a unit of a layer that reads the inputs has no partner within its own, and outputs prove nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from canon.compare import compare
from canon.compare.check import agree, probes, run_on
from canon.compare.comparing import FLOAT32, Pair, joined
from canon.compare.side import Side
from canon.compare.verdict import TIGHT
from canon.errors import CanonError, MismatchError
from canon.fold import Folded, fold
from canon.formats import read
from canon.network import Network
from canon.ops.base import Array
from canon.pieces import Piece
from canon.run import Run
from canon.zoo.fingerprint import CHEAP, ROUNDINGS, exact_hash, work
from canon.zoo.lookup import FAILED_TO_COMPARE, Proof
from canon.zoo.places import here

KINDS = ("identical", "equivalent", "same-to-precision", "same-function")
"""Of members of a group, from the strongest to the weakest."""
SURE = ("identical", "equivalent")
_HASHED = 1 << 20
"""Parameters up to which it is said whether a copy is one to the bit."""
SAMPLE = 256
"""Units of a layer that are asked for a partner."""
_SPARE = 2.0
"""How much wider than it has to be the bound of a unit is taken."""


def prove(a: Run, b: Run, quick: bool = True, folding: Callable[[Network], Folded] = fold) -> Proof:
    """What the two are to each other: a verdict of `compare`, "" where nothing but a copy was looked for and it is none.

    quick: whether it is enough to know that they are no copies; folding: `fold`, or what remembers it.
    """
    try:
        if quick and (why := refuted(a, b, folding)):
            return Proof("", None, why)
        found = compare(a, b)
    except MismatchError as e:
        return Proof("", None, e.what)
    why = found.reason
    if found.verdict == "equivalent" and a.network.parameters < _HASHED and exact_hash(a.network) == exact_hash(b.network):
        why = "bit for bit, relabelled and rescaled by powers of two and signs"
    return Proof(found.verdict, found.distance["matched"], why)


def refuted(a: Run, b: Run, folding: Callable[[Network], Folded] = fold) -> str:
    """Why the two cannot be copies; "" where only comparing can tell.

    Raises MismatchError where their graphs differ.
    """
    readings = any(run.alternatives or run.whole is not None for run in (a, b))
    lent = a.activations_known != b.activations_known or "none" in (a.graph, b.graph)
    if readings or lent:
        return ""
    pair, _, _ = joined(folding(a.network), folding(b.network), a.network, b.network, lambda _: None)
    alone = lonely(pair)
    if work(a.network) > 4 * a.network.parameters + CHEAP:  # not run: only by its units could it be a copy
        return alone
    sets = probes(a.network, {}, 0)
    outputs = agree(run_on(a.network, sets), run_on(b.network, sets, list(a.network.inputs)), pair.unit, sets)
    if outputs.deviation is not None and outputs.deviation > 1:
        return "outputs differ"
    same_function = outputs.deviation is not None and outputs.bound <= TIGHT
    return "" if same_function else alone


def lonely(pair: Pair) -> str:
    """A unit of A, in a layer that reads what has fixed places, without any partner in B within the bound of a proof."""
    problem = pair.incoming
    rate = ROUNDINGS * max(pair.unit, FLOAT32) * _SPARE
    for space in problem.free:
        for piece, at in problem.of[space]:
            others = [axis for i, axis in enumerate(piece.axes) if i != at]
            if piece.axes[at].role != "in" or any(axis.space or axis.turn or axis.signs for axis in others):
                continue
            if _alone(pair, piece, at, rate, bool(piece.axes[at].signs)):
                return f"a unit of {space} has no partner"
    return ""


def _alone(pair: Pair, piece: Piece, at: int, rate: float, signed: bool) -> bool:
    """Whether some row of A's block is further from every row of B's than all its entries' bounds together."""
    block = pair.incoming.block(piece)
    x, y = (np.moveaxis(t, at, 0).reshape(t.shape[at], -1) for t in (block.a, block.b))
    if x.shape[1] < 2:
        return False
    some = slice(None) if len(x) <= SAMPLE else slice(None, None, len(x) // SAMPLE)
    (sx, wx), (sy, wy) = (
        _sizes(side, piece, at, t, floor) for side, t, floor in zip((pair.a, pair.b), (x, y), pair.floors, strict=True)
    )
    x, sx, wx = x[some], sx[some], wx[some]
    inner = x @ y.T
    gap = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y) - 2 * (np.abs(inner) if signed else inner)
    room = rate * (sx[:, None] + sy) + wx[:, None] + wy
    return bool((np.sqrt(np.maximum(gap, 0.0)) > room).all(axis=1).any())


def _sizes(side: Side, piece: Piece, at: int, rows: Array, floor: float) -> tuple[Array, Array]:
    """For each row, the norm of its magnitudes, and of what lies under the smallest normal number, both normalised."""
    t, known = side.tensors[piece.tensor], side.size(piece.tensor)
    raw, size = (
        np.moveaxis(piece.view(np.asarray(whole, np.float64)), at, 0).reshape(rows.shape)
        for whole in (t, np.abs(t) if known is None else known)
    )
    own = np.linalg.norm(raw, axis=1)
    factor = np.divide(np.linalg.norm(rows, axis=1), own, out=np.ones(len(rows)), where=own > 0)
    return factor * np.linalg.norm(size, axis=1), factor * floor * np.sqrt(rows.shape[1])


# in a worker

_UNSAID = ("none", "chain")
_KEPT = 2
_LARGE = 1 << 24
_runs: OrderedDict[tuple[str, str], Run] = OrderedDict()


def _run(path: str, sha: str) -> Run:
    """A file's run; the last ones are kept, as long as they are small."""
    if (path, sha) in _runs:
        _runs.move_to_end((path, sha))
        return _runs[path, sha]
    with here(path) as local:
        run = read(local)
    if run.network.parameters < _LARGE:
        _runs[path, sha] = run
        while len(_runs) > _KEPT:
            _runs.popitem(last=False)
    return run


_folded: OrderedDict[int, tuple[Network, Folded]] = OrderedDict()


def _fold(network: Network) -> Folded:
    """A network's folded form; the last ones are kept, as long as they are small."""
    held = _folded.get(id(network))
    if held is None or held[0] is not network:
        held = network, fold(network)
        if network.parameters < _LARGE:
            _folded[id(network)] = held
            while len(_folded) > _KEPT:
                _folded.popitem(last=False)
    return held[1]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two files to be compared: paths, and hashes of their content; quick: as `prove` has it."""

    a: str
    b: str
    sha_a: str
    sha_b: str
    quick: bool = True


def _both(p: Pairing) -> tuple[Run, Run]:
    """Both files; one that says no graph is read by that of the other, where it fits."""
    a, b = _run(p.a, p.sha_a), _run(p.b, p.sha_b)
    if a.graph in _UNSAID and b.graph not in _UNSAID:
        a = _lent(p.a, p.b, a)
    elif b.graph in _UNSAID and a.graph not in _UNSAID:
        b = _lent(p.b, p.a, b)
    return a, b


def _lent(path: str, lender: str, own: Run) -> Run:
    try:
        with here(path) as mine, here(lender) as theirs:
            return read(mine, architecture=theirs)
    except CanonError:  # it does not fit: the two are compared as they are
        return own


def prove_all(pairs: Sequence[Pairing]) -> list[Proof]:
    """A proof for each pair. What cannot be read any more, or not compared, is no copy, and the proof says why."""
    out: list[Proof] = []
    for p in pairs:
        try:
            out.append(prove(*_both(p), p.quick, _fold))
        except CanonError as e:
            out.append(Proof("", None, FAILED_TO_COMPARE + e.what))
        except MemoryError:
            out.append(Proof("", None, FAILED_TO_COMPARE + "not enough memory"))
        except Exception as e:  # of one pair: the others go on
            out.append(Proof("", None, f"{FAILED_TO_COMPARE}internal error: {type(e).__name__}: {e}"))
    return out


def lost(pair: Pairing) -> Proof:
    """What stands for a pair that kills whoever compares it."""
    return Proof("", None, FAILED_TO_COMPARE + "that killed the process, three times")
