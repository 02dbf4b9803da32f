"""The fingerprint: one for the whole orbit, of any architecture; and what must not pass for it."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from reference import Disguise, disguise_mlp
from strategies import FEATURES, Drawn, element, networks

from canon.errors import NotFinite
from canon.fold import fold
from canon.network import Network
from canon.ops import Op
from canon.symmetry import derive
from canon.zoo.fingerprint import (
    Figures,
    change_of,
    exact_hash,
    figures,
    fingerprint,
    moments,
    structure,
)
from canon.zoo.kernels import ALL, SIZES, contract, power
from canon.zoo.steps import seeded

SINGLE = 2.0**-24


def cast(moved: Network, like: Network) -> Network:
    return moved.with_tensors({n: t.astype(like.tensors[n].dtype) for n, t in moved.tensors.items()})


def turnable(network: Network) -> set[str]:
    left = fold(network).symmetry.spaces
    return {s.name for s in derive(network).spaces.values() if s.linear and s.name not in left}


def disguised(drawn: Drawn, **how: object) -> Network:
    rng = np.random.default_rng(drawn.seed)
    moved = element(derive(drawn.network), rng, turned=turnable(drawn.network), **how)(drawn.network)  # type: ignore[arg-type]
    return cast(moved, drawn.network)


def gap(a: Figures, b: Figures) -> float:
    """The largest difference, in units of what a copy's may be."""
    assert a.kind == b.kind
    if not a.kind:
        return 0.0
    off, room = np.abs(np.subtract(a.values, b.values)), np.maximum(a.room, b.room)
    return float((off / room).max())


def noisy(network: Network, size: float, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    return network.with_tensors(
        {n: (t * (1 + size * rng.standard_normal(t.shape))).astype(t.dtype) for n, t in network.tensors.items()}
    )


def dense_net(act: str, sizes: tuple[int, ...] = (6, 9, 8, 4), seed: int = 0, dtype: type = np.float32) -> Network:
    rng = np.random.default_rng(seed)
    tensors, ops, src = {}, [], "x"
    for i, (n, m) in enumerate(pairwise(sizes)):
        tensors |= {f"w{i}": rng.standard_normal((m, n)).astype(dtype), f"b{i}": rng.standard_normal(m).astype(dtype)}
        ops.append(Op("dense", f"d{i}", (src,), f"z{i}", {"kernel": f"w{i}", "bias": f"b{i}"}))
        src = f"z{i}"
        if i < len(sizes) - 2:
            params = {}
            if act == "prelu":
                tensors[f"a{i}"] = rng.standard_normal(m).astype(dtype)
                params = {"alpha": f"a{i}"}
            ops.append(Op(act, f"f{i}", (src,), f"h{i}", params, {"alpha": 0.2} if act == "leaky_relu" else {}))
            src = f"h{i}"
    return Network(tensors, tuple(ops), {"x": (sizes[0],)}, (src,))


# what must stay


def test_every_disguise_of_every_architecture_has_the_same_fingerprint() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=200)
    @given(networks())
    def check(drawn: Drawn) -> None:
        a, b = fingerprint(drawn.network), fingerprint(disguised(drawn))
        assert a.structure == b.structure
        assert gap(a.figures, b.figures) <= 1, (a.figures, b.figures)
        if "" not in (a.outputs.kind, b.outputs.kind):  # either may be so rescaled that its bound is too wide
            assert gap(a.outputs, b.outputs) <= 1
        assert gap(moments(fold(drawn.network)), moments(fold(disguised(drawn)))) <= 1
        seen.update([*drawn.features, a.figures.kind, f"outputs: {a.outputs.kind}"])
        # figures far finer than a factor of two, or they would propose everything
        if a.figures.kind == "paths":
            seen["narrow"] += max(a.figures.room[:2]) < 0.01

    check()
    assert not {f: seen[f] for f in (*FEATURES, "paths", "moments", "outputs: outputs", "narrow") if not seen[f]}


