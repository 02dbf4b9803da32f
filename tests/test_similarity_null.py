"""The permutation null: p-values are uniform where there is nothing to find, and the figures are what they say they are."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import kstest

from canon.similarity import MEASURES, measured
from canon.similarity.layer import layer
from canon.similarity.null import FEWEST, PERMUTATIONS, affordable, figures, orders
from canon.similarity.pair import Pair

TRIALS, DRAWN = 300, 19


@pytest.fixture(scope="module")
def p_values():
    """p of every measure on independent Gaussian data, 300 times, 19 permutations each."""
    found = {name: [] for name in MEASURES}
    for seed in range(TRIALS):
        r = np.random.default_rng([5, seed])
        x, y = r.standard_normal((16, 4)), r.standard_normal((16, 4))
        for name, figure in measured(x, y, list(MEASURES), DRAWN, seed).items():
            found[name].append(figure.p)
    return found


@pytest.mark.parametrize("name", MEASURES)
def test_p_is_uniform_on_independent_data(name, p_values):
    p = np.array(p_values[name])
    coarse = name in ("disagreement", "mutual_knn", "neighbour_jaccard")  # few values, and equals count as reached
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):
        expected, spread = level * TRIALS, np.sqrt(level * (1 - level) * TRIALS)
        reached = (p <= level + 1e-9).sum()
        assert reached <= expected + 3.5 * spread
        assert coarse or reached >= expected - 3.5 * spread
    if not coarse:
        r = np.random.default_rng(0)
        spread_out = p - r.random(TRIALS) / (DRAWN + 1)  # uniform within each step of p
        assert kstest(spread_out, "uniform").pvalue > 0.001
    assert p.min() >= 1 / (DRAWN + 1)


@pytest.mark.parametrize("name", [n for n in MEASURES if n not in ("disagreement", "jensen_shannon")])
def test_p_is_small_on_related_data(name):
    r = np.random.default_rng(2)
    x = r.standard_normal((40, 5))
    figure = measured(x, x[:, ::-1] + 0.5 * r.standard_normal((40, 5)), [name], 39)[name]
    assert figure.p == pytest.approx(1 / 40)
    assert figure.z > 3
    assert 0 < figure.calibrated < 1


def test_the_mean_over_all_permutations_is_the_one_in_closed_form():
    """E ||X^T P Y||^2 = ||X||^2 ||Y||^2 / (n - 1) over all n! permutations, for centred X and Y."""
    r = np.random.default_rng(3)
    x, y = r.standard_normal((6, 3)), r.standard_normal((6, 2))
    pair = Pair(layer("x", x), layer("y", y))
    drawn = [MEASURES["cka_biased"].of(pair.permuted(np.array(p))) for p in permutations(range(6))]
    k, l = (s.scatter for s in (pair.a, pair.b))  # noqa: E741
    expected = np.trace(k) * np.trace(l) / 5 / np.linalg.norm(k) / np.linalg.norm(l)
    np.testing.assert_allclose(np.mean(drawn), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("wide", [False, True])
def test_a_permuted_pair_is_a_pair_of_permuted_samples(name, wide):
    r = np.random.default_rng(4)
    x, y = r.standard_normal((14, 5)), r.standard_normal((14, 5))
    if wide and not MEASURES[name].outputs:
        x, y = x @ r.standard_normal((5, 20)) + r.standard_normal((14, 20)), y @ r.standard_normal((5, 17))
    order = r.permutation(14)
    ours = MEASURES[name].of(Pair(layer("x", x), layer("y", y)).permuted(order))
    np.testing.assert_allclose(ours, MEASURES[name].of(Pair(layer("x", x), layer("y", y[order]))), rtol=1e-7, atol=1e-9)


def test_figures_are_what_they_say():
    r = np.random.default_rng(5)
    x = r.standard_normal((30, 3))
    y = x + r.standard_normal((30, 3))
    pair = Pair(layer("x", x), layer("y", y))
    for name in ("cka", "procrustes"):
        m = MEASURES[name]
        f = figures(pair, [m], 25, seed=7)[name]
        drawn = np.array([m.of(Pair(layer("x", x), layer("y", y[order]))) for order in orders(30, 25, 7)])
        sign = -1 if m.distance else 1
        np.testing.assert_allclose([f.chance["mean"], f.chance["sd"]], [drawn.mean(), drawn.std(ddof=1)], rtol=1e-6)
        np.testing.assert_allclose(f.z, sign * (f.value - drawn.mean()) / drawn.std(ddof=1), rtol=1e-6)
        np.testing.assert_allclose(f.calibrated, (f.value - drawn.mean()) / (m.best - drawn.mean()), rtol=1e-6)
        assert f.p == (1 + (sign * drawn >= sign * f.value).sum()) / 26
        assert (f.permutations, f.rows) == (25, 30)


def test_calibrated_is_zero_at_chance_and_one_at_the_same():
    r = np.random.default_rng(6)
    x = r.standard_normal((100, 20))
    same = measured(x, x[:, ::-1], ("cka_biased", "cca", "matching_hard", "procrustes", "angular_shape"))
    far = measured(x, r.standard_normal((100, 20)), ("cka_biased", "cca", "matching_hard", "procrustes", "angular_shape"))
    for name, f in same.items():
        np.testing.assert_allclose(f.calibrated, 1, atol=1e-7)
        assert abs(far[name].calibrated) < 0.05
    assert far["cka_biased"].value > 0.15  # which, for independent data, says nothing
    assert far["cca"].value > 0.35


def test_biased_cka_of_wide_independent_data():
    r = np.random.default_rng(7)
    f = measured(r.standard_normal((100, 1000)), r.standard_normal((100, 1000)), ("cka", "cka_biased"), 19)
    assert f["cka_biased"].value == pytest.approx(0.91, abs=0.01)
    assert abs(f["cka"].value) < 0.05
    assert f["cka_biased"].p > 0.05
    assert abs(f["cka_biased"].calibrated) < 0.05


@pytest.mark.parametrize("name", ["cca", "pwcca", "regression"])
def test_where_chance_is_perfect_nothing_is_calibrated(name):
    r = np.random.default_rng(8)
    f = measured(r.standard_normal((15, 20)), r.standard_normal((15, 30)), [name], 19)[name]
    np.testing.assert_allclose(f.value, 1)
    np.testing.assert_allclose(f.chance["mean"], 1)
    assert f.z is f.calibrated is None
    assert f.p == 1


def test_samples_are_permuted_whole():
    """Positions of one sample that resemble each other across samples are no evidence: samples are the unit of chance."""
    r = np.random.default_rng(9)
    n, positions, p = 12, 9, []
    shape = np.repeat(r.standard_normal((1, positions, 3)), n, axis=0)
    for seed in range(40):
        r = np.random.default_rng([2, seed])
        x, y = (shape + r.standard_normal((n, 1, 3)) + 0.1 * r.standard_normal((n, positions, 3)) for _ in range(2))
        pair = Pair(*(layer(k, v.reshape(-1, 3), positions=positions) for k, v in (("x", x), ("y", y))))
        f = figures(pair, [MEASURES["cka"]], 19, seed)["cka"]
        assert f.chance["mean"] > 0.3  # what all samples have in common stays in the null
        p.append(f.p)
    assert np.mean(np.array(p) <= 0.2) < 0.4
    assert kstest(np.array(p) - np.random.default_rng(0).random(40) / 20, "uniform").pvalue > 0.001


def test_the_same_seed_gives_the_same_null():
    x, y = np.random.default_rng(10).standard_normal((2, 30, 4))
    a, b, c = (measured(x, y, ("cka", "rsa_pearson"), 19, seed) for seed in (0, 0, 1))
    assert a == b
    assert a["cka"].chance != c["cka"].chance
    assert a["cka"].value == c["cka"].value


def test_no_permutations_no_chance():
    x, y = np.random.default_rng(11).standard_normal((2, 30, 4))
    f = measured(x, y, ("cka",), 0)["cka"]
    assert f.value is not None
    assert f.chance is f.p is f.z is f.calibrated is None


def test_wide_layers_get_fewer_permutations_and_no_less_than_the_fewest():
    some = [MEASURES[name] for name in ("cka", "cca", "matching_hard")]
    assert affordable([(1000, 64, 64)], some) == PERMUTATIONS
    few = affordable([(10_000, 2048, 2048)], some)
    assert FEWEST <= few < PERMUTATIONS
    assert affordable([(10_000, 2048, 2048)] * 50, some) == FEWEST


def test_many_samples_are_compared_by_a_seeded_choice():
    r = np.random.default_rng(12)
    x = r.standard_normal((3000, 4))
    y = x + r.standard_normal((3000, 4))
    f = measured(x, y, ("rsa_pearson", "cka_rbf", "mutual_knn", "cka"), 19)
    assert {name: g.rows for name, g in f.items()} == {"rsa_pearson": 1024, "cka_rbf": 1024, "mutual_knn": 1024, "cka": 3000}
    whole = measured(x[:1000], y[:1000], ("rsa_pearson", "cka_rbf"), 0)
    for name in whole:
        assert f[name].value == pytest.approx(whole[name].value, abs=0.05)
