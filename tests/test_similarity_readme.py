"""What README.md says of similarity: its example runs, and its table is what canon answers."""

import shlex
from pathlib import Path

import pytest

from canon.formats import read
from canon.similarity import MEASURES, Computed, Options, similarity
from canon.similarity.probes import from_file
from canon_cli.main import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = ("mlp-seed0-disguised.h5", "mlp-seed0-tuned.h5", "mlp-seed1.h5", "mlp-run.h5:0")
"""The columns of the table: disguised copy, fine-tuned, another seed, at random."""


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    block = TEXT.split("<!-- similarity -->\n```sh\n")[1].split("\n```")[0]
    words = shlex.split(block)
    assert words[0] == "canon"
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0
    assert "3 of 3 layers of a are most like the layer of b of the same name" in capsys.readouterr().out
    assert (tmp_path / "map.svg").exists()


def test_the_table():
    probes = from_file(f"{ROOT}/data/digits.npz:flat")
    a = Computed(read(ROOT / "data" / "mlp-seed0.h5"), probes)
    lines = [line for line in TEXT.splitlines() if line.startswith("| `")]
    rows = {cells[0].strip("`"): cells[1:] for cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines)}
    rows = {name: [float(c) for c in cells] for name, cells in rows.items() if name in MEASURES}
    assert list(rows) == ["matching_hard", "cca", "cka_standardised", "cka"]
    for k, word in enumerate(FILES):
        path, _, step = word.partition(":")
        b = Computed(read(ROOT / "data" / path, checkpoint=step or None), probes)
        found = similarity(a, b, Options(tuple(rows))).layers[0].measures
        for name, cells in rows.items():
            assert found[name].value == pytest.approx(cells[k], abs=0.006), (name, word)
            if word == "mlp-seed1.h5":
                assert found[name].chance["mean"] == pytest.approx(cells[4], abs=0.006), name


def test_the_number_of_measures():
    assert f"canon offers {len(MEASURES)} measures" in TEXT
