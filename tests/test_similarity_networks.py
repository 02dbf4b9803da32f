"""On the networks of data/: copy, fine-tune, other seed and random net come out in that order, and CKA is shown to fail."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from canon.formats import read
from canon.similarity import MEASURES, Computed, Options, similarity
from canon.similarity.choosing import odd_layers
from canon.similarity.probes import from_file, noise
from canon.transform import teleport

DATA = Path(__file__).parents[1] / "data"
DIGITS = from_file(f"{DATA}/digits.npz:flat")
IN_ORDER = ("mlp-seed0-disguised.h5", "mlp-seed0-tuned.h5", "mlp-seed1.h5", "mlp-run.h5:0")
CLAIM = [name for name, m in MEASURES.items() if {"permutation", "scale"} <= m.invariant]
"""Measures that do not see how units are numbered and scaled."""


def computed(name, probes=DIGITS, **kw):
    path, _, step = name.partition(":")
    return Computed(read(DATA / path, checkpoint=step or None), probes, **kw)


def values(result, a, b=None):
    pair = next(p for p in result.layers if (p.a, p.b) == (a, b or a))
    return {name: f.value for name, f in pair.measures.items()}


@pytest.fixture(scope="module")
def digits():
    a = computed("mlp-seed0.h5")
    options = Options(tuple(MEASURES), permutations=0)
    return {name: similarity(a, computed(name), options) for name in IN_ORDER}


def test_some_measures_claim_it():
    assert {"matching_hard", "matching_soft", "matching_partial", "cca", "cka_standardised"} <= set(CLAIM)


@pytest.mark.parametrize("layer", ["dense_1", "dense_2"])
@pytest.mark.parametrize("name", CLAIM)
def test_copy_tuned_seed_random(name, layer, digits):
    found = [values(digits[file], layer)[name] for file in IN_ORDER]
    np.testing.assert_allclose(found[0], 1, atol=1e-5)  # stored in float32
    for nearer, farther in itertools.pairwise(found):
        assert nearer > farther


@pytest.mark.parametrize("name", ["disagreement", "jensen_shannon"])
def test_outputs_copy_tuned_seed_random(name):
    """On noise, where the networks are not all trained to agree."""
    probes = noise(read(DATA / "mlp-seed0.h5").network, None, 0)
    a = computed("mlp-seed0.h5", probes)
    options = Options((name,), permutations=0)
    found = [values(similarity(a, computed(file, probes), options), "dense_3")[name] for file in IN_ORDER]
    np.testing.assert_allclose(found[0], 0, atol=1e-5)
    for nearer, farther in itertools.pairwise(found):
        assert nearer < farther - 0.05


@pytest.mark.parametrize("name", ["cka", "cka_biased", "procrustes", "angular_shape", "permutation_angle"])
def test_where_cka_fails(name, digits):
    """An exact copy, rescaled, falls below another seed's network by every measure that sees the scale of single units."""
    m = MEASURES[name]
    assert "scale" not in m.invariant
    for layer in ("dense_1", "dense_2"):
        copy, _, seed, _ = (values(digits[file], layer)[name] for file in IN_ORDER)
        assert (copy > seed) if m.distance else (copy < seed)


def test_how_far_cka_fails(digits):
    copy, seed = (values(digits[file], "dense_1")["cka"] for file in ("mlp-seed0-disguised.h5", "mlp-seed1.h5"))
    assert copy == pytest.approx(0.492, abs=0.005)
    assert seed == pytest.approx(0.958, abs=0.005)
    copy, seed = (values(digits[f], "dense_1")["cka_standardised"] for f in ("mlp-seed0-disguised.h5", "mlp-seed1.h5"))
    assert copy == pytest.approx(1, abs=1e-6)
    assert seed == pytest.approx(0.939, abs=0.005)


def test_every_layer_of_a_copy_is_best_matched_by_its_namesake(digits):
    for file in IN_ORDER[:3]:
        assert [(b.a, b.b) for b in digits[file].best] == [(f"dense_{i}",) * 2 for i in (1, 2, 3)]


def test_the_yardstick_of_other_seeds():
    a = computed("mlp-seed0.h5")
    result = similarity(a, computed("mlp-seed0-tuned.h5"), Options(), [computed("mlp-seed1.h5"), computed("mlp-seed2.h5")])
    direct = similarity(a, computed("mlp-seed2.h5"), Options(permutations=0))
    for pair in result.detailed:
        for name, f in pair.measures.items():
            assert list(f.reference) == [str(DATA / "mlp-seed1.h5"), str(DATA / "mlp-seed2.h5")]
            np.testing.assert_allclose(f.reference[str(DATA / "mlp-seed2.h5")], values(direct, pair.a, pair.b)[name])
    hard = next(p for p in result.detailed if p.a == "dense_1").measures["matching_hard"]
    assert hard.chance["mean"] < min(hard.reference.values()) < hard.value
    assert hard.p == 0.01


# units


def test_units_of_a_copy_find_the_permutation_and_the_scale():
    a, b = computed("mlp-seed0.h5"), computed("mlp-seed0-disguised.h5")
    result = similarity(a, b, Options(units=True))
    for table in result.units[:2]:
        x, y = (s.run.network.tensors[f"{table.a}/bias"] for s in (a, b))
        kernels = [s.run.network.tensors[f"{table.a}/kernel"] for s in (a, b)]
        if table.a == "dense_1":  # the disguise scales its units; further layers take the inverse in
            for u in table.units:
                if u.correlation is not None and u.b is not None:
                    np.testing.assert_allclose(kernels[0][u.a], u.scale * kernels[1][u.b], rtol=1e-4, atol=1e-6)
                    np.testing.assert_allclose(x[u.a], u.scale * y[u.b], rtol=1e-4, atol=1e-6)
        live = [u for u in table.units if u.correlation is not None]
        assert len(table.both) == len(live)
        assert table.only(0) == table.only(1) == ()
        assert all(u.correlation > 0.99999 and u.distance < 1e-3 for u in live)
    dead = [u for u in result.units[0].units if "dead a" in u.flags]
    assert [(u.a, u.b, u.correlation, u.active[0]) for u in dead] == [(23, None, None, 0.0)]
    assert all("dead b" in u.flags for u in result.units[0].units if u.a is None)


