"""Keras models in HDF5: attributes, wiring, shared and nested layers, faults."""

import json

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile, GraphError, ShapeConflict, UnsupportedOp

RNG = np.random.default_rng(1)


def kinds(run):
    return [op.kind for op in run.network.ops]


def test_reads_a_functional_model(tmp_path):
    path = kf.mlp(tmp_path / "a.h5", optimizer=True)
    run = formats.read(path)
    assert (run.format, run.graph, run.activations_known) == ("keras-2 hdf5", "config", True)
    assert kinds(run) == ["dense", "relu", "dense", "relu", "dense"]
    assert [op.name for op in run.network.ops] == ["dense_0", "dense_0/relu", "dense_1", "dense_1/relu", "dense_2"]
    assert [op.output for op in run.network.ops] == ["dense_0/pre", "dense_0", "dense_1/pre", "dense_1", "dense_2"]
    assert list(run.network.tensors) == [f"dense_{i}/{r}" for i in range(3) for r in ("kernel", "bias")]
    with h5py.File(path) as f:
        stored = f["model_weights/dense_0/dense_0/kernel:0"][()]
    np.testing.assert_array_equal(run.network.tensors["dense_0/kernel"], stored.T)
    assert run.network.inputs == {"x": (4,)}
    assert run.network.outputs == ("dense_2",)


def test_order_comes_from_layer_names_not_from_groups(tmp_path):
    sizes = [3] * 13
    run = formats.read(kf.mlp(tmp_path / "a.h5", sizes))
    assert list(run.network.tensors)[::2] == [f"dense_{i}/kernel" for i in range(12)]


@pytest.mark.parametrize("as_list", [True, False])
def test_sequential_as_list_or_dict(tmp_path, as_list):
    layers = [kf.dense("a", (), 4, 5, batch_input_shape=[None, 4]), kf.dense("b", (), 5, 2, "softmax")]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.sequential(layers, as_list=as_list), layers))
    assert run.network.inputs == {"input": (4,)}
    assert kinds(run) == ["dense", "relu", "dense", "softmax"]


def test_sequential_without_an_input_shape(tmp_path):
    layers = [kf.dense("a", (), 4, 5), kf.dense("b", (), 5, 2)]
    assert formats.read(kf.save(tmp_path / "a.h5", kf.sequential(layers), layers)).network.inputs == {"input": (4,)}
    layers = [kf.layer("Flatten", "f"), kf.dense("b", (), 5, 2)]
    with pytest.raises(GraphError, match="what shape layer 'f' takes in"):
        formats.read(kf.save(tmp_path / "b.h5", kf.sequential(layers), layers))
    model = kf.sequential(layers)
    model["config"]["build_input_shape"] = [None, 5]
    assert formats.read(kf.save(tmp_path / "c.h5", model, layers)).network.inputs == {"input": (5,)}


@pytest.mark.parametrize("store", ["bytes", "str", "fixed", "object"])
def test_attribute_strings_of_every_kind(tmp_path, store):
    path = kf.mlp(tmp_path / "a.h5")
    make = {
        "bytes": lambda s: np.bytes_(s.encode()),
        "str": str,
        "fixed": lambda s: np.array(s.encode(), "S"),
        "object": lambda s: np.array([s], h5py.string_dtype()),
    }[store]
    lists = {
        "bytes": lambda n: np.array([s.encode() for s in n]),
        "str": lambda n: np.array(n, h5py.string_dtype()),
        "fixed": lambda n: np.array([s.encode() for s in n], "S40"),
        "object": lambda n: np.array(n, h5py.string_dtype("ascii")),
    }[store]
    with h5py.File(path, "r+") as f:
        for key in ("model_config", "keras_version", "backend"):
            f.attrs[key] = make(f.attrs[key])
        w = f["model_weights"]
        w.attrs["layer_names"] = lists(["x", "dense_0", "dense_1", "dense_2"])
        for i in range(3):
            w[f"dense_{i}"].attrs["weight_names"] = lists([f"dense_{i}/kernel:0", f"dense_{i}/bias:0"])
    assert formats.read(path).network.parameters == 4 * 6 + 6 + 6 * 5 + 5 + 5 * 3 + 3


