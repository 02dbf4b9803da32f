"""Files made to harm: nothing outside is opened, nothing absurd is allocated, nothing inside is run."""

import json
import pickle
import re
import zlib

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile
from canon.formats import common


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
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["l"]), layers))
    assert run.network.writer["l"].kind == "opaque"
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
    with pytest.raises(CorruptFile, match=r"nested more than 40 deep|is not JSON"):
        formats.read(path)


def test_a_link_inside_may_not_lead_outside(tmp_path):
    def link(g, name, values):
        g.file["elsewhere"] = h5py.ExternalLink(other(tmp_path, values), "/")
        g[name] = h5py.SoftLink("/elsewhere/values")

    with pytest.raises(CorruptFile, match="/elsewhere: is a link into another file"):
        formats.read(replaced(tmp_path, link))


def test_links_in_a_circle_or_to_nowhere(tmp_path):
    def circle(g, name, values):
        g[name], g["b"] = h5py.SoftLink("b"), h5py.SoftLink(f"{g.name}/{name}")

    def nowhere(g, name, values):
        g[name] = h5py.SoftLink("/gone/missing")

    with pytest.raises(CorruptFile, match="leads in a circle"):
        formats.read(replaced(tmp_path, circle))
    with pytest.raises(CorruptFile, match=r"is a link to '/gone/missing', which is not there"):
        formats.read(replaced(tmp_path, nowhere))


def test_a_chunk_that_unpacks_to_more_than_a_chunk(tmp_path, monkeypatch):
    def bomb(g, name, values):
        d = g.create_dataset(name, values.shape, "f4", chunks=values.shape, compression="gzip")
        d.id.write_direct_chunk((0, 0), zlib.compress(bytes(1 << 22), 9))

    monkeypatch.setattr(common, "FREELY", 1 << 16)
    with pytest.raises(CorruptFile, match="holds a chunk of more than its 96 bytes"):
        formats.read(replaced(tmp_path, bomb))


def test_zeros_packed_a_thousandfold_are_refused_only_when_there_are_many(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("a.weight", data=np.zeros((1000, 1000), "f4"), chunks=(1000, 1000), compression="gzip")
    assert formats.read(tmp_path / "a.h5").network.parameters == 1_000_000
    monkeypatch.setattr(common, "FREELY", 1 << 20)
    with pytest.raises(CorruptFile, match="declares 4,000,000 bytes in a file of"):
        formats.read(tmp_path / "a.h5")


def test_more_groups_than_any_network_has(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "MOST_OBJECTS", 100)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for i in range(101):
            f.create_group(f"g{i}")
    with pytest.raises(CorruptFile, match="holds more than 100 groups and datasets"):
        formats.read(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as f:
        f["/".join("g" * 300)] = np.zeros(3)
    with pytest.raises(CorruptFile, match="groups 200 deep"):
        formats.read(tmp_path / "b.h5")


def test_models_that_call_models_twice_and_so_on(tmp_path):
    model = kf.functional([kf.inp("i", 2)], ["i"], ["i"], name="m")
    for _ in range(30):
        inner = {**model, "name": "n", "inbound_nodes": [[["i", 0, 0, {}]], [["n", 0, 0, {}]]], "w": {}}
        model = kf.functional([kf.inp("i", 2), inner], ["i"], [("n", 1, 0)], name="m")
    with pytest.raises(CorruptFile, match=r"unfolds into more than 50,000 operations|not one parameter"):
        formats.read(kf.save(tmp_path / "a.h5", model, []))
    layers = [kf.inp("i", 2), kf.dense("d", "i", 2, 2)]
    model["config"]["layers"] += kf.bare(layers[1:])
    with pytest.raises(CorruptFile, match="unfolds into more than 50,000 operations"):
        formats.read(kf.save(tmp_path / "b.h5", model, layers[1:]))


def test_names_with_control_characters_are_names(tmp_path):
    name = "d\x1b[31m\u202e\u0007"
    layers = [kf.inp("x", 4), kf.dense(name, "x", 4, 3)]
    run = formats.read(kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], [name]), layers))
    assert f"{name}/kernel" in run.network.tensors
    layers[1]["config"]["units"] = 9
    with pytest.raises(CanonError) as caught:
        formats.read(kf.save(tmp_path / "b.h5", kf.functional(layers, ["x"], [name]), layers))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("attribute", ["model_config", "keras_version", "layer_names"])
def test_a_string_that_says_it_is_longer_than_its_file(tmp_path, attribute):
    path = kf.mlp(tmp_path / "a.h5", full=attribute != "layer_names")
    with h5py.File(path, "r+") as f:
        if attribute == "layer_names":
            f.attrs.create(attribute, ["dense_0"] * 3, dtype=h5py.string_dtype())
        elif attribute == "keras_version":
            f.attrs[attribute] = "2.4.0"
    raw = bytearray(path.read_bytes())
    begin = raw.index(attribute.encode())
    heaps = [found.start().to_bytes(8, "little") for found in re.finditer(b"GCOL", raw)]
    # the place of a string: its length, the address of its heap, its number there
    places = (raw.find(heap + i.to_bytes(4, "little"), begin) for heap in heaps for i in range(1, 9))
    at = min(place for place in places if place >= 0)
    raw[at - 4 : at] = (1 << 31).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match="a string longer than the file"):
        formats.read(path)


def test_an_architecture_that_says_it_is_longer_than_its_file(tmp_path):
    formats.write(formats.read(kf.mlp(tmp_path / "a.h5")), tmp_path / "b.h5", "canon")
    with h5py.File(tmp_path / "b.h5") as f:
        at = f["architecture"].id.get_offset()
    raw = bytearray((tmp_path / "b.h5").read_bytes())
    raw[at : at + 4] = (1 << 31).to_bytes(4, "little")
    (tmp_path / "b.h5").write_bytes(raw)
    with pytest.raises(CorruptFile, match="declares a string of 2,147,483,648 bytes"):
        formats.read(tmp_path / "b.h5")
