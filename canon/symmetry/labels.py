"""Which axes share a labelling: unification of axis terms.

A term is a variable (the units of a space not yet known to be anything else), a fixed stretch, a concatenation, an
interleaving or a product. Ops say which axes are labelled alike; two concatenations are cut where either is; what cannot
be reconciled is fixed, with the reason.

Concatenations and interleavings, however nested, come down to strands: each leaf holds every so many-th position from
some position on. Cutting an axis cuts its strands, and interleavings cut in two are interleavings again, so one list of
strands, in the order of their first positions, is the normal form of all these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass
class Turning:
    """What a block's group may be: pairs that turn together by class (None: any matrix), signs alone, or nothing any more.

    Shared by the block and its dual, on which the inverse transpose acts.
    """

    name: str
    serial: int
    pairs: tuple[tuple[tuple[int, int], ...], ...] | None = None
    signs: bool = False
    orthogonal: bool = False


class Term:
    """A labelling of `size` entries. kind: "var", "fixed", "concat", "interleave", "product", or "link" to what it became.

    spots: of an interleaving, for each part, its first position and the step from each of its entries to the next.
    """

    __slots__ = (
        "block", "dual", "kind", "linear", "name", "over", "partner", "parts", "serial", "size", "spots", "target", "why",
        "writers",
    )  # fmt: skip

    def __init__(
        self, kind: str, size: int, name: str = "", parts: Sequence[Term] = (), why: str = "", serial: int = 0
    ) -> None:
        self.kind, self.size, self.name, self.parts, self.why, self.serial = kind, size, name, list(parts), why, serial
        self.over: Term | None = None
        self.target: Term | None = None
        self.block: Turning | None = None
        self.partner: Term | None = None
        """The dual of a block, or what it is the dual of."""
        self.dual = False
        self.linear = True
        self.writers: list[str] = [name] if kind == "var" and name else []
        self.spots: tuple[tuple[int, int], ...] = ()


Strand = tuple[Term, int, int]
"""A leaf, its first position and its step (one where it has a single entry)."""


def find(t: Term) -> Term:
    """What a term has become."""
    while t.target is not None:
        t = t.target
    return t


def parts_of(t: Term) -> list[Term]:
    """The parts of a joint: nested ones of the same kind taken apart, trivial ones left out, fixed neighbours as one.

    Of an interleaving, what may move comes first, in the order of first positions; `spots` of `normal` says where.
    """
    t = find(t)
    if t.kind == "concat":
        return [p for p, _, _ in _filled(strands(t), t.size)]
    if t.kind == "interleave":
        return list(t.parts)
    out: list[Term] = []
    for p in map(normal, t.parts):
        for q in parts_of(p) if p.kind == "product" else [p]:
            if q.kind == "fixed" and out and out[-1].kind == "fixed":
                out[-1] = Term("fixed", out[-1].size * q.size, why=q.why or out[-1].why)
            elif not (q.kind == "fixed" and q.size == 1):
                out.append(q)
    return out


def strands(t: Term, start: int = 0, step: int = 1) -> Iterator[Strand]:
    """The leaves of an axis (variables, fixed stretches, products), empty ones left out."""
    t = find(t)
    if t.kind == "product":
        t = normal(t)
    if t.kind == "concat":
        for p in t.parts:
            yield from strands(p, start, step)
            start += step * p.size
    elif t.kind == "interleave":
        for p, (first, by) in zip(t.parts, t.spots, strict=True):
            yield from strands(p, start + step * first, step * by)
    elif t.size:
        yield t, start, step if t.size > 1 else 1


def woven(found: Sequence[Strand], size: int) -> Term:
    """Strands as one term, an interleaving whether or not it is one."""
    out = Term("interleave", size, parts=[p for p, _, _ in found])
    out.spots = tuple((start, step) for _, start, step in found)
    return out


def _filled(found: Iterable[Strand], size: int) -> list[Strand]:
    """What may move, in the order of first positions, with the rest as fixed strands: between, if nothing is interleaved, or
    behind.
    """
    found = list(found)
    ends = [0, *(start + t.size for t, start, _ in found)]
    if ends[-1] == size and all(step == 1 and start == end for (_, start, step), end in zip(found, ends, strict=False)):
        return _fixed_joined(found)  # one after the other, as nearly always
    moving = sorted((x for x in found if x[0].kind != "fixed"), key=lambda strand: strand[1])
    whys: list[str | None] = [""] * size
    for strand in found:
        t, start, step = strand
        whys[start : start + step * (t.size - 1) + 1 : step] = [t.why if t.kind == "fixed" else None] * t.size
    rest: list[Strand] = []
    at = [i for i, why in enumerate(whys) if why is not None]
    plain = all(step == 1 for _, _, step in moving)
    while at:
        step = 1 if plain or len(at) == 1 else at[1] - at[0]
        n = next((i for i in range(1, len(at)) if at[i] - at[i - 1] != step), len(at))
        why = next((w for i in at[:n] if (w := whys[i])), "")
        rest.append((Term("fixed", n, why=why), at[0], step if n > 1 else 1))
        at = at[n:]
    return sorted((*moving, *rest), key=lambda strand: strand[1]) if plain else [*moving, *rest]


def _fixed_joined(found: Sequence[Strand]) -> list[Strand]:
    """Strands that follow each other, fixed neighbours as one."""
    out: list[Strand] = []
    for t, start, _ in found:
        if t.kind == "fixed" and out and out[-1][0].kind == "fixed":
            before, first, _ = out[-1]
            out[-1] = (Term("fixed", before.size + t.size, why=before.why or t.why), first, 1)
        else:
            out.append((t, start, 1))
    return out


def joined(kind: str, parts: Sequence[Term], size: int) -> Term:
    """A concatenation, interleaving of equal parts or product; what has but one part is that part."""
    t = Term(kind, size, parts=parts)
    if kind == "interleave":
        t.spots = tuple((i, len(parts)) for i in range(len(parts)))
    whole = normal(t)
    return t if whole.kind in ("concat", "interleave", "product") else whole


def normal(t: Term) -> Term:
    """The term with single-part joints opened, and strands in order."""
    t = find(t)
    if t.kind == "product":
        flat = parts_of(t)
        if len(flat) == 1:
            return normal(flat[0])
        if not flat or all(p.kind == "fixed" for p in flat):
            return Term("fixed", t.size, why=next((p.why for p in flat if p.why), t.why))
    elif t.kind in ("concat", "interleave"):
        found = _filled(strands(t), t.size)
        if not any(p.kind != "fixed" for p, _, _ in found):
            return Term("fixed", t.size, why=next((p.why for p, _, _ in found if p.why), t.why))
        if len(found) == 1:
            return found[0][0]
        if all(step == 1 for _, _, step in found):
            return t if t.kind == "concat" else Term("concat", t.size, parts=[p for p, _, _ in found])
        return woven(found, t.size)
    return t


def fix(t: Term, why: str) -> None:
    """Nothing may move along this term."""
    t = find(t)
    if t.kind == "var":
        t.kind, t.why = "fixed", why
        if t.partner is not None:
            fix(t.partner, why)
    for p in t.parts:
        fix(p, why)


def mark_units(t: Term) -> None:
    """Single units matter on every leaf of this term."""
    t = find(t)
    t.linear = False
    if t.block is not None:
        fix(t, "units of a head are looked at one by one")
    for p in t.parts:
        mark_units(p)


def _link(t: Term, to: Term) -> None:
    if t.kind == "var":
        if not t.linear:
            mark_units(to)
        if to.kind == "var":
            to.writers += [w for w in t.writers if w not in to.writers]
        elif t.name:
            _hand_down(to, t)
    t.target, t.kind, t.parts = to, "link", []


def _hand_down(to: Term, t: Term, span: str = "") -> None:
    """Parts of a product or concat take the name of the older variable that turned out to be made of them."""
    to = find(to)
    if to.kind == "var":
        to.writers += [w for w in t.writers if w not in to.writers]
        if t.serial < to.serial:
            to.name, to.serial = t.name + span, t.serial
            to.writers.sort(key=lambda w: w != t.name)
    if any(find(p).block is not None for p in to.parts):
        return  # heads are named after what attends, not after one of its projections
    start = 0
    for i, p in enumerate(to.parts):
        here = f"[{start}:{start + p.size}]" if to.kind == "concat" else span
        if to.kind == "interleave":
            here = "[{}::{}]".format(*to.spots[i])
        _hand_down(p, t, here)
        start += p.size


def unify(a: Term, b: Term, why: str) -> None:
    """Make two terms one labelling, or fix both, because of `why`, where they cannot be."""
    a, b = normal(a), normal(b)
    if a is b:
        return
    if a.size != b.size or (a.over is None) != (b.over is None):
        fix(a, why)
        fix(b, why)
    elif a.kind == "fixed" or b.kind == "fixed":
        fixed, other = (a, b) if a.kind == "fixed" else (b, a)
        fix(other, fixed.why or why)
    elif a.kind == b.kind == "var" and (a.block is not None or b.block is not None):
        _unify_blocks(a, b, why)
    elif (a.kind == "var" and a.block is not None) or (b.kind == "var" and b.block is not None):
        fix(a, f"a head's units are cut: {why}")
        fix(b, f"a head's units are cut: {why}")
    elif a.kind == "var" and b.kind == "var":
        late, early = (a, b) if a.serial > b.serial else (b, a)
        if late.over is not None and early.over is not None:
            unify(late.over, early.over, why)
        _link(late, early)
    elif a.kind == "var":
        _link(a, b)
    elif b.kind == "var":
        _link(b, a)
    elif a.kind == b.kind == "concat":
        _unify_concats(a, b, why)
    elif {a.kind, b.kind} <= {"concat", "interleave"}:
        _unify_woven(a, b, why)
    elif a.kind == b.kind == "product" and [p.size for p in parts_of(a)] == [p.size for p in parts_of(b)]:
        for p, q in zip(parts_of(a), parts_of(b), strict=True):
            unify(p, q, why)
        a.target, a.kind, a.parts = b, "link", []
    else:
        fix(a, f"two layouts of one axis: {why}")
        fix(b, f"two layouts of one axis: {why}")


def _unify_blocks(a: Term, b: Term, why: str) -> None:
    """Two blocks become one, and so do their duals; a block and its own dual would leave little of the group."""
    x, y = a.block, b.block
    pa, pb = (None if t.partner is None else find(t.partner) for t in (a, b))
    if x is None or y is None or pa is b or a.dual != b.dual or (pa is None) != (pb is None):
        fix(a, f"what may turn a head's units differs: {why}")
        fix(b, f"what may turn a head's units differs: {why}")
        return
    late, early = (a, b) if a.serial > b.serial else (b, a)
    if late.over is not None and early.over is not None:
        unify(late.over, early.over, why)
    late.target, late.kind, late.parts = early, "link", []
    kept, other = (x, y) if early is a else (y, x)
    if kept is not other and not restrict(early, other.pairs, other.signs, why):
        return
    early.block = kept
    if pa is not None and pb is not None and pa is not pb:
        p, q = (pa, pb) if early is a else (pb, pa)
        q.target, q.kind, q.parts = p, "link", []


def restrict(t: Term, pairs: tuple[tuple[tuple[int, int], ...], ...] | None, signs: bool, why: str) -> bool:
    """Leave of a block's group what keeps to these pairs, or signs; False where nothing is left, and it is fixed."""
    block = t.block
    assert block is not None
    if pairs is not None:
        if block.pairs is not None and block.pairs != pairs:
            fix(t, f"a head's units turn in two ways: {why}")
            return False
        block.pairs = pairs
    block.signs = block.signs or signs
    return True


