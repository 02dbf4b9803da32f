"""What README.md says canon answers to five disguises of one network is what it answers."""

import importlib.util
import re
from pathlib import Path

import pytest

from canon.compare import compare
from canon.formats import read

ROOT = Path(__file__).parents[1]


def disguises(folder: Path) -> dict[str, Path]:
    spec = importlib.util.spec_from_file_location("disguises", ROOT / "tests" / "bench" / "disguises.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Path] = module.disguises(folder)
    return found


def test_the_table_of_disguises(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| **canon** |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
    files = disguises(tmp_path)
    assert len(cells) == len(files) == 5
    for cell, (name, path) in zip(cells, files.items(), strict=True):
        said = compare(read(ROOT / "data" / "mlp-seed0.h5"), read(path))
        word, distance = re.fullmatch(r"([a-z-]+), (\S+)", cell).groups()  # type: ignore[union-attr]
        assert said.verdict == word, name
        if float(distance) > 1e-3:
            assert said.distance["matched"] == pytest.approx(float(distance), abs=0.006), name
        else:  # rounding: the order of magnitude
            assert said.distance["matched"] <= 20 * float(distance) + 1e-300, name
