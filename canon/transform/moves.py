"""Networks moved within their orbit: to the canonical form, to a random member, next to another network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from canon.action import Action, random_action
from canon.compare.check import Agreement
from canon.compare.comparing import make_pair
from canon.compare.side import Side
from canon.errors import UsageError
from canon.fold import Folded, fold
from canon.gauge import exact
from canon.network import Network
from canon.ops.base import Array
from canon.order import Order, canonical_order
from canon.precision import as_stored, roundoff
from canon.symmetry import Axis, Concat, Interleaved, Product, Symmetry, Turn, Use
from canon.symmetry import derive as derive_symmetry
from canon.transform.cast import cast, proved
from canon.transform.embed import CannotEmbedError, embed
from canon.transform.neighbours import follow

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Moved:
    """network: in the types it was stored in; actions: what led there, as arrays by space; check: both were run;
    notes: what is worth telling.
    """

    network: Network
    actions: Mapping[str, Mapping[str, Array]]
    check: Agreement
    notes: tuple[str, ...] = ()


def canonicalize(
    network: Network, gauge: str = "incoming", folded: bool = False, seed: int = 0, tell: Tell = lambda _: None
) -> Moved:
    """The canonical form of a network: one for every member of its orbit, up to rounding.

    gauge: "incoming", "balanced" or "exact" (powers of two and signs, on the tensors as stored: equal bytes); folded:
    return the folded network instead of the architecture that was read.
    Raises NotFinite, NumericError (a value leaves its type; outputs that do not agree), UsageError.
    """
    network.check_finite()
    if gauge == "exact":
        if folded:
            raise UsageError("--folded", "folding rounds, and the exact gauge never does", "Use --gauge incoming or balanced.")
        return _exact(network, seed, tell)
    tell("folding and normalising")
    fo = fold(network)
    side = Side(fo, fo.symmetry)
    used = side.balanced if gauge == "balanced" else side.gauge
    tell("ordering units")
    order = _order(side, used.gauges, network)
    action = Action(fo.symmetry, order.perms) @ side.action(used)
    form = action(fo.network)
    notes = _order_notes(order)
    if folded:
        made = cast(form, network)
        return Moved(made, action.arrays(), proved(network, made, seed), notes)
    try:
        whole = embed(fo, form)
    except CannotEmbedError as why:
        whole = fo.lift(action)
        notes = (*notes, f"what was folded stays as it was: {why}")
    made = _kept(cast(whole, network), network)
    tell("checking outputs")
    return Moved(made, fo.lifted(action).arrays(), proved(network, made, seed), notes)


def _order(side: Side, gauges: Mapping[str, Array], like: Network) -> Order:
    """Order on the values as they will be stored, so that a canonical form orders to itself."""
    normal = Action(side.symmetry, {}, gauges)  # on tensors whose heads are balanced
    values = normal.values_of(side.tensors)
    kind = like.main_type if like.dtype.kind == "f" else "float32"
    with np.errstate(over="ignore", under="ignore"):
        rounded = {n: as_stored(normal.linear(n, t, values), kind) for n, t in side.tensors.items()}
    return canonical_order(side.symmetry, rounded, side.dead)


def _kept(made: Network, before: Network) -> Network:
    """What was canonical up to rounding is left as it was, so that canonicalising twice changes nothing."""
    for name, t in made.tensors.items():
        old = before.tensors[name]
        u = roundoff(before.stored_type(name)) if old.dtype.kind == "f" else 0.0
        gap = np.abs(np.asarray(t, np.float64) - np.asarray(old, np.float64))
        size = np.abs(np.asarray(old, np.float64))
        if (gap > 16 * u * np.maximum(size, size.max(initial=0.0) * u)).any():
            return made
    return before


def _order_notes(order: Order) -> tuple[str, ...]:
    out = [f"{n} units of {s} could not be told apart" for s, n in order.tied.items() if n]
    out += [f"the order of {s} hangs on a difference of {m:.1g}" for s, m in order.margins.items() if m < 1e-6]
    return tuple(out)


def _exact(network: Network, seed: int, tell: Tell) -> Moved:
    symmetry = derive_symmetry(network)
    found = exact(network, symmetry)
    gauge = Action(symmetry, {}, found.gauges)
    order = canonical_order(symmetry, gauge(network).tensors, {})
    action = Action(symmetry, order.perms) @ gauge
    made = cast(action(network), network)
    tell("checking outputs")
    notes = [f"the sign of some units of {g} could not be told" for g, m in found.margins.items() if (m == 0).any()]
    notes += _left_by_exact(symmetry)
    return Moved(made, action.arrays(), proved(network, made, seed), (*_order_notes(order), *notes))


def _left_by_exact(symmetry: Symmetry) -> list[str]:
    """Turns of heads round (the signs among them are not looked for): where copies differ in them, their bytes stay apart."""
    if not symmetry.blocks:
        return []
    groups: dict[str, list[str]] = {}
    for block in symmetry.blocks.values():
        groups.setdefault(block.group, []).append(block.name)
    said = ", ".join(f"{g} on {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "") for g, names in groups.items())
    return [f"what acts inside heads is left as it is: {said}"]


def teleport(network: Network, seed: int = 0, sigma: float = 1.0, folded: bool = False, tell: Tell = lambda _: None) -> Moved:
    """A random member of the network's orbit: relabelled, rescaled by exp(N(0, sigma^2)), flipped, turned where linear.

    Raises NotFinite and NumericError.
    """
    network.check_finite()
    tell("moving")
    base = fold(network).network if folded else network
    symmetry = derive_symmetry(base)
    if network.dtype.itemsize < 4:
        sigma = min(sigma, 0.25)  # half floats have little range
    turned = {s.name for s in symmetry.spaces.values() if s.linear} - set(fold(base).symmetry.spaces)
    action = random_action(symmetry, base, np.random.default_rng(seed), sigma, turned=turned)
    made = cast(action(base), network)
    tell("checking outputs")
    return Moved(made, action.arrays(), proved(network, made, seed))


def align(a: Network, b: Network, folded: bool = False, seed: int = 0, tell: Tell = lambda _: None) -> Moved:
    """B moved into A's labelling, signs and scales.

    Raises MismatchError (different architectures), NotFinite and NumericError.
    """
    a.check_finite()
    b.check_finite()
    pair, _, right = make_pair(a, b, tell)
    state, worst = None, None
    for make in pair.candidates():
        found = make()
        if found is None:
            continue
        state = found
        _, worst = pair.prove(state)
        if worst.deviation <= 1:
            break
    if worst is not None and worst.deviation > 1:
        state = pair.searched
    assert state is not None
    there = ~pair.gauge_action() @ pair.to_action(state)
    own = fold(b)
    action = _translated(there, right, own, pair.pairing.values)
    if folded:
        made = cast(action(own.network), b)
        return Moved(made, action.arrays(), proved(b, made, seed))
    lifted = own.lifted(action)
    whole = follow(a, lifted(b))
    made = cast(whole, b)
    tell("checking outputs")
    return Moved(made, lifted.arrays(), proved(b, made, seed))


def _translated(action: Action, named: Folded, own: Folded, values: Mapping[str, str]) -> Action:
    """An action on the network under the other's names, as one under its own names: by walking both symmetries' axes.

    values: own names of values -> the other's.
    """
    spaces: dict[str, str] = {}
    gauges: dict[str, str] = {}
    blocks: dict[str, str] = {}
    theirs = own.symmetry
    for w, v in values.items():
        for x, y in zip(named.symmetry.values[v], theirs.values[w], strict=True):
            _names(x.axis, y.axis, spaces, gauges, blocks)
    return Action(
        theirs,
        {spaces[s]: p for s, p in action.perms.items()},
        {gauges[g]: v for g, v in action.gauges.items() if g in gauges},
        turns={blocks[b]: t for b, t in action.turns.items() if b in blocks},
    )


def _names(x: Axis, y: Axis, spaces: dict[str, str], gauges: dict[str, str], blocks: dict[str, str]) -> None:
    if isinstance(x, Use | Product) and isinstance(y, Use | Product):
        gauges.update({g: h for (g, _), (h, _) in zip(x.gauges, y.gauges, strict=False)})
    if isinstance(x, Use) and isinstance(y, Use):
        spaces[x.space] = y.space
    elif isinstance(x, Turn) and isinstance(y, Turn):
        blocks[x.block] = y.block
    elif isinstance(x, Concat | Interleaved | Product) and isinstance(y, Concat | Interleaved | Product):
        for p, q in zip(x.parts, y.parts, strict=True):
            _names(p, q, spaces, gauges, blocks)