def _unify_concats(a: Term, b: Term, why: str) -> None:
    left, right = parts_of(a), parts_of(b)
    done: list[Term] = []
    while left and right:
        p, q = left.pop(0), right.pop(0)
        if p.size > q.size:
            p, rest = cut(p, q.size, why)
            left.insert(0, rest)
        elif q.size > p.size:
            q, rest = cut(q, p.size, why)
            right.insert(0, rest)
        unify(p, q, why)
        done.append(p)
    b.parts = done
    a.target, a.kind, a.parts = b, "link", []


def _unify_woven(a: Term, b: Term, why: str) -> None:
    """Strand by strand: those of either are cut until each is made of whole strands of the other."""
    while (pairs := _meeting(a, b)) and any(_parted(p, q, why) for p, q in pairs):
        pass
    seen: set[int] = set()
    for p, q in pairs:
        whole, inside = (p, 1) if p[0].size >= q[0].size else (q, 0)
        if id(whole) in seen:
            continue
        seen.add(id(whole))
        term, first, by = whole
        within = [pair[inside] for pair in pairs if pair[1 - inside] is whole]
        unify(term, woven([(r, (start - first) // by, max(1, step // by)) for r, start, step in within], term.size), why)


def _meeting(a: Term, b: Term) -> list[tuple[Strand, Strand]]:
    """The pairs of strands of two axes that have positions in common."""
    sides = [list(strands(t)) for t in (a, b)]
    owners = [np.empty(a.size, np.intp) for _ in sides]
    for side, owner in zip(sides, owners, strict=True):
        for i, strand in enumerate(side):
            owner[_positions(strand)] = i
    return [(sides[0][i], sides[1][j]) for i, j in sorted(set(zip(*(o.tolist() for o in owners), strict=True)))]


def _positions(strand: Strand) -> NDArray[np.intp]:
    t, start, step = strand
    return start + step * np.arange(t.size)


def _parted(p: Strand, q: Strand, why: str) -> bool:
    """Cut or fix one of two strands that meet, so that one of them is part of the other; False where it is already."""
    if p[0].kind == q[0].kind == "fixed":
        return False
    mine, other = _positions(p), _positions(q)
    for inner, outer, part in ((p, q, np.isin(mine, other).all()), (q, p, np.isin(other, mine).all())):
        if part and outer[0].kind == "fixed":
            fix(inner[0], outer[0].why or why)
            return True
        if part:
            return False
    for strand, at in sorted(((p, other), (q, mine)), key=lambda item: -item[0][2]):
        t = strand[0]
        for k in (int(at[0]), int(at[-1]) + 1):
            before = _before(strand, k)
            if 0 < before < t.size:
                cut(t, before, why)
                return True
    fix(p[0], f"dealt out in two ways: {why}")
    fix(q[0], f"dealt out in two ways: {why}")
    return True


def _before(strand: Strand, k: int) -> int:
    """How many entries of a strand have positions below k."""
    t, start, step = strand
    return min(max(-((start - k) // step), 0), t.size)


def cut(t: Term, k: int, why: str) -> tuple[Term, Term]:
    """Cut a term after its first k entries; a leaf becomes the concatenation of both."""
    t = find(t)
    if t.kind in ("concat", "interleave"):
        for strand in list(strands(t)):
            if 0 < (n := _before(strand, k)) < strand[0].size:
                cut(strand[0], n, why)
        found = list(strands(t))
        return (
            woven([x for x in found if x[1] < k], k),
            woven([(p, start - k, step) for p, start, step in found if start >= k], t.size - k),
        )
    if t.kind == "product":
        first, *others = parts_of(t)
        inner = prod(p.size for p in others)
        if k % inner == 0 and find(first).over is None:
            x, y = cut(first, k // inner, why)
            pieces = (Term("product", k, parts=[x, *others]), Term("product", t.size - k, parts=[y, *others]))
        else:
            fix(t, f"cut inside a product: {why}")
            pieces = (Term("fixed", k, why=why), Term("fixed", t.size - k, why=why))
    elif t.kind == "fixed":
        pieces = (Term("fixed", k, why=t.why), Term("fixed", t.size - k, why=t.why))
    elif t.block is not None:
        fix(t, f"a head's units are cut: {why}")
        pieces = (Term("fixed", k, why=why), Term("fixed", t.size - k, why=why))
    else:
        pieces = (
            Term("var", k, f"{t.name}[:{k}]", serial=t.serial),
            Term("var", t.size - k, f"{t.name}[{k}:]", serial=t.serial),
        )
        for p in pieces:
            p.linear, p.writers = t.linear, list(t.writers)
    t.kind, t.parts = "concat", list(pieces)
    return pieces
