"""bfloat16: rounding against exact arithmetic and torch, and what it means for verdicts and copies, in every container."""

import json
from fractions import Fraction

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from canon import formats
from canon.compare import compare
from canon.precision import as_stored, from_bfloat16, roundoff, tiny, to_bfloat16
from canon.transform import canonicalize, teleport
from canon_cli.main import main

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_bfloat16_is_a_float32_and_comes_back():
    values = from_bfloat16(EVERY)
    wanted = torch.from_numpy(EVERY.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(values.view(np.uint32), wanted.view(np.uint32))
    real = ~np.isnan(values)
    np.testing.assert_array_equal(to_bfloat16(values)[real], EVERY[real])
    assert np.isnan(from_bfloat16(to_bfloat16(values[~real]))).all()


def test_float32_is_rounded_as_torch_rounds():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    bits[::3] = (bits[::3] & 0xFFFF0000) | 0x8000  # ties
    values = bits.view(np.float32)
    found, wanted = from_bfloat16(to_bfloat16(values)), torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_array_equal(found[~np.isnan(values)], wanted[~np.isnan(values)])


FINITE = from_bfloat16(EVERY[:0x7F80])  # from 0 up to the largest


@settings(derandomize=True, max_examples=400, deadline=None)
@given(st.integers(0, len(FINITE) - 2), st.integers(-3, 3), st.booleans())
def test_float64_is_rounded_once(at, off, negative):
    """Around every tie: by way of float32 a value a little off it would become one."""
    low, high = (float(v) for v in FINITE[at : at + 2])
    value = (low + high) / 2
    for _ in range(abs(off)):
        value = np.nextafter(value, np.inf * off)
    below, above = Fraction(value) - Fraction(low), Fraction(high) - Fraction(value)
    wanted = low if below < above else high if above < below else (low, high)[at % 2]
    sign = -1 if negative else 1
    assert from_bfloat16(to_bfloat16(np.array(sign * value))) == sign * wanted


def test_limits_and_shapes():
    assert (roundoff("bfloat16"), roundoff("float32"), roundoff("float16")) == (2.0**-8, 2.0**-24, 2.0**-11)
    assert tiny("bfloat16") == tiny("float32") == float(from_bfloat16(np.array([0x0080], np.uint16))[0])
    for shape in ((), (0, 3), (2, 3)):
        assert to_bfloat16(np.ones(shape)).shape == shape
    assert np.isinf(as_stored(np.array(3.4e38), "bfloat16"))
    assert as_stored(np.ones(2), "float16").dtype == np.float16


# verdicts


def weights(seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 9)
    )
    return net.state_dict()


def half(content):
    return {name: t.bfloat16() for name, t in content.items()}


@pytest.fixture(params=["safetensors", "pt"])
def saved(request, tmp_path):
    def save(name, content):
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "pt":
            torch.save(content, path)
        else:
            safetensors.torch.save_file(content, path)
        return path

    return save


def read(path):
    return formats.read(path, activation="relu")


def said(a, b):
    return compare(a if not hasattr(a, "parts") else read(a), b if not hasattr(b, "parts") else read(b))


def test_a_cast_is_the_same_to_its_precision(saved):
    found = said(saved("a", weights()), saved("b", half(weights())))
    assert found.verdict == "same-to-precision"
    assert "bfloat16" in found.reason
    assert (found.a.dtype, found.b.dtype) == ("float32", "bfloat16")


def test_a_cast_of_float16_is_not_taken_for_bfloat16(saved):
    found = said(saved("a", weights()), saved("b", {n: t.half() for n, t in weights().items()}))
    assert (found.verdict, "float16" in found.reason, "bfloat16" in found.reason) == ("same-to-precision", True, False)


def test_a_lossless_upcast_is_equivalent_and_the_same_file_identical(saved, tmp_path):
    a = saved("a", half(weights()))
    assert said(a, saved("b", {n: t.float() for n, t in half(weights()).items()})).verdict == "equivalent"
    torch.save(half(weights()), tmp_path / "other")
    assert said(a, tmp_path / "other").verdict == "identical"


def test_two_disguises_are_the_same_to_precision(saved, tmp_path):
    run = read(saved("a", half(weights())))
    made = []
    for seed in (1, 2):
        moved = teleport(run.network, seed)
        formats.write(run.with_network(moved.network), tmp_path / f"m{seed}")
        made.append(read(tmp_path / f"m{seed}"))
        assert made[-1].network.main_type == "bfloat16"
        for name, t in moved.network.tensors.items():  # what was proved is what is written
            np.testing.assert_array_equal(made[-1].network.tensors[name], t)
            np.testing.assert_array_equal(as_stored(t, "bfloat16"), t)
    found = said(*made)
    assert found.verdict == "same-to-precision"
    assert "bfloat16" in found.reason


def test_a_finer_change_than_the_type_holds_is_the_same_to_precision_and_a_coarser_one_is_not(saved):
    torch.manual_seed(5)
    a = saved("a", half(weights()))
    for name, size, verdict in (("b", 2.0**-9, "same-to-precision"), ("c", 0.3, "related")):
        moved = half({n: t * (1 + size * torch.randn(t.shape)) for n, t in weights().items()})
        assert said(a, saved(name, moved)).verdict == verdict


def test_canonicalising_twice_changes_nothing(saved, tmp_path):
    run = read(saved("a", half(weights())))
    once = canonicalize(run.network)
    formats.write(run.with_network(once.network), tmp_path / "b")
    again = canonicalize(read(tmp_path / "b").network)
    for name, t in once.network.tensors.items():
        np.testing.assert_array_equal(again.network.tensors[name], t)


def test_the_type_is_kept_where_it_can_be_and_told_where_not(saved, tmp_path, capsys):
    path = saved("a", half(weights()))
    for to, kind in (("canon", "bfloat16"), ("torch", "bfloat16"), ("safetensors", "bfloat16"), ("npz", "float32")):
        assert main(["convert", str(path), "-o", str(tmp_path / to), "--to", to]) == 0
        assert ("what was stored in bfloat16 is written in float32" in capsys.readouterr().err) == (kind == "float32")
        assert main(["show", str(tmp_path / to), "--json", "-", "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out)["dtype"] == kind
    assert said(path, tmp_path / "canon").verdict == "identical"


def test_a_borrowed_graph_keeps_the_type(saved, tmp_path):
    formats.write(read(saved("a", weights())), tmp_path / "a.canon", "canon")
    run = formats.read(saved("b", half(weights())), architecture=tmp_path / "a.canon")
    assert (run.graph, run.network.main_type) == ("borrowed", "bfloat16")
    assert said(formats.read(tmp_path / "a.canon"), run).verdict == "same-to-precision"
