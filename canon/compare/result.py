"""Comparison: everything that `canon compare` says, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SAME = ("identical", "equivalent")


@dataclass(frozen=True)
class File:
    """One side: where it came from and what it holds."""

    path: str
    format: str
    checkpoint: str
    parameters: int
    dtype: str


@dataclass(frozen=True)
class SpaceFigures:
    """A space (or a fixed output): distances at each stage, correlations, and its group in words.

    moved: how many units do not stand where they stood; None where nothing could be measured.
    """

    name: str
    units: int
    live: int
    group: str
    moved: int
    raw: float | None
    normalised: float | None
    matched: float | None
    correlation: Mapping[str, float | None]
    chance: float | None = None
    z: float | None = None


@dataclass(frozen=True)
class TensorFigures:
    """The plain diff of one tensor, as stored. status: same, differs, shape, only in a, only in b; statistics: whether it
    is a running statistic of a batch norm, and no trained parameter.
    """

    a: str | None
    b: str | None
    shape: tuple[int, ...] | None
    raw: float | None
    status: str
    statistics: bool = False


@dataclass(frozen=True)
class UnitFigures:
    """One unit of A and its partner in B, both as stored indices."""

    space: str
    a: int
    b: int
    distance: float
    correlation: float | None
    scale: float
    runner_up: Mapping[str, float | int] | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Verdict, reason and every figure behind them; `as_dict` is the JSON object of `canon compare --json`."""

    verdict: str
    reason: str
    a: File
    b: File
    distance: Mapping[str, Any]
    worst: Mapping[str, Any] | None
    evidence: Mapping[str, Any] | None
    spaces: tuple[SpaceFigures, ...]
    tensors: tuple[TensorFigures, ...]
    check: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    units: tuple[UnitFigures, ...] = ()
    partial: Mapping[str, Any] | None = None
    sampled: Mapping[str, int] = field(default_factory=dict)
    gauge: str = "incoming"

    @property
    def same(self) -> bool:
        """Whether the two hold the same network."""
        return self.verdict in SAME

    def as_dict(self, units: bool = False) -> dict[str, Any]:
        """Strict JSON: null where a figure does not exist, never NaN."""
        out: dict[str, Any] = {
            "schema": "canon.compare/1",
            "verdict": self.verdict,
            "reason": self.reason,
            "a": vars(self.a),
            "b": vars(self.b),
            "gauge": self.gauge,
            "distance": self.distance,
            "worst": self.worst,
            "evidence": self.evidence,
            "spaces": [vars(s) for s in self.spaces],
            "tensors": [{**vars(t), "shape": None if t.shape is None else list(t.shape)} for t in self.tensors],
        }
        if units:
            out["units"] = [{**vars(u), "flags": list(u.flags)} for u in self.units]
        out |= {"check": self.check, "partial": self.partial, "sampled": self.sampled, "notes": list(self.notes)}
        cleaned = _strict(out)
        assert isinstance(cleaned, dict)
        return cleaned


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
