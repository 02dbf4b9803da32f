"""canon dedup and canon query from outside: contracts, exit status, what is printed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo_files import DATA, Zoo, disguised, noisy, spoil, trained

from canon_cli.main import main


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two copies and a disguise of one network, a relative, a stranger, and files that hold none."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        shutil.copyfile(DATA / "mlp-seed0.h5", folder / name)
        os.utime(folder / name, ns=(10**18, 10**18))
    shutil.copyfile(DATA / "mlp-seed0-disguised.h5", folder / "c.h5")
    os.utime(folder / "c.h5", ns=(2 * 10**18, 2 * 10**18))
    shutil.copyfile(DATA / "mlp-seed0-tuned.h5", folder / "tuned.h5")
    shutil.copyfile(DATA / "mlp-seed1.h5", folder / "other.h5")
    monkeypatch.chdir(tmp_path)
    return folder


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    status = main([*words, "--jobs", "0", "--json", "-"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


def test_the_contract(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(zoo)
    status, r, err = asked(capsys, "dedup", "zoo", "--relatives", "1")
    assert status == 1
    assert all(line.endswith(" ...") for line in err.splitlines())  # progress alone, where the machine is slow
    assert r["schema"] == "canon.dedup/1"
    assert r["files"] == 12
    assert {Path(u["path"]).name for u in r["unreadable"]} == {Path(n).name for n in spoil(zoo)}
    assert all(set(u) == {"path", "error"} and "\n" not in u["error"] for u in r["unreadable"])
    (group,) = r["groups"]
    assert group["kind"] == "equivalent"
    assert group["keep"] == "zoo/a.h5"
    assert group["why"] == "older"
    assert group["members"] == ["zoo/a.h5", "zoo/b.h5", "zoo/c.h5"]
    assert [(link["path"], link["kind"]) for link in group["links"]] == [("zoo/b.h5", "identical"), ("zoo/c.h5", "equivalent")]
    assert group["links"][0]["distance"] == 0
    assert 0 < group["links"][1]["distance"] < 1e-6
    assert group["bytes_saved"] == 2 * (zoo / "a.h5").stat().st_size
    assert {(p["a"], p["b"]) for p in r["related"]} == {("zoo/a.h5", "zoo/tuned.h5")}
    assert isinstance(r["not_looked_at"], int)


def test_status_says_whether_copies_were_found(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "dedup", "zoo/a.h5", "zoo/other.h5")[0] == 0
    assert asked(capsys, "dedup", "zoo/*.h5")[0] == 1
    (zoo / "text").write_text("hello")
    status, r, _ = asked(capsys, "dedup", "zoo/text")
    assert (status, r["files"], len(r["unreadable"])) == (2, 1, 1)
    (zoo / "empty").mkdir()
    assert asked(capsys, "dedup", "zoo/empty")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dedup"], "no PATH"),
        (["dedup", "nowhere"], "no such file or folder"),
        (["dedup", "zoo", "--index", "zoo/a.h5"], "no index of canon's"),
        (["dedup", "zoo", "--action", "hardlnk"], "Did you mean hardlink?"),
        (["dedup", "--undo", "nothing"], "cannot be read"),
        (["query", "zoo/a.h5", "--index", "nothing"], "no such index"),
        (["query", "zoo/a.h5"], "required"),
        (["dedup", "s3x://bucket/zoo"], "cannot be reached"),
    ],
    ids=lambda w: " ".join(w) if isinstance(w, list) else "",
)
def test_trouble_in_one_line(zoo: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    assert len(err.splitlines()) <= 2


def test_what_is_printed(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (zoo / "note.txt").write_text("hello\n")
    os.link(zoo / "other.h5", zoo / "same.h5")
    assert main(["dedup", "zoo", "--jobs", "0"]) == 1
    out, err = capsys.readouterr()
    assert all(line.endswith(" ...") for line in err.splitlines())
    assert out == (
        "equivalent, 3 files, 71 kB to save\n"
        "  keep                zoo/a.h5 (older)\n"
        "  identical           zoo/b.h5\n"
        "  equivalent          zoo/c.h5, distance 1.7e-08\n"
        "\n"
        "one file    zoo/same.h5 is zoo/other.h5\n"
        "unreadable    zoo/note.txt: a text file, not a network that canon reads\n"
        "\n"
        "6 files, 178 kB: 2 copies in 1 group, 71 kB to save; 1 unreadable; 5 pairs of one architecture not looked at for a "
        "common descent\n"
    )


def test_links_from_the_command(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (zoo / "c.h5").read_bytes()
    assert main(["dedup", "zoo", "--jobs", "0", "--action", "hardlink"]) == 1
    out = capsys.readouterr().out
    assert "link        zoo/b.h5 -> zoo/a.h5" in out
    assert "leave       zoo/c.h5: equivalent to" in out
    assert "nothing was changed: --yes does it" in out
    assert not (zoo / "a.h5").samefile(zoo / "b.h5")
    status, r, _ = asked(capsys, "dedup", "zoo", "--action", "hardlink", "--equivalent", "--yes", "--log", "my.log")
    assert status == 1
    assert [d["why"] for d in r["action"]["done"]] == [None, None]
    assert (zoo / "a.h5").samefile(zoo / "b.h5")
    assert (zoo / "a.h5").samefile(zoo / "c.h5")
    assert asked(capsys, "dedup", "zoo")[0] == 0  # they are one file now
    assert main(["dedup", "--undo", "my.log"]) == 0
    assert "2 files restored" in capsys.readouterr().out
    assert (zoo / "c.h5").read_bytes() == before
    assert asked(capsys, "dedup", "zoo")[0] == 1


def test_query_from_the_command(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked(capsys, "dedup", "zoo", "--index", "zoo.canon")
    status, r, _ = asked(capsys, "query", "zoo/a.h5", "--index", "zoo.canon", "--relatives", "10")
    assert status == 1
    assert r["schema"] == "canon.query/1"
    assert [(c["path"], c["kind"]) for c in r["copies"]] == [("zoo/b.h5", "identical"), ("zoo/c.h5", "equivalent")]
    assert [p["path"] for p in r["related"]] == ["zoo/tuned.h5"]
    assert (r["files"], r["not_looked_at"]) == (5, 0)
    moved = Zoo(zoo.parent)
    rng = np.random.default_rng(0)
    moved.add("new", disguised(noisy(trained()["mlp-seed1"], rng, 0.01), rng), "x")
    status, r, _ = asked(capsys, "query", "new.h5", "--index", "zoo.canon")
    assert (status, r["copies"], r["related"], r["not_looked_at"]) == (0, [], [], 5)
    assert main(["query", "zoo/a.h5", "--index", "zoo.canon"]) == 1
    assert capsys.readouterr().out == (
        "identical           zoo/b.h5\n"
        "equivalent          zoo/c.h5, distance 1.7e-08\n"
        "5 files in the index: 2 copies; 2 of its architecture are no copies, and were not looked at for a common descent\n"
    )


def test_the_same_call_gives_the_same_bytes(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(zoo)
    answers = []
    for index in ("one", "two", "two"):
        main(["dedup", "zoo", "--jobs", "0", "--json", "-", "--index", index, "--relatives", "2"])
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2]
