"""The short ways: numbers read from a file's bytes, and figures without folding, give what the long ways give."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from keras_files import mlp
from zoo_files import DATA, Zoo, disguised, noisy, other_numbers, trained

from canon.formats import read
from canon.formats.common_raw import raw
from canon.network import Network
from canon.zoo.fingerprint import Figures, Fingerprint, fingerprint
from canon.zoo.places import Place, find
from canon.zoo.plans import Plans
from canon.zoo.reading import Asked, Reader, Record

FILES = sorted(p.name for p in DATA.glob("*.h5"))


def assert_same(a: Fingerprint, b: Fingerprint) -> None:
    assert (a.structure, a.tensors) == (b.structure, b.tensors)
    for x, y in ((a.figures, b.figures), (a.outputs, b.outputs), (a.order, b.order)):
        assert x.kind == y.kind
        np.testing.assert_allclose(x.values, y.values, rtol=1e-9, atol=1e-9)


def places(*paths: Path) -> list[Place]:
    return [place for path in paths for place in find(str(path))]


def counted(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read by the library from now on."""
    calls: list[Path] = []

    def spy(path: Path) -> object:
        calls.append(path)
        return read(path)

    monkeypatch.setattr("canon.zoo.reading.read", spy)
    return calls


# plans


@pytest.mark.parametrize("name", FILES)
def test_a_plan_gives_what_folding_gives(name: str) -> None:
    network = read(DATA / name).network
    rng = np.random.default_rng(0)
    plans = Plans()
    first, plan = plans.fingerprint(network)
    assert_same(first, fingerprint(network))
    assert plan.paths is not None
    others = [noisy(network, rng, 0.1), disguised(network, rng), network]
    stacked = {n: np.stack([o.tensors[n] for o in others]) for n in network.tensors}
    for found, other in zip(plan.fingerprints(stacked), others, strict=True):
        assert_same(found, fingerprint(other))
        again, same_plan = plans.fingerprint(other)
        assert same_plan is plan
        assert_same(again, fingerprint(other))


def with_unit(network: Network, kernel: str, bias: str, unit: int, row: float, value: float) -> Network:
    w, b = network.tensors[kernel].copy(), network.tensors[bias].copy()
    w[unit], b[unit] = row, value
    return network.with_tensors({kernel: w, bias: b})


@pytest.mark.parametrize(
    ("layer", "row", "value"),
    [(0, 0.0, 0.7), (0, 0.0, 0.0), (1, 0.0, -0.3), (1, -0.2, -0.1)],
    ids=["constant", "dead", "silent", "never active"],
)
def test_units_that_folding_treats_apart_go_the_long_way(layer: int, row: float, value: float) -> None:
    network = read(DATA / "mlp-seed0.h5").network
    dense = [op for op in network.ops if op.kind == "dense"]
    odd = with_unit(network, dense[layer].params["kernel"], dense[layer].params["bias"], 3, row, value)
    plans = Plans()
    plans.fingerprint(network)
    found, _ = plans.fingerprint(odd)
    assert_same(found, fingerprint(odd))
    plain = fingerprint(network).figures.values
    assert np.abs(np.subtract(found.figures.values, plain)).max() > 1e-4


def test_graphs_of_which_no_plan_is_known_go_the_long_way(tmp_path: Path) -> None:
    block = trained()["block"]
    plans = Plans()
    first, plan = plans.fingerprint(block)
    assert plan.paths is None
    assert first.figures.kind == "moments"
    other = disguised(block, np.random.default_rng(0))
    assert_same(plans.fingerprint(other)[0], fingerprint(other))
    sigmoid = read(mlp(tmp_path / "s.h5", act="sigmoid")).network  # flips move constants into biases
    assert plans.fingerprint(sigmoid)[1].paths is None


# numbers from bytes


