"""ONNX files made to harm: nothing outside is opened, nothing absurd is allocated, and everything is one line."""

import contextlib
import os
import random
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_files import model, node, normal, save

from canon import formats
from canon.errors import CanonError, CorruptFile, GraphError, ReadError
from canon_cli.main import main

W = normal(4, 6)
RAW = W.tobytes()


def beside(tmp_path, location, data=RAW, dims=(4, 6), **said):
    """A model whose kernel is kept at a location."""
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(data)
    held = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **said}.items():
        held.external_data.add(key=key, value=str(value))
    save(folder / "a.onnx", [node("MatMul", "x w", "y")], x=("batch", dims[0]), stored={"w": held})
    return folder / "a.onnx"


def refused(path, error, words, traced=True):
    """The file is refused in one line, by the library and by the command."""
    if traced:
        tracemalloc.start()
    try:
        with pytest.raises(error, match=words) as caught:
            formats.read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) <= 2
    assert not traced or main(["show", str(path)]) == 2


def test_values_in_a_file_beside_the_model(tmp_path):
    np.testing.assert_array_equal(formats.read(beside(tmp_path, "w.bin")).network.tensors["w"], W.T)
    np.testing.assert_array_equal(
        formats.read(beside(tmp_path, "w.bin", b"ab" + W.tobytes(), offset=2)).network.tensors["w"], W.T
    )


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "..\\w.bin", "C:\\w.bin", "", "//x/w", "w\0.bin", "a/../w.bin"]
)
def test_values_outside_the_folder_are_not_opened(tmp_path, location):
    path = beside(tmp_path, location)
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    refused(path, CorruptFile, "outside the model's folder")


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    path = beside(tmp_path, "link.bin")
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (path.parent / "link.bin").symlink_to(tmp_path / "w.bin")
    refused(path, CorruptFile, "outside the model's folder")
    (path.parent / "link.bin").unlink()
    (path.parent / "link.bin").symlink_to(path.parent / "w.bin")  # inside, it is a name like another
    np.testing.assert_array_equal(formats.read(path).network.tensors["w"], W.T)
    (path.parent / "link.bin").unlink()
    (path.parent / "link.bin").symlink_to(path.parent / "link.bin")
    refused(path, ReadError, r"'link.bin', which is not there|cannot|outside")
    os.mkfifo(path.parent / "pipe")
    refused(beside(tmp_path, "pipe"), CorruptFile, "is not a regular file")
    refused(beside(tmp_path, "nowhere.bin"), ReadError, "which is not there")


@pytest.mark.parametrize(
    ("said", "dims"),
    [({}, (2**25, 2**25)), ({"length": 2**50}, (2**24, 2**24)), ({"offset": 90}, (4, 6)), ({"offset": -4}, (4, 6)),
     ({"length": 95}, (4, 6)), ({"offset": 2**70}, (4, 6)), ({"length": "many"}, (4, 6))],
)  # fmt: skip
def test_lengths_are_held_against_the_file_before_memory_is_taken(tmp_path, said, dims):
    refused(beside(tmp_path, "w.bin", dims=dims, **said), CorruptFile, "declares|no numbers")


