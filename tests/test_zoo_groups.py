"""A zoo of known content: no copy missed, no false group, every file that is none listed."""

import os
from pathlib import Path

import numpy as np
import pytest
from zoo_files import Zoo, cast, disguised, fill, noisy, spoil, trained

from canon.compare import compare
from canon.formats import read
from canon.zoo import Found, Here, Index, Processes, dedup, scan
from canon.zoo.groups import rank, why_kept
from canon.zoo.links import plan
from canon.zoo.proof import KINDS, SURE


def look(folder: Path, pool: object = None, relatives: int = 0) -> tuple[Found, list[tuple[str, str]]]:
    with Index() as index:
        scan([str(folder)], index, pool)  # type: ignore[arg-type]
        return dedup(index, pool, relatives), index.unreadable()  # type: ignore[arg-type]


def names(found: Found, folder: Path, kinds: tuple[str, ...] = KINDS) -> set[frozenset[str]]:
    """The groups by file name, members of other kinds left out."""
    out = set()
    for group in found.groups:
        members = [group.keep, *(link.file for link in group.links if link.kind in kinds)]
        if len(members) > 1:
            out.add(frozenset(str(Path(m.place.path).relative_to(folder)) for m in members))
    return out


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    made = Zoo(tmp_path_factory.mktemp("zoo"))
    for i, (base, network) in enumerate(trained().items()):
        fill(made, base, network, np.random.default_rng(i), disguises=2)
    spoil(made.folder)
    return made


@pytest.fixture(scope="module")
def found(zoo: Zoo) -> tuple[Found, list[tuple[str, str]]]:
    return look(zoo.folder, Processes(2))


def test_no_copy_is_missed_and_no_group_is_false(zoo: Zoo, found: tuple[Found, list[tuple[str, str]]]) -> None:
    assert len(zoo.of) + len(zoo.half) > 120
    assert names(found[0], zoo.folder, SURE) == zoo.copies()


def test_casts_are_found_and_stand_by_the_network_they_come_from(zoo: Zoo, found: tuple[Found, list[tuple[str, str]]]) -> None:
    where = {}
    for group in found[0].groups:
        for link in group.links:
            if link.kind == "same-to-precision":
                where[str(Path(link.file.place.path).relative_to(zoo.folder))] = str(
                    Path(group.keep.place.path).relative_to(zoo.folder)
                )
    assert set(where) == set(zoo.half)
    for name, keep in where.items():
        # noise of 1e-6 and 1e-5 rounds to the same half floats: any of the three may be the nearest
        near = {zoo.half[name], *(f"{zoo.half[name]} noise {size}" for size in ("1e-06", "1e-05", "0.0001"))}
        assert zoo.of[keep] in near, (name, keep)


def test_every_file_that_holds_no_network_is_listed(zoo: Zoo, found: tuple[Found, list[tuple[str, str]]]) -> None:
    expected = spoil(zoo.folder)
    told = {str(Path(path).relative_to(zoo.folder)): error for path, error in found[1]}
    assert set(told) == set(expected)
    for name, word in expected.items():
        assert word.lower() in told[name].lower(), (name, told[name])
        assert "\n" not in told[name]


def test_every_link_holds_when_compared_again(zoo: Zoo, found: tuple[Found, list[tuple[str, str]]]) -> None:
    for group in found[0].groups:
        for link in group.links[::5]:
            again = compare(read(group.keep.place.path), read(link.file.place.path))
            assert again.verdict == link.kind, (group.keep.place.path, link.file.place.path)


def test_what_is_kept_is_of_the_finest_type_and_says_its_graph(zoo: Zoo, found: tuple[Found, list[tuple[str, str]]]) -> None:
    for group in found[0].groups:
        assert group.keep == min([group.keep, *(link.file for link in group.links)], key=rank)
        assert group.keep.sort.lends
        if "double.h5" in str(names(Found([group]), zoo.folder)):
            assert group.keep.place.path.endswith("double.h5")
            assert group.why == "of a finer type"


def test_nobody_stands_in_two_groups_and_the_group_is_as_weak_as_its_weakest(
    found: tuple[Found, list[tuple[str, str]]],
) -> None:
    seen = [f.id for group in found[0].groups for f in (group.keep, *(link.file for link in group.links))]
    assert len(seen) == len(set(seen))
    for group in found[0].groups:
        assert group.kind == max((link.kind for link in group.links), key=KINDS.index)
        assert group.bytes_saved == sum(link.file.place.size for link in group.links)


