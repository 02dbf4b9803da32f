"""What a worker does with a few files: read, hash, fingerprint. Nothing it returns is larger than a page of text.

Files like one read before are read from their bytes alone (formats.common_raw), and those of one graph are computed together.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from canon.compare.comparing import rounding
from canon.errors import CanonError, MissingExtra, ReadError
from canon.formats import read
from canon.formats.common_raw import Raw, raw
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run
from canon.zoo.fingerprint import Fingerprint
from canon.zoo.places import Place, content, here
from canon.zoo.plans import Plan, Plans

WHOLE = 1 << 26
"""Bytes up to which a file is held in memory as it is; a larger one is hashed piece by piece."""
_KEPT = 64


@dataclass(frozen=True, slots=True)
class Sort:
    """What all files of one template share: format, the checkpoint read, how many there are, parameters, main type, unit
    roundoff of the coarsest type, how the graph is known, whether activations are, and how many entries its tensors have, a
    tensor that the file holds twice counted once: files whose graphs may be lent have as many, however they are cut.
    """

    format: str
    checkpoint: str
    checkpoints: int
    parameters: int
    dtype: str
    unit: float
    graph: str
    activations_known: bool
    entries: int

    @property
    def lends(self) -> bool:
        """Whether the file says all of its graph, so that one that does not may take it."""
        return self.activations_known and self.graph not in ("none", "chain")


@dataclass(frozen=True, slots=True)
class Record:
    """A file, read: its hash, what it holds and its fingerprints (of its network, and of all that it says where that is more),
    or why it could not be read; again: whether that may pass by itself.
    """

    place: Place
    sha: str = ""
    sort: Sort | None = None
    found: tuple[Fingerprint, ...] = ()
    error: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """probes: whether networks are run on probes (None: where that costs little)."""

    probes: bool | None = None


ANYTHING = Asked()


@dataclass
class _Template:
    raw: Raw
    sort: Sort
    plan: Plan


@dataclass
class Reader:
    """Reads files one after the other and remembers what they were like."""

    asked: Asked = ANYTHING
    plans: Plans = field(init=False)
    templates: OrderedDict[int, list[_Template]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.plans = Plans(self.asked.probes)

    def records(self, places: Sequence[Place]) -> list[Record]:
        """One for each file, in order."""
        out: list[Record | None] = [None] * len(places)
        waiting: dict[int, tuple[_Template, list[tuple[int, str, bytes]]]] = {}
        for i, place in enumerate(places):
            try:
                if not place.regular:
                    raise ReadError("", "is not a regular file")
                data, sha = self._bytes(place)
                template = None if data is None else self._template(data)
                if template is None or data is None:
                    out[i] = self._one(place, data, sha)
                    continue
                held = waiting.setdefault(id(template), (template, []))[1]
                held.append((i, sha, data))
                if len(held) >= template.plan.at_once():
                    self._together(template, places, held, out)
                    held.clear()
            except Exception as e:
                out[i] = _failed(place, e)
        for template, held in waiting.values():
            self._together(template, places, held, out)
        return [r for r in out if r is not None]

    def _bytes(self, place: Place) -> tuple[bytes | None, str]:
        if place.size <= WHOLE:
            data = content(place.path)
            return data, hashlib.sha256(data).hexdigest()
        with here(place.path) as path, path.open("rb") as file:
            return None, hashlib.file_digest(file, "sha256").hexdigest()

    def _template(self, data: bytes) -> _Template | None:
        return next((t for t in self.templates.get(len(data), ()) if t.raw.fits(data)), None)

    def _one(self, place: Place, data: bytes | None, sha: str) -> Record:
        with here(place.path, data) as path:
            run = read(path)
            found, plan = self.plans.fingerprint(run.network)
            faces = [found] if run.whole is None else [found, self.plans.fingerprint(run.whole)[0]]
            sort = sort_of(run)
            alike = raw(path, run, data) if data is not None and len(faces) == 1 else None
            if data is not None and alike is not None:
                self._keep(len(data), _Template(alike, sort, plan))
        return Record(place, sha, sort, tuple(faces))

    def _keep(self, size: int, template: _Template) -> None:
        self.templates[size] = [template, *self.templates.pop(size, [])][:_KEPT]
        if len(self.templates) > _KEPT:
            self.templates.popitem(last=False)

    def _together(
        self, template: _Template, places: Sequence[Place], held: list[tuple[int, str, bytes]], out: list[Record | None]
    ) -> None:
        if not held:
            return
        try:
            found = template.plan.fingerprints(template.raw.stacked([data for _, _, data in held]))
            for (i, sha, _), print_ in zip(held, found, strict=True):
                out[i] = Record(places[i], sha, template.sort, (print_,))
        except CanonError as e:
            if len(held) == 1:  # one that goes the long way: with the library's own words
                out[held[0][0]] = _failed(places[held[0][0]], e)
                return
            for one in held:
                self._together(template, places, [one], out)


def sort_of(run: Run) -> Sort:
    """What a record keeps of a run, beside its fingerprint."""
    network = run.network
    return Sort(
        run.format,
        run.checkpoint,
        len(run.checkpoints),
        network.parameters,
        network.main_type,
        rounding(network),
        run.graph,
        run.activations_known,
        sum(_apart(network)),
    )


def _apart(network: Network) -> Iterator[int]:
    """The sizes of all tensors, of equal ones (a tied one that the file holds twice) only one."""
    seen: dict[tuple[object, ...], list[Array]] = {}
    for t in network.tensors.values():
        before = seen.setdefault((t.shape, t.reshape(-1)[:8].tobytes() if t.ndim > 1 else len(seen)), [])
        if not any(np.array_equal(t, other) for other in before):
            before.append(t)
            yield int(t.size)


def _failed(place: Place, e: Exception) -> Record:
    """A file that could not be read, in one line and without its own path, which stands beside it."""
    if isinstance(e, CanonError):
        where = e.where.removeprefix(place.path).strip(": ")
        said = ": ".join(part for part in (where, e.what) if part)
    elif isinstance(e, MemoryError):
        said = "needs more memory than there is"
    else:
        said = f"internal error: {type(e).__name__}: {e}"
    again = isinstance(e, MissingExtra | MemoryError) or (isinstance(e, ReadError) and "cannot be" in said)
    return Record(place, error=" ".join(said.split()), again=again)


_readers: dict[Asked, Reader] = {}


def examine(places: Sequence[Place], asked: Asked) -> list[Record]:
    """The records of files. What is learnt about their formats is kept for the next call in the same process."""
    return _readers.setdefault(asked, Reader(asked)).records(places)
