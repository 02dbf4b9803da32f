"""Activations in and out of files: HDF5, .npz, .csv, canon's own; sample names; recording; inputs and axes."""

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from canon.errors import CorruptFile, MismatchError, NotFinite, ReadError, UnknownFormat, UsageError
from canon.formats import read
from canon.formats.arrays import arrays, recorded
from canon.network import Network
from canon.ops import Op
from canon.run import Run
from canon.similarity import Computed, Options, Probes, Stored, similarity
from canon.similarity.activations import Extent
from canon.similarity.choosing import Given, Request, sources
from canon.similarity.probes import from_file, same_samples, stored
from canon.similarity.recording import record
from canon.similarity.values import layers, unit_axes

DATA = Path(__file__).parents[1] / "data"
R = np.random.default_rng(0)
X = R.standard_normal((40, 3))
IDS = [f"image {i}" for i in range(40)]


def write(path, name="layer", values=X, ids=None, **more):
    """One array in a file, the format by its ending."""
    if path.suffix == ".csv":
        header = ["sample_id"] * (ids is not None) + [f"unit {j}" for j in range(values.shape[1])]
        rows = [([ids[i]] if ids is not None else []) + [repr(float(v)) for v in row] for i, row in enumerate(values)]
        path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    elif path.suffix == ".npz":
        np.savez(path, **{name: values, **more}, **({} if ids is None else {"sample_ids": np.array(ids)}))
    else:
        with h5py.File(path, "w") as f:
            for key, value in {name: values, **more}.items():
                f[key] = value
                if ids is not None:
                    f[key].attrs["sample_ids"] = ids
    return path


def compared(a, b, **kw):
    request = Request(**kw)
    return similarity(*sources([Given(str(p), None) for p in (a, b)], request), Options(("cka",), permutations=0))


@pytest.mark.parametrize("ending", [".h5", ".npz", ".csv"])
def test_an_array_in_any_file(tmp_path, ending):
    a = write(tmp_path / f"a{ending}", ids=IDS)
    found = arrays(a)
    name, entry = next(iter(found.entries.items()))
    assert (name, entry.shape) == ("layer" if ending != ".csv" else "a", (40, 3))
    assert entry.ids == tuple(IDS)
    with found.opened() as rows:
        np.testing.assert_array_equal(rows(name, 5, 9), X[5:9])
    b = write(tmp_path / f"b{ending}", values=X[:, ::-1], ids=IDS)
    result = compared(a, b)
    assert result.identity == "agree"
    assert result.layers[0].measures["cka"].value == pytest.approx(1)
    unnamed = compared(a, write(tmp_path / f"c{ending}"))
    assert unnamed.identity is None
    assert any("could not be checked: b does not name its samples" in note for note in unnamed.notes)


@pytest.mark.parametrize("ending", [".h5", ".npz", ".csv"])
def test_other_samples_are_refused(tmp_path, ending):
    a = write(tmp_path / f"a{ending}", ids=IDS)
    swapped = [IDS[1], IDS[0], *IDS[2:]]
    with pytest.raises(MismatchError, match="stand in another order: sample 0 is 'image 0' in one and 'image 1' in the other"):
        compared(a, write(tmp_path / f"b{ending}", ids=swapped))
    with pytest.raises(MismatchError, match="'image 7' is in one only"):
        compared(a, write(tmp_path / f"b{ending}", ids=[*IDS[:7], "another", *IDS[8:]]))
    with pytest.raises(MismatchError, match="40 samples and 39"):
        compared(a, write(tmp_path / f"b{ending}", values=X[:39], ids=IDS[:39]))
    if ending != ".csv":
        with pytest.raises(CorruptFile, match="names 39 samples, and there are 40"):
            compared(a, write(tmp_path / f"b{ending}", ids=IDS[:39]))


def test_numbers_and_text_name_the_same_samples(tmp_path):
    a = write(tmp_path / "a.h5", ids=list(range(40)))
    b = write(tmp_path / "b.csv", ids=[str(i) for i in range(40)])
    assert compared(a, b).identity == "agree"
    assert same_samples(("a", "a", "b"), ("a", "b", "b")).startswith("the samples stand in another order")


def test_bad_values_are_named(tmp_path):
    bad = X.copy()
    bad[31, 1] = np.nan
    a = write(tmp_path / "a.h5")
    for ending in (".h5", ".npz"):
        with pytest.raises(NotFinite, match="layer: 1 of 120 activations are NaN or infinite, the first at sample 31, unit 1"):
            compared(a, write(tmp_path / f"b{ending}", values=bad))
    half = bad.astype(np.float16)
    half[31, 1] = np.inf
    with pytest.raises(NotFinite, match="sample 31, unit 1"):
        compared(a, write(tmp_path / "b.h5", values=half))
    with pytest.raises(UsageError, match="one sample"):
        compared(*(write(tmp_path / f"{k}.h5", values=X[:1]) for k in "cd"))


