"""T5 and T5 v1.1 (Raffel et al. 2020), encoder alone or both halves, as transformers names their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canon.families.attending import Attend, Embed, Gated, Head, Keep, Tied, Tokens, rms, scaled
from canon.families.draft import Draft, Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, If, Repeat, Steps, Sum, number
from canon.families.told import Told


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    told.expect("t5", "mt5")
    activation = told.known("dense_act_fn")
    proj = told.raw("feed_forward_proj")
    if isinstance(proj, str):
        activation = "gelu_new" if proj == "gated-gelu" else proj.removeprefix("gated-")
    elif not activation and told.config is not None:
        activation = "relu"
    tied = "lm_head.weight" not in shapes or (None if told.config is None else told.raw("tie_word_embeddings") is not False)
    scales = told.raw("scale_decoder_outputs")
    if not isinstance(scales, bool):
        scales = told.get("scale_decoder_outputs", bool) if tied is None else tied
    units = shapes[next(key for key in shapes if key.endswith("SelfAttention.q.weight"))][-1]
    return {
        "heads": told.get("heads", int, "num_heads", least=1),
        "eps": told.get("eps", float, "layer_norm_epsilon"),
        "activation": activation,
        "max_distance": told.get("max_distance", int, "relative_attention_max_distance", default=128, least=1),
        "scale": lambda width, index: 1.0,
        "head_scale": float(units) ** -0.5 if scales else 1.0,
        "language": any(key.startswith("decoder.block.") for key in shapes) and told.language_model(shapes, ""),
    }


@dataclass(frozen=True)
class Distances:
    """A bias of scores by distance, kept for all blocks of a half. bidirectional: whether what comes after counts as well."""

    name: str
    bidirectional: bool

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        attrs = {"bidirectional": self.bidirectional, "max_distance": int(d.told["max_distance"]) or 128}
        name = at + self.name
        d.memory["distances"] = d.add("relative_bias", name, [x], {"table": d.tensor(f"{name}.weight")}, **attrs)
        return x


@dataclass(frozen=True)
class Rescale:
    """A value times a setting."""

    setting: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return scaled(d, x, number(d, self.setting))


def _attend(name: str, **more: Any) -> Attend:
    return Attend(q=f"{name}.q", k=f"{name}.k", v=f"{name}.v", o=f"{name}.o", scale="scale", **more)


def _layers(number: int) -> Sum:
    front = f"layer.{number}"
    plain: Steps = (Affine(f"{front}.DenseReluDense.wi"), Act("activation"), Affine(f"{front}.DenseReluDense.wo"))
    gated = Gated(*(f"{front}.DenseReluDense.{name}" for name in ("wi_0", "wi_1", "wo")))
    return Sum((rms(f"{front}.layer_norm"), If(f"{front}.DenseReluDense.wi.weight", plain, (gated,))))


ENCODER: Steps = (Sum((rms("layer.0.layer_norm"), _attend("layer.0.SelfAttention", bias="distances"))), _layers(1))
DECODER: Steps = (
    Sum((rms("layer.0.layer_norm"), _attend("layer.0.SelfAttention", bias="distances", causal=True))),
    Sum((rms("layer.1.layer_norm"), _attend("layer.1.EncDecAttention", memory="encoder"))),
    _layers(2),
)
DISTANCES = "block.0.layer.0.SelfAttention.relative_attention_bias"
TABLE = Embed("shared|encoder.embed_tokens|decoder.embed_tokens", copies=("encoder.embed_tokens", "decoder.embed_tokens"))

FAMILIES = (
    Family(
        "T5 (transformers)",
        marks=(r"(shared|encoder\.embed_tokens|decoder\.embed_tokens)\.weight",
               r"encoder\.block\.0\.layer\.0\.SelfAttention\.q\.weight", r"encoder\.final_layer_norm\.weight"),
        steps=(
            Tokens(), TABLE, Distances(f"encoder.{DISTANCES}", bidirectional=True),
            Repeat("encoder.block.{}.", ENCODER), rms("encoder.final_layer_norm"), Keep("encoder"),
            If("decoder.final_layer_norm.weight", (
                Tokens("decoder tokens"), TABLE, Distances(f"decoder.{DISTANCES}", bidirectional=False),
                Repeat("decoder.block.{}.", DECODER), rms("decoder.final_layer_norm"),
            )),
            Head(("language", (Rescale("head_scale"), Tied("lm_head")))),
        ),
        settle=_settle,
        notes=("inputs without padding",),
    ),
)  # fmt: skip
