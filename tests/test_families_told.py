"""What names and shapes do not tell is asked for by name; what does not fit falls back, and says why; tied weights are one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_nets import arrays, randomised, read_state, stored

from canon.errors import CanonError, UsageError
from canon.families import FAMILIES, Known, Nearest, recognise
from canon.families.family import draw
from canon.formats import read, write
from canon_cli.main import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as hf

pytestmark = pytest.mark.filterwarnings("ignore")

GPT2 = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 20, "n_positions": 10}
LLAMA = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
         "intermediate_size": 10, "vocab_size": 20}  # fmt: skip
CONFIG = {"model_type": "gpt2", "n_head": 3, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def gpt2() -> State:
    """Both copies of the tied weights, equal."""
    return randomised(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2))).state_dict()


@pytest.fixture(scope="module")
def llama() -> State:
    return randomised(hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))).state_dict()


def shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in state.items()}


# asking


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ({}, {"heads", "eps", "activation"}),
        ({"heads": 3}, {"eps", "activation"}),
        ({"heads": 3, "activation": "gelu"}, {"eps"}),
        ({"eps": 1e-5}, {"heads", "activation"}),
    ],
)
def test_what_is_missing_is_asked_for_by_name(told: dict[str, Any], missing: set[str], gpt2: State, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_state(tmp_path, gpt2, **told)
    said = str(caught.value)
    for name in ("heads", "eps", "activation"):
        assert (name in caught.value.what) == (name in missing)
        assert (f"--{name} " in caught.value.hint) == (name in missing)
    assert "config.json" in caught.value.hint
    assert "GPT-2" in said
    assert str(tmp_path) in said


def test_a_configuration_without_an_entry_asks_for_it_too(gpt2: State, tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "n_head"}
    with pytest.raises(UsageError, match="do not tell heads") as caught:
        read_state(tmp_path, gpt2, config)
    assert "config.json has no n_head" in caught.value.hint
    assert read_state(tmp_path, gpt2, config, heads=3).graph == "family"


def test_what_is_not_told_about_llama(llama: State, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_state(tmp_path, llama)
    for name in ("model type", "heads", "eps", "rope layout", "rope theta", "activation"):
        assert name in caught.value.what
        assert f"--{name.replace(' ', '-')}" in caught.value.hint


def test_an_activation_alone_is_no_reason_to_stop(gpt2: State, tmp_path: Path) -> None:
    """Without it relabelling is certain, and that is said."""
    run = read_state(tmp_path, gpt2, heads=3, eps=1e-5)
    assert (run.graph, run.activations_known) == ("family", False)
    assert any(op.kind == "unknown_activation" for op in run.network.ops)
    assert any("--activation" in note for note in run.notes)
    assert any("taken" in note and "scale_attn_weights True" in note for note in run.notes)
    config = {**CONFIG, "activation_function": "snake"}
    run = read_state(tmp_path, gpt2, config)
    assert not run.activations_known
    assert any("'snake'" in note for note in run.notes)


@pytest.mark.parametrize(
    ("config", "told", "where", "what"),
    [
        ({**CONFIG, "n_head": 5}, {}, "c_attn", "5 heads"),
        ({**CONFIG, "n_head": "3"}, {}, "n_head", "whole number"),
        ({**CONFIG, "n_head": True}, {}, "n_head", "whole number"),
        ({**CONFIG, "n_head": -3}, {}, "n_head", "whole number"),
        ({**CONFIG, "n_head": 0}, {}, "n_head", "whole number from 1"),
        ({**CONFIG, "layer_norm_epsilon": float("nan")}, {}, "layer_norm_epsilon", "number"),
        ({**CONFIG, "scale_attn_weights": 1}, {}, "scale_attn_weights", "true or false"),
        ({**CONFIG, "layer_norm_epsilon": "small"}, {}, "layer_norm_epsilon", "number"),
        ({**CONFIG, "activation_function": 3}, {}, "activation_function", "activation"),
        (CONFIG, {"heads": 7}, "c_attn", "7 heads"),
    ],
)  # fmt: skip
def test_what_is_told_and_cannot_be(
    config: dict[str, Any], told: dict[str, Any], where: str, what: str, gpt2: State, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        read_state(tmp_path, gpt2, config, **told)
    assert where in caught.value.where
    assert what in caught.value.what


def test_options_come_before_the_configuration(gpt2: State, tmp_path: Path) -> None:
    run = read_state(tmp_path, gpt2, CONFIG, heads=6)
    assert {op.attrs["heads"] for op in run.network.ops if op.kind == "attention"} == {6}


def test_key_value_heads_that_shapes_deny(llama: State, tmp_path: Path) -> None:
    told = {"model_type": "llama", "heads": 3, "eps": 1e-6, "rope_theta": 1e4, "rope_layout": "half"}
    assert read_state(tmp_path, llama, **told, kv_heads=1).graph == "family"
    with pytest.raises(UsageError, match="3 are told"):
        read_state(tmp_path, llama, **told, kv_heads=3)
    with pytest.raises(UsageError, match="neither half nor interleaved"):
        read_state(tmp_path, llama, **{**told, "rope_layout": "other"})
    with pytest.raises(UsageError, match="none of llama, mistral"):
        read_state(tmp_path, llama, **{**told, "model_type": "lama"})


# falling back


def test_a_foreign_key_falls_back_and_is_named(gpt2: State, tmp_path: Path) -> None:
    for extra, first in (({"adapter.weight": torch.ones(2, 2)}, "adapter.weight"), ({}, "")):
        run = read_state(tmp_path, {**gpt2, **extra}, CONFIG)
        assert (run.graph == "none") == bool(extra)
        note = [n for n in run.notes if n.startswith("the nearest known family")]
        assert note == ([f"the nearest known family is GPT-2 (transformers), but {first}: no layer of this family has it"]
                        if extra else [])  # fmt: skip


def test_a_missing_key_and_a_wrong_shape_fall_back(gpt2: State) -> None:
    gone = {name: shape for name, shape in shapes(gpt2).items() if name != "transformer.h.1.mlp.c_fc.weight"}
    found = recognise(gone, CONFIG)
    assert isinstance(found, Nearest)
    assert (found.key, found.why) == ("transformer.h.1.mlp.c_fc.weight", "is not there")
    for key, shape in (("transformer.ln_f.weight", (11,)), ("transformer.h.0.attn.c_attn.weight", (12, 35))):
        found = recognise({**shapes(gpt2), key: shape}, CONFIG)
        assert isinstance(found, Nearest)
        assert found.key.startswith(key.removesuffix(".weight"))
    assert recognise({"a.weight": (3, 4), "b.weight": (5, 3)}) is None


def test_a_gap_between_blocks_is_a_foreign_key(gpt2: State) -> None:
    moved = {name.replace(".h.1.", ".h.3."): shape for name, shape in shapes(gpt2).items()}
    found = recognise(moved, CONFIG)
    assert isinstance(found, Nearest)
    assert found.key.startswith("transformer.h.3.")


def test_another_model_type_falls_back(gpt2: State, llama: State, tmp_path: Path) -> None:
    for state, kind in ((gpt2, "gpt_bigcode"), (llama, "cohere")):
        run = read_state(tmp_path, state, {**CONFIG, "model_type": kind})
        assert run.graph == "none"
        assert any(f"'{kind}' is none of" in note for note in run.notes)


def test_a_scaling_of_positions_that_is_not_known_falls_back(llama: State, tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_attention_heads": 3, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    run = read_state(tmp_path, llama, {**config, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert run.graph == "none"
    assert any("'dynamic' is none of" in note for note in run.notes)
    with pytest.raises(UsageError, match="a number belongs"):
        read_state(tmp_path, llama, {**config, "rope_scaling": {"type": "linear", "factor": "two"}})
    old = {**config, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    run = read_state(tmp_path, llama, old)
    turns = next(op for op in run.network.ops if op.kind == "rotary").attrs
    np.testing.assert_allclose(turns["frequencies"], [0.5, 0.5 * 5e5**-0.5])


@pytest.mark.parametrize("config", [None, CONFIG, {"model_type": "llama"}], ids=["none", "gpt2", "llama"])
def test_shapes_that_no_network_has(config: Any, gpt2: State, llama: State) -> None:
    """Whatever a file declares, it is of a family, or of none, or asked about: nothing trips."""
    t5 = hf.T5ForConditionalGeneration(hf.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=9))
    bert = hf.BertForPreTraining(hf.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    for state in (gpt2, llama, t5.state_dict(), bert.state_dict()):
        plain = shapes(state)
        for key in plain:
            for shape in ((), (0,), (7,), (0, 0), (5, 3), (2, 3, 4), (1, 2, 3, 4)):
                try:
                    found = recognise({**plain, key: shape}, config)
                except UsageError:
                    continue
                assert found is None or isinstance(found, Known | Nearest)


def test_nothing_is_asked_where_nothing_is_to_be(gpt2: State, tmp_path: Path) -> None:
    run = read_state(tmp_path, gpt2, ask=False)
    assert run.graph == "none"
    assert any("do not tell heads, eps" in note for note in run.notes)


def test_a_file_is_of_one_family_at_most(gpt2: State, llama: State) -> None:
    for state in (gpt2, llama):
        fits = [f.name for f in FAMILIES if f.may_be(shapes(state)) and not isinstance(_drawn(f, state), Nearest)]
        assert len(fits) == 1


def _drawn(family: Any, state: State) -> Known | Nearest | None:
    try:
        return draw(family, shapes(state), None, {})
    except CanonError:
        return None


# tied weights, buffers, heads


def test_tied_weights_are_one_tensor(gpt2: State, tmp_path: Path) -> None:
    without = {name: t for name, t in gpt2.items() if name != "lm_head.weight"}
    both = read_state(tmp_path / "a", gpt2, {**CONFIG, "tie_word_embeddings": True})
    one = read_state(tmp_path / "b", without, CONFIG)
    assert both.network.ops == one.network.ops
    assert list(both.network.tensors) == list(one.network.tensors)
    assert [op.name for op, _ in one.network.uses["transformer.wte.weight"]] == ["transformer.wte", "lm_head"]
    assert any("lm_head.weight is not in the file: it is tied" in note for note in one.notes)
    assert any("tied, one tensor" in note for note in both.notes)
    apart = read_state(tmp_path / "c", gpt2, {**CONFIG, "tie_word_embeddings": False})
    assert "lm_head.weight" in apart.network.tensors


def test_weights_that_differ_are_two_tensors(gpt2: State, tmp_path: Path) -> None:
    state = {**gpt2, "lm_head.weight": gpt2["lm_head.weight"] + 1}
    for said in (None, True):
        run = read_state(tmp_path, state, {**CONFIG, **({} if said is None else {"tie_word_embeddings": said})})
        assert "lm_head.weight" in run.network.tensors
        assert any("taken as two tensors" in note for note in run.notes) == bool(said)


def test_a_network_without_its_head(gpt2: State, tmp_path: Path) -> None:
    """A file without the front of names that a head is beside of, or of another architecture, gives out its last norm."""
    bare = {name.removeprefix("transformer."): t for name, t in gpt2.items() if name != "lm_head.weight"}
    for architecture, output in ((None, "ln_f"), ("GPT2Model", "ln_f"), ("GPT2LMHeadModel", "lm_head")):
        config = {**CONFIG, **({"architectures": [architecture]} if architecture else {})}
        assert read_state(tmp_path, bare, config).network.outputs == (output,)


def test_buffers_are_left_as_they_are_and_said(gpt2: State, tmp_path: Path) -> None:
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 10, 10) for i in range(2)}
    masks["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    run = read_state(tmp_path, {**gpt2, **masks}, CONFIG)
    assert run.graph == "family"
    assert not set(masks) & set(run.network.tensors)
    assert any("left as they are" in note and "transformer.h.0.attn.bias" in note for note in run.notes)
    whole = {name: t.to(torch.uint8) for name, t in masks.items()}
    assert read_state(tmp_path, {**gpt2, **whole}, CONFIG).graph == "family"


# the command


def test_the_command_takes_and_asks(gpt2: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(stored(tmp_path / "a", arrays(gpt2)))
    assert main(["show", path]) == 2
    assert "--heads N --eps X --activation NAME" in capsys.readouterr().err
    told = ["--heads", "3", "--eps", "1e-5", "--activation", "gelu_new"]
    assert main(["show", path, *told, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["graph"], found["activations_known"]) == ("family", True)
    for wrong in (["--heads", "0"], ["--heads", "x"], ["--eps", "-1"], ["--rope-layout", "both"], ["--activation", "gelo"]):
        assert main(["show", path, *wrong]) == 2
        assert capsys.readouterr().err.startswith("canon: ")


def test_what_one_file_does_not_tell_the_other_may(gpt2: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = str(stored(tmp_path / "a", arrays(gpt2), CONFIG))
    bare = str(stored(tmp_path / "b", arrays(gpt2)))
    assert main(["compare", known, bare]) == 0
    assert "identical" in capsys.readouterr().out
    assert main(["compare", bare, bare]) == 2
    assert "--heads" in capsys.readouterr().err


def test_an_architecture_may_be_lent(gpt2: State, tmp_path: Path) -> None:
    known = stored(tmp_path / "a", arrays(gpt2), CONFIG)
    bare = stored(tmp_path / "b", arrays(gpt2))
    run = read(bare, architecture=known)
    assert run.network.ops == read(known).network.ops
    assert any(f"beside {known}" in note for note in run.notes)
    canon = tmp_path / "known.canon"
    write(read(known), canon, "canon")
    one = stored(tmp_path / "c", {name: t for name, t in arrays(gpt2).items() if name != "lm_head.weight"})
    with pytest.raises(UsageError):
        read(one)
    run = read(one, architecture=canon)
    assert (run.graph, run.network.ops) == ("borrowed", read(known).network.ops)
