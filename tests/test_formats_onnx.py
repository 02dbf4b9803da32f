"""ONNX files: what holds their tensors, functions and branches, types, notes, and copies with other tensors."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data
from onnx_files import check, feed, kinds, model, node, normal, ops, ours, reference, save

from canon import formats
from canon.compare import compare
from canon.errors import CanonError, CorruptFile, GraphError, MissingExtra, ReadError
from canon.formats import onnx_file
from canon_cli.main import main

MLP = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Relu", "a", "r"), node("Gemm", "r v c", "y", transB=1)]
STORED = {"w": normal(4, 6), "b": normal(6), "v": normal(3, 6), "c": normal(3)}


def mlp(path, stored=None, **kwargs):
    save(path, MLP, stored=STORED if stored is None else stored, **kwargs)
    return path


def test_a_model_by_its_content(tmp_path):
    run = formats.read(mlp(tmp_path / "a.weights"))
    assert (run.format, run.graph, run.activations_known, run.notes) == ("onnx", "stored", True, ())
    assert ops(run) == ["dense", "relu", "dense"]
    assert list(run.network.tensors) == ["w", "b", "v", "c"]


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    path = mlp(tmp_path / "a.onnx")

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(onnx_file, "import_module", missing)
    with pytest.raises(MissingExtra, match="reading it needs the package onnx"):
        formats.read(path)
    assert main(["show", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"canon: {path}: an ONNX model: reading it needs the package onnx", "pip install 'canonform[onnx]'",
    ]  # fmt: skip


# what holds tensors


def test_initialisers_that_are_inputs_as_well(tmp_path):
    made = model(MLP, stored=STORED, opset=8, ir=3)
    for name, t in STORED.items():
        made.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, t.shape))
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    assert list(formats.read(tmp_path / "a.onnx").network.inputs) == ["x"]


def test_constants_of_all_kinds(tmp_path):
    w, b = (numpy_helper.from_array(STORED[n], "") for n in "wb")
    nodes = [
        node("Constant", "", "k", value=w), node("Identity", "k", "w"), node("Constant", "", "b", value=b),
        node("Constant", "", "s", value_float=0.5), node("Constant", "", "t", value_floats=[1.0, 2.0, 3.0]),
        node("Constant", "", "i", value_ints=[2, 3]), node("Constant", "", "j", value_int=-1), node("ConstantOfShape", "i", "z",
        value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0])), *MLP[:3], node("Mul", "r s", "q"), node("Gemm",
            "q v t", "g", transB=1),
        node("MatMul", "z g3", "zz"), node("Unsqueeze", "g j1", "u"), node("ReduceSum", "zz", "n"), node("Mul", "u n", "y"),
    ]  # fmt: skip
    stored = {"v": STORED["v"], "g3": normal(3, 2), "j1": np.array([1])}
    run = check(tmp_path, nodes, stored=stored, tol=1e-5)
    assert set(run.network.tensors) == {"k", "b", "v", "g/bias"}


@pytest.mark.parametrize(
    ("dtype", "name", "precision"),
    [(np.float16, "float16", ""), (np.float64, "float64", ""), (ml_dtypes.bfloat16, "float32", "bfloat16")],
)
def test_types(tmp_path, dtype, name, precision):
    stored = {n: numpy_helper.from_array(t.astype(dtype), n) for n, t in STORED.items()}
    run = formats.read(mlp(tmp_path / "a.onnx", stored))
    assert {str(t.dtype) for t in run.network.tensors.values()} == {name}
    assert dict(run.network.precision) == (dict.fromkeys(STORED, precision) if precision else {})
    np.testing.assert_array_equal(run.network.tensors["w"], STORED["w"].astype(dtype).astype(name).T)


@pytest.mark.parametrize(
    ("kind", "values"), [(TensorProto.FLOAT, STORED["w"]), (TensorProto.DOUBLE, STORED["w"]), (TensorProto.FLOAT16, None)]
)
def test_values_in_fields_of_their_type(tmp_path, kind, values):
    t = STORED["w"].astype(np.float16) if values is None else values
    words = t.view(np.uint16) if values is None else t
    held = helper.make_tensor("w", kind, t.shape, words.reshape(-1).tolist(), raw=False)
    if values is None:
        held = TensorProto(name="w", data_type=kind, dims=t.shape, int32_data=words.reshape(-1).tolist())
    run = formats.read(mlp(tmp_path / "a.onnx", {**STORED, "w": held}))
    np.testing.assert_array_equal(run.network.tensors["w"], t.T)


def external(tmp_path, name="a.onnx", **kwargs):
    made = model(MLP, stored=STORED)
    convert_model_to_external_data(made, size_threshold=0, location="a.data", **kwargs)
    onnx.save(made, tmp_path / name)
    return tmp_path / name


def test_external_data_are_mapped(tmp_path):
    run = formats.read(external(tmp_path))
    held = run.network.tensors["v"]
    np.testing.assert_array_equal(held, STORED["v"])
    while held.base is not None and not isinstance(held, np.memmap):
        held = held.base
    assert isinstance(held, np.memmap)
    assert held.mode == "r"


# functions and branches


def test_functions_of_the_model_are_written_out(tmp_path):
    opset = [helper.make_opsetid("", 17)]
    inner = helper.make_function(
        "own", "Scaled", ["a"], ["b"], [node("Mul", "a s", "b"), node("Constant", "", "s", value_float=0.5)][::-1], opset
    )
    body = [node("MatMul", "u k", "m"), node("Scaled", "m", "n", domain="own"), node("LeakyRelu", "n", "o", alpha=0.3)]
    body[2].attribute[0].ref_attr_name = "slope"
    body[2].attribute[0].ClearField("f")
    outer = helper.make_function("own", "Layer", ["u", "k"], ["o"], body, [*opset, helper.make_opsetid("own", 1)], ["slope"])
    nodes = [node("Layer", "x w", "h", domain="own", slope=0.25), node("Layer", "h v", "y", domain="own", slope=0.75)]
    stored = {"w": normal(4, 5), "v": normal(5, 3)}

    def wanted(fed):
        h = fed["x"]
        for name, slope in (("w", 0.25), ("v", 0.75)):
            h = h @ stored[name] / 2
            h = np.where(h > 0, h, slope * h)
        return [h]

    run = check(tmp_path, nodes, stored=stored, functions=[inner, outer], domains=["own"], wanted=wanted)
    assert ops(run) == ["dense", "rescale", "leaky_relu"] * 2
    assert [op.attrs["alpha"] for op in run.network.ops if op.kind == "leaky_relu"] == [0.25, 0.75]


def branch(name, *nodes, stored=()):
    return helper.make_graph(list(nodes), name, [], [helper.make_empty_tensor_value_info(nodes[-1].output[0])], list(stored))


def test_a_branch_whose_condition_is_known_is_followed(tmp_path):
    then = branch("then", node("Tanh", "m", "t"))
    other = branch("else", node("Add", "m k", "e"), stored=[numpy_helper.from_array(normal(6), "k")])
    nodes = [MLP[0], node("Shape", "m", "s"), node("Gather", "s one", "n"), node("Equal", "n six", "q"),
             node("If", "q", "y", then_branch=then, else_branch=other)]  # fmt: skip
    stored = {"w": STORED["w"], "one": np.array(1), "six": np.array(6)}
    assert ops(check(tmp_path, nodes, stored=stored)) == ["dense", "tanh"]
    run = check(tmp_path, nodes, stored={**stored, "six": np.array(7)})
    assert ops(run) == ["dense"]
    assert "bias" in run.network.ops[0].params
    nodes[3] = node("Equal", "n z", "q")
    ports = {"x": {"x": ("batch", 4), "z": ()}, "kinds": {"z": TensorProto.INT64}, "stored": stored}
    save(tmp_path / "b.onnx", nodes, **ports)
    run = formats.read(tmp_path / "b.onnx")
    assert ops(run)[-1] == "opaque"
    assert "(If)" in run.notes[-1]
    nodes[4].attribute[0].g.CopyFrom(branch("then", node("Unsqueeze", "m one", "t")))  # one axis more than the other branch
    save(tmp_path / "c.onnx", nodes, **{**ports, "stored": {**stored, "one": np.array([1])}})
    with pytest.raises(GraphError, match=r"a node If .*, and the shape of what it computes is not known"):
        formats.read(tmp_path / "c.onnx")


# what is said, and what is refused


@pytest.mark.parametrize(("opset", "attrs"), [(17, {"training_mode": 1}), (6, {})])
def test_a_batch_norm_in_training_is_refused(tmp_path, opset, attrs):
    stored = {n: np.abs(normal(4, seed=i)) for i, n in enumerate("gbmv")}
    save(tmp_path / "a.onnx", [node("BatchNormalization", "x g b m v", "y", **attrs)], stored=stored, opset=opset)
    with pytest.raises(ReadError, match="a batch norm in training mode"):
        formats.read(tmp_path / "a.onnx")


def test_quantised_models_are_opaque_where_they_are_and_say_so(tmp_path):
    stored = {"s": np.float32(0.1), "z": np.int8(0), "q": np.ones((4, 5), np.int8)}
    nodes = [node("QuantizeLinear", "x s z", "i"), node("DequantizeLinear", "i s z", "d"), node("Relu", "d", "y")]
    save(tmp_path / "a.onnx", nodes, stored=stored)
    run = formats.read(tmp_path / "a.onnx")
    assert ops(run) == ["opaque", "opaque", "relu"]
    assert "(QuantizeLinear)" in run.notes[0]
    nodes = [node("MatMulInteger", "i q", "m"), node("Cast", "m", "y", to=1), node("QuantizeLinear", "x s z", "i")]
    save(tmp_path / "b.onnx", [nodes[2], *nodes[:2]], stored=stored)
    assert "(MatMulInteger)" in formats.read(tmp_path / "b.onnx").notes[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: m.opset_import[0].__setattr__("version", 5), "an ONNX file of operator set 5, and canon reads 6 and later"),
        (lambda m: m.opset_import.pop(), "does not say which operator set it uses"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "two tensors of this name"),
        (lambda m: m.graph.node.append(m.graph.node[0]), "two values of this name"),
        (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "its operations form a cycle"),
        (lambda m: m.graph.node[0].input.__setitem__(0, "nothing"), "reads 'nothing', which nothing computes"),
        (lambda m: m.graph.output[0].__setattr__("name", "nothing"), "an output that nothing computes"),
        (lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
            "an input whose number of axes the file does not say"),
        (lambda m: m.ClearField("graph"), "no format that canon knows"),
        (lambda m: m.graph.node[0].input.__setitem__(1, "v"), r"a matrix of shape \(3, 6\) meets a value of width 4"),
        (lambda m: m.graph.node[1].input.__setitem__(1, "c"), r"a constant of shape \(3,\) meets a value of shape"),
        (lambda m: m.graph.initializer[0].__setattr__("data_type", TensorProto.STRING), "holds values of type string"),
        (lambda m: m.graph.initializer[0].__setattr__("data_type", 99), "holds values of type number 99"),
        (lambda m: m.graph.initializer[0].__setattr__("raw_data", b"abc"), "declares 96 bytes, and holds 3"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, -1), "declares a shape"),
        (lambda m: m.graph.sparse_initializer.add(), "is a sparse tensor"),
    ],
)  # fmt: skip
def test_models_that_do_not_hold_together_are_refused_in_a_line(tmp_path, make, words):
    made = model(MLP, stored=STORED)
    make(made)
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(CanonError) as caught:
        formats.read(tmp_path / "a.onnx")
    assert re.search(words, str(caught.value))
    assert str(caught.value).startswith(str(tmp_path / "a.onnx"))
    assert len(str(caught.value).splitlines()) <= 2


def test_an_input_of_units_behind_axes_of_size_one(tmp_path):
    nodes = [node("Sub", "x k", "s"), node("Flatten", "s", "f"), node("MatMul", "f w", "y")]
    run = check(tmp_path, nodes, x=("batch", 1, 1, 4), stored={"k": normal(1, 1, 1, 4), "w": STORED["w"]})
    assert run.network.inputs == {"x": (4,)}
    assert ops(run) == ["add_constant", "dense"]
    assert run.notes == ("of 'x' the axes of size one are left out, which are flattened away",)
    nodes = [node("Flatten", "x", "f"), node("Tanh", "f", "y")]  # two axes with units: nothing is left out
    assert check(tmp_path, nodes, x=("batch", 1, 3, 4)).network.inputs == {"x": (1, 3, 4)}


def test_outputs_that_are_one_value_and_values_that_nothing_needs(tmp_path):
    nodes = [*MLP, node("Identity", "y", "z"), node("Tanh", "x", "unused"), node("Resize", "unused _ s", "t", mode="cubic")]
    run = check(tmp_path, nodes, stored={**STORED, "s": np.ones(2, np.float32)}, y=("y", "z"))
    assert ops(run) == ["dense", "relu", "dense", "linear"]


def test_vectors_of_one_number_that_layers_share_are_their_own(tmp_path):
    stored = {"w": STORED["w"], "v": normal(6, 6), "one": np.ones(6, np.float32), "two": normal(6)}
    for name, apart in (("one", True), ("two", False)):
        nodes = [
            node("MatMul", "x w", "m"),
            node("Add", f"m {name}", "a"),
            node("Relu", "a", "r"),
            node("MatMul", "r v", "n"),
            node("Add", f"n {name}", "y"),
        ]
        run = check(tmp_path, nodes, stored=stored)
        assert (run.network.ops[0].params["bias"] != run.network.ops[2].params["bias"]) == apart


def test_a_network_that_depends_on_its_own_sizes_is_read_at_two(tmp_path):
    """Positions counted up to the length of the sequence: the same table at any length."""
    stored = {"t": normal(9, 4), "p": normal(16, 4), "i0": np.array(0), "i1": np.array(1), "a": np.array([0])}
    nodes = [node("Gather", "t x", "e"), node("Shape", "x", "s"), node("Gather", "s i1", "n"), node("Range", "i0 n i1",
    "r"), node("Unsqueeze", "r a", "u"),
             node("Gather", "p u", "q"), node("Add", "e q", "y")]  # fmt: skip
    run = check(
        tmp_path, nodes, x=("batch", "steps"), kinds={"x": TensorProto.INT64}, tokens=9, stored=stored, sizes={"steps": 8}
    )
    assert ops(run) == ["embedding", "add_positions"]
    assert run.network.inputs == {"x": (None,)}
    assert run.notes == ("read at sizes 6 and 11 of its open axes: it is the same at both",)


def test_names_that_are_paths_can_be_kept_by_any_format(tmp_path):
    nodes = [node("MatMul", "x /a//w", "/m", name="/a/./MatMul"), node("Relu", "/m", "y", name="/a/MatMul")]
    run = check(tmp_path, nodes, stored={"/a//w": STORED["w"]})
    assert [op.name for op in run.network.ops] == ["a/MatMul", "a/MatMul_1"]
    assert list(run.network.tensors) == ["a/w"]
    formats.write(run, tmp_path / "a.h5", "canon")
    assert compare(run, formats.read(tmp_path / "a.h5")).verdict == "identical"


def test_several_inputs_and_no_batch(tmp_path):
    nodes = [node("MatMul", "x w", "m"), node("MatMul", "z w", "n"), node("Add", "m n", "y")]
    made = save(tmp_path / "a.onnx", nodes, x={"x": (4,), "z": (4,)}, stored={"w": STORED["w"]})
    run = formats.read(tmp_path / "a.onnx")
    assert run.network.inputs == {"x": (4,), "z": (4,)}
    assert kinds(run) == {"dense": 2, "add": 1}
    fed = feed(made)
    np.testing.assert_allclose(ours(run, fed, None)[0][0], reference(made, fed)[0], rtol=1e-5)


def test_the_same_network_with_batch_norms_folded_or_not(tmp_path):
    g, b, m, v = (normal(6, seed=i) for i in range(4))
    v = np.abs(v) + 0.1
    stored = {"w": normal(6, 3, 3, 3), "g": g, "b": b, "m": m, "v": v}
    nodes = [
        node("Conv", "x w", "c"),
        node("BatchNormalization", "c g b m v", "n"),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "y"),
    ]
    one = check(tmp_path, nodes, x=("batch", 3, 8, 8), stored=stored)
    gain = g.astype(float) / np.sqrt(v.astype(float) + 1e-5)
    folded = {"w": (stored["w"] * gain[:, None, None, None]).astype(np.float32), "b": (b - gain * m).astype(np.float32)}
    plain = [node("Conv", "x w b", "c"), node("Relu", "c", "r"), nodes[3]]
    other = check(tmp_path, plain, x=("batch", 3, 8, 8), stored=folded)
    assert compare(one, other).verdict == "equivalent"
    assert ops(one)[1] == "batch_norm"


def test_a_file_cut_short_says_how_much_is_there(tmp_path):
    raw = mlp(tmp_path / "a.onnx").read_bytes()
    Path(tmp_path / "b.onnx").write_bytes(raw[:-40])
    with pytest.raises(CorruptFile, match=rf"a truncated ONNX file: {len(raw) - 40:,} of at least [\d,]+ bytes are there"):
        formats.read(tmp_path / "b.onnx")
