"""Operations beyond the first: forward against formulas written out number by number, against scipy, and as transposes."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import ndimage, signal

from canon.errors import ShapeConflict, UnsupportedOp
from canon.ops import Op, kind_of


def run(kind: str, inputs, params=None, **attrs) -> np.ndarray:
    inputs = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
    params = params or {}
    op = Op(kind, "op", tuple(f"x{i}" for i in range(len(inputs))), "y", {r: r for r in params}, attrs)
    shape = kind_of(op).shape(op, [x.shape[1:] for x in inputs], {r: p.shape for r, p in params.items()})
    y = kind_of(op).forward(op, inputs, params)
    assert y.shape[1:] == shape
    both, size = kind_of(op).both(op, inputs, [np.abs(x) for x in inputs], params)
    np.testing.assert_allclose(both, y, rtol=1e-12, atol=1e-12)
    assert (size * (1 + 1e-12) + 1e-12 >= np.abs(y)).all()
    return y


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# forward: convolutions


def slow_conv(x: np.ndarray, kernel: np.ndarray, groups: int = 1) -> np.ndarray:
    """Channels last, stride 1, nothing padded, by scipy."""
    out, inner = kernel.shape[:2]
    y = []
    for o in range(out):
        first = (o // (out // groups)) * inner
        parts = [signal.correlate(x[..., first + c], kernel[o, c][None], mode="valid", method="direct") for c in range(inner)]
        y.append(sum(parts))
    return np.stack(y, axis=-1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_of_any_rank(rank: int) -> None:
    x, kernel, bias = normal(2, *[5, 4, 6][:rank], 3), normal(4, 3, *[2, 3, 2][:rank], seed=2), normal(4, seed=3)
    np.testing.assert_allclose(run("conv", x, {"kernel": kernel, "bias": bias}), slow_conv(x, kernel) + bias, rtol=1e-12)


@pytest.mark.parametrize("channels", ["last", "first"])
@pytest.mark.parametrize("groups", [2, 3])
def test_grouped_conv(groups: int, channels: str) -> None:
    x, kernel, bias = normal(2, 5, 4, 2 * groups), normal(3 * groups, 2, 2, 3, seed=2), normal(3 * groups, seed=3)
    wanted = slow_conv(x, kernel, groups) + bias
    given = x if channels == "last" else np.moveaxis(x, -1, 1)
    found = run("grouped_conv", given, {"kernel": kernel, "bias": bias}, groups=groups, channels=channels)
    np.testing.assert_allclose(found if channels == "last" else np.moveaxis(found, 1, -1), wanted, rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_conv_transpose_is_the_transpose_of_a_convolution(rank: int, stride: int, dilation: int, padding: str) -> None:
    k, n = [3, 2, 4][:rank], [4, 3, 3][:rank]
    attrs = {"strides": [stride] * rank, "dilation": [dilation] * rank, "padding": padding}
    x, kernel = normal(1, *n, 2), normal(3, 2, *k, seed=2)
    y = run("conv_transpose", x, {"kernel": kernel}, **attrs)
    back = normal(*y.shape, seed=4)
    there = run("conv", back, {"kernel": np.swapaxes(kernel, 0, 1)}, **attrs)
    assert there.shape == x.shape
    np.testing.assert_allclose(np.vdot(x, there), np.vdot(y, back), rtol=1e-11)


def test_conv_transpose_is_a_convolution_of_spread_out_values() -> None:
    x, kernel, bias = normal(2, 4, 5, 2), normal(3, 2, 3, 2, seed=2), normal(3, seed=3)
    spread = np.zeros((2, 7, 9, 2))
    spread[:, ::2, ::2] = x
    full = np.stack(
        [sum(signal.convolve(spread[..., c], kernel[o, c][None], method="direct") for c in range(2)) for o in range(3)], -1
    )
    found = run("conv_transpose", x, {"kernel": kernel, "bias": bias}, strides=[2, 2], padding=[[1, 1], [0, 1]])
    np.testing.assert_allclose(found, full[:, 1:-1, :-1] + bias, rtol=1e-11)


@pytest.mark.parametrize(
    ("padding", "n", "k", "stride", "extra", "size"),
    [
        ("valid", 4, 3, 2, None, 9), ("valid", 4, 1, 2, None, 8), ("same", 4, 3, 2, None, 8), ("valid", 4, 3, 2, 1, 10),
        ("same", 4, 3, 2, 1, 8), ("same", 4, 3, 2, 0, 7), ("same", 5, 4, 1, None, 5),
    ],
)  # fmt: skip
def test_conv_transpose_sizes(padding: str, n: int, k: int, stride: int, extra: int | None, size: int) -> None:
    attrs = {"padding": padding, "strides": [stride]} | ({} if extra is None else {"output_padding": [extra]})
    assert run("conv_transpose", normal(1, n, 2), {"kernel": normal(3, 2, k)}, **attrs).shape == (1, size, 3)


@pytest.mark.parametrize("channels", ["last", "first"])
@pytest.mark.parametrize("rank", [1, 2])
def test_locally_connected(rank: int, channels: str) -> None:
    k, s, n = [2, 3][:rank], [2, 1][:rank], [6, 5][:rank]
    places = [(a - b) // c + 1 for a, b, c in zip(n, k, s, strict=True)]
    x, kernel, bias = normal(2, *n, 3), normal(4, 3, *places, *k, seed=2), normal(4, *places, seed=3)
    wanted = np.zeros((2, *places, 4))
    for o, at in product(range(4), product(*map(range, places))):
        seen = x[(slice(None), *(slice(p * b, p * b + a) for p, a, b in zip(at, k, s, strict=True)))]
        weights = np.moveaxis(kernel[(o, slice(None), *at)], 0, -1)
        wanted[(slice(None), *at, o)] = (seen * weights).reshape(2, -1).sum(1) + bias[(o, *at)]
    given = x if channels == "last" else np.moveaxis(x, -1, 1)
    found = run("locally_connected", given, {"kernel": kernel, "bias": bias}, strides=s, channels=channels)
    np.testing.assert_allclose(found if channels == "last" else np.moveaxis(found, 1, -1), wanted, rtol=1e-11)


# forward: norms


def normed(x: np.ndarray, eps: float, centred: bool = True) -> np.ndarray:
    values = [float(v) for v in x.ravel()]
    mean = sum(values) / len(values) if centred else 0.0
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    return (x - mean) / math.sqrt(variance + eps)


@pytest.mark.parametrize("axes", [[-1], [1, 2], [0]])
def test_layer_and_rms_norm(axes: list[int]) -> None:
    x = normal(2, 3, 4, 5)
    at = [a % 3 for a in axes]
    gamma, beta = (normal(*(x.shape[1 + a] for a in at), seed=i) for i in (2, 3))
    spread = [x.shape[1 + i] if i in at else 1 for i in range(3)]
    for kind, centred in (("layer_norm", True), ("rms_norm", False)):
        z = np.empty_like(x)
        for b, *where in product(range(2), *([slice(None)] if i in at else range(n) for i, n in enumerate(x.shape[1:]))):
            z[(b, *where)] = normed(x[(b, *where)], 1e-3, centred)
        params = {"gamma": gamma, "beta": beta}
        np.testing.assert_allclose(run(kind, x, params, axes=axes, eps=1e-3), z * gamma.reshape(spread) + beta.reshape(spread))


@pytest.mark.parametrize("axis", [-1, 0])
def test_group_and_instance_norm(axis: int) -> None:
    x, gamma, beta = normal(2, 3, 4, 6), normal(6, seed=2), normal(6, seed=3)
    given = x if axis == -1 else np.moveaxis(x, -1, 1)
    for kind, groups in (("group_norm", 3), ("group_norm", -1), ("group_norm", 1), ("instance_norm", -1)):
        width = 6 // groups if groups > 0 else 1
        z = np.empty_like(x)
        for b, g in product(range(2), range(0, 6, width)):
            z[b, ..., g : g + width] = normed(x[b, ..., g : g + width], 1e-2)
        found = run(kind, given, {"gamma": gamma, "beta": beta}, axis=axis, eps=1e-2, groups=groups)
        np.testing.assert_allclose(found if axis == -1 else np.moveaxis(found, 1, -1), z * gamma + beta, rtol=1e-10, atol=1e-12)


# forward: functions of single numbers

SCALARS: list[tuple[str, dict, Callable[[float], float]]] = [
    ("exp", {}, math.exp),
    ("sin", {}, math.sin),
    ("cos", {}, math.cos),
    ("abs", {}, abs),
    ("square", {}, lambda z: z * z),
    ("hard_tanh", {}, lambda z: max(-1.0, min(1.0, z))),
    ("hard_swish", {}, lambda z: z * min(6.0, max(0.0, z + 3)) / 6),
    ("mish", {}, lambda z: z * math.tanh(math.log1p(math.exp(z)))),
    ("celu", {"alpha": 0.7}, lambda z: z if z > 0 else 0.7 * (math.exp(z / 0.7) - 1)),
    ("log_sigmoid", {}, lambda z: -math.log1p(math.exp(-z))),
    ("thresholded_relu", {"theta": 0.4}, lambda z: z if z > 0.4 else 0.0),
    ("general_relu", {"negative_slope": 0.2, "threshold": 0.5, "max_value": 2.0},
     lambda z: 2.0 if z >= 2 else z if z >= 0.5 else 0.2 * (z - 0.5)),
    ("general_relu", {}, lambda z: max(z, 0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attrs", "f"), SCALARS, ids=[f"{k} {i}" for i, (k, _, _) in enumerate(SCALARS)])
def test_functions(kind: str, attrs: dict, f: Callable[[float], float]) -> None:
    x = 2 * normal(3, 50)
    op = Op(kind, "f", ("x",), "y", {}, attrs)
    y = kind_of(op).forward(op, [x], {})
    np.testing.assert_allclose(y, np.vectorize(f)(x), rtol=1e-12, atol=1e-14)
    step = 1e-6
    slope = np.abs(kind_of(op).forward(op, [x + step], {}) - y) / step
    continuous = slope < 100
    assert continuous.sum() > 140
    assert (kind_of(op).both(op, [x], [np.abs(x) + 1], {})[1] >= np.abs(y)).all()
    # a change of its input by its size times u changes the output by no more than the bound times u
    bound = kind_of(op).both(op, [x], [np.full_like(x, np.abs(x).max())], {})[1]
    assert (slope * np.abs(x).max() <= bound + 1e-3)[continuous].all()


def test_log_softmax() -> None:
    x = 3 * normal(4, 5, 6)
    for axis in (-1, 0):
        at = axis if axis < 0 else 1
        np.testing.assert_allclose(run_loose("log_softmax", x, axis=axis), x - np.log(np.exp(x).sum(at, keepdims=True)))


def run_loose(kind: str, x: np.ndarray, **attrs) -> np.ndarray:
    op = Op(kind, "f", ("x",), "y", {}, attrs)
    return kind_of(op).forward(op, [x], {})


# forward: structure


def test_joins() -> None:
    a, b = normal(2, 3, 4), normal(2, 3, 4, seed=2)
    np.testing.assert_array_equal(run("subtract", [a, b]), a - b)
    np.testing.assert_allclose(run("average", [a, b, a]), (2 * a + b) / 3)
    np.testing.assert_array_equal(run("maximum", [a, b]), np.where(a > b, a, b))
    np.testing.assert_array_equal(run("minimum", [a, b]), np.where(a > b, b, a))
    with pytest.raises(ShapeConflict):
        run("subtract", [a, b[:, :2]])


def test_dot() -> None:
    a, b, v, w = normal(2, 3, 4), normal(2, 5, 4, seed=2), normal(2, 4, seed=3), normal(2, 4, seed=4)
    for normalize in (False, True):

        def unit(x: np.ndarray, normalize: bool = normalize) -> np.ndarray:
            return x / np.sqrt((x**2).sum()) if normalize else x

        found = run("dot", [a, b], axes=[1, 1], normalize=normalize)
        for n, i, j in product(range(2), range(3), range(5)):
            np.testing.assert_allclose(found[n, i, j], sum(unit(a[n, i]) * unit(b[n, j])))
        np.testing.assert_allclose(run("dot", [v, w], axes=[0, -1], normalize=normalize)[1, 0], sum(unit(v[1]) * unit(w[1])))
        np.testing.assert_allclose(
            run("dot", [np.swapaxes(a, 1, 2), v], axes=[0, 0], normalize=normalize)[0],
            [sum(unit(a[0, i]) * unit(v[0])) for i in range(3)],
        )
    with pytest.raises(UnsupportedOp):
        run("dot", [normal(2, 3, 4, 5), v], axes=[0, 0])


def test_positions() -> None:
    x = normal(2, 3, 4, 5)
    np.testing.assert_array_equal(run("permute", x, dims=[2, 0, 1])[1, 4, 2], x[1, 2, :, 4])
    np.testing.assert_array_equal(run("cropping", x, cropping=[[1, 0], [1, 2]]), x[:, 1:, 1:2])
    np.testing.assert_array_equal(run("cropping", x, cropping=[[0, 1], [2, 2]], channels="first"), x[:, :, :3, 2:3])
    np.testing.assert_array_equal(run("reverse", x), x[:, ::-1])
    np.testing.assert_array_equal(run("repeat_vector", x[:, 0, 0], n=3)[1], [x[1, 0, 0]] * 3)
    np.testing.assert_array_equal(run("upsampling", x, size=[2, 3])[1, 5, 7], x[1, 2, 2])
    np.testing.assert_array_equal(run("upsampling", x, size=[2, 1], channels="first")[1, 2, 5, 3], x[1, 2, 2, 3])
    with pytest.raises(ShapeConflict):
        run("cropping", x, cropping=[[1, 2], [0, 0]])


@pytest.mark.parametrize("half_pixel", [True, False])
def test_linear_upsampling(half_pixel: bool) -> None:
    x = normal(1, 3, 4, 2)
    found = run("upsampling", x, size=[2, 3], interpolation="bilinear", half_pixel=half_pixel)
    for c in range(2):
        at = [(np.arange(n * k) + 0.5) / k - 0.5 if half_pixel else np.arange(n * k) / k for n, k in ((3, 2), (4, 3))]
        wanted = ndimage.map_coordinates(x[0, ..., c], np.meshgrid(*at, indexing="ij"), order=1, mode="nearest")
        np.testing.assert_allclose(found[0, ..., c], wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run("upsampling", x[:, :, 0], size=[4], interpolation="bilinear").mean(), x[:, :, 0].mean())


def test_embedding_and_masks() -> None:
    table, ids = normal(7, 3), np.array([[0, 6, 2], [1, 1, 0]])
    np.testing.assert_array_equal(run("embedding", ids.astype(float), {"table": table})[1, 2], table[0])
    for wrong in ([[0.0, 7.0]], [[-1.0, 0.0]], [[0.5, 1.0]]):
        with pytest.raises(ShapeConflict, match="tokens are whole numbers from 0 to 6"):
            run("embedding", np.array(wrong), {"table": table})
    np.testing.assert_array_equal(run_loose("step_mask", ids.astype(float), tokens=True), [[0, 1, 1], [1, 1, 0]])
    x = normal(2, 3, 4)
    x[0, 1] = 2.5
    x[1, 2, :3] = 2.5
    mask = run_loose("step_mask", x, mask_value=2.5)
    np.testing.assert_array_equal(mask, [[1, 0, 1], [1, 1, 1]])
    np.testing.assert_array_equal(run("masking", x, mask_value=2.5), x * mask[:, :, None])
    np.testing.assert_allclose(run("masked_avg_pool", [x, mask])[0], (x[0, 0] + x[0, 2]) / 2)


@pytest.mark.parametrize(
    ("kind", "params", "attrs"),
    [
        ("conv", {"kernel": normal(4, 3, 2, 2), "bias": normal(4)}, {"channels": "first", "padding": "same"}),
        ("flatten", {}, {"channels": "first"}),
        ("global_max_pool", {}, {"channels": "first"}),
        ("layer_norm", {"gamma": normal(6)}, {"eps": 1e-3}),
    ],
)
def test_time_distributed(kind: str, params: dict, attrs: dict) -> None:
    x = normal(2, 4, 3, 5, 6)
    found = run("time_distributed", x, params, inner={"kind": kind, "attrs": attrs})
    for t in range(4):
        np.testing.assert_allclose(found[:, t], run(kind, x[:, t], params, **attrs), rtol=1e-12, atol=1e-12)


# forward: recurrent


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def hard_sigmoid(z: float) -> float:
    return max(0.0, min(1.0, 0.2 * z + 0.5))


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "tanh": math.tanh, "sigmoid": sigmoid, "hard_sigmoid": hard_sigmoid, "relu": lambda z: max(z, 0.0), "linear": lambda z: z,
}  # fmt: skip


def slow_cell(kind: str, f, g, u: int, x, h, c, params, reset_after: bool):
    """One step for one sample, number by number."""
    kernel, recurrent = params["kernel"], params["recurrent_kernel"]
    bias = params.get("bias", np.zeros(len(kernel)))
    one, two = (bias, np.zeros(len(kernel))) if bias.ndim == 1 else bias

    def read(row: int) -> float:
        return sum(kernel[row, i] * x[i] for i in range(len(x))) + one[row]

    def back(row: int, state) -> float:
        return sum(recurrent[row, k] * state[k] for k in range(u)) + two[row]

    if kind == "simple_rnn":
        return [f(read(j) + back(j, h)) for j in range(u)], c
    if kind == "lstm":
        i, forget, o = ([g(read(b * u + j) + back(b * u + j, h)) for j in range(u)] for b in (0, 1, 3))
        c = [forget[j] * c[j] + i[j] * f(read(2 * u + j) + back(2 * u + j, h)) for j in range(u)]
        return [o[j] * f(c[j]) for j in range(u)], c
    z, r = ([g(read(b * u + j) + back(b * u + j, h)) for j in range(u)] for b in (0, 1))
    if reset_after:
        new = [f(read(2 * u + j) + r[j] * back(2 * u + j, h)) for j in range(u)]
    else:
        new = [f(read(2 * u + j) + back(2 * u + j, [r[k] * h[k] for k in range(u)])) for j in range(u)]
    return [z[j] * h[j] + (1 - z[j]) * new[j] for j in range(u)], c


def slow_recurrent(kind: str, x: np.ndarray, mask, params: dict, attrs: dict) -> np.ndarray:
    u = params["recurrent_kernel"].shape[1]
    f, g = FUNCTIONS[attrs["activation"]], FUNCTIONS[attrs["gate"]]
    out = np.zeros((len(x), x.shape[1], u))
    for b in range(len(x)):
        h, c, shown = [0.0] * u, [0.0] * u, [0.0] * u
        order = range(x.shape[1])[::-1] if attrs["go_backwards"] else range(x.shape[1])
        for k, t in enumerate(order):
            if mask is None or mask[b, t]:
                h, c = slow_cell(kind, f, g, u, x[b, t], h, c, params, attrs.get("reset_after", False))
                shown = h
            elif attrs.get("zero_output_for_mask"):
                shown = [0.0] * u
            out[b, k] = shown
    return out if attrs["return_sequences"] else out[:, -1]


GATES = {"simple_rnn": 1, "lstm": 4, "gru": 3}


def recurrent_params(kind: str, inner: int, u: int, bias: int = 1, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = GATES[kind] * u
    params = {"kernel": 0.8 * rng.standard_normal((n, inner)), "recurrent_kernel": 0.5 * rng.standard_normal((n, u))}
    if bias:
        params["bias"] = 0.3 * rng.standard_normal((n,) if bias == 1 else (2, n))
    return params


@pytest.mark.parametrize("kind", [*GATES, "gru reset_after"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"activation": "tanh", "gate": "sigmoid", "go_backwards": False, "return_sequences": True},
        {"activation": "relu", "gate": "hard_sigmoid", "go_backwards": True, "return_sequences": True},
        {"activation": "linear", "gate": "sigmoid", "go_backwards": True, "return_sequences": False},
        {"activation": "tanh", "gate": "sigmoid", "go_backwards": False, "return_sequences": False, "bias": 0},
        {"activation": "tanh", "gate": "sigmoid", "go_backwards": False, "return_sequences": True, "zero_output_for_mask": 1},
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_recurrent(kind: str, attrs: dict, masked: bool) -> None:
    kind, after = kind.split()[0], "reset_after" in kind
    attrs = {**attrs, "reset_after": after}
    params = recurrent_params(kind, 3, 4, attrs.pop("bias", 2 if after else 1))
    x = normal(2, 5, 3)
    mask = np.array([[0, 1, 0, 1, 1], [1, 1, 0, 0, 0]], float) if masked else None
    wanted = slow_recurrent(kind, x, mask, params, attrs)
    gate = attrs.pop("gate")
    attrs["recurrent_activation"] = {"kind": gate, "slope": 0.2} if gate == "hard_sigmoid" else gate
    found = run(kind, [x] if mask is None else [x, mask], params, **attrs)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_recurrent_layer_with_an_activation_that_mixes_units_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="softmax"):
        run("lstm", normal(2, 3, 4), recurrent_params("lstm", 4, 2), activation="softmax")
