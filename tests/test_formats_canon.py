"""canon's own format: round trips, checkpoints, bytes, faults."""

import hashlib
import json
import time
from dataclasses import replace

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CorruptFile, GraphError, UnknownFormat, UsageError


def made(tmp_path, **kw):
    run = formats.read(kf.mlp(tmp_path / "source.h5", **kw))
    return replace(run, probes={"noise": np.ones((2, 4), "f4")}, metrics={"0": {"loss": 0.5}})


def same(a, b):
    assert a.ops == b.ops
    assert dict(a.inputs) == dict(b.inputs)
    assert a.outputs == b.outputs
    assert list(a.tensors) == list(b.tensors)
    for name, tensor in a.tensors.items():
        np.testing.assert_array_equal(tensor, b.tensors[name])
        assert tensor.dtype == b.tensors[name].dtype


def test_round_trip(tmp_path):
    run, path = made(tmp_path), tmp_path / "a.h5"
    formats.write(run, path, "canon", actions={"dense_0": {"permutation": np.arange(6), "scale": np.ones(6)}})
    back = formats.read(path)
    same(run.network, back.network)
    assert (back.format, back.graph, back.checkpoint, back.checkpoints) == ("canon hdf5", "stored", "0", ("0",))
    assert back.metrics == {"0": {"loss": 0.5}}
    np.testing.assert_array_equal(back.probes["noise"], run.probes["noise"])
    with h5py.File(path) as f:
        assert f.attrs["canon_format"] == 1
        assert f.attrs["created_by"].startswith("canon ")
        assert f["checkpoints/0"].attrs["step"] == 0
        assert set(json.loads(f["architecture"][()])) == {"inputs", "ops", "outputs", "tensors"}
        assert list(f["action/dense_0"]) == ["permutation", "scale"]
    formats.write(back, tmp_path / "b.h5")  # its own format by default
    same(back.network, formats.read(tmp_path / "b.h5").network)


def test_activations_stay_unknown(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5", full=False))
    formats.write(run, tmp_path / "b.h5", "canon")
    assert not formats.read(tmp_path / "b.h5").activations_known


@pytest.mark.parametrize("fmt", ["canon", None])
def test_the_same_run_gives_the_same_bytes(tmp_path, fmt):
    run = made(tmp_path, optimizer=True)
    found = set()
    for name in ("a.h5", "b.h5"):
        actions = {"s": {"scale": np.ones(3)}}
        formats.write(run, tmp_path / name, fmt, actions=actions, drop_optimizer=True)
        found.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
        time.sleep(1.1)  # HDF5 stores times in seconds
    assert len(found) == 1


def test_checkpoints_are_ordered_by_number(tmp_path):
    run = made(tmp_path)
    steps = ["9", "100", "20", "-1", "1e3"]
    runs = [
        replace(run, checkpoint=s, network=run.network.with_tensors({"dense_0/bias": np.full(6, float(s), "f4")}))
        for s in steps
    ]
    path = tmp_path / "a.h5"
    formats.write(runs[0], path, "canon", checkpoints=runs[1:])
    last = formats.read(path)
    assert last.checkpoints == ("-1", "9", "20", "100", "1e3")
    assert last.checkpoint == "1e3"
    assert formats.read(path, checkpoint="20").network.tensors["dense_0/bias"][0] == 20
    with pytest.raises(UsageError, match="no checkpoint '7'") as caught:
        formats.read(path, checkpoint="7")
    assert "-1, 9, 20, 100, 1e3" in caught.value.hint
    with pytest.raises(UsageError, match="cannot be the name of one checkpoint"):
        formats.write(runs[0], path, "canon", checkpoints=[runs[0]])
    other = replace(formats.read(kf.mlp(tmp_path / "t.h5", act="tanh")), checkpoint="3")
    with pytest.raises(UsageError, match="has another graph than '9'"):
        formats.write(runs[0], path, "canon", checkpoints=[other])
    assert formats.read(path).checkpoints == last.checkpoints


def edit(tmp_path, change):
    path = tmp_path / "a.h5"
    formats.write(made(tmp_path), path, "canon")
    with h5py.File(path, "r+") as f:
        change(f)
    return path


def architecture(f, change):
    found = json.loads(f["architecture"][()])
    change(found)
    del f["architecture"]
    f["architecture"] = json.dumps(found)


def shorter(f):
    del f["checkpoints/0/dense_1/bias"]
    f["checkpoints/0/dense_1/bias"] = np.zeros(9, "f4")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda f: f.attrs.__setitem__("canon_format", 2), UnknownFormat, "a newer canon: format 2, and this one reads 1"),
        (lambda f: f.attrs.__setitem__("canon_format", "x"), CorruptFile, "canon_format: is 'x', not a number"),
        (lambda f: f.__delitem__("checkpoints"), CorruptFile, "without any checkpoint"),
        (lambda f: f.__delitem__("architecture"), CorruptFile, "without an architecture"),
        (lambda f: architecture(f, lambda a: a.pop("ops")), CorruptFile, "architecture: is not a JSON object with"),
        (lambda f: f.__delitem__("checkpoints/0/dense_1/bias"), CorruptFile, "checkpoints/0: has no tensor 'dense_1/bias'"),
        (shorter, GraphError, "dense_1: shape of the bias"),
        (lambda f: architecture(f, lambda a: a["ops"][0].update(kind="odd")), GraphError, "operation 'odd' is not known"),
        (lambda f: architecture(f, lambda a: a["ops"][0].update(inputs=["y"])), GraphError, "reads 'y'"),
        (lambda f: architecture(f, lambda a: a["ops"][0].pop("attrs")), CorruptFile, "damaged"),
    ],
)  # fmt: skip
def test_faults(tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        formats.read(edit(tmp_path, change))
