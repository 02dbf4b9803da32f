"""Operations that families brought in: forward against torch and transformers, groups by random moves."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from strategies import Draft
from test_ops_groups import apart, dense, draft, flat, image, outputs
from test_ops_more import normal, run
from torch.nn import functional as F

from canon.action import random_action
from canon.errors import ShapeConflict
from canon.fold import fold
from canon.forward import bounded, probe_inputs
from canon.network import Network
from canon.ops import Op, kind_of
from canon.symmetry import derive

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.t5.modeling_t5 import T5Attention


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pooling_that_counts_windows_which_end_outside(window: int, stride: int) -> None:
    for n in range(window, 12):
        x = normal(2, 3, n, n + 1)
        wanted = F.max_pool2d(torch.from_numpy(x), window, stride, ceil_mode=True).numpy()
        attrs = {"pool": [window] * 2, "strides": [stride] * 2, "padding": "ceil", "channels": "first"}
        np.testing.assert_array_equal(run("max_pool", x, **attrs), wanted)
    op = Op("max_pool", "pool", ("x",), "y", {}, attrs)
    assert kind_of(op).shape(op, [(3, None, 8)], {})[1] is None


def test_channel_shuffle() -> None:
    for groups, axis in ((2, 0), (3, 0), (3, -1)):
        x = normal(2, 12, 5, 12)
        wanted = F.channel_shuffle(torch.from_numpy(x if axis == 0 else np.moveaxis(x, -1, 1)), groups).numpy()
        found = run("channel_shuffle", x, groups=groups, axis=axis)
        np.testing.assert_array_equal(found if axis == 0 else np.moveaxis(found, -1, 1), wanted)
    with pytest.raises(ShapeConflict):
        run("channel_shuffle", normal(2, 5, 3), groups=2, axis=0)


def test_noise_by_state_is_the_variance_of_a_sum() -> None:
    x, log_std = normal(3, 5), 0.3 * normal(5, 2, seed=2)
    found = run("state_noise", x, {"log_std": log_std})
    noise = np.exp(log_std) * np.random.default_rng(1).standard_normal((200_000, 5, 2))
    np.testing.assert_allclose(found, np.einsum("bu,nua->nba", x, noise).var(axis=0), rtol=0.02)
    with pytest.raises(ShapeConflict):
        run("state_noise", x, {"log_std": log_std[1:]})


def test_a_norm_whose_gamma_is_counted_from_one() -> None:
    norm = GemmaRMSNorm(6, eps=1e-4).double()
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(normal(6)))
    x = normal(2, 4, 6, seed=3)
    wanted = norm(torch.from_numpy(x)).detach().numpy()
    found = run("rms_norm", x, {"gamma": normal(6)}, eps=1e-4, offset=1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)  # it is computed in float32 there
    plain = run("rms_norm", x, {"gamma": normal(6)}, eps=1e-4)
    assert np.abs(plain - wanted).max() > 0.1


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20)])
def test_distances_fall_into_the_buckets_of_t5(bidirectional: bool, buckets: int, longest: int) -> None:
    ahead = np.arange(-300, 301)
    op = Op("relative_bias", "bias", ("x",), "y", {}, {"bidirectional": bidirectional, "max_distance": longest})
    found = kind_of(op).bucket(op, ahead, buckets)  # type: ignore[attr-defined]
    wanted = T5Attention._relative_position_bucket(torch.from_numpy(ahead), bidirectional, buckets, longest)
    np.testing.assert_array_equal(found, wanted.numpy())


def test_experts() -> None:
    scores, x, gates = normal(2, 7, 5), normal(2, 7, 15, seed=2), []
    for renormalize in (False, True):
        weights = run("top_weights", scores, k=2, renormalize=renormalize)
        top, which = torch.from_numpy(scores).softmax(-1).topk(2, -1)
        top = top / top.sum(-1, keepdim=True) if renormalize else top
        wanted = torch.zeros(2, 7, 5, dtype=torch.float64).scatter(-1, which, top).numpy()
        np.testing.assert_allclose(weights, wanted, rtol=1e-12)
        gates.append(weights)
    found = run("route", [x, gates[1]])
    np.testing.assert_allclose(found.reshape(2, 7, 5, 3), x.reshape(2, 7, 5, 3) * gates[1][..., None])
    for wrong in (normal(2, 7, 4), normal(2, 6, 5)):
        with pytest.raises(ShapeConflict):
            run("route", [x, wrong])


def test_positions_and_tokens_in_front() -> None:
    x, table = normal(2, 4, 3), normal(9, 3, seed=2)
    np.testing.assert_array_equal(run("add_positions", x, {"table": table}), x + table[:4])
    np.testing.assert_array_equal(run("add_positions", x, {"table": table}, offset=2), x + table[2:6])
    with pytest.raises(ShapeConflict):
        run("add_positions", x, {"table": table}, offset=6)
    found = run("prepend_tokens", x, {"tokens": table[:2]})
    np.testing.assert_array_equal(found, np.concatenate([np.broadcast_to(table[:2], (2, 2, 3)), x], axis=1))


# groups


def shuffled(d: Draft) -> str:
    v = d.op("channel_shuffle", image(d, 6, "relu"), groups=2, axis=-1)
    return flat(d, d.activation(d.op("conv", v, d.kernel(4, 6, 2, 2, bias=True)), "relu"))


def noisy(d: Draft) -> str:
    v = dense(d, d.input(4), 5, "tanh")
    return d.op("state_noise", v, {"log_std": 0.3 * d.normal(5, 2)})


def counted(d: Draft) -> str:
    v = d.op("rms_norm", dense(d, d.input(3, 4), 5, "tanh"), {"gamma": 0.3 * d.normal(5)}, eps=0.1, axes=[-1], offset=1.0)
    return d.dense(v, 3, bias=True)


def experts(d: Draft) -> str:
    x = dense(d, d.input(6, 4), 5, "tanh")
    weights = d.op("top_weights", d.dense(x, 3, bias=False), k=2, renormalize=True)
    hidden = d.op("relu", d.dense(x, 12, bias=False))
    return d.dense(d.op("route", [hidden, weights]), 4, bias=False)


def positions(d: Draft) -> str:
    v = d.op("add_positions", dense(d, d.input(5, 4), 6, "tanh"), {"table": d.normal(8, 6)}, offset=1)
    return d.dense(d.op("prepend_tokens", v, {"tokens": d.normal(1, 6)}), 3, bias=True)


GROUPS: dict[str, tuple[Callable[[Draft], str], list[str]]] = {
    "shuffle": (shuffled, ["relabelling, scale"] * 3),  # both halves in front, and what is behind
    "noise": (noisy, ["relabelling, sign"]),
    "norm": (counted, ["relabelling, sign"]),
    "experts": (experts, ["relabelling, sign", "relabelling, scale", "relabelling, scale"]),  # a scale a hidden unit of each
    "positions": (positions, ["relabelling, sign"]),
}  # fmt: skip


def network(name: str) -> Network:
    d = draft()
    return d.network(GROUPS[name][0](d))


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    net = network(name)
    symmetry = derive(net)
    assert [symmetry.group(space) for space in symmetry.spaces] == GROUPS[name][1]
    before = outputs(net)
    for seed in range(3):
        moved = random_action(symmetry, net, np.random.default_rng(seed), sigma=0.7)(net)
        assert apart(before, outputs(moved)) < 1e-10
        for t in net.tensors:  # and half a move is none
            if np.abs(moved.tensors[t] - net.tensors[t]).max() > 1e-3:
                assert apart(before, outputs(moved.with_tensors({t: net.tensors[t]}))) > 1e-8, t
    assert apart(before, outputs(fold(net).network)) < 1e-10


@pytest.mark.parametrize("name", GROUPS)
def test_rounding_bounds(name: str) -> None:
    net = network(name)
    inputs = probe_inputs(net, np.random.default_rng(2), 4, 1.0)
    single = net.with_tensors({n: t.astype(np.float32) for n, t in net.tensors.items()})
    (y, m), (rounded, _) = bounded(net, inputs), bounded(single, inputs)
    for v in net.outputs:
        assert np.isfinite(m[v]).all()
        assert (np.abs(rounded[v] - y[v]) <= 16 * 2.0**-24 * len(net.ops) * m[v]).all()
