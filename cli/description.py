"""What `canon show` prints: the file, its spaces, what is fixed, what folds away, and the size of the symmetry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .console import Column, Page
from .text import some

if TYPE_CHECKING:
    from canon.describe import CarryingAxis, Description

_GRAPHS = {
    "config": "recorded in the file",
    "stored": "recorded in the file",
    "borrowed": "taken from --architecture",
    "chain": "not in the file: the chain of layers that shapes prove",
    "family": "not in the file: known by names and shapes",
    "none": "not known",
}


def print_description(found: Description, page: Page | None = None, told: Iterable[str] = ()) -> None:
    """Print a description on stdout. told: notes already given elsewhere."""
    page = page or Page()
    page.entry("file", found.path)
    page.entry("format", found.format)
    page.entry("graph", _GRAPHS.get(found.graph, found.graph))
    if not found.activations_known:
        page.entry("", "activations are not recorded: --activation or --architecture tells them")
    page.entry("parameters", f"{found.parameters:,} in {found.tensors} {_plural('tensor', found.tensors)}, {found.dtype}")
    page.entry("inputs", "; ".join(f"{v} {_shape(s)}" for v, s in found.inputs.items()))
    page.entry("outputs", "; ".join(f"{v} {_shape(s)}" for v, s in found.outputs.items()))
    _checkpoints(page, found)
    page.line()
    _spaces(page, found)
    _fixed(page, found)
    _folds(page, found)
    skip = set(told)
    for note in found.notes:
        if note not in skip:
            page.entry("note", note)
    page.entry("symmetry", _size(found))


def _plural(noun: str, n: int) -> str:
    return noun if n == 1 else f"{noun}s"


def _shape(shape: Sequence[int | None]) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in shape)})"


def _checkpoints(page: Page, found: Description) -> None:
    if not found.checkpoints:
        return
    names = list(dict.fromkeys(k for step in found.checkpoints for k in found.metrics.get(step, {})))
    if not names:
        page.entry("checkpoints", f"{some(found.checkpoints, 20)}; this is {found.checkpoint}")
        return
    page.line()
    rows = []
    for step in found.checkpoints:
        values = found.metrics.get(step, {})
        figures = [f"{values[k]:.6g}" if k in values else "" for k in names]
        rows.append([step, *figures, "shown here" if step == found.checkpoint else ""])
    page.table([Column("checkpoint"), *(Column(k, right=True, leaves=i) for i, k in enumerate(names)), Column("")], rows)


def _spaces(page: Page, found: Description) -> None:
    if not found.spaces:
        return
    why = max(len(s.why) for s in found.spaces) + max(len(s.name) for s in found.spaces) < page.width - 45
    columns = [Column("space"), Column("units", right=True), Column("group")] + ([Column("why")] if why else [])
    rows = []
    for s in found.spaces:
        units = f"{s.units} for each of {s.over}" if s.over else s.units
        rows.append([s.name, units, s.group, *([s.why] if why else [])])
    page.table(columns, rows)
    page.line()
    if not why:
        reasons: dict[str, list[str]] = {}
        for s in found.spaces:
            reasons.setdefault(s.why, []).append(s.name)
        for i, (reason, names) in enumerate(reasons.items()):
            page.entry("why" if i == 0 else "", f"{some(names)}: {reason}")
        page.line()
    most = 6 if page.terminal else 10**9
    for i, s in enumerate(found.spaces):
        page.entry("axes" if i == 0 else "", f"{s.name}: {some([_axis(a) for a in s.axes], most) or 'of no tensor'}")
    alone = all(a.alone for s in found.spaces for a in s.axes)
    shared = "" if alone else "; + where other units lie along the axis as well"
    page.entry("", f"(numbered from 0, as the file stores them{shared})")
    page.line()


def _axis(a: CarryingAxis) -> str:
    where = "reshaped" if a.stored_axis is None else str(a.stored_axis)
    return f"{a.tensor}[{where}]{'' if a.alone else '+'}"


def _fixed(page: Page, found: Description) -> None:
    reasons: dict[str, list[str]] = {}
    for axis, why in found.fixed.items():
        reasons.setdefault(why, []).append(axis)
    for i, (why, axes) in enumerate(reasons.items()):
        page.entry("fixed" if i == 0 else "", f"{some(axes)}: {why}")


def _folds(page: Page, found: Description) -> None:
    kinds: dict[str, list[str]] = {}
    for step in found.folds:
        units = f"{len(step.units)} {_plural('unit', len(step.units))} of " if step.units else ""
        kinds.setdefault(step.what, []).append(f"{units}{step.where} {step.detail}".strip())
    for i, (what, steps) in enumerate(kinds.items()):
        page.entry("folds away" if i == 0 else "", f"{what}: {some(steps)}")


def _size(found: Description) -> str:
    if not found.spaces:
        return "none: nothing in this network may be relabelled or rescaled"
    parts = [f"10^{found.log10_permutations:.1f} relabellings"] if found.log10_permutations else []
    if found.signs:
        parts.append(f"2^{found.signs} sign flips")
    dimension = found.continuous_dimension
    of = "linear maps and scales" if any(s.group == "linear" for s in found.spaces) else "scales"
    parts.append(f"{dimension:,} continuous {_plural('dimension', dimension)} of {of}" if dimension else "no scales")
    return ", ".join(parts)
