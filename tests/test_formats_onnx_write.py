"""Copies of ONNX files with other tensors: what is put back, what has no place, and the command that writes them."""

import base64
import io
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx_files import check, feed, model, node, normal, reference, save
from test_formats_onnx import MLP, STORED, external, mlp

from canon import formats
from canon.action import random_action
from canon.compare import compare
from canon.errors import UsageError, WriteError
from canon.symmetry import derive
from canon_cli.main import main


def moved(run, seed=1):
    g = random_action(derive(run.network), run.network, np.random.default_rng(seed))
    return run.with_network(run.network.with_tensors({n: t.astype(np.float32) for n, t in g(run.network).tensors.items()}))


def test_a_copy_with_other_tensors(tmp_path):
    made = model(MLP, stored=STORED)
    made.producer_name, made.doc_string = "someone", "something"
    made.metadata_props.add(key="note", value="kept")
    made.metadata_props.add(key="canon_action/old", value="gone")
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    run = formats.read(tmp_path / "a.onnx")
    other = moved(run)
    formats.write(other, tmp_path / "b.onnx", actions={"m": {"perm": np.arange(6)}})
    again = formats.read(tmp_path / "b.onnx")
    assert again.network.ops == run.network.ops
    for name, t in other.network.tensors.items():
        np.testing.assert_array_equal(again.network.tensors[name], t)
    assert compare(run, again).verdict == "equivalent"
    copy = onnx.load(tmp_path / "b.onnx")
    assert (copy.producer_name, copy.doc_string) == ("someone", "something")
    props = {p.key: p.value for p in copy.metadata_props}
    assert set(props) == {"note", "canon_action/m/perm"}
    np.testing.assert_array_equal(np.load(io.BytesIO(base64.b64decode(props["canon_action/m/perm"]))), np.arange(6))
    fed = feed(copy)
    np.testing.assert_allclose(reference(copy, fed)[0], reference(made, fed)[0], rtol=1e-5, atol=1e-5)


def test_a_copy_of_itself_keeps_every_value(tmp_path):
    run = formats.read(mlp(tmp_path / "a.onnx"))
    formats.write(run, tmp_path / "b.onnx")
    for one, other in zip(
        onnx.load(tmp_path / "a.onnx").graph.initializer, onnx.load(tmp_path / "b.onnx").graph.initializer, strict=True
    ):
        assert one == other


def test_external_data_come_into_the_copy(tmp_path):
    run = formats.read(external(tmp_path))
    formats.write(moved(run), tmp_path / "b.onnx")
    (tmp_path / "a.data").unlink()
    assert compare(formats.read(tmp_path / "b.onnx"), formats.read(mlp(tmp_path / "c.onnx"))).verdict == "equivalent"


def test_constants_and_scaled_views_are_put_back(tmp_path):
    nodes = [node("Constant", "", "w", value=numpy_helper.from_array(STORED["w"], "")), *MLP[:3], node("Gemm", "r v c",
    "g", transB=1, alpha=0.5, beta=-2.0),
             node("Relu", "g", "h"), node("Div", "h d", "k"), node("Relu", "k", "l"), node("Sub", "l e", "y")]  # fmt: skip
    stored = {n: t for n, t in STORED.items() if n != "w"} | {"d": np.abs(normal(3)) + 1, "e": normal(3)}
    made = save(tmp_path / "a.onnx", nodes, stored=stored)
    run = formats.read(tmp_path / "a.onnx")
    other = moved(run)
    formats.write(other, tmp_path / "b.onnx")
    again = formats.read(tmp_path / "b.onnx").network.tensors
    for name, t in other.network.tensors.items():
        np.testing.assert_allclose(again[name], t, rtol=1e-6)
    fed = feed(made)
    np.testing.assert_allclose(reference(onnx.load(tmp_path / "b.onnx"), fed)[0], reference(made, fed)[0], rtol=1e-4, atol=1e-5)


def test_what_the_file_computes_has_no_place_in_a_copy(tmp_path):
    nodes = [node("Mul", "w0 two", "w"), *MLP]
    stored = {**{n: t for n, t in STORED.items() if n != "w"}, "w0": STORED["w"], "two": normal(4, 1)}
    save(tmp_path / "a.onnx", nodes, stored=stored)
    run = formats.read(tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_text("there before")
    with pytest.raises(WriteError, match=r"is no tensor that .* stores: it is computed there from others"):
        formats.write(moved(run), tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_text() == "there before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx"]


def test_a_tensor_used_in_two_ways_is_put_back_only_where_both_agree(tmp_path):
    nodes = [
        node("MatMul", "x w", "m"),
        node("Relu", "m", "r"),
        node("Transpose", "w", "t", perm=[1, 0]),
        node("MatMul", "r t", "y"),
    ]
    save(tmp_path / "a.onnx", nodes, stored={"w": STORED["w"]})
    run = formats.read(tmp_path / "a.onnx")
    formats.write(run, tmp_path / "b.onnx")
    g = random_action(derive(run.network), run.network, np.random.default_rng(0), sigma=1.0)
    with pytest.raises(WriteError, match="'w' is used in several ways, which no longer agree"):
        formats.write(run.with_network(g(run.network)), tmp_path / "c.onnx")
    large = run.with_network(run.network.with_tensors({n: t.astype(float) * 1e60 for n, t in run.network.tensors.items()}))
    with pytest.raises(WriteError, match="beyond the range of float32"):
        formats.write(large, tmp_path / "c.onnx")
    assert not (tmp_path / "c.onnx").exists()


def test_the_command_writes_copies(tmp_path, capsys):
    path = mlp(tmp_path / "a.onnx")
    assert main(["teleport", str(path), "-o", str(tmp_path / "t.onnx"), "--seed", "1", "--quiet"]) == 0
    assert main(["align", str(path), str(tmp_path / "t.onnx"), "-o", str(tmp_path / "b.onnx"), "--quiet"]) == 0
    assert main(["canonicalize", str(tmp_path / "t.onnx"), "-o", str(tmp_path / "c.onnx"), "--quiet"]) == 0
    for name in ("t", "b", "c"):
        capsys.readouterr()
        assert main(["compare", str(path), str(tmp_path / f"{name}.onnx"), "--json", "-", "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "equivalent"
    assert main(["convert", str(path), "-o", str(tmp_path / "a.h5"), "--quiet"]) == 0
    assert main(["compare", str(path), str(tmp_path / "a.h5"), "--quiet"]) == 0
    with pytest.raises(UsageError, match="cannot write 'onnx'"):
        formats.write(formats.read(path), tmp_path / "d.onnx", "onnx")


def test_a_head_tied_to_its_embedding(tmp_path):
    stored = {"t": normal(9, 4), "u": normal(9, 4).T.copy()}
    nodes = [node("Gather", "t x", "e"), node("Tanh", "e", "h"), node("MatMul", "h u", "y")]
    run = check(tmp_path, nodes, x=("batch", 5), kinds={"x": TensorProto.INT64}, tokens=9, stored=stored)
    assert list(run.network.tensors) == ["t"]
    assert run.notes == ("equal to the table of an embedding, and taken as tied to it: u",)
    other = run.with_network(run.network.with_tensors({"t": 2 * run.network.tensors["t"]}))
    formats.write(other, tmp_path / "b.onnx")
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "b.onnx").graph.initializer}
    np.testing.assert_array_equal(held["u"], held["t"].T)
    np.testing.assert_array_equal(held["t"], 2 * stored["t"])
