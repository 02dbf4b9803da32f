"""For every invariance that a measure claims, that it holds; for every one that it does not claim, that it does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canon.similarity import MEASURES, measure
from canon.similarity.measures import MOVES

N, D = 40, 6


def permutation(r, x):
    return x[:, r.permutation(x.shape[1])]


def scale(r, x):
    return x * np.exp(r.standard_normal(x.shape[1]))


def sign(r, x):
    signs = r.choice([-1.0, 1.0], x.shape[1])
    signs[r.integers(x.shape[1])] = -1
    return x * signs


def isotropic(r, x):
    return x * np.exp(2 * r.standard_normal())


def orthogonal(r, x):
    return x @ np.linalg.qr(r.standard_normal((x.shape[1],) * 2))[0]


def linear(r, x):
    q = np.linalg.qr(r.standard_normal((x.shape[1],) * 2))[0]
    return x @ (q * np.exp(r.standard_normal(x.shape[1]))) @ np.linalg.qr(r.standard_normal((x.shape[1],) * 2))[0]


def translation(r, x):
    return x + 3 * r.standard_normal(x.shape[1])


def shift(r, x):
    return x + 3 * r.standard_normal((len(x), 1))


MOVE = {f.__name__: f for f in (permutation, scale, sign, isotropic, orthogonal, linear, translation, shift)}
CLAIMED = [(name, move) for name, m in MEASURES.items() for move in MOVES if move in m.invariant]
CLAIMED_OF_A = [(name, move) for name, m in MEASURES.items() for move in MOVES if move in m.predictor]
OTHER = [(name, move) for name, m in MEASURES.items() for move in MOVES if move not in m.invariant]


def two(r, wide=False):
    """Two related sides; wide: of more units than samples, and of different widths."""
    n, d1, d2 = (14, 20, 17) if wide else (N, D, D)
    common = r.standard_normal((n, 3))
    return tuple(common @ r.standard_normal((3, d)) + 0.8 * r.standard_normal((n, d)) for d in (d1, d2))


def test_all_moves_are_tried():
    assert set(MOVE) == set(MOVES)
    assert all(m.invariant | m.predictor <= set(MOVES) for m in MEASURES.values())


@pytest.mark.parametrize(("name", "move"), CLAIMED, ids="-".join)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), wide=st.booleans())
def test_claimed(name, move, seed, wide):
    r = np.random.default_rng(seed)
    x, y = two(r, wide and not MEASURES[name].outputs)
    value = measure(name, x, y)
    moved = MOVE[move]
    np.testing.assert_allclose(measure(name, moved(r, x), y), value, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(measure(name, x, moved(r, y)), value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "move"), CLAIMED_OF_A, ids="-".join)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_claimed_of_the_first_side(name, move, seed):
    r = np.random.default_rng(seed)
    x, y = two(r)
    np.testing.assert_allclose(measure(name, MOVE[move](r, x), y), measure(name, x, y), rtol=1e-8)


@pytest.mark.parametrize(("name", "move"), OTHER, ids="-".join)
def test_not_claimed(name, move):
    """A measure that sees a move sees it in nearly every draw: in each of five here."""
    r = np.random.default_rng(0)
    for _ in range(5):
        x, y = two(r)
        changes = [abs(measure(name, x, MOVE[move](r, y)) - measure(name, x, y)) for _ in range(3)]
        assert max(changes) > 1e-4


@pytest.mark.parametrize("name", [n for n, m in MEASURES.items() if not m.predictor])
def test_both_sides_count_alike(name):
    x, y = two(np.random.default_rng(1))
    np.testing.assert_allclose(measure(name, x, y), measure(name, y, x), rtol=1e-12)


def test_regression_does_not():
    x, y = two(np.random.default_rng(1), wide=False)
    assert abs(measure("regression", x[:, :2], y) - measure("regression", y, x[:, :2])) > 0.05
