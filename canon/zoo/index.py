"""The index of a zoo: one SQLite file with what is known of each file, its figures, and every proof made.

It is written in short transactions, each whole or not at all (a rollback journal: one file, and safe on any file system that
locks), so that a scan that is killed loses its last second at most, and two at once only do some work twice. A file is read
again when its size or time changed. Proofs are kept by content: a renamed file keeps its own.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from canon import __version__
from canon.errors import CanonError, CorruptFile, UsageError
from canon.zoo.fingerprint import ORDER, VERSION, Figures, Fingerprint
from canon.zoo.lookup import AGAIN, DONE, FAILED, FIRST_NAME, PENDING, SORT, Known, Lookup, Proof, place_of
from canon.zoo.places import Place
from canon.zoo.reading import Record, Sort

_MARK = 0x63616E6F  # "cano"
_LAYOUT = 1
_PATIENCE = 120.0
"""Seconds to wait while somebody else writes."""
_WIDEST = 1e300
_TABLES = """
CREATE TABLE files (
  id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, changed INTEGER NOT NULL, inode TEXT NOT NULL,
  regular INTEGER NOT NULL, state INTEGER NOT NULL, sha TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
  tensors TEXT NOT NULL DEFAULT '', sort INTEGER NOT NULL DEFAULT 0);
CREATE INDEX files_sha ON files (sha);
CREATE INDEX files_inode ON files (inode);
CREATE TABLE sorts (
  id INTEGER PRIMARY KEY, format TEXT, checkpoint TEXT, checkpoints INTEGER, parameters INTEGER, dtype TEXT, unit REAL,
  graph TEXT, activations_known INTEGER, entries INTEGER,
  UNIQUE (format, checkpoint, checkpoints, parameters, dtype, unit, graph, activations_known, entries));
