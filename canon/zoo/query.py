"""One network asked for in an index: its copies, and its relatives among those that lie nearest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from canon.errors import CanonError
from canon.formats import read
from canon.symmetry import Floats
from canon.zoo.fingerprint import ORDER, OUTPUTS, Figures, fingerprint
from canon.zoo.groups import SAME_BYTES, Link, rank
from canon.zoo.index import Index
from canon.zoo.lookup import Known, Proof
from canon.zoo.places import Place, find, here
from canon.zoo.pool import Here, Pool, chunked
from canon.zoo.proof import KINDS, Pairing, lost, prove_all
from canon.zoo.reading import sort_of

_CHUNK = 4


@dataclass
class Answer:
    """copies, each with what it is; related: files of common descent, with their distance, the nearest first; files: how many
    the index holds; not_looked_at: how many of the same architecture were not compared; failed: files that could not be, and
    why.
    """

    copies: list[Link] = field(default_factory=list)
    related: list[tuple[Known, float]] = field(default_factory=list)
    files: int = 0
    not_looked_at: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def query(
    path: str, index: Index, relatives: int = 0, pool: Pool | None = None, tell: Callable[[str], None] = lambda _: None
) -> Answer:
    """Find the copies of a file in an index, the file itself left out.

    relatives: how many of its nearest neighbours are compared with it beyond that, half of them by their figures, half by
    the order of their units. Raises ReadError and the like where the file cannot be read.
    """
    asking = _Asking(path, index, pool or Here(), tell)
    return asking.answer(relatives)


class _Asking:
    def __init__(self, path: str, index: Index, pool: Pool, tell: Callable[[str], None]) -> None:
        self.path, self.index, self.pool, self.tell = path, index, pool, tell
        tell(f"reading {path}")
        with here(path) as local:
            self.run = read(local)
            with local.open("rb") as file:
                self.sha = hashlib.file_digest(file, "sha256").hexdigest()
        self.place = next(iter(find(path)))
        self.sort = sort_of(self.run)
        self.faces = [fingerprint(self.run.network)]
        if self.run.whole is not None:
            self.faces.append(fingerprint(self.run.whole))
        if not self.sort.lends:
            self._borrow()

    def _borrow(self) -> None:
        """A file without a graph is looked for in every graph of the index that its tensors fit."""
        for lender in self.index.known(self.index.lenders(self.sort.entries)).values():
            with suppress(CanonError), here(self.path) as mine, here(lender.place.path) as local:
                self.faces.append(fingerprint(read(mine, architecture=local).network))

    def answer(self, relatives: int) -> Answer:
        """Copies first, then relatives."""
        same = self.index.by_sha(self.sha)
        near = self._near() - same
        files = {i: k for i, k in self.index.known(same | near).items() if not self._itself(k)}
        out = Answer(files=self.index.size())
        for i in same & files.keys():
            if unchanged(files[i].place):
                out.copies.append(Link(files[i], "identical", 0.0, SAME_BYTES))
            else:
                near.add(i)
        asked = sorted((files[i] for i in near & files.keys()), key=rank)
        compared = {k.id for k in asked} | (same & files.keys())
        for file, proof in self._compared(asked, True, out):
            if proof.kind in KINDS:
                out.copies.append(Link(file, proof.kind, proof.distance or 0.0, proof.why))
            elif proof.kind == "related":
                out.related.append((file, proof.distance or 0.0))
        out.copies.sort(key=lambda link: (KINDS.index(link.kind), link.distance, link.file.place.path))
        if relatives:
            copies = {link.file.id for link in out.copies}
            ids = [i for i in self._nearest(relatives) if i not in copies]
            others = [k for k in self.index.known(ids).values() if not self._itself(k)]
            compared |= {k.id for k in others}
            known = {k.id for k, _ in out.related}
            for file, proof in self._compared([k for k in others if k.id not in known], False, out):
                if proof.kind == "related":
                    out.related.append((file, proof.distance or 0.0))
        out.related.sort(key=lambda pair: (pair[1], pair[0].place.path))
        all_of_it = {i for face in self.faces for i in [self.index.structure(face.structure)] if i is not None}
        own = self.index.by_path(self.place.path) is not None
        out.not_looked_at = max(0, sum(self.index.count(i) for i in all_of_it) - len(compared) - own)
        return out

    def _itself(self, file: Known) -> bool:
        mine, theirs = self.place, file.place
        return mine.path == theirs.path or (mine.inode != "" and mine.inode == theirs.inode)

    def _near(self) -> set[int]:
        """All that may be copies."""
        out: set[int] = set()
        for face in self.faces:
            structure = self.index.structure(face.structure)
            if structure is None:
                continue
            if not face.figures.kind or self.index.kinds(structure) - {OUTPUTS, ORDER} != {face.figures.kind}:
                out |= self.index.everybody(structure)
                continue
            for figures in (face.figures, face.outputs):
                if figures.kind:
                    out |= self._within(structure, figures)
        if self.sort.lends:  # files without a graph that the scan found nobody to lend one
            out |= self.index.without_graph(self.sort.entries)
        return out

    def _within(self, structure: int, figures: Figures) -> set[int]:
        out: set[int] = set()
        values, room = np.array(figures.values), np.array(figures.room)
        for prints in self.index.window(structure, figures.kind, figures.values[0], figures.room[0]):
            close = (np.abs(prints.values - values) <= np.maximum(prints.room, room)).all(axis=1)
            out.update(prints.ids[close].tolist())
        return out

    def _nearest(self, count: int) -> list[int]:
        """Half by the distance of figures, among twice as many as are next to it by the first one; half by order of units."""
        out: dict[int, None] = {}
        for face in self.faces:
            structure = self.index.structure(face.structure)
            if structure is None:
                continue
            if face.order.kind:
                out.update(dict.fromkeys(self._in_order(structure, np.array(face.order.values), -(-count // 2))))
            if face.figures.kind:
                near = self.index.next_to(structure, face.figures.kind, face.figures.values[0], count)
                gap = np.linalg.norm(near.values - np.array(face.figures.values), axis=1)
                out.update(dict.fromkeys(near.ids[np.argsort(gap, kind="stable")].tolist()))
        return list(out)[:count]

    def _in_order(self, structure: int, sketch: Floats, count: int) -> list[int]:
        best: list[tuple[float, int]] = []
        for ids, sketches in self.index.orders(structure):
            likeness = sketches @ sketch
            top = np.argsort(-likeness, kind="stable")[:count]
            best = sorted([*best, *zip((-likeness[top]).tolist(), ids[top].tolist(), strict=True)])[:count]
        return [i for _, i in best]

    def _compared(self, files: Sequence[Known], quick: bool, out: Answer) -> Iterator[tuple[Known, Proof]]:
        pairs = {Pairing(self.place.path, k.place.path, self.sha, k.sha, quick): k for k in files}
        done = 0
        chunks = chunked(iter(pairs), _CHUNK if len(pairs) > _CHUNK else 1, lambda _: 0, 1)
        for chunk, proofs in self.pool.run(prove_all, chunks, lost):
            done += len(chunk)
            self.tell(f"comparing {done:,} of {len(pairs):,} files")
            for pair, proof in zip(chunk, proofs, strict=True):
                if proof.passing:
                    out.failed.append((pair.b, proof.why))
                yield pairs[pair], proof


def unchanged(place: Place) -> bool:
    """Whether a file still has the size and time that the index knows it by."""
    try:
        now = next(iter(find(place.path)))
    except (CanonError, StopIteration):
        return False
    return (now.size, now.changed) == (place.size, place.changed)