def test_split_name_lists(tmp_path):
    path = kf.mlp(tmp_path / "a.h5")
    with h5py.File(path, "r+") as f:
        w = f["model_weights"]
        names = w.attrs["layer_names"]
        del w.attrs["layer_names"]
        w.attrs["layer_names0"], w.attrs["layer_names1"] = names[:2], names[2:]
    assert len(formats.read(path).network.tensors) == 6


@pytest.mark.parametrize("suffix", [":0", "", ":12"])
@pytest.mark.parametrize("inner", [True, False])
def test_weight_names_with_and_without_prefix_and_number(tmp_path, suffix, inner):
    run = formats.read(kf.mlp(tmp_path / "a.h5", suffix=suffix, inner=inner))
    assert list(run.network.tensors)[:2] == ["dense_0/kernel", "dense_0/bias"]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_stored_types_are_kept_in_the_machines_byte_order(tmp_path, dtype):
    layers = [kf.inp("x", 3), kf.dense("d", "x", 3, 2, dtype=dtype)]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["d"]), layers))
    kernel = run.network.tensors["d/kernel"]
    assert kernel.dtype == np.dtype(dtype).newbyteorder("=")
    assert kernel.dtype.isnative
    np.testing.assert_array_equal(kernel, layers[1]["w"]["kernel"].T)


def test_several_inputs_and_outputs_in_the_models_order(tmp_path):
    layers = [
        kf.inp("b", 2),
        kf.inp("a", 3),
        kf.layer("Concatenate", "cat", ["a", "b"], axis=-1),
        kf.dense("one", "cat", 5, 4),
        kf.dense("two", "cat", 5, 1),
    ]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["a", "b"], ["two", "one"]), layers))
    assert list(run.network.inputs) == ["a", "b"]
    assert run.network.outputs == ("two", "one")


def test_a_shared_layer_is_one_tensor_with_several_uses(tmp_path):
    shared = kf.dense("d", "a", 3, 3)
    shared["inbound_nodes"] = [[["a", 0, 0, {}]], [["b", 0, 0, {}]], [["d", 0, 0, {}]]]
    layers = [kf.inp("a", 3), kf.inp("b", 3), shared, kf.layer("Add", "s", [("d", 2, 0), ("d", 1, 0)])]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["a", "b"], ["s"]), layers))
    assert [op.name for op in run.network.ops if op.kind == "dense"] == ["d", "d@1", "d@2"]
    assert len(run.network.uses["d/kernel"]) == 3
    x, y = RNG.standard_normal((2, 5, 3))
    k, b = (layers[2]["w"][r].astype(float) for r in ("kernel", "bias"))
    f = lambda z: np.maximum(z @ k + b, 0)  # noqa: E731
    np.testing.assert_allclose(kf.run(run.network, x, y)[0], f(f(x)) + f(y), rtol=1e-6)


def test_layers_listed_before_their_inputs(tmp_path):
    layers = [kf.inp("x", 3), kf.dense("b", "a", 4, 2), kf.dense("a", "x", 3, 4)]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["b"]), layers))
    assert [op.name for op in run.network.ops if op.kind == "dense"] == ["a", "b"]


def test_keras_3_writes_calls_another_way(tmp_path):
    def node(*names):
        tensors = [{"class_name": "__keras_tensor__", "config": {"keras_history": [n, 0, 0]}} for n in names]
        return [{"args": [tensors if len(names) > 1 else tensors[0]], "kwargs": {"mask": None}}]

    layers = [kf.layer("InputLayer", "x", batch_shape=[None, 3]), kf.dense("a", (), 3, 3), kf.layer("Add", "s")]
    layers[1]["inbound_nodes"], layers[2]["inbound_nodes"] = node("x"), node("a", "x")
    layers[1]["config"]["activation"] = {"class_name": "function", "config": "hard_sigmoid"}
    model = kf.functional(layers, ["x"], ["s"])
    model["config"]["input_layers"], model["config"]["output_layers"] = ["x", 0, 0], ["s", 0, 0]
    layers[1]["w"] = {f"model/a/{role}": v for role, v in layers[1]["w"].items()}
    run = formats.read(kf.save(tmp_path / "a.h5", model, layers, version="3.1.0", suffix=""))
    assert kinds(run) == ["dense", "hard_sigmoid", "add"]
    assert run.network.ops[1].attrs["slope"] == pytest.approx(1 / 6)
    assert run.format == "keras-3 hdf5"


