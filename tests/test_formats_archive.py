"""Keras 3's layout of weights: archives (.keras), weights alone (.weights.h5), and what may be wrong with them."""

import io
import json
import zipfile
from itertools import pairwise

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile, UnknownFormat, UnsupportedOp
from canon.formats import common_zip

RNG = np.random.default_rng(5)


def rand(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


def stored(groups, root="layers"):
    """A weights file: path of a layer -> its variables in order."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f.create_group("vars").attrs["name"] = "model"
        for path, values in groups.items():
            held = f.create_group(f"{root}/{path}/vars")
            for i, value in enumerate(values):
                held[str(i)] = value
        f["optimizer/vars/0"] = np.int64(3)
    return raw.getvalue()


def archive(path, config, weights, version="3.10.0", name="model.weights.h5"):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("metadata.json", json.dumps({"keras_version": version}))
        out.writestr("config.json", json.dumps(config))
        out.writestr(name, weights)
    return path


def keras_3(cls, name, *src, **cfg):
    """An entry of Keras 3's dialect; src: (name, call) or a name."""
    refs = [s if isinstance(s, tuple) else (s, 0) for s in src]
    args = [{"class_name": "__keras_tensor__", "config": {"shape": [None], "keras_history": [*r, 0]}} for r in refs]
    node = {"args": [args] if len(args) > 1 else args, "kwargs": {}}
    return {"module": "keras.layers", "class_name": cls, "config": {"name": name, **cfg}, "registered_name": None,
            "name": name, "inbound_nodes": [node] if refs else []}  # fmt: skip


def model(layers, inputs, outputs):
    config = {"name": "model", "layers": layers, "input_layers": [[n, 0, 0] for n in inputs],
              "output_layers": [[n, 0, 0] for n in outputs]}  # fmt: skip
    return {"module": "keras", "class_name": "Functional", "config": config, "registered_name": "Functional"}


def mlp(n=12):
    """A chain of dense layers: more than ten, so that numbers and names sort unlike text."""
    layers, src = [keras_3("InputLayer", "x", batch_shape=[None, 4])], "x"
    for i in range(n):
        layers.append(keras_3("Dense", f"d{i}", src, units=4, activation="relu", use_bias=True))
        src = f"d{i}"
    weights = {"dense" if i == 0 else f"dense_{i}": (rand(4, 4), rand(4)) for i in range(n)}
    return model(layers, ["x"], [src]), weights


@pytest.mark.parametrize("root", ["layers", "_layer_checkpoint_dependencies"])
def test_layers_are_counted_by_class_and_not_by_name(tmp_path, root):
    config, weights = mlp()
    run = formats.read(archive(tmp_path / "a.keras", config, stored(weights, root)))
    assert (run.format, run.graph, run.notes) == ("keras-3 archive", "config", ())
    for i, (kernel, bias) in enumerate(weights.values()):
        np.testing.assert_array_equal(run.network.tensors[f"d{i}/kernel"], kernel.T)
        np.testing.assert_array_equal(run.network.tensors[f"d{i}/bias"], bias)


def test_variables_are_sorted_as_numbers_and_seeds_are_none(tmp_path):
    layers = [
        keras_3("InputLayer", "x", batch_shape=[None, 3, 2]),
        keras_3("Dropout", "drop", "x", rate=0.5),
        keras_3("Bidirectional", "bi", "drop", merge_mode="concat",
                layer={"module": "keras.layers", "class_name": "GRU",
                       "config": {"name": "gru", "units": 2, "reset_after": True, "use_bias": True}}),
        keras_3("TimeDistributed", "td", "bi",
                layer={"module": "keras.layers", "class_name": "Dense", "config": {"name": "in", "units": 2}}),
    ]  # fmt: skip
    layers[2]["config"]["layer"]["config"]["return_sequences"] = True
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f["layers/dropout/seed_generator/vars/0"] = np.zeros(2, "u4")
        for way in ("forward", "backward"):
            for i, shape in enumerate([(2, 6), (2, 6), (2, 6)]):
                f[f"layers/bidirectional/{way}_layer/cell/vars/{i}"] = rand(*shape)
        f["layers/time_distributed/layer/vars/0"], f["layers/time_distributed/layer/vars/1"] = rand(4, 2), rand(2)
    run = formats.read(archive(tmp_path / "a.keras", model(layers, ["x"], ["td"]), raw.getvalue()))
    assert [op.kind for op in run.network.ops] == ["dropout", "gru", "gru", "reverse", "concat", "dense"]
    assert run.network.shapes["td"] == (3, 2)


def test_a_model_inside_a_model(tmp_path):
    inner = model([keras_3("InputLayer", "i", batch_shape=[None, 4]), keras_3("Dense", "d", "i", units=4)], ["i"], ["d"])
    inner |= {"name": "inner", "inbound_nodes": keras_3("Dense", "_", "x")["inbound_nodes"]}
    layers = [keras_3("InputLayer", "x", batch_shape=[None, 4]), inner, keras_3("Dense", "d", "inner", units=2)]
    weights = {"functional/layers/dense": (rand(4, 4), rand(4)), "dense": (rand(4, 2), rand(2))}
    run = formats.read(archive(tmp_path / "a.keras", model(layers, ["x"], ["d"]), stored(weights)))
    assert [op.name for op in run.network.ops] == ["inner/d", "d"]


def test_masks_that_are_wired_in_by_hand(tmp_path):
    layers = [
        keras_3("InputLayer", "x", batch_shape=[None, 5, 3]),
        keras_3("Masking", "m", "x", mask_value=0.0),
        keras_3("NotEqual", "ne", "x"),
        keras_3("Any", "any", "ne", axis=-1, keepdims=False),
        keras_3("LSTM", "l", "m", units=2, use_bias=True, activation="tanh", recurrent_activation="sigmoid"),
    ]
    layers[2]["inbound_nodes"][0]["args"].append(0.0)
    mask = {"class_name": "__keras_tensor__", "config": {"shape": [None, 5], "keras_history": ["any", 0, 0]}}
    layers[4]["inbound_nodes"][0]["kwargs"] = {"training": False, "mask": mask}
    weights = stored({"lstm/cell": (rand(3, 8), rand(2, 8), rand(8))})
    run = formats.read(archive(tmp_path / "a.keras", model(layers, ["x"], ["l"]), weights))
    assert [op.kind for op in run.network.ops] == ["masking", "step_mask", "lstm"]
    assert run.network.writer["l"].inputs == ("m", "m/mask")
    layers[4]["inbound_nodes"][0]["kwargs"]["training"] = True
    with pytest.raises(UnsupportedOp, match="called with training=True"):
        formats.read(archive(tmp_path / "b.keras", model(layers, ["x"], ["l"]), weights))


def test_a_number_in_an_operation_makes_it_opaque(tmp_path):
    layers = [keras_3("InputLayer", "x", batch_shape=[None, 4]), keras_3("Dense", "d", "x", units=4),
              keras_3("Multiply", "twice", "d"), keras_3("Dense", "e", "twice", units=1)]  # fmt: skip
    layers[2]["inbound_nodes"][0]["args"].append(2.0)
    layers[3]["inbound_nodes"][0]["args"][0]["config"]["shape"] = [None, 4]
    weights = stored({"dense": (rand(4, 4), rand(4)), "dense_1": (rand(4, 1), rand(1))})
    run = formats.read(archive(tmp_path / "a.keras", model(layers, ["x"], ["e"]), weights))
    (op,) = [op for op in run.network.ops if op.kind == "opaque"]
    assert op.attrs["config"]["arguments"] == {"1": 2.0}


def test_bfloat16_is_widened_and_goes_back(tmp_path):
    kernel = rand(4, 4)
    bits = (kernel.view("u4") >> 16).astype("u2")
    config, weights = mlp(1)
    weights["dense"] = (bits.view("V2"), weights["dense"][1])
    path = archive(tmp_path / "a.keras", config, stored(weights))
    run = formats.read(path)
    np.testing.assert_array_equal(run.network.tensors["d0/kernel"], (bits.astype("u4") << 16).view("f4").T)
    assert [run.network.stored_type(name) for name in ("d0/kernel", "d0/bias")] == ["bfloat16", "float32"]
    formats.write(run, tmp_path / "b.keras")
    np.testing.assert_array_equal(formats.read(tmp_path / "b.keras").network.tensors["d0/kernel"],
                                  run.network.tensors["d0/kernel"])  # fmt: skip


def test_a_copy_keeps_the_rest_of_the_archive(tmp_path):
    config, weights = mlp(2)
    run = formats.read(archive(tmp_path / "a.keras", config, stored(weights)))
    moved = run.with_network(run.network.with_tensors({n: t + 1 for n, t in run.network.tensors.items()}))
    formats.write(moved, tmp_path / "b.keras", drop_optimizer=True)
    again = formats.read(tmp_path / "b.keras")
    for name, tensor in run.network.tensors.items():
        np.testing.assert_array_equal(again.network.tensors[name], tensor + 1)
    with zipfile.ZipFile(tmp_path / "b.keras") as made:
        assert json.loads(made.read("config.json")) == config
        with h5py.File(io.BytesIO(made.read("model.weights.h5"))) as f:
            assert "optimizer" not in f


# weights alone


def test_weights_alone_take_a_lent_configuration(tmp_path):
    config, weights = mlp()
    (tmp_path / "w").write_bytes(stored(weights))
    (tmp_path / "model.json").write_text(json.dumps(config), encoding="utf-8")
    run = formats.read(tmp_path / "w", architecture=tmp_path / "model.json")
    assert (run.format, run.graph, len(run.network.ops)) == ("keras-3 weights hdf5", "borrowed", 24)


def test_weights_alone_are_a_chain_where_one_order_fits(tmp_path):
    groups = {"conv2d": (rand(3, 3, 2, 5), rand(5)), "dense": (rand(20, 7), rand(7)), "dense_1": (rand(7, 3), rand(3)),
              "batch_normalization": [rand(5) for _ in range(4)], "flatten": ()}  # fmt: skip
    (tmp_path / "w").write_bytes(stored(groups))
    run = formats.read(tmp_path / "w", activation="relu")
    assert run.graph == "chain"
    assert [op.name for op in run.network.ops if op.params] == ["conv2d", "batch_normalization", "dense", "dense_1"]
    for name, value in {
        "dense_2": (rand(3, 3), rand(3)),
        "dense_3": (rand(3, 3), rand(3)),
        "conv2d_1": (rand(3, 3, 5, 5),),
    }.items():
        (tmp_path / "v").write_bytes(stored({**groups, name: value}))
        more = formats.read(tmp_path / "v")
        assert more.graph == ("none" if name == "conv2d_1" else "chain")  # two convolutions, and one norm of their width
    (tmp_path / "v").write_bytes(stored({**groups, "add": ()}))
    assert formats.read(tmp_path / "v").graph == "none"


def test_where_layers_without_weights_are_not_listed_equal_widths_prove_nothing(tmp_path):
    def write(*widths):
        with h5py.File(tmp_path / "w", "w") as f:
            for i, (a, b) in enumerate(pairwise(widths)):
                f[f"layers/dense{f'_{i}' if i else ''}/vars/0"] = rand(a, b)
        return formats.read(tmp_path / "w").graph

    assert write(4, 6, 5, 2) == "chain"
    assert write(4, 6, 6, 2) == "none"  # a sum of two values may hide between them


# what may be wrong


def broken(what, config, weights):
    if what == "a layer without its group":
        del weights["dense_1"]
    elif what == "too few variables":
        weights["dense"] = weights["dense"][:1]
    elif what == "another shape":
        weights["dense"] = (rand(5, 4), rand(4))
    elif what == "a group of no layer":
        weights["dense_7"] = (rand(4, 4), rand(4))
    elif what == "two layers of one name":
        config["config"]["layers"].append(config["config"]["layers"][-1])
    return config, weights


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a layer without its group", "layer 'd1': holds 0 weights under dense_1, its configuration asks for kernel, bias"),
        ("too few variables", "layer 'd0': holds 1 weight under dense,"),
        ("another shape", r"layer 'd0': its kernel is stored as \(5, 4\), the configuration asks for \(4, 4\)"),
        ("a group of no layer", "/layers/dense_7/vars/0: is a weight that no layer of the configuration takes"),
        ("two layers of one name", "layer 'd1': is in the configuration twice"),
    ],
)
def test_configuration_and_weights_that_do_not_agree(tmp_path, what, words):
    path = archive(tmp_path / "a.keras", *(lambda c, w: (c, stored(w)))(*broken(what, *mlp(2))))
    with pytest.raises(CanonError, match=words):
        formats.read(path)


