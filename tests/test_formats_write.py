"""Writing copies of a source: layouts inverted, whole files or none."""

import os
from dataclasses import replace

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import ReadError, UsageError, WriteError

RNG = np.random.default_rng(4)


def rand(*shape):
    return RNG.standard_normal(shape).astype("f4")


def every_layout(path):
    """A model with every kind of layout: transposed, depthwise, flat, one tensor used twice."""
    layers = [
        kf.inp("x", 6, 6, 2),
        kf.layer("Conv2D", "c", "x", {"kernel": rand(3, 3, 2, 4), "bias": rand(4)}, filters=4, kernel_size=[3, 3]),
        kf.layer("BatchNormalization", "n", "c", {r: rand(4) for r in ("gamma", "beta", "moving_mean", "moving_variance")}),
        kf.layer("DepthwiseConv2D", "w", "n", {"depthwise_kernel": rand(3, 3, 4, 2), "bias": rand(8)},
                 kernel_size=3, depth_multiplier=2),
        kf.layer("Flatten", "f", "w"),
        kf.dense("d", "f", 32, 3),
    ]  # fmt: skip
    return kf.save(path, kf.functional(layers, ["x"], ["d"]), layers, optimizer=True)


def datasets(path):
    found = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, d: found.update({name: d[()]}) if isinstance(d, h5py.Dataset) else None)
        return found, dict(f.attrs)


def test_a_copy_of_the_same_tensors_holds_the_same_numbers(tmp_path):
    source, out = every_layout(tmp_path / "a.h5"), tmp_path / "b.h5"
    formats.write(formats.read(source), out)
    (old, attrs), (new, kept) = datasets(source), datasets(out)
    assert old.keys() == new.keys()
    for name, values in old.items():
        np.testing.assert_array_equal(new[name], values)
    assert attrs.keys() == kept.keys()


def test_moved_tensors_land_where_they_came_from(tmp_path):
    source, out = every_layout(tmp_path / "a.h5"), tmp_path / "b.h5"
    run = formats.read(source)
    moved = {name: RNG.standard_normal(t.shape) for name, t in run.network.tensors.items()}
    formats.write(run.with_network(run.network.with_tensors(moved)), out)
    back = formats.read(out)
    for name, values in moved.items():
        np.testing.assert_array_equal(back.network.tensors[name], values.astype("f4"))  # one cast


@pytest.mark.parametrize("full", [True, False])
def test_the_optimizer_may_be_dropped_and_the_action_kept(tmp_path, full):
    source, out = kf.mlp(tmp_path / "a.h5", full=full, optimizer=full), tmp_path / "b.h5"
    run = formats.read(source)
    actions = {"dense_0": {"permutation": np.arange(6)}, "m/dense": {"scale": np.ones(2)}}
    formats.write(run, out, actions=actions, drop_optimizer=True)
    found, _ = datasets(out)
    assert not any(name.startswith("optimizer_weights") for name in found)
    np.testing.assert_array_equal(found["canon_action/dense_0/permutation"], np.arange(6))
    assert "canon_action/m/dense/scale" in found
    formats.write(formats.read(out), out, actions={"other": {"scale": np.ones(1)}})
    assert [n for n in datasets(out)[0] if n.startswith("canon_action")] == ["canon_action/other/scale"]
    formats.write(run, out)
    assert ("optimizer_weights/Adam/iterations:0" in datasets(out)[0]) == full


def test_compressed_and_foreign_byte_orders_stay(tmp_path):
    source, out = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(source, "w") as f:
        f.create_dataset("a.weight", data=rand(4, 3).astype(">f8"), compression="gzip", chunks=(2, 3))
        f["a.bias"] = rand(4).astype("f2")
    run = formats.read(source)
    formats.write(run.with_network(run.network.with_tensors({"a.weight": np.ones((4, 3))})), out)
    with h5py.File(out) as f:
        assert (f["a.weight"].dtype, f["a.weight"].compression, f["a.bias"].dtype) == (np.dtype(">f8"), "gzip", "f2")
        np.testing.assert_array_equal(f["a.weight"][()], np.ones((4, 3)))


