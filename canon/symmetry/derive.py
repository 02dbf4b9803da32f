"""Network -> Symmetry: collect what the ops say, solve for labels and gauges, and write the axes of every tensor.

No weight is read. What the equations leave free is the group; the table of activations and structures comes out,
it is not put in.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from canon.network import Network
from canon.ops.base import Leg
from canon.symmetry.axes import (
    Axis,
    Concat,
    Fixed,
    Floats,
    Gauge,
    Interleaved,
    Powers,
    Product,
    Space,
    Symmetry,
    TensorAxis,
    Turn,
    Use,
    ValueAxis,
    leaves,
    stretches,
)
from canon.symmetry.blocks import Block, Class
from canon.symmetry.collect import AxisTerm, Collected, Key, Tree, align, collect, several, tree
from canon.symmetry.labels import Term, find, normal, parts_of
from canon.symmetry.solve import LinearSystem

Path = tuple[int | tuple[int, int], ...]
"""Where on an axis: the number of the part at each level, or, of a product, the first factor and how many."""
_SLOPE = -2  # first entry of the keys of slope variables, which are never eliminated in favour of real ones


def derive(network: Network, rotations: bool = False) -> Symmetry:
    """The symmetry of a network, from its ops and shapes alone.

    rotations: take orthogonal matrices on streams that only linear maps and RMS norms without gamma touch, where otherwise
    relabellings and signs are taken (Ashkboos et al., SliceGPT, 2024, equation 3).

    Source: the equations of each op (canon/ops), after Godfrey, Brown, Emerson, Kvinge, On the symmetries of deep
    learning models and their internal representations (2022), for what intertwines with an activation.
    """
    said = collect(network, rotations)
    return _Solution(network, said).symmetry()


class _Solution:
    def __init__(self, network: Network, said: Collected) -> None:
        self.network, self.said = network, said
        self.refined: set[Key] = set()
        self._refine()
        self.killed: set[Key] = set()
        self.centre: dict[Key, float] = {}
        while True:
            self._solve()
            new = self._conflicts() - self.killed
            if not new:
                break
            self.killed |= new
        self.gauge_axes: dict[str, tuple[Axis, bool]] = {}
        self.names: dict[tuple[str, Key], str] = {}
        self.spaces: dict[int, str] = {}
        self.known: dict[str, Space] = {}
        self.blocks: dict[str, Block] = {}

    # gauges

    def _aligned(self, axes: Iterable[AxisTerm]) -> list[tuple[Key | None, ...]] | None:
        return align([tree(a, self.refined) for a in axes], self.refined)

    def _refine(self) -> None:
        """Look at all equations until no product has to be taken apart any more."""
        groups = [[a for a, _ in terms] for terms in (*self.said.scale, *self.said.sign) if terms]
        groups += (
            [[out, *parts] for out, parts in self.said.sums]
            + [list(pair) for pair in self.said.ties]
            + [[a, b] for a, b, _ in self.said.slopes]
        )
        legs = [leg for uses in self.said.params.values() for _, legs in uses for leg in legs]
        groups += [[axis] for axes in self.said.values.values() for axis in axes]
        groups += [[a] for leg in legs for a in (leg.label, *leg.up, *leg.down) if isinstance(a, AxisTerm)]
        again = True
        while again:
            before = len(self.refined)
            unclear = [g for g in groups if g and self._aligned(g) is None]
            again = bool(unclear) or len(self.refined) > before

    def _solve(self) -> None:
        self.scales: LinearSystem[Key] = LinearSystem(0, _rank)
        self.signs: LinearSystem[Key] = LinearSystem(2, _rank)
        for system, equations in ((self.scales, self.said.scale), (self.signs, self.said.sign)):
            for terms in equations:
                for keys in self._aligned(a for a, _ in terms) or []:
                    system.add((k, c) for k, (_, c) in zip(keys, terms, strict=True) if k is not None)
        for i, (out, inner, _) in enumerate(self.said.slopes):
            # units whose variable is spread over parts of the axis do not flip: see _conflicts
            slope = [] if tree(inner, self.refined).parts else [((_SLOPE, (i,)), -1)]
            for o, n in self._aligned((out, inner)) or []:
                if o is not None and n is not None:
                    self.scales.add([(o, 1), (n, -1), *slope])
        for key in self.killed:
            self.signs.add([(key, 1)])

    def _conflicts(self) -> set[Key]:
        """Signs that cannot be: flips about two points at once, or through a slope that no scale can follow."""
        bad: set[Key] = set()
        centre: dict[Key, float] = {}
        for axis, about in self.said.centres:
            if about and several(tree(axis, self.refined)):  # two flips of one entry would have to be none
                bad |= {k for (k,) in self._aligned([axis]) or [] if k is not None}
            for (key,) in self._aligned([axis]) or []:
                if key is not None and centre.setdefault(key, about) != about:
                    bad.add(key)
        for out, parts in self.said.sums:
            for o, *summed in self._aligned([out, *parts]) or []:
                keys = [k for k in summed if k is not None]
                if o is None or len(keys) != len(summed):
                    continue
                total = sum(centre.get(k, 0.0) for k in keys)
                if centre.setdefault(o, total) != total:
                    open_ = [k for k in keys if k not in centre]
                    if open_:
                        centre[open_[0]] = centre[o] - total
                    else:
                        bad.add(o)
        for one, other in self.said.ties:
            for x, y in self._aligned((one, other)) or []:
                if x is not None and y is not None and centre.get(x, 0.0) != centre.get(y, 0.0):
                    bad |= {x, y}
        for i, (out, inner, _) in enumerate(self.said.slopes):
            bad |= self._unfollowed(i, out, inner)
        self.centre = centre
        return {k for k in bad if self.signs.value(k)}

    def _unfollowed(self, i: int, out: AxisTerm, inner: AxisTerm) -> set[Key]:
        """The flips in front of a slope, if what comes out cannot follow them.

        The slope must divide its own output alone (its sign is the parameter's, which no other equation knows), and the
        flip must be one free sign, by which the slope is read.
        """
        slope = (_SLOPE, (i,))
        inside = {k for (k,) in self._aligned([inner]) or [] if k is not None}
        outside = {k for (k,) in self._aligned([out]) or [] if k is not None}
        alone = self.scales.value(slope) == {slope: 1} and self.scales.users(slope) <= outside
        one = all(len(self.signs.value(k)) <= 1 for k in inside)
        return set() if alone and one and not tree(inner, self.refined).parts else inside

    # writing it down

    def symmetry(self) -> Symmetry:
        values = {v: tuple(self._value_axis(a) for a in axes) for v, axes in self.said.values.items()}
        axes: dict[str, tuple[TensorAxis, ...]] = {}
        fixed: dict[str, str] = {}
        for tensor, t in self.network.tensors.items():
            uses = self.said.params.get(tensor)
            if uses is None:
                axes[tensor] = tuple(TensorAxis(Fixed(n, "no operation uses it")) for n in t.shape)
                continue
            axes[tensor] = tuple(self._tensor_axis(leg) for leg in uses[0][1])
        for v, sides in values.items():
            for i, side in enumerate(sides):
                whys = [x.why for x in leaves(side.axis) if isinstance(x, Fixed) and x.size > 1 and x.why]
                if whys and whys[0] != "positions":
                    fixed[f"{v}[{i}]"] = whys[0]
        return Symmetry(axes, values, dict(self.known), self._gauges(), fixed, dict(self.blocks))

    def _value_axis(self, axis: AxisTerm) -> ValueAxis:
        return ValueAxis(self._axis([(axis, 1)], axis), self._centres(axis))

    def _tensor_axis(self, leg: Leg) -> TensorAxis:
        if not isinstance(leg.label, AxisTerm):
            return TensorAxis(Fixed(leg.size * leg.blocks), leg.role, blocks=leg.blocks)
        terms = [(a, 1) for a in leg.up] + [(a, -1) for a in leg.down]
        axis = self._axis([(a, c) for a, c in terms if isinstance(a, AxisTerm)], leg.label)
        power = None
        if isinstance(leg.power, AxisTerm):
            power = self._axis([(leg.power, 1)], leg.power, signs_only=True)
        return TensorAxis(axis, leg.role, power, leg.blocks)

    def _axis(self, terms: list[tuple[AxisTerm, int]], label: AxisTerm, signs_only: bool = False) -> Axis:
        """The labelling of `label` with the gauges of the terms on it."""
        at: dict[Path, dict[str, int | float]] = {}
        for axis, c in terms:
            for path, key in _places(axis, self.refined):
                here = at.setdefault(path, {})
                for name, power in self._powers(key, c, signs_only):
                    here[name] = here.get(name, 0) + power
        return self._write(normal(label.term), at, ())

    def _powers(self, key: Key, c: int, signs_only: bool) -> list[tuple[str, int | float]]:
        out: list[tuple[str, int | float]] = []
        if not signs_only:
            for k, coefficient in self.scales.value(key).items():
                out.append((self._name("slope" if k[0] == _SLOPE else "scale", k), c * _number(coefficient)))
        out += [(self._name("sign", k), c) for k in self.signs.value(key)]
        return out

    def _name(self, kind: str, key: Key) -> str:
        if (kind, key) not in self.names:
            if kind == "slope":
                stem = self.said.slopes[key[1][0]][2]
            else:
                stem = self.said.names[key[0]] + "".join(f".{i}" for i in key[1])
            taken = {n for (k, _), n in self.names.items() if k == kind}
            name = f"{stem}:{kind}"
            while name in taken:
                name += "'"
            self.names[kind, key] = name
        return self.names[kind, key]

    def _write(self, term: Term, at: dict[Path, dict[str, int | float]], path: Path) -> Axis:
        gauges = _acting(at.get(path, {}))
        term = normal(term)
        axis: Axis
        if term.kind == "fixed":
            axis = Fixed(term.size, term.why)
        elif term.kind == "var" and term.block is not None:
            axis = Turn(term.size, "", self._block(term), term.dual)
        elif term.kind == "var":
            axis = Use(self._space(term), term.size, gauges)
        else:
            parts = tuple(self._write(p, at, (*path, i)) for i, p in enumerate(parts_of(term)))
            if term.kind == "concat":
                axis = Concat(parts)
            elif term.kind == "interleave":
                axis = Interleaved(parts, term.spots)
            else:
                axis = Product(self._grouped(parts, at, path), gauges)
        for g, _ in gauges:
            self.gauge_axes.setdefault(g, (axis, isinstance(axis, Product)))
        return axis

    def _grouped(self, parts: tuple[Axis, ...], at: dict[Path, dict[str, int | float]], path: Path) -> tuple[Axis, ...]:
        """The factors of a product, those together on whose entries a gauge acts."""
        spans = [(p[-1], _acting(here)) for p, here in at.items() if len(p) == len(path) + 1 and p[:-1] == path]
        found = [(i, 1, axis) for i, axis in enumerate(parts)]
        for span, gauges in sorted(((s, g) for s, g in spans if isinstance(s, tuple) and g), key=lambda item: item[0][1]):
            start, width = span
            within = [item for item in found if start <= item[0] < start + width]
            whole = Product(tuple(axis for _, _, axis in within), gauges)
            for g, _ in gauges:
                self.gauge_axes.setdefault(g, (whole, True))
            found = sorted([item for item in found if item not in within] + [(start, width, whole)], key=lambda item: item[0])
        return tuple(axis for _, _, axis in found)

    def _space(self, term: Term) -> str:
        term = find(term)
        if id(term) not in self.spaces:
            name = term.name
            while name in self.known:
                name += "'"
            over = self._space(find(term.over)) if term.over is not None and find(term.over).kind == "var" else None
            self.spaces[id(term)] = name
            self.known[name] = Space(name, term.size, over, term.linear and over is None, tuple(term.writers))
        return self.spaces[id(term)]

    def _block(self, term: Term) -> str:
        """The name of a block, known from now on."""
        turning = term.block
        assert turning is not None
        if turning.name not in self.blocks:
            n = term.size
            classes = [Class("orthogonal" if turning.orthogonal else "real", tuple(range(n)))]
            if turning.pairs is not None:
                classes = [Class("complex", *zip(*c, strict=True)) for c in turning.pairs]
                rest = tuple(sorted(set(range(n)) - {i for c in turning.pairs for pair in c for i in pair}))
                classes += [Class("real", rest)] if rest else []
            if turning.signs:
                single = [(i,) for c in classes if c.kind == "real" for i in c.first]
                paired = [p for c in classes if c.kind == "complex" for p in zip(c.first, c.second, strict=True)]
                classes = [Class("sign", units) for units in (*paired, *single)]
            assert term.over is not None
            outer = normal(term.over)
            over = self._space(outer) if outer.kind == "var" else ""
            self.blocks[turning.name] = Block(turning.name, n, over, outer.size, tuple(classes))
        return turning.name

    def _centres(self, axis: AxisTerm) -> Floats | None:
        """The flip point of each entry of a value axis."""
        keys = dict(_places(axis, self.refined))

        def visit(a: Axis, path: Path) -> Floats:
            key = keys.get(path)
            here = self.centre.get(key, 0.0) if key is not None and self.signs.value(key) else 0.0
            if isinstance(a, Fixed | Use):
                return np.full(a.size, here)
            if isinstance(a, Concat | Interleaved):
                along = np.zeros(a.size)
                for i, (p, at) in enumerate(stretches(a)):
                    along[at] = visit(p, (*path, i))
                return along
            outer, start = (path[:-1], path[-1][0]) if path and isinstance(path[-1], tuple) else (path, 0)
            spread = np.zeros(())
            for p in a.parts:
                width = len(p.parts) if isinstance(p, Product) else 1
                spread = np.add.outer(spread, visit(p, (*outer, (start, width) if width > 1 else start)))
                start += width
            return spread.reshape(-1) + here

        out = visit(self._axis([(axis, 1)], axis), ())
        return out if out.any() else None

    def _gauges(self) -> dict[str, Gauge]:
        """The free gauges, in the order of their first writers, with the axis that they act on."""
        affine = {self._name("sign", k) for key, about in self.centre.items() if about for k in self.signs.value(key)}
        out: dict[str, Gauge] = {}
        for (kind, key), name in sorted(self.names.items(), key=lambda item: item[0][1]):
            if name not in self.gauge_axes:
                continue
            axis, entries = self.gauge_axes[name]
            if kind == "slope":
                _, inner, tensor = self.said.slopes[key[1][0]]
                (inner_key,) = (k for _, k in _places(inner, self.refined))
                signs = [self._name("sign", k) for k in self.signs.value(inner_key)]
                out[name] = Gauge(name, "slope", _bare(axis), "slope", signs[0] if signs else None, tensor)
            else:
                flip = "affine" if name in affine else "none"
                out[name] = Gauge(name, "positive" if kind == "scale" else "sign", _bare(axis), flip, on_entries=entries)
        sloped = {g.sign for g in out.values() if g.kind == "slope"}
        return {n: Gauge(n, g.kind, g.axis, "slope", on_entries=g.on_entries) if n in sloped else g for n, g in out.items()}


def _rank(key: Key) -> Key:
    """Keys are numbered as they are made: later writers go first, slopes (numbered below zero) last."""
    return key


def _acting(powers: dict[str, int | float]) -> Powers:
    return tuple((g, e) for g, e in powers.items() if e and not (g.rstrip("'").endswith(":sign") and e % 2 == 0))


def _number(k: Fraction) -> int | float:
    return k.numerator if k.denominator == 1 else float(k)


def _bare(axis: Axis) -> Axis:
    if isinstance(axis, Use):
        return Use(axis.space, axis.size)
    if isinstance(axis, Concat):
        return Concat(tuple(_bare(p) for p in axis.parts))
    if isinstance(axis, Interleaved):
        return Interleaved(tuple(_bare(p) for p in axis.parts), axis.spots)
    if isinstance(axis, Product):
        return Product(tuple(_bare(p) for p in axis.parts))
    return axis


def _places(axis: AxisTerm, refined: set[Key]) -> list[tuple[Path, Key]]:
    """(path in the written axis, variable) for each variable along an axis."""
    out: list[tuple[Path, Key]] = []

    def visit(t: Tree, path: Path) -> None:
        if t.key is not None:
            out.append((path, t.key))
        start = 0
        for p in t.parts:
            width = p.width if t.kind == "product" else 1
            visit(p, (*path, (start, width) if width > 1 else start))
            start += width

    visit(tree(axis, refined), ())
    return out
