"""Similarity: everything that `canon similarity` says, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canon.similarity.null import Figure
from canon.similarity.units import Unit, Units


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a side: constant counts units that do not vary; output: whether it is the network's."""

    name: str
    units: int
    positions: int
    constant: int
    output: bool


@dataclass(frozen=True)
class SideInfo:
    """One side: its file, what it holds, and where its activations come from."""

    path: str
    origin: str
    about: Mapping[str, Any]
    layers: tuple[LayerInfo, ...]


@dataclass(frozen=True)
class LayerFigures:
    """Two layers and every measure taken of them; detailed: whether more was taken than the map's measure."""

    a: str
    b: str
    measures: Mapping[str, Figure]
    detailed: bool


@dataclass(frozen=True)
class Best:
    """The layer of b that is most like a layer of a, by a measure; beyond_chance: whether its p is at most 0.05."""

    a: str
    b: str
    measure: str
    beyond_chance: bool | None = None


@dataclass(frozen=True)
class Similarity:
    """Two sides compared.

    samples; identity: how they are known to be the same ("same probes", or their names "agree"), or None; positions: what
    places of images are, in words;
    held: samples whose rows null and pairs of samples come from; lead: the measure of the map; layers: pairs, in the order
    of a and then b; left_out: pairs that cannot be compared, and why; units: tables, where asked for; references: paths.
    """

    a: SideInfo
    b: SideInfo
    samples: int
    identity: str | None
    positions: str
    held: int
    lead: str
    layers: tuple[LayerFigures, ...]
    best: tuple[Best, ...]
    left_out: tuple[tuple[str, str, str], ...] = ()
    units: tuple[Units, ...] = ()
    references: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def marked(self) -> frozenset[tuple[str, str]]:
        """The best pairs, those aside that chance alone explains."""
        return frozenset((one.a, one.b) for one in self.best if one.beyond_chance is not False)

    @property
    def detailed(self) -> tuple[LayerFigures, ...]:
        """The pairs of which every measure was taken."""
        return tuple(pair for pair in self.layers if pair.detailed)

    def as_dict(self, units: bool = False) -> dict[str, Any]:
        """Strict JSON, schema canon.similarity/1: null where a figure does not exist, never NaN."""
        out: dict[str, Any] = {
            "schema": "canon.similarity/1",
            "a": _side(self.a),
            "b": _side(self.b),
            "samples": self.samples,
            "sample_identity": self.identity,
            "positions": self.positions,
            "rows_held": self.held,
            "references": list(self.references),
            "map": self.lead,
            "layers": [
                {"a": p.a, "b": p.b, "measures": {name: figure(f) for name, f in p.measures.items()}} for p in self.layers
            ],
            "best": [vars(best) for best in self.best],
            "left_out": [{"a": a, "b": b, "why": why} for a, b, why in self.left_out],
        }
        if units:
            out["units"] = [_unit(table, u) for table in self.units for u in table.units]
            out["found"] = [
                {
                    "a": t.a,
                    "b": t.b,
                    "threshold": _finite(t.threshold),
                    "both": [[u.a, u.b] for u in t.both],
                    "only_a": list(t.only(0)),
                    "only_b": list(t.only(1)),
                }
                for t in self.units
            ]
        return out | {"notes": list(self.notes)}


def figure(f: Figure) -> dict[str, Any]:
    """A figure as JSON."""
    out: dict[str, Any] = {
        "value": _finite(f.value),
        "chance": None if f.chance is None else {k: _finite(v) for k, v in f.chance.items()},
        "z": _finite(f.z),
        "p": _finite(f.p),
        "calibrated": _finite(f.calibrated),
        "permutations": f.permutations,
        "rows": f.rows,
    }
    if f.why:
        out["why"] = f.why
    if f.reference:
        out["reference"] = {path: _finite(value) for path, value in f.reference.items()}
    return out


def _side(side: SideInfo) -> dict[str, Any]:
    return {"path": side.path, **side.about, "activations": side.origin, "layers": [vars(layer) for layer in side.layers]}


def _unit(table: Units, u: Unit) -> dict[str, Any]:
    return {
        "space": table.a,
        "space_b": table.b,
        "a": u.a,
        "b": u.b,
        "distance": _finite(u.distance),
        "correlation": _finite(u.correlation),
        "scale": _finite(u.scale),
        "runner_up": None if u.runner_up is None else dict(u.runner_up),
        "active": {"a": u.active[0], "b": u.active[1]},
        "found": u.found,
        "flags": list(u.flags),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
