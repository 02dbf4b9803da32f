"""ONNX's recurrent operations, against torch's layers with the same numbers, and against ONNX's own reference."""

import numpy as np
import pytest
import torch
from onnx_files import check, kinds, node, normal, ops

from canon import formats

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN": "simple_rnn"}
U, F, T = 4, 3, 5


def layer(op, ways):
    """A torch layer, and the arrays that ONNX keeps of it: gates in ONNX's order."""
    torch.manual_seed(0)
    made = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}[op](F, U, bidirectional=ways == 2)
    order = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}[op]  # torch: i f g o; r z n
    stacked = {"w": [], "r": [], "b": []}
    for suffix in ("", "_reverse")[:ways]:
        w, r, b, c = (
            getattr(made, f"{name}_l0{suffix}").detach().numpy() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        turn = [np.concatenate([np.split(t, GATES[op])[i] for i in order]) for t in (w, r, b, c)]
        stacked["w"].append(turn[0])
        stacked["r"].append(turn[1])
        stacked["b"].append(np.concatenate(turn[2:]))
    return made, {k: np.stack(v) for k, v in stacked.items()}


def by_torch(made, ways):
    """Y as ONNX shapes it, (steps, directions, batch, units), and the last states, (directions, batch, units)."""

    def run(fed):
        y, state = made(torch.tensor(fed["x"]))
        h = state[0] if isinstance(state, tuple) else state
        y = y.detach().numpy().reshape(T, -1, ways, U).transpose(0, 2, 1, 3)
        return y, h.detach().numpy()

    return run


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("op", GATES)
def test_sequences(tmp_path, op, ways):
    made, stored = layer(op, ways)
    attrs = {"hidden_size": U, "direction": "bidirectional" if ways == 2 else "forward"}
    attrs |= {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [node(op, "x w r b", "s", **attrs), node("Transpose", "s", "t", perm=[0, 2, 1, 3]), node("Reshape", "t to", "y")]

    def wanted(fed):
        return [by_torch(made, ways)(fed)[0].transpose(0, 2, 1, 3).reshape(T, -1, ways * U)]

    run = check(
        tmp_path, nodes, x=(T, "batch", F), stored={**stored, "to": np.array([0, 0, -1])}, axis=1, out_axis=1, wanted=wanted
    )
    assert ops(run) == ([KINDS[op]] if ways == 1 else [KINDS[op], KINDS[op], "reverse", "concat"])
    assert run.network.inputs == {"x": (T, F)}
    assert run.notes == ("the batch is the second axis of 'x'",)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("both", [False, True])
def test_last_states(tmp_path, op, ways, both):
    made, stored = layer(op, ways)
    attrs = {"hidden_size": U, "direction": "bidirectional" if ways == 2 else "forward"}
    attrs |= {"linear_before_reset": 1} if op == "GRU" else {}
    nodes = [node(op, "x w r b", f"{'s' if both else ''} h".split() if both else ["", "h"], **attrs),
             node("Transpose", "h", "t", perm=[1, 0, 2]), node("Flatten", "t", "y")]  # fmt: skip
    outputs = ["y"]
    if both:
        nodes.append(node("ReduceMean", "s", "m", axes=[0], keepdims=0))
        nodes.append(node("Transpose", "m", "n", perm=[1, 0, 2]))
        outputs.append("n")

    def wanted(fed):
        y, h = by_torch(made, ways)(fed)
        last = [h.transpose(1, 0, 2).reshape(h.shape[1], -1)]
        return [*last, y.mean(axis=0).transpose(1, 0, 2)] if both else last

    run = check(tmp_path, nodes, x=(T, "batch", F), stored=stored, axis=1, y=outputs, wanted=wanted)
    assert ("take" in ops(run)) == both
    assert kinds(run)[KINDS[op]] == ways


def test_a_gru_that_resets_before_and_a_layer_backwards(tmp_path):
    _, stored = layer("GRU", 1)
    nodes = [node("GRU", "x w r b", "s", hidden_size=U), node("Squeeze", "s one", "y")]
    run = check(tmp_path, nodes, x=(T, "batch", F), stored={**stored, "one": np.array([1])}, axis=1, out_axis=1)
    assert run.network.ops[0].attrs == {"activation": "tanh", "recurrent_activation": "sigmoid", "return_sequences": True}
    made, stored = layer("LSTM", 1)
    nodes = [node("LSTM", "x w r b", "s", hidden_size=U, direction="reverse"), node("Squeeze", "s one", "y")]

    def wanted(fed):
        return [by_torch(made, 1)({"x": fed["x"][::-1].copy()})[0][::-1, 0]]

    run = check(tmp_path, nodes, x=(T, "batch", F), stored={**stored, "one": np.array([1])}, axis=1, out_axis=1, wanted=wanted)
    assert ops(run) == ["lstm", "reverse"]


def test_a_batch_in_front_and_states_that_are_zero(tmp_path):
    """As torch writes a layer whose batch comes first: zeros for the states are made in the graph."""
    _, stored = layer("LSTM", 1)
    stored |= {"one": np.array([1]), "d": np.array([1]), "u": np.array([U]), "i": np.array(0)}
    nodes = [
        node("Shape", "x", "n"), node("Gather", "n i", "k"), node("Unsqueeze", "k i0", "j"), node("Concat", "d j u",
        "z", axis=0),
        node("ConstantOfShape", "z", "h"), node("Transpose", "x", "t", perm=[1, 0, 2]), node("LSTM", "t w r b _ h h",
        "s", hidden_size=U),
        node("Squeeze", "s one", "q"), node("Transpose", "q", "y", perm=[1, 0, 2]),
    ]  # fmt: skip
    run = check(tmp_path, nodes, x=("batch", T, F), stored={**stored, "i0": np.array([0])})
    assert ops(run) == ["lstm"]
    assert run.notes == ()


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"clip": 1.0}, "x w r b"), ({"input_forget": 1}, "x w r b"), ({"activations": ["Sigmoid", "Affine", "Tanh"]},
            "x w r b"),
        ({"activations": ["Sigmoid", "Tanh", "Relu"]}, "x w r b"), ({}, "x w r b _ h"), ({}, "x w r b _ _ _ p"), ({},
            "x w r b l"),
    ],
)  # fmt: skip
def test_what_canons_layers_do_not_do_is_opaque(tmp_path, attrs, words):
    from onnx_files import save

    _, stored = layer("LSTM", 1)
    stored |= {"h": normal(1, 1, U), "p": normal(1, 3 * U), "l": np.array([2, 3, 1], np.int32)}
    nodes = [node("LSTM", words, "s", hidden_size=U, **attrs), node("Relu", "s", "y")]
    names = set(words.split())
    save(tmp_path / "a.onnx", nodes, x=(T, 1, F), stored={k: v for k, v in stored.items() if k in names})
    run = formats.read(tmp_path / "a.onnx")
    assert "opaque" in ops(run)
    assert "(LSTM)" in run.notes[-1]


