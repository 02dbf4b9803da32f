"""LoRA adapters as PEFT writes them (Hu et al. 2022): for each adapted layer two maps, x -> B A x, and nothing between them.

The file alone is a network of as many small linear ones: what it adds to a layer is B A, whatever A and B are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canon.errors import ShapeConflict
from canon.families.draft import Draft, Shapes
from canon.families.family import Family
from canon.families.steps import Affine
from canon.families.told import Told

PAIR = re.compile(r"(?P<layer>.+)\.lora_A(?P<adapter>\.\w+)?\.weight")
TABLE = re.compile(r"(?P<layer>.+)\.lora_embedding_A(?P<adapter>\.\w+)?")
PART = re.compile(r".+\.lora_(embedding_)?[AB](\.\w+)?(\.weight)?")


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    by_layer = told.raw("alpha_pattern") or told.raw("rank_pattern")
    return {"alpha": None if by_layer else told.raw("lora_alpha"), "root": told.raw("use_rslora") is True}


@dataclass(frozen=True)
class Adapters:
    """Every pair of maps from an input of its own to an output of its own; layers that are stored whole likewise."""

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        for key in sorted(d.shapes):
            if pair := PAIR.fullmatch(key):
                name, adapter = pair["layer"], pair["adapter"] or ""
                x = Affine(f"{name}.lora_A{adapter}").run(d, self._input(d, name, key), "")
                self._given(d, Affine(f"{name}.lora_B{adapter}").run(d, x, ""), d.shape(key)[0])
            elif table := TABLE.fullmatch(key):
                name, adapter = table["layer"], table["adapter"] or ""
                rows = {"table": d.tensor(key, axes=(1, 0))}
                x = d.add("embedding", key, [d.input(f"{name}/tokens", (None,))], rows)
                other = f"{name}.lora_embedding_B{adapter}"
                y = d.add("dense", other, [x], {"kernel": d.tensor(other)})
                self._given(d, y, d.shape(key)[0])
            elif key.endswith(".weight") and len(d.shape(key)) == 2 and not PART.fullmatch(key):
                name = key.removesuffix(".weight")
                d.output(Affine(name).run(d, self._input(d, name, key), ""))
        if d.told.get("alpha") is None:
            d.notes.append("what each pair adds is taken without its factor lora_alpha / r, which is not in the file")
        return d.outputs[0]

    def _input(self, d: Draft, name: str, key: str) -> str:
        shape = d.shape(key)
        if len(shape) < 2:
            raise ShapeConflict(key, f"of shape {shape} is no kernel")
        return d.input(f"{name}/input", (shape[1], *(None,) * (len(shape) - 2)))

    def _given(self, d: Draft, y: str, rank: int) -> None:
        alpha = d.told.get("alpha")
        if isinstance(alpha, int | float):
            factor = float(alpha) / (rank**0.5 if d.told["root"] else rank)
            y = d.add("rescale", f"{y}/scale", [y], factor=factor)
        d.output(y)


FAMILIES = (
    Family(
        "LoRA adapter (PEFT)",
        marks=(r".+\.lora_(A|embedding_A)(\.\w+)?(\.weight)?",),
        steps=(Adapters(),),
        settle=_settle,
    ),
)
