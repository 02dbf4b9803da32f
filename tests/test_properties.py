"""Random architectures, random elements of their groups: what must stay, and beside each what must not pass.

Coverage is counted inside each test and asserted at its end, so that it holds however tests are spread over processes.
"""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from reference import run
from strategies import FEATURES, Drawn, element, networks

from canon.action import random_action
from canon.compare import compare
from canon.fold import fold
from canon.forward import forward
from canon.network import Network
from canon.run import Run
from canon.symmetry import derive
from canon.transform import canonicalize

LARGE = settings(max_examples=600)
WIDE = settings(max_examples=200)
MIDDLE = settings(max_examples=100)
SMALL = settings(max_examples=50)

Values = dict[str, np.ndarray]


def as_run(network: Network) -> Run:
    return Run("a network", "test", network)


def cast(moved: Network, like: Network) -> Network:
    return moved.with_tensors({n: t.astype(like.tensors[n].dtype) for n, t in moved.tensors.items()})


def inputs(drawn: Drawn, rng: np.random.Generator, samples: int = 3) -> Values:
    return {v: rng.standard_normal((samples, *s)) for v, s in drawn.network.inputs.items()}


def turnable(network: Network) -> set[str]:
    """Linear spaces that canon composes away: those may be turned by any matrix. The others know labels, scale and sign."""
    left = fold(network).symmetry.spaces
    return {s.name for s in derive(network).spaces.values() if s.linear and s.name not in left}


def moved_by(drawn: Drawn, rng: np.random.Generator, **how: Any) -> Network:
    """The network moved by a random element, in float64."""
    return element(derive(drawn.network), rng, **how)(drawn.network)


def assert_same_outputs(a: Network, b: Network, x: Values, tolerance: float) -> None:
    """By the slow forward pass; tolerance: relative to the size of all that is summed."""
    ya, yb, size_a, size_b = run(a, x), run(b, x), run(a, x, absolute=True), run(b, x, absolute=True)
    for v, w in zip(a.outputs, b.outputs, strict=True):
        np.testing.assert_array_less(np.abs(ya[v] - yb[w]), tolerance * np.maximum(size_a[v], size_b[w]) + 1e-300)


def assert_close(a: Network, b: Network, tolerance: float) -> None:
    assert set(a.tensors) == set(b.tensors)
    for n, t in a.tensors.items():
        np.testing.assert_allclose(b.tensors[n], t, rtol=tolerance, atol=tolerance * np.abs(t).max(initial=1e-3), err_msg=n)


def assert_same_bytes(a: Network, b: Network) -> None:
    assert set(a.tensors) == set(b.tensors)
    for n, t in a.tensors.items():
        assert b.tensors[n].dtype == t.dtype, n
        assert b.tensors[n].tobytes() == t.tobytes(), n


def strict(value: Any) -> None:
    json.dumps(value, allow_nan=False)


# what must stay


def test_a_moved_network_computes_the_same_and_is_equivalent() -> None:
    seen: Counter[str] = Counter()

    @LARGE
    @given(networks())
    def check(drawn: Drawn) -> None:
        rng = np.random.default_rng(drawn.seed)
        net = drawn.network
        turned = turnable(net)
        seen.update(drawn.features)
        seen.update(["turned"] if turned else [])
        moved = moved_by(drawn, rng, turned=turned)
        if drawn.runnable:
            x = inputs(drawn, rng)
            assert_same_outputs(net, moved, x, 1e-11)
        other = cast(moved, net)
        found = compare(as_run(net), as_run(other))
        assert found.verdict in ("equivalent", "identical"), (found.reason, found.worst, found.check)
        for side in ("moved_a", "moved_b", "outputs"):
            assert found.check[side] is None or found.check[side] <= 1, found.check
        if found.check["outputs"] is not None:
            seen["checked"] += 1
        strict(found.as_dict())

    check()
    rare = {f: seen[f] for f in (*FEATURES, "turned", "checked") if seen[f] < 20}
    assert not rare, f"drawn too rarely: {rare}"


@WIDE
@given(networks(runnable=True))
def test_forward_agrees_with_the_slow_one(drawn: Drawn) -> None:
    x = inputs(drawn, np.random.default_rng(drawn.seed))
    fast, slow, size = forward(drawn.network, x), run(drawn.network, x), run(drawn.network, x, absolute=True)
    for v in drawn.network.outputs:
        np.testing.assert_array_less(np.abs(fast[v] - slow[v]), 1e-13 * size[v] + 1e-300)


@WIDE
@given(networks(runnable=True))
def test_folding_computes_the_same(drawn: Drawn) -> None:
    x = inputs(drawn, np.random.default_rng(drawn.seed))
    assert_same_outputs(drawn.network, fold(drawn.network).network, x, 1e-12)


