"""A hundred planted copies, moved by hand (tests/reference.py): each is `equivalent`, each live unit finds its partner."""

import numpy as np
import pytest
from reference import Disguise, before_batch_norm, disguise_mlp, run
from strategies import Draft

from canon.compare import Options, compare
from canon.network import Network
from canon.run import Run

COPIES = 25


def mlp(rng: np.random.Generator) -> tuple[Network, Disguise]:
    """Layers of relu, tanh, sigmoid, relu6 and prelu, 20 to 32 wide: scales, signs, flips about other points than zero."""
    d = Draft(rng)
    v = d.input(12)
    for act, n in (("relu", 32), ("tanh", 24), ("sigmoid", 24), ("relu6", 24), ("prelu", 20)):
        v = d.activation(d.dense(v, n, bias=True), act) if act != "prelu" else positive_prelu(d, d.dense(v, n, bias=True))
    net = d.network(d.dense(v, 5, bias=True))
    move = Disguise(net, rng)
    disguise_mlp(move)
    return net, move


def positive_prelu(d: Draft, v: str) -> str:
    return d.op("prelu", v, {"alpha": d.rng.uniform(0.1, 0.9, d.shapes[v])})


def conv(d: Draft, v: str, out: int, k: int = 3, bias: bool = False) -> str:
    return d.op("conv", v, d.kernel(out, d.width(v), k, k, bias=bias), padding="same", channels="last")


def cnn(rng: np.random.Generator) -> tuple[Network, Disguise]:
    """conv, batch norm, relu, pool, conv, batch norm, tanh, depthwise, flatten, dense: by batch norm's rule with eps."""
    d = Draft(rng)
    a = conv(d, d.input(8, 8, 2), 12, bias=True)
    b = d.op("batch_norm", a, norm_params(d, 12), axis=-1, eps=1e-3)
    v = d.op("max_pool", d.op("relu", b), pool=[2, 2], channels="last")
    e = conv(d, v, 16)
    f = d.op("batch_norm", e, norm_params(d, 16), axis=-1, eps=1e-5)
    v = d.op("tanh", f)
    g = d.op("depthwise_conv", v, {"kernel": d.normal(16, 1, 3, 3), "bias": d.normal(16)}, padding="same", channels="last")
    h = d.dense(d.op("flatten", d.op("relu", g), channels="last"), 4, bias=True)
    net = d.network(h)
    m = Disguise(net, rng)
    norms = {op.name: op for op in net.ops}
    for conv_op, norm, eps in ((a, b, 1e-3), (e, f, 1e-5)):
        n = len(m.tensors[f"{norm}/gamma"])
        # c^2 (variance + eps) >= eps has to hold
        factors = np.maximum(m.sizes(n), np.sqrt(2 * eps / m.tensors[f"{norm}/variance"])) * np.where(m.toss(n), -1, 1)
        before_batch_norm(m, f"{conv_op}/kernel", f"{conv_op}/bias" if conv_op == a else None, norms[norm], factors, eps)
    for unit, c in enumerate(m.sizes(12)):  # behind the first norm
        m.scale(unit, c, [f"{b}/gamma", f"{b}/beta"], [(f"{e}/kernel", 1)])
    for unit in np.flatnonzero(m.toss(16)):  # behind the second, through tanh, into windows of single channels
        for name in (f"{f}/gamma", f"{f}/beta", f"{g}/kernel"):
            m.tensors[name][unit] *= -1
    for unit, c in enumerate(m.sizes(16)):  # behind the depthwise layer: the flattened columns of a channel stand 16 apart
        m.tensors[f"{g}/kernel"][unit] *= c
        m.tensors[f"{g}/bias"][unit] *= c
        m.tensors[f"{h}/kernel"][:, unit::16] /= c
    norm_axes = [(f"{b}/{r}", 0, 0, 1) for r in ("gamma", "beta", "mean", "variance")]
    m.relabel(a, 12, [(f"{a}/kernel", 0, 0, 1), (f"{a}/bias", 0, 0, 1), *norm_axes, (f"{e}/kernel", 1, 0, 1)])
    norm_axes = [(f"{f}/{r}", 0, 0, 1) for r in ("gamma", "beta", "mean", "variance")]
    own = [(f"{g}/{r}", 0, 0, 1) for r in ("kernel", "bias")]
    m.relabel(e, 16, [(f"{e}/kernel", 0, 0, 1), *norm_axes, *own])
    columns = m.tensors[f"{h}/kernel"].reshape(4, 16, 16)  # (out, positions, channels)
    m.tensors[f"{h}/kernel"] = columns[:, :, np.argsort(m.moved[e])].reshape(4, 256)
    return net, m


def norm_params(d: Draft, n: int) -> dict[str, np.ndarray]:
    return {
        "gamma": d.rng.uniform(0.5, 1.5, n), "beta": d.normal(n), "mean": d.normal(n), "variance": d.rng.uniform(0.3, 2.0, n),
    }  # fmt: skip


