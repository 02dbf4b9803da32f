"""The folded network with its record, and the lift of an action back to the architecture that was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canon.action import Action
from canon.fold.affine import fold_constants
from canon.fold.constants import centre_logits, gather_sums, move_biases_on
from canon.fold.heads import fold_heads
from canon.fold.linear import bottleneck_name, compose, write_out_groups
from canon.fold.norms import drop_identities, drop_unread, fold_batch_norms
from canon.fold.units import Bools, dead_units, fold_units
from canon.fold.work import Step, Work
from canon.network import Network
from canon.ops import kind_of
from canon.ops.base import Array
from canon.ops.structure import TURNED
from canon.symmetry import Axis, Concat, Fixed, Floats, Indices, Interleaved, Product, Symmetry, Use, derive, factor, gauges_of


@dataclass(frozen=True)
class Folded:
    """network: the folded network; source: the one it came from; magnitudes: for tensors into which something was summed,
    the sum of absolute values; record: what was folded, in order.
    """

    network: Network
    source: Network
    magnitudes: Mapping[str, Array]
    record: tuple[Step, ...]
    rotations: bool = False
    """Whether orthogonal matrices on streams count among its symmetry."""

    @cached_property
    def symmetry(self) -> Symmetry:
        """Of the folded network."""
        return derive(self.network, self.rotations)

    @cached_property
    def source_symmetry(self) -> Symmetry:
        """Of the original."""
        return derive(self.source)

    @cached_property
    def dead(self) -> dict[str, Bools]:
        """Per space, which units are the zero unit."""
        return dead_units(self.network, self.symmetry)

    def magnitude(self, tensor: str) -> Array:
        """The size of each entry, with what was summed into it."""
        return self.magnitudes[tensor] if tensor in self.magnitudes else np.abs(self.network.tensors[tensor])

    @cached_property
    def centred(self) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """Tensors and magnitudes with every value counted from the point about which it flips.

        b becomes b + W m_in - m_out, so that all flips act linearly: this is what is normalised, matched and compared.
        """
        tensors, sizes = dict(self.network.tensors), dict(self.magnitudes)
        left: dict[str, tuple[Array, Array]] = {}
        done: set[str] = set()
        for op in self.network.ops:
            if not op.params or not kind_of(op).affine:
                continue
            inner, outer = (self._centre(v) for v in (op.inputs[0], op.output))
            came = left.get(op.inputs[0])
            if inner is None and outer is None and came is None:
                continue
            params = {r: np.asarray(self.network.tensors[t], np.float64) for r, t in op.params.items()}
            bounds = {r: np.asarray(self.magnitude(t), np.float64) for r, t in op.params.items()}
            t_in = (inner, None if inner is None else np.abs(inner))
            if came is not None:
                t_in = came if inner is None else (inner + came[0], np.abs(inner) + came[1])
            moved = kind_of(op).absorb(op, params, t_in[0], None if outer is None else -outer)
            bound = kind_of(op).absorb(op, bounds, t_in[1], None if outer is None else np.abs(outer))
            for role, t in moved.items():
                if role == "out":
                    left[op.output] = (t, bound["out"])
                elif op.params[role] not in done:
                    done.add(op.params[role])
                    tensors[op.params[role]], sizes[op.params[role]] = t, bound[role]
        return tensors, sizes

    def _centre(self, value: str) -> Array | None:
        return next((side.centre for side in self.symmetry.values[value] if side.centre is not None), None)

    def lifted(self, action: Action) -> Action:
        """The action on the original that moves its folded form by `action`.

        Labels go by name: folding keeps the names of spaces. Gauges go by value: what multiplies a value of the folded
        network multiplies the same value of the original; a gauge that only the original has (in front of a batch norm)
        is left alone.
        """
        perms: dict[str, Indices] = {}
        for name, p in action.perms.items():
            here = self.source_symmetry.spaces.get(name)
            if here is not None and here.size == self.symmetry.spaces[name].size:
                perms[name] = p
        gauges: dict[str, Floats] = {}
        for value, sides in self.source_symmetry.values.items():
            if value not in self.symmetry.values:
                continue
            for mine, theirs in zip(sides, self.symmetry.values[value], strict=True):
                if _sloped(mine.axis, self.source_symmetry):
                    continue  # what comes out of a slope is not the gauge alone; what goes in is
                total = factor(theirs.axis, action.gauges)
                for name, at in _alone(mine.axis):
                    kind = self.source_symmetry.gauges[name].kind
                    if name in gauges or kind == "slope":
                        continue
                    f = np.ones(len(at)) if total is None else total[at]
                    gauges[name] = np.abs(f) if kind == "positive" else np.sign(f)
        turns = {b: t for b, t in action.turns.items() if self.source_symmetry.blocks.get(b) == self.symmetry.blocks[b]}
        linear = {f"{bottleneck_name(s.name)}.{TURNED}": s.name for s in self.source_symmetry.spaces.values() if s.linear}
        mixes = {linear[b]: t[0] for b, t in action.turns.items() if b in linear}
        gauges = {g: v for g, v in gauges.items() if (v != 1).any()}
        return Action(self.source_symmetry, perms, gauges, mixes, turns)

    def lift(self, action: Action) -> Network:
        """The original moved by `action`: same architecture, tensors in float64 where they moved."""
        return self.lifted(action)(self.source)


def _alone(axis: Axis, start: int = 0, stride: int = 1) -> Iterator[tuple[str, Indices]]:
    """(gauge, one position for each of its entries) where a node carries at most one gauge of each kind, to the first power."""
    if isinstance(axis, Fixed):
        return
    if isinstance(axis, Use | Product):
        kinds: dict[str, list[str]] = {}
        for g, e in axis.gauges:
            kinds.setdefault(g.rsplit(":", 1)[1].rstrip("'"), []).append(g if e == 1 else "")
        for names in kinds.values():
            if len(names) == 1 and names[0]:
                yield names[0], start + stride * np.arange(axis.size)
    if isinstance(axis, Concat | Interleaved):
        for p, (first, step) in zip(axis.parts, axis.spots, strict=True):
            yield from _alone(p, start + stride * first, stride * step)
    elif isinstance(axis, Product):
        inner = axis.size
        for p in axis.parts:
            inner //= p.size
            yield from _alone(p, start, stride * inner)


def _sloped(axis: Axis, symmetry: Symmetry) -> bool:
    return any(symmetry.gauges[g].kind == "slope" for g in gauges_of(axis))


def fold(network: Network, rotations: bool = False) -> Folded:
    """Fold what is no freedom of the function.

    rotations: gammas of all RMS norms as well, so that streams may be turned (derive).

    The folded tensors are exact in real arithmetic and computed in float64; `magnitudes` bounds what rounding the stored
    tensors can have moved them by.
    """
    work = Work.of(network)
    drop_unread(work)
    drop_identities(work)
    fold_constants(work)
    fold_batch_norms(work)
    fold_constants(work)
    write_out_groups(work)
    fold_heads(work, rotations)
    move_biases_on(work)
    compose(work)
    move_biases_on(work)
    gather_sums(work)
    centre_logits(work)
    fold_units(work)
    done = work.network()
    kept = {n: m for n, m in work.magnitudes.items() if n in done.tensors}
    return Folded(done, network, kept, tuple(work.record), rotations)
