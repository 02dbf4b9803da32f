"""Channel shuffles: sizes of groups counted by hand, moves that leave outputs, copies found and others not, the axis."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from strategies import Draft

from canon.action import Action, random_action
from canon.compare import compare
from canon.compare.comparing import make_pair
from canon.fold import fold
from canon.forward import forward, probe_inputs
from canon.network import Network
from canon.ops import Op
from canon.pieces import cut, entries, exponent
from canon.run import Run
from canon.symmetry import (
    Concat,
    Fixed,
    Gauge,
    Interleaved,
    Product,
    Symmetry,
    TensorAxis,
    Use,
    derive,
    factor,
    gather,
    leaves,
    places,
)
from canon.transform import align, canonicalize

HIDDEN = 3


def draft(seed: int = 0) -> Draft:
    return Draft(np.random.default_rng(seed))


def outputs(net: Network) -> np.ndarray:
    y = forward(net, probe_inputs(net, np.random.default_rng(5), 8, 1.0))[net.outputs[0]]
    assert np.ptp(y) > 0
    return y


def apart(a: Network, b: Network) -> float:
    """Largest difference of outputs, relative to the largest output."""
    x, y = outputs(a), outputs(b)
    return float(np.abs(x - y).max() / np.abs(x).max())


def single(net: Network) -> Network:
    return net.with_tensors({n: t.astype(np.float32) for n, t in net.tensors.items()})


def verdict(a: Network, b: Network) -> str:
    return compare(Run("a", "test", a), Run("b", "test", b)).verdict


def moved_by(net: Network, seed: int, symmetry: Symmetry | None = None) -> tuple[Action, Network]:
    g = random_action(symmetry or derive(net), net, np.random.default_rng(seed), 0.5)
    return g, g(net)


# networks


def shufflenet(groups: int = 3, channels: int = 18, act: str = "relu") -> Network:
    """Grouped convolution, function, shuffle, grouped convolution (Zhang et al. 2018)."""
    d = draft()
    v = d.op("grouped_conv", d.input(4, 4, 2 * groups), d.kernel(channels, 2, 2, 2, bias=True), groups=groups)
    v = d.op("channel_shuffle", d.activation(v, act), groups=groups, axis=-1)
    v = d.op("grouped_conv", v, d.kernel(2 * groups, channels // groups, 2, 2, bias=True), groups=groups)
    return d.network(d.dense(d.op("flatten", d.activation(v, act)), 3, bias=True))


def unit(d: Draft, v: str, act: str) -> str:
    """ShuffleNet V2 (Ma et al. 2018): one half as it is, the other through convolutions with batch norms."""
    n = d.shapes[v][-1]
    left, right = (d.op("slice", v, axis=-1, start=i * n // 2, stop=(i + 1) * n // 2) for i in range(2))
    right = d.activation(d.norm(d.op("conv", right, d.kernel(HIDDEN, n // 2, 1, 1, bias=False))), act)
    params = {"kernel": d.normal(HIDDEN, 1, 3, 3)}
    right = d.norm(d.op("depthwise_conv", right, params, padding="same"))
    right = d.activation(d.norm(d.op("conv", right, d.kernel(n // 2, HIDDEN, 1, 1, bias=False))), act)
    return d.op("channel_shuffle", d.op("concat", [left, right], axis=-1), groups=2, axis=-1)


def units(count: int = 3, channels: int = 8, act: str = "relu") -> Network:
    d = draft(1)
    v = d.activation(d.norm(d.op("conv", d.input(4, 4, 2), d.kernel(channels, 2, 2, 2, bias=False))), act)
    for _ in range(count):
        v = unit(d, v, act)
    return d.network(d.dense(d.op("global_avg_pool", v), 3, bias=True))


def residual(groups: int = 3) -> Network:
    """A shuffled value plus one that a layer writes, shuffled again and plus one that is not."""
    d = draft(3)
    x = d.input(4)
    v = d.op("channel_shuffle", d.activation(d.dense(x, 12, bias=True), "tanh"), groups=groups, axis=-1)
    v = d.op("add", [v, d.activation(d.dense(x, 12, bias=True), "tanh")])
    v = d.op("channel_shuffle", v, groups=2, axis=-1)
    v = d.op("add", [v, d.op("concat", [d.activation(d.dense(v, n, bias=True), "tanh") for n in (5, 7)], axis=-1)])
    return d.network(d.dense(v, 3, bias=True))


NETS = {
    "shufflenet": shufflenet,
    "shufflenet, uneven": lambda: shufflenet(3, 12),
    "shufflenet, sigmoid": lambda: shufflenet(2, 12, "sigmoid"),
    "units": units,
    "units, uneven": lambda: units(4, 12),
    "units, tanh": lambda: units(2, 12, "tanh"),
    "residual": residual,
}


@pytest.fixture(params=NETS, name="net")
def _net(request: pytest.FixtureRequest) -> Network:
    return NETS[request.param]()


# the groups


def relabellings(net: Network) -> float:
    return 10 ** derive(net).log10_permutations


def test_groups_of_shufflenet_counted_by_hand() -> None:
    # each of three stretches of six is read in three parts, two entries by each group behind the shuffle
    assert relabellings(shufflenet(3, 18)) == pytest.approx(2**9 * 2**3)
    assert derive(shufflenet(3, 18)).continuous_dimension == 18 + 6
    # stretches of four are dealt out unevenly: 2 1 1 of the three to the first group, 1 2 1 and 1 1 2 to the others
    assert relabellings(shufflenet(3, 12)) == pytest.approx(2**3 * 2**3)
    assert derive(shufflenet(3, 12)).continuous_dimension == 12 + 6


def test_groups_of_units_counted_by_hand() -> None:
    # x: 8 of the first layer, y, z, w: 4 of each unit. Unit 2 halves x's first half and y, unit 3 quarters those and halves z
    x, y, z, w = 24 * 2 * 1 * 1, 2 * 1 * 1, 2 * 2, 24
    hidden = math.factorial(HIDDEN) ** 3
    assert relabellings(units(3, 8)) == pytest.approx(x * y * z * w * hidden)
    assert fold(units(3, 8)).symmetry.continuous_dimension == 8 + 3 * 4 + 3 * 2 * HIDDEN
    # x: 12 of the first layer, y, z: 6; halves of three are halved unevenly (2 1 and 1 2) where a third unit follows
    assert relabellings(units(2, 12)) == pytest.approx(720 * 36 * 36 * 720 * math.factorial(HIDDEN) ** 2)
    assert relabellings(units(3, 12)) == pytest.approx(720 * (6 * 2) * (6 * 2) * 36 * 720 * hidden)


def test_without_a_cut_a_shuffle_costs_what_its_stretches_do() -> None:
    d = draft()
    v = d.op("channel_shuffle", d.activation(d.dense(d.input(4), 12, bias=True), "tanh"), groups=3, axis=-1)
    s = derive(d.network(d.dense(v, 3, bias=True)))
    assert 10**s.log10_permutations == pytest.approx(24**3)
    assert [(x.name, x.size) for x in s.spaces.values()] == [("dense_0[0:4]", 4), ("dense_0[4:8]", 4), ("dense_0[8:12]", 4)]
    (side,) = s.values[v]
    assert isinstance(side.axis, Interleaved)
    assert side.axis.spots == ((0, 3), (1, 3), (2, 3))
    assert "channel_shuffle_2[0]" not in s.fixed


def test_shuffling_there_and_back_is_nothing_but_the_cut() -> None:
    d = draft()
    v = d.activation(d.dense(d.input(4), 12, bias=True), "tanh")
    v = d.op("channel_shuffle", d.op("channel_shuffle", v, groups=3, axis=-1), groups=4, axis=-1)
    s = derive(d.network(d.dense(v, 3, bias=True)))
    assert all(isinstance(leaf, Use) and leaf.size == 1 for leaf in leaves(s.values[v][0].axis))
    assert [place.tolist() for _, place in places(s.values[v][0].axis)] == [[[i]] for i in range(12)]


def drawn(seed: int) -> tuple[Network, list[int], int]:
    """Layers, slices, concatenations and shuffles in any order, with what a plain count over units finds.

    That is the sizes of classes of units that may be exchanged, and the number of units: two units of a layer are told apart
    where a cut of some axis, or the stretches of a shuffle, have them on two sides.
    """
    rng = np.random.default_rng(seed)
    d = Draft(rng)
    told: dict[tuple[str, int], list[dict[str, int]]] = {}
    holds: dict[str, list[tuple[str, int, str]]] = {}  # layer, unit, and which copy of it on this axis

    def layer(v: str, n: int) -> str:
        made = d.activation(d.dense(v, n, bias=True), "relu")
        holds[made] = [(made, i, "") for i in range(n)]
        told.update({(made, i): [] for i in range(n)})
        return made

    v = layer(d.input(3), int(rng.integers(6, 25)))
    values = [v]
    for _ in range(8):
        here, n = holds[v], d.shapes[v][-1]
        kind = str(rng.choice(["shuffle", "shuffle", "slice", "layer", "again"]))
        sides = [0] * n
        if kind == "shuffle":
            g = int(rng.choice([g for g in range(2, n + 1) if n % g == 0]))
            sides = [i // (n // g) for i in range(n)]
            v = d.op("channel_shuffle", v, groups=g, axis=-1)
            holds[v] = [here[j * (n // g) + i] for i in range(n // g) for j in range(g)]
        elif kind == "slice" and n > 5:
            start, stop = int(rng.integers(0, 3)), int(rng.integers(n // 2, n + 1))
            sides = [(i >= start) + (i >= stop) for i in range(n)]
            v = d.op("slice", v, axis=-1, start=start, stop=stop)
            holds[v] = here[start:stop]
        elif n < 60:
            other = layer(v, int(rng.integers(2, 9))) if kind == "layer" else values[int(rng.integers(len(values)))]
            parts = [[(x, i, tag + at) for x, i, tag in holds[u]] for u, at in ((v, "a"), (other, "b"))]
            v = d.op("concat", [v, other], axis=-1)
            holds[v] = parts[0] + parts[1]
        values.append(v)
        for u, seen in told.items():
            seen.append({tag: side for (x, i, tag), side in zip(here, sides, strict=True) if (x, i) == u})
    classes: list[list[object]] = []
    for (writer, _), seen in told.items():
        classes.append([writer, seen])
    sizes = {repr(c): sum(c == other for other in classes) for c in classes}
    return d.network(d.dense(v, 2, bias=True)), sorted(sizes.values()), len(told)


@pytest.mark.parametrize("seed", range(60))
def test_groups_of_drawn_networks_are_those_of_a_plain_count(seed: int) -> None:
    net, classes, n = drawn(seed)
    s = derive(net)
    assert sorted(x.size for x in s.spaces.values()) == classes
    assert s.continuous_dimension == n
    assert apart(net, moved_by(net, seed, s)[1]) < 1e-10


# moves, copies, forms


def test_moves_of_the_group_leave_outputs(net: Network) -> None:
    s = derive(net)
    assert any(isinstance(side.axis, Interleaved) for sides in s.values.values() for side in sides)
    for seed in range(3):
        g, moved = moved_by(net, seed, s)
        assert max(np.abs(moved.tensors[n] - t).max() for n, t in net.tensors.items()) > 0.1
        assert apart(net, moved) < 1e-10
        for n, t in (~g)(moved).tensors.items():
            np.testing.assert_allclose(t, net.tensors[n], rtol=1e-9, atol=1e-11)
        h, _ = moved_by(net, seed + 10, s)
        both = (h @ g)(net)
        for n, t in h(moved).tensors.items():
            np.testing.assert_allclose(both.tensors[n], t, rtol=1e-9, atol=1e-11)


def test_values_move_as_their_axes_say(net: Network) -> None:
    s = derive(net)
    g, moved = moved_by(net, 4, s)
    inputs = probe_inputs(net, np.random.default_rng(6), 4, 1.0)
    checked = 0
    for op in net.ops:
        sides = s.values[op.output]
        if any(side.centre is not None for side in sides):
            continue
        y, z = (forward(replace(n, outputs=(op.output,)), inputs)[op.output] for n in (net, moved))
        for i, side in enumerate(sides):
            if (f := factor(side.axis, g.values(net))) is not None:
                y = y * f.reshape([-1 if j == i + 1 else 1 for j in range(y.ndim)])
            if (m := gather(side.axis, g.perms)) is not None:
                y = np.take(y, m, axis=i + 1)
        np.testing.assert_allclose(z, y, rtol=1e-8, atol=1e-10 * np.abs(y).max())
        checked += op.kind == "channel_shuffle"
    assert checked or "sigmoid" in {op.kind for op in net.ops}


def test_folding_keeps_the_function_and_moves_lift(net: Network) -> None:
    folded = fold(net)
    g, moved = moved_by(folded.network, 1, folded.symmetry)
    assert apart(net, folded.network) < 1e-10
    assert apart(net, moved) < 1e-10
    assert apart(net, folded.lift(g)) < 1e-10


def test_copies_are_equivalent_and_partners_right(net: Network) -> None:
    s = derive(net)
    g, moved = moved_by(net, 5, s)
    moved = single(moved)
    assert verdict(single(net), moved) == "equivalent"
    pair = make_pair(single(net), moved)[0]
    state = next(found for make in pair.candidates() if (found := make()) is not None and pair.prove(found)[1].deviation <= 1)
    back, checked = ~g, 0
    for v, sides in s.values.items():
        for mine, theirs in zip(sides, pair.symmetry.values.get(v, ()), strict=False):
            planted, found = gather(mine.axis, back.perms), gather(theirs.axis, state.perms)
            if planted is not None and found is not None:
                np.testing.assert_array_equal(found, planted)
                checked += 1
    assert checked >= sum(op.kind == "channel_shuffle" for op in net.ops)


def test_one_weight_off_is_no_copy(net: Network) -> None:
    _, moved = moved_by(net, 7)
    for name in [n for n in net.tensors if n.endswith("/kernel")][:2]:
        changed = moved.tensors[name].copy()
        changed.flat[-1] += 0.02 * np.abs(changed).max()
        other = moved.with_tensors({name: changed})
        assert apart(net, other) > 1e-6
        assert verdict(single(net), single(other)) != "equivalent"


def test_a_relabelling_that_ignores_the_shuffle_is_no_copy(net: Network) -> None:
    """The group of the network with the shuffles left out."""
    ops = tuple(Op("dropout", *_rest(op)) if op.kind == "channel_shuffle" else op for op in net.ops)
    plain = derive(replace(net, ops=ops))
    g = random_action(plain, net, np.random.default_rng(8), powers_of_two=True)
    other = Action(plain, g.perms)(net)
    assert apart(replace(net, ops=ops), replace(other, ops=ops)) < 1e-10
    assert apart(net, other) > 1e-3
    assert verdict(single(net), single(other)) != "equivalent"


def _rest(op: Op) -> tuple[str, tuple[str, ...], str]:
    return op.name, op.inputs, op.output


def test_canonical_forms_agree_and_stay(net: Network) -> None:
    one, other = canonicalize(net).network, canonicalize(moved_by(net, 9)[1]).network
    assert apart(net, one) < 1e-6
    for name, t in one.tensors.items():
        np.testing.assert_allclose(other.tensors[name], t, rtol=1e-5, atol=1e-5 * np.abs(t).max(initial=1e-3), err_msg=name)
    again = canonicalize(one).network
    for name, t in one.tensors.items():
        assert again.tensors[name].tobytes() == t.tobytes(), name


def test_align_brings_a_copy_back(net: Network) -> None:
    back = align(single(net), single(moved_by(net, 11)[1])).network
    assert apart(net, back) < 1e-4
    convs = [op.params["kernel"] for op in net.ops if op.kind in ("conv", "grouped_conv", "dense")]
    if not any(op.kind == "batch_norm" for op in net.ops):
        for name in convs:
            t = net.tensors[name]
            np.testing.assert_allclose(back.tensors[name], t, rtol=0, atol=2e-5 * np.abs(t).max())


# what cannot be carried


def test_what_cannot_be_carried_is_never_moved() -> None:
    d = draft()
    v = d.activation(d.dense(d.input(4), 12, bias=True), "tanh")
    two, three = (d.op("channel_shuffle", v, groups=g, axis=-1) for g in (2, 3))
    net = d.network(d.dense(d.op("add", [two, three]), 3, bias=True))
    assert apart(net, moved_by(net, 1)[1]) < 1e-10

    d = draft()
    v = d.op("channel_shuffle", d.activation(d.dense(d.input(4), 12, bias=True), "tanh"), groups=2, axis=-1)
    v = d.op("reshape", v, shape=[3, 4])
    net = d.network(d.dense(d.op("flatten", v), 3, bias=True))
    assert apart(net, moved_by(net, 1)[1]) < 1e-10


def test_heads_that_are_dealt_out_do_not_turn() -> None:
    d = draft()
    x = d.input(5, 8)
    q, k, v = (d.dense(x, 8, bias=True) for _ in range(3))
    y = d.op("channel_shuffle", d.op("attention", [q, k, v], heads=2, kv_heads=2), groups=4, axis=-1)
    net = d.network(d.op("global_avg_pool", d.dense(y, 3, bias=True)))
    s = derive(net)
    assert not any(name.endswith("vo") for name in s.blocks)
    assert apart(net, moved_by(net, 2)[1]) < 1e-10


def test_an_open_number_of_channels_is_fixed() -> None:
    ops = (Op("relu", "r", ("x",), "r"), Op("channel_shuffle", "s", ("r",), "s", {}, {"groups": 2, "axis": -1}))
    s = derive(Network({}, ops, {"x": (None,)}, ("s",)))
    assert isinstance(s.values["s"][0].axis, Fixed)


def test_cutting_a_flattened_concatenation_moves_nothing_wrong() -> None:
    d = draft()
    x = d.input(2, 3)
    v = d.op("concat", [d.activation(d.dense(x, 3, bias=True), "tanh"), d.activation(d.dense(x, 4, bias=True), "tanh")])
    v = d.op("flatten", d.op("permute", v, dims=[1, 0]))
    net = d.network(d.dense(d.op("slice", v, axis=-1, start=2, stop=10), 3, bias=True))
    s = derive(net)
    assert apart(net, moved_by(net, 3, s)[1]) < 1e-10


# the axis


A, B = Use("a", 3, (("g", 1),)), Use("b", 3, (("h", 1),))
AXES: dict[str, tuple[Concat | Interleaved, str]] = {
    "even": (Interleaved((A, B, Fixed(3)), ((0, 3), (1, 3), (2, 3))), "a0 b0 -- a1 b1 -- a2 b2 --"),
    "uneven": (Interleaved((A, B, Fixed(1)), ((0, 2), (1, 2), (6, 1))), "a0 b0 a1 b1 a2 b2 --"),
    "a product": (Interleaved((Product((A, Fixed(2))), B), ((0, 1), (6, 1))), "a0 a0 a1 a1 a2 a2 b0 b1 b2"),
    "a product among units": (
        Interleaved((Product((Fixed(2), A)), B, Fixed(3)), ((0, 2), (1, 4), (3, 4))),
        "a0 b0 a1 -- a2 b1 a0 -- a1 b2 a2 --",
    ),
    "in a concatenation": (Concat((Fixed(1), Interleaved((B, A), ((0, 2), (1, 2))))), "-- b0 a0 b1 a1 b2 a2"),
}


@pytest.mark.parametrize("name", AXES)
def test_an_interleaved_axis_is_what_its_positions_say(name: str) -> None:
    axis, said = AXES[name]
    entries_ = said.split()
    n = len(entries_)
    assert axis.size == n
    at = {x: [i for i, e in enumerate(entries_) if e == x] for x in entries_}
    for use, rows in places(axis):
        for i in range(use.size):
            assert sorted(rows[:, i].tolist()) == at[f"{use.space}{i}"]
    values = {"g": np.array([2.0, 3.0, 5.0]), "h": np.array([7.0, 11.0, 13.0])}
    known = {f"{space}{i}": v for space, gauge in (("a", "g"), ("b", "h")) for i, v in enumerate(values[gauge])}
    wanted = [known.get(e, 1.0) for e in entries_]
    np.testing.assert_array_equal(factor(axis, values), wanted)
    for gauge, space in (("g", "a"), ("h", "b")):
        np.testing.assert_array_equal(entries(axis, gauge), [int(e[1]) if e[0] == space else -1 for e in entries_])
        assert exponent(axis, gauge) == 1
    perms = {"a": np.array([1, 2, 0]), "b": np.array([2, 1, 0])}
    moved = gather(axis, perms)
    assert moved is not None
    assert sorted(moved) == list(range(n))
    assert [entries_[i] for i in moved] == [e if e == "--" else f"{e[0]}{perms[e[0]][int(e[1])]}" for e in entries_]
    symmetry = Symmetry({"t": (TensorAxis(axis), TensorAxis(Fixed(2)))}, {}, {}, dict.fromkeys("gh", Gauge("", "positive", A)))
    t = np.arange(2 * n).reshape(n, 2)
    seen: list[int] = []
    for piece in cut(symmetry):
        view = piece.view(t)
        seen += view.reshape(-1).tolist()
        dims = [i for i, side in enumerate(piece.axes) if side.space]
        for row in np.ndindex(view.shape) if dims else ():
            assert entries_[view[row] // 2] == f"{piece.axes[dims[0]].space}{row[dims[0]]}"
    assert sorted(seen) == list(range(2 * n))
