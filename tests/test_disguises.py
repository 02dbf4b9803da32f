"""Disguises by hand (tests/reference.py), motif by motif, each with what looks like it and is none.

Each is proved by a slow forward pass before canon is asked.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import Disguise, before_batch_norm, disguise_mlp, run, softmax_shift, turn
from strategies import Draft

from canon.compare import compare
from canon.network import Network
from canon.ops import Op
from canon.run import Run

ALIKE = ("equivalent", "identical")


def outputs(net: Network, scale: float = 1.0, samples: int = 6) -> np.ndarray:
    rng = np.random.default_rng(5)
    x = {v: scale * rng.standard_normal((samples, *s)) for v, s in net.inputs.items()}
    return run(net, x)[net.outputs[0]]


def verdict(a: Network, b: Network) -> str:
    return compare(Run("a", "test", a), Run("b", "test", b)).verdict


def assert_disguise(a: Network, b: Network) -> None:
    ya, yb = outputs(a), outputs(b)
    np.testing.assert_allclose(yb, ya, rtol=0, atol=1e-10 * max(np.abs(ya).max(), 1.0))
    assert np.ptp(ya) > 1e-6
    for dtype in (np.float64, np.float32):
        one, other = (n.with_tensors({k: t.astype(dtype) for k, t in n.tensors.items()}) for n in (a, b))
        found = compare(Run("a", "test", one), Run("b", "test", other))
        assert found.verdict == "equivalent", (dtype, found.reason, found.worst, found.check)


def assert_none(a: Network, b: Network) -> None:
    assert differ(a, b), "this is a disguise"
    assert verdict(a, b) not in ALIKE


def differ(a: Network, b: Network) -> bool:
    ya, yb = outputs(a, 4.0, 40), outputs(b, 4.0, 40)
    return bool(np.abs(ya - yb).max() > 1e-9 * np.abs(ya).max())


def off_by_one_weight(net: Network, name: str) -> Network:
    """The largest weight of a tensor that outputs depend on, off by a ten thousandth."""
    t = net.tensors[name]
    for flat in np.argsort(-np.abs(t), axis=None):
        wrong = t.copy()
        wrong.flat[flat] *= 1 + 1e-4
        if differ(net, net.with_tensors({name: wrong})):
            return net.with_tensors({name: wrong})
    raise AssertionError(f"nothing depends on {name}")


def draft(seed: int = 0, channels: str = "last") -> Draft:
    return Draft(np.random.default_rng(seed), channels)


def mlp(act: str, seed: int, sizes: tuple[int, ...] = (4, 7, 6, 3)) -> Network:
    d = draft(seed)
    v = d.input(sizes[0])
    for n in sizes[1:-1]:
        v = d.dense(v, n, bias=True)
        if act == "prelu":
            v = d.op("prelu", v, {"alpha": d.rng.uniform(0.1, 2.0, n) * d.rng.choice([-1, 1], n)})
        elif act == "prelu positive":
            v = d.op("prelu", v, {"alpha": d.rng.uniform(0.1, 2.0, n)})
        else:
            v = d.activation(v, act)
    return d.network(d.dense(v, sizes[-1], bias=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "act",
    [
        "relu", "leaky_relu", "tanh", "softsign", "sigmoid", "hard_sigmoid", "relu6", "prelu positive", "prelu", "elu",
        "selu", "gelu", "silu", "softplus",
    ],
)  # fmt: skip
def test_units_of_a_chain_moved_by_their_activation(act: str, seed: int) -> None:
    net = mlp(act, seed)
    move = Disguise(net, np.random.default_rng(seed + 100))
    disguise_mlp(move)
    assert_disguise(net, move.network())
    assert_none(net, off_by_one_weight(move.network(), "dense_2/kernel"))


@pytest.mark.parametrize("act", ["gelu", "elu", "selu", "silu", "softplus", "tanh", "sigmoid", "relu6"])
def test_a_rescaled_unit_where_the_activation_has_no_scale_is_none(act: str) -> None:
    net = mlp(act, 1)
    for unit in range(7):
        move = Disguise(net, np.random.default_rng(0))
        move.scale(unit, 1.5, ["dense_0/kernel", "dense_0/bias"], [("dense_2/kernel", 1)])
        if differ(net, move.network()):  # a unit of relu6 may be far from both of its bends
            break
    assert_none(net, move.network())


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "gelu", "elu", "silu", "softplus"])
def test_a_flipped_unit_where_the_activation_has_no_sign_is_none(act: str) -> None:
    net = mlp(act, 1)
    move = Disguise(net, np.random.default_rng(0))
    move.flip(2, ["dense_0/kernel", "dense_0/bias"], "dense_0/bias", [("dense_2/kernel", "dense_2/bias")])
    assert_none(net, move.network())


def test_a_flip_that_forgets_the_next_bias_is_none() -> None:
    net = mlp("sigmoid", 1)
    move = Disguise(net, np.random.default_rng(0))
    move.flip(2, ["dense_0/kernel", "dense_0/bias"], "dense_0/bias", [("dense_2/kernel", "dense_2/bias")])
    assert_none(net, move.network())


def test_two_units_swapped_in_one_layer_alone_are_none() -> None:
    net = mlp("relu", 1)
    kernel = net.tensors["dense_0/kernel"].copy()
    kernel[[0, 1]] = kernel[[1, 0]]
    assert_none(net, net.with_tensors({"dense_0/kernel": kernel}))


# batch norm


def normed(seed: int, variance: float = 1.0, eps: float = 1e-3, act: str = "relu") -> tuple[Network, Any]:
    d = draft(seed)
    v = d.dense(d.input(4), 6, bias=True)
    params = {"gamma": d.normal(6), "beta": d.normal(6), "mean": d.normal(6), "variance": variance * d.rng.uniform(0.5, 2, 6)}
    v = d.op("batch_norm", v, params, axis=-1, eps=eps)
    op = d.ops[-1]
    return d.network(d.dense(d.activation(v, act), 3, bias=True)), op


@pytest.mark.parametrize("act", ["relu", "gelu", "tanh", "sigmoid"])
def test_batch_norm_is_moved_by_its_rule_with_eps(act: str) -> None:
    net, norm = normed(0, act=act)
    move = Disguise(net, np.random.default_rng(0))
    before_batch_norm(move, "dense_0/kernel", "dense_0/bias", norm, np.array([2.0, -3.0, 0.5, 40.0, -0.1, 1.0]), 1e-3)
    assert_disguise(net, move.network())


def test_a_constant_in_front_of_a_batch_norm_is_in_its_mean_or_in_the_bias() -> None:
    net, _ = normed(0)
    move = Disguise(net, np.random.default_rng(0))
    shift = np.random.default_rng(0).standard_normal(6)
    move.tensors["dense_0/bias"] += shift
    move.tensors["batch_norm_1/mean"] += shift
    assert_disguise(net, move.network())


def test_a_plain_squared_variance_is_none() -> None:
    factors = np.array([2.0, -3.0, 4.0, 5.0, -2.0, 3.0])
    for variance in (1.0, 1e-3):
        net, norm = normed(0, variance)
        right, naive = Disguise(net, np.random.default_rng(0)), Disguise(net, np.random.default_rng(0))
        before_batch_norm(right, "dense_0/kernel", "dense_0/bias", norm, factors, 1e-3)
        before_batch_norm(naive, "dense_0/kernel", "dense_0/bias", norm, factors, 1e-3, naive=True)
        assert_disguise(net, right.network())
        assert_none(net, naive.network())


def test_a_changed_eps_is_none() -> None:
    net, _ = normed(0, eps=1e-3)
    other, _ = normed(0, eps=1e-5)
    for n in net.tensors:
        np.testing.assert_array_equal(net.tensors[n], other.tensors[n])
    assert_none(net, other)


@pytest.mark.parametrize("act", ["sigmoid", "relu6", "hard_sigmoid"])
@pytest.mark.parametrize("behind", ["relu", ""])
def test_a_flip_into_a_batch_norm_goes_into_its_mean(act: str, behind: str) -> None:
    d = draft(0)
    v = d.activation(d.dense(d.input(4), 6, bias=True), act)
    params = {"gamma": d.normal(6), "beta": d.normal(6), "mean": d.normal(6), "variance": d.rng.uniform(0.5, 2, 6)}
    v = d.op("batch_norm", v, params, axis=-1, eps=1e-3)
    net = d.network(d.dense(d.activation(v, behind) if behind else v, 3, bias=True))
    move = Disguise(net, np.random.default_rng(0))
    about = 3.0 if act == "relu6" else 0.0
    top = 6.0 if act == "relu6" else 1.0
    for unit in (0, 3, 4):  # y = top - x: gamma (x - mean) = -gamma (y - (top - mean))
        move.tensors["dense_0/kernel"][unit] *= -1
        move.tensors["dense_0/bias"][unit] = 2 * about - move.tensors["dense_0/bias"][unit]
        move.tensors["batch_norm_2/mean"][unit] = top - move.tensors["batch_norm_2/mean"][unit]
        move.tensors["batch_norm_2/gamma"][unit] *= -1
    assert_disguise(net, move.network())


# convolutions


def convs(padding: str, act: str = "relu6", seed: int = 0) -> Network:
    d = draft(seed)
    v = d.activation(d.op("conv", d.input(6, 5, 2), d.kernel(5, 2, 3, 3, bias=True), channels="last"), act)
    w = {"kernel": d.normal(4, 5, 2, 2), "bias": d.normal(4)}
    v = d.op("relu", d.op("conv", v, w, padding=padding, channels="last"))
    return d.network(d.dense(d.op("flatten", v), 3, bias=True))


@pytest.mark.parametrize(("act", "about"), [("relu6", (3.0, 3.0)), ("sigmoid", (0.0, 0.5)), ("hard_sigmoid", (0.0, 0.5))])
def test_a_flip_goes_through_a_convolution_but_not_through_padding(act: str, about: tuple[float, float]) -> None:
    for padding, holds in (("valid", True), ("same", False)):
        net = convs(padding, act)
        move = Disguise(net, np.random.default_rng(0))
        for unit in (1, 3):
            move.flip(unit, ["conv_0/kernel", "conv_0/bias"], "conv_0/bias", [("conv_2/kernel", "conv_2/bias")], about)
        (assert_disguise if holds else assert_none)(net, move.network())


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("channels", ["last", "first"])
def test_depthwise_layers_tie_labels_and_leave_two_scales(m: int, channels: str) -> None:
    d = draft(0, channels)
    n = 4
    v = d.op(
        "relu",
        d.op(
            "conv",
            d.input(*((6, 5, 2) if channels == "last" else (2, 6, 5))),
            d.kernel(n, 2, 3, 3, bias=True),
            channels=channels,
        ),
    )
    v = d.op(
        "depthwise_conv", v, {"kernel": d.normal(n * m, 1, 2, 2), "bias": d.normal(n * m)}, padding="same", channels=channels
    )
    v = d.op("conv", d.op("relu", v), d.kernel(3, n * m, 1, 1, bias=True), channels=channels)
    net = d.network(d.dense(d.op("flatten", d.op("relu", v), channels=channels), 2, bias=True))
    move = Disguise(net, np.random.default_rng(0))
    for unit, c in enumerate(move.sizes(n)):
        move.tensors["conv_0/kernel"][unit] *= c
        move.tensors["conv_0/bias"][unit] *= c
        move.tensors["depthwise_conv_2/kernel"][unit * m : unit * m + m] /= c
    for unit, c in enumerate(move.sizes(n * m)):
        move.scale(unit, c, ["depthwise_conv_2/kernel", "depthwise_conv_2/bias"], [("conv_4/kernel", 1)])
    along = [("depthwise_conv_2/kernel", 0, 0, m), ("depthwise_conv_2/bias", 0, 0, m), ("conv_4/kernel", 1, 0, m)]
    move.relabel("conv_0", n, [("conv_0/kernel", 0, 0, 1), ("conv_0/bias", 0, 0, 1), *along])
    for unit in range(n if m > 1 else 0):  # the copies inside a channel, one channel after the other
        move.relabel("each", m, [(name, axis, unit * m, 1) for name, axis, _, _ in along])
    assert_disguise(net, move.network())
    move.tensors["depthwise_conv_2/kernel"][[0, m]] = move.tensors["depthwise_conv_2/kernel"][[m, 0]]
    assert_none(net, move.network())


def test_flatten_of_either_layout_follows_its_channels() -> None:
    for channels in ("last", "first"):
        for kind in ("flatten", "reshape"):
            d = draft(0, channels)
            shape = (4, 3, 2) if channels == "last" else (2, 4, 3)
            v = d.op("relu", d.op("conv", d.input(*shape), d.kernel(5, 2, 2, 2, bias=True), channels=channels, padding="same"))
            v = d.op("flatten", v, channels=channels) if kind == "flatten" else d.op("reshape", v, shape=[-1])
            net = d.network(d.dense(v, 3, bias=True))
            move = Disguise(net, np.random.default_rng(0))
            w = f"{d.ops[-1].name}/kernel"
            last = channels == "last" or kind == "flatten"
            columns = [np.arange(60).reshape(12, 5)[:, c] if last else np.arange(60).reshape(5, 12)[c] for c in range(5)]
            order, old = np.random.default_rng(1).permutation(5), {n: t.copy() for n, t in move.tensors.items()}
            for new, was in enumerate(order):
                c = np.exp(move.rng.normal())
                for name in ("conv_0/kernel", "conv_0/bias"):
                    move.tensors[name][new] = old[name][was] * c
                move.tensors[w][:, columns[new]] = old[w][:, columns[was]] / c
            assert_disguise(net, move.network())


# structure


def test_a_residual_stage_moves_as_one() -> None:
    d = draft()
    stem = x = d.dense(d.input(4), 6, bias=True)
    x = d.op("relu", x)
    first = d.dense(x, 5, bias=True)
    second = d.dense(d.op("relu", first), 6, bias=True)
    x = d.op("relu", d.op("add", (x, second)))
    net = d.network(d.dense(x, 3, bias=True))
    head = d.ops[-1].name
    move = Disguise(net, np.random.default_rng(0))
    apart = Disguise(net, np.random.default_rng(0))
    for unit, c in enumerate(move.sizes(6)):
        reads = [(f"{first}/kernel", 1), (f"{head}/kernel", 1)]
        move.scale(unit, c, [f"{w}/{r}" for w in (stem, second) for r in ("kernel", "bias")], reads)
        apart.scale(unit, c, [f"{stem}/{r}" for r in ("kernel", "bias")], reads)  # the sum's other writer left behind
    both = [(f"{w}/{r}", 0, 0, 1) for w in (stem, second) for r in ("kernel", "bias")]
    move.relabel(stem, 6, [*both, (f"{first}/kernel", 1, 0, 1), (f"{head}/kernel", 1, 0, 1)])
    assert_disguise(net, move.network())
    assert_none(net, apart.network())


@pytest.mark.parametrize(("gate", "two"), [("silu", False), ("sigmoid", False), ("", True)])
def test_a_gated_product_has_one_scale_and_sign_a_bilinear_one_two(gate: str, two: bool) -> None:
    d = draft()
    v = d.input(4)
    g, u = d.dense(v, 5, bias=True), d.dense(v, 5, bias=False)
    x = d.op("multiply", (d.activation(g, gate) if gate else g, u))
    net = d.network(d.dense(x, 3, bias=True))
    head = d.ops[-1].name
    move, more = Disguise(net, np.random.default_rng(0)), Disguise(net, np.random.default_rng(0))
    for m, both in ((move, two), (more, True)):
        for unit, (c, e) in enumerate(zip(m.sizes(5), m.sizes(5), strict=True)):
            c *= -1 if unit % 2 else 1
            m.scale(unit, c, [f"{u}/kernel"], [(f"{head}/kernel", 1)])
            if both:
                m.scale(unit, -e, [f"{g}/kernel", f"{g}/bias"], [(f"{head}/kernel", 1)])
        m.relabel(
            g, 5, [(f"{g}/kernel", 0, 0, 1), (f"{g}/bias", 0, 0, 1), (f"{u}/kernel", 0, 0, 1), (f"{head}/kernel", 1, 0, 1)]
        )
    assert_disguise(net, move.network())
    if not two:
        assert_none(net, more.network())


def test_a_concatenation_moves_span_by_span() -> None:
    d = draft()
    v = d.input(4)
    a, b = d.dense(v, 5, bias=True), d.dense(v, 3, bias=True)
    both = d.op("concat", (d.op("relu", a), v, d.op("tanh", b)), axis=-1)
    net = d.network(d.dense(both, 3, bias=True))
    head = f"{d.ops[-1].name}/kernel"
    move = Disguise(net, np.random.default_rng(0))
    for unit, c in enumerate(move.sizes(5)):
        move.scale(unit, c, [f"{a}/kernel", f"{a}/bias"], [(head, 1)])
    for unit in (0, 2):
        move.scale(unit, -1.0, [f"{b}/kernel", f"{b}/bias"], [(head, 1)], start=9)
    move.relabel(a, 5, [(f"{a}/kernel", 0, 0, 1), (f"{a}/bias", 0, 0, 1), (head, 1, 0, 1)])
    move.relabel(b, 3, [(f"{b}/kernel", 0, 0, 1), (f"{b}/bias", 0, 0, 1), (head, 1, 9, 1)])
    assert_disguise(net, move.network())


def test_a_shared_layer_is_moved_once() -> None:
    d = draft()
    v = d.dense(d.input(4), 5, bias=True)
    once = d.dense(d.op("relu", v), 5, bias=True)
    shared = d.ops[-1]
    twice = d.op("dense", d.op("relu", once), dict(shared.params))
    net = d.network(d.dense(d.op("relu", twice), 3, bias=True))
    head = d.ops[-1].name
    move = Disguise(net, np.random.default_rng(0))
    for unit, c in enumerate(move.sizes(5)):  # on both sides of the shared kernel
        writes = [f"{x}/{r}" for x in (v, once) for r in ("kernel", "bias")]
        move.scale(unit, c, writes, [(f"{once}/kernel", 1), (f"{head}/kernel", 1)])
    rows = [(f"{x}/{r}", 0, 0, 1) for x in (v, once) for r in ("kernel", "bias")]
    move.relabel(v, 5, [*rows, (f"{once}/kernel", 1, 0, 1), (f"{head}/kernel", 1, 0, 1)])
    assert_disguise(net, move.network())


@pytest.mark.parametrize("between", ["", "linear", "dropout"])
def test_a_linear_space_may_be_turned(between: str) -> None:
    d = draft()
    v = d.dense(d.op("relu", d.dense(d.input(4), 6, bias=True)), 3, bias=True)
    first = d.ops[-1].name
    v = d.dense(d.op(between, v) if between else v, 5, bias=True)
    second = d.ops[-1].name
    net = d.network(d.dense(d.op("relu", v), 3, bias=True))
    move = Disguise(net, np.random.default_rng(0))
    turn(move, f"{first}/kernel", f"{first}/bias", f"{second}/kernel")
    t = move.rng.standard_normal(3)  # and moved: h + t, taken back in the next bias
    move.tensors[f"{first}/bias"] += t
    move.tensors[f"{second}/bias"] -= move.tensors[f"{second}/kernel"] @ t
    assert_disguise(net, move.network())
    move.tensors[f"{second}/kernel"][0, 0] *= 1 + 1e-4
    assert_none(net, move.network())


def test_logits_may_be_shifted_in_front_of_a_softmax_and_nowhere_else() -> None:
    for end, holds in (("softmax", True), ("", False), ("sigmoid", False)):
        d = draft()
        v = d.dense(d.op("relu", d.dense(d.input(4), 6, bias=True)), 3, bias=True)
        last = d.ops[-1].name
        net = d.network(d.op(end, v, **({"axis": -1} if end == "softmax" else {})) if end else v)
        move = Disguise(net, np.random.default_rng(0))
        softmax_shift(move, f"{last}/kernel", f"{last}/bias")
        (assert_disguise if holds else assert_none)(net, move.network())


# where nothing can be run, entries alone decide


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("off", [1e-4, 1e-5])
def test_one_weight_off_is_seen_without_running_the_networks(off: float, dtype: Any) -> None:
    net = mlp("relu", 2)
    last = net.ops[-1].output
    opaque = Op("opaque", "tail", (last,), "tail", {}, {"class_name": "Mystery", "shape": [3]})
    net = Network(net.tensors, (*net.ops, opaque), net.inputs, ("tail",))
    move = Disguise(net, np.random.default_rng(0))
    disguise_mlp(move)
    one = net.with_tensors({n: t.astype(dtype) for n, t in net.tensors.items()})
    right = compare(Run("a", "test", one), Run("b", "test", move.network(dtype)))
    assert (right.verdict, right.check["outputs"]) == ("equivalent", None)
    for name in net.tensors:
        t = move.tensors[name]
        at = np.unravel_index(np.abs(t).argmax(), t.shape)
        if not t[at]:
            continue
        t[at] *= 1 + off
        assert verdict(one, move.network(dtype)) not in ALIKE, name
        t[at] /= 1 + off


def test_a_bias_behind_a_reshape_counts_at_every_position() -> None:
    d = draft()
    v = d.op("reshape", d.dense(d.input(4), 6, bias=True), shape=[3, 2])
    v = d.dense(d.op("flatten", d.op("dense", v, d.kernel(3, 2, bias=True))), 2, bias=True)
    net = d.network(d.op("opaque", v, class_name="Mystery", shape=[2]))
    for unit in range(6):
        bias = net.tensors["dense_0/bias"].copy()
        bias[unit] += 1
        assert verdict(net, net.with_tensors({"dense_0/bias": bias})) not in ALIKE, unit


@pytest.mark.xfail(reason="maps that do not compose to a plain layer are not compared by their products", strict=True)
@pytest.mark.parametrize("kind", ["conv", "flatten dense", "concat"])
def test_a_turned_linear_space_of_any_make_is_equivalent(kind: str) -> None:
    d = draft(3)
    x = d.op("relu", d.op("conv", d.input(5, 5, 2), d.kernel(4, 2, 3, 3, bias=True), channels="last", padding="same"))
    v = d.op("conv", x, d.kernel(3, 4, 2, 2, bias=True), channels="last")
    if kind == "conv":
        v = d.op("flatten", d.op("relu", d.op("conv", v, d.kernel(4, 3, 2, 2, bias=True), channels="last")))
    elif kind == "flatten dense":
        v = d.op("relu", d.dense(d.op("flatten", v), 5, bias=True))
    else:
        w = d.op("conv", x, d.kernel(2, 4, 2, 2, bias=True), channels="last")
        v = d.op("concat", (v, w), axis=-1)
        v = d.op("flatten", d.op("relu", d.op("conv", v, d.kernel(4, 5, 1, 1, bias=True), channels="last")))
    net = d.network(d.dense(v, 3, bias=True))
    move = Disguise(net, np.random.default_rng(0))
    first = "conv_2"
    reader = net.ops[4 if kind == "flatten dense" else 3].name if kind != "concat" else "conv_5"
    q = np.linalg.qr(move.rng.standard_normal((3, 3)))[0] * np.array([1.0, 2.0, 0.5])
    t, r = move.tensors, f"{reader}/kernel"
    t[f"{first}/kernel"] = np.einsum("ab,b...->a...", q, t[f"{first}/kernel"])
    t[f"{first}/bias"] = q @ t[f"{first}/bias"]
    back = np.linalg.inv(q)
    if kind == "flatten dense":  # columns of one position stand side by side
        t[r] = np.einsum("opb,ba->opa", t[r].reshape(len(t[r]), -1, 3), back).reshape(t[r].shape)
    else:
        t[r][:, :3] = np.einsum("ob...,ba->oa...", t[r][:, :3], back)
    assert_disguise(net, move.network())


# units that do nothing, or the same as another


def spoiled(kind: str) -> Callable[[Network], Network]:
    def spoil(net: Network) -> Network:
        t = {n: x.copy() for n, x in net.tensors.items()}
        if kind == "zero in":
            t["dense_0/kernel"][1] = t["dense_0/bias"][1] = 0
        elif kind == "unread":
            t["dense_2/kernel"][:, 1] = 0
        elif kind == "constant":
            t["dense_0/kernel"][1] = 0
        elif kind == "duplicate":
            t["dense_0/kernel"][1], t["dense_0/bias"][1] = t["dense_0/kernel"][3], t["dense_0/bias"][3]
        elif kind == "twins":
            for name in ("dense_0/kernel", "dense_0/bias"):
                t[name][1] = t[name][3]
            t["dense_2/kernel"][:, 1] = t["dense_2/kernel"][:, 3]
        elif kind == "never active":
            t["dense_2/kernel"][1], t["dense_2/bias"][1] = -np.abs(t["dense_2/kernel"][1]), -8.0
        elif kind == "zero biases":
            t["dense_0/bias"][:] = t["dense_2/bias"][:] = 0
        elif kind == "all zero":
            t["dense_0/kernel"][:] = t["dense_0/bias"][:] = 0
        elif kind == "negligible":
            t["dense_0/kernel"][1] *= 1e-30
            t["dense_0/bias"][1] *= 1e-30
        return net.with_tensors(t)

    return spoil


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("act", ["relu", "tanh", "sigmoid", "relu6", "gelu"])
@pytest.mark.parametrize(
    "kind", ["zero in", "unread", "constant", "duplicate", "twins", "never active", "zero biases", "all zero", "negligible"]
)
def test_degenerate_units_divide_nothing_by_zero(kind: str, act: str) -> None:
    net = spoiled(kind)(mlp(act, 3))
    move = Disguise(net, np.random.default_rng(1), sigma=1.0)
    disguise_mlp(move)
    found = compare(Run("a", "test", net), Run("b", "test", move.network()))
    assert found.verdict in ALIKE, (found.reason, found.worst, found.check)
    assert all(np.isfinite(v) for v in (found.distance["matched"], found.distance["normalised"], found.worst["deviation"]))
