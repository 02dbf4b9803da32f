"""One pass over a zoo: files are found, and those that the index does not know are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from canon.errors import CanonError
from canon.formats import read
from canon.zoo.fingerprint import Fingerprint, fingerprint
from canon.zoo.index import Index
from canon.zoo.places import Place, find, folder, here
from canon.zoo.pool import Here, Pool, chunked
from canon.zoo.reading import ANYTHING, Asked, Record, examine

CHUNK, CHUNK_BYTES = 256, 1 << 25
"""Files that a worker is given at once, and about how many bytes of them."""
_SHARES, _FOUND, _BAR = 8, 2000, 20
_EVERY = 1.0
"""Seconds between two writes to the index."""
DIED = "killed the process that read it, three times: the file is damaged or made to harm"


@dataclass(frozen=True)
class Progress:
    """Files and bytes read so far, of all that are to be read; seconds left, where that can be told."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int
    left: float | None

    def __str__(self) -> str:
        share = self.bytes / self.of_bytes if self.of_bytes else 1.0
        bar = "#" * int(_BAR * share)
        said = f"{self.files:,} of {self.of_files:,} files, {size(self.bytes)} of {size(self.of_bytes)}"
        return f"[{bar:-<{_BAR}}] reading {said}" + (f", about {duration(self.left)} left" if self.left is not None else "")


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.2g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def scan(
    words: Sequence[str],
    index: Index,
    pool: Pool | None = None,
    asked: Asked = ANYTHING,
    again: bool = False,
    tell: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Find all files that words name (files, folders, patterns, URLs) and read those that are new or changed.

    again: read all. The index is written every second: a scan that is killed goes on from there.
    Raises ReadError for a word that names nothing.
    """
    folders = [f for word in words if (f := folder(word))]
    for some in chunked((p for word in words for p in find(word)), _FOUND, lambda _: 0, 1):
        index.found(some, again)
    index.forget(folders)
    files, total = index.waiting()
    start, done, seen = time.monotonic(), 0, 0
    held: list[Record] = []
    written = start
    pool = pool or Here()
    chunks = chunked(index.to_read(), min(CHUNK, files // _SHARES + 1), lambda p: p.size, CHUNK_BYTES)
    for _, records in pool.run(partial(examine, asked=asked), chunks, lost):
        held += records
        done += len(records)
        seen += sum(r.place.size for r in records)
        now = time.monotonic()
        left = (now - start) * (files - done) / done if now - start > 2 else None
        tell(Progress(done, files, seen, total, left))
        if now - written > _EVERY:
            index.store(held)
            held, written = [], now
    index.store(held)
    index.choose()
    _borrow(index, pool)


def lost(place: Place) -> Record:
    """What stands for a file that kills whoever reads it."""
    return Record(place, error=DIED)


def lend(pairs: Sequence[tuple[str, str]]) -> list[Fingerprint | None]:
    """For each (file without a graph of its own, file with one): the fingerprint of the first in the graph of the second."""
    out: list[Fingerprint | None] = []
    for path, lender in pairs:
        try:
            with here(path) as a, here(lender) as b:
                out.append(fingerprint(read(a, architecture=b).network))
        except CanonError:
            out.append(None)
    return out


def _borrow(index: Index, pool: Pool) -> None:
    """Files without a graph of their own get figures in every graph of the zoo that their tensors fit."""
    pairs = index.to_borrow()
    known = index.known({i for pair in pairs for i in pair})
    tasks = {(known[a].place.path, known[b].place.path): (known[a], known[b]) for a, b in pairs}
    for chunk, found in pool.run(lend, chunked(iter(tasks), 16, lambda _: 0, 1), lambda _: None):
        for task, one in zip(chunk, found, strict=True):
            index.borrowed(*tasks[task], one)
