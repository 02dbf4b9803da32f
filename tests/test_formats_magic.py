"""What is not read is named from its content: one line, and one of what to do."""

import io
import zipfile

import h5py
import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError, CorruptFile, ReadError, UnknownFormat


def archive(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in names:
            z.writestr(name, "x")
    return out.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12345\n"
STRANGERS = {
    b"": "an empty file",
    LFS: "a Git LFS pointer: the real file has 12,345 bytes",
    b"<!DOCTYPE html><html></html>": "an HTML page",
    b"\n <HTML>": "an HTML page",
    b"hello\n": "a text file",
    b"{}": "a JSON file",
    archive("archive_format", "models/model.json"): "a program that torch exported",
    archive("saved_model.pb"): "a zipped TensorFlow SavedModel",
    archive("readme"): "a zip archive",
    b"\x80\x02\x8a\nl\xfc": "a Python pickle",
    b"\x93NUMPY\x01\x00": "one numpy array (.npy): a network has several, and they need names",
    b"pickle".ljust(257, b"\0") + b"ustar\x00": "a tar archive, as torch 0.1 saved its files",
    b"notes.txt".ljust(257, b"\0") + b"ustar\x00": "a tar archive",
    b"\x1f\x8b\x08": "compressed with gzip",
    b"MATLAB 5.0 MAT-file\x00\x01": "a MATLAB file",
    b"\x00\x01\x02": "no format that canon knows",
}


@pytest.mark.parametrize("content", STRANGERS, ids=lambda c: STRANGERS[c][:20])
def test_strangers_are_named_whatever_their_ending(tmp_path, content):
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(UnknownFormat) as caught:
        formats.read(path)
    assert STRANGERS[content] in caught.value.what
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in caught.value.what


def test_missing_folder_and_unreadable(tmp_path):
    with pytest.raises(ReadError, match=r"gone\.h5: no such file"):
        formats.read(tmp_path / "gone.h5")
    with pytest.raises(ReadError, match="is a folder"):
        formats.read(tmp_path)
    with pytest.raises(ReadError, match="is not a regular file"):
        formats.read("/dev/null")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (archive("config.json", "metadata.json", "model.weights.h5"), "model_config: is not JSON"),
        (archive("a.npy", "b.npy"), "a.npy: is no plain numpy array"),
        (archive("readme")[:30], "a damaged zip archive"),
    ],
    ids=["keras", "arrays", "damaged"],  # an archive holds the time at which it was made
)
def test_archives_that_are_not_what_they_seem(tmp_path, raw, words):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(CorruptFile, match=words):
        formats.read(tmp_path / "a")


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_truncated_files_say_how_much_is_there(tmp_path, part):
    path = kf.mlp(tmp_path / "a.h5")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * part)])
    with pytest.raises(CorruptFile, match=f"a truncated HDF5 file: {int(len(raw) * part):,} of {len(raw):,} bytes"):
        formats.read(path)


@pytest.mark.parametrize("part", np.linspace(0.02, 0.98, 25))
def test_downloads_that_stopped_are_one_line(tmp_path, part):
    raw = kf.mlp(tmp_path / "a.h5").read_bytes()
    there = int(len(raw) * part)
    (tmp_path / "b.h5").write_bytes(raw[:there].ljust(len(raw), b"\0"))
    try:
        run = formats.read(tmp_path / "b.h5")
    except CanonError as e:
        said = str(e).splitlines()
    else:  # what is missing may be values alone
        said = [str(run.network.parameters == 83)]
    assert len(said) <= 2
    assert said[0] != "False"


@pytest.mark.parametrize("size", [0, 2**64 - 16, 2**63])
def test_a_heap_that_the_library_would_walk_for_ever(tmp_path, size):
    path = kf.mlp(tmp_path / "a.h5")
    raw = bytearray(path.read_bytes())
    first = raw.index(b"GCOL") + 16
    if size == 0:
        raw[first : first + 2] = b"\0\0"  # free space, of size zero
    raw[first + 8 : first + 16] = size.to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match="its heap of strings is broken"):
        formats.read(path)


def test_a_file_behind_a_user_block_and_another_ending(tmp_path):
    path = kf.mlp(tmp_path / "a.h5")
    with h5py.File(path) as old, h5py.File(tmp_path / "b.txt", "w", userblock_size=1024) as new:
        for key, value in old.attrs.items():
            new.attrs[key] = value
        old.copy("model_weights", new)
    assert formats.read(tmp_path / "b.txt").network.parameters == formats.read(path).network.parameters


def write(path, datasets=(), **attrs):
    with h5py.File(path, "w") as f:
        for key, value in attrs.items():
            f.attrs[key] = value
        for name in datasets:
            f[name] = np.zeros((4, 3), "f4")
    return path


@pytest.mark.parametrize(
    ("datasets", "attrs", "words"),
    [
        ((), {}, "without any dataset"),
        (("data", "label"), {}, r"a data set \(data, label\)"),
        (("x_train", "y_train", "x_test"), {}, "a data set"),
        (("history/loss", "history/acc"), {}, "a training log"),
        (("log",), {"PYTABLES_FORMAT_VERSION": "2.1"}, "a PyTables file"),
        (("layer/0/neuron/vDecay", "layer/0/weight"), {}, "a spiking network"),
        (("inputs/a", "outputs/b"), {}, "recorded inputs and outputs"),
        (("#refs#/a", "net"), {}, "a MATLAB 7.3 file"),
        (("grid", "time"), {"_NCProperties": "version=2"}, "a netCDF file"),
        (("a", "b", "c", "d"), {}, r"no network canon can recognise \(a, b, c, ...\)"),
        (("weight",), {}, None),
    ],
)
def test_hdf5_files_that_are_no_networks(tmp_path, datasets, attrs, words):
    path = write(tmp_path / "a.h5", datasets, **attrs)
    if words is None:
        assert formats.read(path).format == "hdf5 tensors"
        return
    with pytest.raises(UnknownFormat, match=words):
        formats.read(path)


def test_sample_weights_make_no_network(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["features"], f["weight"] = np.zeros((9, 3)), np.zeros(9)
    with pytest.raises(UnknownFormat):
        formats.read(tmp_path / "a.h5")
