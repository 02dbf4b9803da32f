"""Measures equal what others compute on the same inputs, and slow formulas written out; and say why where they have no value.

The figures of other tools were computed once, on inputs that are rebuilt here: netrep 0.0.2, repsim 0.1.5, ckatorch 1.0.3
and the benchmark ReSi (commit 24ab9e5). Left out are those that are wrong (repsim's unbiased CKA gives two equal matrices
0.85) and that are of something else (repsim's SVCCA keeps all components, and is compared as such).
"""

from itertools import permutations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import jensenshannon, pdist
from scipy.stats import pearsonr, spearmanr

from canon.errors import MismatchError, NotFinite, NumericError, UsageError
from canon.similarity import MEASURES, measure, measured
from canon.similarity.layer import Layer, layer
from canon.similarity.measures.cca import correlations
from canon.similarity.measures.cka import unbiased
from canon.similarity.measures.cka_minibatch import _linear, minibatch
from canon.similarity.measures.kernels import centred, distances, rbf
from canon.similarity.measures.svcca import svcca
from canon.similarity.pair import Pair

CASES = {
    "A": (0, 50, 8, 8, 2.0),
    "B": (1, 60, 10, 6, 1.0),
    "C": (2, 200, 16, 24, 3.0),
    "D_wide": (3, 20, 32, 40, 1.0),
}
"""name: (seed, n, d1, d2, noise)"""

VALUES: dict[str, tuple[float, float, float, float]] = {
    "netrep.LinearCKA.angle": (0.917594271221, 0.950214087896, 0.895492509814, 0.52801552879),
    "netrep.LinearMetric(alpha=1).angular": (0.767048502743, 0.827221694012, 0.729432851271, 0.316137104347),
    "netrep.LinearMetric(alpha=1).euclidean": (57.764128403, 50.47520892, 306.058795937, 127.546619514),
    "netrep.PermutationMetric.angular": (1.15744822245, 1.12728496673, 1.228835344, 1.05563651163),
    "repsim.cka.linear.gretton": (0.607732403411, 0.581508933721, 0.625134479912, 0.863808587297),
    "repsim.hsic.linear.song": (69.0618831747, 58.7028245534, 375.987794654, 1153.83880198),
    "repsim.cka.rbf.gretton": (0.64255587505, 0.584705153374, 0.64314477441, 0.900594006448),
    "repsim.cca.yanai": (0.553942646957, 0.786632237799, 0.664597580629, 0.95),
    "repsim.cca.pillai": (0.667872564934, 0.873417045621, 0.804005948056, 0.95),
    "repsim.svcca.yanai": (0.553942646957, 0.786632237799, 0.664597580629, 0.95),
    "repsim.pwcca[0,1]": (0.730664968945, 0.906131005504, 0.824760020046, 1.0),
    "ckatorch.cka_base.linear.unbiased": (0.554086941453, 0.54816510098, 0.596814179528, 0.722255723364),
    "ckatorch.cka_base.rbf.thr1": (0.642937258981, 0.584509397025, 0.643178110274, 0.901775920857),
    "ckatorch.cka_batch.2batches": (0.509519743144, 0.55614124977, 0.596287425869, 0.752355756104),
    "resi.HardCorrelationMatch": (0.420722912063, 0.505890203634, 0.407340959683, 0.547108410248),
    "resi.SoftCorrelationMatch": (0.4893291928, 0.478044238223, 0.403593926701, 0.561313553099),
    "resi.LinearRegression": (0.589486187385, 0.51126464909, 0.674991715763, 1.00000000049),
    "resi.RSA": (0.446327216041, 0.43299672068, 0.561399035728, 0.719238760076),
    "resi.JaccardSimilarity": (0.308948983593, 0.254881406004, 0.164339218143, 0.669813519814),
    "resi.PermutationProcrustes": (65.5669389868, 57.319550156, 331.884960883, 144.883738712),
    "resi.OrthogonalProcrustesCenteredAndNormalized": (0.748382013551, 0.803836610382, 0.713368773153, 0.314822265283),
    "resi.JSD": (0.20482185032, 0.210569280452, 0.1886529358, 0.221824032058),
    "resi.Disagreement": (0.82, 0.766666666667, 0.72, 0.85),
}


def inputs(case):
    seed, n, d1, d2, s = CASES[case]
    r = np.random.default_rng(seed)
    x = r.standard_normal((n, d1))
    return x, x @ r.standard_normal((d1, d2)) + s * r.standard_normal((n, d2))


def logits(n):
    r = np.random.default_rng(9)
    return r.standard_normal((n, 5)), r.standard_normal((n, 5))


