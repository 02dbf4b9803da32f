"""canon convert at the command line: what is written, what is said, and what is left alone."""

import json

import keras_files as kf
import numpy as np
import pytest

from canon import formats
from canon_cli import writing
from canon_cli.main import main


@pytest.mark.parametrize("to", ["canon", "keras", "keras-zip"])
def test_a_converted_file_compares_as_identical(tmp_path, capsys, to):
    source, out = kf.mlp(tmp_path / "a.h5"), tmp_path / "out"
    assert main(["convert", str(source), "-o", str(out), "--to", to, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["to"], told["output"]) == ("canon.convert/1", to, str(out))
    assert told["outputs"] <= 1e-12
    assert main(["compare", str(source), str(out)]) == 0


def test_what_a_format_cannot_keep_is_said(tmp_path, capsys):
    source, out = kf.mlp(tmp_path / "a.h5"), tmp_path / "out"
    assert main(["convert", str(source), "-o", str(out), "--to", "npz"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"canon: {out}: arrays alone are kept: no graph, no nonlinearities, no strides, no epsilon of batch norms",
        f"canon: {out}: the outputs are not compared: no graph is kept",
    ]
    assert main(["convert", str(source), "-o", str(out), "--to", "npz", "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_checkpoints(tmp_path, capsys):
    run = formats.read(kf.mlp(tmp_path / "a.h5"))
    steps = [run.with_network(run.network.with_tensors({n: t + k for n, t in run.network.tensors.items()}), checkpoint=str(k))
             for k in (1, 2, 3)]  # fmt: skip
    source, out = tmp_path / "run.canon", tmp_path / "out"
    formats.write(steps[0], source, "canon", checkpoints=steps[1:])
    assert main(["convert", str(source), "-o", str(out), "--checkpoint", "2", "--to", "keras"]) == 0
    np.testing.assert_array_equal(
        formats.read(out).network.tensors["dense_0/kernel"], steps[1].network.tensors["dense_0/kernel"]
    )
    assert "one checkpoint of 3 is written: 2" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(out), "--all-checkpoints"]) == 0
    assert formats.read(out).checkpoints == ("1", "2", "3")
    before = out.read_bytes()
    assert main(["convert", str(source), "-o", str(out), "--all-checkpoints", "--to", "keras"]) == 2
    assert capsys.readouterr().err.startswith(f"canon: {out}: only canon's own format holds several checkpoints")
    assert main(["convert", str(source), "-o", str(tmp_path / "gone" / "out")]) == 2
    assert out.read_bytes() == before


def test_a_layer_that_keras_has_not_leaves_the_output_alone(tmp_path, capsys):
    layers = [kf.inp("x", 3), kf.dense("d", "x", 3, 3), kf.layer("Lambda", "l", "d")]
    source = kf.save(tmp_path / "a.h5", kf.functional(layers, ["x"], ["l"]), layers)
    out = tmp_path / "out"
    out.write_bytes(b"before")
    assert main(["convert", str(source), "-o", str(out), "--to", "keras"]) == 2
    assert "l: Keras has no layer for a Lambda operation" in capsys.readouterr().err
    assert out.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("name", "form", "format_"),
    [
        ("a.npz", "npz", "npz tensors"),
        ("a.NPZ", "npz", "npz tensors"),
        ("a.safetensors", "safetensors", "safetensors"),
        ("a.keras", "keras-zip", "keras-3 archive"),
        ("a.canon", "canon", "canon hdf5"),
        ("a.h5", "canon", "canon hdf5"),
        ("a", "canon", "canon hdf5"),
    ],
)
def test_the_ending_of_the_name_tells_the_format_and_that_is_said(tmp_path, capsys, name, form, format_):
    source, out = kf.mlp(tmp_path / "source"), tmp_path / name
    assert main(["convert", str(source), "-o", str(out), "--json", "-"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["to"] == form
    assert formats.read(out).format == format_
    first = [line for line in told.err.splitlines() if not line.endswith("...")][:1]
    if name == "a.canon":
        assert not first
    elif form == "canon":
        assert first == [f"canon: {out}: written in canon's own format (--to names another)"]
    else:
        assert first == [f"canon: {out}: written as {form}, by its ending (--to names another)"]
    assert main(["convert", str(source), "-o", str(out), "--to", "canon"]) == 0  # what is asked for counts more
    assert formats.read(out).format == "canon hdf5"
    assert "ending" not in capsys.readouterr().err


def test_an_ending_of_a_format_that_is_not_written_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(writing.ENDINGS, ".odd", "odd")
    out = tmp_path / "a.odd"
    assert main(["convert", str(kf.mlp(tmp_path / "source")), "-o", str(out), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith(f"canon: {out}: canon cannot write 'odd'")
    assert not out.exists()


def test_a_moved_network_is_in_the_format_of_its_source_and_an_ending_that_says_otherwise_is_told(tmp_path, capsys):
    source = kf.mlp(tmp_path / "a.h5")
    for name, said in (("b.npz", True), ("b.h5", False)):
        out = tmp_path / name
        assert main(["teleport", str(source), "-o", str(out)]) == 0
        told = f"{out} is written as its source is (keras-2 hdf5), whatever its ending: --to npz names another"
        assert (told in capsys.readouterr().err) == said
        assert formats.read(out).format == "keras-2 hdf5"
    assert main(["teleport", str(source), "-o", str(tmp_path / "c.npz"), "--to", "npz"]) == 0
    assert "whatever its ending" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["show", "a.h5"], "a.h5"),
        (["show", "a.h5"], "./x/../a.h5"),
        (["compare", "a.h5", "b.h5"], "b.h5"),
        (["compare", "a.h5:3", "b.h5"], "a.h5"),
        (["compare", "a.h5", "b.h5", "--architecture", "c.h5"], "c.h5"),
        (["compare", "a.h5", "b.h5"], "link.h5"),
        (["compare", "a.h5", "b.h5", "--units", "u.csv"], "u.csv"),
        (["convert", "a.h5", "-o", "new.npz"], "new.npz"),
        (["align", "a.h5", "b.h5", "-o", "b.h5"], "b.h5"),
        (["show", "x"], "x/config.json"),
    ],
)
def test_the_result_as_json_takes_the_place_of_no_other_file(tmp_path, capsys, monkeypatch, words, target):
    monkeypatch.chdir(tmp_path)
    for name in ("a.h5", "b.h5", "c.h5"):
        kf.mlp(tmp_path / name)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text('{"hidden_size": 3}')
    (tmp_path / "link.h5").symlink_to("a.h5")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main([*words, "--json", target]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"canon: --json: {target} would take the place of ")
    assert not out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_result_may_take_the_place_of_an_older_one(tmp_path, capsys):
    source, target = kf.mlp(tmp_path / "a.h5"), tmp_path / "result.json"
    for _ in range(2):
        assert main(["show", str(source), "--json", str(target), "--quiet"]) == 0
        assert json.loads(target.read_text())["schema"] == "canon.show/1"
