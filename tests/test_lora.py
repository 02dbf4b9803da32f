"""LoRA pairs, B A: any invertible matrix between the two maps is a freedom, alone in an adapter and beside a base network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from canon.compare import Options, compare
from canon.fold import fold
from canon.formats import read, write
from canon.forward import forward, probe_inputs
from canon.network import Network
from canon.ops import Op
from canon.run import Run
from canon.transform import align, canonicalize, teleport

Arrays = dict[str, NDArray[Any]]
FRONT = "base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.weight"
SIZES = pytest.mark.parametrize("width", [24, 2048])
"""Of which the first pairs are composed, and the others, whose products would be far larger than they are, held apart."""


def adapter(width: int, rank: int = 6, layers: int = 2, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for i in range(layers):
        for name, out in (("q", width), ("v", width // 2)):
            found[FRONT.format(i, name, "A")] = rng.standard_normal((rank, width)) / width**0.5
            found[FRONT.format(i, name, "B")] = 0.02 * rng.standard_normal((out, rank))
    return {name: t.astype(np.float32) for name, t in found.items()}


def turned(found: Arrays, seed: int = 1) -> Arrays:
    """(B, A) -> (B G^-1, G A), an invertible G for each pair, rounded to float32."""
    rng = np.random.default_rng(seed)
    out = dict(found)
    for a in [name for name in found if "lora_A" in name]:
        b = a.replace("lora_A", "lora_B")
        g = np.linalg.qr(rng.standard_normal((len(found[a]), len(found[a]))))[0] * np.exp(rng.normal(0, 1, len(found[a])))
        out[a] = (g @ found[a]).astype(np.float32)
        out[b] = (found[b] @ np.linalg.inv(g)).astype(np.float32)
    return out


def saved(found: Arrays, path: Path) -> Run:
    np.savez(path, **found)
    return read(path)


def products(found: Arrays) -> list[NDArray[Any]]:
    return [
        found[name.replace("lora_A", "lora_B")].astype(np.float64) @ found[name]
        for name in sorted(found)
        if "lora_A" in name
    ]  # fmt: skip


@SIZES
def test_copies_of_an_adapter_are_equivalent(tmp_path: Path, width: int) -> None:
    s = adapter(width)
    result = compare(saved(s, tmp_path / "a.npz"), saved(turned(s), tmp_path / "b.npz"))
    assert result.verdict == "equivalent"
    assert result.distance["raw"] is None or result.distance["raw"] > 0.1 or width == 24
    assert result.distance["matched"] < 1e-6


@SIZES
@pytest.mark.parametrize("part", ["A", "B"])
def test_one_map_moved_without_the_other_is_no_copy(tmp_path: Path, width: int, part: str) -> None:
    s, other = adapter(width), turned(adapter(width))
    key = FRONT.format(1, "q", part)
    half = {**other, key: s[key]}
    result = compare(saved(s, tmp_path / "a.npz"), saved(half, tmp_path / "b.npz"))
    assert result.verdict not in ("identical", "equivalent")
    assert result.distance["matched"] > 0.05
    near = {**other, key: (other[key] * np.float32(1.001)).astype(np.float32)}
    assert compare(saved(s, tmp_path / "a.npz"), saved(near, tmp_path / "b.npz")).verdict not in ("identical", "equivalent")


@SIZES
def test_what_is_written_adds_the_same(tmp_path: Path, width: int) -> None:
    s = adapter(width)
    other = turned(s)
    a, b = saved(s, tmp_path / "a.npz"), saved(other, tmp_path / "b.npz")
    want = products(s)
    made = {
        "align": align(a.network, b.network).network,
        "canonicalize": canonicalize(b.network).network,
        "teleport": teleport(b.network, seed=4).network,
    }
    for verb, network in made.items():
        write(b.with_network(network), tmp_path / f"{verb}.npz")
        with np.load(tmp_path / f"{verb}.npz") as f:
            found = {name: f[name] for name in s}
        for x, w in zip(products(found), want, strict=True):
            np.testing.assert_allclose(x, w, rtol=0, atol=2e-5 * np.abs(w).max())
        if verb == "teleport":
            assert max(np.abs(found[name] - other[name]).max() for name in s) > 0.01
        if verb == "align" and width == 2048:
            for name, t in s.items():
                np.testing.assert_allclose(found[name], t, rtol=0, atol=2e-5 * np.abs(t).max())
    first = canonicalize(a.network).network
    for name, t in made["canonicalize"].tensors.items():
        np.testing.assert_allclose(first.tensors[name], t, rtol=0, atol=2e-5 * np.abs(t).max())


def with_adapter(width: int, rank: int = 4, seed: int = 0) -> Network:
    """A hidden layer, relu(W x + B A x), with a base kernel W, and a head; the pair is rescaled as alpha / r does."""
    rng = np.random.default_rng(seed)
    hidden = width + 8
    tensors = {
        "base": rng.standard_normal((hidden, width)) / width**0.5,
        "A": rng.standard_normal((rank, width)) / width**0.5,
        "B": rng.standard_normal((hidden, rank)) / rank**0.5,
        "bias": 0.1 * rng.standard_normal(hidden),
        "head": rng.standard_normal((5, hidden)) / hidden**0.5,
    }
    ops = (
        Op("dense", "base", ("x",), "base", {"kernel": "base", "bias": "bias"}),
        Op("dense", "down", ("x",), "down", {"kernel": "A"}),
        Op("dense", "up", ("down",), "up", {"kernel": "B"}),
        Op("rescale", "alpha", ("up",), "alpha", {}, {"factor": 2.0}),
        Op("add", "sum", ("base", "alpha"), "sum"),
        Op("relu", "act", ("sum",), "act"),
        Op("dense", "head", ("act",), "head", {"kernel": "head"}),
    )
    return Network({n: t.astype(np.float32) for n, t in tensors.items()}, ops, {"x": (width,)}, ("head",))


def moved(network: Network, part: str = "both", seed: int = 3) -> Network:
    """Hidden units relabelled and rescaled, and a matrix between A and B."""
    rng = np.random.default_rng(seed)
    t = {name: np.asarray(x, np.float64) for name, x in network.tensors.items()}
    perm, scale = rng.permutation(len(t["base"])), np.exp(rng.normal(0, 0.5, len(t["base"])))
    g = rng.standard_normal((len(t["A"]), len(t["A"])))
    for name in ("base", "B", "bias"):
        t[name] = ((t[name].T * scale).T)[perm]
    t["head"] = (t["head"] / scale)[:, perm]
    t["A"] = g @ t["A"] if part != "B" else t["A"]
    t["B"] = t["B"] @ np.linalg.inv(g) if part != "A" else t["B"]
    return network.with_tensors({name: x.astype(np.float32) for name, x in t.items()})


@pytest.mark.parametrize("width", [16, 1100])
def test_a_path_beside_a_base_network(width: int) -> None:
    net = with_adapter(width)
    assert any(op.kind == "bottleneck" for op in fold(net).network.ops) == (width == 1100)
    copy = moved(net)
    x = probe_inputs(net, np.random.default_rng(0), 4, 1.0)
    want = forward(net, x)["head"]
    np.testing.assert_allclose(forward(copy, x)["head"], want, rtol=0, atol=1e-4 * np.abs(want).max())
    a, b = (Run(name, "test", n) for name, n in (("a", net), ("b", copy)))
    result = compare(a, b)
    assert result.verdict == "equivalent"
    assert result.distance["matched"] < 1e-6
    for part in "AB":
        assert compare(a, Run("c", "test", moved(net, part))).verdict not in ("identical", "equivalent")
    near = align(net, copy).network
    np.testing.assert_allclose(near.tensors["base"], net.tensors["base"], rtol=0, atol=1e-5)
    product = (near.tensors["B"].astype(np.float64) @ near.tensors["A"], net.tensors["B"].astype(np.float64) @ net.tensors["A"])
    np.testing.assert_allclose(*product, rtol=0, atol=1e-4)


def test_folding_a_bottleneck_leaves_the_function() -> None:
    net = with_adapter(1100)
    x = probe_inputs(net, np.random.default_rng(0), 4, 1.0)
    np.testing.assert_allclose(forward(fold(net).network, x)["head"], forward(net, x)["head"], rtol=0, atol=1e-12)


def test_each_bottleneck_is_one_line_of_the_units() -> None:
    net = with_adapter(1100)
    result = compare(Run("a", "t", net), Run("b", "t", moved(net)), Options(units=True))
    units = [u for u in result.units if u.space == "down@bottleneck"]
    assert [(u.a, u.b) for u in units] == [(0, 0)]
    assert units[0].distance < 1e-6
