"""Constants, functions of single numbers and products of values: forward by formulas, groups by random moves."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from strategies import Draft
from test_ops_groups import BOTH, LABELS, SCALE, SIGN, apart, dense, flat, image, outputs
from test_ops_more import normal, run

from canon.action import random_action
from canon.errors import ShapeConflict, UnsupportedOp
from canon.fold import fold
from canon.forward import bounded, probe_inputs
from canon.network import Network
from canon.ops import Op, kind_of
from canon.symmetry import Symmetry, derive
from canon.transform import canonicalize

AFFINE = "relabelling, sign (affine)"

# forward


SCALARS: list[tuple[str, dict, Callable[[float], float]]] = [
    ("clip", {"low": -0.5, "high": 1.5}, lambda z: min(max(z, -0.5), 1.5)),
    ("clip", {"low": 0.25, "high": None}, lambda z: max(z, 0.25)),
    ("clip", {"high": 0.0}, lambda z: min(z, 0.0)),
    ("erf", {}, math.erf),
    ("log", {}, lambda z: math.log(z) if z > 0 else math.nan),
    ("power", {"exponent": 3.0}, lambda z: z * z * z),
    ("power", {"exponent": -1.0}, lambda z: 1 / z),
    ("power", {"exponent": 0.5}, lambda z: math.sqrt(z) if z >= 0 else math.nan),
    ("power", {"exponent": 1.7}, lambda z: math.pow(z, 1.7) if z >= 0 else math.nan),
    ("sign", {}, lambda z: math.copysign(1.0, z)),
    ("round", {"how": "floor"}, math.floor),
    ("round", {"how": "ceil"}, math.ceil),
    ("round", {"how": "nearest"}, round),
    ("rescale", {"factor": -2.0, "offset": 0.5}, lambda z: 0.5 - 2 * z),
]


@pytest.mark.parametrize(("kind", "attrs", "f"), SCALARS, ids=[f"{k} {i}" for i, (k, _, _) in enumerate(SCALARS)])
def test_functions(kind: str, attrs: dict, f: Callable[[float], float]) -> None:
    x = 2 * normal(3, 50)
    op = Op(kind, "f", ("x",), "y", {}, attrs)
    y = kind_of(op).forward(op, [x], {})
    np.testing.assert_allclose(y, np.vectorize(f, otypes=[float])(x), rtol=1e-12, atol=1e-14)
    both, bound = kind_of(op).both(op, [x], [np.abs(x) + 1], {})
    np.testing.assert_array_equal(both, y)
    step = 1e-7
    with np.errstate(all="ignore"):
        slope = np.abs(kind_of(op).forward(op, [x + step], {}) - y) / step
    known = np.isfinite(slope) & (slope < 1e5)
    assert known.sum() > 50
    assert (bound >= np.abs(y))[known].all()
    assert (slope * (np.abs(x) + 1) <= bound * 1.01 + 1e-3)[known].all()


def test_constants() -> None:
    x, c, d = normal(2, 3, 4), normal(3, 4, seed=2), normal(1, 4, seed=3)
    np.testing.assert_array_equal(run("add_constant", x, {"constant": c}), x + c)
    np.testing.assert_array_equal(run("multiply_constant", x, {"constant": d}), x * d)
    low, high = np.minimum(c, d), np.maximum(c, d)
    np.testing.assert_array_equal(run("clamp", x, {"low": low, "high": high}), np.clip(x, low, high))
    for wrong in (normal(4), normal(2, 4)):
        with pytest.raises(ShapeConflict):
            run("add_constant", x, {"constant": wrong})


def test_products() -> None:
    a, b = normal(2, 3, 4), normal(2, 3, 4, seed=2)
    np.testing.assert_array_equal(run("divide", [a, b]), a / b)
    np.testing.assert_array_equal(run("divide", [a, b[:, :1]]), a / b[:, :1])
    np.testing.assert_allclose(run("matmul", [a, b.swapaxes(1, 2)])[1, 2, 0], a[1, 2] @ b[1, 0])
    many = normal(2, 5, 4, 3)
    np.testing.assert_allclose(run("matmul", [a[:, None], many])[1, 4], a[1] @ many[1, 4])
    for how in ("mean", "sum", "max", "min"):
        np.testing.assert_allclose(run("reduce", a, how=how, axes=[1]), getattr(np, how)(a, axis=2))
        np.testing.assert_allclose(run("reduce", a, how=how, axes=[-2], keepdims=True), getattr(np, how)(a, axis=1)[:, None])
    np.testing.assert_array_equal(run("take", a, axis=0, index=-1), a[:, -1])
    np.testing.assert_array_equal(
        run("mirror_padding", a, how="reflect", padding=[[1, 2], [0, 3]])[0, 0, :5], [*a[0, 1], a[0, 1, 2]]
    )
    np.testing.assert_array_equal(run("mirror_padding", a, how="edge", padding=[[0, 2], [0, 0]])[0, 4], a[0, 2])
    with pytest.raises(ShapeConflict):
        run("take", a, axis=0, index=3)
    with pytest.raises(ShapeConflict):
        run("matmul", [a, b])
    with pytest.raises(UnsupportedOp, match="wrap"):
        run("mirror_padding", a, how="wrap", padding=[[1, 1], [0, 0]])


@pytest.mark.parametrize(("size", "channels"), [(3, "first"), (4, "last"), (5, "first")])
def test_local_response_norm(size: int, channels: str) -> None:
    x = normal(2, 6, 3)
    given = x if channels == "first" else np.moveaxis(x, 1, -1)
    found = run("local_response_norm", given, size=size, alpha=0.3, beta=0.6, bias=1.5, channels=channels)
    found = found if channels == "first" else np.moveaxis(found, -1, 1)
    for c in range(6):
        near = [k for k in range(6) if -((size - 1) // 2) <= k - c <= size // 2]
        total = sum(x[:, k] ** 2 for k in near)
        np.testing.assert_allclose(found[:, c], x[:, c] / (1.5 + 0.3 / size * total) ** 0.6, rtol=1e-12)


# groups

Build = Callable[[Draft], str]


def shifted(shape: tuple[int, ...], act: str, after: str = "tanh", kind: str = "add_constant") -> Build:
    def build(d: Draft) -> str:
        v = d.op(kind, image(d, 4, act), {"constant": d.normal(*shape)})
        return d.activation(d.op("conv", v, d.kernel(3, 4, 2, 2, bias=True)), after)

    return build


def between(kind: str, act: str = "relu", params: tuple[str, ...] = (), **attrs) -> Build:
    """An op between two activations, so that nothing folds it."""

    def build(d: Draft) -> str:
        v = d.op(kind, dense(d, d.input(4), 5, act), {r: d.normal(5) for r in params}, **attrs)
        return d.activation(v, act)

    return build


def quotient(d: Draft) -> str:
    x = d.input(4)
    return d.op("divide", [dense(d, x, 5, "tanh"), d.op("exp", d.dense(x, 5, bias=True))])


def by_root(d: Draft) -> str:
    v = d.op("rescale", d.op("square", d.dense(d.input(4), 5)), factor=1.0, offset=0.5)
    return d.op("power", v, exponent=-0.5)


def multiplied(d: Draft) -> str:
    x = d.input(3, 4)
    return d.op("matmul", [dense(d, x, 5, "relu"), d.op("permute", dense(d, x, 5, "relu"), dims=[1, 0])])


def steps(d: Draft) -> str:
    v = dense(d, d.input(5, 4), 6, "relu")
    both = [d.op("take", v, axis=0, index=-1), d.op("reduce", v, how="max", axes=[0])]
    return d.op("concat", [*both, d.op("reduce", d.op("tanh", d.dense(v, 3)), how="sum", axes=[0])])


def mirrored(d: Draft) -> str:
    v = d.op("mirror_padding", image(d, 4, "sigmoid"), how="reflect", padding=[[1, 2], [0, 1], [0, 0]])
    return d.op("tanh", d.op("conv", v, d.kernel(3, 4, 2, 2, bias=True)))


GROUPS: dict[str, tuple[Build, dict[str, str]]] = {
    "added per unit, relu": (shifted((1, 1, 4), "relu"), {"conv_0": SCALE, "conv_3": SIGN}),
    "added per unit, sigmoid": (shifted((1, 1, 4), "sigmoid"), {"conv_0": AFFINE, "conv_3": SIGN}),
    "added per unit and place": (shifted((5, 4, 4), "tanh"), {"conv_0": SIGN, "conv_3": SIGN}),
    "added everywhere": (shifted((1, 1, 1), "relu"), {"conv_0": LABELS, "conv_3": SIGN}),
    "multiplied per unit, relu": (shifted((1, 1, 4), "relu", kind="multiply_constant"),
                                  {"conv_0": "relabelling, scale x2, sign", "conv_3": SIGN}),
    "multiplied per place": (shifted((5, 4, 1), "tanh", kind="multiply_constant"), {"conv_0": SIGN, "conv_3": SIGN}),
    "multiplied, sigmoid": (shifted((1, 1, 4), "sigmoid", kind="multiply_constant"), {"conv_0": BOTH, "conv_3": SIGN}),
    "multiplied between": (between("multiply_constant", "tanh", ("constant",)), {"dense_0": "relabelling, sign x2"}),
    "added between": (between("add_constant", "relu", ("constant",)), {"dense_0": SCALE}),
    "rescaled": (between("rescale", "relu", factor=0.5), {"dense_0": SCALE}),
    "turned around": (between("rescale", "tanh", factor=-0.5), {"dense_0": SIGN}),
    "rescaled with an offset": (between("rescale", "relu", factor=0.5, offset=0.25), {"dense_0": LABELS}),
    "clamped": (between("clamp", "linear", ("low", "high")), {"dense_0": LABELS}),
    "clipped": (between("clip", "linear", low=-0.5, high=1.0), {"dense_0": AFFINE}),
    "clipped about zero": (between("clip", "linear", low=-0.5, high=0.5), {"dense_0": SIGN}),
    "clipped below": (between("clip", "linear", low=0.1), {"dense_0": LABELS}),
    "clipped above at zero": (between("clip", "linear", high=0.0), {"dense_0": SCALE}),
    "erf": (between("erf", "linear"), {"dense_0": SIGN}),
    "cubed": (between("power", "linear", exponent=3.0), {"dense_0": BOTH}),
    "inverted": (between("power", "linear", exponent=-1.0), {"dense_0": BOTH}),
    "to the fourth": (between("power", "linear", exponent=4.0), {"dense_0": BOTH}),
    "root": (between("power", "softplus", exponent=0.5), {"dense_0": LABELS}),
    "sign": (between("sign", "linear"), {"dense_0": BOTH}),
    "rounded": (between("round", "linear", how="nearest"), {"dense_0": LABELS}),
    "by root": (by_root, {"dense_0": SIGN}),
    "quotient": (quotient, {"dense_0": SIGN}),
    "matmul": (multiplied, {"dense_0": SCALE}),
    "steps": (steps, {"dense_0": SCALE, "dense_4": SIGN}),
    "mirrored": (mirrored, {"conv_0": AFFINE, "conv_3": SIGN}),
}  # fmt: skip


def network(name: str, seed: int = 0) -> tuple[Network, Symmetry]:
    d = Draft(np.random.default_rng(seed))
    net = d.network(flat(d, GROUPS[name][0](d)))
    return net, derive(net)


@pytest.mark.parametrize("name", GROUPS)
def test_the_group(name: str) -> None:
    _, s = network(name)
    assert {space: s.group(space) for space in s.spaces} == GROUPS[name][1]


@pytest.mark.parametrize("name", GROUPS)
def test_moves_of_the_group_leave_outputs_as_they_are(name: str) -> None:
    net, s = network(name)
    before = outputs(net)
    for seed in range(3):
        g = random_action(s, net, np.random.default_rng(seed), sigma=0.7)
        moved = g(net)
        assert apart(before, outputs(moved)) < 1e-10
        for t, back in (~g)(moved).tensors.items():
            np.testing.assert_allclose(back, net.tensors[t], rtol=1e-10, atol=1e-12)
        for t in net.tensors:  # half a move is none
            if np.abs(moved.tensors[t] - net.tensors[t]).max() > 1e-3:
                assert apart(before, outputs(moved.with_tensors({t: net.tensors[t]}))) > 1e-8, t


@pytest.mark.parametrize("name", GROUPS)
def test_folding_keeps_the_function_and_moves_lift(name: str) -> None:
    net, _ = network(name)
    folded = fold(net)
    assert apart(outputs(net), outputs(folded.network)) < 1e-10
    g = random_action(folded.symmetry, folded.network, np.random.default_rng(1), sigma=0.5)
    assert apart(outputs(net), outputs(g(folded.network))) < 1e-10
    assert apart(outputs(net), outputs(folded.lift(g))) < 1e-10


@pytest.mark.parametrize("name", GROUPS)
def test_canonical_forms_of_one_orbit_agree(name: str) -> None:
    net, s = network(name)
    moved = random_action(s, net, np.random.default_rng(6), sigma=0.7)(net)
    one, other = (canonicalize(n).network for n in (net, moved))
    for t, value in one.tensors.items():
        np.testing.assert_allclose(other.tensors[t], value, rtol=1e-6, atol=1e-6 * np.abs(value).max(initial=1e-3), err_msg=t)
    assert apart(outputs(net), outputs(one)) < 1e-10


@pytest.mark.parametrize("name", [n for n in GROUPS if n not in ("rounded", "sign")])  # these jump
def test_the_rounding_bound_holds(name: str) -> None:
    net, _ = network(name)
    inputs = probe_inputs(net, np.random.default_rng(2), 4, 1.0)
    single = net.with_tensors({n: t.astype(np.float32) for n, t in net.tensors.items()})
    y, m = bounded(net, inputs)
    rounded, _ = bounded(single, inputs)
    for v in net.outputs:
        assert np.isfinite(m[v]).all()
        assert (np.abs(rounded[v] - y[v]) <= 16 * 2.0**-24 * len(net.ops) * m[v]).all()


@pytest.mark.parametrize("name", GROUPS)
def test_constants_that_a_kernel_can_take_are_folded_away(name: str) -> None:
    net, _ = network(name)
    left = {op.kind for op in fold(net).network.ops} & {"add_constant", "multiply_constant"}
    # by an average over positions, or between two functions, none can
    assert bool(left) == (name in ("added per unit and place", "multiplied per place", "multiplied between", "added between"))