def nested_files():
    inner = [kf.inp("i", 3), kf.dense("d", "i", 3, 3), kf.layer("BatchNormalization", "n", "d", axis=[1], epsilon=1e-3)]
    stats = {r: RNG.uniform(0.5, 1, 3).astype("f4") for r in ("gamma", "beta", "moving_mean", "moving_variance")}
    by_keras = {
        "d/kernel": inner[1]["w"]["kernel"],
        "d/bias": inner[1]["w"]["bias"],
        **{f"n/{r}": v for r, v in stats.items()},
    }
    return kf.functional(inner, ["i"], ["n"], name="m"), by_keras


@pytest.mark.parametrize("offset", [0, 1])
def test_a_nested_model_called_twice(tmp_path, offset):
    model, weights = nested_files()
    layers = [
        kf.inp("a", 3),
        kf.inp("b", 3),
        kf.nested(model, "m", [["a"], ["b"]], weights),
        kf.layer("Add", "s", [("m", offset, 0), ("m", offset + 1, 0)]),
    ]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["a", "b"], ["s"]), layers))
    assert [op.name for op in run.network.ops] == ["m/d", "m/d/relu", "m/n", "m/d@1", "m/d@1/relu", "m/n@1", "s"]
    assert run.network.parameters == 3 * 3 + 3 + 4 * 3
    x, y = RNG.standard_normal((2, 5, 3))
    w = {k: v.astype(float) for k, v in weights.items()}

    def f(z):
        h = np.maximum(z @ w["d/kernel"] + w["d/bias"], 0)
        return (h - w["n/moving_mean"]) / np.sqrt(w["n/moving_variance"] + 1e-3) * w["n/gamma"] + w["n/beta"]

    np.testing.assert_allclose(kf.run(run.network, x, y)[0], f(x) + f(y), rtol=1e-6)


def test_a_model_in_a_sequential_in_a_model_found_by_order(tmp_path):
    model, weights = nested_files()
    middle = kf.sequential([{**model, "name": "m", "inbound_nodes": []}, kf.dense("e", (), 3, 2)], name="outer")
    e = kf.dense("e", (), 3, 2)["w"]
    trained = [(n, v) for n, v in weights.items() if "moving" not in n] + [(f"e/{r}", v) for r, v in e.items()]
    order = trained + [(n, v) for n, v in weights.items() if "moving" in n]
    renamed = {f"other_{i}/{n.split('/')[-1]}": v for i, (n, v) in enumerate(order)}  # no name tells whose it is
    layers = [kf.inp("a", 3), kf.nested(middle, "outer", ["a"], renamed)]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["a"], ["outer"]), layers))
    assert next(iter(run.network.tensors)) == "outer/m/d/kernel"
    np.testing.assert_array_equal(run.network.tensors["outer/m/n/moving_mean"], weights["n/moving_mean"])
    np.testing.assert_array_equal(run.network.tensors["outer/e/kernel"], e["kernel"].T)
    renamed.popitem()
    with pytest.raises(CorruptFile, match=r"layer 'outer'.*do not go with its layers, which ask for 8"):
        formats.read(kf.save(tmp_path / "b.h5", kf.functional(layers, ["a"], ["outer"]), layers))


def test_a_sequential_that_begins_with_a_model(tmp_path):
    model, weights = nested_files()
    layers = [kf.nested(model, "m", [], weights), kf.dense("e", (), 3, 2)]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.sequential(layers), layers))
    assert run.network.inputs == {"m/i": (3,)}
    assert kinds(run)[-2:] == ["dense", "relu"]


