"""`canon compare` and `canon show` run as commands: exit statuses, streams, and JSON with the keys callers rely on."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from canon_cli import verbs
from canon_cli.report import CSV_HEADER

DATA = Path(__file__).parents[1] / "data"
CODE = "import sys; from canon_cli.main import main; sys.exit(main())"
NUMBER = (int, float)
MAYBE = (int, float, type(None))


def canon(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True, text=True, encoding="utf-8", check=False, cwd=DATA, env={**os.environ, **env},
    )  # fmt: skip


def strict(text: str) -> Any:
    """Parse one JSON object that holds no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def compared(*words: str, status: int) -> dict[str, Any]:
    done = canon("compare", *words, "--json", "-")
    assert done.returncode == status, done.stderr
    found = strict(done.stdout)
    assert isinstance(found, dict)
    return found


def check(value: Any, shape: Any, where: str = "") -> None:
    """Hold a JSON value against a shape: a type or types, a dict of at least these keys, or a list of one shape."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), where
        for key, inner in shape.items():
            assert key in value, f"{where}.{key} is missing"
            check(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for i, item in enumerate(value):
            check(item, shape[0], f"{where}[{i}]")
    else:
        assert isinstance(value, shape), f"{where} is {value!r}"
        assert not (isinstance(value, bool) and shape in (NUMBER, MAYBE)), where


SIDE = {"path": str, "format": str, "checkpoint": str, "parameters": int, "dtype": str}
COMPARE = {
    "schema": str, "verdict": str, "reason": str, "a": SIDE, "b": SIDE,
    "distance": {"raw": NUMBER, "normalised": NUMBER, "matched": NUMBER},
    "spaces": [{
        "name": str, "units": int, "live": int, "group": str, "moved": int, "raw": MAYBE, "normalised": MAYBE,
        "matched": MAYBE, "correlation": {"raw": MAYBE, "matched": MAYBE, "chance": MAYBE},
    }],
    "tensors": [{
        "a": (str, type(None)), "b": (str, type(None)), "shape": [int], "raw": MAYBE, "status": str, "statistics": bool,
    }],
    "check": {"probes": int, "moved_a": MAYBE, "moved_b": MAYBE, "outputs": MAYBE, "why": (str, type(None))},
    "partial": (dict, type(None)), "sampled": dict, "notes": [str],
}  # fmt: skip
UNIT = {
    "space": str, "a": int, "b": int, "distance": NUMBER, "correlation": MAYBE, "scale": NUMBER,
    "runner_up": (dict, type(None)), "flags": [str],
}  # fmt: skip
SHOW = {
    "schema": str, "format": str, "parameters": int, "checkpoints": [str],
    "spaces": [{"name": str, "units": int, "group": str, "why": str, "axes": [{"tensor": str, "axis": int}]}],
    "fixed": [{"axis": str, "why": str}], "symmetry": {"log10_permutations": NUMBER, "continuous_dimension": int},
}  # fmt: skip


def test_relatives_as_json() -> None:
    found = compared("mlp-seed0.h5", "mlp-seed0-tuned.h5", "--units", status=1)
    check(found, COMPARE)
    check(found, {
        "distance": {"chance": {"mean": NUMBER, "sd": NUMBER}, "lower_bound": NUMBER},
        "worst": {"tensor": str, "index": [int], "deviation": NUMBER},
        "evidence": {
            "stored_order": {"z": NUMBER},
            "standing_out": {"share": NUMBER, "chance": NUMBER, "score": NUMBER, "threshold": NUMBER, "units": int},
        },
        "units": [{**UNIT, "runner_up": {"b": int, "ratio": NUMBER}}],
    })  # fmt: skip
    assert (found["schema"], found["verdict"]) == ("canon.compare/1", "related")
    assert len(found["units"]) == 80
    assert {t["status"] for t in found["tensors"]} <= {"same", "differs"}


@pytest.mark.parametrize(("b", "word"), [("mlp-seed0.h5", "identical"), ("mlp-seed0-disguised.h5", "equivalent")])
def test_the_same_network_as_json(b: str, word: str) -> None:
    found = compared("mlp-seed0.h5", b, "--units", status=0)
    check(found, COMPARE)
    assert found["verdict"] == word
    assert found["distance"]["chance"] is None
    assert found["distance"]["lower_bound"] is None
    assert found["evidence"] is None
    check(found["units"], [UNIT])
    assert {u["runner_up"] for u in found["units"]} <= {None}
    assert all(s["correlation"]["chance"] is None for s in found["spaces"])
    if word == "equivalent":
        assert 0 < found["worst"]["deviation"] <= 1
        assert found["check"]["outputs"] <= 1
    else:
        assert found["check"]["outputs"] is None
        assert found["check"]["why"]


def test_units_come_only_when_asked_for() -> None:
    assert "units" not in compared("mlp-seed0.h5", "mlp-seed0-disguised.h5", status=0)


def test_batch_norm_statistics_are_marked() -> None:
    tensors = compared("cnn-seed0.h5", "cnn-seed1.h5", status=1)["tensors"]
    marked = {t["a"] for t in tensors if t["statistics"]}
    assert marked == {f"norm_{i}/moving_{what}" for i in (1, 2) for what in ("mean", "variance")}


def test_the_same_call_gives_the_same_bytes() -> None:
    calls = [canon("compare", "mlp-seed0.h5", "mlp-seed1.h5", "--json", "-") for _ in range(2)]
    assert calls[0].stdout == calls[1].stdout
    assert calls[0].returncode == 1


def test_json_to_a_file_still_prints_the_report(tmp_path: Path) -> None:
    target, units = tmp_path / "r.json", tmp_path / "u.csv"
    words = ["compare", "mlp-seed0.h5", "mlp-seed0-tuned.h5", "--quiet", "--units", str(units), "--json", str(target)]
    done = canon(*words)
    assert done.returncode == 1
    assert not done.stderr
    found = strict(target.read_text(encoding="utf-8"))
    assert done.stdout.splitlines()[-1].startswith(f"related: {found['reason']}")
    rows = list(csv.DictReader(units.read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == CSV_HEADER
    assert [float(r["distance"]) for r in rows] == [u["distance"] for u in found["units"]]


def test_every_column_of_the_units_file_is_in_the_help() -> None:
    text = canon("compare", "--help").stdout
    assert all(name.split("_chance")[0] in text for name in CSV_HEADER)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["compare", "mlp-seed0.h5", "mlp-seed0-disguised.h5"], 0),
        (["compare", "mlp-run.h5", "mlp-run.h5:40"], 0),
        (["compare", "mlp-run.h5:5", "mlp-run.h5:40"], 1),
        (["compare", "mlp-seed0.h5", "mlp-seed1.h5"], 1),
        (["compare", "mlp-seed0.h5", "cnn-seed0.h5"], 2),
        (["compare", "mlp-seed0.h5", "missing.h5"], 2),
        (["show", "mlp-run.h5:5"], 0),
        (["show", "mlp-run.h5:6"], 2),
        (["show", "README.md"], 2),
    ],
    ids=lambda p: " ".join(p) if isinstance(p, list) else None,
)
def test_exit_statuses(words: list[str], status: int) -> None:
    done = canon(*words)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if status == 2:
        assert not done.stdout
        assert done.stderr.startswith("canon: ")
        failed = canon(*words, "--json", "-")
        assert failed.returncode == 2
        error = strict(failed.stdout)
        assert set(error) == {"schema", "where", "what", "hint"}
        assert error["schema"] == "canon.error/1"
        assert error["what"] in failed.stderr


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("*.h5")))
def test_show_as_json(name: str) -> None:
    done = canon("show", name, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert all(line.endswith(" ...") for line in done.stderr.splitlines())  # progress alone, where the machine is slow
    found = strict(done.stdout)
    check(found, SHOW)
    assert found["schema"] == "canon.show/1"
    assert found["checkpoints"] == (["0", "1", "5", "20", "40"] if name == "mlp-run.h5" else [])
    assert all(s["axes"] and s["why"] for s in found["spaces"])


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C"}], ids=str)
def test_output_without_unicode(env: dict[str, str]) -> None:
    plain = canon("compare", "mlp-seed0.h5", "mlp-seed0-tuned.h5")
    bare = canon("compare", "mlp-seed0.h5", "mlp-seed0-tuned.h5", **env)
    assert bare.stdout.isascii()
    assert bare.stdout == plain.stdout
    assert "\x1b" not in bare.stdout


def test_what_a_reader_noticed_goes_to_stderr_and_into_json(tmp_path: Path) -> None:
    import h5py

    weights = tmp_path / "weights.h5"
    with h5py.File(DATA / "mlp-seed0.h5") as f, h5py.File(weights, "w") as out:
        for key, value in f["model_weights"].attrs.items():
            out.attrs[key] = value
        for name in f["model_weights"]:
            f.copy(f["model_weights"][name], out, name)
    done = canon("show", str(weights))
    assert done.returncode == 0, done.stderr
    note = "not recorded"
    assert done.stderr.startswith(f"canon: {weights}: ")
    assert note in done.stderr
    assert not any(line.startswith("note ") for line in done.stdout.splitlines())
    assert "activations are not recorded" in done.stdout
    assert not canon("show", str(weights), "--quiet").stderr
    told = strict(canon("show", str(weights), "--quiet", "--json", "-").stdout)
    assert any(note in text for text in told["notes"])
    lent = compared(str(weights), "mlp-seed1.h5", "--architecture", "mlp-seed0.h5", status=1)
    assert lent["verdict"] == "independent"


@pytest.mark.parametrize("verb", verbs.NAMES)
def test_help_reads_like_a_man_page(verb: str) -> None:
    done = canon(verb, "--help", COLUMNS="80")
    assert f"\ncanon {verb} - {verbs.load(verb).HELP}\n" in done.stdout
    for section in ("options:", "examples:", "exit status:"):
        assert f"\n{section}\n" in done.stdout
    assert f"\n  canon {verb} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80


def test_formats_to_write_are_those_of_the_library(tmp_path: Path) -> None:
    from canon.formats import WRITES

    help_ = canon("teleport", "--help").stdout
    assert all(name in help_.split("--to FORMAT")[-1].split("\n  --")[0] for name in WRITES)
    out = tmp_path / "o.h5"
    done = canon("teleport", "mlp-seed0.h5", "-o", str(out), "--to", "cannon")
    assert done.returncode == 2
    assert "Did you mean canon?" in done.stderr
    assert not out.exists()


def test_noise_in_a_coarser_type_is_not_the_same_to_precision(tmp_path: Path) -> None:
    """A tenth of noise on every weight, stored as float16, is far above that type's rounding."""
    files = {}
    for name, noise in (("cast", 0.0), ("noise", 0.1)):
        files[name] = tmp_path / f"{name}.h5"
        rng = np.random.default_rng(0)
        with h5py.File(DATA / "mlp-seed0.h5") as source, h5py.File(files[name], "w") as out:
            for key, value in source.attrs.items():
                out.attrs[key] = value
            source.copy("model_weights", out)
            found: list[str] = []
            out.visititems(lambda k, d, found=found: found.append(k) if isinstance(d, h5py.Dataset) else None)
            for k in found:
                w = out[k][()]
                del out[k]
                out[k] = (w * (1 + noise * rng.standard_normal(w.shape))).astype(np.float16)
    for name, verdict in (("cast", "same-to-precision"), ("noise", "related")):
        done = canon("compare", str(DATA / "mlp-seed0.h5"), str(files[name]), "--json", "-", "--quiet")
        assert strict(done.stdout)["verdict"] == verdict
