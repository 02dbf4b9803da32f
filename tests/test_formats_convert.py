"""Networks written in other formats: read again they are the same function, and real Keras computes it too."""

import json
import os
import subprocess
import sys

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import UnsupportedOp, UsageError
from canon.forward import forward, probe_inputs
from canon.network import Network
from canon.ops import Op
from canon.run import Run

RNG = np.random.default_rng(11)


def rand(*shape):
    return RNG.standard_normal(shape).astype("f4") * 0.5


class Net:
    """A network built an op at a time."""

    def __init__(self, **inputs):
        self.inputs, self.ops, self.tensors = inputs, [], {}

    def op(self, kind, name, *src, params=None, act=None, tensors=None, **attrs):
        names = tensors or {}
        for role, value in (params or {}).items():
            names[role] = f"{name}/{role}"
            self.tensors[names[role]] = value
        self.ops.append(Op(kind, name, src, f"{name}/pre" if act else name, names, attrs))
        if act:
            self.ops.append(Op(act[0], f"{name}/{act[0]}", (f"{name}/pre",), name, {}, act[1]))
        return name

    def run(self, *outputs):
        return Run("made", "canon hdf5", Network(self.tensors, tuple(self.ops), self.inputs, outputs), graph="stored")


def kb(out, inner, *k):
    return {"kernel": rand(out, inner, *k), "bias": rand(out)}


def images():
    n, w = Net(x=(8, 8, 3)), {"strides": [1, 1], "dilation": [1, 1], "padding": "same", "channels": "last"}
    bn = {"gamma": rand(4), "beta": rand(4), "mean": rand(4), "variance": abs(rand(4)) + 1}
    n.op("conv", "c", "x", params=kb(4, 3, 3, 3), act=("relu", {}), **w)
    n.op("batch_norm", "b", "c", params=bn, axis=-1, eps=1e-3)
    n.op("depthwise_conv", "s/depthwise", "b", params={"kernel": rand(8, 1, 3, 3)}, **w)
    n.op("conv", "s", "s/depthwise", params=kb(4, 8, 1, 1), **{**w, "padding": "valid"})
    n.op("leaky_relu", "l", "s", alpha=0.1)
    n.op("grouped_conv", "g", "l", params=kb(4, 2, 3, 3), groups=2, **{**w, "padding": [[1, 0], [0, 1]]})
    n.op("relu6", "r", "g", cap=2.0)
    n.op("conv_transpose", "t", "r", params=kb(4, 4, 3, 3), output_padding=None, **{**w, "strides": [2, 2]})
    n.op("group_norm", "gn", "t", params={"gamma": rand(4), "beta": rand(4)}, axis=-1, groups=2, eps=1e-3)
    n.op("cropping", "cr", "gn", cropping=[[1, 0], [0, 2]], channels="last")
    n.op("max_pool", "p", "cr", pool=[2, 2], strides=[2, 2], padding="valid", channels="last")
    n.op("general_relu", "gr", "p", negative_slope=0.1, threshold=0.2, max_value=3.0)
    n.op("prelu", "pr", "gr", params={"alpha": rand(1, 1, 4)})
    n.op("upsampling", "u", "pr", size=[2, 2], channels="last", interpolation="bilinear", half_pixel=True)
    n.op("scale_shift", "ss", "u", params={"scale": rand(4), "shift": rand(4)}, axis=-1)
    n.op("global_avg_pool", "gp", "ss", channels="last", keepdims=False)
    n.op("dense", "d", "gp", params=kb(3, 4), act=("softmax", {"axis": -1}))
    return n.run("d")


def towers():
    """One tower on two inputs, and joins of every kind."""
    n = Net(a=(5,), b=(5,))
    n.op("dense", "t", "a", params=kb(4, 5), act=("tanh", {}))
    shared = {"kernel": "t/kernel", "bias": "t/bias"}
    n.op("dense", "t@1", "b", tensors=shared, act=("tanh", {}))
    for kind in ("add", "subtract", "multiply", "average", "maximum", "minimum"):
        n.op(kind, kind, "t", "t@1")
    n.op("concat", "all", "add", "subtract", "multiply", "average", "maximum", "minimum", axis=-1)
    n.op("dense", "out", "all", params=kb(2, 24), act=("elu", {"alpha": 0.5}))
    n.op("dot", "dot", "t", "t@1", axes=[0, 0], normalize=False)
    return n.run("out", "dot")


def cell(gates, inner, units, bias=None):
    return {"kernel": rand(gates * units, inner), "recurrent_kernel": rand(gates * units, units),
            "bias": rand(gates * units) if bias is None else rand(*bias)}  # fmt: skip


