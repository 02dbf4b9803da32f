"""Vision transformers of torchvision (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from canon.errors import ShapeConflict
from canon.families.attending import Attend, First, Positions, Prepend, layer_norm
from canon.families.draft import Draft, Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, Image, Plain, Repeat, Steps, Sum, Within
from canon.families.told import Told

EPS = 1e-6


@dataclass(frozen=True)
class Patches:
    """A square image cut into as many patches as there are positions, less the class token; each a token.

    kernel: that of the patches' convolution; table: the key of the positions.
    """

    kernel: str
    table: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        _, _, patch, _ = self._square(d, at + self.kernel + ".weight")
        positions = d.shape(at + self.table)[-2] - 1
        side = isqrt(max(positions, 0))
        if side * side != positions or not positions:
            raise d.unfit(at + self.table, f"{positions} patches are no square")
        x = Image(self.kernel, side * patch).run(d, x, at)
        x = Affine(self.kernel, stride=patch, padding=0).run(d, x, at)
        x = Plain("reshape", {"shape": [d.width(x, 0), positions]}).run(d, x, at + "patches.")
        return Plain("permute", {"dims": [1, 0]}).run(d, x, at + "patches.")

    def _square(self, d: Draft, key: str) -> tuple[int, ...]:
        shape = d.shape(key)
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ShapeConflict(key, f"of shape {shape}: a kernel of square patches is expected")
        return shape


BLOCK: Steps = (
    Sum((layer_norm("ln_1", EPS), Attend("self_attention.out_proj", qkv="self_attention.in_proj", joint="_"))),
    Sum((layer_norm("ln_2", EPS), Affine("mlp.0|mlp.linear_1"), Act("gelu"), Affine("mlp.3|mlp.linear_2"))),
)


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    return {"heads": told.get("heads", int, "num_heads", "num_attention_heads", least=1)}


FAMILIES = (
    Family(
        "ViT (torchvision)",
        marks=(r"conv_proj\.weight", r"class_token", r"encoder\.pos_embedding", r"encoder\.layers\.encoder_layer_0\..*"),
        steps=(
            Patches("conv_proj", "encoder.pos_embedding"), Prepend("class_token"),
            Within(("encoder.",), "", (
                Positions("pos_embedding", ending=""), Repeat("layers.encoder_layer_{}.", BLOCK), layer_norm("ln", EPS),
            )),
            First(), Affine("heads.head"),
        ),
        settle=_settle,
    ),
)  # fmt: skip