def test_archives_of_other_kinds_of_weights(tmp_path):
    config, weights = mlp(1)
    with pytest.raises(UnknownFormat, match=r"whose weights are in model.weights.npz"):
        formats.read(archive(tmp_path / "a", config, b"", name="model.weights.npz"))
    with pytest.raises(CorruptFile, match="without weights"):
        formats.read(archive(tmp_path / "b", config, b"", name="other"))
    path = archive(tmp_path / "c", config, stored(weights))
    with zipfile.ZipFile(path, "a") as again, pytest.warns(UserWarning, match="Duplicate"):
        again.writestr("config.json", "{}")
    with pytest.raises(CorruptFile, match=r"config.json: is in the archive twice"):
        formats.read(path)


def test_names_that_leave_the_archive_do_not_count(tmp_path):
    config, weights = mlp(1)
    path = archive(tmp_path / "a.keras", config, stored(weights))
    with zipfile.ZipFile(path, "a") as out:
        for name in ("../evil", "/evil", "a/../../evil", "c:\\evil"):
            out.writestr(name, b"x")
    assert formats.read(path).network.parameters == 20
    assert list(tmp_path.iterdir()) == [path]


def test_bombs_are_not_unpacked(tmp_path, monkeypatch):
    config, weights = mlp(1)
    monkeypatch.setattr(common_zip, "FREELY", 1 << 16)
    with zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("config.json", json.dumps(config))
        out.writestr("model.weights.h5", stored(weights) + bytes(1 << 22))
    with pytest.raises(CorruptFile, match=r"model.weights.h5: declares 4,\d+,\d+ bytes, packed in"):
        formats.read(tmp_path / "a.keras")
    raw = bytearray(archive(tmp_path / "b.keras", config, stored(weights)).read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (1 << 31).to_bytes(4, "little")  # stored, and declared larger than it is
    (tmp_path / "b.keras").write_bytes(raw)
    with pytest.raises(CorruptFile, match=r"declares 2,147,483,648 bytes, packed in"):
        formats.read(tmp_path / "b.keras")


def test_arrays_of_numpy(tmp_path):
    arrays = {"module.a.weight": np.asfortranarray(rand(3, 4)), "module.a.bias": rand(3, dtype=">f4"),
              "module.b.weight": rand(2, 3, dtype="f8"), "module.b.num_batches_tracked": np.int64(3)}  # fmt: skip
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    run = formats.read(tmp_path / "a.npz", activation="relu")
    assert (run.format, run.graph) == ("npz tensors", "chain")
    assert run.notes == ("every name begins with 'module.', which is left out",)
    np.testing.assert_array_equal(run.network.tensors["a.weight"], arrays["module.a.weight"])
    formats.write(run, tmp_path / "b.npz", actions={"s": {"order": np.arange(3)}})
    with np.load(tmp_path / "b.npz") as again:
        assert set(again) == {*arrays, "canon_action/s/order"}
        assert again["module.a.bias"].dtype == ">f4"
    assert formats.read(tmp_path / "b.npz").network.parameters == run.network.parameters


def test_objects_among_arrays_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", **{"a.weight": rand(2, 2), "a.extra": np.array([{"x": 1}], dtype=object)})
    run = formats.read(tmp_path / "a.npz")
    assert run.notes[0] == "not floating point, and left as they are: a.extra"
    np.savez(tmp_path / "b.npz", x=rand(2), y=rand(2))
    with pytest.raises(CorruptFile, match="arrays are no tensors of layers"):
        formats.read(tmp_path / "b.npz")


def test_what_other_files_say_is_unchanged(tmp_path):
    assert formats.read(kf.mlp(tmp_path / "a.h5")).format == "keras-2 hdf5"
