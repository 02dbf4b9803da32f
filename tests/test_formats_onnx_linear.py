"""ONNX's affine operations, pools and whatever moves entries about: against ONNX's own reference, and torch."""

import numpy as np
import pytest
from onnx_files import INT, check, kinds, node, normal, ops

IMAGE = ("batch", 4, 7, 6)
at = {f"a{i}": np.array([i], np.int64) for i in range(6)} | {f"m{i}": np.array([-i], np.int64) for i in range(1, 4)}

# matrix products


@pytest.mark.parametrize("x", [("batch", 5), ("batch", 3, 5), ("batch", 2, 3, 5)])
def test_a_matrix_behind(tmp_path, x):
    stored = {"w": normal(5, 4), "b": normal(4)}
    run = check(tmp_path, [node("MatMul", "x w", "m"), node("Add", "b m", "y")], x=x, stored=stored)
    assert ops(run) == ["dense"]
    np.testing.assert_array_equal(run.network.tensors["w"], stored["w"].T)
    assert run.layout["w"].axes == (1, 0)
    assert run.network.tensors["b"].shape == (4,)


def test_a_vector_behind_and_without_a_batch(tmp_path):
    run = check(tmp_path, [node("MatMul", "x w", "y")], x=("batch", 3, 5), stored={"w": normal(5)})
    assert run.network.shapes[run.network.outputs[0]] == (3,)
    run = check(
        tmp_path,
        [node("MatMul", "x w", "m"), node("Relu", "m", "y")],
        x=(5,),
        stored={"w": normal(5, 6)},
        axis=None,
        out_axis=None,
    )
    assert run.network.inputs == {"x": (5,)}


def test_a_matrix_in_front(tmp_path):
    run = check(tmp_path, [node("MatMul", "w x", "y")], x=("batch", 5, 3), stored={"w": normal(4, 5)})
    assert kinds(run) == {"permute": 2, "dense": 1}
    run = check(tmp_path, [node("MatMul", "w x", "m"), node("Add", "m b", "y")], x=(5, "batch"),
        stored={"w": normal(4, 5), "b": normal(4, 1)},
                axis=1, out_axis=1)  # fmt: skip
    assert ops(run) == ["dense"]
    run = check(tmp_path, [node("MatMul", "w x", "y")], x=(5,), stored={"w": normal(4, 5)}, axis=None, out_axis=None)
    assert ops(run) == ["dense"]


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (2.0, -0.25), (1.0, 0.0)])
@pytest.mark.parametrize("c", [(4,), (1, 4), (1, 1), None])
def test_gemm(tmp_path, trans, alpha, beta, c):
    stored = {"w": normal(4, 5) if trans else normal(5, 4)} | ({} if c is None else {"c": normal(*c, seed=1)})
    words = "x w" if c is None else "x w c"
    run = check(tmp_path, [node("Gemm", words, "y", transB=trans, alpha=alpha, beta=beta)], x=("batch", 5), stored=stored)
    assert ops(run)[0] == "dense"
    assert "opaque" not in ops(run)


def test_gemm_of_two_values_and_of_a_value_turned(tmp_path):
    nodes = [node("Tanh", "x", "t"), node("Gemm", "x t", "g", transB=1, alpha=0.5), node("Add", "g b", "y")]
    run = check(tmp_path, nodes, x=(3, 5), stored={"b": normal(3)}, axis=None, out_axis=None)
    assert "matmul" in ops(run)
    run = check(tmp_path, [node("Gemm", "x w", "y", transA=1)], x=(5, "batch"), stored={"w": normal(5, 2)}, axis=1)
    assert ops(run) == ["dense"]


def test_a_product_of_two_values(tmp_path):
    nodes = [node("Tanh", "x", "t"), node("Transpose", "t", "u", perm=[0, 2, 1]), node("MatMul", "x u", "y")]
    assert "matmul" in ops(check(tmp_path, nodes, x=("batch", 3, 5)))
    wide = [node("Unsqueeze", "x a1", "w"), node("Transpose", "w", "u", perm=[0, 1, 3, 2]), node("MatMul", "w u", "y")]
    assert "matmul" in ops(check(tmp_path, wide, x=("batch", 3, 5), stored=at))


def test_a_kernel_that_is_transposed_on_its_way(tmp_path):
    nodes = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    run = check(tmp_path, nodes, stored={"w": normal(6, 4)})
    assert run.layout["w"].axes is None  # there and back
    nodes = [node("Reshape", "w s", "r"), node("Cast", "r", "c", to=1), node("MatMul", "x c", "y")]
    run = check(tmp_path, nodes, stored={"w": normal(24), "s": np.array([4, -1])})
    np.testing.assert_array_equal(run.network.tensors["w"], normal(24).reshape(4, 6).T)


