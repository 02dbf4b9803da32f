"""What is asked of an index: which files are copies of which by their bytes, what they hold, whose figures lie where."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from canon.symmetry import Floats, Indices
from canon.zoo.candidates import PIECE, WIDER, Prints
from canon.zoo.fingerprint import ORDER, OUTPUTS
from canon.zoo.places import Place
from canon.zoo.reading import Sort

PENDING, DONE, FAILED, AGAIN = range(4)
"""States of a file: not read yet, read, unreadable, unreadable for a reason that may pass."""
FAILED_TO_COMPARE = "cannot be compared: "
FIRST_NAME = (
    "NOT EXISTS (SELECT 1 FROM files o JOIN found fo ON fo.file = o.id "
    "WHERE o.inode = f.inode AND o.inode != '' AND o.path < f.path)"
)
"""Of several names of one file (f), the first."""
SORT = tuple(f.name for f in fields(Sort))


@dataclass(frozen=True, slots=True)
class Known:
    """A file of the index."""

    id: int
    place: Place
    sha: str
    tensors: str
    sort: Sort


@dataclass(frozen=True, slots=True)
class Proof:
    """What comparing two files came to. kind: a verdict, or "" where they could not be compared; why: in words."""

    kind: str
    distance: float | None
    why: str = ""

    @property
    def passing(self) -> bool:
        """Whether it says only that no comparison was possible, which may be another time."""
        return self.why.startswith(FAILED_TO_COMPARE)


class Lookup:
    """The reading half of an index. `found`, `heads`: tables that the scan made, seen by this connection alone."""

    _db: sqlite3.Connection

    def choose(self) -> None:
        """Of the files found and read, one for each content is looked at further: the one changed first, then by name."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS heads (file INTEGER PRIMARY KEY)")
        self._db.execute("DELETE FROM heads")
        self._db.execute(
            "INSERT INTO heads SELECT id FROM (SELECT f.id, row_number() OVER (PARTITION BY f.sha ORDER BY f.changed, f.path) "
            f"AS place FROM found JOIN files f ON f.id = found.file WHERE f.state = {DONE} AND {FIRST_NAME}) WHERE place = 1"
        )

    def counts(self) -> tuple[int, int]:
        """How many files were found, and their bytes; several names of one file count once."""
        row = self._db.execute(
            f"SELECT count(*), coalesce(sum(size), 0) FROM found JOIN files f ON f.id = found.file WHERE {FIRST_NAME}"
        ).fetchone()
        return int(row[0]), int(row[1])

    def unreadable(self) -> list[tuple[str, str]]:
        """(path, error) of the files found that could not be read, by name."""
        rows = self._db.execute(
            f"SELECT f.path, f.error FROM found JOIN files f ON f.id = found.file WHERE f.state IN ({FAILED}, {AGAIN}) "
            f"AND {FIRST_NAME} ORDER BY f.path"
        )
        return [(os.fsdecode(path), error) for path, error in rows]

    def names(self) -> list[tuple[str, str]]:
        """(path, path) of every further name of a file, with the name it is known by."""
        rows = self._db.execute(
            "SELECT o.path, (SELECT min(p.path) FROM files p JOIN found q ON q.file = p.id WHERE p.inode = o.inode) AS first "
            "FROM found JOIN files o ON o.id = found.file WHERE o.inode != '' AND o.path > first ORDER BY o.path"
        )
        return [(os.fsdecode(path), os.fsdecode(first)) for path, first in rows]

    def same_content(self) -> Iterator[tuple[int, list[int]]]:
        """(the file looked at, the others of the same bytes)."""
        rows = self._db.execute(
            "SELECT h.file, f.id FROM heads h JOIN files head ON head.id = h.file JOIN files f ON f.sha = head.sha AND "
            f"f.size = head.size AND f.id != head.id AND f.state = {DONE} JOIN found ON found.file = f.id WHERE {FIRST_NAME} "
            "ORDER BY h.file, f.path"
        )
        for head, group in itertools.groupby(rows, key=lambda row: row[0]):
            yield int(head), [int(i) for _, i in group]

    def known(self, ids: Iterable[int]) -> dict[int, Known]:
        """Files by their ids."""
        out: dict[int, Known] = {}
        columns = ", ".join(f"s.{name}" for name in SORT)
        for some in _batches(ids, 500):
            rows = self._db.execute(
                f"SELECT f.id, f.path, f.size, f.changed, f.inode, f.regular, f.sha, f.tensors, {columns} FROM files f "
                f"JOIN sorts s ON s.id = f.sort WHERE f.id IN ({', '.join('?' * len(some))})",
                some,
            )
            for row in rows:
                sort = dict(zip(SORT, row[8:], strict=True))
                sort["activations_known"] = bool(sort["activations_known"])
                out[row[0]] = Known(row[0], place_of(row[1:6]), row[6], row[7], Sort(**sort))
        return out

    def structures(self) -> list[tuple[int, dict[str, int]]]:
        """Structures that more than one of the files looked at have: for each, how many of them by the kind of figures."""
        rows = self._db.execute(
            "SELECT structure, kind, count(*) FROM prints p JOIN heads h ON h.file = p.file "
            "GROUP BY structure, kind ORDER BY structure, kind"
        )
        out = [(int(s), {k: int(n) for _, k, n in group}) for s, group in itertools.groupby(rows, key=lambda row: row[0])]
        return [(s, kinds) for s, kinds in out if sum(kinds.get(k, 0) for k in kinds if k not in (OUTPUTS, ORDER)) > 1]

    def prints(self, structure: int, kind: str, wide: bool) -> Iterator[Prints]:
        """Figures of the files looked at, in the order of the first one; wide: those of much room, or the others."""
        on = "FROM prints p JOIN heads h ON h.file = p.file WHERE p.structure = ? AND p.kind = ?"
        least = self._db.execute(f"SELECT min(p.room) {on}", (structure, kind)).fetchone()[0]
        limit = WIDER * (least or 0.0)
        sign = ">" if wide else "<="
        rows = self._db.execute(f"SELECT p.file, p.figures {on} AND p.room {sign} ? ORDER BY p.first", (structure, kind, limit))
        while some := rows.fetchmany(PIECE):
            yield _prints(some)

    def pairs(self) -> int:
        """How many pairs of the files looked at have one structure."""
        row = self._db.execute(
            "SELECT coalesce(sum(n * (n - 1) / 2), 0) FROM (SELECT count(DISTINCT p.file) AS n FROM prints p "
            "JOIN heads h ON h.file = p.file GROUP BY p.structure)"
        ).fetchone()
        return int(row[0])

    def members(self, structure: int) -> list[int]:
        """All files looked at of a structure."""
        rows = self._db.execute(
            "SELECT DISTINCT p.file FROM prints p JOIN heads h ON h.file = p.file WHERE p.structure = ? ORDER BY 1",
            (structure,),
        )
        return [int(row[0]) for row in rows]

    def to_borrow(self) -> list[tuple[int, int]]:
        """(file without a graph of its own, file that may lend it one): one lender for each structure of as many entries."""
        rows = self._db.execute(
            "SELECT f.id, min(l.id), p.structure FROM heads h JOIN files f ON f.id = h.file JOIN sorts s ON s.id = f.sort "
            "JOIN sorts t ON t.entries = s.entries AND t.activations_known AND t.graph NOT IN ('none', 'chain') "
            "JOIN files l ON l.sort = t.id JOIN heads k ON k.file = l.id JOIN prints p ON p.file = l.id AND p.lender = '' "
            "WHERE (NOT s.activations_known OR s.graph IN ('none', 'chain')) "
            "AND NOT EXISTS (SELECT 1 FROM proofs WHERE a = f.sha AND b = 'structure ' || p.structure) "
            "GROUP BY f.id, p.structure ORDER BY 1, 2"
        )
        return [(int(a), int(b)) for a, b, _ in rows]

    # for a single file

    def size(self) -> int:
        """How many files of the index were read."""
        return int(self._db.execute(f"SELECT count(*) FROM files WHERE state = {DONE}").fetchone()[0])

    def by_sha(self, sha: str) -> set[int]:
        """The files of these bytes."""
        return {row[0] for row in self._db.execute(f"SELECT id FROM files WHERE sha = ? AND state = {DONE}", (sha,))}

    def by_path(self, path: str) -> int | None:
        """The file of this name."""
        row = self._db.execute("SELECT id FROM files WHERE path = ?", (os.fsencode(path),)).fetchone()
        return None if row is None else int(row[0])

    def structure(self, name: str) -> int | None:
        """The number of a structure."""
        row = self._db.execute("SELECT id FROM structures WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def kinds(self, structure: int) -> set[str]:
        """The kinds of figures that files of a structure have."""
        found: set[str] = set()
        kind: tuple[str] | None = ("",)
        if self._db.execute("SELECT 1 FROM prints WHERE structure = ? AND kind = '' LIMIT 1", (structure,)).fetchone():
            found.add("")
        while kind is not None:  # from one to the next, each found at once in the index
            ask = "SELECT kind FROM prints WHERE structure = ? AND kind > ? ORDER BY kind LIMIT 1"
            kind = self._db.execute(ask, (structure, kind[0])).fetchone()
            found |= set(kind or ())
        return found

    def everybody(self, structure: int) -> set[int]:
        """All files of a structure."""
        return {row[0] for row in self._db.execute("SELECT DISTINCT file FROM prints WHERE structure = ?", (structure,))}

    def count(self, structure: int) -> int:
        """How many files a structure has."""
        kinds = sorted(self.kinds(structure) - {OUTPUTS, ORDER})
        ask = "SELECT count(*) FROM prints WHERE structure = ? AND kind = ?"
        return sum(int(self._db.execute(ask, (structure, kind)).fetchone()[0]) for kind in kinds)

    def window(self, structure: int, kind: str, first: float, room: float) -> Iterator[Prints]:
        """Figures of which the first is near enough to a given one for a copy, and some that are not."""
        on = "FROM prints WHERE structure = ? AND kind = ?"
        least, most = self._db.execute(f"SELECT min(room), max(room) {on}", (structure, kind)).fetchone()
        if least is None:
            return
        limit = min(WIDER * least, most)
        for side, reach in (
            (f"first BETWEEN ? AND ? AND room <= {limit!r}", max(room, limit)),
            (f"+first BETWEEN ? AND ? AND room > {limit!r}", max(room, most)),
        ):
            rows = self._db.execute(f"SELECT file, figures {on} AND {side}", (structure, kind, first - reach, first + reach))
            while some := rows.fetchmany(PIECE):
                yield _prints(some)

    def next_to(self, structure: int, kind: str, first: float, count: int) -> Prints:
        """The figures next to a given first one, `count` on either side."""
        on = "SELECT file, figures FROM prints WHERE structure = ? AND kind = ? AND first"
        low = self._db.execute(f"{on} < ? ORDER BY first DESC LIMIT ?", (structure, kind, first, count)).fetchall()
        high = self._db.execute(f"{on} >= ? ORDER BY first LIMIT ?", (structure, kind, first, count)).fetchall()
        return _prints([*low, *high])

    def orders(self, structure: int, heads: bool = False) -> Iterator[tuple[Indices, Floats]]:
        """(ids, sketches of the order of units) of a structure, piece by piece; heads: of the files looked at alone."""
        among = "AND file IN (SELECT file FROM heads)" if heads else ""
        rows = self._db.execute(
            f"SELECT file, figures FROM prints WHERE structure = ? AND kind = ? {among} ORDER BY file", (structure, ORDER)
        )
        while some := rows.fetchmany(PIECE):
            sketches = np.frombuffer(b"".join(row[1] for row in some), np.float32).reshape(len(some), -1)
            yield np.array([row[0] for row in some], np.intp), sketches.astype(np.float64)

    def lenders(self, entries: int) -> list[int]:
        """One file for each structure whose tensors have so many entries and that says its graph."""
        rows = self._db.execute(
            f"SELECT min(f.id) FROM sorts s JOIN files f ON f.sort = s.id AND f.state = {DONE} JOIN prints p ON p.file = f.id "
            "AND p.lender = '' WHERE s.entries = ? AND s.activations_known AND s.graph NOT IN ('none', 'chain') "
            "GROUP BY p.structure",
            (entries,),
        )
        return [int(row[0]) for row in rows]

    def without_graph(self, entries: int) -> set[int]:
        """Files without a graph of their own whose tensors have so many entries, and that have figures in no other's."""
        rows = self._db.execute(
            f"SELECT f.id FROM sorts s JOIN files f ON f.sort = s.id AND f.state = {DONE} WHERE s.entries = ? AND "
            "(NOT s.activations_known OR s.graph IN ('none', 'chain')) "
            "AND NOT EXISTS (SELECT 1 FROM prints p WHERE p.file = f.id AND p.lender != '')",
            (entries,),
        )
        return {row[0] for row in rows}

    def proof(self, a: str, b: str) -> Proof | None:
        """What comparing two files of these contents came to, if it was ever done."""
        row = self._db.execute("SELECT kind, distance, why FROM proofs WHERE a = ? AND b = ?", tuple(sorted((a, b)))).fetchone()
        return None if row is None else Proof(*row)


def place_of(row: Sequence[Any]) -> Place:
    """A place from its columns."""
    return Place(os.fsdecode(row[0]), row[1], row[2], row[3], bool(row[4]))


def _prints(rows: Sequence[tuple[int, bytes]]) -> Prints:
    """From the columns (file, figures)."""
    if not rows:
        return Prints(np.zeros(0, np.intp), np.zeros((0, 1)), np.zeros((0, 1)))
    both = np.frombuffer(b"".join(row[1] for row in rows)).reshape(len(rows), 2, -1)
    return Prints(np.array([row[0] for row in rows], np.intp), both[:, 0], both[:, 1])


def _batches(ids: Iterable[int], size: int) -> Iterator[list[int]]:
    rest = iter(ids)
    while some := list(itertools.islice(rest, size)):
        yield some