def sequences(slope=None):
    gate = {"kind": "hard_sigmoid", "slope": slope} if slope else "sigmoid"
    n = Net(x=(6, 3))
    each = {"return_sequences": True, "go_backwards": False, "activation": "tanh", "recurrent_activation": gate}
    n.op("masking", "m", "x", mask_value=0.0)
    n.op("step_mask", "m/mask", "x", mask_value=0.0, tokens=False)
    n.op("lstm", "l", "m", "m/mask", params=cell(4, 3, 4), **each)
    n.op("gru", "bi/forward", "l", "m/mask", params=cell(3, 4, 2, (2, 6)), reset_after=True, **each)
    n.op("gru", "bi/backward", "l", "m/mask", params=cell(3, 4, 2, (2, 6)), reset_after=True, **{**each, "go_backwards": True})
    n.op("reverse", "bi/backward/reverse", "bi/backward", axis=0)
    n.op("concat", "bi", "bi/forward", "bi/backward/reverse", axis=-1)
    rnn = {k: v for k, v in each.items() if k != "recurrent_activation"}
    n.op("simple_rnn", "s", "bi", "m/mask", params=cell(1, 4, 3), **rnn)
    n.op("layer_norm", "ln", "s", params={"gamma": rand(3), "beta": rand(3)}, axes=[-1], eps=1e-3)
    n.op("masked_avg_pool", "gp", "ln", "m/mask")
    n.op("dense", "d", "gp", params=kb(2, 3), act=("hard_sigmoid", {"slope": slope}) if slope else None)
    return n.run("d")


def volumes():
    n, w = Net(x=(4, 6, 6, 2)), {"strides": [1], "dilation": [1], "padding": "causal", "channels": "last"}
    two = {"strides": [1, 1], "dilation": [1, 1], "padding": "valid", "channels": "last"}
    n.op("time_distributed", "td", "x", params=kb(3, 2, 3, 3), inner={"kind": "conv", "attrs": two})
    n.op("time_distributed", "f", "td", inner={"kind": "flatten", "attrs": {"channels": "last"}})
    n.op("dense", "d", "f", params=kb(5, 48), act=("selu", {}))
    n.op("conv", "c", "d", params=kb(4, 5, 3), **w)
    n.op("permute", "p", "c", dims=[1, 0])
    n.op("flatten", "fl", "p", channels="last")
    n.op("repeat_vector", "rv", "fl", n=3)
    n.op("reshape", "rs", "rv", shape=[8, 6])
    n.op("zero_padding", "z", "rs", padding=[[1, 2]], channels="last")
    n.op("avg_pool", "ap", "z", pool=[2], strides=[2], padding="same", channels="last")
    return n.run("ap")


def words():
    n = Net(x=(5,))
    n.op("embedding", "e", "x", params={"table": rand(9, 4)})
    n.op("step_mask", "e/mask", "x", mask_value=0.0, tokens=True)
    n.op("lstm", "l", "e", "e/mask", params=cell(4, 4, 3), return_sequences=False, go_backwards=False,
         activation="relu", recurrent_activation="sigmoid")  # fmt: skip
    return n.run("l")


MADE = {"images": images, "towers": towers, "sequences": sequences, "volumes": volumes, "words": words,
        "old gates": lambda: sequences(0.2), "new gates": lambda: sequences(1 / 6)}  # fmt: skip


def probes(run):
    found = probe_inputs(run.network, np.random.default_rng(0), 3, 1.0)
    if "e" in run.network.writer:
        found["x"] = np.random.default_rng(1).integers(0, 9, (3, 5)).astype(float)
    elif "m" in run.network.writer:
        found["x"][0, 4:] = found["x"][1, :2] = 0.0
    return found


def outputs(run, found):
    got = forward(run.network, dict(zip(run.network.inputs, found.values(), strict=True)))
    return [got[v] for v in run.network.outputs]


@pytest.mark.parametrize("fmt", ["canon", "keras", "keras-zip"])
@pytest.mark.parametrize("name", MADE)
def test_read_again_it_is_the_same_function(tmp_path, name, fmt):
    run = MADE[name]()
    notes = formats.write(run, tmp_path / "out", fmt)
    again = formats.read(tmp_path / "out")
    for a, b in zip(outputs(run, probes(run)), outputs(again, probes(run)), strict=True):
        assert np.abs(a - b).max() <= 1e-6 * np.abs(a).max()
    scaled = name == "old gates" and fmt == "keras-zip"
    assert any("hard sigmoid" in note for note in notes) == (scaled or ("gates" in name and fmt == "keras"))
    if not scaled:
        assert again.network.parameters >= run.network.parameters
    first = (tmp_path / "out").read_bytes()
    formats.write(run, tmp_path / "out", fmt)
    assert (tmp_path / "out").read_bytes() == first


