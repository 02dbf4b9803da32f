"""Which axes share a labelling: unification of axis terms.

A term is a variable (the units of a space not yet known to be anything else), a fixed stretch, a concatenation or a
product. Ops say which axes are labelled alike; two concatenations are cut where either is; what cannot be reconciled is
fixed, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


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
    """A labelling of `size` entries. kind: "var", "fixed", "concat", "product", or "link" to what it became."""

    __slots__ = (
        "block", "dual", "kind", "linear", "name", "over", "partner", "parts", "serial", "size", "target", "why", "writers",
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


def find(t: Term) -> Term:
    """What a term has become."""
    while t.target is not None:
        t = t.target
    return t


def parts_of(t: Term) -> list[Term]:
    """The parts of a concatenation or product, nested ones of the same kind taken apart, trivial ones left out."""
    t = find(t)
    out: list[Term] = []
    for p in map(find, t.parts):
        if p.kind == t.kind:
            out += parts_of(p)
        elif t.kind == "product" and p.kind == "fixed" and out and out[-1].kind == "fixed":
            out[-1] = Term("fixed", out[-1].size * p.size, why=p.why or out[-1].why)
        elif not (p.kind == "fixed" and p.size == (1 if t.kind == "product" else 0)):
            out.append(p)
    return out


def joined(kind: str, parts: Sequence[Term], size: int) -> Term:
    """A concatenation or product in normal form."""
    t = Term(kind, size, parts=parts)
    flat = parts_of(t)
    if len(flat) == 1:
        return flat[0]
    if not flat:
        return Term("fixed", size)
    return t


def normal(t: Term) -> Term:
    """The term with single-part joints opened."""
    t = find(t)
    if t.kind in ("concat", "product"):
        flat = parts_of(t)
        if len(flat) == 1:
            return normal(flat[0])
        if not flat or all(p.kind == "fixed" for p in flat):
            return Term("fixed", t.size, why=next((p.why for p in flat if p.why), t.why))
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
    for p in to.parts:
        _hand_down(p, t, f"[{start}:{start + p.size}]" if to.kind == "concat" else span)
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


def cut(t: Term, k: int, why: str) -> tuple[Term, Term]:
    """Cut a term after its first k entries; the term itself becomes the concatenation of both."""
    t = find(t)
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