# windows


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "attrs",
    [
        {}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 2, 3], "strides": [2, 1]}, {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, {"auto_pad": "SAME_LOWER", "strides": [3, 2]}, {"auto_pad": "VALID"},
    ],
)  # fmt: skip
def test_conv(tmp_path, groups, attrs):
    stored = {"w": normal(8, 4 // groups, 3, 3), "b": normal(8)}
    run = check(tmp_path, [node("Conv", "x w b", "y", group=groups, **attrs)], x=IMAGE, stored=stored)
    assert ops(run) == [{1: "conv", 2: "grouped_conv", 4: "depthwise_conv"}[groups]]
    if attrs == {"pads": [1, 1, 1, 1]}:
        assert run.network.ops[0].attrs["padding"] == "same"


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_of_any_rank(tmp_path, rank):
    stored = {"w": normal(5, 2, *[3, 2, 2][:rank])}
    run = check(tmp_path, [node("Conv", "x w", "y")], x=("batch", 2, *[6, 5, 4][:rank]), stored=stored)
    assert run.network.inputs["x"] == (2, *[6, 5, 4][:rank])


@pytest.mark.parametrize(
    "attrs",
    [
        {}, {"strides": [2, 3]}, {"pads": [1, 0, 0, 2], "strides": [2, 1]}, {"output_padding": [1, 0], "strides": [2, 2]},
        {"dilations": [2, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)  # fmt: skip
def test_conv_transpose(tmp_path, attrs):
    torch = pytest.importorskip("torch")
    stored = {"w": normal(4, 5, 3, 2), "b": normal(5)}

    def wanted(fed):
        s, d, o = (
            [int(v) for v in attrs.get(k) or n]
            for k, n in (("strides", [1, 1]), ("dilations", [1, 1]), ("output_padding", [0, 0]))
        )
        full = torch.nn.functional.conv_transpose2d(
            *map(torch.tensor, (fed["x"], stored["w"], stored["b"])), s, 0, o, 1, d
        ).numpy()
        lo0, lo1, hi0, hi1 = attrs.get("pads") or [0] * 4
        if "auto_pad" in attrs:  # as many outputs as strides times inputs, the odd cell cut off at the end
            more = [full.shape[2 + i] - fed["x"].shape[2 + i] * s[i] for i in (0, 1)]
            lo0, lo1, hi0, hi1 = more[0] // 2, more[1] // 2, more[0] - more[0] // 2, more[1] - more[1] // 2
        return [full[:, :, lo0 : full.shape[2] - hi0, lo1 : full.shape[3] - hi1]]

    run = check(tmp_path, [node("ConvTranspose", "x w b", "y", **attrs)], x=IMAGE, stored=stored, wanted=wanted)
    assert ops(run) == ["conv_transpose"]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attrs",
    [
        {}, {"strides": [2, 3]}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 1, 1], "strides": [2, 2]}, {"ceil_mode": 1,
            "strides": [2, 2]},
        {"ceil_mode": 1, "strides": [3, 3], "pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ],
)  # fmt: skip
def test_pools(tmp_path, op, attrs):
    torch = pytest.importorskip("torch")
    known = {}
    if attrs.get("ceil_mode") and op == "AveragePool":  # by torch: the reference counts cells beyond the end

        def wanted(fed):
            p = attrs.get("pads", [0, 0])[:2]
            return [torch.nn.functional.avg_pool2d(torch.tensor(fed["x"]), [3, 2], attrs["strides"], p, True, False).numpy()]

        known = {"wanted": wanted}
    run = check(tmp_path, [node(op, "x", "y", kernel_shape=[3, 2], **attrs)], x=IMAGE, **known)
    assert ops(run) == ["max_pool" if op == "MaxPool" else "avg_pool"]


def test_an_average_that_counts_its_padding(tmp_path):
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    assert ops(check(tmp_path, [node("AveragePool", "x", "y", **attrs)], x=IMAGE)) == ["zero_padding", "avg_pool"]


def test_global_pools_and_means_over_positions(tmp_path):
    for op, kind in (("GlobalAveragePool", "global_avg_pool"), ("GlobalMaxPool", "global_max_pool")):
        nodes = [node(op, "x", "p"), node("Flatten", "p", "y")]
        assert ops(check(tmp_path, nodes, x=IMAGE)) == [kind, "flatten"]
    for op, kind in (("ReduceMean", "global_avg_pool"), ("ReduceMax", "global_max_pool")):
        run = check(tmp_path, [node(op, "x", "y", axes=[2, 3], keepdims=0)], x=IMAGE, opset=17)
        assert ops(run) == [kind]
        run = check(tmp_path, [node(op, "x ax", "y", keepdims=0)], x=("batch", 3, 5), opset=18, stored={"ax": np.array([1])})
        assert ops(run) == [kind]
    assert ops(check(tmp_path, [node("ReduceSum", "x a2", "y", keepdims=1)], x=IMAGE, stored=at)) == ["reduce"]
    assert ops(check(tmp_path, [node("ReduceL2", "x", "y", axes=[1])], x=IMAGE)) == ["square", "reduce", "power"]


# entries moved about


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([node("Reshape", "x to12", "y")], ["reshape"]),
        ([node("Flatten", "x", "y")], ["flatten"]),
        ([node("Flatten", "x", "f", axis=2), node("Reshape", "f back", "g"), node("Tanh", "g", "y")], ["tanh"]),
        ([node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Flatten", "t", "y")], ["flatten"]),
        ([node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Transpose", "t", "u", perm=[0, 3, 1, 2]), node("Tanh",
            "u", "y")], ["tanh"]),
        ([node("Unsqueeze", "x a1", "u"), node("Squeeze", "u a1", "s"), node("Tanh", "s", "y")], ["tanh"]),
        ([node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Unsqueeze", "n a0", "u"), node("Concat",
            "u minus", "c", axis=0),
          node("Reshape", "x c", "y")], ["flatten"]),
        ([node("Split", "x half", "a b", axis=1), node("Add", "a b", "y")], ["slice", "slice", "add"]),
        ([node("Split", "x", "a b", axis=3), node("Concat", "b a", "y", axis=3)], ["slice", "slice", "concat"]),
        ([node("Slice", "x a1 a3 a2", "y")], ["slice"]),
        ([node("Slice", "x m2 big a3", "y")], ["slice"]),
        ([node("Gather", "x two", "y", axis=2)], ["take"]),
        ([node("Gather", "x two", "g", axis=2), node("Tanh", "g", "t"), node("Concat", "t g", "y", axis=1)], ["take",
            "tanh", "concat"]),
        ([node("Slice", "x m1 m9 a2 m1", "y")], ["reverse"]),
        ([node("DepthToSpace", "x", "y", blocksize=2)], ["reshape", "permute", "reshape"]),
        ([node("DepthToSpace", "x", "y", blocksize=2, mode="CRD")], ["reshape", "permute", "reshape"]),
        ([node("Pad", "x pads", "y")], ["zero_padding"]),
        ([node("Pad", "x pads", "y", mode="reflect")], ["mirror_padding"]),
        ([node("Pad", "x pads", "y", mode="edge")], ["mirror_padding"]),
        ([node("Identity", "x", "i"), node("Dropout", "i", "d"), node("Cast", "d", "c", to=1), node("Relu", "c", "y")],
            ["relu"]),
    ],
)  # fmt: skip
def test_moves(tmp_path, nodes, kept):
    stored = {**at, "to12": np.array([0, 4, -1]), "back": np.array([-1, 4, 7, 6]), "zero": np.array(0), "minus": np.array([-1]),
              "half": np.array([2, 2]), "big": np.array([2**62]), "two": np.array(2), "m9": np.array([-(2**62)]),
              "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1])}  # fmt: skip
    names = {v for n in nodes for v in n.input}
    run = check(tmp_path, nodes, x=IMAGE, stored={k: v for k, v in stored.items() if k in names})
    assert ops(run) == kept


def test_space_to_depth(tmp_path):
    assert ops(check(tmp_path, [node("SpaceToDepth", "x", "y", blocksize=2)], x=("batch", 3, 4, 6))) == [
        "reshape",
        "permute",
        "reshape",
    ]


@pytest.mark.parametrize("x", [("batch", 3, 4), (1, 3, 4), (2, 3, 4)])
def test_a_batch_that_is_folded_into_another_axis(tmp_path, x):
    nodes = [
        node("Reshape", "x flat", "f"),
        node("Gemm", "f w b", "g"),
        node("Reshape", "g back", "r"),
        node("Add", "r x", "y"),
    ]
    stored = {"flat": np.array([-1, 4]), "w": normal(4, 4), "b": normal(4), "back": np.array([-1, 3, 4])}
    run = check(tmp_path, nodes, x=x, stored=stored)
    assert ops(run) == ["dense", "add"]
    assert run.network.inputs["x"] == (3, 4)


def test_a_batch_folded_behind(tmp_path):
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t s", "r"), node("Softmax", "r", "m",
    axis=0), node("Reshape", "m u", "v"),
             node("Transpose", "v", "y", perm=[1, 0, 2])]  # fmt: skip
    stored = {"s": np.array([3, -1]), "u": np.array([3, -1, 4])}
    assert ops(check(tmp_path, nodes, x=("batch", 3, 4), stored=stored)) == ["softmax"]


@pytest.mark.parametrize(
    ("attrs", "opset"),
    [
        ({"mode": "nearest"}, 17), ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor"}, 13),
        ({"mode": "linear"}, 17), ({"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, 11),
    ],
)  # fmt: skip
def test_resize(tmp_path, attrs, opset):
    stored = {"s": np.array([1, 1, 2, 3], np.float32)}
    assert ops(check(tmp_path, [node("Resize", "x _ s", "y", **attrs)], x=IMAGE, stored=stored, opset=opset)) == ["upsampling"]
    sizes = {"z": np.array([3, 4, 14, 18])}
    assert ops(check(tmp_path, [node("Resize", "x _ _ z", "y", **attrs)], x=(3, 4, 7, 6), stored=sizes, opset=opset)) == [
        "upsampling"
    ]


def test_what_does_not_fit_is_opaque_and_said(tmp_path):
    from onnx_files import save

    from canon import formats

    stored = {"s": np.array([1, 1, 2, 1.5], np.float32), "w": normal(2, 4, 1, 1)}
    nodes = [node("Conv", "x w", "c"), node("Resize", "c _ s", "r", name="up", mode="cubic"), node("Relu", "r", "y")]
    save(tmp_path / "a.onnx", nodes, x=IMAGE, stored=stored)
    run = formats.read(tmp_path / "a.onnx")
    assert ops(run) == ["conv", "opaque", "relu"]
    assert run.network.shapes["r"] == (2, 14, 9)
    assert run.notes == ("opaque, nothing moves through: up (Resize)",)


# tokens


def test_embedding(tmp_path):
    stored = {"t": normal(9, 4), "w": normal(4, 2)}
    run = check(tmp_path, [node("Gather", "t x", "e"), node("ReduceMean", "e", "m", axes=[1], keepdims=0), node("MatMul",
        "m w", "y")],
                x=("batch", 5), kinds={"x": INT}, tokens=9, stored=stored)  # fmt: skip
    assert ops(run) == ["embedding", "global_avg_pool", "dense"]


def test_tokens_and_positions(tmp_path):
    stored = {"t": normal(9, 4), "p": normal(8, 4, seed=1), "c": normal(1, 1, 4), "n": np.arange(6)}
    nodes = [
        node("Gather", "t x", "e"),
        node("Shape", "e", "s"),
        node("Concat", "c e", "k", axis=1),
        node("Gather", "p n", "q"),
        node("Add", "k q", "y"),
    ]
    run = check(tmp_path, nodes, x=(1, 5), kinds={"x": INT}, tokens=9, stored=stored)
    assert ops(run) == ["embedding", "prepend_tokens", "add_positions"]
    assert run.network.tensors["p"].shape == (8, 4)
    assert run.network.tensors["c"].shape == (1, 4)


@pytest.mark.parametrize(
    ("equation", "shape", "found"),
    [
        ("bij,jk->bik", (5, 4), {"dense"}), ("bij,kj->bik", (4, 5), {"dense"}), ("bij,jkl->bikl", (5, 2, 3), {"dense",
            "reshape"}),
        ("bij,ijk->bk", (3, 5, 4), {"flatten", "dense"}), ("bij,ik->bjk", (3, 4), {"permute", "dense"}),
        ("kj,bij->bki", (4, 5), {"dense", "permute"}),
    ],
)  # fmt: skip
def test_einsum_with_a_constant(tmp_path, equation, shape, found):
    words = "x w" if equation.startswith("b") else "w x"
    run = check(
        tmp_path, [node("Einsum", words, "y", equation=equation)], x=("batch", 3, 5), stored={"w": normal(*shape)}, tol=1e-5
    )
    assert set(ops(run)) == found
    assert len(run.layout) == 1


@pytest.mark.parametrize("equation", ["bij,bkj->bik", "bij,bkj->bki", "bij,bij->bi", "bij,bik->bjk"])
def test_einsum_of_two_values(tmp_path, equation):
    nodes = [node("Tanh", "x", "t"), node("Einsum", "x t", "y", equation=equation)]
    assert "matmul" in ops(check(tmp_path, nodes, x=("batch", 3, 5), tol=1e-5))
