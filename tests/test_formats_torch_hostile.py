"""Torch files made to harm, and damaged ones: each is refused at once, in one line and a hint, and runs nothing."""

import io
import os
import pickle
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
import torch_files as tf

from canon import formats
from canon.errors import CanonError, CorruptFile, ReadError, UnknownFormat
from canon_cli.main import main

GIGA = 10**9


def refused(path, capsys, seconds=2.0):
    """The line that the command says, which it says soon and without memory."""
    tracemalloc.start()
    begin = time.perf_counter()
    assert main(["compare", str(path), str(path)]) == 2
    assert time.perf_counter() - begin < seconds
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.endswith("...")]
    assert not out
    assert lines[0].startswith(f"canon: {path}: ")
    assert 1 <= len(lines) <= 2
    assert "Traceback" not in err
    return lines[0]


# code


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("how", ["zip", "legacy", "inside", "pickle 0", "pickle 2", "pickle 5"])
def test_code_is_named_and_does_not_run(tmp_path, capsys, monkeypatch, how):
    marker, path = tmp_path / "ran", tmp_path / "a.pt"
    if how.startswith("pickle"):
        path.write_bytes(pickle.dumps(Harm(marker), int(how[-1])))
    elif how == "inside":
        torch.save({"a.weight": torch.ones(2, 3), "b": [Harm(marker)]}, path)
    else:
        torch.save(Harm(marker), path, _use_new_zipfile_serialization=how == "zip")
    said = refused(path, capsys)
    if how.startswith("pickle"):
        assert ("a Python pickle and no torch file" if how != "pickle 0" else "not a network") in said
    else:
        assert f"its pickle asks for {os.system.__module__}.system, which weights_only refuses" in said
        monkeypatch.setitem(sys.modules, "torch", None)  # found out without torch
        assert f"its pickle asks for {os.system.__module__}.system" in refused(path, capsys)
    assert not marker.exists()


def harm(name, *args):
    return tf.state(**{"a.weight": tf.tensor(tf.storage(6), (2, 3)), "b": tf.call(name, *args)})


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (harm("builtins.eval", tf.word("1")), "asks for builtins.eval"),
        (harm("builtins.getattr", tf.word("1")), "asks for builtins.getattr"),
        (harm("__builtin__.exec", tf.word("1")), "asks for builtins.exec"),
        (harm("torch.hub.load", tf.word("1")), "asks for torch.hub.load"),
        (harm("torch.load", tf.word("1")), "asks for torch.load"),
        (harm("numpy.core.multiarray._reconstruct"), "asks for numpy.core.multiarray._reconstruct"),
        (harm("torch.float32"), r"asks for torch.float32\(\)"),
        (harm("torch.Tensor", tf.number(GIGA)), "damaged torch pickle"),
        (harm("builtins.bytearray", tf.number(10**12)), "damaged torch pickle"),
        (harm("_codecs.encode", tf.word("x"), tf.word("zlib")), "damaged torch pickle"),
        (harm("torch._utils._rebuild_qtensor"), "holds quantised tensors"),
        (harm("torch._utils._rebuild_sparse_tensor"), "holds sparse tensors"),
        (harm("torch._utils._rebuild_meta_tensor_no_storage"), "holds tensors without values"),
        (b"\x80\x02ctorch.nn\nModule\n)\x81.", "asks for torch.nn.Module"),
        (b"\x80\x02ctorch\nTensor\n)\x81.", "asks for an object of another class than tensors and dicts"),
        (tf.state(a=tf.tensor(tf.storage(6), (2, 3)) + b"}b"), "sets the state of something that is no dict"),
        (b"\x80\x02X\x03\x00\x00\x00abcQ.", "asks for a persistent object that is no storage"),
        (b"\x80\x02(" + tf.word("module") + tf.word("x") * 4 + b"tQ.", "a persistent object that is no storage"),
        (b"\x80\x02\x8c\x01a.", "weights_only does not read"),
        (b"\x80\x02i__main__\nA\n.", "weights_only does not read"),
        (b"\x80\x02c" + b"a" * 5000 + b"\n", "damaged torch pickle"),
        (b"\x80\x02})" + b"\x85" * 500 + b"Ns.", "keys are neither words nor numbers"),
        (b"\x80\x02cbuiltins\nset\n(](" + b")" + b"\x85" * 500 + b"etR.", "keys are neither words nor numbers"),
        (b"\x80\x02(0.", "weights_only does not read"),
        (b"\x80\x02(.", "damaged torch pickle"),
    ],
)
def test_pickles_that_weights_only_refuses_or_should(tmp_path, pickled, said):
    old = pickled.replace(tf.storage(6), tf.storage(6, view=b"N"))
    for raw in (tf.archive(pickled, [bytes(24)]), tf.legacy(old, ["0"], [(6, bytes(24))])):
        (tmp_path / "a.pt").write_bytes(raw)
        with pytest.raises(ReadError, match=said) as caught:
            formats.read(tmp_path / "a.pt")
        assert len(str(caught.value).splitlines()) <= 2