def test_units_of_another_seed_are_found_on_one_side():
    result = similarity(computed("mlp-seed0.h5"), computed("mlp-seed1.h5"), Options(units=True))
    tuned = similarity(computed("mlp-seed0.h5"), computed("mlp-seed0-tuned.h5"), Options(units=True))
    assert len(result.units[0].both) < 24 < 44 < len(tuned.units[0].both)
    table = result.units[0]
    for u in table.both:
        assert u.correlation > table.threshold
        r = table.correlations
        assert r[u.a, u.b] == r[u.a].max() == r[:, u.b].max()
    seen_a = {u.a for u in table.both} | set(table.only(0))
    assert seen_a | {23} == set(range(48))
    assert result.as_dict(units=True)["found"][0]["only_a"] == list(table.only(0))


def test_units_of_unrelated_layers_are_hardly_found():
    r = np.random.default_rng(0)
    from canon.similarity.layer import layer
    from canon.similarity.null import figures
    from canon.similarity.pair import Pair
    from canon.similarity.units import Watch, units

    found = 0
    for _ in range(40):
        pair, watch = Pair(*(layer(k, r.standard_normal((60, 8))) for k in "xy")), Watch(False)
        figures(pair, [MEASURES["cka"]], 39, watch=watch)
        found += bool(units(pair, ("x", "y"), watch).both)
    assert found <= 6  # one in twenty finds any


def test_twins_rare_and_ambiguous_units_are_flagged():
    from canon.similarity.layer import layer
    from canon.similarity.null import figures
    from canon.similarity.pair import Pair
    from canon.similarity.units import Watch, units

    r = np.random.default_rng(1)
    x = np.maximum(r.standard_normal((500, 5)), 0)
    x[:, 1] = 2 * x[:, 0]
    x[:, 2] = np.where(np.arange(500) == 7, 1.0, 0.0)
    x[:, 3] = 4.0
    pair, watch = Pair(layer("x", x), layer("y", x.copy())), Watch(False)
    figures(pair, [MEASURES["matching_hard"]], 19, watch=watch)
    flags = [set(u.flags) for u in units(pair, ("x", "y"), watch).units]
    assert {"duplicate a", "duplicate b", "ambiguous"} <= flags[0]
    assert "duplicate a" in flags[1]
    assert flags[2] == {"rare a", "rare b"}
    assert flags[3] == {"constant a"}
    assert flags[4] == set()
    assert flags[5] == {"constant b"}


def test_tanh_units_match_with_their_negative():
    run = read(DATA / "mlp-tanh.h5")
    turned = run.with_network(teleport(run.network, 3).network)
    a, b = Computed(run, DIGITS), Computed(turned, DIGITS)
    odd = odd_layers(run.network, list(a.layers))
    assert odd == {"dense_1", "dense_2"}
    result = similarity(a, b, Options(("matching_hard", "matching_hard_unsigned"), units=True, unsigned=odd))
    assert values(result, "dense_1")["matching_hard_unsigned"] == pytest.approx(1, abs=1e-6)
    assert values(result, "dense_1")["matching_hard"] < 0.9
    assert all(u.found for u in result.units[0].units)
    assert {np.sign(u.scale) for u in result.units[0].units} == {-1.0, 1.0}


# convolutions


def test_positions_of_images():
    square = from_file(f"{DATA}/digits.npz:square")
    sides = [
        [computed(f"cnn-seed0{x}.h5", square, positions=how) for x in ("", "-disguised")]
        for how in ("samples", "units", "mean")
    ]
    by = [similarity(*pair, Options(permutations=19)) for pair in sides]
    assert dict(by[0].a.layers[0].__dict__, constant=0) == {
        "name": "relu_1", "units": 8, "positions": 64, "constant": 0, "output": False,
    }  # fmt: skip
    assert (by[1].a.layers[0].units, by[1].a.layers[0].positions) == (512, 1)
    assert (by[2].a.layers[0].units, by[2].a.layers[0].positions) == (8, 1)
    for result in by:
        for name in ("relu_1", "relu_2"):
            np.testing.assert_allclose(values(result, name)["cka_standardised"], 1, atol=1e-5)
            np.testing.assert_allclose(values(result, name)["matching_hard"], 1, atol=1e-4)
    assert {(x, y) for x, y, _ in by[0].left_out} == {
        ("relu_1", "relu_2"), ("relu_2", "relu_1"), ("relu_1", "dense_1"),
        ("dense_1", "relu_1"), ("relu_2", "dense_1"), ("dense_1", "relu_2"),
    }  # fmt: skip
    assert not by[2].left_out
    assert [r.positions.partition(" ")[0] for r in by] == ["channels,", "flattened:", "channels,"]


def test_noise_is_said_to_be_noise_and_does_not_depend_on_the_batch():
    network = read(DATA / "mlp-seed0.h5").network
    probes = noise(network, 300, 5)
    assert "noise" in probes.label
    whole = next(iter(probes.inputs.rows(network, 0, 300).values()))
    parts = [next(iter(probes.inputs.rows(network, i, min(i + 77, 300)).values())) for i in range(0, 300, 77)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole.std() == pytest.approx(1, abs=0.02)
