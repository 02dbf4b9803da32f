"""A moved network of a family goes back into a copy of its file: transposed, stacked, cut and tied tensors in their places."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from family_nets import Arrays, arrays, randomised
from safetensors.numpy import load_file, save_file

from canon.compare import compare
from canon.errors import WriteError
from canon.formats import read, write
from canon.formats.common_layout import Place, Stack
from canon.formats.common_write import outgoing
from canon.network import Network
from canon.ops import Op
from canon.run import Run
from canon.transform import teleport

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as hf

pytestmark = pytest.mark.filterwarnings("ignore")

GPT2 = {"n_embd": 12, "n_layer": 1, "n_head": 3, "vocab_size": 20, "n_positions": 12}
MIXTRAL = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
           "intermediate_size": 10, "vocab_size": 20, "num_local_experts": 3, "num_experts_per_tok": 2,
           "experts_implementation": "eager"}  # fmt: skip
T5 = {"d_model": 12, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
TOKENS = torch.arange(18).reshape(2, 9)


def gpt2() -> torch.nn.Module:
    """Kernels (in, out), and the table of tokens twice."""
    return randomised(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)))


def mixtral() -> torch.nn.Module:
    """All experts in two arrays, gates and what goes up in one."""
    return randomised(hf.MixtralForCausalLM(hf.MixtralConfig(**MIXTRAL)))


def t5() -> torch.nn.Module:
    """The table of tokens three times."""
    model = randomised(hf.T5ForConditionalGeneration(hf.T5Config(**T5)))
    model.tie_weights()
    return model


def computed(model: Any) -> np.ndarray:
    more = {"decoder_input_ids": TOKENS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return np.asarray(model(input_ids=TOKENS, **more).logits)


def save(path: Path, state: Arrays) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **state)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as f:
            for name, t in state.items():
                f[name] = t
    elif path.suffix == ".pt":
        torch.save({name: torch.from_numpy(t.copy()) for name, t in state.items()}, path)
    else:
        save_file({name: np.ascontiguousarray(t) for name, t in state.items()}, path)
    return path


def load(path: Path) -> Arrays:
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".h5":
        with h5py.File(path) as f:
            return {name: t[()] for name, t in f.items()}
    if path.suffix == ".pt":
        return arrays(torch.load(path))
    return load_file(path)


@pytest.mark.parametrize("ending", ["npz", "h5", "pt", "safetensors"])
@pytest.mark.parametrize("made", [gpt2, mixtral, t5], ids=["gpt2", "mixtral", "t5"])
def test_a_moved_network_goes_back(made: Callable[[], Any], ending: str, tmp_path: Path) -> None:
    model = made()
    wanted = computed(model)
    (tmp_path / "config.json").write_text(model.config.to_json_string())
    path = save(tmp_path / f"net.{ending}", arrays(model.state_dict()))
    run = read(path)
    assert run.graph == "family"
    moved = run.with_network(teleport(run.network, 1, sigma=0.4).network)
    out = tmp_path / f"moved.{ending}"
    write(moved, out, source=path)
    before, after = load(path), load(out)
    assert list(before) == list(after)
    changed = [name for name, t in before.items() if np.abs(t - after[name]).max() > 1e-3]
    assert len(changed) > len(before) / 2
    model.load_state_dict({name: torch.from_numpy(np.array(t)) for name, t in after.items()})
    np.testing.assert_allclose(computed(model), wanted, atol=2e-5 * np.abs(wanted).max())
    assert compare(run, read(out)).verdict == "equivalent"


def test_transformers_reads_the_experts_of_a_moved_file(tmp_path: Path) -> None:
    """As it writes them, every expert by itself: canon stacks them and puts them back."""
    model = mixtral()
    wanted = computed(model)
    model.save_pretrained(tmp_path)
    run = read(tmp_path)
    stacked = {name: place for name, place in run.layout.items() if isinstance(place, Stack)}
    assert {name.rsplit(".", 2)[1]: (place.along, len(place.parts)) for name, place in stacked.items()} == {
        "w1": (0, 3), "w2": (1, 3), "w3": (0, 3),
    }  # fmt: skip
    out = tmp_path / "moved"
    out.mkdir()
    moved = run.with_network(teleport(run.network, 2, sigma=0.4).network)
    write(moved, out / "model.safetensors", source=tmp_path / "model.safetensors")
    (out / "config.json").write_text((tmp_path / "config.json").read_text())
    again = hf.MixtralForCausalLM.from_pretrained(out, experts_implementation="eager").eval()
    np.testing.assert_allclose(computed(again), wanted, atol=2e-5 * np.abs(wanted).max())
    gates = "model.layers.0.mlp.experts.gate_up_proj"
    assert (again.state_dict()[gates] - model.state_dict()[gates]).abs().max() > 1e-2


@pytest.mark.parametrize("form", ["safetensors", "torch", "npz", "state-dict"])
@pytest.mark.parametrize("made", [gpt2, mixtral, t5], ids=["gpt2", "mixtral", "t5"])
def test_a_new_file_has_the_names_and_the_layout_of_the_old(made: Callable[[], Any], form: str, tmp_path: Path) -> None:
    """So a set of several files, which has no copy in one, can be moved all the same."""
    model = made()
    wanted = computed(model)
    model.save_pretrained(tmp_path / "set", max_shard_size="3kB")
    assert len(list((tmp_path / "set").glob("*.safetensors"))) > 1
    run = read(tmp_path / "set")
    ending = {"torch": "pt", "state-dict": "h5"}.get(form, form)
    out = tmp_path / f"net.{ending}"
    moved = run.with_network(teleport(run.network, 3, sigma=0.4).network)
    notes = write(moved, out, form)
    assert any("no config.json" in note for note in notes)
    index = json.loads((tmp_path / "set" / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(load(out)) == set(index)
    if form == "safetensors":
        (tmp_path / "config.json").write_text((tmp_path / "set" / "config.json").read_text())
        out.rename(tmp_path / "model.safetensors")
        more = {"experts_implementation": "eager"} if made is mixtral else {}
        again = type(model).from_pretrained(tmp_path, **more).eval()
        np.testing.assert_allclose(computed(again), wanted, atol=2e-5 * np.abs(wanted).max())
    else:
        (tmp_path / "config.json").write_text((tmp_path / "set" / "config.json").read_text())
        assert compare(run, read(out)).verdict == "equivalent"


def test_a_changed_expert_is_found(tmp_path: Path) -> None:
    model = mixtral()
    model.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        model.model.layers[0].mlp.experts.down_proj[1, 2, 3] += 1e-2
    model.save_pretrained(tmp_path / "b")
    a, b = (read(tmp_path / name) for name in "ab")
    assert compare(a, a).verdict == "identical"
    assert compare(a, b).verdict not in ("identical", "equivalent")


# the layouts by themselves


def network(tensors: Arrays) -> Network:
    ops = [Op("opaque", name, ("x",), name, {"t": name}, {"class_name": "none", "shape": [1]}) for name in tensors]
    return Network(tensors, tuple(ops), {"x": (1,)}, tuple(tensors))


def given(run: Run, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    return {path: values() for path, (_, values) in outgoing(run, Path("source"), shapes.get).items()}


def test_a_stack_is_cut_along_its_axis() -> None:
    t = np.arange(24.0).reshape(3, 8)
    parts = (Place("a", axes=(1, 0)), Place("b"), Place("c", final=(3, 2)))
    run = Run("", "", network({"t": t}), layout={"t": Stack("a", parts=parts, along=1)})
    found = given(run, {"a": (2, 3), "b": (3, 4), "c": (1, 3, 2)})
    np.testing.assert_array_equal(found["a"], t[:, :2].T)
    np.testing.assert_array_equal(found["b"], t[:, 2:6])
    np.testing.assert_array_equal(found["c"], t[None, :, 6:])


def test_stretches_of_one_array_come_together() -> None:
    t, u = np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(2, 4)
    layout = {"t": Place("a", cut=(1, 0, 3)), "u": Place("a", cut=(1, 3, 7), also=("b",))}
    run = Run("", "", network({"t": t, "u": u}), layout=layout)
    found = given(run, {"a": (2, 7), "b": (2, 4)})
    np.testing.assert_array_equal(found["a"], np.concatenate([t, u], axis=1))
    np.testing.assert_array_equal(found["b"], u)
    with pytest.raises(WriteError, match="does not go into 'a'"):
        given(run, {"a": (2, 8), "b": (2, 4)})
    with pytest.raises(WriteError, match="no dataset 'b'"):
        given(run, {"a": (2, 7)})
    with pytest.raises(WriteError, match="do not hold the same tensors"):
        given(Run("", "", network({"t": t}), layout=layout), {"a": (2, 7)})
