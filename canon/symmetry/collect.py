"""What the ops of a network say about its axes, collected: labels unified at once, equations between gauges kept.

`AxisTerm` is an axis while equations are collected: a labelling (labels.Term) and where its gauge comes from: an
identity of its own (`gid`), or the parts it is put together from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from canon.network import Network
from canon.ops import Op
from canon.ops.base import AxisRef, Leg, Shape
from canon.symmetry.labels import Term, Turning, find, fix, joined, mark_units, normal, parts_of, restrict, unify


class AxisTerm(AxisRef):
    """A labelling with a gauge: of its own (gid), of its parts, or none."""

    __slots__ = ("gid", "joint", "parts", "term")

    def __init__(self, term: Term, gid: int | None = None, parts: Sequence[AxisTerm] = (), joint: str = "") -> None:
        self.term, self.gid, self.parts, self.joint = term, gid, tuple(parts), joint


@dataclass(frozen=True)
class Tree:
    """Where gauge variables sit on an axis. kind: "leaf" (key), "none" or "one" (fixed), "concat", "interleave", "product".

    inner: of a product with a variable for all its entries, what it is the product of; size: number of entries; spots: of
    an interleaving, first position and step of each part (what is fixed is left out).
    """

    kind: str
    key: Key | None = None
    parts: tuple[Tree, ...] = ()
    inner: tuple[Tree, ...] = ()
    size: int = 0
    spots: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """How many factors of a product around it this takes up."""
        return max(1, len(self.inner))


Key = tuple[int, tuple[int, ...]]
"""A gauge variable: the gid of an axis and the path to a node of its labelling."""


def tree(axis: AxisTerm, refined: set[Key]) -> Tree:
    """The gauge variables along an axis. A product carries one variable for all its entries unless it is refined."""
    if not axis.joint:
        return _own(normal(axis.term), axis.gid, (), refined)
    inner = [tree(p, refined) for p in axis.parts]
    size = axis.term.size
    if axis.joint != "product":
        step = len(inner) if axis.joint == "interleave" else 1
        starts = range(step) if axis.joint == "interleave" else accumulate([0, *(p.size for p in inner[:-1])])
        return _gathered([x for p, start in zip(inner, starts, strict=True) for x in _strands(p, start, step)], size)
    parts: list[Tree] = []
    for t in inner:
        parts += t.parts if t.kind == "product" and t.key is None else [t]
    parts = _normal_product(parts, refined)
    if not parts:
        return Tree("none", size=size)
    return parts[0] if len(parts) == 1 else Tree("product", parts=tuple(parts), size=size)


def _strands(t: Tree, start: int, step: int) -> Iterator[tuple[Tree, int, int]]:
    """What moves along an axis, with first positions and steps, as labels.strands has it."""
    if t.kind == "concat":
        for p in t.parts:
            yield from _strands(p, start, step)
            start += step * p.size
    elif t.kind == "interleave":
        for p, (first, by) in zip(t.parts, t.spots, strict=True):
            yield from _strands(p, start + step * first, step * by)
    elif t.kind not in ("none", "one"):
        yield t, start, step if t.size > 1 else 1


def _gathered(found: list[tuple[Tree, int, int]], size: int) -> Tree:
    """Strands as a concatenation, or an interleaving: as labels.normal has it."""
    found.sort(key=lambda strand: strand[1])
    if not found:
        return Tree("one" if size == 1 else "none", size=size)
    if any(step > 1 for _, _, step in found):
        spots = tuple((start, step) for _, start, step in found)
        return Tree("interleave", parts=tuple(t for t, _, _ in found), size=size, spots=spots)
    parts: list[Tree] = []
    end = 0
    for t, start, _ in [*found, (None, size, 1)]:
        if start > end:
            parts.append(Tree("one" if start - end == 1 else "none", size=start - end))
        if t is not None:
            parts.append(t)
            end = start + t.size
    return parts[0] if len(parts) == 1 else Tree("concat", parts=tuple(parts), size=size)


def _normal_product(parts: list[Tree], refined: set[Key]) -> list[Tree]:
    """Neighbouring fixed factors count as one, factors of size one not at all: as labels.parts_of has it.

    A product with one variable whose own fixed factor would become one with its neighbour has to be refined.
    """
    out: list[Tree] = []
    for t in parts:
        if t.kind == "one":
            continue
        if out and "none" == (out[-1].inner or (out[-1],))[-1].kind == (t.inner or (t,))[0].kind:
            refined.update(x.key for x in (out[-1], t) if x.inner and x.key is not None)
            if t.kind == "none" and not out[-1].inner:
                continue
        out.append(t)
    return out


def _own(term: Term, gid: int | None, path: tuple[int, ...], refined: set[Key]) -> Tree:
    term = normal(term)
    size = term.size
    if term.kind == "fixed":
        return Tree("one" if size == 1 else "none", size=size)
    key = None if gid is None else (gid, path)
    if term.kind == "var":
        return Tree("leaf", key, size=size)
    inner = parts_of(term)
    if term.kind == "product" and (key is None or key not in refined):
        factors = tuple(_own(p, None, (), refined) for p in inner)
        return Tree("product", key, inner=factors, size=size) if key is not None else Tree("product", None, factors, size=size)
    parts = tuple(_own(p, gid, (*path, i), refined) for i, p in enumerate(inner))
    if term.kind == "interleave":
        moving = [(t, *spot) for t, spot in zip(parts, term.spots, strict=True) if t.kind not in ("none", "one")]
        return _gathered(moving, size)
    return Tree(term.kind, None, parts, size=size)


def several(t: Tree) -> bool:
    """Whether some entry along an axis has the product of several variables for a factor."""
    if t.kind == "product" and sum(p.kind not in ("none", "one") for p in t.parts) > 1:
        return True
    return any(several(p) for p in t.parts)


def align(trees: Sequence[Tree], refined: set[Key]) -> list[tuple[Key | None, ...]] | None:
    """The variables that meet on the same entries. None: some product had to be refined; look again."""
    if any(t.kind in ("none", "one") for t in trees):
        return []  # nothing moves there
    whole = [t.kind == "leaf" or (t.kind == "product" and not t.parts) for t in trees]
    if all(whole):
        return [tuple(t.key for t in trees)]
    if any(whole):
        refined.update(t.key for t, w in zip(trees, whole, strict=True) if w and t.key is not None)
        return None
    if trees[0].kind == "product" and len({tuple(p.width for p in t.parts) for t in trees}) > 1:
        refined.update(p.key for t in trees for p in t.parts if p.inner and p.key is not None)
        return None
    out: list[tuple[Key | None, ...]] = []
    for group in zip(*(t.parts for t in trees), strict=True):
        found = align(group, refined)
        if found is None:
            return None
        out += found
    return out


@dataclass
class Collected:
    """Everything said: linear equations in log-scales and signs, flip points, slopes, parameter axes, value axes."""

    scale: list[tuple[tuple[AxisTerm, int], ...]] = field(default_factory=list)
    sign: list[tuple[tuple[AxisTerm, int], ...]] = field(default_factory=list)
    centres: list[tuple[AxisTerm, float]] = field(default_factory=list)
    sums: list[tuple[AxisTerm, tuple[AxisTerm, ...]]] = field(default_factory=list)
    slopes: list[tuple[AxisTerm, AxisTerm, str]] = field(default_factory=list)
    factors: list[tuple[AxisTerm, ...]] = field(default_factory=list)
    """What an axis was taken apart into."""
    ties: list[tuple[AxisTerm, AxisTerm]] = field(default_factory=list)
    """Axes that meet at one parameter, and so must flip about one point."""
    params: dict[str, list[tuple[str, tuple[Leg, ...]]]] = field(default_factory=dict)
    rotating: list[AxisTerm] = field(default_factory=list)
    """Axes that let orthogonal matrices through."""
    turning: list[tuple[AxisTerm, int, tuple[tuple[tuple[int, int], ...], ...] | None, str]] = field(default_factory=list)
    """Axis, size of its blocks, what may turn them, and the op that says so."""
    values: dict[str, tuple[AxisTerm, ...]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """The op that made each gid."""


def collect(network: Network, rotations: bool = False) -> Collected:
    """Go through the ops in order and let each say its equations; inputs and outputs are fixed.

    rotations: whether streams that let orthogonal matrices through become blocks; they have labels and signs otherwise.
    """
    found = Collected()
    for name, shape in network.inputs.items():
        found.values[name] = tuple(AxisTerm(Term("fixed", n or 0, why="the network's input")) for n in shape)
    for op in network.ops:
        _Voice(network, op, found).speak()
    for name in network.outputs:
        for axis in found.values[name]:
            fix(axis.term, "the network's output")
    for axis, size, pairs, op_name in found.turning:
        _turn(axis.term, size, pairs, op_name)
    if not rotations:
        for axis in found.rotating:
            mark_units(axis.term)
    for parts in found.factors:
        # labels that move in two factors of one axis would have no canonical order: the last one keeps them
        for p in [p for p in parts if normal(p.term).kind != "fixed"][:-1]:
            fix(p.term, "an axis taken apart moves along one factor alone")
    for tensor, uses in found.params.items():
        (_, first), *others = uses
        for op_name, legs in others:
            for a, b in zip(first, legs, strict=True):
                _tie(found, a, b, f"{tensor} is used by {uses[0][0]} and by {op_name}")
    if rotations:
        for i, axis in enumerate(found.rotating):
            _rotate(axis.term, i)
    return found


def _turn(t: Term, size: int, pairs: tuple[tuple[tuple[int, int], ...], ...] | None, op_name: str) -> None:
    """Restrict the block in which an axis ends; whatever else ends there does not move."""
    t = normal(t)
    inner = normal(parts_of(t)[-1]) if t.kind == "product" else t
    if inner.kind == "var" and inner.block is not None and inner.size == size:
        restrict(inner, pairs, pairs is None, op_name)
    else:
        fix(t, f"{op_name} turns units")


def _rotate(t: Term, serial: int) -> None:
    """Make a space of which no single unit matters a block of one orthogonal matrix."""
    t = normal(t)
    if t.kind == "var" and t.linear and t.block is None and t.over is None:
        t.block = Turning(t.name, serial, orthogonal=True)
        t.over = Term("fixed", 1)
    elif t.block is None or not t.block.orthogonal:
        mark_units(t)


def _tie(found: Collected, a: Leg, b: Leg, why: str) -> None:
    """One tensor axis in two uses: one labelling, and the same factor either way."""
    la, lb = a.label, b.label
    if not isinstance(la, AxisTerm) or not isinstance(lb, AxisTerm):
        for free in (la, lb):
            if isinstance(free, AxisTerm):
                fix(free.term, why)
        return
    unify(la.term, lb.term, why)
    terms = [(x, e) for leg, c in ((a, 1), (b, -1)) for axes, e in ((leg.up, c), (leg.down, -c)) for x in axes]
    said = tuple((x, e) for x, e in terms if isinstance(x, AxisTerm))
    found.scale.append(said)
    found.sign.append(said)
    for one, other in ((a.up, b.up), (a.down, b.down)):
        if len(one) != len(other):  # written here and read there: no constant could go along
            found.centres += [(x, 0.0) for x in (*one, *other) if isinstance(x, AxisTerm)]
            continue
        found.ties += [(x, y) for x, y in zip(one, other, strict=True) if isinstance(x, AxisTerm) and isinstance(y, AxisTerm)]
    if isinstance(a.power, AxisTerm) and isinstance(b.power, AxisTerm):
        found.sign.append(((a.power, 1), (b.power, -1)))


class _Voice:
    """The `Equations` of one op."""

    def __init__(self, network: Network, op: Op, found: Collected) -> None:
        self._network, self._op, self._found = network, op, found
        self.inputs: tuple[tuple[AxisRef, ...], ...] = tuple(found.values[v] for v in op.inputs)
        self.in_shapes: tuple[Shape, ...] = tuple(network.shapes[v] for v in op.inputs)
        self.out_shape: Shape = network.shapes[op.output]
        self.param_shapes: Mapping[str, tuple[int, ...]] = {r: network.tensors[t].shape for r, t in op.params.items()}
        self._out: tuple[AxisTerm, ...] = ()

    def speak(self) -> None:
        from canon.ops import kind_of

        kind_of(self._op).equations(self._op, self)
        self._found.values[self._op.output] = self._out

    def _gid(self) -> int:
        self._found.names.append(self._op.name)
        return len(self._found.names) - 1

    # making axes

    def fresh(self, size: int) -> AxisTerm:
        gid = self._gid()
        return AxisTerm(Term("var", size, self._op.name, serial=gid), gid)

    def alike(self, axis: AxisRef) -> AxisTerm:
        return AxisTerm(_term(axis), self._gid())

    def fixed(self, size: int | None, why: str) -> AxisTerm:
        return AxisTerm(Term("fixed", size or 0, why=why))

    def concat(self, parts: Sequence[AxisRef]) -> AxisTerm:
        axes = [_axis(p) for p in parts]
        return AxisTerm(joined("concat", [a.term for a in axes], sum(a.term.size for a in axes)), parts=axes, joint="concat")

    def interleave(self, parts: Sequence[AxisRef]) -> AxisTerm:
        axes = [_axis(p) for p in parts]
        term = joined("interleave", [a.term for a in axes], sum(a.term.size for a in axes))
        return AxisTerm(term, parts=axes, joint="interleave")

    def product(self, parts: Sequence[AxisRef]) -> AxisTerm:
        axes = [_axis(p) for p in parts]
        if len(axes) == 1:
            return axes[0]
        return AxisTerm(joined("product", [a.term for a in axes], prod(a.term.size for a in axes)), parts=axes, joint="product")

    def over(self, size: int, outer: AxisRef) -> AxisTerm:
        serial = self._gid()
        term = Term("var", size, f"{self._op.name}.each", serial=serial)
        term.over = find(_term(outer))
        return AxisTerm(term)

    def rotates(self, axis: AxisRef) -> None:
        self._found.rotating.append(_axis(axis))

    def block(self, size: int, outer: AxisRef, name: str) -> AxisTerm:
        serial = self._gid()
        term = Term("var", size, f"{self._op.name}.{name}", serial=serial)
        term.over, term.block = find(_term(outer)), Turning(f"{self._op.name}.{name}", serial)
        return AxisTerm(term)

    def dual(self, block: AxisRef) -> AxisTerm:
        term = find(_term(block))
        other = Term("var", term.size, f"{term.name}*", serial=self._gid())
        other.over, other.block, other.partner, other.dual = term.over, term.block, term, True
        term.partner = other
        return AxisTerm(other)

    def turning(self, axis: AxisRef, size: int, pairs: tuple[tuple[tuple[int, int], ...], ...] | None) -> None:
        self._found.turning.append((_axis(axis), size, pairs, self._op.name))

    def factor(self, axis: AxisRef, sizes: Sequence[int]) -> tuple[AxisTerm, ...]:
        parts = tuple(self.fresh(n) for n in sizes)
        for p, n in zip(parts, sizes, strict=True):
            if n == 1:
                fix(p.term, "an axis of size one")
        whole = AxisTerm(joined("product", [p.term for p in parts], prod(sizes)), parts=parts, joint="product")
        self.same(_axis(axis), whole)
        self._found.factors.append(parts)
        self.centre_sum(whole, [axis])
        return parts

    # saying how they hang together

    def same(self, a: AxisRef, b: AxisRef) -> None:
        self.same_labels(a, b)
        self.scale((a, 1), (b, -1))
        self.sign((a, 1), (b, -1))

    def same_labels(self, a: AxisRef, b: AxisRef) -> None:
        unify(_term(a), _term(b), f"{self._op.name} needs one labelling")

    def fix(self, axis: AxisRef, why: str) -> None:
        fix(_term(axis), why)

    def units(self, axis: AxisRef) -> None:
        mark_units(_term(axis))

    def scale(self, *terms: tuple[AxisRef, int]) -> None:
        self._found.scale.append(tuple((_axis(a), c) for a, c in terms))

    def sign(self, *terms: tuple[AxisRef, int]) -> None:
        self._found.sign.append(tuple((_axis(a), c) for a, c in terms))

    def centre(self, axis: AxisRef, about: float) -> None:
        self._found.centres.append((_axis(axis), about))

    def centre_sum(self, out: AxisRef, parts: Sequence[AxisRef]) -> None:
        self._found.sums.append((_axis(out), tuple(_axis(p) for p in parts)))

    def slope(self, out: AxisRef, inner: AxisRef, tensor_role: str) -> None:
        self._found.slopes.append((_axis(out), _axis(inner), self._op.params[tensor_role]))

    def param(self, role: str, *legs: Leg) -> None:
        self._found.params.setdefault(self._op.params[role], []).append((self._op.name, legs))

    def emit(self, axes: Sequence[AxisRef]) -> None:
        self._out = tuple(_axis(a) for a in axes)

    def shift_carried(self) -> bool:
        readers = self._network.readers[self._op.output]
        return (
            len(readers) == 1
            and readers[0].kind in ("batch_norm", "scale_shift")
            and self._op.output not in self._network.outputs
        )


def _axis(axis: AxisRef) -> AxisTerm:
    assert isinstance(axis, AxisTerm)
    return axis


def _term(axis: AxisRef) -> Term:
    return _axis(axis).term