CREATE TABLE structures (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE prints (
  file INTEGER NOT NULL, structure INTEGER NOT NULL, kind TEXT NOT NULL, lender TEXT NOT NULL, first REAL NOT NULL,
  room REAL NOT NULL, figures BLOB NOT NULL, PRIMARY KEY (file, structure, kind)) WITHOUT ROWID;
CREATE INDEX prints_first ON prints (structure, kind, first);
CREATE INDEX prints_room ON prints (structure, kind, room);
CREATE TABLE proofs (
  a TEXT NOT NULL, b TEXT NOT NULL, kind TEXT NOT NULL, distance REAL, why TEXT NOT NULL, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class Index(Lookup):
    """An index in a file, made if it is not there; None: a temporary one, which goes when it is closed.

    Raises UsageError for a file that is something else, CorruptFile.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="canon-") if path is None else None
        self.path = str(path) if self._folder is None else str(Path(self._folder.name) / "index")
        self._sorts: dict[Sort, int] = {}
        self._structures: dict[str, int] = {}
        try:
            self._db = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            self._db.execute(f"PRAGMA synchronous = {'OFF' if self._folder else 'FULL'}")
            self._db.execute("PRAGMA temp_store = FILE")
            self._begin()
            # which files this scan has found: seen by this connection alone
            self._db.execute("CREATE TEMP TABLE found (file INTEGER PRIMARY KEY)")
        except sqlite3.Error as e:
            raise self._said(e) from None

    def close(self) -> None:
        """Let go of the file; a temporary index is removed."""
        self._db.close()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, sqlite3.Error):
            raise self._said(error) from error

    def _begin(self) -> None:
        mark = self._db.execute("PRAGMA application_id").fetchone()[0]
        if mark != _MARK and self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UsageError(self.path, "is a database, but no index of canon's", "Name another file.")
        with self.writing():
            if self._db.execute("PRAGMA application_id").fetchone()[0] != _MARK:
                for statement in _TABLES.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_MARK}")
                self._db.execute(f"PRAGMA user_version = {_LAYOUT}")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found != _LAYOUT:
                raise UsageError(self.path, f"an index of layout {found}, and this canon has {_LAYOUT}", "Make a new one.")
            made = f"{__version__} {VERSION}"
            if self._meta("made") != made:  # figures of another version: everything is read again
                self._db.execute("UPDATE files SET state = ?", (PENDING,))
                self._db.execute("DELETE FROM prints")
                self._db.execute("DELETE FROM proofs")
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('made', ?)", (made,))

    def _meta(self, name: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else ""

    def _said(self, e: sqlite3.Error) -> CanonError:
        if isinstance(e, sqlite3.DatabaseError) and "not a database" in str(e):
            return UsageError(self.path, "is no index of canon's", "Name another file.")
        return CorruptFile(self.path, f"the index cannot be used: {e}", "Remove it to make a new one.")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all of what is done inside, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._sorts.clear()
            self._structures.clear()
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # what a scan finds

    def found(self, places: Sequence[Place], again: bool = False) -> None:
        """Note files that were found; one that is new or changed is to be read. again: read all of them again."""
        with self.writing():
            for p in places:
                row = (os.fsencode(p.path), p.size, p.changed, p.inode, p.regular)
                self._db.execute(
                    "INSERT INTO files (path, size, changed, inode, regular, state) VALUES (?, ?, ?, ?, ?, 0) "
                    "ON CONFLICT (path) DO UPDATE SET inode = excluded.inode, state = CASE WHEN size = excluded.size "
                    "AND changed = excluded.changed AND regular = excluded.regular AND NOT ? THEN state ELSE 0 END, "
                    "size = excluded.size, changed = excluded.changed, regular = excluded.regular",
                    (*row, again),
                )
                self._db.execute("INSERT OR IGNORE INTO found SELECT id FROM files WHERE path = ?", (row[0],))

    def forget(self, folders: Iterable[str]) -> None:
        """Drop the files below folders (absolute, or URLs) that this scan has not found."""
        with self.writing():
            for folder in folders:
                low = os.fsencode(folder.rstrip("/") + "/")
                gone = "path >= ? AND path < ? AND id NOT IN (SELECT file FROM found)"
                span = (low, low[:-1] + b"0")
                self._db.execute(f"DELETE FROM prints WHERE file IN (SELECT id FROM files WHERE {gone})", span)
                self._db.execute(f"DELETE FROM files WHERE {gone}", span)

    def waiting(self) -> tuple[int, int]:
        """How many of the files found are still to be read, and their bytes."""
        row = self._db.execute(f"SELECT count(*), coalesce(sum(size), 0) FROM ({self._to_read()})").fetchone()
        return int(row[0]), int(row[1])

    def _to_read(self) -> str:
        """Of several names of one file only the first is read."""
        return (
            "SELECT f.id, f.path, f.size, f.changed, f.inode, f.regular FROM found JOIN files f ON f.id = found.file "
            f"WHERE f.state IN ({PENDING}, {AGAIN}) AND {FIRST_NAME}"
        )

    def to_read(self) -> Iterator[Place]:
        """The files found that are still to be read, in the order in which they were found."""
        last = 0
        while True:
            rows = self._db.execute(f"{self._to_read()} AND f.id > ? ORDER BY f.id LIMIT 1000", (last,)).fetchall()
            if not rows:
                return
            for row in rows:
                yield place_of(row[1:])
            last = rows[-1][0]

    def store(self, records: Sequence[Record]) -> None:
        """Keep what was read. A file that is no longer the one that was found stays to be read."""
        with self.writing():
            for r in records:
                sort = self._sort(r.sort) if r.sort is not None else 0
                state = DONE if not r.error else AGAIN if r.again else FAILED
                tensors = r.found[0].tensors if r.found else ""
                key = (os.fsencode(r.place.path), r.place.size, r.place.changed)
                row = self._db.execute(
                    "UPDATE files SET state = ?, sha = ?, error = ?, tensors = ?, sort = ? "
                    "WHERE path = ? AND size = ? AND changed = ? RETURNING id",
                    (state, r.sha, r.error, tensors, sort, *key),
                ).fetchone()
                if row is None:
                    continue
                self._db.execute("DELETE FROM prints WHERE file = ?", row)
                for one in r.found:
                    self._print(row[0], "", one)

    def _print(self, file: int, lender: str, f: Fingerprint) -> None:
        structure = self._structure(f.structure)
        for figures in (f.figures, f.outputs, f.order):
            if figures.kind or figures is f.figures:
                first, room = (figures.values[0], figures.room[0]) if figures.room else (0.0, 0.0)
                row = (file, structure, figures.kind, lender, first, min(room, _WIDEST), pack(figures))
                self._db.execute("INSERT OR REPLACE INTO prints VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _structure(self, name: str) -> int:
        if name not in self._structures:
            self._db.execute("INSERT OR IGNORE INTO structures (name) VALUES (?)", (name,))
            self._structures[name] = self._db.execute("SELECT id FROM structures WHERE name = ?", (name,)).fetchone()[0]
        return self._structures[name]

    def _sort(self, sort: Sort) -> int:
        if sort not in self._sorts:
            row = tuple(getattr(sort, name) for name in SORT)
            marks = ", ".join("?" * len(row))
            self._db.execute(f"INSERT OR IGNORE INTO sorts ({', '.join(SORT)}) VALUES ({marks})", row)
            where = " AND ".join(f"{name} = ?" for name in SORT)
            self._sorts[sort] = self._db.execute(f"SELECT id FROM sorts WHERE {where}", row).fetchone()[0]
        return self._sorts[sort]

    def borrowed(self, file: Known, lender: Known, found: Fingerprint | None) -> None:
        """Keep the figures that a file without a graph of its own has in another's; None: it does not fit."""
        with self.writing():
            theirs = self._db.execute("SELECT structure FROM prints WHERE file = ? AND lender = ''", (lender.id,)).fetchone()
            if found is not None:
                self._print(file.id, lender.sha, found)
            if theirs is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO proofs VALUES (?, ?, '', NULL, '')", (file.sha, f"structure {theirs[0]}")
                )

    def keep_proofs(self, proofs: Sequence[tuple[str, str, Proof]]) -> None:
        """Keep proofs, by the contents of the two files."""
        with self.writing():
            for a, b, p in proofs:
                row = (*sorted((a, b)), p.kind, p.distance, p.why)
                self._db.execute("INSERT OR REPLACE INTO proofs VALUES (?, ?, ?, ?, ?)", row)


def pack(figures: Figures) -> bytes:
    """Values, then room, as float64; of the order of units the values alone, as float32."""
    if figures.kind == ORDER:
        return np.array(figures.values, np.float32).tobytes()
    return np.array([figures.values, figures.room], np.float64).tobytes()