@pytest.mark.parametrize("name", FILES)
def test_a_file_like_one_before_is_read_from_its_bytes(name: str) -> None:
    data = (DATA / name).read_bytes()
    run = read(DATA / name)
    found = raw(DATA / name, run, data)
    assert found is not None
    assert found.fits(data)
    for tensor, t in found.stacked([data, data]).items():
        np.testing.assert_array_equal(t[1], run.network.tensors[tensor])
    rest = found.rest[0]
    assert not found.fits(data[:-1])
    assert not found.fits(data[: rest[0] + 9] + bytes([data[rest[0] + 9] ^ 1]) + data[rest[0] + 10 :])
    at = found.numbers[0].at
    changed = data[:at] + np.float32(7.0).tobytes() + data[at + 4 :]
    assert found.fits(changed)
    tensors = found.stacked([changed])
    assert sum(int((tensors[n][0] != t).sum()) for n, t in run.network.tensors.items()) == 1


def test_when_a_dataset_was_made_and_an_optimisers_state_are_no_part_of_it(tmp_path: Path) -> None:
    first = mlp(tmp_path / "0.h5", optimizer=True)
    with h5py.File(first, "a") as f:
        f.create_dataset("optimizer_weights/m", data=np.zeros(500))
        f.create_dataset("made", data=np.zeros(4, "f4"), track_times=True)
    found = raw(first, read(first), first.read_bytes())
    assert found is not None
    second = other_numbers(first, tmp_path / "1.h5", 1)
    assert not found.fits(second.read_bytes())  # a dataset that is neither a tensor nor an optimiser's
    with h5py.File(second, "r+") as f:
        f["made"][...] = 0
    assert found.fits(second.read_bytes())
    stamps = set(range(found.size)) - {i for a, b, _ in found.rest for i in range(a, b)}
    stamps -= {i for n in found.numbers for i in range(n.at, n.end)}
    assert len(stamps) == 4 + 8 * 500 + 8 + 8 * 9  # a time of four bytes; moments, steps and what else the optimiser holds
    plain = shutil.copyfile(first, tmp_path / "old.h5")
    with h5py.File(plain, "w", track_order=False) as f:
        f.create_dataset("dense_0/kernel", data=np.ones((3, 4), "f4"), track_times=True)
    assert raw(plain, read(first), plain.read_bytes()) is None  # it is no longer the run's file


@pytest.mark.parametrize("how", [{"compression": "gzip"}, {"chunks": (2, 2)}, {"dtype": ">f4"}], ids=str)
def test_numbers_that_are_packed_or_turned_are_left_to_the_library(tmp_path: Path, how: dict[str, object]) -> None:
    path = mlp(tmp_path / "a.h5")
    with h5py.File(path, "a") as f:
        group = f["model_weights/dense_0"]
        values = group["dense_0/kernel:0"][()]
        del group["dense_0/kernel:0"]
        group.create_dataset("dense_0/kernel:0", data=values.astype(how.pop("dtype", "<f4")), **how)
    assert raw(path, read(path), path.read_bytes()) is None
    (record,) = Reader().records(places(path))
    assert_same(record.found[0], fingerprint(read(path).network))


def test_a_reader_asks_the_library_once_for_files_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = mlp(tmp_path / "00.h5", (4, 6, 5, 3))
    paths = [first, *(other_numbers(first, tmp_path / f"{i:02}.h5", i) for i in range(1, 40))]
    bad = bytearray(paths[7].read_bytes())
    at = raw(paths[7], read(paths[7]), bytes(bad))
    assert at is not None
    bad[at.numbers[0].at : at.numbers[0].at + 4] = np.float32(np.nan).tobytes()
    paths[7].write_bytes(bytes(bad))
    reader = Reader(Asked())
    calls = counted(reader, monkeypatch)
    records: list[Record] = reader.records(places(*paths))
    assert [r.place.path for r in records] == [str(p) for p in paths]
    assert calls == [paths[0]]
    for i, record in enumerate(records):
        if i == 7:
            assert "1 of 24 values are NaN" in record.error
            assert not record.again
        else:
            assert_same(record.found[0], fingerprint(read(paths[i]).network))


def test_probes_are_run_where_cheap_or_asked_for(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    zoo.add("net", trained()["cnn-seed0"], "a")
    (path,) = tmp_path.iterdir()
    for asked, kind in ((None, "outputs"), (True, "outputs"), (False, "")):
        (record,) = Reader(Asked(asked)).records(places(path))
        assert record.found[0].outputs.kind == kind
    assert Figures("").values == ()