@settings(max_examples=60)
@given(networks(dtypes=(np.float64,), without=("linear space",)))
def test_what_moves_no_bit_has_one_exact_hash(drawn: Drawn) -> None:
    moved = disguised(drawn, exact=True)
    assert exact_hash(drawn.network) == exact_hash(moved)
    rng = np.random.default_rng(drawn.seed)
    name = max(drawn.network.tensors, key=lambda n: drawn.network.tensors[n].size)
    t = drawn.network.tensors[name].copy()
    at = tuple(rng.integers(0, s) for s in t.shape)
    t[at] = np.nextafter(t[at], np.inf)
    if any(name in op.params.values() for op in drawn.network.ops if op.kind != "opaque"):
        assert exact_hash(drawn.network) != exact_hash(drawn.network.with_tensors({name: t}))


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "tanh", "sigmoid", "prelu", "gelu"])
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_disguises_by_hand(act: str, sigma: float) -> None:
    net = dense_net(act)
    hand = Disguise(net, np.random.default_rng(1))
    hand.sigma = sigma
    disguise_mlp(hand)
    a, b = fingerprint(net), fingerprint(hand.network(np.float32))
    assert a.structure == b.structure
    assert a.figures.kind == "paths"
    assert gap(a.figures, b.figures) <= 1
    # rounding alone moves a figure far less than the bound allows: what is proved is the bound, not the drift
    assert np.abs(np.subtract(a.figures.values, b.figures.values)).max() < 4e-7
    wrong = hand.network(np.float32)
    wrong = wrong.with_tensors({"b0": wrong.tensors["b0"] * np.float32(-1 if act != "tanh" else 1.001)})
    assert gap(a.figures, fingerprint(wrong).figures) > 1


# what must differ


@pytest.mark.parametrize("act", ["relu", "tanh", "sigmoid"])
def test_noise_of_a_millionth_differs_in_float64(act: str) -> None:
    net = dense_net(act, dtype=np.float64)
    a, b = fingerprint(net), fingerprint(noisy(net, 1e-6))
    assert a.structure == b.structure
    assert gap(a.figures, b.figures) > 1e3
    assert gap(a.figures, fingerprint(noisy(net, 1e-10)).figures) > 1


@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_noise_beyond_rounding_differs_in_float32(act: str) -> None:
    net = dense_net(act)
    assert gap(fingerprint(net).figures, fingerprint(noisy(net, 1e-4)).figures) > 1
    near = fingerprint(noisy(net, 1e-6)).figures  # within what a proof looks at, and yet no accident
    drift = np.abs(np.subtract(fingerprint(net).figures.values, near.values))
    assert gap(fingerprint(net).figures, near) < 1
    assert drift.max() > 2e-8


def test_signs_and_places_count() -> None:
    net = dense_net("relu")
    a = fingerprint(net).figures
    flipped = net.with_tensors({"w1": -net.tensors["w1"]})
    other = fingerprint(flipped).figures
    np.testing.assert_allclose(other.values[:3], a.values[:3], rtol=1e-12)  # sizes are the same: even powers cannot tell
    assert gap(a, other) > 1
    swapped = net.with_tensors({"w0": net.tensors["w0"][:, ::-1]})  # inputs have names
    assert gap(a, fingerprint(swapped).figures) > 1


def test_structure_tells_architectures_apart() -> None:
    nets = [dense_net("relu"), dense_net("tanh"), dense_net("relu", (6, 8, 9, 4)), dense_net("relu", (6, 9, 4))]
    assert len({fingerprint(n).structure for n in nets}) == len(nets)
    renamed = dense_net("relu")
    ops = tuple(Op(o.kind, f"other {o.name}", o.inputs, o.output, o.params, o.attrs) for o in renamed.ops)
    assert structure(fold(Network(renamed.tensors, ops, renamed.inputs, renamed.outputs)).network) == structure(
        fold(nets[0]).network
    )


def test_nan_is_refused() -> None:
    net = dense_net("relu")
    bad = net.tensors["w1"].copy()
    bad[0, 0] = np.nan
    with pytest.raises(NotFinite, match="w1"):
        fingerprint(net.with_tensors({"w1": bad}))


