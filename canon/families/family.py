"""What a family is, and what recognising one gives: the graph of a file, or the family that it came nearest to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canon.errors import GraphError, UsageError
from canon.families.draft import Draft, Shapes, Source
from canon.families.steps import Steps, follow
from canon.families.told import Told
from canon.ops import Op
from canon.ops.base import Shape

_ODD = (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError)
"""What shapes of odd ranks and sizes make steps and operations trip over."""


@dataclass(frozen=True)
class Family:
    """One table. name: as messages say it; marks: patterns, each of which some key of such a file matches;
    steps: from the inputs to the outputs; settle: what names and shapes cannot tell, by the names that steps use;
    buffers: patterns of keys that are no parameters of the forward pass; notes: a line each, worth telling.
    """

    name: str
    marks: tuple[str, ...]
    steps: Steps
    settle: Callable[[Told, Shapes], Mapping[str, Any]] = lambda told, shapes: {}
    buffers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def may_be(self, shapes: Shapes) -> bool:
        """Whether all marks are there."""
        return all(any(re.fullmatch(mark, key) for key in shapes) for mark in self.marks)


@dataclass(frozen=True)
class Known:
    """The graph of a file. family: its name; ops, inputs, outputs: as a Network takes them, under the file's names;
    sources, sizes: where each tensor comes from, and its shape;
    copies: tensors that are one tensor with another, if they are equal; tied: whether the configuration says that they are;
    left: keys that are no parameters; activations_known: whether every nonlinearity is.
    """

    family: str
    ops: tuple[Op, ...]
    inputs: Mapping[str, Shape]
    outputs: tuple[str, ...]
    sources: Mapping[str, Source]
    sizes: Mapping[str, tuple[int, ...]]
    copies: Mapping[str, str]
    tied: bool
    left: tuple[str, ...]
    activations_known: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Nearest:
    """No family fits. family: the one that came nearest; key: the first that did not fit; why: what is wrong with it."""

    family: str
    key: str
    why: str
    used: int = 0


def draw(
    family: Family, shapes: Shapes, config: Mapping[str, Any] | None, options: Mapping[str, Any], blank: bool = False
) -> Known | Nearest:
    """The graph by one family's table; blank: see recognise.

    Raises UsageError for what only config.json or an option can tell, and for what they tell and cannot be.
    """
    told = Told(config, options)
    try:
        settings = family.settle(told, shapes)
    except GraphError as misfit:
        return Nearest(family.name, misfit.where, misfit.what)
    except _ODD as error:
        return Nearest(family.name, "its tensors", f"have shapes that no such network has ({type(error).__name__})")
    found = _drawn(family, shapes, settings)
    if isinstance(found, Nearest):
        untold = Told(None, {})
        if settings and not isinstance(_drawn(family, shapes, family.settle(untold, shapes)), Nearest):
            raise UsageError(found.key, f"{found.why}: what is told does not fit the file")
        return found
    unknown = any(op.kind == "unknown_activation" for op in found.ops)
    if not blank:
        told.ask(family.name, unknown)
    buffers = [key for key in shapes if key not in found.used]
    return Known(
        family.name,
        tuple(found.ops),
        found.inputs,
        tuple(found.outputs),
        found.sources,
        found.sizes,
        found.copies,
        settings.get("tied") is True,
        tuple(buffers),
        not unknown,
        (*_notes(family, found, told), *([f"left as they are, no parameters: {_some(buffers)}"] if buffers else [])),
    )


def _drawn(family: Family, shapes: Shapes, settings: Mapping[str, Any]) -> Draft | Nearest:
    d = Draft(shapes, settings)
    try:
        x = follow(d, "", "", family.steps)
    except GraphError as misfit:
        return Nearest(family.name, misfit.where, misfit.what, len(d.used))
    except _ODD:
        return Nearest(family.name, next(reversed(d.used), "its tensors"), "has a shape that no such network has", len(d.used))
    if not d.outputs:
        d.output(x)
    for key in shapes:
        if key not in d.used and not any(re.fullmatch(pattern, key) for pattern in family.buffers):
            return Nearest(family.name, key, "no layer of this family has it", len(d.used))
    return d


def _notes(family: Family, d: Draft, told: Told) -> list[str]:
    beside = "" if told.config is None else ", and the configuration beside it"
    notes = [f"read as {family.name}, by names and shapes{beside}"]
    notes += [*family.notes, *d.notes]
    if told.assumed:
        said = ", ".join(f"{name} {value}" for name, value in told.assumed.items())
        notes.append(f"without its config.json, what is usual is taken: {said}")
    spare = [name.replace("_", " ") for name, value in told.options.items() if value is not None and name not in told.taken]
    if spare:
        notes.append(f"told, but of no use for this family: {', '.join(spare)}")
    if not d.unknown and any(op.kind == "unknown_activation" for op in d.ops):
        notes.append("the activation of its hidden layers is not told: --activation NAME tells it")
    if d.unknown:
        notes.append(f"canon does not know the activation {d.unknown[0]!r}")
    return notes


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
