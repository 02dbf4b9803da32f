"""Masks as Keras 3 wires them: as layers of their own, NotEqual and Any, handed to each layer that takes a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from canon.errors import UnsupportedOp
from canon.formats.keras_call import REFUSAL, Graph
from canon.formats.keras_specs import Inputs, Spec
from canon.ops import Op


@dataclass
class Masks:
    """The masks that a model makes by hand. parts: value -> (what it tells apart, the number that is masked)."""

    graph: Graph
    parts: dict[str, tuple[str, float]] = field(default_factory=dict)

    def part(self, spec: Spec, call: Inputs, inputs: Sequence[str], suffix: str) -> tuple[str, ...]:
        """The value of a layer that masks are made of; none for any other layer. Nothing is added to the graph yet."""
        value = spec.path + suffix
        if spec.cls == "NotEqual" and len(inputs) == 1:
            numbers = [number for key, number in call.plain if key.isdigit() and isinstance(number, int | float)]
            if len(numbers) == 1:
                self.parts[value] = inputs[0], float(numbers[0])
        elif spec.cls == "Any" and len(inputs) == 1 and inputs[0] in self.parts and spec.cfg.get("axis") in (-1, [-1]):
            self.parts[value] = self.parts[inputs[0]]
        return (value,) if value in self.parts else ()

    def give(self, value: str, mask: str, layer: str) -> None:
        """Let a mask travel beside a value."""
        if mask not in self.parts:
            raise UnsupportedOp("", f"layer {layer!r} is given a mask that is not made of a value's own steps", REFUSAL)
        source, number = self.parts[mask]
        for op in self.graph.ops:
            if op.kind == "step_mask" and op.inputs == (source,) and op.attrs["mask_value"] == number:
                self.graph.masks[value] = op.output
                return
        tokens = len(self.graph.shapes[source]) == 1
        self.graph.add(Op("step_mask", mask, (source,), mask, {}, {"mask_value": number, "tokens": tokens}))
        self.graph.masks[value] = mask