@pytest.mark.parametrize("dims", [(2**25, 2**25), (2**62, 2**62), (2**31,), (4, 7), (0, 5)])
def test_tensors_that_declare_more_than_there_is(tmp_path, dims):
    held = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=W.tobytes())
    save(tmp_path / "a.onnx", [node("MatMul", "x w", "y")], stored={"w": held})
    refused(tmp_path / "a.onnx", CorruptFile, "declares")
    held.ClearField("raw_data")
    held.float_data.extend([1.0, 2.0])
    save(tmp_path / "b.onnx", [node("MatMul", "x w", "y")], stored={"w": held})
    refused(tmp_path / "b.onnx", CorruptFile, "declares")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("ConstantOfShape", "big", "w"), node("MatMul", "x w", "y")], "makes an array of 1,125,899,906,842,624 entries"),
        ([node("Expand", "one big", "w"), node("Add", "x w", "y")], ""),
        ([node("Tile", "one big", "w"), node("Add", "x w", "y")], ""),
        ([node("Range", "zero huge step", "w"), node("Add", "x w", "y")], ""),
        ([node("Expand", "x far", "y")], ""),
        ([node("Unsqueeze", "x axes", "y")], ""),
        ([node("Pad", "x pads", "p"), node("Relu", "p", "y")], ""),
    ],
)  # fmt: skip
def test_what_a_graph_would_make_out_of_nothing(tmp_path, nodes, words):
    stored = {
        "big": np.array([2**25, 2**25]), "one": np.ones((1, 1), np.float32), "zero": np.array(0), "huge": np.array(2**50),
            "step": np.array(1),
        "far": np.array([2**40, 1, 4]), "axes": np.arange(100), "pads": np.array([0, 2**40, 0, 2**40]),
    }  # fmt: skip
    names = {v for n in nodes for v in n.input}
    save(tmp_path / "a.onnx", nodes, stored={k: v for k, v in stored.items() if k in names})
    tracemalloc.start()
    said = ""
    try:
        formats.read(tmp_path / "a.onnx")  # opaque, or a shape and no values
    except CanonError as e:
        said = str(e)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 26
    assert words in said
    assert len(said.splitlines()) <= 2


def test_functions_that_call_themselves_or_multiply(tmp_path):
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    loop = helper.make_function("own", "F", ["a"], ["b"], [node("F", "a", "b", domain="own")], opset)
    save(tmp_path / "a.onnx", [node("F", "x", "y", domain="own")], functions=[loop], domains=["own"])
    refused(tmp_path / "a.onnx", CorruptFile, "a function that calls itself")
    last = helper.make_function("own", "F0", ["a"], ["b"], [node("Relu", "a", "b")], opset)
    double = [
        helper.make_function("own", f"F{i}", ["a"], ["b"], [node(f"F{i - 1}", "a", "c", domain="own"), node(f"F{i - 1}",
            "c", "b", domain="own")], opset)
        for i in range(1, 41)
    ]  # fmt: skip
    save(tmp_path / "b.onnx", [node("F40", "x", "y", domain="own")], functions=[last, *double], domains=["own"])
    refused(tmp_path / "b.onnx", CorruptFile, "a graph of more than 100,000 nodes")


def test_graphs_inside_graphs(tmp_path):
    inner = helper.make_graph([node("Relu", "x", "b0")], "g", [], [helper.make_empty_tensor_value_info("b0")])
    for i in range(1, 25):
        n = helper.make_node("If", ["t"], [f"b{i}"], then_branch=inner)
        inner = helper.make_graph([n], "g", [], [helper.make_empty_tensor_value_info(f"b{i}")])
    save(tmp_path / "a.onnx", [helper.make_node("If", ["t"], ["y"], then_branch=inner)], stored={"t": np.array(True)})
    refused(tmp_path / "a.onnx", CorruptFile, "graphs inside graphs, 20 deep")


@pytest.mark.parametrize("what", ["nodes", "names", "fields", "dims"])
def test_messages_without_end_are_counted_before_they_are_taken_apart(tmp_path, what):
    made = model([node("Relu", "x", "y")])
    raw = made.SerializeToString()
    n = 600_000
    body = {
        "nodes": b"\x0a\x00" * n,  # graph.node, empty
        "names": b"\x0a" + varint(2 * n) + b"\x0a\x00" * n,  # one node with so many inputs
        "fields": b"\x50\x01" * 2_600_000,  # a field that nobody knows
        "dims": b"\x5a" + varint(len(dims(n))) + dims(n),
    }[what]
    (tmp_path / "a.onnx").write_bytes(raw + b"\x3a" + varint(len(body)) + body)
    refused(tmp_path / "a.onnx", CorruptFile, "more than 500,000 parts", traced=False)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def dims(n):
    """A value_info with n sizes that say nothing."""
    shape = b"\x0a\x00" * n
    array = b"\x12" + varint(len(shape)) + shape
    kind = b"\x0a" + varint(len(array)) + array
    return b"\x12" + varint(len(kind)) + kind


