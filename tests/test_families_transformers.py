"""Families of transformers: names, shapes and config.json give the graph; what it computes is what transformers computes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_nets import assert_same, distance, double, outputs, randomised, read_state

from canon.compare import compare
from canon.families import Known, recognise
from canon.formats import read
from canon.network import Network
from canon.symmetry import derive
from canon.transform import teleport

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as hf

pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of transformers about tiny configurations are none of canon's."""

LLAMA = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "intermediate_size": 20, "vocab_size": 30, "max_position_embeddings": 64}  # fmt: skip
QWEN2 = {name: value for name, value in LLAMA.items() if name != "head_dim"}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 30,
        "max_position_embeddings": 22}  # fmt: skip
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "vocab_size": 30, "max_position_embeddings": 22}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30, "n_positions": 22}
T5 = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4, "vocab_size": 30}
VIT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16, "image_size": 24,
       "patch_size": 8}  # fmt: skip
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
NESTED = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1000.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
GEMMA3 = {"sliding_window": 4, "query_pre_attn_scalar": 10, "rope_parameters": NESTED, "num_hidden_layers": 7}
CAPS = {"sliding_window": 4, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2, "experts_implementation": "eager"}

Case = tuple[str, str, dict[str, Any]]
CASES: dict[str, Case] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2, without a head": ("GPT2Model", "GPT2Config", {**GPT2, "activation_function": "relu"}),
    "gpt2, scaled by block": ("GPT2Model", "GPT2Config", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2, a class a token": ("GPT2ForTokenClassification", "GPT2Config", GPT2),
    "bert": ("BertModel", "BertConfig", BERT),
    "bert, masked": ("BertForMaskedLM", "BertConfig", BERT),
    "bert, pretraining": ("BertForPreTraining", "BertConfig", {**BERT, "hidden_act": "gelu_new"}),
    "bert, classes": ("BertForSequenceClassification", "BertConfig", BERT),
    "bert, a class a token": ("BertForTokenClassification", "BertConfig", BERT),
    "bert, decoder": ("BertLMHeadModel", "BertConfig", {**BERT, "is_decoder": True}),
    "roberta": ("RobertaModel", "RobertaConfig", BERT),
    "roberta, masked": ("RobertaForMaskedLM", "RobertaConfig", BERT),
    "roberta, classes": ("RobertaForSequenceClassification", "RobertaConfig", BERT),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTIL),
    "distilbert, masked": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL),
    "distilbert, classes": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL),
    "distilbert, a class a token": ("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama, without a head": ("LlamaModel", "LlamaConfig", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "tie_word_embeddings": True}),
    "llama 3": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_parameters": LLAMA3}),
    "llama, linear": ("LlamaModel", "LlamaConfig", {**LLAMA, "rope_parameters": NESTED["full_attention"]}),
    "llama, yarn": ("LlamaModel", "LlamaConfig", {**LLAMA, "rope_parameters": YARN}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 5}),
    "mistral, no window": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": None}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, **EXPERTS}),
    "qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", QWEN2),
    "qwen 2, windows": ("Qwen2ForCausalLM", "Qwen2Config", {**QWEN2, **WINDOW}),
    "qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", LLAMA),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", LLAMA),
    "gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, **CAPS}),
    "gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**LLAMA, **GEMMA3}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5 1.1": ("T5ForConditionalGeneration", "T5Config", {**T5, **GATED}),
    "t5, encoder": ("T5EncoderModel", "T5Config", T5),
    "vit": ("ViTModel", "ViTConfig", VIT),
    "vit, classes": ("ViTForImageClassification", "ViTConfig", {**VIT, "hidden_act": "gelu_new"}),
}  # fmt: skip


def made(case: Case) -> torch.nn.Module:
    model, config, settings = case
    return randomised(getattr(hf, model)(getattr(hf, config)(**settings)).double())


def configuration(model: Any) -> dict[str, Any]:
    return {"architectures": [type(model).__name__], **json.loads(model.config.to_json_string())}


