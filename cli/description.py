"""What `canon show` prints: the file, its spaces, what is fixed, what folds away, and the size of the symmetry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


_WIDEST = 220
"""A table beyond this is no table any more: reasons then stand below it, off a terminal too."""


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


@dataclass(frozen=True)
class _Line:
    """A space as it is printed, or the same space of several blocks of a network at once."""

    name: str
    units: str
    group: str
    why: str
    axes: tuple[str, ...]


def _lines(found: Description) -> list[_Line]:
    """A line for each space; one for those that differ in the number of their block alone, with the numbers as ranges."""
    groups: dict[_Line, list[int]] = {}
    for s in found.spaces:
        units = f"{s.units} each" if s.over else str(s.units)
        line = _Line(s.name, units, s.group, s.why, tuple(map(_axis, s.axes)))
        number = _BLOCK.search(s.name)
        if number is None:
            groups[line] = []
            continue
        mine = re.compile(rf"(?<![^./]){number[0]}(?=[./])")
        name, why, *axes = (mine.sub("\0", text) for text in (line.name, line.why, *line.axes))
        groups.setdefault(_Line(name, units, s.group, why, tuple(axes)), []).append(int(number[0]))
    return [
        _Line(line.name.replace("\0", _ranges(n)), line.units, line.group, line.why.replace("\0", _ranges(n)),
              tuple(t.replace("\0", _ranges(n)) for t in line.axes))
        for line, n in groups.items()
    ]  # fmt: skip


_BLOCK = re.compile(r"(?<![^./])(0|[1-9][0-9]{0,5})(?=[./])")
"""The number of a block, as a word of its own in a name."""


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers, rising, with those that follow each other as a range: "0-5,8"."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _spaces(page: Page, found: Description) -> None:
    if not found.spaces:
        return
    lines = _lines(found)
    widest = [max(len(t) for t in column) for column in zip(*((s.name, s.units, s.group, s.why) for s in lines), strict=True)]
    why = sum(widest) + 12 < min(page.width, _WIDEST)
    columns = [Column("space"), Column("units", right=True), Column("group")] + ([Column("why")] if why else [])
    page.table(columns, [[s.name, s.units, s.group, *([s.why] if why else [])] for s in lines])
    page.line()
    if not why:
        reasons: dict[str, list[str]] = {}
        for s in lines:
            reasons.setdefault(s.why, []).append(s.name)
        for i, (reason, names) in enumerate(reasons.items()):
            page.entry("why" if i == 0 else "", f"{some(names)}: {reason}")
        page.line()
    if apart := [b for b in found.blocks if b.over is None]:
        kinds: dict[str, list[str]] = {}
        for block in apart:
            kinds.setdefault(block.group, []).append(block.name)
        for i, (group, names) in enumerate(kinds.items()):
            page.entry("heads" if i == 0 else "", f"{some(names)}: {group}, heads in their places")
        page.line()
    most = 6 if page.terminal else 10**9
    for i, s in enumerate(lines):
        page.entry("axes" if i == 0 else "", f"{s.name}: {some(s.axes, most) or 'of no tensor'}")
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
    kinds = ["linear maps"] if any(s.group == "linear" for s in found.spaces) else []
    turns = sum(b.dimension for b in found.blocks)
    kinds += ["maps inside heads"] if turns else []
    kinds += ["scales"] if not turns or any("scale" in s.group for s in found.spaces) else []
    of = " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
    parts.append(f"{dimension:,} continuous {_plural('dimension', dimension)} of {of}" if dimension else "no scales")
    return ", ".join(parts)
