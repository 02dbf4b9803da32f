"""Damaged files, the same ones every time: each is read, or refused in one line and a hint. tests/bench/fuzz.py makes more."""

import io
import zipfile

import keras_files as kf
import numpy as np
import pytest
from bench.fuzz import generated, inside

from canon import formats
from canon.errors import CanonError, CorruptFile


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("made"))


def attempt(path):
    """Whether a file was read; no more than a line and a hint where it was not."""
    try:
        formats.read(path)
    except CanonError as e:
        said = str(e)
    else:
        return True
    assert len(said.splitlines()) <= 2
    return False


@pytest.mark.parametrize("part", range(8))
def test_random_damage(tmp_path, sources, part):
    target, read = tmp_path / "input", 0
    for seed in range(40 * part, 40 * part + 40):
        rng = np.random.default_rng(seed)
        source = sources[int(rng.integers(len(sources)))]
        target.write_bytes(inside(source.read_bytes(), rng))
        read += attempt(target)
    assert read < 40


@pytest.mark.parametrize("name", ["keras.h5", "weights.h5", "canon.h5", "state.npz", "archive.keras"])
def test_truncated_anywhere(tmp_path, sources, name):
    raw = next(p for p in sources if p.name == name).read_bytes()
    for size in {int(s) for s in np.linspace(0, len(raw) - 1, 60)} | set(range(0, 16)):
        (tmp_path / "input").write_bytes(raw[:size])
        assert not attempt(tmp_path / "input")


# what the fuzzer found


def header(text, name="a.weight.npy"):
    """An archive of one array with this header."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as out:
        out.writestr(zipfile.ZipInfo(name), b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16))
    return raw.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3)ax\xe19z\xf1, }",  # no text: numpy's own reader trips
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1",  # an unfinished line: its tokenizer trips
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999, 99999999999999), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': " + b"(" * 3000,
    ],
)
def test_headers_of_arrays(tmp_path, text):
    (tmp_path / "input").write_bytes(header(text))
    with pytest.raises(CorruptFile, match=r"a.weight.npy: (is no plain numpy array|declares shape)"):
        formats.read(tmp_path / "input")


def test_a_member_without_a_name(tmp_path):
    raw = header(b"").replace(b"a.weight.npy", b"\0.weight.npy")
    (tmp_path / "input").write_bytes(raw)
    assert not attempt(tmp_path / "input")


def test_a_heap_larger_than_its_file(tmp_path):
    path = kf.mlp(tmp_path / "a.h5")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"GCOL")
    raw[at + 8 : at + 16] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match="its heap of strings is broken"):
        formats.read(path)