# tolerances


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_change_within_the_bound_of_a_proof_is_within_the_tolerance(dtype: type) -> None:
    """The worst that a proof lets pass: every entry off by its bound, all in one direction."""
    net = dense_net("relu", dtype=dtype)
    unit = float(np.finfo(dtype).eps) / 2
    grown = net.with_tensors({n: t.astype(np.float64) * (1 + 15.9 * unit) for n, t in net.tensors.items()})
    a, b = figures(fold(net)), figures(fold(grown))
    assert gap(a, Figures(a.kind, b.values, (0.0,) * len(b.values))) <= 1
    assert gap(a, Figures(a.kind, figures(fold(noisy(grown, 64 * unit))).values, (0.0,) * len(b.values))) > 0.05
    assert change_of(SINGLE) == pytest.approx(16 * SINGLE, rel=1e-5)


def test_half_floats_of_a_network_lie_within_tolerance_and_strangers_do_not() -> None:
    net = dense_net("relu", (20, 30, 30, 5))
    net = net.with_tensors({n: t * np.float32(0.05) for n, t in net.tensors.items()})
    half = net.with_tensors({n: t.astype(np.float16) for n, t in net.tensors.items()})
    stranger = dense_net("relu", (20, 30, 30, 5), seed=1)
    a = fingerprint(net).figures
    assert gap(a, fingerprint(half).figures) <= 1
    assert gap(fingerprint(half).figures, fingerprint(stranger).figures) > 1


# the kernel, beside an obvious one


def brute(net: Network, p: int) -> float:
    """Every path, one by one, of a chain of two dense layers with nothing between that matters."""
    w, b, v, d = (net.tensors[n].astype(np.float64) for n in ("w0", "b0", "w1", "b1"))
    x = seeded((w.shape[1],), "in 0")
    o = seeded((2, len(v)), "out")[0]
    total = 0.0
    f, g = w.shape[1] ** (p / 2 - 1), v.shape[1] ** (p / 2 - 1)
    for k in range(len(v)):
        total += o[k] ** p * d[k] ** p
        for j in range(len(w)):
            total += g * (o[k] * v[k, j] * b[j]) ** p
            for i in range(w.shape[1]):
                total += f * g * (o[k] * v[k, j] * w[j, i] * x[i]) ** p
    return total


def test_the_kernel_sums_over_all_paths() -> None:
    net = dense_net("relu", (3, 4, 2), dtype=np.float64)
    found = fingerprint(net).figures.values
    s = {p: brute(net, p) for p in (1, 2, 3, 4)}
    np.testing.assert_allclose(found[:2], [np.log(s[2]) / 2, np.log(s[4]) / 4], rtol=1e-12)
    assert found[4] == pytest.approx(s[3] / np.sqrt(s[2] * s[4]), rel=1e-12)
    sizes = np.exp(found[2])
    assert found[3] == pytest.approx(s[1] / sizes, rel=1e-12)


@pytest.mark.parametrize("order", ["rows", "columns", "window last", "window first"])
def test_contraction_in_blocks_in_any_memory_order(order: str) -> None:
    rng = np.random.default_rng(0)
    shape = {"rows": (300, 700), "columns": (300, 700), "window last": (90, 100, 3, 3), "window first": (90, 100, 3, 3)}[order]
    t = rng.standard_normal(shape).astype(np.float32)
    if order == "columns":
        t = np.asfortranarray(t)
    if order == "window first":
        t = np.ascontiguousarray(t.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    flow = {key: rng.random((1, 2 if key not in (1, 3) else 1, 1, shape[1])) for key in ALL}
    found = contract(t[None], flow)
    for key in ALL:
        wanted = np.einsum("oi...,rpi->rpo", power(t.astype(np.float64), key), flow[key][0]) if t.ndim == 2 else np.einsum(
            "oiab,rpi->rpo", power(t.astype(np.float64), key), flow[key][0]
        )  # fmt: skip
        np.testing.assert_allclose(found[key][0], wanted, rtol=1e-10, atol=1e-9)
    assert set(found) == {SIZES, 1, 2, 3, 4}
