"""The gauges on a network small enough for pencil and paper: 2-3-2, relu, exact numbers."""

import numpy as np
import pytest
from reference import run

from canon.network import Network
from canon.ops import Op
from canon.transform import canonicalize

W1 = np.array([[3.0, 4.0], [-6.0, 8.0], [0.0, -2.0]])
B1 = np.array([5.0, -10.0, 1.0])
W2 = np.array([[1.0, 2.0, 4.0], [-1.0, 0.5, 8.0]])
B2 = np.array([1.0, -1.0])
POINTS = np.array([[0, 0], [1, 1], [-2, 1], [1, -3], [-1, -1]], float)
OUTPUTS = np.array([[10, 2], [13, -13], [24, 1], [29, 55], [13, 23]], float)


def network(w1=W1, b1=B1, w2=W2, b2=B2) -> Network:
    ops = (
        Op("dense", "hidden", ("x",), "hidden/pre", {"kernel": "w1", "bias": "b1"}),
        Op("relu", "hidden/relu", ("hidden/pre",), "hidden"),
        Op("dense", "out", ("hidden",), "out", {"kernel": "w2", "bias": "b2"}),
    )
    return Network({"w1": w1, "b1": b1, "w2": w2, "b2": b2}, ops, {"x": (2,)}, ("out",))


def members() -> list[Network]:
    order, c = [2, 0, 1], np.array([4.0, 0.5, 8.0])
    return [network(), network((W1 * c[:, None])[order], (B1 * c)[order], (W2 / c)[:, order])]


@pytest.mark.parametrize("net", members())
def test_the_network_gives_the_outputs_that_were_worked_out(net: Network) -> None:
    np.testing.assert_array_equal(run(net, {"x": POINTS})["out"], OUTPUTS)


@pytest.mark.parametrize("net", members())
@pytest.mark.parametrize("gauge", ["incoming", "balanced", "exact"])
def test_every_gauge_keeps_outputs_and_path_sums(gauge: str, net: Network) -> None:
    t = canonicalize(net, gauge).network.tensors
    np.testing.assert_allclose(run(network(**t), {"x": POINTS})["out"], OUTPUTS, rtol=1e-12, atol=1e-12)
    wide = np.column_stack([t["w1"], t["b1"]])
    np.testing.assert_allclose((t["w2"] ** 2 @ t["w1"] ** 2).sum(axis=1), [489, 306], rtol=1e-12)
    np.testing.assert_allclose((t["w2"] ** 2 @ wide**2).sum(axis=1), [930, 420], rtol=1e-12)
    np.testing.assert_allclose(t["w2"] @ t["w1"], [[-9, 12], [-6, -16]], rtol=1e-12)
    np.testing.assert_allclose((np.abs(t["w2"]) @ np.abs(t["w1"])).sum(axis=1), [43, 30], rtol=1e-12)
    np.testing.assert_array_equal(t["b2"], B2)


@pytest.mark.parametrize("net", members())
def test_powers_of_two(net: Network) -> None:
    t = canonicalize(net, "exact").network.tensors
    w1, b1, w2 = [[-0.75, 1.0], [0.0, -1.0], [0.75, 1.0]], [-1.25, 0.5, 1.25], [[16, 8, 4], [4, 16, -4]]
    np.testing.assert_array_equal(t["w1"], w1)
    np.testing.assert_array_equal(t["b1"], b1)
    np.testing.assert_array_equal(t["w2"], w2)


@pytest.mark.parametrize("net", members())
def test_balanced(net: Network) -> None:
    t = canonicalize(net, "balanced").network.tensors
    into = (t["w1"] ** 2).sum(axis=1) + t["b1"] ** 2
    out = (t["w2"] ** 2).sum(axis=0)
    np.testing.assert_allclose(into, out, rtol=1e-7)
    np.testing.assert_allclose(np.sort(into), [10.0, 20.0, 29.154759474226502], rtol=1e-7)
    assert into.sum() + out.sum() == pytest.approx(118.309518948453, rel=1e-12)
    scales = {tuple(np.round(w / np.abs(w).max(), 9)): np.linalg.norm(w) for w in t["w1"]}
    expected = {(0.75, 1.0): 0.4472135954999579 * 5, (-0.75, 1.0): 0.38180334908317987 * 10, (0.0, -1.0): 2.0 * 2}
    assert scales == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("net", members())
def test_incoming_has_norm_one_with_the_bias(net: Network) -> None:
    t = canonicalize(net, "incoming").network.tensors
    np.testing.assert_allclose((t["w1"] ** 2).sum(axis=1) + t["b1"] ** 2, 1.0, rtol=1e-14)
    keys = [tuple(row) for row in t["w1"]]
    assert keys == sorted(keys)
    first = np.array([-6.0, 8.0, -10.0]) / np.sqrt(200)
    np.testing.assert_allclose([*t["w1"][0], t["b1"][0]], first, rtol=1e-14)
    np.testing.assert_allclose(t["w2"][:, 0], np.array([2.0, 0.5]) * np.sqrt(200), rtol=1e-14)