def inputs(model: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    kinds = 1 if "Roberta" in type(model).__name__ else 2
    return {
        "tokens": rng.integers(3, 30, (2, 17)),
        "token types": rng.integers(0, kinds, (2, 17)),
        "decoder tokens": rng.integers(3, 30, (2, 11)),
        "image": rng.standard_normal((2, 3, 24, 24)),
    }


def computed(model: Any, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    words = {
        "input_ids": "tokens",
        "decoder_input_ids": "decoder tokens",
        "token_type_ids": "token types",
        "pixel_values": "image",
    }
    wanted = ["pixel_values" if model.config.model_type == "vit" else "input_ids"] + [
        "decoder_input_ids"
    ] * model.config.is_encoder_decoder
    wanted += ["token_type_ids"] * (model.config.model_type in ("bert", "roberta"))
    if type(model).__name__ == "T5EncoderModel":
        wanted = ["input_ids"]
    with torch.no_grad():
        found = model(**{word: torch.from_numpy(given[words[word]]) for word in wanted}, return_dict=True)
    return [t.numpy() for name, t in found.items() if torch.is_tensor(t) and name != "encoder_last_hidden_state"]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_computes_what_transformers_computes(case: Case, tmp_path: Path) -> None:
    with double():
        model = made(case)
        given = inputs(model)
        wanted = computed(model, given)
    run = read_state(tmp_path, model.state_dict(), configuration(model))
    assert (run.graph, run.activations_known) == ("family", True)
    assert_same(outputs(run, given), wanted)


def test_as_transformers_stores_them(tmp_path: Path) -> None:
    """Files have the names of older versions where modules have new ones: experts one by one, layers of ViT."""
    for name in ("mixtral", "vit", "gpt2", "t5"):
        with double():
            model: Any = made(CASES[name])
            model.tie_weights()
            given = inputs(model)
            wanted = computed(model, given)
        model.save_pretrained(tmp_path / name)
        run = read(tmp_path / name)
        assert (run.graph, run.activations_known) == ("family", True)
        assert_same(outputs(run, given), wanted)


FULL = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", 12, "GL(64)"),
    "bert": ("BertForPreTraining", "BertConfig", 12, "GL(64)"),
    "llama 2": ("LlamaForCausalLM", "LlamaConfig", 32, "C* x64"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", 32, "C* x64"),
    "t5": ("T5ForConditionalGeneration", "T5Config", 18, "GL(64)"),
}


@pytest.mark.parametrize("name", FULL)
def test_full_size_networks_are_known_by_names_and_shapes(name: str) -> None:
    """Of the default size of each class: every parameter is in the graph, and queries and keys have their heads' group."""
    kind, config, layers, group = FULL[name]
    with torch.device("meta"):
        model: Any = getattr(hf, kind)(getattr(hf, config)())
    state = model.state_dict()
    known = recognise({key: tuple(t.shape) for key, t in state.items()}, configuration(model))
    assert isinstance(known, Known)
    blank = {t: np.broadcast_to(np.float32(0), size) for t, size in known.sizes.items()}
    network = Network(blank, known.ops, known.inputs, known.outputs)
    assert network.parameters == sum(t.numel() for t in state.values())
    blocks = [block for name, block in derive(network).blocks.items() if "qk" in name]
    assert [block.group for block in blocks] == [group] * layers


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "heads": ("gpt2", {"n_head": 2}),
    "activation": ("gpt2", {"activation_function": "gelu"}),
    "eps": ("bert", {"layer_norm_eps": 1e-3}),
    "padding": ("roberta", {"pad_token_id": 0}),
    "theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "scaling": ("llama 3", {"rope_parameters": {**LLAMA3, "factor": 2.0}}),
    "window": ("mistral", {"sliding_window": 6}),
    "model type": ("gemma", {"model_type": "llama"}),
    "cap": ("gemma 2", {"attn_logit_softcapping": 3.0}),
    "last cap": ("gemma 2", {"final_logit_softcapping": None}),
    "scale": ("gemma 3", {"query_pre_attn_scalar": 11}),
    "kinds of blocks": ("gemma 3", {"layer_types": ["full_attention"] * 7}),
    "experts": ("mixtral", {"num_experts_per_tok": 3}),
    "distances": ("t5", {"relative_attention_max_distance": 9}),
    "scale of the head": ("t5", {"scale_decoder_outputs": False}),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_configuration_is_another_network(name: str, tmp_path: Path) -> None:
    case, changes = WRONG[name]
    with double():
        model = made(CASES[case])
        given = inputs(model)
        wanted = computed(model, given)
    run = read_state(tmp_path, model.state_dict(), {**configuration(model), **changes})
    assert distance(outputs(run, given)[0], wanted[0]) > 1e-6


def test_options_tell_what_a_configuration_would(tmp_path: Path) -> None:
    with double():
        model = made(CASES["llama"])
        given = inputs(model)
        wanted = computed(model, given)
    told = {"heads": 4, "kv_heads": 2, "eps": 1e-6, "rope_theta": 10_000.0, "rope_layout": "half", "model_type": "llama"}
    run = read_state(tmp_path, model.state_dict(), activation="silu", **told)
    assert_same(outputs(run, given), wanted)
    other = read_state(tmp_path, model.state_dict(), activation="silu", **{**told, "rope_layout": "interleaved"})
    assert distance(outputs(other, given)[0], wanted[0]) > 1e-6
    assert not any("of no use" in note for note in run.notes)


def test_interleaved_layout_is_the_other_one_relabelled(tmp_path: Path) -> None:
    """Meta's own files have pairs of neighbours: the same network after a permutation inside each head of queries and keys."""
    with double():
        model = made(CASES["llama"])
        given = inputs(model)
        wanted = computed(model, given)
    state = dict(model.state_dict())
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # i, i + 4 become neighbours
    for name, t in state.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            state[name] = t.reshape(-1, 8, t.shape[1])[:, order].reshape(t.shape)
    run = read_state(tmp_path, state, configuration(model), rope_layout="interleaved")
    assert_same(outputs(run, given), wanted)


def test_ops_come_in_one_order_and_bear_the_names_of_layers(tmp_path: Path) -> None:
    with double():
        model = made(CASES["gpt2"])
    state = model.state_dict()
    backwards = dict(reversed(state.items()))
    config = configuration(model)
    found, other = (read_state(tmp_path / name, s, config) for name, s in (("a", state), ("b", backwards)))
    assert found.network.ops == other.network.ops
    assert list(found.network.tensors) == list(other.network.tensors)
    names = [op.name for op in found.network.ops]
    assert names[:4] == ["transformer.wte", "transformer.wpe", "transformer.h.0.ln_1", "transformer.h.0.attn.c_attn"]
    assert "transformer.h.1/attn/attention" in names


@pytest.mark.parametrize("name", ["bert, masked", "llama", "qwen 3", "gemma 2", "vit, classes"])
def test_a_disguised_copy_is_equivalent_and_another_is_not(name: str, tmp_path: Path) -> None:
    model: Any = made(CASES[name]).float()
    run = read_state(tmp_path, model.state_dict(), configuration(model))
    moved = run.with_network(teleport(run.network, 5, sigma=0.4).network)
    assert compare(run, moved).verdict == "equivalent"
    key = [op.params["gamma"] for op in run.network.ops if op.kind.endswith("_norm")][-1]
    wrong = moved.network.tensors[key].copy()
    wrong[3] *= 1.001
    assert compare(run, moved.with_network(moved.network.with_tensors({key: wrong}))).verdict not in ("identical", "equivalent")


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    model: Any = made(CASES["gpt2"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    run = read(tmp_path)
    assert run.graph == "family"
    assert {run.network.stored_type(name) for name in run.network.tensors} == {"bfloat16"}
