"""Groups of copies: which file to keep, and what each of the others is to it, proved.

Files are taken in the order in which one would keep them: of the finer type, then with its graph recorded, with more
checkpoints, larger, older. The first is compared with all whose fingerprints lie near its own; what is proved a copy joins its
group, and the next file that is in none goes on. No member is ever called a copy through a third file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from canon.zoo.candidates import Prints, crowded
from canon.zoo.fingerprint import ORDER, OUTPUTS
from canon.zoo.index import Index
from canon.zoo.lookup import Known, Proof
from canon.zoo.pool import Here, Pool, chunked
from canon.zoo.proof import KINDS, SURE, Pairing, lost, prove_all
from canon.zoo.relatives import to_compare

SAME_BYTES = "the same bytes"
_CHUNK = 8
"""Pairs that a worker is given at once."""


@dataclass(frozen=True)
class Link:
    """A member of a group and what it is to the file kept."""

    file: Known
    kind: str
    distance: float
    why: str


@dataclass(frozen=True)
class Group:
    """Files that hold one network; keep: the one to keep, and why it rather than the others."""

    keep: Known
    why: str
    links: tuple[Link, ...]

    @property
    def kind(self) -> str:
        """The weakest of its links."""
        return max((link.kind for link in self.links), key=KINDS.index)

    @property
    def bytes_saved(self) -> int:
        """What all files but the one kept take."""
        return sum(link.file.place.size for link in self.links)


@dataclass
class Found:
    """groups; related: pairs of files in no common group, or first of their groups, that were compared and have a common
    descent, or are one network to precision or in function; looked_at: how many pairs of one architecture were compared;
    pairs: how many there are; failed: pairs that could not be compared, and why.
    """

    groups: list[Group] = field(default_factory=list)
    related: list[tuple[Known, Known, Proof]] = field(default_factory=list)
    looked_at: int = 0
    pairs: int = 0
    failed: list[tuple[Known, Known, str]] = field(default_factory=list)


def rank(f: Known) -> tuple[float, bool, int, int, int, str]:
    """The order in which files are kept, the best first."""
    return (f.sort.unit, not f.sort.lends, -max(f.sort.checkpoints, 1), -f.place.size, f.place.changed, f.place.path)


_REASONS = ("of a finer type", "with its graph recorded", "with more checkpoints", "larger", "older", "first by name")


def why_kept(keep: Known, others: Iterable[Known]) -> str:
    """The first thing in which the file kept is ahead of one of the others."""
    ahead = [next((i for i, (x, y) in enumerate(zip(rank(keep), rank(o), strict=True)) if x != y), 5) for o in others]
    return _REASONS[min(ahead, default=5)]


class _Fields:
    """The files that have others near them, by structure and kind of figures, and who is near whom."""

    def __init__(self, index: Index) -> None:
        self.fields: list[Prints] = []
        self.rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.everybody: list[set[int]] = []
        self.loose: dict[int, list[int]] = defaultdict(list)
        for structure, kinds in index.structures():
            plain = [k for k in kinds if k not in (OUTPUTS, ORDER)]
            if len(plain) > 1 or "" in kinds:  # figures that cannot be told against each other: all may be copies
                members = index.members(structure)
                for i in members:
                    self.loose[i].append(len(self.everybody))
                self.everybody.append(set(members))
                continue
            for kind in (*plain, *(k for k in kinds if k == OUTPUTS)):
                self._add(index, structure, kind)

    def _add(self, index: Index, structure: int, kind: str) -> None:
        wide = list(index.prints(structure, kind, wide=True))
        near = list(crowded(index.prints(structure, kind, wide=False), Prints.joined(wide, 0) if wide else None))
        if not near:
            return
        found = Prints.joined(near, 0).sorted()
        for row, i in enumerate(found.ids):
            self.rows[int(i)].append((len(self.fields), row))
        self.fields.append(found)

    def files(self) -> set[int]:
        """All that have somebody near."""
        return set(self.rows) | set(self.loose)

    def near(self, file: int) -> set[int]:
        """All that may be copies of a file."""
        out: set[int] = set()
        for at, row in self.rows.get(file, ()):
            found = self.fields[at]
            out.update(int(i) for i in found.ids[found.near(row)])
        for at in self.loose.get(file, ()):
            out |= self.everybody[at]
        out.discard(file)
        return out


def dedup(index: Index, pool: Pool | None = None, relatives: int = 0, tell: Callable[[str], None] = lambda _: None) -> Found:
    """The groups among the files that the last scan of an index found.

    relatives: with how many neighbours of either sort a file that is no copy is compared for a common descent; tell: called
    with what is being done. Proofs come from the index where they are known, and are kept there.
    """
    fields = _Fields(index)
    same = dict(index.same_content())
    heads = index.known(fields.files() | set(same))
    prover = _Prover(index, pool or Here(), heads, tell)
    links = _rounds(fields, heads, prover)
    if relatives:
        pairs = [p for p in to_compare(index, relatives, set(links)) if p not in prover.compared]
        heads.update(index.known({i for pair in pairs for i in pair} - set(heads)))
        for _ in prover.prove(pairs, quick=False):
            pass
    members: dict[int, list[tuple[int, Proof]]] = defaultdict(list)
    for i, (keep, proof) in links.items():
        members[keep].append((i, proof))
    found = Found(looked_at=len(prover.compared), pairs=index.pairs(), failed=prover.failed)
    others = index.known(i for group in same.values() for i in group)
    for keep in sorted({*members, *(i for i in same if i not in links)}, key=lambda i: rank(heads[i])):
        found.groups.append(_group(keep, members[keep], heads, same, others))
    found.groups.sort(key=lambda g: (KINDS.index(g.kind), g.keep.place.path))
    for a, b, proof in prover.related:
        if a not in links and b not in links:  # what is true of a copy is told of the file kept
            found.related.append((heads[a], heads[b], proof))
    found.related.sort(key=lambda pair: (pair[2].distance or 0.0, pair[0].place.path, pair[1].place.path))
    return found


class _Prover:
    """Compares pairs, what the index knows already left out."""

    def __init__(self, index: Index, pool: Pool, heads: Mapping[int, Known], tell: Callable[[str], None]) -> None:
        self._index, self._pool, self._heads, self._tell = index, pool, heads, tell
        self.related: list[tuple[int, int, Proof]] = []
        self.failed: list[tuple[Known, Known, str]] = []
        self.compared: set[tuple[int, int]] = set()

    def prove(self, pairs: Sequence[tuple[int, int]], quick: bool = True) -> Iterator[tuple[int, int, Proof]]:
        """(a, b, proof) for each pair, in any order."""
        self.compared.update((min(a, b), max(a, b)) for a, b in pairs)
        asked: dict[Pairing, tuple[int, int]] = {}
        done = 0
        for a, b in pairs:
            x, y = self._heads[a], self._heads[b]
            proof = self._index.proof(x.sha, y.sha)
            if proof is not None and (proof.kind or quick):
                done += 1
                yield self._noted(a, b, proof)
            else:
                asked[Pairing(x.place.path, y.place.path, x.sha, y.sha, quick)] = (a, b)
        chunks = chunked(iter(asked), _CHUNK, lambda _: 0, 1)
        for chunk, proofs in self._pool.run(prove_all, chunks, lost):
            pairs_done = list(zip(chunk, proofs, strict=True))
            self._index.keep_proofs([(p.sha_a, p.sha_b, proof) for p, proof in pairs_done if not proof.passing])
            done += len(chunk)
            self._tell(f"comparing {done:,} of {len(pairs):,} pairs")
            for pairing, proof in pairs_done:
                yield self._noted(*asked[pairing], proof)

    def _noted(self, a: int, b: int, proof: Proof) -> tuple[int, int, Proof]:
        if proof.passing:
            self.failed.append((self._heads[a], self._heads[b], proof.why))
        if proof.kind in ("related", *KINDS):
            self.related.append((a, b, proof))
        return a, b, proof


def _rounds(fields: _Fields, heads: Mapping[int, Known], prover: _Prover) -> dict[int, tuple[int, Proof]]:
    """file -> (the file it is a copy of, the proof): the best ones first, everybody near them compared with them.

    In a round, files that have nothing to do with each other are compared with theirs at once. A copy that is sure is settled.
    A cast joins the nearest of all it is compared with, and is nobody's original. One the same in function alone goes on: it
    may be the original of sure copies, and if it is not, joins the nearest it met.
    """
    order = sorted(fields.files(), key=lambda i: rank(heads[i]))
    waiting = set(order)
    settled: dict[int, tuple[int, Proof]] = {}
    weak: dict[int, list[tuple[int, Proof]]] = defaultdict(list)
    casts: set[int] = set()
    while True:
        busy: set[int] = set()
        pairs: list[tuple[int, int]] = []
        for i in order:
            if i in busy or i not in waiting or i in casts:
                continue
            near = fields.near(i) & waiting
            waiting.discard(i)
            busy |= near
            pairs += [(i, j) for j in sorted(near, key=lambda j: rank(heads[j]))]
        if not pairs:
            break
        for keep, i, proof in prover.prove(pairs):
            if proof.kind in SURE:
                settled[i] = min((settled.get(i, (keep, proof)), (keep, proof)), key=lambda link: _nearness(link, heads))
                waiting.discard(i)
            elif proof.kind in KINDS:
                weak[i].append((keep, proof))
                casts |= {i} if proof.kind == "same-to-precision" else set()
        order = [i for i in order if i in waiting]
    originals = {keep for keep, _ in settled.values()}
    for i in sorted(weak, key=lambda i: rank(heads[i])):
        open_ = [link for link in weak[i] if link[0] not in settled]
        if i not in settled and i not in originals and open_:
            settled[i] = min(open_, key=lambda link: _nearness(link, heads))
            originals.add(settled[i][0])
    return settled


def _nearness(link: tuple[int, Proof], heads: Mapping[int, Known]) -> tuple[int, float, object]:
    keep, proof = link
    return KINDS.index(proof.kind), proof.distance or 0.0, rank(heads[keep])


def _group(
    keep: int,
    linked: list[tuple[int, Proof]],
    heads: Mapping[int, Known],
    same: Mapping[int, list[int]],
    others: Mapping[int, Known],
) -> Group:
    links = [Link(others[i], "identical", 0.0, SAME_BYTES) for i in same.get(keep, ())]
    for i, proof in linked:
        links.append(Link(heads[i], proof.kind, proof.distance or 0.0, proof.why))
        # the same bytes as a member: what was proved of one is proved of the other
        links += [Link(others[j], proof.kind, proof.distance or 0.0, proof.why) for j in same.get(i, ())]
    links.sort(key=lambda link: (KINDS.index(link.kind), link.file.place.path))
    return Group(heads[keep], why_kept(heads[keep], (link.file for link in links)), tuple(links))
