"""Files made to harm: nothing outside is opened, nothing absurd is allocated, nothing inside is run."""

import json
import pickle

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile, UnsupportedOp


def replaced(tmp_path, make):
    """A model whose first kernel is what `make` puts there."""
    path = kf.mlp(tmp_path / "a.h5")
    with h5py.File(path, "r+") as f:
        g = f["model_weights/dense_0/dense_0"]
        values = g["kernel:0"][()]
        del g["kernel:0"]
        make(g, "kernel:0", values)
    return path


def other(tmp_path, values):
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as f:
        f["values"] = values
    return path


def test_links_into_other_files_are_not_followed(tmp_path):
    def link(g, name, values):
        g[name] = h5py.ExternalLink(other(tmp_path, values), "/values")

    with pytest.raises(CorruptFile, match=r"dense_0/kernel:0: is a link into another file \('.*other.h5'\)"):
        formats.read(replaced(tmp_path, link))
    path = kf.mlp(tmp_path / "b.h5")
    with h5py.File(path, "r+") as f:
        del f["model_weights"]
        f["model_weights"] = h5py.ExternalLink(other(tmp_path, np.zeros(1)), "/values")
    with pytest.raises(CorruptFile, match="/model_weights: is a link into another file"):
        formats.read(path)


def test_links_inside_are_followed(tmp_path):
    def link(g, name, values):
        g.file["elsewhere"] = values
        g[name] = h5py.SoftLink("/elsewhere")

    assert formats.read(replaced(tmp_path, link)).network.parameters == 83

    def loop(g, name, values):
        g[name] = h5py.SoftLink(f"{g.name}/{name}")

    with pytest.raises(CanonError):
        formats.read(replaced(tmp_path, loop))


def test_a_group_inside_itself_is_walked_once(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["net/a.weight"] = np.ones((2, 2), "f4")
        f["net/again"] = f["/"]
    assert formats.read(tmp_path / "a.h5").network.parameters == 4


def test_values_in_other_files_are_not_read(tmp_path):
    def external(g, name, values):
        (tmp_path / "raw").write_bytes(values.tobytes())
        g.create_dataset(name, values.shape, values.dtype, external=[(str(tmp_path / "raw"), 0, values.nbytes)])

    def virtual(g, name, values):
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        layout[:] = h5py.VirtualSource(str(other(tmp_path, values)), "values", values.shape)
        g.create_virtual_dataset(name, layout)

    with pytest.raises(CorruptFile, match="keeps its values in another file"):
        formats.read(replaced(tmp_path, external))
    with pytest.raises(CorruptFile, match="is a virtual dataset"):
        formats.read(replaced(tmp_path, virtual))


@pytest.mark.parametrize("storage", [{}, {"chunks": (64, 64)}, {"chunks": (1024, 1024), "compression": "gzip"}])
def test_absurd_sizes_are_refused_before_memory_is_asked_for(tmp_path, storage):
    def huge(g, name, values):
        g.create_dataset(name, (2**20, 2**20), "f4", **storage)

    path = replaced(tmp_path, huge)
    with h5py.File(path, "r+") as f:
        model = json.loads(f.attrs["model_config"])
        model["config"]["layers"][0]["config"]["batch_input_shape"] = [None, 2**20]
        model["config"]["layers"][1]["config"]["units"] = 2**20
        f.attrs["model_config"] = json.dumps(model)
    with pytest.raises(CorruptFile, match="declares 4,398,046,511,104 bytes in a file of"):
        formats.read(path)


def test_compressed_zeros_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("a.weight", data=np.zeros((2000, 2000), "f4"), compression="gzip", compression_opts=9)
    assert (tmp_path / "a.h5").stat().st_size < 400_000
    assert formats.read(tmp_path / "a.h5").network.parameters == 4_000_000


class Trap:
    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


def test_code_in_a_file_is_not_run(tmp_path):
    bomb = pickle.dumps(Trap())
    layers = [kf.inp("x", 3), kf.dense("d", "x", 3, 3), kf.layer("Lambda", "l", "d", function=[bomb.hex(), None, None])]
    with pytest.raises(UnsupportedOp, match="layer 'l' of class Lambda"):
        formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["l"]), layers))
    (tmp_path / "b.h5").write_bytes(bomb)
    with pytest.raises(CanonError, match="a Python pickle"):
        formats.read(tmp_path / "b.h5")


@pytest.mark.parametrize("depth", [300, 700])
def test_deep_nesting_is_one_error(tmp_path, depth):
    head, tail = '{"class_name": "Sequential", "name": "m", "config": {"name": "m", "layers": [', "]}}"
    model = head * depth + json.dumps(kf.bare([kf.dense("d", (), 3, 3)])[0]) + tail * depth
    path = kf.save(tmp_path / "a.h5", None, [{"name": "m", "w": {}}])
    with h5py.File(path, "r+") as f:
        f.attrs["model_config"] = model
    with pytest.raises(CorruptFile, match=r"does not hold together|is not JSON|do not go with its layers"):
        formats.read(path)
