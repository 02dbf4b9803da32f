"""Llama and what is built like it: Mistral, Mixtral, Qwen 2 and 3, Gemma 1 to 3, as transformers names their tensors.

Most of them cannot be told from each other by names: the model_type of config.json says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from canon.errors import UsageError
from canon.families.attending import Attend, Embed, Experts, Gated, Head, Softcap, Tied, Tokens, rms
from canon.families.draft import Shapes
from canon.families.family import Family
from canon.families.rotary import FULL, SLIDING, rotary
from canon.families.steps import Affine, If, Norm, Repeat, Steps, Sum, Within
from canon.families.told import ASK, Told


@dataclass(frozen=True)
class Kind:
    """What a model_type means. theta, local: of rotary positions where config.json has none; offset: added to the gammas of
    norms; scaled: whether embeddings are multiplied by the root of their width; activation: its keys; query: whether the
    scores' scale is query_pre_attn_scalar; window: which blocks have one: "none", "all", "late" (from max_window_layers on)
    or "most" (all but each n-th).
    """

    theta: float = 10_000.0
    local: float | None = None
    offset: float = 0.0
    scaled: bool = False
    activation: tuple[str, ...] = ("hidden_act",)
    query: bool = False
    window: str = "none"
    pattern: int = 0


KINDS: dict[str, Kind] = {
    "llama": Kind(),
    "mistral": Kind(window="all"),
    "mixtral": Kind(theta=1_000_000.0, window="all"),
    "qwen2": Kind(window="late"),
    "qwen3": Kind(window="late"),
    "gemma": Kind(offset=1.0, scaled=True),
    "gemma2": Kind(offset=1.0, scaled=True, activation=("hidden_activation",), query=True, window="most", pattern=2),
    "gemma3_text": Kind(theta=1_000_000.0, local=10_000.0, offset=1.0, scaled=True, activation=("hidden_activation",),
                        query=True, window="most", pattern=6),
}  # fmt: skip
TANH_GELU = "gelu_pytorch_tanh"


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    if isinstance(told.raw("text_config"), Mapping):
        told.config = told.raw("text_config")
    name = told.get("model_type", str, "model_type")
    kind = told.one_of("model_type", name, KINDS) or KINDS["llama"]
    where = "model.embed_tokens.weight" if "model.embed_tokens.weight" in shapes else "embed_tokens.weight"
    activation = told.known(*kind.activation)
    if name == "gemma" and activation == "gelu":  # what its first releases said, and did not mean
        activation = TANH_GELU
    blocks = _windows(told, kind)
    settings: dict[str, Any] = {
        "heads": 0
        if any(key.endswith("q_norm.weight") for key in shapes)
        else told.get("heads", int, "num_attention_heads", least=1),
        "kv_heads": told.option("kv_heads", int),
        "eps": told.get("eps", float, "rms_norm_eps"),
        "activation": activation,
        "offset": kind.offset,
        "embed_scale": float(shapes[where][-1]) ** 0.5 if kind.scaled else 1.0,
        "scale": _query_scale(told) if kind.query else None,
        "windows": lambda index: blocks(index) or None,
        "softcap": told.get("attn_softcap", float, "attn_logit_softcapping", default=0.0) if name == "gemma2" else None,
        "final_softcap": told.get("final_softcap", float, "final_logit_softcapping", default=0.0) if kind.query else None,
        "rotary": rotary(told, kind.theta, kind.local, lambda index: SLIDING if blocks(index) else FULL),
        "tied": told.tied(),
        "language": told.language_model(shapes, "model."),
    }
    if any("experts" in key for key in shapes):
        settings["experts_used"] = told.get("experts_used", int, "num_experts_per_tok", least=1)
    return settings


def _query_scale(told: Told) -> Callable[[int, int], float]:
    scalar = told.get("query_pre_attn_scalar", float, "query_pre_attn_scalar")
    return lambda width, index: float(scalar or 1.0) ** -0.5


def _windows(told: Told, kind: Kind) -> Callable[[int], int]:
    """The window of each block, 0 for none."""
    if kind.window == "none" or (kind.window == "late" and not told.raw("use_sliding_window") and told.config is not None):
        return lambda index: 0
    window = told.get("window", int, "sliding_window", default=ASK if told.config is None else 0)
    types = told.raw("layer_types")
    if types is not None and kind.window != "all":
        if not isinstance(types, list) or not set(map(str, types)) <= {SLIDING, FULL}:
            raise UsageError("config.json: layer_types", "are neither full_attention nor sliding_attention")
        return lambda index: window if index < len(types) and types[index] == SLIDING else 0
    if kind.window == "late":
        first = told.get("max_window_layers", int, "max_window_layers", default=28)
        return lambda index: window if index >= first else 0
    pattern = told.get("sliding_window_pattern", int, "sliding_window_pattern", default=kind.pattern) if kind.pattern else 0
    return lambda index: window if not pattern or (index + 1) % pattern else 0


def _norm(name: str) -> Norm:
    return rms(name, "offset")


ATTEND = Attend(
    q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
    norms=("self_attn.q_norm", "self_attn.k_norm"), causal=True, rotary=True, scale="scale",
)  # fmt: skip
MLP: Steps = (
    If("block_sparse_moe.gate.weight", (
        Experts(
            "block_sparse_moe.gate", gate="block_sparse_moe.experts.{}.w1.weight", up="block_sparse_moe.experts.{}.w3.weight",
            down="block_sparse_moe.experts.{}.w2.weight",
        ),
    ), (
        If("mlp.experts.gate_up_proj", (
            Experts("mlp.gate", fused=("mlp.experts.gate_up_proj", "mlp.experts.down_proj")),
        ), (
            Gated("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        )),
    )),
)  # fmt: skip
AFTER = "pre_feedforward_layernorm.weight"
"""The key of blocks that have norms before and after each of their halves."""
BLOCK: Steps = (
    Sum((_norm("input_layernorm"), ATTEND, If(AFTER, (_norm("post_attention_layernorm"),)))),
    Sum((
        If(AFTER, (_norm("pre_feedforward_layernorm"),), (_norm("post_attention_layernorm"),)),
        *MLP,
        If("post_feedforward_layernorm.weight", (_norm("post_feedforward_layernorm"),)),
    )),
)  # fmt: skip

FAMILIES = (
    Family(
        "Llama and its like (transformers)",
        marks=(r"(model\.)?embed_tokens\.weight", r"(model\.)?layers\.0\.self_attn\.q_proj\.weight",
               r"(model\.)?layers\.0\.input_layernorm\.weight"),
        steps=(
            Within(("model.", ""), "embed_tokens.weight", (
                Tokens(), Embed("embed_tokens", factor="embed_scale"), Repeat("layers.{}.", BLOCK), _norm("norm"),
            )),
            Head(("score.weight", (Affine("score"),)), ("language", (Tied("lm_head"), Softcap("final_softcap")))),
        ),
        settle=_settle,
        buffers=(r"(model\.)?(layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq",),
    ),
)  # fmt: skip