def test_relatives_are_found_where_asked(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    nets = trained()
    rng = np.random.default_rng(0)
    for base in ("mlp-seed0", "mlp-seed1"):
        zoo.add(base, nets[base], base)
        zoo.add(f"{base}-near", noisy(nets[base], rng, 0.05), f"{base} near")
    assert not look(tmp_path, Here())[0].related
    found, _ = look(tmp_path, Here(), relatives=1)
    pairs = {frozenset(Path(k.place.path).stem for k in (a, b)) for a, b, _ in found.related}
    assert pairs == {frozenset({b, f"{b}-near"}) for b in ("mlp-seed0", "mlp-seed1")}
    assert all(0.01 < (proof.distance or 0) < 0.2 and proof.kind == "related" for _, _, proof in found.related)
    assert found.pairs == 6
    assert found.pairs - found.looked_at <= 4


def test_links_to_one_inode_are_one_file(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    zoo.add("a", trained()["mlp-seed0"], "a")
    os.link(tmp_path / "a.h5", tmp_path / "b.h5")
    (tmp_path / "c.h5").symlink_to("a.h5")
    (tmp_path / "gone.h5").symlink_to("nowhere.h5")
    with Index() as index:
        scan([str(tmp_path)], index)
        found = dedup(index)
        assert not found.groups
        assert index.counts()[0] == 2
        assert [(Path(p).name, Path(q).name) for p, q in index.names()] == [("b.h5", "a.h5"), ("c.h5", "a.h5")]
        assert [(Path(p).name, e) for p, e in index.unreadable()] == [("gone.h5", "no such file")]


def test_the_older_of_two_that_are_alike_is_kept(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    net = trained()["mlp-seed0"]
    for name in ("b", "a", "c"):
        zoo.add(name, net, "one")
    os.utime(tmp_path / "c.h5", ns=(10**18, 10**18))
    (group,) = look(tmp_path)[0].groups
    assert Path(group.keep.place.path).name == "c.h5"
    assert group.why == "older"
    assert {link.why for link in group.links} == {"the same bytes"}
    assert why_kept(group.keep, [group.keep]) == "first by name"


def test_a_cast_that_fits_two_networks_joins_the_nearer(tmp_path: Path) -> None:
    zoo = Zoo(tmp_path)
    net, rng = trained()["mlp-seed0"], np.random.default_rng(1)
    near = net.with_tensors(
        {n: (t * (1 + 1e-3 * rng.standard_normal(t.shape))).astype(t.dtype) for n, t in net.tensors.items()}
    )
    zoo.add("a", net, "a")
    zoo.add("z", near, "z")
    zoo.add("half", cast(disguised(near, rng, 0.2), np.float16), "z", half=True)
    for name in "az":  # it fits both
        assert compare(read(tmp_path / f"{name}.h5"), read(tmp_path / "half.h5")).verdict == "same-to-precision"
    found, _ = look(tmp_path)
    (group,) = found.groups
    members = [group.keep, *(link.file for link in group.links)]
    assert {Path(m.place.path).name for m in members} == {"z.h5", "half.h5"}
    assert group.kind == "same-to-precision"


def test_a_function_without_an_action_is_told_and_joins_as_such(tmp_path: Path) -> None:
    """A unit that no probe reaches may have any weights: the same function as far as runs can tell, and no relabelling."""
    zoo = Zoo(tmp_path)
    net, rng = trained()["mlp-seed0"], np.random.default_rng(0)
    dense = [op for op in net.ops if op.kind == "dense"]
    w, b, v = dense[0].params["kernel"], dense[0].params["bias"], dense[1].params["kernel"]
    quiet = {n: t.copy() for n, t in net.tensors.items()}
    quiet[w][4], quiet[b][4], quiet[v][:, 4] = 1e-3, -2.0, 1e-3
    other = {n: t.copy() for n, t in quiet.items()}
    other[w][4] = 1e-3 * rng.random(other[w].shape[1])
    zoo.add("one", net.with_tensors(quiet), "one")
    zoo.add("two", net.with_tensors(other), "two")
    zoo.add("two-moved", disguised(net.with_tensors(other), rng), "two")
    (group,) = look(tmp_path)[0].groups
    assert [(link.kind, Path(link.file.place.path).name) for link in group.links] == [("equivalent", "two-moved.h5")]
    (tmp_path / "two-moved.h5").unlink()
    (group,) = look(tmp_path)[0].groups
    assert [(link.kind, Path(link.file.place.path).name) for link in group.links] == [("same-function", "two.h5")]
    assert group.kind == "same-function"
    planned = plan([group], equivalent=True, accept_precision=True)
    assert not planned.steps
    assert "same-function to" in planned.left[0][1]
