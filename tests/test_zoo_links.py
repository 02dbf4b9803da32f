"""Links in the place of copies: planned, proved again, logged, undone; and never where anything would be lost."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from keras_files import mlp
from zoo_files import DATA, Zoo, cast, disguised, trained

from canon.errors import ReadError, UsageError
from canon.zoo import Index, dedup, scan
from canon.zoo.links import Done, Plan, act, plan, undo


def planned(folder: Path, **how: bool) -> Plan:
    with Index() as index:
        scan([str(folder)], index)
        return plan(dedup(index).groups, index.names(), **how)


def snapshot(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Content, mode and time of every file."""
    out = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found = path.stat()
            out[path.name] = (hashlib.sha256(path.read_bytes()).hexdigest(), found.st_mode, found.st_mtime_ns)
    return out


def linked(folder: Path) -> set[frozenset[str]]:
    """Names of the same inode."""
    by: dict[int, set[str]] = {}
    for path in folder.iterdir():
        if path.is_file():
            by.setdefault(path.stat().st_ino, set()).add(path.name)
    return {frozenset(names) for names in by.values() if len(names) > 1}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """a, b: the same bytes; c: the same tensors, other bytes; d: a disguise; e: half floats; f: in another format."""
    made = Zoo(tmp_path / "zoo")
    net = trained()["mlp-seed0"]
    made.add("a", net, "one")
    made.add("c", net, "one", "keras")
    made.add("d", disguised(net, np.random.default_rng(0)), "one")
    made.add("e", cast(net, np.float16), "one")
    made.add("f", net, "one", "npz")
    folder = made.folder
    shutil.copyfile(folder / "a.h5", folder / "b.h5")
    (folder / "b.h5").chmod(0o640)
    for i, name in enumerate("abcdef"):
        path = next(folder.glob(f"{name}.*"))
        os.utime(path, ns=(10**18 + i, 10**18 + i))
    return folder


def test_a_plan_takes_identical_files_alone_unless_told_more(zoo: Path) -> None:
    before = snapshot(zoo)
    found = planned(zoo)
    assert not found.steps  # the largest is kept, in Keras's format: nothing in canon's own may become a link to it
    left = {Path(p).name: why for p, why in found.left}
    assert set(left) == {"a.h5", "b.h5", "d.h5", "e.h5", "f.npz"}
    assert "another format" in left["a.h5"]
    assert "equivalent to" in left["d.h5"]
    assert "same-to-precision to" in left["e.h5"]
    assert snapshot(zoo) == before


def test_links_are_made_and_undone(zoo: Path, tmp_path: Path) -> None:
    (zoo / "c.h5").unlink()
    before = snapshot(zoo)
    found = planned(zoo)
    assert [(Path(s.path).name, Path(s.keep).name, s.same_bytes) for s in found.steps] == [("b.h5", "a.h5", True)]
    assert found.bytes_saved == (zoo / "b.h5").stat().st_size
    done = act(found, tmp_path / "log")
    assert [d.why for d in done] == [""]
    assert linked(zoo) == {frozenset({"a.h5", "b.h5"})}
    assert [why for _, why in undo(tmp_path / "log")] == [""]
    assert not linked(zoo)
    assert snapshot(zoo) == before
    assert not list(zoo.glob(".*"))


def test_other_bytes_are_kept_beside_the_log(zoo: Path, tmp_path: Path) -> None:
    (zoo / "c.h5").unlink()
    before = snapshot(zoo)
    found = planned(zoo, equivalent=True, accept_precision=True)
    assert {Path(s.path).name: s.kind for s in found.steps} == {
        "b.h5": "identical", "d.h5": "equivalent", "e.h5": "same-to-precision",
    }  # fmt: skip
    assert [d.why for d in act(found, tmp_path / "log")] == [""] * 3
    assert linked(zoo) == {frozenset({"a.h5", "b.h5", "d.h5", "e.h5"})}
    assert len(list((tmp_path / "log.originals").iterdir())) == 2
    assert {why for _, why in undo(tmp_path / "log")} == {""}
    assert snapshot(zoo) == before
    assert not list((tmp_path / "log.originals").iterdir())


def test_same_function_is_never_touched() -> None:
    allowed = plan([], equivalent=True, accept_precision=True)
    assert allowed == Plan((), ())


def acted(folder: Path, log: Path, change: object = None, **how: bool) -> list[Done]:
    found = planned(folder, **how)
    assert found.steps
    change()  # type: ignore[operator]
    return act(found, log)