def test_other_functions(tmp_path):
    _, stored = layer("RNN", 1)
    nodes = [node("RNN", "x w r b", "s", hidden_size=U, activations=["Relu"]), node("Squeeze", "s one", "y")]

    def wanted(fed):
        h, out = np.zeros((fed["x"].shape[1], U)), []
        for x in fed["x"]:
            h = np.maximum(x @ stored["w"][0].T + h @ stored["r"][0].T + stored["b"][0, :U] + stored["b"][0, U:], 0)
            out.append(h)
        return [np.stack(out)]

    run = check(tmp_path, nodes, x=(T, "batch", F), stored={**stored, "one": np.array([1])}, axis=1, out_axis=1, wanted=wanted)
    assert run.network.ops[0].attrs["activation"] == "relu"


@pytest.mark.parametrize("op", GATES)
def test_layers_in_both_directions_are_put_back_into_one_tensor(tmp_path, op):
    import onnx
    from onnx import numpy_helper

    from canon.action import random_action
    from canon.compare import compare
    from canon.symmetry import derive

    made, stored = layer(op, 2)
    attrs = {"hidden_size": U, "direction": "bidirectional", **({"linear_before_reset": 1} if op == "GRU" else {})}
    nodes = [
        node(op, "x w r b", "s", **attrs),
        node("Transpose", "s", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t to", "f"),
        node("MatMul", "f v", "y"),
    ]
    stored |= {"to": np.array([0, 0, -1]), "v": normal(2 * U, 3)}

    def wanted(fed):
        return [by_torch(made, 2)(fed)[0].transpose(0, 2, 1, 3).reshape(T, -1, 2 * U) @ stored["v"]]

    run = check(tmp_path, nodes, x=(T, "batch", F), stored=stored, axis=1, out_axis=1, wanted=wanted)
    moved = random_action(derive(run.network), run.network, np.random.default_rng(2))(run.network)
    moved = moved.with_tensors({n: t.astype(np.float32) for n, t in moved.tensors.items()})
    formats.write(run.with_network(moved), tmp_path / "b.onnx", source=tmp_path / "a.onnx")
    again = formats.read(tmp_path / "b.onnx")
    for name, tensor in moved.tensors.items():
        np.testing.assert_allclose(again.network.tensors[name], tensor, rtol=1e-6, atol=1e-7)
    assert compare(run, again).verdict == "equivalent"
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "b.onnx").graph.initializer}
    assert held["w"].shape == stored["w"].shape
    assert np.abs(held["w"] - stored["w"]).max() > 0.1