def pair(x, y, centre=True):
    return Pair(layer("x", x, centre=centre), layer("y", y, centre=centre))


def hsic(x, y):
    """HSIC_1, through the sums that CKA uses."""
    p = pair(x, y).core
    return unbiased(np.vdot(p.cross, p.cross), p.products, p.a.norms[0], p.b.norms[0], len(x)) / (len(x) * (len(x) - 3))


def all_entries_rbf(x, y):
    """Biased RBF CKA whose bandwidth is the lower median of all n^2 squared distances, zeros on the diagonal among them."""
    k, l = (rbf(z, np.sort(distances(z), axis=None)[(len(z) ** 2 - 1) // 2]) for z in (x, y))  # noqa: E741
    k, l = centred(k), centred(l)  # noqa: E741
    return np.vdot(k, l) / np.linalg.norm(k) / np.linalg.norm(l)


def yanai(x, y, share=1.0):
    return (correlations(pair(x, y)) ** 2).sum() / min(len(x), x.shape[1], y.shape[1])


OURS = {
    "netrep.LinearCKA.angle": lambda x, y: np.arccos(measure("cka_biased", x, y)),
    "netrep.LinearMetric(alpha=1).angular": lambda x, y: measure("angular_shape", x, y),
    "netrep.LinearMetric(alpha=1).euclidean": lambda x, y: measure("procrustes_size", x, y),
    "netrep.PermutationMetric.angular": lambda x, y: measure("permutation_angle", x, y),
    "repsim.cka.linear.gretton": lambda x, y: measure("cka_biased", x, y),
    "repsim.hsic.linear.song": hsic,
    "repsim.cka.rbf.gretton": lambda x, y: measure("cka_rbf_biased", x, y),
    "repsim.cca.yanai": yanai,
    "repsim.cca.pillai": lambda x, y: correlations(pair(x, y)).sum() / min(len(x), x.shape[1], y.shape[1]),
    "repsim.svcca.yanai": yanai,
    "repsim.pwcca[0,1]": lambda x, y: measure("pwcca", x, y),
    "ckatorch.cka_base.linear.unbiased": lambda x, y: measure("cka", x, y),
    "ckatorch.cka_base.rbf.thr1": all_entries_rbf,
    "ckatorch.cka_batch.2batches": lambda x, y: minibatch(pair(x, y), _linear, len(x) // 2),
    "resi.HardCorrelationMatch": lambda x, y: measure("matching_hard", x, y),
    "resi.SoftCorrelationMatch": lambda x, y: measure("matching_soft", x, y),
    "resi.LinearRegression": lambda x, y: measure("regression", y, x),
    "resi.RSA": lambda x, y: measure("rsa_spearman", x, y),
    "resi.JaccardSimilarity": lambda x, y: measure("neighbour_jaccard", x, y),
    "resi.PermutationProcrustes": lambda x, y: MEASURES["permutation_distance"].of(pair(x, y, centre=False)),
    "resi.OrthogonalProcrustesCenteredAndNormalized": lambda x, y: measure("procrustes", x, y),
    "resi.JSD": lambda x, y: measure("jensen_shannon", *logits(len(x))),
    "resi.Disagreement": lambda x, y: measure("disagreement", *logits(len(x))),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", VALUES)
def test_ten_digits_of_other_tools(name, case):
    wanted = VALUES[name][list(CASES).index(case)]
    tolerance = 6e-10 if wanted == 1.00000000049 else 1e-10  # that one is 1, and the tool's own rounding
    np.testing.assert_allclose(OURS[name](*inputs(case)), wanted, rtol=tolerance)


def test_every_measure_is_held_against_something_else():
    with_tools = {"cka_biased", "angular_shape", "procrustes_size", "permutation_angle", "cka_rbf_biased", "pwcca", "cka"}
    with_tools |= {"cka_minibatch", "matching_hard", "matching_soft", "regression", "rsa_spearman", "neighbour_jaccard"}
    with_tools |= {"permutation_distance", "procrustes", "jensen_shannon", "disagreement", "cca"}
    assert with_tools | set(WRITTEN_OUT) == set(MEASURES)


# slow and obvious


def gram_hsic(k, l):  # noqa: E741
    """Song et al.'s (5), as printed."""
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))  # noqa: E741
    one = np.ones(n)
    return np.trace(k @ l) + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ k @ l @ one


def gram_cka(k, l):  # noqa: E741
    return gram_hsic(k, l) / np.sqrt(gram_hsic(k, k) * gram_hsic(l, l))


def median_rbf(x):
    d = pdist(x)
    full = np.sqrt(np.maximum(((x[:, None] - x) ** 2).sum(-1), 0))
    return np.exp(-(full**2) / (2 * np.median(d) ** 2))


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def r_matrix(x, y):
    return np.corrcoef(x, y, rowvar=False)[: x.shape[1], x.shape[1] :]


def best_match(gain):
    """Over all ways to give every row its own column, or to leave it out: rows no more than columns."""
    wide = np.pad(gain, ((0, 0), (0, len(gain))))
    return max(sum(wide[i, j] for i, j in enumerate(p)) for p in permutations(range(wide.shape[1]), len(gain)))


def span(x, share):
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    kept = int(np.argmax(np.cumsum(s**2) / (s**2).sum() >= share)) + 1
    return u[:, :kept]


def least_squares(x, y):
    x, y = np.c_[np.ones(len(x)), x], y - y.mean(0)
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - (left**2).sum() / (y**2).sum()


def neighbours(x, k=10):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -2)
    return [set(np.argsort(-row)[:k]) for row in cosine]


def softmax(x):
    e = np.exp(x)
    return e / e.sum(1, keepdims=True)


def procrustes(x, y):
    x, y = (z - z.mean(0) for z in (x, y))
    x, y = x / np.linalg.norm(x), np.pad(y, ((0, 0), (0, x.shape[1] - y.shape[1]))) / np.linalg.norm(y)
    return np.linalg.norm(x @ orthogonal_procrustes(x, y)[0] - y)


def cosine(p, q):
    return p @ q / np.linalg.norm(p) / np.linalg.norm(q)


WRITTEN_OUT = {
    "cka": lambda x, y: gram_cka(x @ x.T, y @ y.T),
    "cka_standardised": lambda x, y: gram_cka(standardised(x) @ standardised(x).T, standardised(y) @ standardised(y).T),
    "cka_rbf": lambda x, y: gram_cka(median_rbf(x), median_rbf(y)),
    "cka_rbf_minibatch": lambda x, y: gram_cka(median_rbf(x), median_rbf(y)),
    "matching_hard_unsigned": lambda x, y: best_match(np.abs(r_matrix(y, x))) / y.shape[1],
    "matching_partial": lambda x, y: best_match(r_matrix(y, x)) / x.shape[1],
    "cca": lambda x, y: np.linalg.svd(span(x, 1).T @ span(y, 1), compute_uv=False).mean(),
    "svcca": lambda x, y: np.linalg.svd(span(x, 0.99).T @ span(y, 0.99), compute_uv=False).mean(),
    "regression": least_squares,
    "procrustes": procrustes,
    "rsa_pearson": lambda x, y: pearsonr(pdist(x, "correlation"), pdist(y, "correlation"))[0],
    "rsa_spearman": lambda x, y: spearmanr(pdist(x, "correlation"), pdist(y, "correlation"))[0],
    "rsa_cosine": lambda x, y: cosine(pdist(x, "correlation"), pdist(y, "correlation")),
    "mutual_knn": lambda x, y: np.mean([len(p & q) / 10 for p, q in zip(neighbours(x), neighbours(y), strict=True)]),
    "jensen_shannon": lambda x, y: np.mean(
        [jensenshannon(p, q, base=2) ** 2 for p, q in zip(softmax(x[:, :3]), softmax(y), strict=True)]
    ),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_the_formula_written_out(name):
    r = np.random.default_rng(3)
    x = r.standard_normal((40, 5)) * [5, 3, 1, 0.2, 0.1] + 1
    y = x[:, :3] * [1, -2, 1] + 0.7 * r.standard_normal((40, 3))
    ours = measure(name, x[:, :3] if name == "jensen_shannon" else x, y)
    np.testing.assert_allclose(ours, WRITTEN_OUT[name](x, y), rtol=1e-10)


@pytest.mark.parametrize("name", MEASURES)
def test_the_same_is_best_and_everything_stays_in_range(name):
    m = MEASURES[name]
    r = np.random.default_rng(0)
    low, high = sorted((m.best, m.worst))
    x = r.standard_normal((30, 4))
    np.testing.assert_allclose(measure(name, x, x), m.best, atol=1e-7)
    for scale in (0.0, 0.1, 1.0):
        value = measure(name, x, scale * x + r.standard_normal((30, 4)))
        assert low <= value <= high
        assert abs(value - m.best) > 1e-3


# d x d and n x n


@pytest.mark.parametrize("name", [n for n, m in MEASURES.items() if "orthogonal" in m.invariant])
def test_wide_layers_give_what_narrow_ones_of_the_same_samples_give(name):
    """A layer of more units than samples, and the same layer padded or cut by a rotation to fewer: X X^T is the same."""
    r = np.random.default_rng(1)
    narrow, other = r.standard_normal((30, 6)), r.standard_normal((30, 5))
    turn = np.linalg.qr(r.standard_normal((200, 200)))[0][:6]
    wide = narrow @ turn
    assert layer("wide", wide).wide
    np.testing.assert_allclose(measure(name, wide, other), measure(name, narrow, other), rtol=1e-9)
    np.testing.assert_allclose(measure(name, other, wide), measure(name, other, narrow), rtol=1e-9)


def test_pwcca_of_wide_layers_weighs_units():
    x, y = inputs("D_wide")
    x, y = x[:, :25], y[:, :6]  # 19 directions against 6
    q = [np.linalg.qr(z - z.mean(0))[0][:, : np.linalg.matrix_rank(z - z.mean(0))] for z in (x, y)]
    u, rho, vt = np.linalg.svd(q[0].T @ q[1], full_matrices=False)
    weights = [np.abs((qz @ h).T @ (z - z.mean(0))).sum(1) for qz, h, z in zip(q, (u, vt.T), (x, y), strict=True)]
    np.testing.assert_allclose(measure("pwcca", x, y), np.mean([w @ rho / w.sum() for w in weights]), rtol=1e-10)


def test_badly_scaled_units_cost_no_digits():
    r = np.random.default_rng(2)
    x = r.standard_normal((300, 8))
    y = x @ r.standard_normal((8, 8)) + r.standard_normal((300, 8))
    far = x * 10.0 ** np.arange(-10, 14, 3)
    np.testing.assert_allclose(measure("cca", far, y), measure("cca", x, y), rtol=1e-12)
    np.testing.assert_allclose(measure("cka_standardised", far, y), measure("cka_standardised", x, y), rtol=1e-12)


def test_a_mean_far_away_costs_no_more_digits_than_its_values():
    r = np.random.default_rng(4)
    x, y = r.standard_normal((100, 4)), r.standard_normal((100, 4))
    for name in ("cka", "cca", "matching_hard", "procrustes"):
        np.testing.assert_allclose(measure(name, x + 1e6, y), measure(name, x, y), rtol=1e-8)


def test_svcca_keeps_the_components_that_hold_the_share():
    r = np.random.default_rng(5)
    x = np.linalg.qr(r.standard_normal((50, 4)) - 0.0)[0]
    x = np.linalg.qr(x - x.mean(0))[0]
    noisy = np.c_[x[:, :2], 0.01 * x[:, 2:]]
    shared = x[:, [0, 1, 3]]
    np.testing.assert_allclose(svcca(pair(noisy, shared)), 1.0)  # two components on one side, both shared
    np.testing.assert_allclose(svcca(pair(noisy, x[:, 2:])), 0.0, atol=1e-12)  # what is shared was not kept
    np.testing.assert_allclose(svcca(pair(noisy, x[:, 2:]), share=1.0), 1.0)


# what has no value, and what is refused


def test_constant_units_take_no_part():
    r = np.random.default_rng(6)
    x = r.standard_normal((50, 4))
    y = x[:, [2, 0, 1]] + 0.3 * r.standard_normal((50, 3))
    dead_x, dead_y = np.c_[x, np.zeros(50), np.full(50, 7.0)], np.c_[np.full(50, 0.1), y]
    for name in ("matching_hard", "matching_soft", "matching_partial", "cca", "cka", "cka_standardised", "procrustes", "svcca"):
        np.testing.assert_allclose(measure(name, dead_x, dead_y), measure(name, x, y), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n, m in MEASURES.items() if not m.outputs])
def test_a_layer_that_is_constant_all_over_is_said_to_be(name):
    x = np.random.default_rng(7).standard_normal((20, 3))
    for a, b in ((np.ones((20, 3)), x), (x, np.zeros((20, 2)))):
        with pytest.raises(NumericError, match="all units are constant"):
            measure(name, a, b)
        figure = measured(a, b, [name])[name]
        assert figure.value is figure.p is figure.z is figure.calibrated is figure.chance is None
        assert figure.why == "undefined: all units are constant"


def test_constant_up_to_rounding_is_constant():
    r = np.random.default_rng(8)
    wobble = (1.0 + 1e-7 * (r.random(40) > 0.5)).astype(np.float32)  # the last bit of a float32
    x = np.c_[wobble, r.standard_normal((40, 2)).astype(np.float32)].astype(np.float32)
    np.testing.assert_array_equal(layer("x", x).live, [False, True, True])
    np.testing.assert_array_equal(layer("x", x.astype(np.float64)).live, [True, True, True])  # as float64 it is a value


def test_one_sample_and_few_samples():
    x = np.random.default_rng(9).standard_normal((3, 4))
    with pytest.raises(UsageError, match="1 sample of 4 units: nothing to compare"):
        measure("cka", x[:1], x[:1])
    with pytest.raises(NumericError, match="needs at least 4 samples, and there are 3"):
        measure("cka", x, x)
    with pytest.raises(NumericError, match="10 nearest neighbours need more than 10 samples"):
        measure("mutual_knn", x, x)
    assert measure("matching_hard", x, x) == pytest.approx(1)
    assert measure("cka_biased", x[:2], x[:2, ::-1]) == pytest.approx(1)


def test_unequal_sample_counts():
    x = np.random.default_rng(10).standard_normal((30, 4))
    with pytest.raises(MismatchError, match="30 samples and 29"):
        measure("cka", x, x[1:])


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN"), (np.inf, "NaN or infinite"), (-np.inf, "infinite")])
def test_nan_and_infinity_are_found(bad, said):
    x = np.random.default_rng(11).standard_normal((30, 4))
    y = x.copy()
    y[7, 2] = y[20, 1] = bad
    with pytest.raises(NotFinite, match=rf"2 of 120 activations are .*{said}.* the first at sample 7, unit 2"):
        measure("cka", x, y)


def test_float16():
    r = np.random.default_rng(12)
    x = (100 * r.standard_normal((400, 8))).astype(np.float16)
    y = (x.astype(float) @ r.standard_normal((8, 5))).astype(np.float16)
    for name in ("cka", "cca", "matching_hard", "procrustes", "rsa_spearman"):  # sums of squares leave the range of float16
        assert measure(name, x, y) == measure(name, x.astype(np.float64), y.astype(np.float64))
    y[3, 1] = np.inf
    with pytest.raises(NotFinite, match="sample 3, unit 1; float16 ends at 65504"):
        measure("cka", x, y)


def test_whole_numbers_and_overflow():
    x = np.random.default_rng(13).integers(0, 9, (30, 3))
    assert measure("matching_hard", x, x.astype(np.uint8)) == pytest.approx(1)
    with pytest.raises(NumericError, match="overflow"):
        measure("cka_standardised", x * 1e200, x)
    with pytest.raises(UsageError, match="must be numbers, samples by units"):
        measure("cka", x.astype(str), x)
    with pytest.raises(UsageError, match="must be numbers, samples by units"):
        measure("cka", x[:, 0], x)
    with pytest.raises(UsageError, match="no measure 'cak'"):
        measure("cak", x, x)


def test_outputs_that_are_no_classes():
    x = np.random.default_rng(14).standard_normal((30, 3))
    with pytest.raises(NumericError, match="3 outputs and 2"):
        measure("disagreement", x, x[:, :2])
    with pytest.raises(NumericError, match="a single output"):
        measure("jensen_shannon", x[:, :1], x[:, :1])
    half = np.array([[0.5, 0.9, 0.4, 0.1]] * 5, np.float16)  # no logit is negative, yet their sum is far from 1
    p, q = softmax(half.astype(float)), softmax(half.astype(float)[:, ::-1])
    np.testing.assert_allclose(measure("jensen_shannon", half, half[:, ::-1]), jensenshannon(p[0], q[0], base=2) ** 2)
    p = softmax(x)
    np.testing.assert_allclose(measure("jensen_shannon", p, x + 3), 0, atol=1e-12)  # probabilities beside logits
    assert measure("jensen_shannon", np.eye(3)[[0, 1, 2, 0]], np.eye(3)[[1, 2, 0, 1]]) == pytest.approx(1)


def test_layers_are_centred_once_and_not_changed():
    x = np.random.default_rng(15).standard_normal((30, 3)) + 5
    before = x.copy()
    made = layer("x", x)
    np.testing.assert_array_equal(x, before)
    assert isinstance(made, Layer)
    assert made.scatter is made.scatter
    assert made.standardised.scatter is made.standardised.scatter


def test_units_that_depend_on_each_other_add_nothing_to_a_span():
    r = np.random.default_rng(16)
    x, y = r.standard_normal((60, 5)), r.standard_normal((60, 4))
    more = np.c_[x, x @ r.standard_normal((5, 3)), x[:, 0]]
    for name in ("cca", "regression"):
        np.testing.assert_allclose(measure(name, more, y), measure(name, x, y), rtol=1e-9)
