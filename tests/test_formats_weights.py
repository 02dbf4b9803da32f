"""Files without a configuration: Keras weights, tensors by name, chains that shapes prove, borrowed graphs."""

import json

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import borrow, formats
from canon.errors import CorruptFile, MismatchError, UnknownFormat, UsageError

RNG = np.random.default_rng(3)


def rand(*shape):
    return RNG.standard_normal(shape).astype("f4")


def kinds(run):
    return [op.kind for op in run.network.ops]


def weights(path, layers, version="2.4.0", **kw):
    """layers: name -> {weight: array}."""
    return kf.save(path, None, [{"name": n, "w": w} for n, w in layers.items()], full=False, version=version, **kw)


def kb(*shape):
    return {"kernel": rand(*shape), "bias": rand(shape[-1])}


def bn(n):
    return {r: rand(n) for r in ("gamma", "beta", "moving_mean", "moving_variance")}


def test_a_chain_of_dense_layers(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5", full=False))
    assert (run.format, run.graph, run.activations_known) == ("keras weights hdf5", "chain", False)
    assert kinds(run) == ["dense", "unknown_activation", "dense", "unknown_activation", "dense"]
    assert run.network.inputs == {"input": (4,)}
    assert run.network.outputs == ("dense_2",)
    assert run.notes == (borrow.UNRECORDED,)
    full = formats.read(kf.mlp(tmp_path / "full.h5"))
    for name, tensor in full.network.tensors.items():
        np.testing.assert_array_equal(run.network.tensors[name], tensor)


def test_the_nonlinearity_when_told(tmp_path):
    path = kf.mlp(tmp_path / "a.h5", full=False)
    run = formats.read(path, activation="relu")
    assert kinds(run) == ["dense", "relu", "dense", "relu", "dense"]
    assert (run.activations_known, run.notes) == (True, ())
    assert formats.read(path, activation="swish").network.ops[1].kind == "silu"
    with pytest.raises(UsageError, match="activation 'odd' is not one of relu, "):
        formats.read(path, activation="odd")
    run = formats.read(kf.mlp(tmp_path / "full.h5"), activation="tanh")
    assert kinds(run)[1] == "relu"
    assert run.notes == ("the activation told is not used: the graph has its own",)


def test_convolutions_batch_norms_and_a_flatten_of_unknown_size(tmp_path):
    layers = {"c": kb(3, 3, 2, 4), "n": bn(4), "max_pooling2d": {}, "e": kb(3, 3, 4, 5), "flatten": {}, "d": kb(45, 6),
              "out": kb(6, 2)}  # fmt: skip
    path = weights(tmp_path / "a.h5", layers)
    run = formats.read(path)
    assert run.network.inputs == {"input": (None, None, 2)}
    u = "unknown_activation"
    assert kinds(run) == ["conv", u, "batch_norm", u, "conv", u, "reshape", "flatten", "dense", u, "dense"]
    assert run.network.shapes["d/reshape"] == (9, 5)
    assert any(note.startswith(borrow.EPSILON) for note in run.notes)
    told = formats.read(path, activation="relu")  # a batch norm stands before the nonlinearity then
    assert kinds(told)[:4] == ["conv", "batch_norm", "relu", "conv"]


def test_separable_recurrent_and_embedding_parts(tmp_path):
    sep = {"depthwise_kernel": rand(3, 3, 4, 1), "pointwise_kernel": rand(1, 1, 4, 6), "bias": rand(6)}
    run = formats.read(weights(tmp_path / "a.h5", {"c": kb(3, 3, 2, 4), "s": sep, "d": kb(6, 2)}))
    u = "unknown_activation"
    assert kinds(run) == ["conv", u, "depthwise_conv", "conv", u, "dense"]
    lstm = {"kernel": rand(4, 20), "recurrent_kernel": rand(5, 20), "bias": rand(20)}
    run = formats.read(weights(tmp_path / "b.h5", {"e": {"embeddings": rand(9, 4)}, "r": lstm, "d": kb(5, 2)}))
    assert kinds(run) == ["opaque", "opaque", "dense"]
    np.testing.assert_array_equal(run.network.tensors["r/kernel"], lstm["kernel"])


@pytest.mark.parametrize("name", ["add_1", "Concatenate", "lambda_2", "tf_op_layer_mul", "skipConnection", "average_3"])
def test_where_branches_may_join_no_chain_is_proved(tmp_path, name):
    layers = {"a": kb(4, 4), "b": kb(4, 4), name: {}, "c": kb(4, 2)}
    run = formats.read(weights(tmp_path / "a.h5", layers))
    assert (run.graph, run.notes) == ("none", (borrow.NO_CHAIN,))
    assert kinds(run) == ["opaque"] * 3
    del layers[name]
    layers["average_pooling1d"] = {}
    assert formats.read(weights(tmp_path / "b.h5", layers)).graph == "chain"


def test_where_sizes_do_not_follow_no_chain_is_proved(tmp_path):
    run = formats.read(weights(tmp_path / "a.h5", {"a": kb(4, 4), "b": kb(5, 4)}), activation="relu")
    assert run.graph == "none"
    assert run.notes[-1] == "the activation told is not used: no graph is known"
    np.testing.assert_array_equal(run.network.tensors["a/bias"].shape, (4,))


def test_groups_of_several_layers(tmp_path):
    group = {"a/kernel": rand(3, 4), "a/bias": rand(4), "b/kernel": rand(4, 2), "b/bias": rand(2)}
    run = formats.read(weights(tmp_path / "a.h5", {"m": group}, inner=False))
    assert run.graph == "none"
    assert list(run.network.tensors) == ["m/a/kernel", "m/a/bias", "m/b/kernel", "m/b/bias"]


def test_theano_and_keras_1_kernels(tmp_path):
    k = rand(3, 2, 4, 5)
    layers = {"c": {"kernel": k, "bias": rand(5)}}
    run = formats.read(weights(tmp_path / "a.h5", layers, backend="theano"))
    np.testing.assert_array_equal(run.network.tensors["c/kernel"], k[::-1, ::-1].transpose(3, 2, 0, 1))
    old = {"c_W": rand(5, 4, 3, 2), "c_b": rand(5)}
    run = formats.read(weights(tmp_path / "b.h5", {"c": old}, version=None, backend=None, inner=False, suffix=""))
    np.testing.assert_array_equal(run.network.tensors["c/kernel"], old["c_W"])
    old = {"c_W": k.transpose(0, 1, 2, 3)[:, :1], "c_b": rand(5)}
    run = formats.read(weights(tmp_path / "c.h5", {"convolution1d_1": old}, version="1.2.2", backend=None, inner=False))
    assert run.network.tensors["convolution1d_1/kernel"].shape == (5, 4, 3)


def test_weights_without_a_tensor(tmp_path):
    with pytest.raises(CorruptFile, match="without a single tensor"):
        formats.read(weights(tmp_path / "a.h5", {"a": {}}))


# borrowed graphs


def test_a_graph_borrowed_by_name_and_in_order(tmp_path):
    bare, full = kf.mlp(tmp_path / "a.h5", full=False), kf.mlp(tmp_path / "full.h5", seed=5)
    run = formats.read(bare, architecture=full)
    assert (run.graph, run.activations_known) == ("borrowed", True)
    assert run.network.ops == formats.read(full).network.ops
    assert run.notes == (f"the graph is borrowed from {full}, tensors paired by name",)
    with h5py.File(bare, "r+") as f:
        f.attrs["layer_names"] = ["x", "p", "q", "r"]
        for i, name in enumerate("pqr"):
            f.move(f"dense_{i}", name)
    run = formats.read(bare, architecture=full)
    assert [op.params.get("kernel") for op in run.network.ops] == ["p/kernel", None, "q/kernel", None, "r/kernel"]
    assert "in order, as 'dense_0/kernel' with 'p/kernel'" in run.notes[0]


def test_a_graph_that_does_not_fit_is_refused(tmp_path):
    bare = kf.mlp(tmp_path / "a.h5", full=False)
    with pytest.raises(MismatchError, match=r"holds 6 tensors, and the architecture of .* takes 4"):
        formats.read(bare, architecture=kf.mlp(tmp_path / "b.h5", (4, 6, 3)))
    with pytest.raises(MismatchError, match=r"dense_1/kernel: has shape \(5, 6\)"):
        formats.read(bare, architecture=kf.mlp(tmp_path / "c.h5", (4, 6, 7, 3)))
    (tmp_path / "odd.h5").touch()
    with pytest.raises(UnknownFormat, match=r"odd\.h5: an empty file"):
        formats.read(bare, architecture=tmp_path / "odd.h5")


def test_a_graph_is_not_borrowed_where_the_file_has_one(tmp_path):
    full = kf.mlp(tmp_path / "a.h5")
    run = formats.read(full, architecture=full)
    assert (run.graph, run.notes) == ("config", ("the architecture lent is not used: the file records its own",))


def test_a_keras_json_as_architecture(tmp_path):
    bare, full = kf.mlp(tmp_path / "a.h5", full=False), kf.mlp(tmp_path / "full.h5")
    with h5py.File(full) as f:
        model = json.loads(f.attrs["model_config"])
    lent = tmp_path / "model.json"
    lent.write_text(json.dumps({**model, "keras_version": "2.4.0", "backend": "tensorflow"}))
    run = formats.read(bare, architecture=lent)
    assert (run.format, run.graph) == ("keras-2 weights hdf5", "borrowed")
    assert run.network.ops == formats.read(full).network.ops
    for entry in model["config"]["layers"]:
        for key in (entry, entry["config"]):
            key["name"] += "_new"
        entry["inbound_nodes"] = [[[f"{r[0]}_new", *r[1:]] for r in node] for node in entry["inbound_nodes"]]
    for key in ("input_layers", "output_layers"):
        model["config"][key][0][0] += "_new"
    lent.write_text(json.dumps(model))
    run = formats.read(bare, architecture=lent)
    assert run.notes == ("layers are paired with the architecture's in order: their names differ",)
    assert "dense_0_new/kernel" in run.network.tensors
    with pytest.raises(UnknownFormat, match="a JSON file"):
        formats.read(lent)
    lent.write_text("[1]")
    with pytest.raises(UnknownFormat, match=r"model\.json: JSON that is no Keras configuration"):
        formats.read(bare, architecture=lent)


# tensors by name


def dump(path, tensors, track_order=False):
    with h5py.File(path, "w", track_order=track_order) as f:
        for name, values in tensors.items():
            f[name] = values
    return path


def linear(name, n_in, n_out):
    return {f"{name}.weight": rand(n_out, n_in), f"{name}.bias": rand(n_out)}


def test_a_torch_state_dict(tmp_path):
    tensors = {**linear("fc1", 3, 4), **linear("fc10", 5, 2), **linear("fc2", 4, 5)}
    run = formats.read(dump(tmp_path / "a.h5", tensors))
    assert (run.format, run.graph) == ("hdf5 tensors", "chain")
    assert [op.name for op in run.network.ops if op.kind == "dense"] == ["fc1", "fc2", "fc10"]
    np.testing.assert_array_equal(run.network.tensors["fc2.weight"], tensors["fc2.weight"])


def test_stored_order_comes_before_names(tmp_path):
    tensors = {**linear("z", 4, 4), **linear("a", 4, 4)}
    run = formats.read(dump(tmp_path / "a.h5", tensors, track_order=True))
    assert [op.name for op in run.network.ops if op.kind == "dense"] == ["z", "a"]


def test_torch_convolutions_flatten_channels_first(tmp_path):
    tensors = {
        "f.0.weight": rand(4, 2, 3, 3),
        "f.1.weight": rand(4),
        "f.1.bias": rand(4),
        "f.1.running_mean": rand(4),
        "f.1.running_var": rand(4),
        "f.1.num_batches_tracked": np.int64(7),
        **linear("g", 36, 2),
    }
    run = formats.read(dump(tmp_path / "a.h5", tensors))
    u = "unknown_activation"
    assert kinds(run) == ["conv", u, "batch_norm", u, "reshape", "flatten", "dense"]
    assert run.network.inputs == {"input": (2, None, None)}
    assert run.network.ops[2].attrs == {"axis": 0, "eps": 1e-5}
    assert run.network.ops[4].attrs == {"shape": [4, 9]}
    assert "f.1.num_batches_tracked" not in run.network.tensors
    assert not any("left as they are" in note for note in run.notes)


def test_wrappers_are_stripped_only_when_all_names_carry_them(tmp_path):
    tensors = {**linear("module._orig_mod.a", 3, 4), **linear("module._orig_mod.b", 4, 2)}
    run = formats.read(dump(tmp_path / "a.h5", tensors))
    assert list(run.network.tensors) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert run.notes[0] == "every name begins with 'module._orig_mod.', which is left out"
    run = formats.read(dump(tmp_path / "b.h5", {**linear("module.a", 3, 4), **linear("b", 4, 2)}))
    assert next(iter(run.network.tensors)) == "b.weight"


def test_keras_like_dumps_in_groups(tmp_path):
    k = rand(3, 3, 2, 4)
    tensors = {"net/c/kernel:0": k, "net/c/bias:0": rand(4), "net/d/kernel:0": rand(4, 2)}
    run = formats.read(dump(tmp_path / "a.h5", tensors))
    assert kinds(run) == ["conv", "unknown_activation", "dense"]
    np.testing.assert_array_equal(run.network.tensors["net/c/kernel"], k.transpose(3, 2, 0, 1))


@pytest.mark.parametrize("name", ["layer1.block.conv", "resBlock", "skip", "branch2"])
def test_state_dicts_of_branched_nets_prove_no_chain(tmp_path, name):
    run = formats.read(dump(tmp_path / "a.h5", {**linear(f"{name}.a", 4, 4), **linear(f"{name}.b", 4, 4)}))
    assert run.graph == "none"


def test_other_entries_of_a_dump(tmp_path):
    tensors = {**linear("a", 3, 4), "log_std": rand(4), "step": np.int64(3), "ids": np.arange(3)}
    run = formats.read(dump(tmp_path / "a.h5", tensors))
    assert run.graph == "none"
    assert "log_std" in run.network.tensors
    assert run.notes[0] == "not floating point, and left as they are: ids, step"
    lender = tmp_path / "model.json"
    lender.write_text('{"class_name": "Sequential", "config": []}')
    with pytest.raises(UsageError, match="goes with Keras's weight files only"):
        formats.read(tmp_path / "a.h5", architecture=lender)
