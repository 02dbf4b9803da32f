"""Operations beyond the first: their groups, proved by random moves, by folding and lifting, and by moves outside them."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from strategies import Draft

from canon.action import random_action
from canon.compare import compare
from canon.fold import fold
from canon.forward import bounded, forward, probe_inputs
from canon.network import Network
from canon.run import Run
from canon.symmetry import Concat, Symmetry, derive
from canon.transform import canonicalize

GATES = {"simple_rnn": 1, "lstm": 4, "gru": 3}


def draft(seed: int = 0, channels: str = "last") -> Draft:
    return Draft(np.random.default_rng(seed), channels)


def outputs(net: Network, seed: int = 5) -> list[np.ndarray]:
    inputs = probe_inputs(net, np.random.default_rng(seed), 32, 1.0)
    return list(forward(net, inputs).values())


def apart(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """Largest difference of outputs, relative to the largest output."""
    assert all(np.isfinite(x).all() and np.ptp(x) > 0 for x in (*a, *b))
    return max(float(np.abs(x - y).max() / np.abs(x).max()) for x, y in zip(a, b, strict=True))


def changed(net: Network, **tensors: np.ndarray) -> Network:
    """The network with some tensors replaced; names with / written as __."""
    return net.with_tensors({n.replace("__", "/"): t for n, t in tensors.items()})


def recurrent_params(kind: str, inner: int, u: int, bias: int = 1, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = GATES[kind] * u
    params = {"kernel": 0.8 * rng.standard_normal((n, inner)), "recurrent_kernel": 0.5 * rng.standard_normal((n, u))}
    if bias:
        params["bias"] = 0.3 * rng.standard_normal((n,) if bias == 1 else (2, n))
    return params


# the groups: small networks around each operation

Build = Callable[[Draft], str]


def dense(d: Draft, v: str, n: int = 5, act: str = "tanh") -> str:
    return d.activation(d.dense(v, n, bias=True), act)


def image(d: Draft, n: int = 4, act: str = "tanh") -> str:
    """A convolution of an image, 5 x 4, n channels."""
    return d.activation(d.op("conv", d.input(6, 5, 2), d.kernel(n, 2, 2, 2, bias=True)), act)


def flat(d: Draft, v: str) -> str:
    return d.dense(d.op("flatten", v) if len(d.shapes[v]) > 1 else v, 3, bias=True)


def grouped(d: Draft, act: str = "relu") -> str:
    v = d.op("grouped_conv", image(d, 6, act), d.kernel(9, 2, 2, 2, bias=True), groups=3)
    return d.activation(v, act)


def transposed(d: Draft) -> str:
    v = d.op("conv_transpose", image(d), d.kernel(3, 4, 3, 2, bias=True), strides=[2, 1], padding="same")
    return d.activation(v, "relu6")


def local(d: Draft, act: str) -> str:
    params = {"kernel": d.normal(3, 4, 4, 3, 2, 2), "bias": d.normal(3, 4, 3)}
    return d.activation(d.op("locally_connected", image(d, 4, act), params), act)


def norm(kind: str, params: tuple[str, ...] = ("gamma", "beta"), act: str = "relu", **attrs) -> Build:
    def build(d: Draft) -> str:
        v = d.op("conv", d.input(6, 5, 2), d.kernel(6, 2, 2, 2, bias=True))
        return d.activation(d.op(kind, v, {r: d.normal(6, fan_in=2) for r in params}, eps=1e-1, **attrs), act)

    return build


def function(kind: str, **attrs) -> Build:
    return lambda d: d.op(kind, d.dense(d.input(4), 5, bias=True), **attrs)


def joined(kind: str, act: str = "tanh") -> Build:
    def build(d: Draft) -> str:
        x = d.input(4)
        return d.op(kind, [dense(d, x, 5, act), dense(d, x, 5, act)])

    return build


def dotted(normalize: bool) -> Build:
    def build(d: Draft) -> str:
        x = d.input(3, 4)
        parts = [d.op("permute", dense(d, x, 5, "relu"), dims=[1, 0]) for _ in range(2)]
        return d.op("dot", [dense(d, p, 6) for p in parts], axes=[1, 1], normalize=normalize)

    return build


def moved_about(d: Draft) -> str:
    v = d.op("upsampling", image(d, 4, "sigmoid"), size=[2, 2], interpolation="bilinear")
    v = d.op("cropping", v, cropping=[[1, 2], [0, 1]])
    v = d.op("permute", v, dims=[1, 0, 2])
    return d.op("tanh", d.op("conv", v, d.kernel(3, 4, 2, 2, bias=True)))


def repeated(d: Draft) -> str:
    return d.op("reverse", d.op("repeat_vector", dense(d, d.input(4)), n=3))


def recurrent(kind: str, act: str = "tanh", mask: str = "", before: str = "tanh", bias: int = 1, **attrs) -> Build:
    def build(d: Draft) -> str:
        x = d.input(5, 3)
        v = dense(d, x, 4, before)
        masks = [d.op("step_mask", v, mask_value=0.0)] if mask else []
        v = d.op("masking", v, mask_value=0.0) if mask else v
        params = recurrent_params(kind, 4, 5, bias)
        return d.op(kind, [v, *masks], params, activation=act, return_sequences=True, **attrs)

    return build


def bidirectional(d: Draft) -> str:
    v = dense(d, d.input(5, 3), 4)
    there = d.op("lstm", v, recurrent_params("lstm", 4, 3), return_sequences=True)
    back = d.op("lstm", v, recurrent_params("lstm", 4, 3, seed=9), return_sequences=True, go_backwards=True)
    v = d.op("concat", [there, d.op("reverse", back)], axis=-1)
    v = d.op("gru", v, recurrent_params("gru", 6, 4, 2), reset_after=True, return_sequences=True)
    return d.op("simple_rnn", v, recurrent_params("simple_rnn", 4, 4))


def words(d: Draft) -> str:
    x = d.input(6)
    v = d.op("embedding", x, {"table": d.normal(8, 4)})
    mask = d.op("step_mask", x, tokens=True)
    lstm = d.op("lstm", [v, mask], recurrent_params("lstm", 4, 3))
    return d.op("concat", [lstm, d.op("masked_avg_pool", [dense(d, v, 4, "sigmoid"), mask])])


def frames(d: Draft) -> str:
    inner = {"kind": "conv", "attrs": {"channels": "first"}}
    x = d.input(3, 2, 5, 4)
    v = d.op("relu6", d.op("time_distributed", x, d.kernel(4, 2, 2, 2, bias=True), inner=inner))
    v = d.op("time_distributed", v, d.kernel(3, 4, 2, 2, bias=True), inner=inner)
    v = d.op("time_distributed", d.op("tanh", v), inner={"kind": "flatten", "attrs": {"channels": "first"}})
    return d.op("lstm", v, recurrent_params("lstm", 18, 3))


def reshaped(d: Draft) -> str:
    """A dense layer over one factor of what another writes: its bias meets all of the other factor."""
    v = d.op("reshape", dense(d, d.input(4), 12, "relu"), shape=[3, 4])
    return d.op("tanh", d.dense(v, 5, bias=True))


def flattened(act: str) -> Build:
    """Gauges on the entries of a product that is a factor itself."""

    def build(d: Draft) -> str:
        v = d.op("depthwise_conv", image(d, 3, act), {"kernel": d.normal(6, 1, 2, 2), "bias": d.normal(6)})
        return d.activation(d.norm(d.op("flatten", d.activation(v, act))), act)

    return build


def sloped(d: Draft) -> str:
    """Slopes of units that come from two layers, whose flips are left out."""
    x = d.input(4)
    return d.activation(d.op("concat", [dense(d, x, 3), dense(d, x, 2)]), "prelu")


LABELS, SCALE, SIGN, AFFINE = "relabelling", "relabelling, scale", "relabelling, sign", "relabelling, sign (affine)"
BOTH = "relabelling, scale, sign"

GROUPS: dict[str, tuple[Build, dict[str, str]]] = {
    "grouped relu": (grouped, {f"conv_0[{i}:{i + 2}]": SCALE for i in (0, 2, 4)}
                     | {"grouped_conv_2" + "'" * i: SCALE for i in range(3)}),
    "grouped sigmoid": (lambda d: grouped(d, "sigmoid"), {f"conv_0[{i}:{i + 2}]": AFFINE for i in (0, 2, 4)}
                     | {"grouped_conv_2" + "'" * i: AFFINE for i in range(3)}),
    "transposed": (transposed, {"conv_0": SIGN, "conv_transpose_2": AFFINE}),
    "local sigmoid": (lambda d: local(d, "sigmoid"),
                      {"conv_0": AFFINE, "locally_connected_2": AFFINE}),
    "local relu": (lambda d: local(d, "relu"), {"conv_0": SCALE, "locally_connected_2": SCALE}),
    "layer norm": (norm("layer_norm"), {"conv_0": SCALE}),
    "layer norm sigmoid": (norm("layer_norm", act="sigmoid"), {"conv_0": AFFINE}),
    "layer norm relu6": (norm("layer_norm", act="relu6"), {"conv_0": AFFINE}),
    "layer norm relu6 without beta": (norm("layer_norm", ("gamma",), "relu6"), {"conv_0": LABELS}),
    "layer norm without gamma": (norm("layer_norm", ("beta",)), {"conv_0": LABELS}),
    "rms norm": (norm("rms_norm", ("gamma",)), {"conv_0": BOTH}),
    "rms norm without gamma": (norm("rms_norm", (), "tanh"), {"conv_0": SIGN}),
    "group norm": (norm("group_norm", groups=3), {"conv_0": SCALE, "conv_0'": SCALE}),
    "instance norm": (norm("instance_norm"), {"conv_0": BOTH}),
    "exp": (function("exp"), {"dense_0": LABELS}),
    "sin": (function("sin"), {"dense_0": SIGN}),
    "cos": (function("cos"), {"dense_0": SIGN}),
    "abs": (function("abs"), {"dense_0": BOTH}),
    "square": (function("square"), {"dense_0": BOTH}),
    "hard tanh": (function("hard_tanh"), {"dense_0": SIGN}),
    "mish": (function("mish"), {"dense_0": LABELS}),
    "hard swish": (function("hard_swish"), {"dense_0": LABELS}),
    "celu": (function("celu", alpha=0.5), {"dense_0": LABELS}),
    "log sigmoid": (function("log_sigmoid"), {"dense_0": LABELS}),
    "thresholded relu": (function("thresholded_relu", theta=0.1), {"dense_0": LABELS}),
    "thresholded relu at 0": (function("thresholded_relu", theta=0.0), {"dense_0": SCALE}),
    "general relu": (function("general_relu", threshold=0.1), {"dense_0": LABELS}),
    "general relu, sloped": (function("general_relu", negative_slope=0.3), {"dense_0": SCALE}),
    "log softmax": (function("log_softmax"), {"dense_0": LABELS}),
    "subtract": (joined("subtract"), {"dense_0": SIGN}),
    "average": (joined("average", "relu"), {"dense_0": SCALE}),
    "maximum": (joined("maximum", "relu"), {"dense_0": SCALE}),
    "minimum": (joined("minimum"), {"dense_0": LABELS}),
    "dot": (dotted(False), {"dense_0": LABELS, "dense_3": LABELS, "dense_6": SIGN}),
    "cosine": (dotted(True), {"dense_0": LABELS, "dense_3": LABELS, "dense_6": SIGN}),
    "positions": (moved_about, {"conv_0": AFFINE, "conv_5": SIGN}),
    "repeat, reverse": (repeated, {"dense_0": SIGN}),
    "lstm": (recurrent("lstm"), {"dense_0": SIGN, "lstm_2": SIGN}),
    "lstm relu": (recurrent("lstm", "relu"), {"dense_0": SIGN, "lstm_2": SCALE}),
    "lstm linear": (recurrent("lstm", "linear"), {"dense_0": SIGN, "lstm_2": BOTH}),
    "lstm sigmoid": (recurrent("lstm", "sigmoid"), {"dense_0": SIGN, "lstm_2": LABELS}),
    "lstm masked": (recurrent("lstm", mask="0", before="relu"),
                    {"dense_0": SCALE, "lstm_4": SIGN}),
    "gru": (recurrent("gru"), {"dense_0": SIGN, "gru_2": SIGN}),
    "gru reset after": (recurrent("gru", bias=2, reset_after=True), {"dense_0": SIGN, "gru_2": SIGN}),
    "gru relu": (recurrent("gru", "relu"), {"dense_0": SIGN, "gru_2": SCALE}),
    "simple rnn": (recurrent("simple_rnn", go_backwards=True), {"dense_0": SIGN, "simple_rnn_2": SIGN}),
    "simple rnn relu": (recurrent("simple_rnn", "relu"), {"dense_0": SIGN, "simple_rnn_2": SCALE}),
    "simple rnn sigmoid": (recurrent("simple_rnn", "sigmoid", before="sigmoid"), {"dense_0": LABELS, "simple_rnn_2": LABELS}),
    "bidirectional": (bidirectional, {"dense_0": SIGN, "lstm_2": SIGN, "lstm_3": SIGN,
                                      "gru_6": SIGN, "simple_rnn_7": SIGN}),
    "words": (words, {"embedding_0": "linear", "lstm_2": SIGN, "dense_3": AFFINE}),
    "frames": (frames, {"time_distributed_0": AFFINE, "time_distributed_2": SIGN,
                        "lstm_5": SIGN}),
    "flattened relu": (flattened("relu"), {"conv_0": f"{SCALE} x3", "depthwise_conv_2.each": f"{SCALE} x2"}),
    "flattened sigmoid": (flattened("sigmoid"), {"conv_0": f"{AFFINE} x3", "depthwise_conv_2.each": f"{AFFINE} x2"}),
    "sloped": (sloped, {"dense_0": LABELS, "dense_2": LABELS}),
    "reshaped": (reshaped, {"dense_0": SCALE, "dense_3": SIGN}),
}  # fmt: skip


def network(name: str, seed: int = 0) -> tuple[Network, Symmetry]:
    d = draft(seed)
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
        # and half a move is none: each tensor left behind shows
        for t in net.tensors:
            unseen = name == "instance norm" and t == "conv_0/bias"
            if np.abs(moved.tensors[t] - net.tensors[t]).max() > 1e-3 and not unseen:
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
def test_the_rounding_bound_is_finite_and_holds(name: str) -> None:
    net, s = network(name)
    inputs = probe_inputs(net, np.random.default_rng(2), 4, 1.0)
    g = random_action(s, net, np.random.default_rng(3), sigma=0.3)
    single = Network({n: t.astype(np.float32) for n, t in g(net).tensors.items()}, net.ops, net.inputs, net.outputs)
    y, m = bounded(net, inputs)
    rounded, _ = bounded(single, inputs)
    for v in net.outputs:
        assert np.isfinite(m[v]).all()
        assert (np.abs(rounded[v] - y[v]) <= 16 * 2.0**-24 * len(net.ops) * m[v]).all()


@pytest.mark.parametrize(
    "name", [n for n in GROUPS if "norm" in n or "grouped" in n or "lstm" in n or "rnn" in n or n in ("gru", "words")]
)
def test_a_moved_copy_is_found(name: str) -> None:
    net, s = network(name)
    moved = random_action(s, net, np.random.default_rng(4))(net)
    single = moved.with_tensors({n: t.astype(np.float32) for n, t in moved.tensors.items()})
    like = net.with_tensors({n: t.astype(np.float32) for n, t in net.tensors.items()})
    assert compare(Run("a", "test", like), Run("b", "test", single)).verdict == "equivalent"


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("gauge", ["incoming", "exact"])
def test_canonical_forms_of_one_orbit_agree(gauge: str, name: str) -> None:
    net, s = network(name)
    moved = random_action(s, net, np.random.default_rng(6), sigma=0.7, powers_of_two=gauge == "exact")(net)
    one, other = (canonicalize(n, gauge).network for n in (net, moved))
    for t, value in one.tensors.items():
        np.testing.assert_allclose(other.tensors[t], value, rtol=1e-6, atol=1e-6 * np.abs(value).max(initial=1e-3), err_msg=t)
    assert apart(outputs(net), outputs(one)) < 1e-10


# moves outside the groups


def hidden(kind: str, factor_in: float, factor_out: float, **attrs) -> float:
    """What changes when what comes into unit 0 is multiplied, and what is read from it."""
    d = draft()
    net = d.network(flat(d, function(kind, **attrs)(d)))
    kernel, bias, last = (net.tensors[n].copy() for n in ("dense_0/kernel", "dense_0/bias", "dense_2/kernel"))
    kernel[0] *= factor_in
    bias[0] *= factor_in
    last[:, 0] *= factor_out
    return apart(outputs(net), outputs(changed(net, dense_0__kernel=kernel, dense_0__bias=bias, dense_2__kernel=last)))


EVEN, ODD, HOMOGENEOUS = (-1, 1), (-1, -1), (2, 0.5)


@pytest.mark.parametrize(
    ("kind", "attrs", "allowed"),
    [
        ("exp", {}, []), ("sin", {}, [ODD]), ("cos", {}, [EVEN]), ("abs", {}, [EVEN, HOMOGENEOUS]),
        ("square", {}, [EVEN, (2, 0.25)]), ("hard_tanh", {}, [ODD]), ("mish", {}, []), ("hard_swish", {}, []),
        ("celu", {"alpha": 0.5}, []), ("log_sigmoid", {}, []),
        ("thresholded_relu", {"theta": 0.1}, []), ("thresholded_relu", {"theta": 0.0}, [HOMOGENEOUS]),
        ("general_relu", {"max_value": 0.5}, []), ("general_relu", {"negative_slope": 0.3}, [HOMOGENEOUS]),
    ],
)  # fmt: skip
def test_what_a_function_lets_through_and_what_not(kind: str, attrs: dict, allowed: list) -> None:
    for factors in (EVEN, ODD, HOMOGENEOUS, (2, 0.25)):
        found = hidden(kind, *factors, **attrs)
        assert found < 1e-12 if factors in allowed else found > 1e-4, factors


def swapped(t: np.ndarray, axis: int, i: int, j: int) -> np.ndarray:
    order = np.arange(t.shape[axis])
    order[[i, j]] = j, i
    return np.take(t, order, axis)


def test_channels_of_two_groups_do_not_change_places() -> None:
    net, _ = network("grouped relu")
    for i, j, allowed in ((0, 1, True), (1, 2, False)):
        first = {n: swapped(net.tensors[n], 0, i, j) for n in ("conv_0/kernel", "conv_0/bias")}
        whole = np.zeros((9, 6, 2, 2))
        for o in range(9):
            whole[o, 2 * (o // 3) : 2 * (o // 3) + 2] = net.tensors["grouped_conv_2/kernel"][o]
        whole = swapped(whole, 1, i, j)
        blocks = np.stack([whole[o, 2 * (o // 3) : 2 * (o // 3) + 2] for o in range(9)])
        found = apart(outputs(net), outputs(net.with_tensors({**first, "grouped_conv_2/kernel": blocks})))
        assert found < 1e-12 if allowed else found > 1e-3
    sides = fold(net).symmetry.axes["grouped_conv_2/kernel"]
    assert [len(side.axis.parts) for side in sides[:2] if isinstance(side.axis, Concat)] == [3, 3]
    assert fold(net).network.tensors["grouped_conv_2/kernel"].shape == (9, 6, 2, 2)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "instance_norm", "group_norm"])
def test_what_a_norm_lets_through_and_what_not(kind: str) -> None:
    params = ("gamma",) if kind == "rms_norm" else ("gamma", "beta")
    d = draft()
    attrs = {"groups": 3} if kind == "group_norm" else {}
    net = d.network(flat(d, norm(kind, params, "tanh", **attrs)(d)))
    before, name = outputs(net), f"{kind}_1"

    def moved(factor: float, units: slice, gamma: float) -> float:
        tensors = {n: net.tensors[n].copy() for n in ("conv_0/kernel", "conv_0/bias", f"{name}/gamma")}
        for n, t in tensors.items():
            t[units] *= gamma if n.endswith("gamma") else factor
        return apart(before, outputs(net.with_tensors(tensors)))

    own = kind in ("rms_norm", "instance_norm")
    assert (moved(-1, slice(0, 1), -1) < 1e-12) == own  # one unit's sign
    assert moved(2, slice(0, 1), 0.5) > 1e-4  # eps holds every scale
    assert moved(-1, slice(None), -1) < 1e-12  # the common sign, which is no gauge here
    if kind == "group_norm":
        kernel, bias = (swapped(net.tensors[f"conv_0/{r}"], 0, 1, 2) for r in ("kernel", "bias"))
        both = {f"{name}/{r}": swapped(net.tensors[f"{name}/{r}"], 0, 1, 2) for r in params}
        last = net.tensors["dense_4/kernel"]
        last = swapped(last.reshape(3, -1, 6), 2, 1, 2).reshape(last.shape)
        tensors = {"conv_0/kernel": kernel, "conv_0/bias": bias, **both, "dense_4/kernel": last}
        assert apart(before, outputs(net.with_tensors(tensors))) > 1e-3  # channels of two groups
    # what all units have in common is not seen, and folded away
    shift = net.with_tensors({"conv_0/bias": net.tensors["conv_0/bias"] + 1.5})
    assert (apart(before, outputs(shift)) < 1e-12) == (kind != "rms_norm")
    if kind == "layer_norm":
        a, b = (fold(n).network.tensors["conv_0/bias"] for n in (net, shift))
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("kind", ["subtract", "average", "maximum", "minimum"])
def test_joins_tie_their_inputs(kind: str) -> None:
    d = draft()
    net = d.network(flat(d, joined(kind, "tanh")(d)))
    before = outputs(net)

    def flipped(*layers: str) -> float:
        tensors = {}
        for layer in layers:
            for role in ("kernel", "bias"):
                t = tensors[f"{layer}/{role}"] = net.tensors[f"{layer}/{role}"].copy()
                t[0] *= -1
        last = net.tensors["dense_5/kernel"].copy()
        last[:, 0] *= -1
        return apart(before, outputs(net.with_tensors({**tensors, "dense_5/kernel": last})))

    assert flipped("dense_0") > 1e-3
    assert (flipped("dense_0", "dense_2") < 1e-12) == (kind in ("subtract", "average"))


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_a_mask_holds_the_scale_of_what_it_looks_at(value: float) -> None:
    d = draft()
    v = d.op("relu", d.dense(d.input(5, 3), 4, bias=True))
    d.op("step_mask", v, mask_value=value)
    v = d.op("lstm", [d.op("masking", v, mask_value=value), "step_mask_2"], recurrent_params("lstm", 4, 3))
    s = derive(d.network(d.dense(v, 3)))
    assert s.group("dense_0") == ("relabelling, scale" if value == 0 else "relabelling")


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_unit_flips_in_its_candidate_alone(kind: str) -> None:
    net, _ = network({"simple_rnn": "simple rnn"}.get(kind, kind))
    u, gates = 5, GATES[kind]
    names = [f"{kind}_2/{r}" for r in ("kernel", "recurrent_kernel", "bias")]
    last = next(n for n in net.tensors if n.startswith("dense_") and n.endswith("kernel") and not n.startswith("dense_0/"))

    def flipped(blocks: list[int], columns: bool = True) -> float:
        tensors = {n: net.tensors[n].copy() for n in (*names, last)}
        for n in names:
            for b in blocks:
                tensors[n][b * u] *= -1
        if columns:
            tensors[names[1]][:, 0] *= -1
        tensors[last][:, ::u] *= -1
        return apart(outputs(net), outputs(net.with_tensors(tensors)))

    candidate = {"simple_rnn": 0, "lstm": 2, "gru": 2}[kind]
    for blocks in product([False, True], repeat=gates):
        chosen = [b for b in range(gates) if blocks[b]]
        found = flipped(chosen)
        assert found < 1e-12 if chosen == [candidate] else found > 1e-6, chosen
    assert flipped([candidate], columns=False) > 1e-6


@pytest.mark.parametrize(("act", "free"), [("relu", True), ("tanh", False)])
@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_unit_scales_where_its_activation_does(kind: str, act: str, free: bool) -> None:
    net, _ = network({"simple_rnn": "simple rnn"}.get(kind, kind) + (" relu" if act == "relu" else ""))
    u, candidate = 5, {"simple_rnn": 0, "lstm": 2, "gru": 2}[kind]
    last = next(n for n in net.tensors if n.startswith("dense_") and n.endswith("kernel") and not n.startswith("dense_0/"))
    tensors = {n: net.tensors[n].copy() for n in (*(f"{kind}_2/{r}" for r in ("kernel", "recurrent_kernel", "bias")), last)}
    for n, t in tensors.items():
        if n != last:
            t[candidate * u] *= 2
    tensors[f"{kind}_2/recurrent_kernel"][:, 0] /= 2
    tensors[last][:, ::u] /= 2
    assert (apart(outputs(net), outputs(net.with_tensors(tensors))) < 1e-12) == free


def test_an_embedding_is_anchored_by_its_tokens() -> None:
    net, s = network("words")
    assert s.axes["embedding_0/table"][0].axis.size == 8
    assert not isinstance(s.axes["embedding_0/table"][0].axis, Concat)
    table = swapped(net.tensors["embedding_0/table"], 0, 1, 2)
    assert apart(outputs(net), outputs(net.with_tensors({"embedding_0/table": table}))) > 1e-3


def test_a_dead_unit_of_a_recurrent_layer_is_dead_only_where_zero_stays_zero() -> None:
    for act in ("tanh", "sigmoid"):
        d = draft()
        params = recurrent_params("lstm", 3, 4)
        for t in params.values():
            t[1::4] = 0
        net = d.network(d.dense(d.op("lstm", d.input(5, 3), params, activation=act), 3, bias=True))
        folded = fold(net)
        assert apart(outputs(net), outputs(folded.network)) < 1e-12
        assert any(step.what == "dead" for step in folded.record) == (act == "tanh")


def test_units_that_nothing_reads_still_count_under_a_norm_over_units() -> None:
    d = draft()
    v = d.op("layer_norm", d.dense(d.input(4), 5, bias=True), {"gamma": np.r_[0.0, np.ones(4)]}, eps=1e-3)
    last = d.kernel(3, 5, bias=True)
    last["kernel"][:, 0] = 0
    net = d.network(d.op("dense", d.op("tanh", v), last))
    folded = fold(net)
    assert apart(outputs(net), outputs(folded.network)) < 1e-12
    assert not any(step.what == "dead" for step in folded.record)