def test_tables_that_are_none(tmp_path):
    path = tmp_path / "a.csv"
    for text, said in (
        ("1,2\n3\n", "line 2: has 1 columns, and the first has 2"),
        ("u,v\n1,2\n1,x\n", "line 3: 'x' is not a number"),
        ("u,v\n", "without a line of numbers"),
        ("", "without a line of numbers"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CorruptFile, match=said):
            arrays(path)
    path.write_bytes(b"\xff\xfe\0\0")
    with pytest.raises(CorruptFile, match="not a table of text"):
        arrays(path)
    path.write_text("1.5,2\n-3,4e1\n", encoding="utf-8")  # no names
    with arrays(path).opened() as rows:
        np.testing.assert_array_equal(rows("a", 0, 2), [[1.5, 2], [-3, 40]])
    (tmp_path / "b.txt").write_text("1,2\n", encoding="utf-8")
    with pytest.raises(UnknownFormat, match="no arrays of samples that canon reads"):
        arrays(tmp_path / "b.txt")
    with pytest.raises(ReadError, match="no such file"):
        arrays(tmp_path / "c.csv")


def test_archives_are_not_trusted(tmp_path):
    np.savez(tmp_path / "a.npz", layer=np.array([{}], dtype=object))
    with pytest.raises(CorruptFile, match="holds objects"):
        arrays(tmp_path / "a.npz")
    import zipfile

    with zipfile.ZipFile(tmp_path / "b.npz", "w") as f:
        f.writestr(
            "layer.npy",
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9), }".ljust(128),
        )
    with pytest.raises(CorruptFile, match=r"layer\.npy"):
        arrays(tmp_path / "b.npz")


def test_arrays_are_named(tmp_path):
    a = write(tmp_path / "a.h5", "deep/one", two=X[:30], **{"deep/three": X})
    assert list(arrays(a, "deep").entries) == ["one", "three"]
    with pytest.raises(UsageError, match="no dataset 'missing'"):
        arrays(a, "missing")
    with pytest.raises(UsageError, match="two has 30 samples and deep/one 40"):
        compared(a, a)
    result = compared(a, a, activations=("deep/one", "deep/three"))
    assert [(p.a, p.b) for p in result.layers] == [("deep/one", "deep/three")]
    assert result.layers[0].measures["cka"].value == pytest.approx(1)
    assert [(p.a, p.b) for p in compared(a, a, activations=("deep",), layers=("t*",)).layers] == [("three", "three")]
    with pytest.raises(UsageError, match="has no layer 'four'"):
        compared(a, a, activations=("deep",), layers=("four",))


def test_an_axis_of_units_is_not_guessed(tmp_path):
    image = R.standard_normal((20, 4, 3, 2))
    first, last = (write(tmp_path / f"{k}.h5", values=v) for k, v in (("f", np.moveaxis(image, 3, 1)), ("l", image)))
    with pytest.raises(UsageError, match="does not say which axis is that of its units"):
        compared(last, last)
    made = [sources([Given(str(p), None)], Request(channels=c))[0] for p, c in ((first, "first"), (last, "last"))]
    assert made[0].layers == made[1].layers == {"layer": Extent(12, 2)}
    rows = [np.concatenate([b["layer"] for b in s.batches(["layer"], 7)]) for s in made]
    np.testing.assert_array_equal(*rows)
    np.testing.assert_array_equal(rows[0], image.reshape(-1, 2))
    flat = sources([Given(str(last), None)], Request(positions="units"))[0]
    assert flat.layers == {"layer": Extent(1, 24)}


# recording


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_record_and_read_back(tmp_path):
    run, probes = read(DATA / "cnn-seed0.h5"), from_file(f"{DATA}/digits.npz:square")
    before = digest(DATA / "cnn-seed0.h5"), digest(DATA / "digits.npz")
    shapes = record([run], probes, tmp_path / "out.h5")
    assert shapes == {"relu_1": (497, 8, 8, 8), "relu_2": (497, 12, 4, 4), "dense_1": (497, 10)}
    assert before == (digest(DATA / "cnn-seed0.h5"), digest(DATA / "digits.npz"))
    with h5py.File(tmp_path / "out.h5") as f:
        assert f["activations/0/square/relu_1"].dtype == np.float32
        assert list(f["activations/0/square/relu_1"].attrs["sample_ids"][:3]) == list(
            f["probes/square"].attrs["sample_ids"][:3]
        )
        np.testing.assert_array_equal(f["probes/square"][:], np.load(DATA / "digits.npz")["square"])
    back = read(tmp_path / "out.h5")
    assert [op.name for op in back.network.ops] == [op.name for op in run.network.ops]
    kept = recorded(tmp_path / "out.h5", "0")["square"]
    a = Stored(kept, "recorded", outputs=frozenset(["dense_1"]))
    b = Computed(run, probes)
    assert a.ids == b.ids
    assert {n: (e.positions, e.units) for n, e in a.layers.items()} == {n: (e.positions, e.units) for n, e in b.layers.items()}
    for name in b.layers:
        here, there = (np.concatenate([x[name] for x in s.batches([name], 100)]) for s in (a, b))
        np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-6)
    assert stored(back)["square"].samples == 497
    result = similarity(a, b, Options(("cka",), permutations=0))
    assert result.identity == "agree"


