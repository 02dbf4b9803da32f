"""canon convert at the command line: what is written, what is said, and what is left alone."""

import json

import keras_files as kf
import numpy as np
import pytest

from canon import formats
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
