"""ONNX's operations unit by unit, on constants and on several values, norms and softmax: against ONNX's own reference."""

import numpy as np
import pytest
from onnx_files import check, kinds, node, normal, ops


@pytest.mark.parametrize(
    ("op", "attrs", "kind"),
    [
        ("Relu", {}, "relu"), ("Sigmoid", {}, "sigmoid"), ("Tanh", {}, "tanh"), ("Softsign", {}, "softsign"),
        ("Softplus", {}, "softplus"), ("Exp", {}, "exp"), ("Sin", {}, "sin"), ("Cos", {}, "cos"), ("Abs", {}, "abs"),
        ("Erf", {}, "erf"), ("Sign", {}, "sign"), ("Mish", {}, "mish"), ("HardSwish", {}, "hard_swish"), ("Elu",
            {"alpha": 0.7}, "elu"),
        ("Elu", {}, "elu"), ("Selu", {}, "selu"), ("Celu", {"alpha": 0.6}, "celu"), ("LeakyRelu", {"alpha": 0.3}, "leaky_relu"),
        ("LeakyRelu", {}, "leaky_relu"), ("ThresholdedRelu", {"alpha": 0.4}, "thresholded_relu"),
        ("HardSigmoid", {"alpha": 0.25}, "hard_sigmoid"), ("HardSigmoid", {}, "hard_sigmoid"), ("Floor", {}, "round"),
            ("Ceil", {}, "round"),
        ("Round", {}, "round"), ("Reciprocal", {}, "power"), ("Neg", {}, "rescale"), ("Softmax", {"axis": 1}, "softmax"),
        ("LogSoftmax", {}, "log_softmax"),
    ],
)  # fmt: skip
def test_functions(tmp_path, op, attrs, kind):
    run = check(tmp_path, [node(op, "x", "y", **attrs)], x=("batch", 9), opset=20, tol=1e-5)
    assert ops(run) == [kind]
    if op == "HardSigmoid":
        assert run.network.ops[0].attrs["slope"] == attrs.get("alpha", 0.2)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(tmp_path, approximate):
    run = check(tmp_path, [node("Gelu", "x", "y", approximate=approximate)], opset=20)
    assert run.network.ops[0].kind == "gelu"
    assert run.network.ops[0].attrs["approximate"] == (approximate == "tanh")


def test_variants_of_functions_are_put_together(tmp_path):
    assert ops(check(tmp_path, [node("HardSigmoid", "x", "y", alpha=0.3, beta=0.4)])) == ["rescale", "relu6"]
    assert ops(check(tmp_path, [node("Selu", "x", "y", alpha=1.5, gamma=2.0)])) == ["elu", "rescale"]
    assert ops(check(tmp_path, [node("Log", "e", "y"), node("Exp", "x", "e")][::-1])) == ["exp", "log"]
    assert ops(check(tmp_path, [node("Abs", "x", "a"), node("Sqrt", "a", "y")])) == ["abs", "power"]


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (0.0, 6.0, "relu6"),
        (0.0, None, "relu"),
        (-1.0, 1.0, "hard_tanh"),
        (-0.5, 0.75, "clip"),
        (None, 0.5, "clip"),
        (None, None, None),
    ],
)
def test_clips(tmp_path, low, high, kind):
    bounds = {n: np.float32(v) for n, v in (("lo", low), ("hi", high)) if v is not None}
    words = " ".join(n if n in bounds else "_" for n in ("lo", "hi"))
    nodes = [node("Clip", f"x {words}", "c"), node("Identity", "c", "d"), node("Tanh", "d", "y")]
    assert ops(check(tmp_path, nodes, stored=bounds)) == [*([kind] if kind else []), "tanh"]
    old = {k: v for k, v in (("min", low), ("max", high)) if v is not None}
    nodes = [node("Clip", "x", "c", **old), node("Tanh", "c", "y")]
    assert ops(check(tmp_path, nodes, opset=10)) == [*([kind] if kind else []), "tanh"]


def test_extrema_of_values_and_numbers(tmp_path):
    c = {"zero": np.float32(0), "two": np.float32(0.5), "w": normal(4, 4)}
    assert ops(check(tmp_path, [node("Max", "x zero", "y")], stored=c)) == ["relu"]
    assert ops(check(tmp_path, [node("Min", "x two", "y")], stored=c)) == ["clip"]
    nodes = [node("Tanh", "x", "t"), node("Max", "x t", "m"), node("Min", "m t x", "y")]
    assert ops(check(tmp_path, nodes)) == ["tanh", "maximum", "minimum"]
    nodes = [node("Mul", "x tenth", "t"), node("Max", "x t", "y")]
    run = check(tmp_path, nodes, stored={"tenth": np.float32(0.1)})
    assert ops(run) == ["leaky_relu"]


