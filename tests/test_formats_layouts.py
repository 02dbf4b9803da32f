"""Layouts that real frameworks write, made again by h5py alone: wrappers, recurrent layers of all ages, Keras 0.x."""

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile, UnsupportedOp
from canon.forward import forward

RNG = np.random.default_rng(7)


def rand(*shape):
    return RNG.standard_normal(shape).astype("f4")


def cell(gates, inner, units):
    return {"kernel": rand(inner, gates * units), "recurrent_kernel": rand(units, gates * units), "bias": rand(gates * units)}


def wrapped(cls, name, src, w, inner_cls, inner, **cfg):
    layer = kf.layer(cls, name, src, w, layer={"class_name": inner_cls, "config": {"name": "inner", **inner}}, **cfg)
    return {**layer, "nested": True}


def read(tmp_path, layers, outputs, inputs=("x",), **kw):
    return formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, list(inputs), outputs), layers, **kw))


def kinds(run):
    return [op.kind for op in run.network.ops]


# recurrent layers


@pytest.mark.parametrize("merge", ["concat", "sum", "mul", "ave", None])
def test_bidirectional(tmp_path, merge):
    a, b = cell(4, 3, 2), cell(4, 3, 2)
    w = {f"bi/{way}_lstm_1/lstm_cell/{r}": v for way, own in (("forward", a), ("backward", b)) for r, v in own.items()}
    inner = {"units": 2, "return_sequences": True, "use_bias": True, "activation": "tanh", "recurrent_activation": "sigmoid"}
    layers = [kf.inp("x", 5, 3), wrapped("Bidirectional", "bi", "x", w, "LSTM", inner, merge_mode=merge)]
    run = read(tmp_path, layers, ["bi"] if merge else ["bi", ("bi", 0, 1)])
    assert kinds(run)[:3] == ["lstm", "lstm", "reverse"]
    np.testing.assert_array_equal(run.network.tensors["bi/backward/kernel"], b["kernel"].T)
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    out = [forward(run.network, {"x": x})[v] for v in run.network.outputs]

    def alone(w, x):
        layers = [kf.inp("x", 5, 3), kf.layer("LSTM", "l", "x", w, **inner)]
        return forward(read(tmp_path, layers, ["l"]).network, {"x": x})["l"]

    ahead, back = alone(a, x), alone(b, x[:, ::-1])[:, ::-1]
    wanted = {"concat": [np.concatenate([ahead, back], -1)], "sum": [ahead + back], "mul": [ahead * back],
              "ave": [(ahead + back) / 2], None: [ahead, back]}[merge]  # fmt: skip
    for got, want in zip(out, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def by_rows(kernel, gates):
    """A kernel as CuDNN keeps it: the rows of each gate's transposed block, in a block of the same shape."""
    return np.hstack([k.reshape(k.shape, order="F").T.reshape(k.shape, order="C") for k in np.hsplit(kernel, gates)])


@pytest.mark.parametrize(("cls", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_the_layers_of_cudnn(tmp_path, cls, gates):
    w, u = cell(gates, 3, 2), rand(2, gates * 2)
    w["bias"] = rand(2, gates * 2)
    fast = {"kernel": by_rows(w["kernel"], gates), "bias": w["bias"].reshape(-1), "recurrent_kernel": np.hstack(
        [k.T for k in np.hsplit(u, gates)])}  # fmt: skip
    fast = {k: fast[k] for k in ("kernel", "recurrent_kernel", "bias")}
    plain = {**w, "recurrent_kernel": u, "bias": w["bias"].sum(axis=0) if cls == "LSTM" else w["bias"]}
    x = np.random.default_rng(0).standard_normal((2, 5, 3))

    def run(cls, w, **cfg):
        return read(tmp_path, [kf.inp("x", 5, 3), kf.layer(cls, "l", "x", w, units=2, **cfg)], ["l"])

    one = run(f"CuDNN{cls}", fast)
    two = run(cls, plain, recurrent_activation="sigmoid", **({"reset_after": True} if cls == "GRU" else {}))
    np.testing.assert_allclose(*(forward(r.network, {"x": x})["l"] for r in (one, two)), rtol=1e-6)
    one = run(f"CuDNN{cls}", fast)
    formats.write(one, tmp_path / "b.h5")
    again = formats.read(tmp_path / "b.h5")
    np.testing.assert_allclose(forward(again.network, {"x": x})["l"], forward(one.network, {"x": x})["l"], rtol=1e-6)


def test_a_decoder_that_starts_from_given_states_is_opaque(tmp_path):
    enc = kf.layer("LSTM", "enc", "x", cell(4, 3, 2), units=2, return_state=True)
    dec = kf.layer("LSTM", "dec", ["y", ("enc", 0, 1), ("enc", 0, 2)], cell(4, 3, 2), units=2, return_sequences=True)
    run = read(tmp_path, [kf.inp("x", 5, 3), kf.inp("y", 4, 3), enc, dec], ["dec"], ["x", "y"])
    assert kinds(run) == ["opaque"] * 4
    assert run.network.shapes["dec"] == (4, 2)
    assert run.network.writer["dec"].inputs == ("y", "enc/state_h", "enc/state_c")


def test_masks_go_along_and_stop(tmp_path):
    layers = [
        kf.inp("x", 5, 3),
        kf.layer("Masking", "m", "x", mask_value=1.0),
        kf.dense("d", "m", 3, 3),
        kf.layer("LSTM", "a", "d", cell(4, 3, 2), units=2, return_sequences=True),
        kf.layer("GlobalAveragePooling1D", "g", "a"),
        kf.layer("Conv1D", "c", "a", {"kernel": rand(1, 2, 2)}, filters=2, kernel_size=1, use_bias=False),
        kf.layer("LSTM", "b", "c", cell(4, 2, 2), units=2),
    ]
    run = read(tmp_path, layers, ["g", "b"])
    writer = run.network.writer
    assert writer["a"].inputs == ("d", "m/mask")
    assert (writer["g"].kind, writer["g"].inputs) == ("masked_avg_pool", ("a", "m/mask"))
    assert writer["b"].inputs == ("c",)  # a convolution hands no mask on
    other = [kf.inp("x", 5, 3), kf.layer("Masking", "m", "x", mask_value=1.0), kf.layer("Masking", "n", "x", mask_value=2.0),
             kf.layer("Add", "s", ["m", "n"]), kf.layer("LSTM", "a", "s", cell(4, 3, 2), units=2)]  # fmt: skip
    with pytest.raises(UnsupportedOp, match=r"layer 'a' .* masks differ"):
        read(tmp_path, other, ["a"])


# wrappers


def test_a_model_at_every_step(tmp_path):
    inner = kf.functional(
        [kf.inp("i", 6, 6, 2),
         kf.layer("Conv2D", "c", "i", filters=3, kernel_size=3, activation="relu", use_bias=True),
         kf.layer("Flatten", "f", "c"), kf.dense("d", "f", 48, 4)], ["i"], ["d"], name="inner")  # fmt: skip
    w = {"inner/c/kernel": rand(3, 3, 2, 3), "inner/c/bias": rand(3), "inner/d/kernel": rand(48, 4), "inner/d/bias": rand(4)}
    layers = [kf.inp("x", 5, 6, 6, 2), {**kf.layer("TimeDistributed", "td", "x", w, layer=inner), "nested": True}]
    run = read(tmp_path, layers, ["td"])
    assert kinds(run) == ["time_distributed", "relu", "time_distributed", "dense", "relu"]
    assert run.network.shapes[run.network.outputs[0]] == (5, 4)
    alone = kf.functional([kf.inp("x", 6, 6, 2), kf.nested(inner, "td", ["x"], w)], ["x"], ["td"])
    one = formats.read(kf.save(tmp_path / "b.h5", alone, [{"name": "td", "w": w, "nested": True}]))
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 6, 2))
    (many,), (single,) = kf.run(run.network, x), kf.run(one.network, x[:, 3])
    np.testing.assert_allclose(many[:, 3], single, rtol=1e-12)


def test_several_devices(tmp_path):
    inner = kf.functional([kf.inp("i", 4), kf.dense("d", "i", 4, 2)], ["i"], ["d"], name="inner", cls="Model")
    w = {"d/kernel": rand(4, 2), "d/bias": rand(2)}
    slices = [kf.layer("Lambda", f"l{i}", "x", arguments={"i": i, "parts": 2}, function=["", None, None]) for i in (0, 1)]
    whole = [kf.inp("x", 4), *slices, kf.nested(inner, "inner", [["l0"], ["l1"]], w),
             kf.layer("Concatenate", "d", [("inner", 1, 0), ("inner", 2, 0)], axis=0)]  # fmt: skip
    whole[3]["config"]["name"] = "inner"
    run = read(tmp_path, whole, ["d"])
    assert (kinds(run), run.network.inputs) == (["dense", "relu"], {"i": (4,)})
    assert run.notes == ("the model was spread over several devices: what each of them runs is compared",)


def test_models_two_levels_deep_with_names_used_twice(tmp_path):
    low = kf.functional([kf.inp("i", 3), kf.dense("d", "i", 3, 3)], ["i"], ["d"], name="low")
    mid_layers = [kf.inp("j", 3), kf.dense("d", "j", 3, 3), kf.nested(low, "low", ["d"], {}), kf.dense("e", "low", 3, 3)]
    mid = kf.functional(mid_layers, ["j"], ["e"], name="mid")
    w = {f"{n}/{r}": v for n in ("d", "low/d", "e") for r, v in (("kernel", rand(3, 3)), ("bias", rand(3)))}
    layers = [kf.inp("x", 3), kf.nested(mid, "mid", ["x"], w), kf.dense("d", "mid", 3, 2)]
    run = read(tmp_path, layers, ["d"], suffix="")
    for layer, stored in (("mid/d", "d"), ("mid/low/d", "low/d"), ("mid/e", "e")):
        np.testing.assert_array_equal(run.network.tensors[f"{layer}/kernel"], w[f"{stored}/kernel"].T)


def test_names_of_the_scope_that_built_them_and_half_precision(tmp_path):
    """As Keras 3 writes a model of float16 into legacy HDF5: the model's name stands in every weight's."""
    layers = [kf.inp("x", 4), kf.dense("d", "x", 4, 3, dtype="float16")]
    w = {f"d/sequential_3/d/{r}": v for r, v in layers[1]["w"].items()}
    run = read(tmp_path, [layers[0], {**layers[1], "w": w, "nested": True}], ["d"], version="3.10.0", suffix="")
    assert (run.format, run.network.dtype) == ("keras-3 hdf5", np.float16)


def test_two_weights_of_one_short_name_are_an_error_that_names_the_layer(tmp_path):
    layers = [kf.inp("x", 4), kf.dense("d", "x", 4, 3)]
    path = kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["d"]), layers)
    with h5py.File(path, "r+") as f:
        f["model_weights/d"].attrs["weight_names"] = [b"d/kernel:0", b"d/kernel:0"]
    with pytest.raises(CorruptFile, match="layer 'd': lists the weight 'd/kernel:0' twice"):
        formats.read(path)


