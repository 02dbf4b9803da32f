"""Which ops each Keras layer becomes, in Keras 2's and Keras 1's words."""

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, ShapeConflict, UnsupportedOp

RNG = np.random.default_rng(2)


def one(tmp_path, shape, cls, w=None, inputs=1, name="l", **kw):
    """The ops of a model of one layer (and, for a weight, a dense one behind a flatten)."""
    save = {k: kw.pop(k) for k in ("version", "backend") if k in kw}
    heads = [kf.inp(f"x{i}", *shape) for i in range(inputs)]
    names = [k["name"] for k in heads]
    layers = [*heads, kf.layer(cls, name, names, w, **kw), kf.layer("Flatten", "f", name)]
    if not w:
        layers.append(kf.dense("out", names[0], shape[-1], 2, "linear"))
    ends = ["f"] if w else ["f", "out"]
    path = kf.save(tmp_path / "a.h5", kf.functional(layers, names, ends), layers, **save)
    run = formats.read(path)
    return [op for op in run.network.ops if op.name.split("/")[0] == name], run


def rand(*shape):
    return RNG.standard_normal(shape).astype("f4")


@pytest.mark.parametrize(
    ("cls", "cfg", "kind", "attrs"),
    [
        ("Activation", {"activation": "relu"}, "relu", {}),
        ("Activation", {"activation": "linear"}, "linear", {}),
        ("Activation", {"activation": "swish"}, "silu", {}),
        ("Activation", {"activation": "softmax"}, "softmax", {"axis": -1}),
        ("Activation", {"activation": "hard_sigmoid"}, "hard_sigmoid", {"slope": 0.2}),
        ("Activation", {"activation": "gelu"}, "gelu", {"approximate": False}),
        ("Activation", {"activation": "relu6"}, "relu6", {"cap": 6.0}),
        ("ReLU", {}, "relu", {}),
        ("ReLU", {"max_value": None, "negative_slope": 0.0, "threshold": 0.0}, "relu", {}),
        ("ReLU", {"max_value": 6.0}, "relu6", {"cap": 6.0}),
        ("ReLU", {"negative_slope": [0.1]}, "leaky_relu", {"alpha": 0.1}),
        ("LeakyReLU", {}, "leaky_relu", {"alpha": 0.3}),
        ("LeakyReLU", {"alpha": {"type": "ndarray", "value": 0.2}}, "leaky_relu", {"alpha": 0.2}),
        ("LeakyReLU", {"negative_slope": 0.1}, "leaky_relu", {"alpha": 0.1}),
        ("LeakyReLU", {"alpha": 0.0}, "relu", {}),
        ("ELU", {"alpha": 0.5}, "elu", {"alpha": 0.5}),
        ("Softmax", {"axis": 1}, "softmax", {"axis": 0}),
        ("Activation", {"activation": "exponential"}, "exp", {}),
        ("Activation", {"activation": "mine"}, "opaque", {"class_name": "mine", "shape": [4, 4, 4]}),
        (
            "ReLU",
            {"max_value": 6, "negative_slope": 0.1},
            "general_relu",
            {"negative_slope": 0.1, "threshold": 0.0, "max_value": 6.0},
        ),
        ("ThresholdedReLU", {"theta": 0.5}, "thresholded_relu", {"theta": 0.5}),
        ("Permute", {"dims": [3, 1, 2]}, "permute", {"dims": [2, 0, 1]}),
        ("Cropping2D", {"cropping": [[1, 0], [0, 1]]}, "cropping", {"cropping": [[1, 0], [0, 1]], "channels": "last"}),
        ("UpSampling2D", {"size": 2}, "upsampling", {"size": [2, 2], "channels": "last", "interpolation": "nearest"}),
        ("RandomFlip", {"mode": "horizontal"}, "dropout", {}),
        ("Softmax", {"axis": [-1]}, "softmax", {"axis": -1}),
        ("Dropout", {"rate": 0.5}, "dropout", {}),
        ("SpatialDropout2D", {"rate": 0.5}, "dropout", {}),
        ("GaussianNoise", {"stddev": 1.0}, "dropout", {}),
        ("ActivityRegularization", {}, "dropout", {}),
        ("Reshape", {"target_shape": [8, -1]}, "reshape", {"shape": [8, -1]}),
        ("Flatten", {"data_format": "channels_first"}, "flatten", {"channels": "first"}),
        (
            "MaxPooling2D",
            {"pool_size": [2, 2], "strides": None, "padding": "same"},
            "max_pool",
            {"pool": [2, 2], "strides": [2, 2], "padding": "same", "channels": "last"},
        ),
        (
            "AveragePooling2D",
            {"pool_size": 3, "strides": [1, 2], "data_format": "channels_first"},
            "avg_pool",
            {"pool": [3, 3], "strides": [1, 2], "padding": "valid", "channels": "first"},
        ),
        ("GlobalAveragePooling2D", {}, "global_avg_pool", {"channels": "last", "keepdims": False}),
        ("GlobalMaxPooling2D", {"keepdims": True}, "global_max_pool", {"channels": "last", "keepdims": True}),
        ("ZeroPadding2D", {"padding": 2}, "zero_padding", {"padding": [[2, 2], [2, 2]], "channels": "last"}),
        ("ZeroPadding2D", {"padding": [1, 2]}, "zero_padding", {"padding": [[1, 1], [2, 2]], "channels": "last"}),
        (
            "ZeroPadding2D",
            {"padding": [[1, 2], [3, 4]]},
            "zero_padding",
            {"padding": [[1, 2], [3, 4]], "channels": "last"},
        ),
    ],
)
def test_layers_without_weights(tmp_path, cls, cfg, kind, attrs):
    (op,), _ = one(tmp_path, (4, 4, 4), cls, **cfg)
    assert (op.kind, op.name, op.output, dict(op.attrs)) == (kind, "l", "l", attrs)


