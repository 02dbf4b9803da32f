"""Streams: what is too large to hold is summed as it passes, with the same figures and in bounded memory."""

import tracemalloc

import h5py
import numpy as np
import pytest

from canon.errors import NotFinite, UsageError
from canon.similarity import MEASURES, Options, Source, similarity
from canon.similarity.activations import Extent
from canon.similarity.choosing import Given, Request, sources

R = np.random.default_rng(0)


def write(path, values):
    with h5py.File(path, "w") as f:
        f["layer"] = values
    return path


class Drawn(Source):
    """Rows drawn as they are asked for: nobody holds them."""

    def __init__(self, samples, units, seed, positions=1):
        self.path = self.origin = f"drawn {seed}"
        self.samples, self.ids, self.about, self.outputs = samples, None, {}, frozenset()
        self.layers = {name: Extent(positions, units) for name in ("one", "two")}
        self.cost, self.positions, self.seed = 16 * units * positions, "samples", seed

    def batches(self, names, batch):
        for first in range(0, self.samples, batch):
            count = min(batch, self.samples - first) * self.layers["one"].positions
            out = {}
            for k, name in enumerate(("one", "two")):
                common = np.random.default_rng([k, first]).standard_normal((count, 4))
                r = np.random.default_rng([k, first, self.seed])
                mixed = common @ np.random.default_rng(self.seed).standard_normal((4, self.layers[name].units))
                out[name] = np.maximum(mixed + r.standard_normal(mixed.shape) + 3, 0)
            yield {name: out[name] for name in names}


@pytest.mark.parametrize("positions", [1, 5])
def test_a_stream_gives_what_rows_held_give(positions):
    a, b = (Drawn(6000, 12, seed, positions) for seed in (1, 2))
    names = tuple(n for n, m in MEASURES.items() if m.work != "samples" and not m.outputs)
    held = similarity(a, b, Options(names, permutations=49, units=True))
    streamed = similarity(a, b, Options(names, permutations=49, units=True, hold=1 << 17))
    assert held.held == 6000 > streamed.held
    assert any("summed in batches" in note for note in streamed.notes)
    for p, q in zip(held.layers, streamed.layers, strict=True):
        for name in p.measures:
            f, g = p.measures[name], q.measures[name]
            np.testing.assert_allclose(g.value, f.value, rtol=1e-10, atol=1e-12)
            spread = f.chance["sd"]
            np.testing.assert_allclose(g.chance["mean"], f.chance["mean"], atol=3 * spread)
            assert 0.5 < g.chance["sd"] / spread < 2
    for t, u in zip(held.units, streamed.units, strict=True):
        assert [(v.a, v.b, v.flags) for v in t.units] == [(v.a, v.b, v.flags) for v in u.units]
        np.testing.assert_allclose([v.active[0] for v in t.units], [v.active[0] for v in u.units])


def test_a_stream_needs_no_more_memory_than_its_sums():
    """200,000 samples of 32 units on both sides, twice over: 205 MB of rows, in a few."""
    a, b = (Drawn(200_000, 32, seed) for seed in (1, 2))
    said = []
    tracemalloc.start()
    result = similarity(a, b, Options(("cka", "cca", "matching_hard"), permutations=9, hold=1 << 22), tell=said.append)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6
    assert result.samples == 200_000
    assert result.layers[0].measures["cca"].value < 1
    assert "drawn 1: means, 2,048 of 200,000 samples" in said
    assert any(text.startswith("products of") for text in said)


def test_bad_values_in_a_stream_are_named(tmp_path):
    bad = R.standard_normal((5000, 4))
    bad[4321, 2] = np.inf
    a, b = (write(tmp_path / f"{k}.h5", v) for k, v in (("a", np.zeros_like(bad)), ("b", bad)))
    with pytest.raises(NotFinite, match="sample 4321, unit 2"):
        similarity(*sources([Given(str(p), None) for p in (a, b)], Request()), Options(("cka",), permutations=0, hold=1 << 16))


def test_layers_too_wide_for_sums_are_refused(tmp_path):
    a = write(tmp_path / "a.h5", R.standard_normal((100, 300)))
    side = sources([Given(str(a), None)], Request())[0]
    with pytest.raises(UsageError, match="300 units on 100 samples: neither these rows nor sums"):
        similarity(side, side, Options(("cka",), hold=1 << 17))


def test_rows_too_large_even_for_a_few_samples_are_refused():
    side = Drawn(100, 12, 1, positions=50)
    with pytest.raises(UsageError, match="19,200 bytes of activations a sample: not even 8 samples can be held"):
        similarity(side, Drawn(100, 12, 2, positions=50), Options(("cka",), hold=1 << 17))


def test_batches_without_a_chosen_sample(tmp_path):
    """Of many samples a few are held: most batches have none of them."""
    values = R.standard_normal((40_000, 2))
    a, b = (write(tmp_path / f"{k}.h5", v) for k, v in (("a", values), ("b", values[:, ::-1])))
    given = sources([Given(str(p), None) for p in (a, b)], Request())
    result = similarity(*given, Options(("cka",), permutations=5, hold=32 * 8))
    assert result.held == 8
    assert result.layers[0].measures["cka"].value == pytest.approx(1)