def residual(rng: np.random.Generator) -> tuple[Network, Disguise]:
    """Twelve blocks on a stream of 64: relu(dense), dense, add. One labelling, scale and sign for the whole stream."""
    d = Draft(rng)
    stem = x = d.dense(d.input(16), 64, bias=True)
    blocks = []
    for _ in range(12):
        first = d.dense(x, 64, bias=True)
        second = d.op("dense", d.op("relu", first), {"kernel": d.normal(64, 64, fan_in=512.0), "bias": d.normal(64)})
        x = d.op("add", (x, second))
        blocks.append((first, second))
    head = d.dense(d.op("tanh", d.dense(x, 24, bias=True)), 3, bias=True)
    out = d.ops[-3].name
    net = d.network(head)
    m = Disguise(net, rng)
    writers = [stem, *(s for _, s in blocks)]
    readers = [*(f for f, _ in blocks), out]
    for unit, c in enumerate(m.sizes(64) * np.where(m.toss(64), -1, 1)):
        for w in writers:
            m.tensors[f"{w}/kernel"][unit] *= c
            m.tensors[f"{w}/bias"][unit] *= c
        for r in readers:
            m.tensors[f"{r}/kernel"][:, unit] /= c
    m.relabel(
        stem,
        64,
        [(f"{w}/{r}", 0, 0, 1) for w in writers for r in ("kernel", "bias")] + [(f"{r}/kernel", 1, 0, 1) for r in readers],
    )
    for first, second in blocks:
        for unit, c in enumerate(m.sizes(64)):
            m.scale(unit, c, [f"{first}/kernel", f"{first}/bias"], [(f"{second}/kernel", 1)])
        m.relabel(first, 64, [(f"{first}/kernel", 0, 0, 1), (f"{first}/bias", 0, 0, 1), (f"{second}/kernel", 1, 0, 1)])
    for unit in np.flatnonzero(m.toss(24)):
        m.flip(unit, [f"{out}/kernel", f"{out}/bias"], f"{out}/bias", [(f"{head}/kernel", f"{head}/bias")])
    m.relabel(out, 24, [(f"{out}/kernel", 0, 0, 1), (f"{out}/bias", 0, 0, 1), (f"{head}/kernel", 1, 0, 1)])
    return net, m


def densenet(rng: np.random.Generator) -> tuple[Network, Disguise]:
    """Five layers of growth 12, each reading everything before it side by side; relu and tanh in turn."""
    d = Draft(rng)
    features = [d.input(8)]
    layers: list[tuple[str, str]] = []
    for i in range(5):
        v = features[0] if len(features) == 1 else d.op("concat", features, axis=-1)
        act = ("relu", "tanh")[i % 2]
        layers.append((d.dense(v, 12, bias=True), act))
        features.append(d.op(act, layers[-1][0]))
    head = d.dense(d.op("concat", features, axis=-1), 4, bias=True)
    net = d.network(head)
    m = Disguise(net, rng)
    names = [*(n for n, _ in layers), head]
    for i, (name, act) in enumerate(layers):
        start = 8 + 12 * i
        readers = names[i + 1 :]
        factors = m.sizes(12) if act == "relu" else np.where(m.toss(12), -1.0, 1.0)
        for unit, c in enumerate(factors):
            m.scale(unit, c, [f"{name}/kernel", f"{name}/bias"], [(f"{r}/kernel", 1) for r in readers], start)
        m.relabel(
            name, 12, [(f"{name}/kernel", 0, 0, 1), (f"{name}/bias", 0, 0, 1), *((f"{r}/kernel", 1, start, 1) for r in readers)]
        )
    return net, m


@pytest.mark.parametrize("make", [mlp, cnn, residual, densenet])
def test_planted_copies_are_found_unit_by_unit(make) -> None:
    live = 0
    for copy in range(COPIES):
        rng = np.random.default_rng([copy, 7])
        net, moved = make(rng)
        dtype = np.float32 if copy % 2 else np.float64
        a = net.with_tensors({n: t.astype(dtype) for n, t in net.tensors.items()})
        b = moved.network(dtype)
        if not copy:  # the disguise is one: by a forward pass of our own, in float64
            x = {v: rng.standard_normal((2, *s)) for v, s in net.inputs.items()}
            (out,) = net.outputs
            before, after = run(net, x)[out], run(moved.network(), x)[out]
            np.testing.assert_allclose(after, before, rtol=0, atol=1e-11 * max(np.abs(before).max(), 1))
            assert np.ptp(before) > 1e-3
        found = compare(Run("a", "test", a), Run("b", "test", b), Options(units=True))
        assert found.verdict == "equivalent", (copy, found.reason, found.worst, found.check)
        assert found.check["outputs"] is None or found.check["outputs"] <= 1
        assert {u.space for u in found.units} == set(moved.moved)
        for u in found.units:
            if "dead" not in u.flags and "negligible" not in u.flags:
                live += 1
                assert u.b == moved.moved[u.space][u.a], (copy, u)
    assert live > COPIES * 20


def test_one_wrong_weight_in_a_planted_copy_is_seen() -> None:
    for make in (mlp, cnn, residual, densenet):
        net, moved = make(np.random.default_rng(3))
        name = max(moved.tensors, key=lambda n: moved.tensors[n].size)
        at = np.unravel_index(np.abs(moved.tensors[name]).argmax(), moved.tensors[name].shape)
        moved.tensors[name][at] *= 1 + 1e-4
        assert compare(Run("a", "test", net), Run("b", "test", moved.network())).verdict != "equivalent"
