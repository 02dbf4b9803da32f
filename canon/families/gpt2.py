"""GPT-2 (Radford et al. 2019), as transformers names its tensors. Its kernels are stored (in, out)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from canon.families.attending import Attend, Embed, Head, Positions, Tied, Tokens, layer_norm
from canon.families.draft import Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, Repeat, Steps, Sum, Within
from canon.families.told import Told


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    told.expect("gpt2")
    return {
        "heads": told.get("heads", int, "n_head", "num_attention_heads", least=1),
        "eps": told.get("eps", float, "layer_norm_epsilon"),
        "activation": told.known("activation_function"),
        "scale": _scale(told),
        "tied": told.tied(),
        "language": told.language_model(shapes, "transformer."),
    }


def _scale(told: Told) -> Callable[[int, int], float] | None:
    plain = told.get("scale_attn_weights", bool, "scale_attn_weights", default=True)
    by_block = told.get("scale_attn_by_inverse_layer_idx", bool, "scale_attn_by_inverse_layer_idx", default=False)
    if plain and not by_block:
        return None
    return lambda width, index: (width**-0.5 if plain else 1.0) / (index + 1 if by_block else 1)


BLOCK: Steps = (
    Sum((layer_norm("ln_1"), Attend("attn.c_proj", qkv="attn.c_attn", causal=True, scale="scale", transposed=True))),
    Sum((layer_norm("ln_2"), Affine("mlp.c_fc", transposed=True), Act("activation"), Affine("mlp.c_proj", transposed=True))),
)

FAMILIES = (
    Family(
        "GPT-2 (transformers)",
        marks=(r"(transformer\.)?wte\.weight", r"(transformer\.)?wpe\.weight", r"(transformer\.)?h\.0\.attn\.c_attn\.weight"),
        steps=(
            Within(("transformer.", ""), "wte.weight", (
                Tokens(), Embed("wte"), Positions("wpe"), Repeat("h.{}.", BLOCK), layer_norm("ln_f"),
            )),
            Head(("score.weight", (Affine("score"),)), ("classifier.weight", (Affine("classifier"),)),
                 ("qa_outputs.weight", (Affine("qa_outputs"),)), ("language", (Tied("lm_head"),))),
        ),
        settle=_settle,
        buffers=(r"(transformer\.)?h\.[0-9]+\.attn\.(bias|masked_bias)",),
    ),
)  # fmt: skip
