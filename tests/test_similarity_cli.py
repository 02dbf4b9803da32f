"""The verbs similarity and record: the contract of the JSON object, the report at 80 and 200 columns, pictures, errors."""

import csv
import io
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console

from canon.errors import MissingExtra, UsageError
from canon.similarity import MEASURES
from canon_cli import plot
from canon_cli.console import Cell, Page
from canon_cli.main import main

DATA = Path(__file__).parents[1] / "data"
A, TUNED, SEED1, SEED2 = (str(DATA / f"mlp-{name}.h5") for name in ("seed0", "seed0-tuned", "seed1", "seed2"))
PROBES = ["--probes", f"{DATA}/digits.npz:flat", "--samples", "200", "--permutations", "19", "--quiet"]


def strict(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def run(capsys, *words):
    assert main(["similarity", *words]) == 0
    return capsys.readouterr().out


def test_the_json_object(capsys):
    found = strict(run(capsys, A, TUNED, *PROBES, "--reference", SEED1, "--json", "-", "--units"))
    assert found["schema"] == "canon.similarity/1"
    assert found["samples"] == 200
    assert [(p["a"], p["b"]) for p in found["layers"]] == [(f"dense_{i}", f"dense_{j}") for i in (1, 2, 3) for j in (1, 2, 3)]
    assert found["best"][0] == {"a": "dense_1", "b": "dense_1", "measure": "cka_standardised", "beyond_chance": True}
    first = found["layers"][0]["measures"]["matching_hard"]
    assert set(first) >= {"value", "chance", "z", "p", "calibrated"}
    assert first["chance"]["mean"] < first["reference"][SEED1] < first["value"]
    assert list(found["layers"][1]["measures"]) == ["cka_standardised"]
    assert {"disagreement", "jensen_shannon"} <= set(found["layers"][8]["measures"])
    unit = found["units"][0]
    assert set(unit) >= {"space", "a", "b", "distance", "correlation", "scale", "runner_up", "flags"}
    assert unit["space"] == "dense_1"
    assert set(unit["runner_up"]) == {"b", "ratio"}
    assert found["a"]["layers"][0] == {"name": "dense_1", "units": 48, "positions": 1, "constant": 1, "output": False}
    assert found["sample_identity"] == "same probes"


def test_without_units_none_are_listed(capsys):
    found = strict(run(capsys, A, TUNED, *PROBES, "--json", "-"))
    assert "units" not in found


def test_the_same_call_gives_the_same_bytes(capsys):
    words = (A, SEED1, "--samples", "100", "--permutations", "19", "--json", "-", "--quiet")
    assert run(capsys, *words) == run(capsys, *words)
    assert run(capsys, *words) != run(capsys, *words, "--seed", "1")


def test_all_measures_and_what_has_no_value(capsys):
    found = strict(
        run(capsys, A, TUNED, "--samples", "3", "--measures", "all", "--permutations", "5", "--json", "-", "--quiet")
    )
    measures = found["layers"][0]["measures"]
    assert set(measures) == {n for n, m in MEASURES.items() if not m.outputs}
    assert measures["cka"]["value"] is measures["cka"]["p"] is None
    assert measures["cka"]["why"] == "undefined: unbiased CKA needs at least 4 samples, and there are 3"
    assert any("fewer samples than units (3 for the 48" in note for note in found["notes"])


def test_units_in_a_file(tmp_path, capsys):
    run(capsys, A, SEED1, *PROBES, "--units", str(tmp_path / "u.csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "u.csv").read_text(encoding="utf-8"))))
    assert [r["layer_a"] for r in rows[:2]] == ["dense_1", "dense_1"]
    ones = [r for r in rows if r["layer_a"] == "dense_1" and r["a"]]
    assert [int(r["a"]) for r in ones] == list(range(48))
    assert any(r["found"] == "1" for r in ones)
    assert any(r["flags"] == "dead_a" and not r["correlation"] for r in ones)
    assert any(not r["a"] and r["b"] for r in rows)


def test_the_report_says_it_all(capsys):
    out = run(capsys, A, TUNED, *PROBES, "--reference", SEED1, SEED2)
    assert "computed on digits.npz:flat" in out
    assert re.search(r"^dense_1 +0\.9\d\*", out, re.MULTILINE)
    assert re.search(r"matching_hard: between chance 0\.1\d and the other networks' 0\.6\d( to 0\.\d\d)?: 0\.9\d\d", out)
    assert "smaller is more alike: procrustes" in out
    last = out.rstrip().splitlines()[-1]
    assert re.fullmatch(
        r"3 of 3 layers of a are most like the layer of b of the same name; matching_hard 0\.\d\d to 0\.\d\d,"
        r" chance 0\.\d\d to 0\.\d\d, references 0\.\d\d to 0\.\d\d",
        last,
    )
    assert out.isascii()


def test_best_matches_that_chance_explains_are_not_marked(tmp_path, capsys):
    r = np.random.default_rng(2)
    x = r.standard_normal((60, 4))
    np.savez(tmp_path / "a.npz", same=x, apart=r.standard_normal((60, 4)))
    np.savez(tmp_path / "b.npz", same=x[:, ::-1], apart=r.standard_normal((60, 4)))
    a, b = str(tmp_path / "a.npz"), str(tmp_path / "b.npz")
    out = run(capsys, a, b, "--quiet")
    assert re.search(r"^same +1\.00\* +-?0\.\d\d $", out, re.MULTILINE)
    assert re.search(r"^apart +-?0\.\d\d +-?0\.\d\d $", out, re.MULTILINE)
    assert "1 of 2 layers of a are most like" in out
    found = strict(run(capsys, a, b, "--quiet", "--json", "-"))["best"]
    assert [one["beyond_chance"] for one in found] == [True, False]


def test_noise_is_said_to_be_noise(capsys):
    out = run(capsys, A, SEED1, "--permutations", "0", "--quiet")
    assert out.count("computed on noise: 1,000 seeded normal samples") == 2
    assert "chance" not in out.splitlines()[-1]


@pytest.mark.parametrize("width", [80, 200])
def test_nothing_is_wider_than_the_terminal(width, monkeypatch):
    from canon.formats import read
    from canon.similarity import Computed, Options, similarity
    from canon.similarity.probes import from_file
    from canon_cli.similarity_report import print_similarity

    probes = from_file(f"{DATA}/digits.npz:flat").first(100)
    a, b, c = (Computed(read(p), probes, ["all"]) for p in (A, TUNED, SEED1))
    result = similarity(a, b, Options(permutations=9, units=True), [c])
    text = io.StringIO()
    page = Page(Console(file=text, width=width, force_terminal=True, color_system="truecolor", legacy_windows=False))
    print_similarity(result, units=True, page=page)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
    head = plain.split("\n\n")
    longest = max(len(line) for part in head if not part.startswith("note") for line in part.splitlines())
    assert longest <= width
    assert "\x1b[38;2;" in text.getvalue() or "on rgb" not in text.getvalue()
    assert "48;2;" in text.getvalue()
    assert ("columns     as the rows" in plain) == (width == 80)


def heat(width, rows, columns, color="truecolor", kind="layer"):
    text = io.StringIO()
    page = Page(Console(file=text, width=width, force_terminal=True, color_system=color, legacy_windows=False))
    cells = [[Cell(f"{(i + j) / 200:.2f}", (i + j) / 200, i == j) for j in range(columns)] for i in range(rows)]
    page.heat([f"layer_{i}" for i in range(rows)], [f"{kind}_{j}" for j in range(columns)], cells)
    return text.getvalue(), re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())


def test_heatmaps_of_many_layers_shrink_to_blocks():
    rich, plain = heat(80, 30, 30)
    lines = plain.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len([line for line in lines if line.startswith("layer_")]) == 30
    assert lines[0].startswith("layer_0")  # no numbers over blocks two columns wide
    assert "* " in lines[0]
    assert rich.count("48;2;") == 900
    assert lines[-1] == "columns     as the rows, in their order"


def test_columns_of_other_names_are_named_below():
    assert heat(80, 3, 12, kind="other")[1].splitlines()[-1].endswith("12:other_11")
    assert heat(200, 3, 12, kind="other")[1].splitlines()[0].split() == [f"other_{j}" for j in range(12)]


def test_heatmaps_too_wide_for_blocks_come_in_parts():
    _, plain = heat(80, 3, 60)
    assert [line for line in plain.splitlines() if line.endswith(":")] == ["1 to 36:", "37 to 60:"]
    assert all(len(line) <= 80 for line in plain.splitlines())


def test_without_colour_blocks_are_shades():
    rich, plain = heat(80, 30, 30, color=None)
    assert "48;2;" not in rich
    assert set(plain.splitlines()[20].removeprefix("layer_20").strip()) <= set(" .:-=+*#%@")


def test_heatmaps_off_a_terminal_are_whole(capsys):
    Page().heat(["a" * 60], [f"column number {i}" for i in range(40)], [[Cell("0.50", 0.5)] * 39 + [None]])
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[-1] == "39"
    assert out[1].count("0.50") == 39


# pictures


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_pictures(ending, magic, tmp_path, capsys):
    path = tmp_path / f"p.{ending}"
    words = (A, SEED1, *PROBES, "--layers", "dense_1,dense_3", "--plot", str(path))
    run(capsys, *words)
    first = path.read_bytes()
    assert first.startswith(magic)
    run(capsys, *words)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if ending == "svg":
        text = first.decode()
        for said in ("dense_1", "b: mlp-seed1.h5", "a: mlp-seed0.h5", "units as they stand", "units of b beside their partners",
                     "chance: 95% of permutations", "matched pairs, best first", "ringed"):  # fmt: skip
            assert said in text


def test_pictures_that_cannot_be_drawn(monkeypatch, tmp_path, capsys):
    with pytest.raises(UsageError, match="ends in none of"):
        plot.check("picture.jpeg")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pictures need matplotlib"):
        plot.check("picture.png")
    assert main(["similarity", A, SEED1, "--plot", str(tmp_path / "p.png")]) == 2
    assert capsys.readouterr().err == (
        "canon: --plot: pictures need matplotlib, which is not installed\npip install 'canonform[plot]'\n"
    )


def test_a_picture_does_not_take_the_place_of_a_file_it_could_not_replace(tmp_path, capsys):
    (tmp_path / "p.png").mkdir()
    assert main(["similarity", A, SEED1, *PROBES, "--plot", str(tmp_path / "p.png")]) == 2
    assert "is there already and is not a file" in capsys.readouterr().err


# errors and record


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--measures", "ckaa"], "there is no measure 'ckaa'\nDid you mean cka?"),
        (["--map", "all"], "there is no measure 'all'"),
        (["--positions", "pixels"], "'pixels' is not one of samples, units, mean"),
        (["--permutations", "-1"], "--permutations"),
        (["--samples", "1"], "one sample"),
        (["--samples", "0"], "no samples"),
        (["--layers", "dense_9"], "has no layer 'dense_9'"),
        (["--probes", "nowhere.h5"], "nowhere.h5: no such file"),
    ],
)
def test_errors_in_a_line(words, said, capsys):
    assert main(["similarity", A, SEED1, *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) <= 2


def test_tables_and_arrays(tmp_path, capsys):
    r = np.random.default_rng(0)
    x = r.standard_normal((60, 4))
    np.savetxt(tmp_path / "a.csv", x, delimiter=",")
    np.savez(tmp_path / "b.npz", layer=x[:, ::-1] * 3)
    with h5py.File(tmp_path / "c.h5", "w") as f:
        f["deep/layer"] = x
    a, b, c = (str(tmp_path / n) for n in ("a.csv", "b.npz", "c.h5"))
    found = strict(run(capsys, a, b, "--json", "-", "--quiet"))
    assert found["layers"][0]["measures"]["matching_hard"]["value"] == pytest.approx(1)
    assert "disagreement" not in found["layers"][0]["measures"]
    found = strict(run(capsys, a, b, "--measures", "disagreement,cka", "--json", "-", "--quiet"))
    assert found["layers"][0]["measures"]["disagreement"]["value"] > 0.5
    found = strict(run(capsys, c, c, "--activations", "deep/layer", "--json", "-", "--quiet"))
    assert found["layers"][0]["a"] == "deep/layer"
    assert main(["similarity", c, c]) == 2
    assert "If it holds activations, name them: --activations NAME." in capsys.readouterr().err


def test_record_and_compare_what_is_recorded(tmp_path, capsys):
    outs = []
    for k, path in enumerate((A, SEED1)):
        outs.append(str(tmp_path / f"{k}.h5"))
        assert main(["record", path, "--probes", f"{DATA}/digits.npz:flat", "-o", outs[-1], "--json", "-"]) == 0
        said = strict(capsys.readouterr().out)
        assert said["schema"] == "canon.record/1"
        assert said["values"] == {"dense_1": [497, 48], "dense_2": [497, 32], "dense_3": [497, 10]}
        assert (said["samples"], said["sample_ids"], said["checkpoints"]) == (497, True, ["0"])
    here = strict(run(capsys, *outs, "--permutations", "0", "--json", "-", "--quiet"))
    direct = strict(
        run(capsys, A, SEED1, "--probes", f"{DATA}/digits.npz:flat", "--permutations", "0", "--json", "-", "--quiet")
    )
    assert here["sample_identity"] == "agree"
    for p, q in zip(here["layers"], direct["layers"], strict=True):
        for name, figure in p["measures"].items():
            assert figure["value"] == pytest.approx(q["measures"][name]["value"], abs=1e-5)
    assert main(["compare", outs[0], A]) == 0  # the network is the same
    capsys.readouterr()


def test_record_does_not_write_to_what_it_reads(tmp_path, capsys):
    path = tmp_path / "net.h5"
    path.write_bytes(Path(A).read_bytes())
    for out in (str(path), str(DATA / "digits.npz")):
        assert main(["record", str(path), "--probes", f"{DATA}/digits.npz:flat", "-o", out]) == 2
        assert "would take the place of" in capsys.readouterr().err
    assert path.read_bytes() == Path(A).read_bytes()
    assert main(["record", str(path), "-o", str(tmp_path / "x.h5")]) == 2
    assert "stores no probes" in capsys.readouterr().err
    assert main(["record", f"{DATA}/mlp-run.h5:40", "--all-checkpoints", "--probes", f"{DATA}/digits.npz:flat",
                 "-o", str(tmp_path / "x.h5")]) == 2  # fmt: skip
    assert "Give one of the two" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.h5"]


def test_record_every_checkpoint(tmp_path, capsys):
    out = str(tmp_path / "all.h5")
    words = [
        "record",
        f"{DATA}/mlp-run.h5",
        "--all-checkpoints",
        "--probes",
        f"{DATA}/digits.npz:flat",
        "-o",
        out,
        "--name",
        "digits",
    ]
    assert main([*words, "--quiet"]) == 0
    found = strict(run(capsys, f"{out}:1", f"{out}:40", "--permutations", "0", "--json", "-", "--quiet"))
    assert found["a"]["activations"] == "recorded on digits"
    assert found["a"]["checkpoint"] == "1"
    assert 0.3 < found["layers"][0]["measures"]["matching_hard"]["value"] < 1