# constants and values


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("side", ["x c", "c x"])
@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 1), (3, 5), (1, 1, 1)])
def test_a_value_with_a_constant(tmp_path, op, side, shape):
    c = (normal(*shape, seed=4) + np.sign(normal(*shape, seed=4))).astype(np.float32)
    nodes = [node("Tanh", "x", "t"), node(op, side.replace("x", "t"), "s"), node("Tanh", "s", "y")]
    run = check(tmp_path, nodes, x=("batch", 3, 5), stored={"c": c}, tol=1e-5)
    wanted = {"Add": "add_constant", "Sub": "add_constant", "Mul": "multiply_constant", "Div": "multiply_constant"}[op]
    assert ("rescale" if c.size == 1 else wanted) in ops(run) or shape == (3, 5)
    assert "opaque" not in ops(run)


def test_constants_that_are_nothing_are_nothing(tmp_path):
    nodes = [node("Add", "x zero", "a"), node("Mul", "a one", "b"), node("Pow", "b one", "c"), node("Tanh", "c", "y")]
    assert ops(check(tmp_path, nodes, stored={"zero": np.float32(0), "one": np.float32(1)})) == ["tanh"]


def test_values_that_broadcast(tmp_path):
    nodes = [node("ReduceMean", "x", "m", axes=[2]), node("ReduceMax", "x", "k", axes=[1], keepdims=0), node("Mul", "x m", "p"),
             node("Unsqueeze", "k at", "u"), node("Add", "p u", "q"), node("Sub", "q x", "r"), node("Div", "r d", "y"),
             node("Exp", "m", "d")]  # fmt: skip
    run = check(tmp_path, [*nodes[:-2], nodes[-1], nodes[-2]], x=("batch", 3, 5), stored={"at": np.array([1])}, tol=1e-5)
    assert kinds(run)["divide"] == kinds(run)["multiply"] == 1


def test_a_value_with_itself(tmp_path):
    assert ops(check(tmp_path, [node("Mul", "x x", "y")])) == ["square"]
    assert ops(check(tmp_path, [node("Add", "x x", "y")])) == ["rescale"]
    nodes = [node("Tanh", "x", "t"), node("Sum", "x t x", "s"), node("Mean", "s t", "y")]
    assert ops(check(tmp_path, nodes)) == ["tanh", "add", "average"]


@pytest.mark.parametrize(("exponent", "kind"), [(2.0, "square"), (3.0, "power"), (0.5, "power"), (-1.0, "power")])
def test_powers(tmp_path, exponent, kind):
    nodes = [node("Exp", "x", "e"), node("Pow", "e p", "y")]
    run = check(tmp_path, nodes, stored={"p": np.float32(exponent)}, tol=1e-5)
    assert ops(run) == ["exp", kind]


@pytest.mark.parametrize("shape", [(3, 1, 1), (1,), (3, 4, 5)])
def test_prelu(tmp_path, shape):
    run = check(tmp_path, [node("PRelu", "x s", "y")], x=("batch", 3, 4, 5), stored={"s": normal(*shape)})
    assert ops(run) == ["prelu"]


def test_before_operator_set_7_broadcasting_is_told(tmp_path):
    x, c = ("batch", 3, 4, 4), normal(3)
    nodes = [node("Add", "x c", "y", broadcast=1, axis=1)]

    def wanted(fed):
        return [fed["x"] + c[:, None, None]]

    run = check(tmp_path, nodes, x=x, stored={"c": c}, opset=6, wanted=wanted)
    assert run.network.tensors["c"].shape == (3, 1, 1)


# written out

HALF, ONE, ROOT = np.float32(0.5), np.float32(1), np.float32(np.sqrt(2))


def test_gelu_written_out(tmp_path):
    """In the order of several exporters."""
    stored = {"half": HALF, "one": ONE, "root": ROOT, "inverse": np.float32(np.sqrt(0.5)), "w": normal(4, 4)}
    for nodes in (
        [node("Div", "x root", "d"), node("Erf", "d", "e"), node("Add", "e one", "a"), node("Mul", "x a", "m"),
            node("Mul", "m half", "y")],
        [node("Mul", "x half", "h"), node("Mul", "x inverse", "d"), node("Erf", "d", "e"), node("Add", "one e", "a"),
            node("Mul", "a h", "y")],
        [node("Mul", "x inverse", "d"), node("Erf", "d", "e"), node("Mul", "e half", "g"), node("Add", "g half", "a"),
            node("Mul", "x a", "y")],
    ):  # fmt: skip
        run = check(tmp_path, nodes, stored=stored)
        assert ops(run) == ["gelu"]
        assert run.network.ops[0].attrs == {"approximate": False}


