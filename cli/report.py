"""What `canon compare` prints: the spaces, the units that fit worst, the evidence, and the verdict last."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from .console import console, table

if TYPE_CHECKING:
    from canon.compare import Comparison


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def print_comparison(result: Comparison, units: bool) -> None:
    """Print a comparison on stdout."""
    out = console()
    headers = ("space", "units", "live", "moved", "raw", "normalised", "matched", "chance", "r raw", "r matched", "r chance", "group")
    rows = [
        (s.name, s.units, s.live, s.moved, _number(s.raw), _number(s.normalised), _number(s.matched), _number(s.chance),
         _number(s.correlation["raw"]), _number(s.correlation["matched"]), _number(s.correlation["chance"]), s.group)
        for s in result.spaces
    ]  # fmt: skip
    if rows:
        out.print(table(headers, rows, right=headers[1:-1]))
    out.print(f"{result.verdict}: {result.reason}")


def units_csv(result: Comparison) -> str:
    """All units as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("space", "a", "b", "distance", "correlation", "scale", "runner_up", "ratio", "flags"))
    for u in result.units:
        runner = u.runner_up or {"b": "", "ratio": ""}
        writer.writerow((u.space, u.a, u.b, u.distance, u.correlation, u.scale, runner["b"], runner["ratio"], " ".join(u.flags)))
    return text.getvalue()