# layers that canon does not know


def test_a_lambdas_shape_is_what_its_readers_ask_for(tmp_path):
    layers = [kf.inp("x", 4), kf.layer("Lambda", "l", "x"), kf.layer("Dropout", "p", "l", rate=0.5), kf.dense("d", "p", 7, 2)]
    run = read(tmp_path, layers, ["d"])
    assert run.network.shapes["l"] == (7,)
    layers[1]["config"]["output_shape"] = [5, 2]
    with pytest.raises(CanonError, match="layer 'd'"):
        read(tmp_path, layers, ["d"])


def test_a_custom_merge_of_alike_values_keeps_their_shape(tmp_path):
    layers = [kf.inp("x", 4), kf.inp("y", 4), kf.layer("RandomAverage", "r", ["x", "y"], share=0.5), kf.dense("d", "x", 4, 2)]
    run = read(tmp_path, layers, ["r", "d"], ["x", "y"])
    op = run.network.writer["r"]
    assert (op.kind, op.attrs["class_name"], op.attrs["config"]) == ("opaque", "RandomAverage", {"share": 0.5})
    assert run.network.shapes["r"] == (4,)


def test_functions_of_tensorflow(tmp_path):
    layers = [kf.inp("x", 4), kf.layer("TFOpLambda", "s", "x", function="math.add"),
              kf.layer("TFOpLambda", "t", "s", function="math.multiply"), kf.dense("d", "t", 4, 2)]  # fmt: skip
    layers[1]["inbound_nodes"][0][0][3] = {"y": ["x", 0, 0], "name": None}
    layers[2]["inbound_nodes"][0][0][3] = {"y": 2.0, "name": None}
    run = read(tmp_path, layers, ["d"])
    assert kinds(run) == ["add", "opaque", "dense", "relu"]
    assert run.network.writer["t"].attrs["config"]["arguments"] == {"y": 2.0}


