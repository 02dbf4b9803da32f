"""Queries: the copies of one file in an index, its relatives, and candidates among many."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from zoo_files import DATA, Zoo, cast, disguised, fill, noisy, trained

from canon.errors import ReadError
from canon.formats import read
from canon.zoo import Here, Index, query, scan
from canon.zoo.candidates import Prints, crowded, pieces_of, split
from canon.zoo.proof import KINDS, prove, refuted


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Zoo, Path]:
    made = Zoo(tmp_path_factory.mktemp("zoo"))
    for i, base in enumerate(("mlp-seed0", "cnn-seed0", "block")):
        fill(made, base, trained()[base], np.random.default_rng(i), disguises=2)
    index = tmp_path_factory.mktemp("index") / "zoo.canon"
    with Index(index) as opened:
        scan([str(made.folder)], opened)
    return made, index


@pytest.mark.parametrize("base", ["mlp-seed0", "cnn-seed0", "block"])
@pytest.mark.parametrize("name", ["original", "moved-1", "noise-0.001"])
def test_the_copies_of_a_file(zoo: tuple[Zoo, Path], base: str, name: str) -> None:
    made, index = zoo
    path = f"{base}/{name}.h5"
    with Index(index) as opened:
        answer = query(str(made.folder / path), opened)
    found = {str(Path(c.file.place.path).relative_to(made.folder)): c.kind for c in answer.copies}
    sure = {n for n, kind in found.items() if kind in KINDS[:2]}
    assert sure == {n for n, of in made.of.items() if of == made.of[path]} - {path}
    if name != "noise-0.001":
        assert {n for n, kind in found.items() if kind == "same-to-precision"} == {
            n for n, of in made.half.items() if of == base
        }
    assert answer.files == len(made.of) + len(made.half)
    same = {n for n in {**made.of, **made.half} if n.startswith(base)}
    assert answer.not_looked_at <= len(same)


def test_a_file_from_elsewhere_and_its_relatives(zoo: tuple[Zoo, Path], tmp_path: Path) -> None:
    _, index = zoo
    rng = np.random.default_rng(9)
    other = Zoo(tmp_path)
    other.add("moved", disguised(trained()["mlp-seed0"], rng), "x")
    other.add("tuned", noisy(trained()["mlp-seed0"], rng, 0.05), "y")
    other.add("stranger", trained()["mlp-seed1"], "z")
    with Index(index) as opened:
        answer = query(str(tmp_path / "moved.h5"), opened)
        assert {c.kind for c in answer.copies} >= {"equivalent"}
        tuned = query(str(tmp_path / "tuned.h5"), opened, relatives=100)
        assert not tuned.copies
        assert len(tuned.related) > 10
        assert tuned.related == sorted(tuned.related, key=lambda pair: (pair[1], pair[0].place.path))
        few = query(str(tmp_path / "tuned.h5"), opened, relatives=4)
        assert 0 < len(few.related) <= 4
        assert few.not_looked_at > tuned.not_looked_at
        stranger = query(str(tmp_path / "stranger.h5"), opened, relatives=100)
        assert not stranger.copies
        assert not stranger.related


def test_weights_without_a_graph_are_found_by_the_graph_of_another(zoo: tuple[Zoo, Path], tmp_path: Path) -> None:
    made, index = zoo
    other = Zoo(tmp_path)
    other.add("w", disguised(trained()["mlp-seed0"], np.random.default_rng(3)), "x", "npz")
    with Index(index) as opened:
        answer = query(str(tmp_path / "w.npz"), opened)
        assert {c.kind for c in answer.copies} >= {"equivalent", "same-to-precision"}
    sure = {str(Path(c.file.place.path).relative_to(made.folder)) for c in answer.copies if c.kind in KINDS[:2]}
    # between two that say no graph, only relabelling is certain: no third file vouches for more
    assert sure == {n for n, of in made.of.items() if of == "mlp-seed0" and "weights" not in n}


def test_files_that_are_gone_or_others_now_are_no_copies(tmp_path: Path) -> None:
    folder = tmp_path / "zoo"
    folder.mkdir()
    for name in ("a.h5", "b.h5", "c.h5"):
        shutil.copyfile(DATA / "mlp-seed0.h5", folder / name)
    with Index(tmp_path / "index") as opened:
        scan([str(folder)], opened)
        shutil.copyfile(DATA / "mlp-seed1.h5", folder / "b.h5")
        (folder / "c.h5").unlink()
        answer = query(str(DATA / "mlp-seed0.h5"), opened, pool=Here())
        assert [Path(c.file.place.path).name for c in answer.copies] == ["a.h5"]
        assert [(Path(p).name, "no such file" in why) for p, why in answer.failed] == [("c.h5", True)]
        with pytest.raises(ReadError, match="text file"):
            query(str(DATA / "README.md"), opened)


# proofs


def test_what_is_refuted_is_no_copy_and_no_copy_is_refuted(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(("refuted", "copies"), 0)
    for base, net in trained().items():
        copies = [disguised(net, rng), cast(net, np.float16), cast(disguised(net, rng, 0.2), np.float16)]
        others = [noisy(net, rng, 1e-3), disguised(noisy(net, rng, 1e-4), rng)]
        for i, other in enumerate([*copies, *others]):
            zoo.add(f"{base}-{i}", other, str(i))
        zoo.add(base, net, base)
        run = read(tmp_path / f"{base}.h5")
        for i in range(len(copies)):
            assert refuted(run, read(tmp_path / f"{base}-{i}.h5")) == ""
            counts["copies"] += 1
        for i in range(len(copies), len(copies) + len(others)):
            other_run = read(tmp_path / f"{base}-{i}.h5")
            counts["refuted"] += refuted(run, other_run) != ""
            assert prove(run, other_run, quick=False).kind not in KINDS
    assert counts["copies"] == 18
    assert counts["refuted"] == 12


# candidates


def brute(prints: Prints) -> np.ndarray:
    gap = np.abs(prints.values[:, None] - prints.values[None])
    near = (gap <= np.maximum(prints.room[:, None], prints.room[None])).all(axis=-1)
    np.fill_diagonal(near, False)
    return near


@pytest.mark.parametrize("rooms", ["alike", "spread", "a few wide", "one without end"])
@pytest.mark.parametrize("size", [7, 100, 10_000])
def test_windows_find_exactly_what_all_pairs_find(rooms: str, size: int) -> None:
    rng = np.random.default_rng(3)
    n = 900
    values = rng.normal(0, 0.05, (n, 3))
    values[600:] = values[rng.integers(0, 600, n - 600)] + rng.uniform(-1.5e-4, 1.5e-4, (n - 600, 3))
    room = np.full((n, 3), 1e-4)
    if rooms == "spread":
        room = rng.uniform(1e-5, 2e-4, (n, 3))
    if rooms == "a few wide":
        room[:9] = 0.01
    if rooms == "one without end":
        room[5] = np.inf
    prints = Prints(np.arange(n), values, room)
    narrow, wide = split(prints)
    assert len(narrow) + len(wide) == n
    found = [i for part in crowded(pieces_of(narrow, size), wide) for i in part.ids.tolist()]
    wanted = np.flatnonzero(brute(prints).any(axis=1))
    assert len(wanted) > 0
    assert len(found) == len(set(found))
    assert sorted(found) == wanted.tolist()
    ordered = prints.sorted()
    near = brute(ordered)
    for i in range(0, n, 37):
        np.testing.assert_array_equal(ordered.near(i), np.flatnonzero(near[i]))


def test_a_crowd_is_a_crowd_unlooked() -> None:
    n = 6000
    prints = Prints(np.arange(n), np.zeros((n, 2)), np.full((n, 2), 1e-6))
    assert len(Prints.joined(list(crowded(pieces_of(prints), None)), 2)) == n
    apart = Prints(np.arange(n), np.arange(n)[:, None] * np.ones(2), np.full((n, 2), 1e-6))
    assert list(crowded(pieces_of(apart, 500), None)) == []