@MIDDLE
@given(networks(runnable=True))
def test_a_lifted_action_moves_the_original_and_its_folded_form_alike(drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    folded = fold(drawn.network)
    lifted = folded.lift(element(folded.symmetry, rng, reach=2.0))
    assert {n: t.shape for n, t in lifted.tensors.items()} == {n: t.shape for n, t in drawn.network.tensors.items()}
    assert_same_outputs(drawn.network, lifted, inputs(drawn, rng), 1e-11)
    found = compare(as_run(drawn.network), as_run(cast(lifted, drawn.network)))
    assert found.verdict in ("equivalent", "identical"), (found.reason, found.worst, found.check)


@MIDDLE
@given(networks())
def test_the_inverse_restores_and_composition_composes(drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    symmetry, net = derive(drawn.network), drawn.network
    linear = [s.name for s in symmetry.spaces.values() if s.linear]
    g, h = (element(symmetry, rng, reach=3.0, turned=linear) for _ in range(2))
    there = g(net)
    assert_close(net, (~g)(there), 1e-9)
    assert_close((h @ g)(net), h(there), 1e-9)
    pure = element(symmetry, rng, exact=True)
    restored = (~pure)(pure(net))
    assert_same_bytes(net, cast(restored, net))


@MIDDLE
@given(networks())
def test_random_actions_of_canon_itself_are_in_the_group(drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    g = random_action(derive(drawn.network), drawn.network, rng, sigma=3.0)
    moved = g(drawn.network)
    if drawn.runnable:
        assert_same_outputs(drawn.network, moved, inputs(drawn, rng), 1e-11)
    found = compare(as_run(drawn.network), as_run(cast(moved, drawn.network)))
    assert found.verdict in ("equivalent", "identical"), (found.reason, found.worst)


# canonical forms


@SMALL
@given(networks(dtypes=(np.float64,)))
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("gauge", ["incoming", "balanced"])
def test_canonical_forms_of_one_orbit_agree(gauge: str, folded: bool, drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    net = drawn.network
    moved = moved_by(drawn, rng, reach=3.0, turned=turnable(net))
    one, other = canonicalize(net, gauge, folded), canonicalize(moved, gauge, folded)
    notes = (*one.notes, *other.notes)
    assume(not any("hangs on" in n or "could not be told" in n for n in notes))
    assume(folded or not any("stays as it was" in n for n in notes))
    assert_close(one.network, other.network, 1e-6)
    if drawn.runnable:
        assert_same_outputs(net, one.network, inputs(drawn, rng), 1e-11)


@MIDDLE
@given(networks())
@pytest.mark.parametrize("gauge", ["incoming", "balanced", "exact"])
def test_canonicalising_twice_changes_nothing(gauge: str, drawn: Drawn) -> None:
    once = canonicalize(drawn.network, gauge).network
    assert_same_bytes(once, canonicalize(once, gauge).network)


@MIDDLE
@given(networks())
def test_the_exact_gauge_gives_equal_bytes(drawn: Drawn) -> None:
    moved = cast(moved_by(drawn, np.random.default_rng(drawn.seed), exact=True), drawn.network)
    assert_same_bytes(canonicalize(drawn.network, "exact").network, canonicalize(moved, "exact").network)


@SMALL
@given(networks(runnable=True))
def test_one_step_of_one_weight_changes_the_exact_form(drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    name = str(rng.choice(list(drawn.network.tensors)))
    t = drawn.network.tensors[name].copy()
    at = np.unravel_index(rng.integers(t.size), t.shape)
    assume(t[at] != 0)
    t[at] = np.nextafter(t[at], np.inf)
    one, other = (
        canonicalize(drawn.network, "exact").network,
        canonicalize(drawn.network.with_tensors({name: t}), "exact").network,
    )
    assert any(one.tensors[n].tobytes() != other.tensors[n].tobytes() for n in one.tensors)


# what must not pass


@MIDDLE
@given(networks(runnable=True))
def test_one_weight_off_by_a_ten_thousandth_is_never_equivalent(drawn: Drawn) -> None:
    rng = np.random.default_rng(drawn.seed)
    net = drawn.network
    moved = moved_by(drawn, rng)
    names = [n for n in moved.tensors if n.endswith(("kernel", "gamma"))]
    name = names[int(rng.integers(len(names)))]
    t = moved.tensors[name].copy()
    at = np.unravel_index(rng.integers(t.size), t.shape)
    t[at] *= 1 + 1e-4
    wrong = moved.with_tensors({name: t})
    x = {v: 3 * s for v, s in inputs(drawn, rng, 6).items()}
    before, after, size = run(net, x), run(wrong, x), run(net, x, absolute=True)
    u = 2.0**-24 if net.dtype == np.float32 else 2.0**-53
    # only where it can be told from rounding: dead units and saturated functions hide a weight
    assume(any((np.abs(before[v] - after[v]) > 1e3 * u * size[v]).any() for v in net.outputs))
    found = compare(as_run(net), as_run(cast(wrong, net)))
    assert found.verdict not in ("identical", "equivalent"), (found.reason, name, at)


def test_negatives_are_drawn_often_enough() -> None:
    """The filter of the test above must leave it something to look at."""
    kept = total = 0

    @settings(MIDDLE, phases=[Phase.generate])
    @given(networks(runnable=True))
    def count(drawn: Drawn) -> None:
        nonlocal kept, total
        rng = np.random.default_rng(drawn.seed)
        x = inputs(drawn, rng)
        out = run(drawn.network, x)
        total += 1
        kept += any(np.ptp(out[v], axis=0).max() > 1e-9 for v in drawn.network.outputs)

    count()
    assert kept > 0.8 * total