def broken(tmp_path, change, **kw):
    path = kf.mlp(tmp_path / "a.h5", **kw)
    with h5py.File(path, "r+") as f:
        change(f)
    return path


def _config(f, edit):
    model = json.loads(f.attrs["model_config"])
    edit(model["config"]["layers"])
    f.attrs["model_config"] = json.dumps(model)


FAULTS = {
    "kernel of another shape": (
        lambda f: _config(f, lambda k: k[1]["config"].update(units=7)),
        ShapeConflict,
        r"layer 'dense_0': its kernel is stored as \(4, 6\), the configuration asks for \(4, 7\)",
    ),
    "bias of another shape": (
        lambda f: (f["model_weights/dense_1/dense_1"].__delitem__("bias:0"),
                   f["model_weights/dense_1/dense_1"].create_dataset("bias:0", data=np.zeros(9, "f4"))),
        ShapeConflict,
        r"layer 'dense_1': its bias is stored as \(9,\), the configuration asks for \(5\)",
    ),
    "layer not in the file": (
        lambda f: f["model_weights"].attrs.__setitem__("layer_names", [b"x", b"dense_0", b"dense_1"]),
        CorruptFile,
        "layer 'dense_2': holds 0 weights",
    ),
    "layer not in the configuration": (
        lambda f: _config(f, lambda k: k.pop()),
        CorruptFile,
        "layer 'dense_2': has 2 weights and is not in the configuration",
    ),
    "no group": (
        lambda f: f["model_weights"].__delitem__("dense_1"),
        CorruptFile,
        "layer 'dense_1': is listed in layer_names and has no group",
    ),
    "listed twice": (
        lambda f: f["model_weights/dense_0"].attrs.__setitem__("weight_names", [b"dense_0/kernel:0"] * 2),
        CorruptFile,
        "layer 'dense_0': lists the weight 'dense_0/kernel:0' twice",
    ),
    "not listed": (
        lambda f: f["model_weights/dense_0"].attrs.__setitem__("weight_names", [b"dense_0/kernel:0"]),
        CorruptFile,
        "layer 'dense_0': holds the weight 'dense_0/bias:0', which its weight_names do not list",
    ),
    "not there": (
        lambda f: f["model_weights/dense_0/dense_0"].__delitem__("bias:0"),
        CorruptFile,
        "layer 'dense_0': lists the weight 'dense_0/bias:0', which is not there",
    ),
    "no weight_names": (
        lambda f: f["model_weights/dense_0"].attrs.__delitem__("weight_names"),
        CorruptFile,
        "layer 'dense_0': holds 2 weights and has no attribute weight_names",
    ),
    "layer listed twice": (
        lambda f: f["model_weights"].attrs.__setitem__("layer_names", [b"x", b"dense_0", b"dense_0"]),
        CorruptFile,
        "layer 'dense_0': is listed twice",
    ),
    "no weights": (
        lambda f: f.__delitem__("model_weights"),
        CorruptFile,
        "a Keras configuration without the weights",
    ),
    "not JSON": (lambda f: f.attrs.__setitem__("model_config", "{"), CorruptFile, "model_config: is not JSON"),
    "deep JSON": (lambda f: f.attrs.__setitem__("model_config", "[" * 30000), CorruptFile, "model_config: is not JSON"),
    "no configuration": (lambda f: f.attrs.__setitem__("model_config", "[]"), CorruptFile, "no Keras configuration"),
    "garbled": (
        lambda f: _config(f, lambda k: k[1].pop("config")),
        CorruptFile,
        "a Keras configuration that does not hold together",
    ),
    "loop": (
        lambda f: _config(f, lambda k: k[1].update(inbound_nodes=[[["dense_1", 0, 0, {}]]])),
        GraphError,
        "dense_0: reads a value that nothing computes",
    ),
    "never called": (
        lambda f: _config(f, lambda k: k[2].update(inbound_nodes=[])),
        CorruptFile,
        "layer 'dense_1': is called on nothing",
    ),
    "training mode": (
        lambda f: _config(f, lambda k: k[1].update(inbound_nodes=[[["x", 0, 0, {"training": True}]]])),
        UnsupportedOp,
        "layer 'dense_0' is called with training=True",
    ),
    "no such output": (
        lambda f: _config(f, lambda k: k[2].update(inbound_nodes=[[["dense_0", 0, 1, {}]]])),
        CorruptFile,
        "layer 'dense_0': has no output number 1",
    ),
    "whole numbers": (
        lambda f: (f["model_weights/dense_1/dense_1"].__delitem__("bias:0"),
                   f["model_weights/dense_1/dense_1"].create_dataset("bias:0", data=np.zeros(5, "i4"))),
        CorruptFile,
        "holds int32, not floating point numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_layer_in_one_line(tmp_path, fault):
    change, error, words = FAULTS[fault]
    path = broken(tmp_path, change)
    with pytest.raises(error, match=words) as caught:
        formats.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) <= 2


def test_no_matched_parameter_is_an_error(tmp_path):
    layers = [kf.inp("x", 3), kf.layer("Flatten", "f", "x")]
    with pytest.raises(CorruptFile, match="not one parameter"):
        formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["f"]), layers))