def test_out_may_be_the_source(tmp_path):
    path = kf.mlp(tmp_path / "a.h5")
    run = formats.read(path)
    formats.write(run.with_network(run.network.with_tensors({"dense_0/bias": np.zeros(6, "f4")})), path)
    np.testing.assert_array_equal(formats.read(path).network.tensors["dense_0/bias"], np.zeros(6))
    assert os.listdir(tmp_path) == ["a.h5"]


def fails(run, path, words, error=WriteError, **kw):
    before = {p: p.read_bytes() for p in path.parent.iterdir()} if path.parent.is_dir() else {}
    with pytest.raises(error, match=words) as caught:
        formats.write(run, path, **kw)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) <= 2
    after = {p: p.read_bytes() for p in path.parent.iterdir()} if path.parent.is_dir() else {}
    assert before == after


def test_a_failed_write_leaves_everything_as_it_was(tmp_path):
    source, out = kf.mlp(tmp_path / "a.h5"), tmp_path / "out.h5"
    out.write_bytes(b"what was there before")
    run = formats.read(source)
    tensors = dict(run.network.tensors)
    big = run.with_network(run.network.with_tensors({"dense_2/bias": np.full(3, 1e300)}))
    fails(big, out, "'dense_2/bias' holds values beyond the range of float32, the source's type")
    fails(big, out, "cannot be the name of a dataset", UsageError, fmt="canon", actions={"..": {"x": np.ones(1)}})
    fails(replace(run, layout={}), out, "do not hold the same tensors: 'dense_0/kernel'")
    lost = dict(run.layout) | {"dense_0/kernel": replace(run.layout["dense_0/kernel"], path="gone")}
    fails(replace(run, layout=lost), out, "the source has no dataset 'gone' any more")
    fails(run, out, "canon cannot write 'onnx'", UsageError, fmt="onnx")
    fails(run, out, "several checkpoints", UsageError, checkpoints=[run])
    fails(run, tmp_path / "no" / "b.h5", "the folder .* does not exist")
    assert tensors.keys() == run.network.tensors.keys()


def test_an_error_in_the_middle_removes_the_temporary_file(tmp_path, monkeypatch):
    source, out = kf.mlp(tmp_path / "a.h5"), tmp_path / "out.h5"
    run = formats.read(source)

    def fail(*args, **kw):
        raise OSError(28, "No space left on device")

    for fmt in ("canon", None):
        with monkeypatch.context() as m:
            m.setattr("canon.formats.common_write.write_arrays", fail)
            m.setattr("canon.formats.canon_hdf5.write_arrays", fail)
            fails(run, out, "cannot be written: No space left on device", fmt=fmt)
    assert not out.exists()


def test_what_is_no_file_is_not_replaced(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", "/dev/null"):
        with pytest.raises(WriteError, match="is there already and is not a file"):
            formats.write(run, path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    (tmp_path / "locked").mkdir(0o500)
    with pytest.raises(WriteError, match="cannot be written: Permission denied"):
        formats.write(run, tmp_path / "locked" / "b.h5")


def test_links_are_written_through_and_modes_kept(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    real, link = tmp_path / "real.h5", tmp_path / "link.h5"
    real.write_bytes(b"")
    real.chmod(0o640)
    link.symlink_to(real)
    formats.write(run, link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert formats.read(real).network.parameters == run.network.parameters


def test_a_source_that_is_gone(tmp_path):
    source = kf.mlp(tmp_path / "a.h5")
    run = formats.read(source)
    source.unlink()
    fails(run, tmp_path / "b.h5", "the source .*a.h5: no such file", ReadError)


def test_a_source_that_holds_no_network(tmp_path):
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    with h5py.File(tmp_path / "data.h5", "w") as f:
        f["data"] = np.ones(3)
    fails(run, tmp_path / "b.h5", "the source .*data.h5 holds no network", UsageError, source=tmp_path / "data.h5")
