"""What `canon compare` and `canon show` print, at fixed widths and off a terminal."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from canon.compare import Options, compare
from canon.compare.result import Comparison, File, SpaceFigures, TensorFigures, UnitFigures
from canon.describe import describe
from canon.formats import read
from canon_cli.console import Page, console
from canon_cli.description import print_description
from canon_cli.report import CSV_HEADER, distance, print_comparison, units_csv, verdict_line

DATA = Path(__file__).parents[1] / "data"
LONG = "encoder/layers/{}/feed_forward/intermediate/dense_with_a_long_name"


def terminal(width: int) -> tuple[Page, io.StringIO]:
    out = io.StringIO()
    return Page(Console(file=out, width=width, force_terminal=True, color_system=None, markup=False)), out


def on_terminal(result: Comparison, width: int, units: bool = False) -> str:
    page, out = terminal(width)
    print_comparison(result, units, page)
    return out.getvalue()


def piped(result: Comparison, units: bool = False) -> str:
    out = io.StringIO()
    print_comparison(result, units, Page(console(out)))
    return out.getvalue()


def files(a: str, b: str, **options: object) -> Comparison:
    sides = [read(DATA / f"{name}.h5") for name in (a, b)]
    return compare(*sides, Options(units=True, **options))  # type: ignore[arg-type]


def made(names: list[str]) -> Comparison:
    """A comparison of relatives whose spaces have these names; the last one is a fixed output."""
    n = len(names)
    spaces = []
    for i, name in enumerate(names):
        free = i < n - 1
        correlation = {"raw": 0.01, "matched": 0.9, "chance": 0.3 if free else None}
        group = "relabelling, scale" if free else "fixed"
        chance = 0.83 if free else None
        spaces.append(SpaceFigures(name, 64, 63, group, 60, 1.0, 0.99, (i + 1) / (2 * n), correlation, chance))
    units = [UnitFigures(names[0], i, 63 - i, i / 64, 0.5, -1.5, {"b": 3, "ratio": 0.8}, ()) for i in range(64)]
    units[63] = replace(units[63], flags=("dead",))
    file = File("a.h5", "keras-2 hdf5", "", 1234567, "float32")
    standing = {"share": 0.97, "chance": 0.06, "score": 0.96, "threshold": 0.23, "units": 80, "view": "from the inputs"}
    return Comparison(
        "related", "partners stand clear", file, file,
        {"raw": 1.0, "normalised": 0.99, "matched": 0.2, "chance": {"mean": 0.83, "sd": 0.004}, "lower_bound": 0.1},
        {"tensor": "x", "index": [1, 2], "deviation": 1e5},
        {"stored_order": {"z": 0.5}, "standing_out": standing}, tuple(spaces),
        (TensorFigures("w", "w", (3, 3), 0.5, "differs"), TensorFigures("bn/mean", "bn/mean", (3,), 0.7, "differs", True)),
        {"probes": 24, "moved_a": 0.1, "moved_b": 0.2, "outputs": 3e4, "why": None}, ("b has another eps",),
        tuple(units), None, {names[0]: 256},
    )  # fmt: skip


@pytest.fixture(scope="module")
def tuned() -> Comparison:
    return files("mlp-seed0", "mlp-seed0-tuned")


def test_a_row_holds_every_figure_of_its_space(tuned: Comparison) -> None:
    for text in (piped(tuned), on_terminal(tuned, 200)):
        lines = text.splitlines()
        header = next(line for line in lines if line.startswith("space "))
        assert header.split() == [
            "space", "units", "live", "moved", "raw", "normalised", "matched", "chance", "raw", "matched", "chance", "group",
        ]  # fmt: skip
        for s in tuned.spaces[:-1]:
            row = next(line for line in lines if line.startswith(f"{s.name} "))
            wanted = [s.name, str(s.units), str(s.live), str(s.moved)]
            wanted += [f"{v:.3f}" for v in (s.raw, s.normalised, s.matched, s.chance)]
            wanted += [f"{s.correlation[k]:.3f}" for k in ("raw", "matched", "chance")]
            assert row.split("  ")[-1] == s.group
            assert row.split()[: len(wanted)] == wanted
        total = next(line for line in lines if line.startswith("network "))
        assert f"{tuned.distance['matched']:.3f}" in total.split()


def test_no_correlation_is_printed_without_chance() -> None:
    fixed = next(line for line in piped(made(["hidden", "out"])).splitlines() if line.startswith("out "))
    assert fixed.split() == ["out", "64", "63", "60", "1.000", "0.990", "0.500", "fixed"]
    same = piped(files("mlp-seed0", "mlp-seed0-disguised"))
    assert "correlation" not in same
    assert "chance" not in same


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_terminal_shows_whole_names_and_says_what_it_left_out(tuned: Comparison, width: int) -> None:
    for result in (tuned, made(["dense_1", *(LONG.format(i) for i in range(3)), "out"])):
        lines = on_terminal(result, width).splitlines()
        assert all(len(line) <= width for line in lines)
        for s in result.spaces:
            assert any(line.split()[:1] == [s.name] for line in lines), f"{s.name} is whole and first on its line"
            assert any(distance(s.matched) in line.split() for line in lines)
        left = " ".join(" ".join(lines).split())
        headers = next(line for line in lines if line.startswith("space "))
        assert ("left out at this width: raw correlation" in left) == (headers.split().count("raw") == 1)
        assert "group" in headers or "relabelling, scale: " in left


def test_the_units_that_fit_worst_stand_with_partner_and_runner_up(tuned: Comparison) -> None:
    lines = piped(tuned).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Units of a that fit their partner in b worst, of 80 live"))
    rows = [line.split() for line in lines[at + 3 : at + 8]]
    worst = sorted(tuned.units, key=lambda u: -u.distance)[:5]
    for row, u in zip(rows, worst, strict=True):
        assert u.runner_up is not None
        assert row[:4] == [u.space, str(u.a), str(u.b), f"{u.distance:.3f}"]
        assert row[5:7] == [str(u.runner_up["b"]), f"{u.runner_up['ratio']:.3f}"]


def test_units_that_count_in_no_distance_are_not_the_worst() -> None:
    text = piped(made(["h", "out"]))
    assert "of 63 live (and 1 dead, constant or negligible)" in text
    rows = [line.split()[:4] for line in text.splitlines()]
    assert ["h", "62", "1", "0.969"] in rows
    assert ["h", "63", "0", "0.984"] not in rows
    every = [line.split()[:4] for line in piped(made(["h", "out"]), units=True).splitlines()]
    assert ["h", "63", "0", "0.984"] in every
    assert sum(row[:1] == ["h"] for row in every) == 1 + 64


def test_raw_says_that_it_is_not_invariant(tuned: Comparison) -> None:
    raw = next(line for line in piped(tuned).splitlines() if line.startswith("raw "))
    assert f"{tuned.distance['raw']:.3f}" in raw
    assert "not invariant" in raw
    assert "rescaling" in raw


def test_tensors_evidence_check_and_notes_in_words() -> None:
    text = piped(made(["h", "out"]))
    for said in (
        "tensors     2 differ; most as stored: bn/mean* 0.700, w 0.500; * marks running statistics of batch norms, 1 in all",
        "stored order: z = 0.5, under the 5 from which",
        "standing out: score 0.96, over the 0.23 from which it shows common descent: 97% of 80 units",
        "(6% on shuffled weights), seen from the inputs",
        "run on 24 probes, differ, by 3e+04 times the rounding bound; a and b agree with their canonical forms to 0.1 and 0.2",
        "chance and lower bound looked at 256 units each of h; --full",
        "note        b has another eps",
    ):
        assert said in text
    decided = replace(made(["h", "out"]), evidence={"stored_order": {"z": 23.4}, "standing_out": None})
    assert "stored order: z = 23.4, over the 5 from which" in piped(decided)
    assert "standing out: not looked for, stored order decides" in piped(decided)
    unchecked = {"probes": 0, "moved_a": None, "moved_b": None, "outputs": None, "why": "not checked: opaque"}
    assert "check       not checked: opaque\n" in piped(replace(decided, check=unchecked))


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ("mlp-seed0", "mlp-seed0", "identical"),
        ("mlp-seed0", "mlp-seed0-disguised", "equivalent"),
        ("mlp-seed0", "mlp-seed0-tuned", "related"),
        ("mlp-seed0", "mlp-seed1", "independent"),
        ("cnn-seed0", "cnn-seed1", "undecided"),
    ],
)
def test_the_verdict_is_the_last_line_and_one_line(a: str, b: str, word: str) -> None:
    result = files(a, b)
    lines = piped(result).splitlines()
    assert lines[-2] == ""
    assert lines[-1] == verdict_line(result)
    assert lines[-1].startswith(f"{word}: {result.reason}")
    if word == "related":
        far = max(result.spaces, key=lambda s: s.matched or 0)
        assert lines[-1].endswith(f"{far.name} moved most ({far.matched:.3f})")
    page = on_terminal(result, 80)
    assert "".join(page.split()).endswith("".join(lines[-1].split()))
    assert max(map(len, page.splitlines())) <= 80


def test_two_hundred_spaces_stay_readable() -> None:
    result = made([f"block{i}" for i in range(200)])
    every = [line.split()[0] for line in piped(result).splitlines() if line.startswith("block")]
    assert every[:200] == [s.name for s in result.spaces]
    short = on_terminal(result, 80)
    assert len(short.splitlines()) < 75
    rows = [line.split()[0] for line in short.splitlines() if line.startswith("block")]
    assert rows[:20] == [f"block{i}" for i in range(180, 200)]
    assert "The 20 of 200 spaces that are farthest apart; 180 more, at matched distances up to 0.450." in " ".join(
        short.split()
    )


def test_everything_but_names_is_ascii(tuned: Comparison) -> None:
    for text in (piped(tuned, units=True), on_terminal(tuned, 80), piped(made(["h", "out"]))):
        assert text.isascii()
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    print_comparison(made(["größe", "out"]), False, Page(console(out)))
    out.flush()
    assert b"\ngr\\xf6\\xdfe  " in raw.getvalue()


def test_names_cannot_reach_the_terminal_raw() -> None:
    assert "\x1b" not in piped(made(["a\x1b[2J", "out"]), units=True)


@pytest.mark.parametrize(
    ("value", "said"), [(None, ""), (0.0, "0"), (1.69e-8, "1.7e-08"), (0.0005, "0.001"), (1.0, "1.000"), (184320.0, "1.8e+05")]
)
def test_numbers(value: float | None, said: str) -> None:
    assert distance(value) == said


def test_units_as_csv_are_complete(tuned: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(units_csv(tuned))))
    assert tuple(rows[0]) == CSV_HEADER
    assert len(rows) == len(tuned.units) == 80
    by_space = {s.name: s for s in tuned.spaces}
    for row, u in zip(rows, tuned.units, strict=True):
        assert (row["space"], int(row["a"]), int(row["b"])) == (u.space, u.a, u.b)
        assert float(row["distance"]) == u.distance
        assert float(row["correlation"]) == u.correlation
        assert float(row["scale"]) == u.scale
        assert float(row["distance_chance"]) == by_space[u.space].chance
        assert float(row["correlation_chance"]) == by_space[u.space].correlation["chance"]
        assert u.runner_up is not None
        assert (int(row["runner_up"]), float(row["runner_up_ratio"])) == (u.runner_up["b"], u.runner_up["ratio"])
        assert tuple(row["flags"].split()) == u.flags
    same = list(csv.DictReader(io.StringIO(units_csv(files("mlp-seed0", "mlp-seed0-disguised")))))
    assert len(same) == 80
    assert {row["runner_up"] for row in same} == {""}


# canon show


def shown(name: str, width: int | None = None) -> str:
    found = describe(read(DATA / name))
    if width is None:
        out = io.StringIO()
        print_description(found, Page(console(out)))
        return out.getvalue()
    page, terminal_out = terminal(width)
    print_description(found, page)
    return terminal_out.getvalue()


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("*.h5")))
def test_show_every_file_of_data(name: str) -> None:
    found = describe(read(DATA / name))
    for text in (shown(name), shown(name, 80), shown(name, 200)):
        assert text.isascii()
        assert f"{found.parameters:,} in {found.tensors} tensors, float32" in text
        assert text.splitlines()[-1].startswith("symmetry  ") or "relabellings" in text.splitlines()[-2]
        for s in found.spaces:
            assert any(line.startswith(f"{s.name} ") and s.group in line for line in text.splitlines())
    assert max(map(len, shown(name, 80).splitlines())) <= 80


def test_show_says_where_a_group_comes_from() -> None:
    found = {name: describe(read(DATA / f"{name}.h5")) for name in ("mlp-seed0", "mlp-tanh", "cnn-seed0")}
    assert [(s.name, s.units, s.group, s.why) for s in found["mlp-seed0"].spaces] == [
        ("dense_1", 48, "relabelling, scale", "relu lets positive scales through"),
        ("dense_2", 32, "relabelling, scale", "relu lets positive scales through"),
    ]
    assert [s.why for s in found["mlp-tanh"].spaces] == ["tanh lets signs through"] * 2
    assert [s.why for s in found["cnn-seed0"].spaces] == [
        "relu and max pool let positive scales through; factors before and after batch norm are free of each other",
        "relu lets positive scales through; factors before and after batch norm are free of each other",
    ]
    wanted = (math.lgamma(49) + math.lgamma(33)) / math.log(10)
    assert math.isclose(found["mlp-seed0"].log10_permutations, wanted, rel_tol=1e-12)
    assert [found[n].continuous_dimension for n in found] == [80, 0, 40]
    assert [found[n].signs for n in found] == [0, 80, 20]


def test_show_numbers_axes_as_the_file_stores_them() -> None:
    import h5py

    for name in ("mlp-seed0.h5", "cnn-seed0.h5", "mlp-run.h5"):
        found = describe(read(DATA / name))
        with h5py.File(DATA / name) as f:
            for s in found.spaces:
                for axis in s.axes:
                    assert axis.path is not None
                    assert axis.stored_axis is not None
                    assert f[axis.path].shape[axis.stored_axis] == s.units
    assert "conv_1: conv_1/kernel[3], norm_1/gamma[0]" in shown("cnn-seed0.h5")


def test_show_lists_what_folds_and_what_is_fixed() -> None:
    text = shown("cnn-seed0.h5")
    assert "folds away  batch norm: norm_1 into conv_1, norm_2 into conv_2" in text
    assert "fixed       input_1[0], input_1[1]: the network's input" in text
    assert "            dense_1[0]: the network's output" in text


def test_show_lists_checkpoints_with_their_metrics() -> None:
    lines = [line.split() for line in shown("mlp-run.h5").splitlines()]
    assert ["checkpoint", "test_accuracy"] in lines
    assert ["0", "0.140845"] in lines
    assert ["40", "0.971831", "shown", "here"] in lines