def test_record_every_checkpoint_and_add_to_what_is_there(tmp_path):
    path = DATA / "mlp-run.h5"
    steps = read(path).checkpoints
    runs = [read(path, checkpoint=s) for s in steps]
    probes = from_file(f"{DATA}/digits.npz:flat").first(50)
    record(runs, probes, tmp_path / "a.h5", dtype="float64")
    with h5py.File(tmp_path / "a.h5") as f:
        assert sorted(f["activations"], key=int) == list(steps)
        assert f["activations/40/flat/dense_2"].shape == (50, 32)
        assert f["activations/40/flat/dense_2"].dtype == np.float64
        assert set(f["checkpoints"]) == set(steps)
    again = read(tmp_path / "a.h5")
    record([again], stored(again)["flat"], tmp_path / "b.h5", patterns=["dense_1/pre"])  # takes the place of the earlier one
    with h5py.File(tmp_path / "b.h5") as f:
        assert list(f["activations/40/flat/dense_1"]) == ["pre"]
        assert f["activations/20/flat/dense_2"].shape == (50, 32)
    with pytest.raises(UsageError, match="holds other probes called 'flat' already"):
        record([again], from_file(f"{DATA}/digits.npz:flat"), tmp_path / "c.h5")
    assert not (tmp_path / "c.h5").exists()
    record([again], from_file(f"{DATA}/digits.npz:flat"), tmp_path / "c.h5", name="more")
    assert set(stored(read(tmp_path / "c.h5"))) == {"flat", "more"}


def test_a_recording_appears_whole_or_not_at_all(tmp_path):
    run = read(DATA / "mlp-seed0.h5")
    bad = R.standard_normal((60, 64))
    bad[50, 3] = np.nan
    probes = from_file(str(write(tmp_path / "p.h5", "x", bad)))
    (tmp_path / "out.h5").write_bytes(b"what was there")
    with pytest.raises(NotFinite, match="sample 50, unit 3"):
        record([run], probes, tmp_path / "out.h5")
    assert (tmp_path / "out.h5").read_bytes() == b"what was there"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.h5", "p.h5"]


def test_the_same_recording_has_the_same_bytes(tmp_path):
    run, probes = read(DATA / "mlp-seed0.h5"), from_file(f"{DATA}/digits.npz:flat").first(20)
    found = set()
    for name in "ab":
        record([run], probes, tmp_path / name)
        found.add(digest(tmp_path / name))
        time.sleep(1.1)  # HDF5 stores times in seconds
    assert len(found) == 1


def test_many_sample_names_fit(tmp_path):
    """More than the 64 KB that attributes had room for once."""
    run = read(DATA / "mlp-seed0.h5")
    ids = [f"a rather long name of a sample, number {i}" for i in range(3000)]
    probes = from_file(str(write(tmp_path / "p.npz", "x", R.standard_normal((3000, 64)), ids)))
    record([run], probes, tmp_path / "out.h5")
    assert recorded(tmp_path / "out.h5", "0")["x"].entries["dense_1"].ids == tuple(ids)