def two(folder: Path) -> Path:
    """Two files of the same bytes and a third that is a disguise of them."""
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        shutil.copyfile(DATA / "mlp-seed0.h5", folder / name)
    shutil.copyfile(DATA / "mlp-seed0-disguised.h5", folder / "c.h5")
    return folder


def test_what_changed_since_is_left_alone(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    done = acted(zoo, tmp_path / "log", lambda: shutil.copyfile(DATA / "mlp-seed1.h5", zoo / "b.h5"), equivalent=True)
    told = {Path(d.step.path).name: d.why for d in done}
    assert told == {"b.h5": "no longer holds the same bytes", "c.h5": ""}
    assert (zoo / "b.h5").read_bytes() == (DATA / "mlp-seed1.h5").read_bytes()


def test_a_copy_that_is_none_any_more_is_left_alone(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    done = acted(zoo, tmp_path / "log", lambda: shutil.copyfile(DATA / "mlp-seed2.h5", zoo / "c.h5"), equivalent=True)
    assert {Path(d.step.path).name: d.why for d in done} == {"b.h5": "", "c.h5": "is no longer equivalent"}
    assert (zoo / "c.h5").read_bytes() == (DATA / "mlp-seed2.h5").read_bytes()


@pytest.mark.parametrize("how", ["gone", "spoiled"])
def test_nothing_links_to_a_file_that_cannot_be_read(tmp_path: Path, how: str) -> None:
    zoo = two(tmp_path / "zoo")
    keep = zoo / "a.h5"
    change = keep.unlink if how == "gone" else lambda: keep.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 500)
    others = [(zoo / n).read_bytes() for n in ("b.h5", "c.h5")]
    done = acted(zoo, tmp_path / "log", change, equivalent=True)
    assert all(d.why for d in done)
    assert [(zoo / n).read_bytes() for n in ("b.h5", "c.h5")] == others


def test_all_names_of_a_file_follow_and_symbolic_links_stay(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    (zoo / "c.h5").unlink()
    os.link(zoo / "b.h5", zoo / "bb.h5")
    (zoo / "link.h5").symlink_to("b.h5")
    found = planned(zoo)
    assert found.bytes_saved == (zoo / "a.h5").stat().st_size
    assert [d.why for d in act(found, tmp_path / "log")] == ["", ""]
    assert linked(zoo) >= {frozenset({"a.h5", "b.h5", "bb.h5", "link.h5"})}
    assert (zoo / "link.h5").is_symlink()


def test_files_of_several_checkpoints_are_not_replaced(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    shutil.copyfile(DATA / "mlp-run.h5", zoo / "a.h5")
    shutil.copyfile(DATA / "mlp-run.h5", zoo / "b.h5")
    with (zoo / "b.h5").open("ab") as f:
        f.write(b"more")
    found = planned(zoo, equivalent=True)
    assert not found.steps
    assert [why for _, why in found.left] == ["holds several checkpoints"]


def test_undo_leaves_what_is_no_link_any_more(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    act(planned(zoo), tmp_path / "log")
    (zoo / "b.h5").unlink()
    mlp(zoo / "b.h5")
    content = (zoo / "b.h5").read_bytes()
    assert ["stays as it is" in why for _, why in undo(tmp_path / "log")] == [True]
    assert (zoo / "b.h5").read_bytes() == content


def test_undo_does_not_take_other_content_for_the_old(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    act(planned(zoo), tmp_path / "log")
    with (zoo / "a.h5").open("r+b") as f:  # written through the link
        f.seek(9000)
        f.write(b"other")
    assert ["is not there any more" in why for _, why in undo(tmp_path / "log")] == [True]


def test_a_log_that_was_cut_short_and_what_is_no_log(tmp_path: Path) -> None:
    zoo = two(tmp_path / "zoo")
    act(planned(zoo), tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert json.loads(text.splitlines()[0]) == {"format": "canon.links/1"}
    (tmp_path / "log").write_text(text + text.splitlines()[1][:40])
    assert [why for _, why in undo(tmp_path / "log")] == [""]
    for content in ("", "hello", "[1]", '{"format": "other"}'):
        (tmp_path / "other").write_text(content)
        with pytest.raises(ReadError, match="no log"):
            undo(tmp_path / "other")
    with pytest.raises(ReadError, match="cannot be read"):
        undo(tmp_path / "none")
    with pytest.raises(UsageError, match="there already"):
        act(Plan((), ()), tmp_path / "log")