def test_a_graph_that_is_large_without_its_weights(tmp_path):
    made = model([node("Relu", "x", "y")])
    made.graph.doc_string = "x" * (1 << 25)
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    refused(tmp_path / "a.onnx", CorruptFile, "a graph of [0-9,]+ bytes without its weights")


def test_a_long_chain_is_read_and_a_ring_is_not(tmp_path):
    nodes = [node("Tanh", f"v{i}" if i else "x", f"v{i + 1}") for i in range(3000)]
    save(tmp_path / "a.onnx", nodes[::-1], y=("v3000",))  # the last one first
    assert len(formats.read(tmp_path / "a.onnx").network.ops) == 3000
    nodes[0] = node("Tanh", "v3000", "v1")
    save(tmp_path / "b.onnx", nodes, y=("v3000",))
    refused(tmp_path / "b.onnx", CorruptFile, "its operations form a cycle")


# mutations


def networks(tmp_path):
    """Small models with most of what there is in a file."""
    stored = {
        "k": normal(4, 2, 3, 3),
        "b": normal(4),
        "g": normal(4),
        "w": normal(16, 5),
        "s": np.array([0, -1]),
        "i": np.array([1]),
    }
    image = [node("Conv", "x k b", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c g b b g2", "n"), node("Relu",
        "n", "r"),
             node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Reshape", "p s", "f"), node("MatMul",
             "f w", "m"), node("Softmax", "m", "y")]  # fmt: skip
    save(tmp_path / "1.onnx", image, x=("batch", 2, 4, 4), stored={**stored, "g2": np.abs(normal(4))})
    words = {
        "t": normal(9, 4),
        "q": normal(4, 12),
        "o": normal(4, 4),
        "h": np.array([0, 0, 3, 1, 4]),
        "back": np.array([0, 0, -1]),
    }
    text = [node("Gather", "t x", "e"), node("MatMul", "e q", "a"), node("Reshape", "a h", "b"), node("Transpose", "b",
        "c", perm=[2, 0, 3, 1, 4]),
            node("Split", "c", "k1 k2 k3", axis=0), *(node("Squeeze", f"k{i} z", f"s{i}") for i in (1, 2, 3)),
            node("Transpose", "s2", "tr", perm=[0, 1, 3, 2]), node("MatMul", "s1 tr", "m"), node("Softmax", "m", "p"),
            node("MatMul", "p s3", "v"),
            node("Transpose", "v", "u", perm=[0, 2, 1, 3]), node("Reshape", "u back", "r"), node("MatMul", "r o",
            "y")]  # fmt: skip
    save(tmp_path / "2.onnx", text, x=("batch", 5), kinds={"x": TensorProto.INT64}, stored={**words, "z": np.array([0])})
    rnn = {"w": normal(2, 16, 3), "r": normal(2, 16, 4), "b": normal(2, 32), "to": np.array([0, 0, -1])}
    steps = [
        node("LSTM", "x w r b", "s", hidden_size=4, direction="bidirectional"),
        node("Transpose", "s", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t to", "y"),
    ]
    save(tmp_path / "3.onnx", steps, x=(5, "batch", 3), stored=rnn)
    return [Path(tmp_path / f"{i}.onnx") for i in (1, 2, 3)]


def test_the_models_that_are_mutated_are_read(tmp_path):
    kinds = [{op.kind for op in formats.read(p).network.ops} for p in networks(tmp_path)]
    assert [kinds[0] >= {"conv", "batch_norm"}, "attention" in kinds[1], "lstm" in kinds[2]] == [True] * 3
    assert not any("opaque" in k for k in kinds)


NUMBERS = [0, 1, -1, 2, 3, 7, 100, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1, 1_000_000]
OPS = ["Conv", "MatMul", "Reshape", "Transpose", "Gather", "Concat", "LSTM", "Slice", "Softmax", "BatchNormalization",
    "Resize", "Pad", "If", "Loop", "Einsum",
       "Expand", "Where", "Gemm", "Clip", "Tile", "GroupNormalization", "DepthToSpace"]  # fmt: skip


def changed(m, rng):
    """One field of a model is another."""
    g = m.graph
    n, names = rng.choice(g.node), [v for x in g.node for v in x.output] + [t.name for t in g.initializer]
    how = rng.randrange(8)
    if how == 0 and n.attribute:
        a = rng.choice(n.attribute)
        if a.ints:
            a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
        a.i = rng.choice(NUMBERS)
    elif how == 1:
        n.op_type = rng.choice(OPS)
    elif how == 2 and n.input:
        n.input[rng.randrange(len(n.input))] = rng.choice([*names, ""])
    elif how == 3 and n.input:
        del n.input[rng.randrange(len(n.input))]
    elif how == 4:
        dims = rng.choice(g.initializer).dims
        dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)
    elif how == 5:
        t = rng.choice(g.initializer)
        if t.data_type == TensorProto.INT64:
            values = numpy_helper.to_array(t).copy()
            values[rng.randrange(values.size)] = rng.choice(NUMBERS)
            t.CopyFrom(numpy_helper.from_array(values, t.name))
    elif how == 6:
        rng.choice(g.initializer).data_type = rng.randrange(24)
    else:
        m.opset_import[0].version = rng.choice([6, 9, 11, 13, 18, 21, 99])


