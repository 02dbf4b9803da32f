"""Scanning: what is found, what is read again, and an index that outlives whatever happens to it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from keras_files import mlp
from zoo_files import DATA, Zoo, disguised, other_numbers, spoil, trained
from zoo_work import deadly, once

import canon.zoo.index
from canon.errors import CanonError, CorruptFile, ReadError, UsageError
from canon.zoo import Here, Index, Processes, dedup, scan
from canon.zoo.places import find
from canon.zoo.pool import chunked
from canon.zoo.scan import DIED, Progress, duration, size

CANON = [sys.executable, "-c", "import sys; from canon_cli.main import main; sys.exit(main())"]


def names(word: str) -> list[str]:
    return [Path(p.path).name for p in find(word)]


def read_count(folder: Path, index: Path, **how: object) -> int:
    """How many files a scan reads."""
    told: list[Progress] = []
    with Index(index) as opened:
        scan([str(folder)], opened, tell=told.append, **how)  # type: ignore[arg-type]
    return told[-1].files if told else 0


def groups(index: Path, *words: object) -> list[tuple[str, str, list[tuple[str, str]]]]:
    with Index(index) as opened:
        scan([str(w) for w in words], opened)
        found = dedup(opened)
    return [(g.kind, g.keep.place.path, [(link.file.place.path, link.kind) for link in g.links]) for g in found.groups]


# what is found


def test_folders_patterns_and_single_files(tmp_path: Path) -> None:
    for name in ("b.h5", "a.h5", ".hidden.h5", "sub/c.h5", "sub/deep/d.npz", ".git/e.h5", "z[1].h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert names(str(tmp_path)) == ["a.h5", "b.h5", "z[1].h5", "c.h5", "d.npz"]
    assert names(str(tmp_path / "*.h5")) == ["a.h5", "b.h5", "z[1].h5"]
    assert names(str(tmp_path / "sub/**/*.npz")) == ["d.npz"]
    assert names(str(tmp_path / "z[1].h5")) == ["z[1].h5"]
    assert names(str(tmp_path / ".hidden.h5")) == [".hidden.h5"]
    for word, said in ((tmp_path / "none.h5", "no such file"), (tmp_path / "*.pt", "no file matches")):
        with pytest.raises(ReadError, match=said):
            list(find(str(word)))


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Index() as index:
        scan([str(tmp_path)], index)
        assert [e for _, e in index.unreadable()] == ["is not a regular file"]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9\n.h5"
    shutil.copyfile(DATA / "mlp-seed0.h5", odd)
    shutil.copyfile(DATA / "mlp-seed0.h5", tmp_path / "plain.h5")
    ((_, keep, links),) = groups(tmp_path / "i", tmp_path / "plain.h5", os.fsdecode(odd))
    assert {os.fsencode(keep), *(os.fsencode(p) for p, _ in links)} == {odd, os.fsencode(tmp_path / "plain.h5")}


def test_chunks_by_number_and_weight() -> None:
    assert list(chunked(iter(range(5)), 2, lambda _: 0, 1)) == [[0, 1], [2, 3], [4]]
    assert list(chunked(iter(range(5)), 2, lambda _: 1, 1)) == [[0], [1], [2], [3], [4]]
    assert list(chunked(iter([5, 5, 1]), 9, lambda n: n, 6)) == [[5, 5], [1]]


def test_progress_in_words() -> None:
    assert (
        str(Progress(5, 20, 1500, 6000, 12.4))
        == "[#####---------------] reading 5 of 20 files, 1.5 kB of 6 kB, about 12 s left"
    )
    assert [size(n) for n in (0, 999, 1000, 123456, 5e12)] == ["0 bytes", "999 bytes", "1 kB", "123 kB", "5 TB"]
    assert [duration(s) for s in (0, 200, 9000)] == ["0 s", "3 min", "2.5 h"]


# what is read again


def test_only_new_and_changed_files_are_read(tmp_path: Path) -> None:
    zoo, index = tmp_path / "zoo", tmp_path / "index"
    zoo.mkdir()
    for i in range(4):
        mlp(zoo / f"{i}.h5", seed=i)
    assert read_count(zoo, index) == 4
    assert read_count(zoo, index) == 0
    mlp(zoo / "new.h5", seed=9)
    os.utime(zoo / "1.h5", ns=(1, 1))
    assert read_count(zoo, index) == 2
    assert read_count(zoo, index, again=True) == 5
    before = (zoo / "2.h5").stat()
    other_numbers(zoo / "2.h5", tmp_path / "other.h5", 7)
    shutil.copyfile(
        tmp_path / "other.h5", zoo / "2.h5"
    )  # the same size and time, other numbers: found when the content is asked for
    os.utime(zoo / "2.h5", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_count(zoo, index) == 0
    assert read_count(zoo, index, again=True) == 5


def test_what_is_gone_is_forgotten_and_what_lies_elsewhere_is_kept(tmp_path: Path) -> None:
    for folder in ("zoo", "zoo2"):
        (tmp_path / folder).mkdir()
        for i in range(3):
            mlp(tmp_path / folder / f"{i}.h5", seed=i)
    index = tmp_path / "index"
    assert len(groups(index, tmp_path / "zoo", tmp_path / "zoo2")) == 3
    (tmp_path / "zoo/0.h5").unlink()
    assert groups(index, tmp_path / "zoo") == []
    with Index(index) as opened:
        assert opened.size() == 5
    assert len(groups(index, tmp_path / "zoo", tmp_path / "zoo2")) == 2


def test_an_unreadable_file_is_not_read_again_unless_the_reason_may_pass(tmp_path: Path) -> None:
    spoil(tmp_path)
    index = tmp_path.parent / f"{tmp_path.name}.index"
    assert read_count(tmp_path, index) == 7
    assert read_count(tmp_path, index) == 0
    (tmp_path / "link.h5").symlink_to("later.h5")
    assert read_count(tmp_path, index) == 1
    mlp(tmp_path / "later.h5")
    assert read_count(tmp_path, index) == 1  # both are one file now
    assert read_count(tmp_path, index) == 0


def test_proofs_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = Zoo(tmp_path / "zoo")
    net = trained()["mlp-seed0"]
    zoo.add("a", net, "one")
    zoo.add("b", disguised(net, np.random.default_rng(0)), "one")
    first = groups(tmp_path / "index", tmp_path / "zoo")
    assert [kind for kind, _, _ in first] == ["equivalent"]
    (tmp_path / "zoo/b.h5").rename(tmp_path / "zoo/c.h5")
    monkeypatch.setattr("canon.zoo.groups.prove_all", lambda pairs: pytest.fail("proved again"))
    ((kind, _, links),) = groups(tmp_path / "index", tmp_path / "zoo")
    assert (kind, Path(links[0][0]).name) == ("equivalent", "c.h5")


def test_an_index_of_another_version_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlp(tmp_path / "a.h5")
    index = tmp_path.parent / f"{tmp_path.name}.index"
    assert read_count(tmp_path, index) == 1
    monkeypatch.setattr(canon.zoo.index, "VERSION", 99)
    assert read_count(tmp_path, index) == 1


def test_what_is_no_index_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text\n" * 100)
    with sqlite3.connect(tmp_path / "other") as db:
        db.execute("CREATE TABLE t (x)")
    for name in ("text", "other"):
        content = (tmp_path / name).read_bytes()
        with pytest.raises(UsageError, match="index"):
            Index(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(CorruptFile, match="cannot be used"):
        Index(tmp_path / "no" / "folder")
    with pytest.raises(CanonError, match="index cannot be used"), Index(tmp_path / "new"):
        raise sqlite3.OperationalError("disk I/O error")


# what happens to it


def test_a_scan_killed_ten_times_ends_as_one_that_was_not(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    rng = np.random.default_rng(0)
    made = Zoo(zoo)
    for i, (base, net) in enumerate(trained().items()):
        for j in range(6):
            made.add(f"{base}-{i}-{j}", disguised(net, rng), base)
    spoil(zoo)
    index, undisturbed = tmp_path / "index", tmp_path / "undisturbed"
    wanted = groups(undisturbed, zoo)
    assert len(wanted) == 6
    words = [*CANON, "dedup", str(zoo), "--index", str(index), "--jobs", "2", "--quiet"]
    kills = 0
    for attempt in range(10):
        running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.25 + 0.2 * attempt)
        kills += running.poll() is None
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert kills >= 3
    assert groups(index, zoo) == wanted
    with sqlite3.connect(index) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    for i in range(30):
        mlp(tmp_path / f"{i}.h5", seed=i)
    code = "from canon.zoo.pool import Processes; import time, os\n"
    code += "def slow(chunk): open(chunk[0], 'w').write(str(os.getpid())); time.sleep(60); return chunk\n"
    (tmp_path / "slow.py").write_text(code)
    note = tmp_path / "pid"
    start = f"from slow import *; list(Processes(1).run(slow, iter([[{str(note)!r}]]), lambda t: t))"
    parent = subprocess.Popen([sys.executable, "-c", start], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = int(note.read_text())
    parent.kill()
    parent.wait()
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_two_scans_at_once(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    for i in range(40):
        mlp(zoo / f"{i}.h5", seed=i % 20)
    index = tmp_path / "index"
    words = [*CANON, "dedup", str(zoo), "--index", str(index), "--jobs", "1", "--json", "-"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    out = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [1, 1], out
    assert out[0][0] == out[1][0]
    assert len(groups(index, zoo)) == 20


def test_the_file_that_kills_its_reader_is_found_and_the_others_are_read(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i:02}").touch()
    chunks = chunked(find(str(tmp_path)), 4, lambda _: 0, 1 << 30)
    told = {}
    for chunk, results in Processes(2).run(partial(deadly, bad="05"), chunks, lambda p: DIED):
        told.update(zip([Path(p.path).name for p in chunk], results, strict=True))
    assert told == {**{f"{i:02}": f"{i:02}" for i in range(12)}, "05": DIED}


def test_a_worker_killed_once_costs_nothing_but_time(tmp_path: Path) -> None:
    tasks = [str(tmp_path / f"{i}") for i in range(3)]
    found = dict(zip(tasks, (r for _, rs in Processes(1).run(once, iter([tasks]), lambda t: "lost") for r in rs), strict=True))
    assert found == {t: t for t in tasks}


def test_here_and_processes_agree(tmp_path: Path) -> None:
    for i in range(6):
        mlp(tmp_path / f"{i}.h5", seed=i % 3)
    spoil(tmp_path)
    answers = []
    for pool in (Here(), Processes(2)):
        with Index() as index:
            scan([str(tmp_path)], index, pool)
            answers.append(([(g.keep.place.path, len(g.links)) for g in dedup(index, pool).groups], index.unreadable()))
    assert answers[0] == answers[1]