def test_one_dimensional_layers(tmp_path):
    (op,), _ = one(tmp_path, (8, 3), "MaxPooling1D", pool_size=2, strides=[1])
    assert op.attrs == {"pool": [2], "strides": [1], "padding": "valid", "channels": "last"}
    (op,), _ = one(tmp_path, (8, 3), "ZeroPadding1D", padding=[1, 2])
    assert op.attrs["padding"] == [[1, 2]]
    (op,), _ = one(tmp_path, (8, 3), "GlobalAveragePooling1D")
    assert op.kind == "global_avg_pool"


@pytest.mark.parametrize(("cls", "kind"), [("Add", "add"), ("Multiply", "multiply"), ("Concatenate", "concat")])
def test_joining_layers(tmp_path, cls, kind):
    (op,), _ = one(tmp_path, (4, 3), cls, inputs=2, **({"axis": 1} if kind == "concat" else {}))
    assert (op.kind, op.inputs) == (kind, ("x0", "x1"))
    assert op.attrs == ({"axis": 0} if kind == "concat" else {})


@pytest.mark.parametrize(
    ("cls", "cfg", "words"),
    [
        ("Activation", {"activation": [1]}, "an activation that is no name"),
        ("UpSampling2D", {"interpolation": "bicubic"}, "interpolation='bicubic'"),
        ("Permute", {"dims": [1, 1, 2]}, r"dims=\[1, 1, 2\]"),
        ("Cropping2D", {"cropping": [1, 2, 3]}, r"cropping=\[1, 2, 3\]"),
        ("Softmax", {"axis": [1, 2]}, r"axis=\[1, 2\]"),
        ("Concatenate", {"axis": 0}, "axis=0"),
        ("MaxPooling2D", {"pool_size": 2, "padding": "odd"}, "padding='odd'"),
        ("MaxPooling2D", {"pool_size": 2, "data_format": "odd"}, "data_format='odd'"),
        ("MaxPooling2D", {"pool_size": [2, 2, 2]}, "for 2 spatial axes"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, cls, cfg, words):
    with pytest.raises(CanonError, match=words) as caught:
        one(tmp_path, (4, 4, 4), cls, inputs=2 if cls == "Concatenate" else 1, **cfg)
    assert "layer 'l'" in str(caught.value)


def test_dense_and_its_activation(tmp_path):
    ops, run = one(tmp_path, (5, 3), "Dense", {"kernel": rand(3, 2)}, units=2, use_bias=False, activation="tanh")
    assert [(op.kind, op.name, op.output) for op in ops] == [("dense", "l", "l/pre"), ("tanh", "l/tanh", "l")]
    assert run.network.shapes["l"] == (5, 2)


@pytest.mark.parametrize("first", [False, True])
def test_convolution(tmp_path, first):
    k = rand(3, 2, 4, 6)
    shape = (4, 9, 8) if first else (9, 8, 4)
    (op,), run = one(
        tmp_path, shape, "Conv2D", {"kernel": k, "bias": rand(6)}, filters=6, kernel_size=[3, 2], strides=[2, 1],
        padding="same", dilation_rate=[1, 1], data_format="channels_first" if first else "channels_last",
    )  # fmt: skip
    assert op.attrs == {
        "strides": [2, 1], "dilation": [1, 1], "padding": "same", "channels": "first" if first else "last"
    }  # fmt: skip
    np.testing.assert_array_equal(run.network.tensors["l/kernel"], k.transpose(3, 2, 0, 1))
    assert np.shares_memory(run.network.tensors["l/kernel"], run.network.tensors["l/kernel"].base)  # a view
    assert run.network.shapes["l"] == ((6, 5, 8) if first else (5, 8, 6))


def test_causal_convolution_and_groups(tmp_path):
    (op,), _ = one(tmp_path, (9, 2), "Conv1D", {"kernel": rand(3, 2, 4)}, filters=4, kernel_size=3,
                   padding="causal", use_bias=False)  # fmt: skip
    assert op.attrs["padding"] == "causal"
    (op,), _ = one(tmp_path, (9, 2), "Conv1D", {"kernel": rand(3, 1, 4)}, filters=4, kernel_size=3, groups=2, use_bias=False)
    assert (op.kind, op.attrs["groups"]) == ("grouped_conv", 2)
    with pytest.raises(ShapeConflict, match=r"its kernel is stored as \(3, 3, 4\), .* asks for \(3, 2, 4\)"):
        one(tmp_path, (9, 2), "Conv1D", {"kernel": rand(3, 3, 4)}, filters=4, kernel_size=3, use_bias=False)


def test_depthwise_convolution(tmp_path):
    k = rand(3, 3, 2, 4)
    (op,), run = one(tmp_path, (5, 5, 2), "DepthwiseConv2D", {"depthwise_kernel": k, "bias": rand(8)},
                     kernel_size=[3, 3], depth_multiplier=4, padding="same")  # fmt: skip
    assert (op.kind, dict(op.params)) == ("depthwise_conv", {"kernel": "l/depthwise_kernel", "bias": "l/bias"})
    found = run.network.tensors["l/depthwise_kernel"]
    assert found.shape == (8, 1, 3, 3)
    for c in range(2):
        for m in range(4):
            np.testing.assert_array_equal(found[c * 4 + m, 0], k[:, :, c, m])


def test_separable_convolution(tmp_path):
    d, p = rand(3, 3, 2, 2), rand(1, 1, 4, 5)
    w = {"depthwise_kernel": d, "pointwise_kernel": p, "bias": rand(5)}
    ops, run = one(tmp_path, (6, 6, 2), "SeparableConv2D", w, filters=5, kernel_size=[3, 3], strides=[2, 2],
                   depth_multiplier=2, activation="relu")  # fmt: skip
    assert [(op.kind, op.name, op.output) for op in ops] == [
        ("depthwise_conv", "l/depthwise", "l/depthwise"), ("conv", "l", "l/pre"), ("relu", "l/relu", "l")
    ]  # fmt: skip
    assert ops[0].attrs["strides"] == [2, 2]
    assert ops[1].attrs["strides"] == [1, 1]
    np.testing.assert_array_equal(run.network.tensors["l/pointwise_kernel"], p.transpose(3, 2, 0, 1))
    w = {"depthwise_kernel": rand(3, 2, 1), "pointwise_kernel": rand(1, 2, 5)}
    ops, run = one(tmp_path, (6, 2), "SeparableConv1D", w, filters=5, kernel_size=[3], use_bias=False)
    assert run.network.shapes["l"] == (4, 5)


@pytest.mark.parametrize(("axis", "wanted"), [(-1, -1), (3, 2), ([3], 2), (1, 0)])
def test_batch_norm(tmp_path, axis, wanted):
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    (op,), _ = one(tmp_path, (4, 4, 4), "BatchNormalization", {n: rand(4) for n in names}, axis=axis, epsilon=1e-5)
    assert op.attrs == {"axis": wanted, "eps": 1e-5}
    assert dict(op.params) == dict(zip(("gamma", "beta", "mean", "variance"), (f"l/{n}" for n in names), strict=True))


def test_batch_norm_without_scale_and_centre(tmp_path):
    w = {n: rand(3) for n in ("moving_mean", "moving_variance")}
    (op,), _ = one(tmp_path, (4, 3), "BatchNormalization", w, scale=False, center=False)
    assert set(op.params) == {"mean", "variance"}
    with pytest.raises(UnsupportedOp, match="renorm=True"):
        one(tmp_path, (4, 3), "BatchNormalization", w, scale=False, center=False, renorm=True)


@pytest.mark.parametrize(("shared", "shape"), [(None, (4, 4, 3)), ([1, 2], (1, 1, 3)), ([3], (4, 4, 1))])
def test_prelu(tmp_path, shared, shape):
    (op,), run = one(tmp_path, (4, 4, 3), "PReLU", {"alpha": rand(*shape)}, shared_axes=shared)
    assert op.kind == "prelu"
    assert run.network.tensors["l/alpha"].shape == shape


@pytest.mark.parametrize(("sequences", "shape"), [(True, (7, 4)), (False, (4,))])
@pytest.mark.parametrize(("cls", "gates"), [("LSTM", 4), ("GRU", 3), ("SimpleRNN", 1)])
def test_recurrent_layers(tmp_path, cls, gates, sequences, shape):
    w = {"kernel": rand(3, 4 * gates), "recurrent_kernel": rand(4, 4 * gates), "bias": rand(4 * gates)}
    (op,), run = one(tmp_path, (7, 3), cls, w, units=4, return_sequences=sequences, activation="tanh",
                     recurrent_activation="hard_sigmoid")  # fmt: skip
    assert (op.kind, run.network.shapes["l"]) == ({"SimpleRNN": "simple_rnn"}.get(cls, cls.lower()), shape)
    assert op.attrs["return_sequences"] is sequences
    assert op.attrs.get("recurrent_activation", {"slope": 0.2})["slope"] == 0.2
    np.testing.assert_array_equal(run.network.tensors["l/kernel"], w["kernel"].T)


def test_a_recurrent_layer_with_states_or_a_strange_activation_is_opaque(tmp_path):
    w = {"kernel": rand(3, 16), "recurrent_kernel": rand(4, 16), "bias": rand(16)}
    ops, run = one(tmp_path, (7, 3), "LSTM", w, units=4, return_state=True, activation="tanh",
                   kernel_initializer={"class_name": "Zeros"})  # fmt: skip
    assert [(op.kind, op.output) for op in ops] == [("opaque", "l"), ("opaque", "l/state_h"), ("opaque", "l/state_c")]
    assert ops[0].attrs["config"] == {"activation": "tanh", "return_state": True, "units": 4}
    assert run.notes == ("layer 'l' (LSTM) is opaque: its units are not moved",)
    (op,), _ = one(tmp_path, (7, 3), "LSTM", w, units=4, activation="mine")
    assert op.kind == "opaque"


def test_embedding(tmp_path):
    (op,), run = one(tmp_path, (7,), "Embedding", {"embeddings": rand(20, 4)}, input_dim=20, output_dim=4)
    assert (op.kind, run.network.shapes["l"]) == ("embedding", (7, 4))


# Keras 1


def keras_1(tmp_path, shape, cls, w, **cfg):
    ops, run = one(tmp_path, shape, cls, {f"l_{k}": v for k, v in w.items()}, version="1.2.2", backend=None, **cfg)
    return ops, run


def test_keras_1_dense_and_convolution(tmp_path):
    ops, _ = keras_1(tmp_path, (3,), "Dense", {"W": rand(3, 2), "b": rand(2)}, output_dim=2,
                     activation="relu", bias=True)  # fmt: skip
    assert [op.kind for op in ops] == ["dense", "relu"]
    k = rand(3, 2, 4, 6)
    cfg = {"nb_filter": 6, "nb_row": 3, "nb_col": 2, "border_mode": "same", "subsample": [1, 2], "bias": False}
    (op,), run = keras_1(tmp_path, (9, 8, 4), "Convolution2D", {"W": k}, dim_ordering="tf", **cfg)
    assert op.attrs == {"strides": [1, 2], "dilation": [1, 1], "padding": "same", "channels": "last"}
    np.testing.assert_array_equal(run.network.tensors["l/kernel"], k.transpose(3, 2, 0, 1))
    th = rand(6, 4, 3, 2)
    (op,), run = keras_1(tmp_path, (4, 9, 8), "Convolution2D", {"W": th}, dim_ordering="th", **cfg)
    assert op.attrs["channels"] == "first"
    np.testing.assert_array_equal(run.network.tensors["l/kernel"], th)
    with pytest.raises(UnsupportedOp, match="dim_ordering 'default'"):
        keras_1(tmp_path, (4, 9, 8), "Convolution2D", {"W": th}, dim_ordering="default", **cfg)


def test_keras_1_one_dimensional_convolutions_had_two_layouts(tmp_path):
    k = rand(5, 3, 4)
    cfg = {"nb_filter": 4, "filter_length": 5, "subsample_length": 2, "border_mode": "valid"}
    for stored in (k[:, None], k.transpose(2, 1, 0)[..., None]):
        (op,), run = keras_1(tmp_path, (9, 3), "Convolution1D", {"W": stored, "b": rand(4)}, **cfg)
        assert op.attrs["strides"] == [2]
        np.testing.assert_array_equal(run.network.tensors["l/kernel"], k.transpose(2, 1, 0))
        out = tmp_path / "b.h5"
        formats.write(run, out)
        np.testing.assert_array_equal(formats.read(out).network.tensors["l/kernel"], k.transpose(2, 1, 0))


def test_keras_1_batch_norm_calls_its_variance_std(tmp_path):
    names = ("gamma", "beta", "running_mean", "running_std")
    (op,), _ = keras_1(tmp_path, (4, 3), "BatchNormalization", {n: rand(3) for n in names}, mode=0, axis=-1)
    assert op.params["variance"] == "l/moving_variance"
    with pytest.raises(UnsupportedOp, match="mode 1"):
        keras_1(tmp_path, (4, 3), "BatchNormalization", {n: rand(3) for n in names}, mode=1, axis=-1)


@pytest.mark.parametrize(("mode", "kind"), [("sum", "add"), ("mul", "multiply"), ("concat", "concat")])
def test_keras_1_merge(tmp_path, mode, kind):
    (op,), _ = one(tmp_path, (4, 3), "Merge", inputs=2, mode=mode, concat_axis=-1, version="1.2.2", backend=None)
    assert op.kind == kind
    with pytest.raises(UnsupportedOp, match="Merge with mode 'dot'"):
        one(tmp_path, (4, 3), "Merge", inputs=2, mode="dot", version="1.2.2", backend=None)


def test_keras_1_lstm_of_twelve_tensors(tmp_path):
    w = {}
    for gate in "icfo":
        w |= {f"W_{gate}": rand(3, 4), f"U_{gate}": rand(4, 4), f"b_{gate}": rand(4)}
    (op,), run = keras_1(tmp_path, (7, 3), "LSTM", w, output_dim=4, return_sequences=True)
    assert (op.kind, run.network.shapes["l"]) == ("lstm", (7, 4))
    np.testing.assert_array_equal(run.network.tensors["l/kernel"], np.concatenate([w[f"W_{g}"].T for g in "ifco"]))
    moved = run.with_network(run.network.with_tensors({n: t + 1 for n, t in run.network.tensors.items()}))
    formats.write(moved, tmp_path / "b.h5", source=run.path)
    with h5py.File(tmp_path / "b.h5") as f:
        for name, values in w.items():
            np.testing.assert_array_equal(f[f"model_weights/l/l/l_{name}:0"], values + 1)