@pytest.mark.parametrize("fmt", ["npz", "state-dict"])
def test_arrays_alone(tmp_path, fmt):
    notes = formats.write(images(), tmp_path / "out", fmt)
    assert notes[0].startswith("arrays alone are kept")
    again = formats.read(tmp_path / "out")
    assert {"c.weight", "b.running_var", "s.depthwise.weight", "d.bias"} <= set(again.network.tensors)
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    formats.write(run, tmp_path / "out", fmt)
    again = formats.read(tmp_path / "out", activation="relu")
    assert again.graph == "chain"
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_allclose(kf.run(run.network, x), kf.run(again.network, x), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "attrs", "words"),
    [
        ("sin", {}, "Keras has no layer for a sin operation"),
        ("opaque", {"class_name": "Mine", "shape": [4]}, "Keras has no layer for a Mine operation"),
        ("unknown_activation", {}, "a unknown_activation operation"),
        ("gelu", {"approximate": True}, "an approximate gelu"),
    ],
)
@pytest.mark.parametrize("fmt", ["keras", "keras-zip"])
def test_what_keras_has_no_layer_for_is_refused_by_name(tmp_path, kind, attrs, words, fmt):
    n = Net(x=(4,))
    n.op(kind, "odd", "x", **attrs)
    with pytest.raises(UnsupportedOp, match=f"odd: .*{words}"):
        formats.write(n.run("odd"), tmp_path / "out", fmt)
    assert not list(tmp_path.iterdir())


def test_long_lists_of_names_are_split(tmp_path):
    n, src = Net(x=(2,)), "x"
    for i in range(700):
        src = n.op("dense", f"{'a_very_long_name_of_a_layer_' * 4}{i}", src, params={"kernel": rand(2, 2)})
    formats.write(n.run(src), tmp_path / "out", "keras")
    with h5py.File(tmp_path / "out") as f:
        assert "layer_names1" in f["model_weights"].attrs
        assert "layer_names" not in f["model_weights"].attrs
    assert len(formats.read(tmp_path / "out").network.ops) == 700


def test_several_checkpoints_go_into_canon_alone(tmp_path):
    run = towers()
    with pytest.raises(UsageError, match="only canon's own format holds several"):
        formats.write(run, tmp_path / "out", "keras", checkpoints=[run])


LOAD = """
import json, sys
import numpy as np
import keras
for path in sys.argv[1:]:
    found = np.load(path + ".npz")
    x = [found[f"x{i}"] for i in range(len([k for k in found if k[0] == "x"]))]
    model = keras.models.load_model(path, compile=False)
    y = model.predict(x if len(x) > 1 else x[0], verbose=0)
    y = y if isinstance(y, list | tuple) else [y]
    far = [float(np.abs(a - found[f"y{i}"]).max() / np.abs(found[f"y{i}"]).max()) for i, a in enumerate(y)]
    print(json.dumps([path, max(far)]))
"""


def test_real_keras_computes_the_same(tmp_path):
    """CANON_KERAS names the Python of an environment with Keras 3 and torch."""
    python = os.environ.get("CANON_KERAS") or sys.executable
    env = {**os.environ, "KERAS_BACKEND": "torch"}
    if subprocess.run([python, "-c", "import torch, keras"], capture_output=True, check=False, env=env).returncode:
        pytest.skip("Keras is not installed")
    paths = []
    for name, make in MADE.items():
        run = make()
        x = {v: a.astype("f4") for v, a in probes(run).items()}
        for fmt, ending in (("keras", "h5"), ("keras-zip", "keras")):
            if (name, fmt) == ("old gates", "keras"):
                continue  # a file of Keras 2, whose hard sigmoid Keras 3 takes for its own
            path = tmp_path / f"{name.replace(' ', '-')}.{ending}"
            formats.write(run, path, fmt)
            np.savez(f"{path}.npz", **{f"x{i}": a for i, a in enumerate(x.values())},
                     **{f"y{i}": a for i, a in enumerate(outputs(run, x))})  # fmt: skip
            paths.append(str(path))
    done = subprocess.run([python, "-c", LOAD, *paths], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    told = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert set(told) == set(paths)
    assert {path: far for path, far in told.items() if far > 1e-5} == {}