def outcome(path):
    error: CanonError | None = None
    try:
        formats.read(path)
    except CanonError as e:
        error = e
    assert len(str(error).splitlines()) <= 2
    return None if error is None else type(error)


@pytest.fixture
def little_memory():
    """At most four gigabytes, whatever a file says."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("little_memory")
def test_models_with_some_fields_changed(tmp_path, seed):
    rng = random.Random(seed)
    paths, found = [onnx.load(p) for p in networks(tmp_path)], []
    for _ in range(150):
        made = onnx.ModelProto()
        made.CopyFrom(rng.choice(paths))
        for _ in range(rng.choice([1, 1, 2, 3])):
            with contextlib.suppress(ValueError, TypeError):  # what is broken already is not read to be changed
                changed(made, rng)
        (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
        found.append(outcome(tmp_path / "a.onnx"))
    assert found.count(None) > 20
    assert found.count(CorruptFile) > 20
    assert any(e is not None and issubclass(e, GraphError) for e in found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("little_memory")
def test_files_with_some_bytes_changed(tmp_path, seed):
    rng = random.Random(seed)
    raws, found = [p.read_bytes() for p in networks(tmp_path)], []
    for _ in range(150):
        raw = bytearray(rng.choice(raws))
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(raw))
            how = rng.randrange(4)
            if how == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                raw[at:at] = rng.randbytes(rng.choice([1, 2, 8]))
            elif how == 2:
                del raw[at : at + rng.choice([1, 3, 20])]
            else:
                raw = raw[: max(at, 40)]
        (tmp_path / "a.onnx").write_bytes(raw)
        found.append(outcome(tmp_path / "a.onnx"))
    assert found.count(CorruptFile) > 50
    assert found.count(None) > 5


@pytest.mark.parametrize("part", np.linspace(0.02, 0.98, 17))
def test_downloads_that_stopped(tmp_path, part):
    raw = networks(tmp_path)[0].read_bytes()
    (tmp_path / "a.onnx").write_bytes(raw[: int(len(raw) * part)])
    with pytest.raises(CanonError) as caught:
        formats.read(tmp_path / "a.onnx")
    assert len(str(caught.value).splitlines()) <= 2