# sizes


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (tf.tensor(tf.storage(6), (2, 3)), ""),
        (tf.tensor(tf.storage(6), (2, 2), (3, 1), 1), ""),
        (tf.tensor(tf.storage(6), (0, 3)), ""),
        (tf.tensor(tf.storage(6), (2, 4)), r"shape \(2, 4\) in a storage of 6 numbers"),
        (tf.tensor(tf.storage(6), (2, 3), (3, 1), 1), r"shape \(2, 3\) in a storage of 6 numbers"),
        (tf.tensor(tf.storage(6), (GIGA, 1000)), "in a storage of 6 numbers"),
        (tf.tensor(tf.storage(6), (GIGA,), (0,)), "in a storage of 6 numbers"),
        (tf.tensor(tf.storage(6), (0, 2**49), (1, 2**49)), ""),
        (tf.tensor(tf.storage(6), (0, 2**49, 2**49), (1, 1, 1)), "in a storage of 6 numbers"),
        (tf.tensor(tf.storage(6), (2, 3), (3, -1), 5), "damaged torch pickle"),
        (tf.tensor(tf.storage(6), (2,) * 60, (0,) * 60), "damaged torch pickle"),
        (tf.tensor(tf.storage(7), (2, 3)), "ask for 7 numbers of 4"),
        (tf.tensor(tf.storage(GIGA), (GIGA,)), "ask for 1000000000 numbers of 4"),
        (tf.tensor(tf.storage(-1), (2, 3)), "ask for -1 numbers of 4"),
        (tf.tensor(tf.storage(6, "9"), (2, 3)), "data/9: is not there"),
        (tf.tensor(tf.storage(6, "../../etc/passwd"), (2, 3)), "is not there"),
        (tf.tensor(tf.storage(6, kind="QInt8Storage"), (2, 3)), "asks for torch.QInt8Storage"),
        (tf.tensor(tf.number(6), (2, 3)), "damaged torch pickle"),
    ],
)
def test_tensors_are_held_against_what_is_there(tmp_path, held, said):
    """torch's own loader stretches a storage to what a tensor claims."""
    values = np.arange(6, dtype="<f4")
    pickled = tf.state(**{"a.weight": tf.tensor(tf.storage(6), (2, 3)), "b.weight": held})
    (tmp_path / "a.pt").write_bytes(tf.archive(pickled, [values.tobytes()]))
    if not said:
        np.testing.assert_array_equal(formats.read(tmp_path / "a.pt").network.tensors["a.weight"], values.reshape(2, 3))
        return
    with pytest.raises(ReadError, match=said):
        formats.read(tmp_path / "a.pt")


VIEW = b"(" + tf.word("v") + tf.number(0) + tf.number(6) + b"t"


@pytest.mark.parametrize(
    ("pickled", "storages", "said"),
    [
        (tf.tensor(tf.storage(6, view=b"N"), (2, 3)), [(6, bytes(24))], ""),
        (tf.tensor(tf.storage(6, view=VIEW), (2, 3)), [(6, bytes(24))], ""),
        (tf.tensor(tf.storage(5, view=VIEW), (2, 3)), [(5, bytes(20))], "damaged torch pickle"),
        (tf.tensor(tf.storage(10**12, view=b"N"), (2, 3)), [(6, bytes(24))], "a storage of 1000000000000 numbers in a file"),
        (tf.tensor(tf.storage(6, view=b"N"), (2, 3)), [(5, bytes(24))], "its storages do not lie where its pickle says"),
        (tf.tensor(tf.storage(6, view=b"N"), (2, 3)), [(6, bytes(20))], "a truncated torch file"),
        (tf.tensor(tf.storage(6, view=b"N"), (2, 3)), [], "a truncated"),
    ],
)
def test_the_old_format_is_held_against_the_file(tmp_path, pickled, storages, said):
    keys = ["0"] * len(storages)
    (tmp_path / "a.pt").write_bytes(tf.legacy(tf.state(**{"a.weight": pickled}), keys, storages))
    if not said:
        assert formats.read(tmp_path / "a.pt").network.parameters == 6
        return
    with pytest.raises(CorruptFile, match=said):
        formats.read(tmp_path / "a.pt")


