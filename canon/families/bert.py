"""BERT, RoBERTa and DistilBERT (Devlin et al. 2019; Liu et al. 2019; Sanh et al. 2019), as transformers names their tensors.

Positions are those of inputs without padding; RoBERTa counts them from one more than the number of its padding token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.families.attending import (
    AddEmbedding,
    Attend,
    Embed,
    First,
    Head,
    Keep,
    Positions,
    Recall,
    Spare,
    Tied,
    Tokens,
    layer_norm,
)
from canon.families.draft import Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, If, Repeat, Steps, Sum, Within
from canon.families.told import Told

FRONTS = ("bert.", "roberta.", "")
ROBERTA = ("roberta", "xlm-roberta", "camembert")


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    told.expect("bert", *ROBERTA)
    if any(key.startswith(("roberta.", "lm_head.", "classifier.dense.")) for key in shapes):
        kind = "roberta"
    elif any(key.startswith(("bert.", "cls.")) for key in shapes):
        kind = "bert"
    else:
        kind = told.get("model_type", str, "model_type")
        told.one_of("model_type", kind, dict.fromkeys(("bert", *ROBERTA)))
    return {
        "heads": told.get("heads", int, "num_attention_heads", least=1),
        "eps": told.get("eps", float, "layer_norm_eps"),
        "activation": told.known("hidden_act"),
        "causal": told.get("is_decoder", bool, "is_decoder", default=False),
        "first": told.get("pad_token_id", int, "pad_token_id", default=1) + 1 if kind in ROBERTA else 0,
        "tied": told.tied(),
    }


def _post_norm(attend: Attend, norm: str, up: str, down: str, last: str, eps: float | str) -> Steps:
    """A block whose norms come after its sums."""
    return (
        Sum((attend,)), layer_norm(norm, eps),
        Sum((Affine(up), Act("activation"), Affine(down))), layer_norm(last, eps),
    )  # fmt: skip


BLOCK = _post_norm(
    Attend(q="attention.self.query", k="attention.self.key", v="attention.self.value", o="attention.output.dense",
           causal="causal"),
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm", "eps",
)  # fmt: skip
POOLED = (First(), Affine("pooler.dense"), Act("tanh"), Keep("pooled"))

DISTIL_EPS = 1e-12
DISTIL = _post_norm(
    Attend(q="attention.q_lin", k="attention.k_lin", v="attention.v_lin", o="attention.out_lin"),
    "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm", DISTIL_EPS,
)  # fmt: skip


def _settle_distil(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    told.expect("distilbert")
    return {
        "heads": told.get("heads", int, "n_heads", "num_attention_heads", least=1),
        "activation": told.known("activation", "hidden_act"),
        "tied": told.tied(),
    }


NAMED_BUFFERS = (r"(\w+\.)?embeddings\.(position_ids|token_type_ids)",)

FAMILIES = (
    Family(
        "BERT (transformers)",
        marks=(r"((ro)?bert(a)?\.)?embeddings\.word_embeddings\.weight",
               r"((ro)?bert(a)?\.)?encoder\.layer\.0\.attention\.self\.query\.weight"),
        steps=(
            Within(FRONTS, "embeddings.word_embeddings.weight", (
                Tokens(), Embed("embeddings.word_embeddings"),
                AddEmbedding("embeddings.token_type_embeddings", "token types"),
                Positions("embeddings.position_embeddings", offset="first"), layer_norm("embeddings.LayerNorm"),
                Repeat("encoder.layer.{}.", BLOCK),
                If("pooler.dense.weight", (Keep("sequence"), *POOLED, Recall("sequence"))),
            )),
            Head(
                ("cls.predictions.transform.dense.weight", (
                    Affine("cls.predictions.transform.dense"), Act("activation"),
                    layer_norm("cls.predictions.transform.LayerNorm"),
                    Tied("cls.predictions.decoder", bias=("cls.predictions.decoder.bias", "cls.predictions.bias")),
                )),
                ("lm_head.dense.weight", (
                    Affine("lm_head.dense"), Act("gelu"), layer_norm("lm_head.layer_norm"),
                    Tied("lm_head.decoder", bias=("lm_head.decoder.bias", "lm_head.bias")),
                )),
                ("cls.seq_relationship.weight", (Recall("pooled"), Affine("cls.seq_relationship"))),
                ("classifier.dense.weight", (
                    First(), Affine("classifier.dense"), Act("tanh"), Affine("classifier.out_proj"),
                )),
                ("classifier.weight", (Recall("pooled"), Affine("classifier"))),
                ("qa_outputs.weight", (Affine("qa_outputs"),)),
            ),
            Spare("pooled"),
        ),
        settle=_settle,
        buffers=NAMED_BUFFERS,
        notes=("inputs without padding",),
    ),
    Family(
        "DistilBERT (transformers)",
        marks=(r"(distilbert\.)?embeddings\.word_embeddings\.weight",
               r"(distilbert\.)?transformer\.layer\.0\.attention\.q_lin\.weight"),
        steps=(
            Within(("distilbert.", ""), "embeddings.word_embeddings.weight", (
                Tokens(), Embed("embeddings.word_embeddings"), Positions("embeddings.position_embeddings"),
                layer_norm("embeddings.LayerNorm", DISTIL_EPS), Repeat("transformer.layer.{}.", DISTIL),
            )),
            Head(
                ("vocab_transform.weight", (
                    Affine("vocab_transform"), Act("activation"), layer_norm("vocab_layer_norm", DISTIL_EPS),
                    Tied("vocab_projector", bias=("vocab_projector.bias",)),
                )),
                ("classifier.weight", (
                    If("pre_classifier.weight", (First(), Affine("pre_classifier"), Act("relu"))), Affine("classifier"),
                )),
                ("qa_outputs.weight", (Affine("qa_outputs"),)),
            ),
        ),
        settle=_settle_distil,
        buffers=NAMED_BUFFERS,
        notes=("inputs without padding",),
    ),
)  # fmt: skip
