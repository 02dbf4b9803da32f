"""Vision transformers of torchvision and of transformers (Dosovitskiy et al. 2021), for square images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from canon.errors import ShapeConflict, UnsupportedOp
from canon.families.attending import Attend, First, Head, Keep, Positions, Prepend, Recall, Spare, layer_norm
from canon.families.draft import Draft, Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, If, Image, Plain, Repeat, Steps, Sum, Within
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


def _settle_hf(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    told.expect("vit")
    for key in ("image_size", "patch_size"):
        size = told.raw(key)
        if isinstance(size, list) and len({*map(str, size)}) > 1:
            raise UnsupportedOp(f"config.json: {key}", f"{size!r} is no square")
    return {
        **_settle(told, shapes),
        "eps": told.get("eps", float, "layer_norm_eps"),
        "activation": told.known("hidden_act"),
        "pooler": told.raw("pooler_act") if isinstance(told.raw("pooler_act"), str) else "tanh",
    }


HF_BLOCK: Steps = (
    Sum((
        layer_norm("layernorm_before"),
        Attend(
            q="attention.attention.query|attention.q_proj", k="attention.attention.key|attention.k_proj",
            v="attention.attention.value|attention.v_proj", o="attention.output.dense|attention.o_proj",
        ),
    )),
    Sum((
        layer_norm("layernorm_after"), Affine("intermediate.dense|mlp.fc1"), Act("activation"), Affine("output.dense|mlp.fc2"),
    )),
)  # fmt: skip
POOLED: Steps = (Keep("sequence"), First(), Affine("pooler.dense"), Act("pooler"), Keep("pooled"), Recall("sequence"))

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
    Family(
        "ViT (transformers)",
        marks=(r"(vit\.)?embeddings\.cls_token", r"(vit\.)?embeddings\.patch_embeddings\.projection\.weight",
               r"(vit\.)?(encoder\.layer|layers)\.0\.layernorm_before\.weight"),
        steps=(
            Within(("vit.", ""), "embeddings.cls_token", (
                Patches("embeddings.patch_embeddings.projection", "embeddings.position_embeddings"),
                Prepend("embeddings.cls_token"), Positions("embeddings.position_embeddings", ending=""),
                If("encoder.layer.0.layernorm_before.weight", (Repeat("encoder.layer.{}.", HF_BLOCK),),
                   (Repeat("layers.{}.", HF_BLOCK),)),
                layer_norm("layernorm"), If("pooler.dense.weight", POOLED),
            )),
            Head(("classifier.weight", (First(), Affine("classifier")))), Spare("pooled"),
        ),
        settle=_settle_hf,
    ),
)  # fmt: skip
