"""What dedup and query found, as strict JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from canon.zoo.groups import Found
from canon.zoo.index import Index
from canon.zoo.links import Done, Plan
from canon.zoo.places import is_url
from canon.zoo.query import Answer

Show = Callable[[str], str]


def shown(words: Sequence[str]) -> Show:
    """How paths are told: as they are reached from here, unless a word named them absolutely."""
    absolute = any(os.path.isabs(word) for word in words)
    here = os.getcwd()

    def show(path: str) -> str:
        inside = path.startswith(here.rstrip("/") + "/")
        return os.path.relpath(path, here) if inside and not absolute and not is_url(path) else path

    return show


def dedup_dict(found: Found, index: Index, show: Show) -> dict[str, Any]:
    """`canon.dedup/1`. Beside the contract: why a file is kept, further names of files, pairs that could not be compared."""
    files, size = index.counts()
    return {
        "schema": "canon.dedup/1",
        "files": files,
        "bytes": size,
        "unreadable": [{"path": show(path), "error": error} for path, error in index.unreadable()],
        "groups": [
            {
                "kind": group.kind,
                "keep": show(group.keep.place.path),
                "why": group.why,
                "members": sorted(show(f.place.path) for f in (group.keep, *(link.file for link in group.links))),
                "links": [
                    {"path": show(link.file.place.path), "kind": link.kind, "distance": _number(link.distance), "why": link.why}
                    for link in group.links
                ],
                "bytes_saved": group.bytes_saved,
            }
            for group in found.groups
        ],
        "related": [
            {"a": show(a.place.path), "b": show(b.place.path), "distance": _number(proof.distance or 0.0), "kind": proof.kind}
            for a, b, proof in found.related
        ],
        "not_looked_at": found.pairs - found.looked_at,
        "not_compared": [{"a": show(a.place.path), "b": show(b.place.path), "why": why} for a, b, why in found.failed],
        "names": [{"path": show(path), "of": show(first)} for path, first in index.names()],
    }


def action_dict(planned: Plan, done: Sequence[Done] | None, log: str | None, show: Show) -> dict[str, Any]:
    """What was planned, and what became of it (None: it was only planned)."""
    return {
        "steps": [
            {"path": show(s.path), "keep": show(s.keep), "kind": s.kind, "bytes": s.size, "same_bytes": s.same_bytes}
            for s in planned.steps
        ],
        "left": [{"path": show(path), "why": why} for path, why in planned.left],
        "bytes_saved": planned.bytes_saved,
        "done": None if done is None else [{"path": show(d.step.path), "why": d.why or None} for d in done],
        "log": log,
    }


def query_dict(answer: Answer, file: str, index: str, show: Show) -> dict[str, Any]:
    """`canon.query/1`."""
    return {
        "schema": "canon.query/1",
        "file": file,
        "index": index,
        "files": answer.files,
        "copies": [
            {"path": show(link.file.place.path), "kind": link.kind, "distance": _number(link.distance), "why": link.why}
            for link in answer.copies
        ],
        "related": [{"path": show(k.place.path), "distance": _number(distance)} for k, distance in answer.related],
        "not_looked_at": answer.not_looked_at,
        "not_compared": [{"path": show(path), "why": why} for path, why in answer.failed],
    }


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None