def test_a_product_that_is_almost_gelu_is_not(tmp_path):
    stored = {"half": HALF, "one": ONE, "root": np.float32(1.5)}
    nodes = [
        node("Div", "x root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "a"),
        node("Mul", "x a", "m"),
        node("Mul", "m half", "y"),
    ]
    assert ops(check(tmp_path, nodes, stored=stored)) == ["rescale", "erf", "rescale", "multiply", "rescale"]


def test_gelu_by_tanh_written_out(tmp_path):
    stored = {"half": HALF, "one": ONE, "c": np.float32(0.044715), "r": np.float32(np.sqrt(2 / np.pi)), "three": np.float32(3)}
    tail = [
        node("Mul", "s r", "q"),
        node("Tanh", "q", "t"),
        node("Add", "t one", "a"),
        node("Mul", "x a", "m"),
        node("Mul", "m half", "y"),
    ]
    for head in (
        [node("Pow", "x three", "p"), node("Mul", "p c", "k"), node("Add", "x k", "s")],
        [node("Mul", "x x", "xx"), node("Mul", "xx x", "p"), node("Mul", "c p", "k"), node("Add", "k x", "s")],
        [node("Mul", "x x", "xx"), node("Mul", "xx c", "k"), node("Add", "k one", "l"), node("Mul", "x l", "s")],
    ):
        run = check(tmp_path, [*head, *tail], stored=stored, tol=1e-5)
        assert ops(run) == ["gelu"]
        assert run.network.ops[0].attrs == {"approximate": True}


def test_gates_written_out(tmp_path):
    c = {"three": np.float32(3), "six": np.float32(6), "zero": np.float32(0), "one": ONE}
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "x s", "y")]
    assert ops(check(tmp_path, nodes)) == ["silu"]
    nodes = [node("Add", "x three", "a"), node("Clip", "a zero six", "k"), node("Mul", "x k", "m"), node("Div", "m six", "y")]
    assert ops(check(tmp_path, nodes, stored=c)) == ["hard_swish"]
    nodes = [node("Add", "x three", "a"), node("Clip", "a zero six", "k"), node("Div", "k six", "y")]
    run = check(tmp_path, nodes, stored=c)
    assert ops(run) == ["hard_sigmoid"]
    assert run.network.ops[0].attrs["slope"] == pytest.approx(1 / 6)
    nodes = [node("HardSigmoid", "x", "k", alpha=1 / 6), node("Mul", "k x", "y")]
    assert ops(check(tmp_path, nodes)) == ["hard_swish"]
    nodes = [node("Softplus", "x", "p"), node("Tanh", "p", "t"), node("Mul", "x t", "y")]
    assert ops(check(tmp_path, nodes)) == ["mish"]
    nodes = [node("Exp", "x", "e"), node("Add", "e one", "a"), node("Log", "a", "y")]
    assert ops(check(tmp_path, nodes, stored=c)) == ["softplus"]
    nodes = [node("Abs", "x", "e"), node("Add", "one e", "a"), node("Div", "x a", "y")]
    assert ops(check(tmp_path, nodes, stored=c)) == ["softsign"]
    nodes = [node("Softmax", "x", "e"), node("Log", "e", "y")]
    assert ops(check(tmp_path, nodes, stored=c)) == ["log_softmax"]


def test_what_something_else_reads_is_left_as_it_is(tmp_path):
    nodes = [node("Sigmoid", "x", "s"), node("Log", "s", "y")]
    assert ops(check(tmp_path, nodes)) == ["log_sigmoid"]
    assert ops(check(tmp_path, nodes, y=("y", "s"))) == ["sigmoid", "log"]