# Keras 1 and before


def test_keras_1_does_not_say_whether_kernels_are_flipped(tmp_path):
    k = rand(3, 3, 2, 4)
    cfg = {"nb_filter": 4, "nb_row": 3, "nb_col": 3, "border_mode": "valid", "subsample": [1, 1], "dim_ordering": "tf",
           "bias": False}  # fmt: skip
    layers = [kf.inp("x", 6, 6, 2), kf.layer("Convolution2D", "c", "x", {"c_W": k}, **cfg)]
    run = read(tmp_path, layers, ["c"], version="1.2.2", backend=None)
    (other,) = run.alternatives
    np.testing.assert_array_equal(other.tensors["c/kernel"], run.network.tensors["c/kernel"][:, :, ::-1, ::-1])
    assert not read(tmp_path, layers, ["c"], version="2.1.0", backend="theano").alternatives
    weights = kf.save(tmp_path / "w.h5", None, layers[1:], full=False, version="1.2.2", backend=None)
    assert len(formats.read(weights).alternatives) == 1


def test_keras_0_numbers_layers_and_parameters(tmp_path):
    w = [[rand(4, 3), rand(3)], [], [rand(3, 2), rand(2)]]
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.attrs["nb_layers"] = len(w)
        for k, params in enumerate(w):
            g = f.create_group(f"layer_{k}")
            g.attrs["nb_params"] = len(params)
            for i, value in enumerate(params):
                g[f"param_{i}"] = value
    run = formats.read(tmp_path / "a.h5", activation="relu")
    assert (run.graph, kinds(run)) == ("chain", ["dense", "relu", "dense"])
    np.testing.assert_array_equal(run.network.tensors["layer_2/kernel"], w[2][0].T)
    with h5py.File(tmp_path / "a.h5", "r+") as f:
        del f["layer_1"]
        for i in range(12):
            f[f"layer_1/param_{i}"] = rand(*[(3, 3), (3, 3), (3,)][i % 3])
    assert {"layer_1/W_f", "layer_1/b_o"} <= set(formats.read(tmp_path / "a.h5").network.tensors)