def test_which_activations_are_taken(tmp_path):
    runs = [read(DATA / f"mlp-seed{k}.h5") for k in (0, 1)]
    given = [Given(r.path, r) for r in runs]
    assert all("noise" in s.origin for s in sources(given, Request()))
    probes = from_file(f"{DATA}/digits.npz:flat").first(30)
    for k, run in enumerate(runs):
        record([run], probes, tmp_path / f"{k}.h5", name="digits")
    kept = [Given(r.path, r) for r in (read(tmp_path / "0.h5"), read(tmp_path / "1.h5"))]
    assert all(isinstance(s, Stored) and s.origin == "recorded on digits" for s in sources(kept, Request()))
    mixed = sources([kept[0], given[1]], Request())
    assert all(isinstance(s, Computed) and "digits, stored in 0.h5" in s.origin for s in mixed)
    told = sources(kept, Request(probes=f"{DATA}/digits.npz:flat", samples=25))
    assert all(isinstance(s, Computed) and s.samples == 25 for s in told)
    with pytest.raises(UsageError, match=r"holds flat, square, labels; the network's inputs are"):
        sources(given, Request(probes=f"{DATA}/digits.npz"))
    with pytest.raises(UsageError, match="nothing is run"):
        sources(given, Request(probes="x", activations=("y",)))
    table = write(tmp_path / "t.csv")
    with pytest.raises(UsageError, match="a network without recorded activations"):
        sources([given[0], Given(str(table), None)], Request())
    with pytest.raises(UsageError, match="holds no network to run"):
        sources([given[0], Given(str(table), None)], Request(probes=f"{DATA}/digits.npz:flat"))
    assert isinstance(sources([kept[0], Given(str(table), None)], Request())[0], Stored)


# inputs and axes


def two_inputs():
    ops = (
        Op("dense", "left", ("u",), "left", {"kernel": "left/kernel"}),
        Op("dense", "right", ("v",), "right", {"kernel": "right/kernel"}),
        Op("add", "sum", ("left", "right"), "sum"),
    )
    tensors = {f"{side}/kernel": R.standard_normal((5, n)).astype(np.float32) for side, n in (("left", 3), ("right", 4))}
    return Run("two.h5", "by hand", Network(tensors, ops, {"u": (3,), "v": (4,)}, ("sum",)))


def test_several_inputs(tmp_path):
    run = two_inputs()
    u, v = R.standard_normal((30, 3)), R.standard_normal((30, 4))
    np.savez(tmp_path / "p.npz", u=u, v=v, sample_ids=np.arange(30))
    probes = from_file(str(tmp_path / "p.npz"))
    record([run], probes, tmp_path / "out.h5", name="pair", dtype="float64")
    with h5py.File(tmp_path / "out.h5") as f:
        assert set(f["probes/pair"]) == {"u", "v"}
        wanted = u @ run.network.tensors["left/kernel"].T + v @ run.network.tensors["right/kernel"].T
        np.testing.assert_allclose(f["activations/0/pair/sum"][:], wanted, rtol=1e-12)
    again = stored(read(tmp_path / "out.h5"))["pair"]
    assert again.ids == tuple(str(i) for i in range(30))
    here = next(iter(Computed(run, again).batches(["sum"], 30)))["sum"]
    np.testing.assert_allclose(here, wanted, rtol=1e-12)
    np.savez(tmp_path / "half.npz", u=u)
    with pytest.raises(UsageError, match="holds u; the network's inputs are u, v"):
        Computed(run, from_file(str(tmp_path / "half.npz")))
    assert all("noise" in s.origin for s in sources([Given("two.h5", run)] * 2, Request()))


def test_layers_are_what_an_operation_makes_after_its_norm_and_activation():
    assert layers(two_inputs().network) == ("left", "right", "sum")
    assert layers(read(DATA / "cnn-seed0.h5").network) == ("relu_1", "relu_2", "dense_1")
    assert layers(read(DATA / "mlp-run.h5").network) == ("dense_1", "dense_2", "dense_3")


def test_channels_first_and_last_give_the_same_rows():
    """One convolution in both layouts: the axis of units is found, positions come in the same order."""
    kernel, image = R.standard_normal((5, 2, 3, 3)), R.standard_normal((6, 4, 7, 2))
    rows = []
    for channels, x, shape in (("last", image, (4, 7, 2)), ("first", np.moveaxis(image, 3, 1), (2, 4, 7))):
        attrs = {"strides": [1, 1], "dilation": [1, 1], "padding": "same", "channels": channels}
        ops = (Op("conv", "c", ("x",), "c", {"kernel": "k"}, attrs), Op("relu", "r", ("c",), "r"))
        network = Network({"k": kernel}, ops, {"x": shape}, ("r",))
        assert unit_axes(network) == dict.fromkeys("xcr", 1 if channels == "first" else 3)
        inputs = SimpleNamespace(rows=lambda network, first, last, x=x: {"x": x[first:last]})
        for how in ("samples", "units", "mean"):
            source = Computed(Run("x", "by hand", network), Probes("x", "x", 6, None, inputs), positions=how)
            rows.append((how, source.layers["r"], np.concatenate([b["r"] for b in source.batches(["r"], 4)])))
    for (how, extent, last), (_, other, first) in zip(rows[:3], rows[3:], strict=True):
        assert extent == other == {"samples": Extent(28, 5), "units": Extent(1, 140), "mean": Extent(1, 5)}[how]
        np.testing.assert_allclose(first, last, rtol=1e-12)
