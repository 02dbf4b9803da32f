"""Heads: their group is what the equations say and no more, canonical forms agree, copies are told, near copies are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from blocks import transformer

from canon.action import Action, random_action
from canon.compare import Options, compare
from canon.fold import fold
from canon.forward import forward, probe_inputs
from canon.gauge import heads as balance
from canon.network import Network
from canon.run import Run
from canon.symmetry import Block, Class, derive
from canon.transform import align, canonicalize, teleport

CASES: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "a key-value head a query head": {"groups": 4, "dv": 6},
    "one key-value head": {"groups": 1},
    "five queries a head": {"heads": 5, "groups": 1},
    "rotary, half": {"rope": "half"},
    "rotary, interleaved": {"rope": "interleaved"},
    "query-key norm": {"qk_norm": True},
    "query-key norm and rotary": {"qk_norm": True, "rope": "half"},
    "fused": {"fused": True},
    "slopes": {"slopes": True},
    "after the sum": {"post": True, "vocabulary": 20},
    "llama": {"norm": "rms_norm", "gated": True, "rope": "half", "bias": False, "vocabulary": 20, "layers": 2},
    "gpt": {"groups": 4, "fused": True, "vocabulary": 20, "layers": 2},
}
GROUPS = {
    "grouped queries": ("GL(6)", "GL(4)"),
    "rotary, half": ("C* x3", "GL(4)"),
    "query-key norm": ("sign x6", "GL(4)"),
    "query-key norm and rotary": ("sign x3", "GL(4)"),
}


def stored(network: Network) -> Network:
    return network.with_tensors({n: np.asarray(t, np.float32) for n, t in network.tensors.items()})


def run(network: Network) -> Run:
    return Run("net", "test", network)


def outputs(network: Network) -> np.ndarray:
    found = forward(network, probe_inputs(network, np.random.default_rng(7), 4, 1.0))
    return found[network.outputs[0]]


def planted(network: Network, seed: int = 1, sigma: float = 0.7) -> Network:
    return random_action(derive(network), network, np.random.default_rng(seed), sigma)(network)


@pytest.fixture(params=CASES, name="net")
def _net(request: pytest.FixtureRequest) -> Network:
    return transformer(**CASES[request.param])


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_blocks(name: str) -> None:
    found = derive(transformer(**CASES[name])).blocks
    assert (found["0.at.qk"].group, found["0.at.vo"].group) == GROUPS[name]


def test_the_size_of_the_group() -> None:
    symmetry = derive(transformer(heads=4, groups=2, d=6, dv=4))
    # GL(6) and GL(4) for two key-value heads; none for a gelu, and the norms' units are those of the input
    assert symmetry.continuous_dimension == 2 * (36 + 16)
    # two heads, two queries in each, seven hidden units: labels of heads are never lost to the matrices
    assert symmetry.log10_permutations == pytest.approx(np.log10(2 * 2**2 * 5040))


def test_the_group_leaves_the_function(net: Network) -> None:
    moved = planted(net)
    assert max(np.abs(moved.tensors[n] - t).max() for n, t in net.tensors.items()) > 0.5
    want = outputs(net)
    np.testing.assert_allclose(outputs(moved), want, rtol=0, atol=1e-12 * np.abs(want).max())


def test_inverse_and_product(net: Network) -> None:
    symmetry, rng = derive(net), np.random.default_rng(5)
    g, h = (random_action(symmetry, net, rng, 0.5) for _ in range(2))
    for one, other in (((~g)(g(net)), net), ((h @ g)(net), h(g(net)))):
        for name, t in other.tensors.items():
            np.testing.assert_allclose(one.tensors[name], t, rtol=0, atol=1e-11 * max(1.0, np.abs(t).max()))


def test_copies_are_equivalent_and_partners_right(net: Network) -> None:
    symmetry = derive(net)
    g = random_action(symmetry, net, np.random.default_rng(1), 0.7)
    from canon.compare.comparing import make_pair

    pair = make_pair(net, stored(g(net)))[0]
    state = next(s for make in pair.candidates() if (s := make()) is not None and pair.prove(s)[1].deviation <= 1)
    back = ~g
    for space in pair.symmetry.spaces.values():
        np.testing.assert_array_equal(state.perms[space.name], back.perms[space.name])
    result = compare(run(net), run(stored(g(net))))
    assert result.verdict == "equivalent"
    assert result.distance["matched"] < 1e-6


def test_copies_in_float64_are_equivalent(net: Network) -> None:
    wide = net.with_tensors({n: t.astype(np.float64) for n, t in net.tensors.items()})
    moved = planted(wide)
    assert compare(run(wide), run(moved)).verdict == "equivalent"
    name = next(n for n in wide.tensors if n.endswith("o.w"))
    changed = moved.tensors[name].copy()
    changed[0, 0] *= 1 + 1e-8
    assert compare(run(wide), run(moved.with_tensors({name: changed}))).verdict != "equivalent"


@pytest.mark.parametrize("tensor", ["0.q.w", "0.k.w", "0.v.w", "0.o.w"])
def test_one_weight_of_a_head_off_is_no_copy(tensor: str) -> None:
    net = transformer()
    other = stored(planted(net))
    changed = other.tensors[tensor].copy()
    changed[1, 1] += 1e-3
    assert compare(run(net), run(other.with_tensors({tensor: changed}))).verdict != "equivalent"


@pytest.mark.parametrize(("name", "told"), [("rotary", {"rope": "half"}), ("norm", {"qk_norm": True})])
def test_matrices_outside_the_group_change_the_function(name: str, told: dict[str, Any]) -> None:
    net = transformer(**told)
    free = derive(transformer()).blocks["0.at.qk"]
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((free.outer, 6, 6)))[0]
    moved = Action(derive(net), turns={"0.at.qk": turn})(net)
    want = outputs(net)
    assert np.abs(outputs(moved) - want).max() > 1e-3 * np.abs(want).max()
    assert compare(run(net), run(stored(moved))).verdict != "equivalent"


def test_a_bias_of_keys_is_seen_behind_rotary_positions_alone() -> None:
    for told, seen in (({}, False), ({"rope": "half"}, True)):
        net = transformer(**told)
        moved = net.with_tensors({"0.k.b": net.tensors["0.k.b"] + 1.0})
        assert (np.abs(outputs(moved) - outputs(net)).max() > 1e-3) == seen
        assert (compare(run(net), run(moved)).verdict == "equivalent") != seen


def test_shifts_of_norms_and_values_are_taken_out(net: Network) -> None:
    folded = fold(net)
    want = outputs(net)
    np.testing.assert_allclose(outputs(folded.network), want, rtol=0, atol=1e-12 * np.abs(want).max())
    for name, t in folded.network.tensors.items():
        if name.endswith(".v.b"):
            assert not t.any()


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_scales_of_a_norm_are_its_readers(norm: str) -> None:
    net = transformer(norm=norm)
    c = np.exp(np.random.default_rng(1).normal(0, 1, 12)) * np.where(np.arange(12) % 3, 1, -1)
    moved = dict(net.tensors)
    for name in ("0.ln1.g", "0.ln1.beta"):
        if name in moved:
            moved[name] = moved[name] * c
    for name in ("0.q.w", "0.k.w", "0.v.w"):
        moved[name] = moved[name] / c
    other = net.with_tensors(moved)
    np.testing.assert_allclose(outputs(other), outputs(net), atol=1e-12)
    assert compare(run(net), run(stored(other))).verdict == "equivalent"
    moved["0.k.w"] = net.tensors["0.k.w"]
    assert compare(run(net), run(stored(net.with_tensors(moved)))).verdict != "equivalent"


def test_a_value_bias_written_behind_the_heads_is_the_same_network() -> None:
    net = transformer(groups=4)
    v, o = net.tensors["0.v.b"].astype(np.float64), net.tensors["0.o.w"].astype(np.float64)
    moved = net.with_tensors({"0.v.b": np.zeros_like(v), "0.o.b": net.tensors["0.o.b"] + o @ v})
    np.testing.assert_allclose(outputs(moved), outputs(net), atol=1e-12)
    assert compare(run(net), run(stored(moved))).verdict == "equivalent"
    other = net.with_tensors({"0.v.b": np.zeros_like(v), "0.o.b": net.tensors["0.o.b"] + 1.01 * (o @ v)})
    assert compare(run(net), run(stored(other))).verdict != "equivalent"


def test_canonical_forms_agree_and_stay(net: Network) -> None:
    one, other = canonicalize(net).network, canonicalize(stored(planted(net))).network
    for name, t in one.tensors.items():
        np.testing.assert_allclose(other.tensors[name], t, rtol=0, atol=2e-5 * np.abs(t).max())
    again = canonicalize(one).network
    for name, t in one.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], t)


def test_align_brings_a_copy_back(net: Network) -> None:
    back = align(net, stored(planted(net))).network
    for name, t in net.tensors.items():
        np.testing.assert_allclose(back.tensors[name], t, rtol=0, atol=2e-5 * np.abs(t).max())


def test_teleport_moves_heads(net: Network) -> None:
    moved = teleport(net, seed=4).network
    assert np.abs(moved.tensors[next(n for n in moved.tensors if n.endswith(("q.w", "qkv.w")))]).max() > 0
    assert compare(run(net), run(moved)).verdict == "equivalent"


def test_equal_singular_values_and_empty_heads_are_no_trouble() -> None:
    net = transformer(groups=4, d=4, dv=4, heads=4)
    eye = np.zeros((16, 12), np.float32)
    eye[:4, :4] = eye[4:8, 4:8] = np.eye(4)  # two heads with all singular values alike, two that are zero
    net = net.with_tensors({"0.q.w": eye, "0.k.w": eye, "0.q.b": np.zeros(16, np.float32), "0.k.b": np.zeros(16, np.float32)})
    result = compare(run(net), run(stored(planted(net))))
    assert result.verdict == "equivalent"
    assert all(np.isfinite(t).all() for t in canonicalize(net).network.tensors.values())


def test_balanced_heads_have_equal_sides_and_the_product_they_had() -> None:
    net = transformer(groups=4)
    symmetry = derive(net)
    turns = balance(net.tensors, symmetry, {})
    moved = Action(symmetry, turns=turns)(net)
    for h in range(4):
        rows = slice(6 * h, 6 * h + 6)
        q, k = (
            [np.column_stack([t.tensors[f"0.{x}.w"][rows], t.tensors[f"0.{x}.b"][rows]]).astype(float) for x in "qk"]
            for t in (net, moved)
        )
        np.testing.assert_allclose(k[0].T @ k[1], q[0].T @ q[1], atol=1e-12)
        np.testing.assert_allclose(k[0] @ k[0].T, k[1] @ k[1].T, atol=1e-12)
        values = np.linalg.svd(q[0].T @ q[1], compute_uv=False)[:6]
        np.testing.assert_allclose(k[0] @ k[0].T, np.diag(values), atol=1e-12)


def test_nearest_turn_is_the_best_of_its_class() -> None:
    rng = np.random.default_rng(2)
    block = Block("b", 7, "s", 1, (Class("complex", (0, 1), (3, 4)), Class("real", (2, 5)), Class("sign", (6,))))
    cross = rng.standard_normal((7, 7))
    turn, value = block.nearest(cross)
    np.testing.assert_allclose(turn @ turn.T, np.eye(7), atol=1e-12)
    np.testing.assert_allclose(np.trace(turn.T @ cross), value, atol=1e-12)
    for _ in range(200):
        other = np.zeros((7, 7))
        z = np.linalg.qr(rng.standard_normal((2, 2)) + 1j * rng.standard_normal((2, 2)))[0]
        other[np.ix_([0, 1], [0, 1])] = other[np.ix_([3, 4], [3, 4])] = z.real
        other[np.ix_([0, 1], [3, 4])], other[np.ix_([3, 4], [0, 1])] = -z.imag, z.imag
        other[np.ix_([2, 5], [2, 5])] = np.linalg.qr(rng.standard_normal((2, 2)))[0]
        other[6, 6] = rng.choice([-1.0, 1.0])
        assert np.trace(other.T @ cross) <= value + 1e-12


def rotated(net: Network, seed: int = 4) -> Network:
    """The same function with the stream turned by a random orthogonal matrix, gammas folded away first."""
    folded = fold(net, rotations=True)
    symmetry = folded.symmetry
    (name,) = (b.name for b in symmetry.blocks.values() if b.classes[0].kind == "orthogonal")
    n = symmetry.blocks[name].size
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    g = random_action(symmetry, folded.network, np.random.default_rng(seed), 0.3)
    return Action(symmetry, g.perms, g.gauges, turns={**g.turns, name: turn[None]})(folded.network)


def untied(**told: Any) -> Network:
    """A language model on RMS norms whose last layer has a kernel of its own."""
    net = transformer(norm="rms_norm", gated=True, bias=False, vocabulary=20, **told)
    head = next(op for op in net.ops if op.name == "head")
    own = np.random.default_rng(9).standard_normal((20, 12)).astype(np.float32)
    ops = [*(op for op in net.ops if op is not head), replace(head, params={"kernel": "head.w"})]
    return Network({**net.tensors, "head.w": own}, tuple(ops), net.inputs, net.outputs)


def test_rotations_of_a_stream_are_taken_out_when_asked() -> None:
    net = untied(rope="half", layers=2)
    base, moved = fold(net, rotations=True).network, rotated(net)
    want = outputs(net)
    np.testing.assert_allclose(outputs(moved), want, rtol=0, atol=1e-12 * np.abs(want).max())
    assert compare(run(base), run(stored(moved))).verdict != "equivalent"
    result = compare(run(stored(base)), run(stored(moved)), Options(rotations=True))
    assert result.verdict == "equivalent"
    assert result.distance["matched"] < 1e-6
    changed = dict(moved.tensors)
    changed["0.up.w"] = changed["0.up.w"] + 1e-3 * np.eye(7, 12)
    assert compare(run(base), run(stored(moved.with_tensors(changed))), Options(rotations=True)).verdict != "equivalent"


def test_rotations_leave_streams_alone_that_a_tied_layer_or_a_layer_norm_reads() -> None:
    tied = transformer(norm="rms_norm", vocabulary=20)
    assert not any(c.kind == "orthogonal" for b in fold(tied, rotations=True).symmetry.blocks.values() for c in b.classes)
    layer = transformer(vocabulary=20)
    assert not any(c.kind == "orthogonal" for b in fold(layer, rotations=True).symmetry.blocks.values() for c in b.classes)


def test_a_gamma_with_an_offset_is_its_readers() -> None:
    net = untied()
    ops = tuple(replace(op, attrs={**op.attrs, "offset": 1.0}) if op.kind == "rms_norm" else op for op in net.ops)
    net = Network(net.tensors, ops, net.inputs, net.outputs)
    c = np.exp(np.random.default_rng(1).normal(0, 0.5, 12))
    moved = dict(net.tensors)
    moved["0.ln1.g"] = (net.tensors["0.ln1.g"].astype(float) + 1.0) * c - 1.0
    for name in ("0.q.w", "0.k.w", "0.v.w"):
        moved[name] = moved[name] / c
    other = net.with_tensors(moved)
    np.testing.assert_allclose(outputs(other), outputs(net), atol=1e-11)
    assert compare(run(net), run(stored(other))).verdict == "equivalent"
    moved["0.v.w"] = net.tensors["0.v.w"]
    assert compare(run(net), run(net.with_tensors(moved))).verdict != "equivalent"