@pytest.mark.parametrize("root", ["Div", "Mul", "Reciprocal"])
def test_norms_written_out(tmp_path, root):
    c = {"eps": np.float32(1e-3), "g": normal(5), "b": normal(5, seed=1), "two": np.float32(2), "minus": np.float32(-0.5)}
    var = [node("Pow", "d two", "p"), node("ReduceMean", "p", "v", axes=[-1]), node("Add", "v eps", "ve")]
    end = {
        "Div": [node("Sqrt", "ve", "r"), node("Div", "d r", "z")],
        "Mul": [node("Pow", "ve minus", "r"), node("Mul", "d r", "z")],
        "Reciprocal": [node("Sqrt", "ve", "q"), node("Reciprocal", "q", "r"), node("Mul", "r d", "z")],
    }[root]
    gain = [node("Mul", "z g", "s"), node("Add", "s b", "y")]
    mean = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d")]
    run = check(tmp_path, [*mean, *var, *end, *gain], x=("batch", 3, 5), stored=c, tol=1e-5)
    assert ops(run) == ["layer_norm"]
    assert run.network.ops[0].attrs == {"eps": 0.001}
    assert set(run.network.ops[0].params) == {"gamma", "beta"}
    again = [node("ReduceMean", "x", "m2", axes=[-1]), node("Sub", "x m2", "d2"), node("Pow", "d2 two", "p"), *var[1:]]
    assert ops(check(tmp_path, [*mean, *again, *end, *gain], x=("batch", 3, 5), stored=c, tol=1e-5)) == ["layer_norm"]
    rms = [node("Identity", "x", "d"), *var, *end, node("Mul", "g z", "y")]
    run = check(tmp_path, rms, x=("batch", 3, 5), stored=c, tol=1e-5)
    assert ops(run) == ["rms_norm"]
    # over another axis than the one its gain runs along
    other = [
        node("ReduceMean", "x", "m", axes=[1]),
        *mean[1:],
        node("Pow", "d two", "p"),
        node("ReduceMean", "p", "v", axes=[1]),
        *var[2:],
    ]
    run = check(tmp_path, [*other, *end, *gain], x=("batch", 3, 5), stored=c, tol=1e-5)
    assert ops(run) == ["layer_norm", "multiply_constant", "add_constant"]


# norms and softmax as they are


def test_norms(tmp_path):
    c = {
        "g": normal(4),
        "b": normal(4, seed=1),
        "m": normal(4, seed=2),
        "v": np.abs(normal(4, seed=3)),
        "h": normal(3, 4),
        "k": normal(3, 4, seed=4),
    }
    image = ("batch", 4, 5, 3)
    run = check(tmp_path, [node("BatchNormalization", "x g b m v", "y", epsilon=1e-3)], x=image, stored=c)
    assert (run.network.ops[0].kind, run.network.ops[0].attrs) == ("batch_norm", {"axis": 0, "eps": 0.001})
    assert check(tmp_path, [node("BatchNormalization", "x g b m v", "y")], stored=c).network.ops[0].attrs["axis"] == -1
    assert ops(check(tmp_path, [node("InstanceNormalization", "x g b", "y")], x=image, stored=c, tol=1e-5)) == ["instance_norm"]
    assert ops(check(tmp_path, [node("LayerNormalization", "x g b", "y")], x=("batch", 3, 4), stored=c, tol=1e-5)) == [
        "layer_norm"
    ]
    run = check(tmp_path, [node("LayerNormalization", "x h k", "y", axis=1)], x=("batch", 3, 4), stored=c, tol=1e-5)
    assert run.network.ops[0].attrs["axes"] == [0, 1]
    run = check(tmp_path, [node("GroupNormalization", "x g b", "y", num_groups=2)], x=image, stored=c, opset=21, tol=1e-5)
    assert run.network.ops[0].attrs["groups"] == 2
    for size in (3, 4):  # as many channels as samples: the reference walks over the one and means the other
        attrs = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
        assert ops(check(tmp_path, [node("LRN", "x", "y", **attrs)], x=("batch", 3, 5, 4))) == ["local_response_norm"]
    assert ops(check(tmp_path, [node("RMSNormalization", "x g", "y")], stored=c, opset=23, tol=1e-5)) == ["rms_norm"]


@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, 2), (13, 1), (13, -1)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_before_and_since_operator_set_13(tmp_path, op, opset, axis):
    def wanted(fed):
        x = fed["x"].astype(float)
        flat = x.reshape(*x.shape[:axis], -1) if opset < 13 else np.moveaxis(x, axis, -1)
        e = np.exp(flat - flat.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True)
        y = np.log(y) if op == "LogSoftmax" else y
        return [y.reshape(x.shape) if opset < 13 else np.moveaxis(y, -1, axis)]

    run = check(tmp_path, [node(op, "x", "y", axis=axis)], x=("batch", 3, 4), opset=opset, wanted=wanted)
    assert ("flatten" in ops(run)) == (opset < 13 and axis == 1)
    one = check(tmp_path, [node(op, "x", "y", axis=1)], x=("batch", 3, 1), opset=11)
    assert ops(one) == [{"Softmax": "softmax", "LogSoftmax": "log_softmax"}[op]]