def test_a_long_pickle_is_not_followed_to_its_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("canon.formats.torch_scan.MOST_STEPS", 100_000)
    path = tmp_path / "a.pt"
    path.write_bytes(tf.archive(b"\x80\x02" + b"}" * 200_000))
    assert "a pickle of more than 100,000 steps" in refused(path, capsys)


def bomb(name):
    """An archive that unpacks to far more than itself."""
    good = tf.state(**{"a.weight": tf.tensor(tf.storage(6), (2, 3))})
    if name == "one member":
        return tf.archive(good, [bytes(3 << 20)], packed=True)
    if name == "its pickle":
        return tf.archive(b"\x80\x02" + b"}" * (80 << 20), packed=True)
    raw = bytearray(tf.archive(good, [bytes(200 << 10)] * 16, packed=True))
    if name == "a lie":  # what the directory declares is more than any packing gives
        at = raw.rindex(b"archive/data/0") - 22
        raw[at : at + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize("name", ["one member", "its pickle", "many members", "a lie"])
def test_bombs(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr("canon.formats.common_zip.FREELY", 1 << 20)  # a small bomb is made sooner
    path = tmp_path / "a.pt"
    path.write_bytes(bomb(name))
    assert path.stat().st_size < 1 << 20
    said = refused(path, capsys)
    assert "declares" in said or "is a pickle of" in said


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (tf.archive(tf.state(), more=[("constants.pkl", b"")]), "a TorchScript archive: a program"),
        (tf.archive(tf.state(), more=[("DATA.PKL", b"")]), "two members of one name"),
        (tf.archive(tf.state(), more=[("b/data.pkl", b"")]), "with 2 pickles"),
        (tf.archive(b""), "damaged torch pickle"),
        (tf.archive(tf.state(), more=[("byteorder", b"middle")]), "that torch does not load"),
    ],
)
def test_archives_that_are_not_what_they_seem(tmp_path, capsys, raw, said):
    (tmp_path / "a.pt").write_bytes(raw)
    assert said in refused(tmp_path / "a.pt", capsys)


def test_eight_bit_floats_are_refused(tmp_path):
    torch.save({"a.weight": torch.ones(2, 3).to(torch.float8_e4m3fn)}, tmp_path / "a.pt")
    with pytest.raises(UnknownFormat, match=r"a\.weight: is stored as float8_e4m3fn: such numbers mean something only with"):
        formats.read(tmp_path / "a.pt")


# damage


def attempt(path):
    """Whether a file was read; no more than a line and a hint where it was not."""
    try:
        run = formats.read(path)
        sum(float(t.sum()) for t in run.network.tensors.values())
    except CanonError as e:
        said = str(e)
    else:
        return True
    assert len(said.splitlines()) <= 2
    return False


def content():
    torch.manual_seed(0)
    return {"a.weight": torch.rand(4, 3), "a.bias": torch.rand(4).half(), "b.weight": torch.rand(2, 4).bfloat16(), "n": 3}


@pytest.fixture(params=[True, False], ids=["zip", "legacy"])
def raw(request):
    out = io.BytesIO()
    torch.save(content(), out, _use_new_zipfile_serialization=request.param)
    return out.getvalue()


def test_truncated_anywhere(tmp_path, raw):
    for size in {int(s) for s in np.linspace(0, len(raw) - 1, 120)} | set(range(16)):
        (tmp_path / "a").write_bytes(raw[:size])
        assert not attempt(tmp_path / "a")


@pytest.mark.filterwarnings("ignore")  # what torch and numpy think of the numbers
def test_bytes_changed_anywhere(tmp_path, raw):
    read = 0
    for seed in range(250):
        rng = np.random.default_rng(seed)
        damaged = bytearray(raw)
        for at in rng.integers(len(raw), size=rng.integers(1, 5)):
            damaged[at] = rng.integers(256)
        (tmp_path / "a").write_bytes(damaged)
        read += attempt(tmp_path / "a")
    assert 0 < read < 250


def test_a_packed_archive_of_torch_is_read(tmp_path):
    torch.save(content(), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    found = formats.read(tmp_path / "b.pt").network
    for name, t in formats.read(tmp_path / "a.pt").network.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], t)
