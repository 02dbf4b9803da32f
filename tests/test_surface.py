"""What the outside may rely on: the public names, quick help, and the shape of the command's errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import canon
from canon.errors import UsageError
from canon_cli import verbs
from canon_cli.main import main
from canon_cli.options import Parser, split_step
from canon_cli.text import printable, write_json

PUBLIC = {"__version__"}
"""Every name of `canon` that callers may use; changing it is a change of the interface."""

HEAVY = {"numpy", "scipy", "networkx", "h5py", "rich"}


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from canon_cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


def test_public_names() -> None:
    declared = set(getattr(canon, "__all__", ())) | {"__version__"}
    assert declared == PUBLIC
    assert all(hasattr(canon, name) for name in PUBLIC)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["comapre"], *([v, "--help"] for v in verbs.NAMES)], ids=" ".join)
def test_help_and_wrong_words_load_nothing_heavy(words: list[str]) -> None:
    done = run(*words, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "argparse" in loaded
    assert not loaded & HEAVY
    assert done.returncode == (2 if words == ["comapre"] else 0)


def test_help_lists_every_verb() -> None:
    out = run("--help").stdout
    for name in verbs.NAMES:
        assert f"\n  {name} " in out
        verb = verbs.load(name)
        assert verb.HELP in out
        assert name == verb.NAME


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("comapre a b", "Did you mean compare?"),
        ("compare a b --unit", "Did you mean --units?"),
        ("compare a b --gauge balancd", "Did you mean balanced?"),
        ("canonicalize a --outptu b", "Did you mean --output?"),
        ("compare a", "required"),
        ("compare a b c", "unexpected argument 'c'"),
        ("compare a b --seed -1", "--seed"),
        ("compare a b --seed x", "--seed"),
        ("--json - compare a b", "unknown option '--json'"),
        ("compare a\x1b[31m b c\x1b[2J", r"c\x1b[2J"),
    ],
)
def test_wrong_words(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split(" ")) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.startswith("canon: ")
    assert len(err.splitlines()) == 2
    assert "\x1b" not in err
    if "--json -" in words:
        assert set(json.loads(out)) == {"schema", "where", "what", "hint"}
    else:
        assert not out


@pytest.mark.parametrize("words", [["compare", "a", "--json", "-"], ["nothing", "--json=-"]])
def test_errors_as_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "canon.error/1"
    assert answer["what"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            UsageError("a.h5: layer\n", "bad \x1b[2J", "first\nsecond"),
            2,
            "canon: a.h5: layer\\n: bad \\x1b[2J\nfirst\nsecond\n",
        ),
        (FileNotFoundError(2, "No such file or directory", "x.h5"), 2, "canon: x.h5: No such file or directory\n"),
        (MemoryError(), 2, "canon: not enough memory\n"),
        (KeyError("k"), 2, "canon: internal error: KeyError: 'k'\nPlease report it"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
    ids=lambda p: type(p).__name__ if isinstance(p, BaseException) else "",
)
def test_every_error_ends_in_a_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.delenv("CANON_DEBUG", raising=False)
    monkeypatch.setattr(verbs.load("show"), "run", fail)
    assert main(["show", "x"]) == status
    out, err = capsys.readouterr()
    assert err.startswith(said)
    assert "Traceback" not in err
    assert not out
    if isinstance(error, KeyError):
        monkeypatch.setenv("CANON_DEBUG", "1")
        assert main(["show", "x"]) == 2
        assert "Traceback" in capsys.readouterr().err


def test_units_do_not_swallow_a_file() -> None:
    parser = Parser("canon compare", "")
    verbs.load("compare").configure(parser)
    args = parser.parse(["--units", "a.h5", "b.h5"])
    assert (args.units, args.a, args.b) == ("-", "a.h5", "b.h5")
    assert parser.parse(["a.h5", "b.h5", "--units", "u.csv"]).units == "u.csv"
    assert parser.parse(["a.h5", "b.h5", "--units"]).units == "-"
    assert parser.parse(["a.h5", "b.h5"]).units is None


def test_split_step(tmp_path: Path) -> None:
    plain = str(tmp_path / "run.h5")
    assert split_step(plain) == (plain, "")
    assert split_step(f"{plain}:100") == (plain, "100")
    Path(f"{plain}:100").touch()
    assert split_step(f"{plain}:100") == (f"{plain}:100", "")
    assert split_step("a:b/run.h5") == ("a:b/run.h5", "")
    assert split_step("C:run.h5") == ("C:run.h5", "")


def test_printable_keeps_letters_and_escapes_the_rest() -> None:
    assert printable("größe 層/k:0") == "größe 層/k:0"
    assert printable("a\x1b[0m\n\x9b\u202e\udc80") == r"a\x1b[0m\n\x9b\u202e\udc80"


def test_json_is_strict_and_replaces_whole_files(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    write_json({"a": 1}, str(target))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": float("nan")}, str(target))
    assert json.loads(target.read_text(encoding="utf-8")) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(FileNotFoundError) as caught:
        write_json({}, str(tmp_path / "no" / "r.json"))
    assert caught.value.filename == str(tmp_path / "no" / "r.json")