@pytest.mark.parametrize("cls", ["MyAttention", "ConvLSTM2D", "SpectralNormalization"])
def test_unknown_layers_are_refused_by_name(tmp_path, cls):
    layers = [kf.inp("x", 3), kf.dense("d", "x", 3, 3), kf.layer(cls, "odd", "d")]
    with pytest.raises(UnsupportedOp, match=f"layer 'odd' of class {cls} is not supported"):
        formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["odd"]), layers))


def test_a_custom_class_may_not_hide_behind_a_known_name(tmp_path):
    layers = [kf.inp("x", 3), kf.dense("d", "x", 3, 3)]
    layers[1]["registered_name"] = "mine>Dense"
    with pytest.raises(UnsupportedOp, match="layer 'd' of class mine>Dense"):
        formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["d"]), layers))


def test_weights_of_the_model_itself_are_told(tmp_path):
    path = kf.mlp(tmp_path / "a.h5")
    with h5py.File(path, "r+") as f:
        top = f.create_group("model_weights/top_level_model_weights")
        top.attrs["weight_names"] = np.zeros(0)
    assert formats.read(path).notes == ()
    with h5py.File(path, "r+") as f:
        top = f["model_weights/top_level_model_weights"]
        top["scale:0"], top.attrs["weight_names"] = np.ones(2), [b"scale:0"]
    assert formats.read(path).notes == ("weights of the model itself, in no layer and left as they are: 1",)


@pytest.mark.parametrize(("version", "backend", "flipped"), [("2.3.1", "theano", True), ("2.3.1", "tensorflow", False),
                                                             (None, None, False), ("1.2.2", None, False)])  # fmt: skip
def test_theanos_convolutions_are_turned(tmp_path, version, backend, flipped):
    k = RNG.standard_normal((3, 2, 2, 4)).astype("f4")
    c = kf.layer("Conv2D", "c", "x", {"kernel": k}, filters=4, kernel_size=[3, 2], use_bias=False)
    layers = [kf.inp("x", 5, 5, 2), c]
    run = formats.read(
        kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["c"]), layers, version=version, backend=backend)
    )
    wanted = (k[::-1, ::-1] if flipped else k).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(run.network.tensors["c/kernel"], wanted)
    assert any("does not record its backend" in note for note in run.notes) == (backend is None)
    out = tmp_path / "b.h5"
    formats.write(run, out)
    with h5py.File(out) as f:
        np.testing.assert_array_equal(f["model_weights/c/c/kernel:0"][()], k)


def test_checkpoints_are_for_canons_own_files(tmp_path):
    with pytest.raises(CanonError, match="no checkpoint '3'"):
        formats.read(kf.mlp(tmp_path / "a.h5"), checkpoint="3")
