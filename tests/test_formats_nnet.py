"""The .nnet text format: layers, what its header says of inputs and outputs, precision of its decimals, copies, damage."""

import json
import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from canon import formats
from canon.action import random_action
from canon.compare import compare
from canon.errors import CanonError, CorruptFile, UnknownFormat, WriteError
from canon.forward import forward
from canon.symmetry import derive
from canon_cli.main import main

SIZES = [3, 5, 4, 2]
LEAST, LARGEST = [-1.0, -2.0, 0.0], [1.0, 2.0, 50.0]
MEANS, RANGES = [0.25, -0.5, 20.0, 1.5], [2.0, 4.0, 30.0, 7.0]


def layers(seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((m, n)), rng.standard_normal(m)) for n, m in pairwise(SIZES)]


def text(nets, digits=6, means=MEANS, ranges=RANGES, largest=LARGEST, comma=",", comment="// made for a test"):
    rows = [comment, f"{len(nets)},{SIZES[0]},{SIZES[-1]},{max(SIZES)},", ",".join(map(str, SIZES)) + ",", "0,"]
    rows += [",".join(map(str, line)) + "," for line in (LEAST, largest, means, ranges)]
    for kernel, bias in nets:
        rows += [",".join(f"{v:.{digits - 1}e}" for v in row) + comma for row in kernel]
        rows += [f"{v:.{digits - 1}e}{comma}" for v in bias]
    return "\n".join(rows) + "\n"


def write(path, *args, **kwargs):
    path.write_text(text(*args, **kwargs))
    return path


def by_hand(nets, x, digits=6, header=True, clip=True):
    if header:
        x = np.clip(x, LEAST, LARGEST) if clip else x
        x = (x - MEANS[:3]) / RANGES[:3]
    for i, (kernel, bias) in enumerate(nets):
        x = x @ np.array([[float(f"{v:.{digits - 1}e}") for v in row] for row in kernel]).T + [
            float(f"{v:.{digits - 1}e}") for v in bias
        ]
        x = np.maximum(x, 0) if i < len(nets) - 1 else x
    return x * RANGES[3] + MEANS[3] if header else x


def only(network, x):
    (y,) = forward(network, {"input": x}).values()
    return y


def test_the_network_is_its_layers_and_what_the_header_says_stands_beside(tmp_path):
    run = formats.read(write(tmp_path / "a.txt", layers()))
    assert (run.format, run.graph, run.network.parameters) == ("nnet", "stored", 54)
    assert [op.kind for op in run.network.ops] == ["dense", "relu", "dense", "relu", "dense"]
    x = 3 * np.random.default_rng(1).standard_normal((40, 3))
    np.testing.assert_allclose(only(run.network, x), by_hand(layers(), x, header=False), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(only(run.whole, x), by_hand(layers(), x), rtol=1e-5, atol=1e-4)
    (open_,) = run.alternatives
    np.testing.assert_allclose(only(open_, x), by_hand(layers(), x, clip=False), rtol=1e-5, atol=1e-4)
    assert np.abs(only(open_, x) - only(run.whole, x)).max() > 0.1  # some of these inputs are out of bounds
    assert run.readings == ("with the normalisation of its header, nothing clipped",)
    assert run.notes[1] == "its header normalises inputs and outputs: the network is its layers alone, without that"


def test_a_header_that_normalises_nothing_is_nothing(tmp_path):
    run = formats.read(write(tmp_path / "a.nnet", layers(), means=[0] * 4, ranges=[1] * 4))
    assert run.alternatives == ()
    assert len(run.notes) == 1


@pytest.mark.parametrize("comment", ["", "// one\n// another,1,2\n\n"])
def test_comments_and_commas_vary(tmp_path, comment):
    one = formats.read(write(tmp_path / "a.nnet", layers()))
    other = formats.read(write(tmp_path / "b.nnet", layers(), comma="", comment=comment))
    assert compare(one, other).verdict == "identical"


# precision


@pytest.mark.parametrize(("digits", "dtype"), [(1, "float32"), (6, "float32"), (8, "float64"), (9, "float64"), (17, "float64")])
def test_decimals_of_numbers_that_never_were_float32(tmp_path, digits, dtype):
    run = formats.read(write(tmp_path / "a.nnet", layers(), digits))
    assert {str(t.dtype) for t in run.network.tensors.values()} == {dtype}
    assert run.notes[0].startswith(f"its numbers have up to {digits} decimal digits: kept as {dtype}")


@pytest.mark.parametrize("digits", [7, 8, 9, 17])
def test_decimals_of_float32_numbers(tmp_path, digits):
    single = [(k.astype(np.float32).astype(float), b.astype(np.float32).astype(float)) for k, b in layers()]
    run = formats.read(write(tmp_path / "a.nnet", single, digits))
    for i, (kernel, bias) in enumerate(single, 1):
        found = run.network.tensors[f"layer_{i}/kernel"], run.network.tensors[f"layer_{i}/bias"]
        assert found[0].dtype == np.float32
        if digits >= 9:
            np.testing.assert_array_equal(found[0], kernel)
            np.testing.assert_array_equal(found[1], bias)


# comparing


def test_headers_count_where_both_files_have_one(tmp_path):
    one = formats.read(write(tmp_path / "a.nnet", layers()))
    same = compare(one, formats.read(write(tmp_path / "b.nnet", layers())))
    assert same.verdict == "identical"
    assert "what the files say of their inputs and outputs is the same" in same.notes
    rounded = compare(one, formats.read(write(tmp_path / "c.nnet", layers(), means=[0.25000000001, -0.5, 20.0, 1.5])))
    assert rounded.verdict == "equivalent"
    assert "what the files say of their inputs and outputs is the same to rounding" in rounded.notes
    for other in ({"means": [0.25, -0.5, 20.0, 1.6]}, {"ranges": [2.0, 4.0, 31.0, 7.0]}, {"largest": [1.0, 2.0, 49.0]}):
        found = compare(one, formats.read(write(tmp_path / "d.nnet", layers(), **other)))
        assert not found.same
        assert "and are compared with that; without it they are identical" in found.notes[-1]


def normalised(path, clipped=False):
    """The same network in canon's own format, its header folded into the first and the last layer."""
    from canon.network import Network
    from canon.run import Run

    run = formats.read(path)
    tensors = {n: np.asarray(t, float) for n, t in run.network.tensors.items()}
    gain, shift = 1 / np.array(RANGES[:3]), -np.array(MEANS[:3]) / RANGES[:3]
    tensors["layer_1/bias"] = tensors["layer_1/bias"] + tensors["layer_1/kernel"] @ shift
    tensors["layer_1/kernel"] = tensors["layer_1/kernel"] * gain
    tensors["layer_3/kernel"] = tensors["layer_3/kernel"] * RANGES[3]
    tensors["layer_3/bias"] = tensors["layer_3/bias"] * RANGES[3] + MEANS[3]
    return Run("folded", "test", Network(tensors, run.network.ops, run.network.inputs, run.network.outputs))


def test_a_network_into_which_the_header_was_folded_is_found(tmp_path):
    path = write(tmp_path / "a.nnet", layers())
    found = compare(formats.read(path), normalised(path))
    assert found.verdict == "equivalent"
    assert found.notes[-1] == "the verdict reads a with the normalisation of its header, nothing clipped"
    plain = compare(formats.read(write(tmp_path / "b.nnet", layers(1))), normalised(path))
    assert not plain.same


# copies


def test_a_copy_with_other_layers(tmp_path, capsys):
    path = write(tmp_path / "a.nnet", layers())
    run = formats.read(path)
    g = random_action(derive(run.network), run.network, np.random.default_rng(1))
    moved = run.with_network(run.network.with_tensors({n: t.astype(np.float32) for n, t in g(run.network).tensors.items()}))
    notes = formats.write(moved, tmp_path / "b.nnet", actions={"layer_1": {"perm": np.arange(5)}})
    assert notes == ("what led to the copy is not kept in it: the format has no place for it",)
    again = formats.read(tmp_path / "b.nnet")
    for name, t in moved.network.tensors.items():
        np.testing.assert_array_equal(again.network.tensors[name], t)
        assert again.network.tensors[name].dtype == np.float32
    assert compare(run, again).verdict == "equivalent"
    assert (tmp_path / "b.nnet").read_text().splitlines()[:8] == path.read_text().splitlines()[:8]
    assert main(["teleport", str(path), "-o", str(tmp_path / "c.nnet"), "--quiet"]) == 0
    assert main(["canonicalize", str(tmp_path / "c.nnet"), "-o", str(tmp_path / "d.nnet"), "--quiet"]) == 0
    assert main(["align", str(path), str(tmp_path / "c.nnet"), "-o", str(tmp_path / "e.nnet"), "--quiet"]) == 0
    for name in "cde":
        capsys.readouterr()
        assert main(["compare", str(path), str(tmp_path / f"{name}.nnet"), "--json", "-", "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "equivalent"


def test_what_did_not_change_is_kept_letter_by_letter(tmp_path):
    path = write(tmp_path / "a.nnet", layers(), 17)
    run = formats.read(path)
    formats.write(run, tmp_path / "b.nnet")
    assert (tmp_path / "b.nnet").read_bytes() == path.read_bytes()
    other = {**run.network.tensors, "layer_2/bias": run.network.tensors["layer_2/bias"] + 1}
    formats.write(run.with_network(run.network.with_tensors(other)), tmp_path / "c.nnet")
    differ = [
        a != b for a, b in zip(path.read_text().splitlines(), (tmp_path / "c.nnet").read_text().splitlines(), strict=True)
    ]
    assert sum(differ) == 4
    np.testing.assert_array_equal(formats.read(tmp_path / "c.nnet").network.tensors["layer_2/bias"], other["layer_2/bias"])


def test_a_copy_is_whole_or_not_there(tmp_path):
    run = formats.read(write(tmp_path / "a.nnet", layers()))
    (tmp_path / "b.nnet").write_text("there before")
    large = run.with_network(run.network.with_tensors({"layer_1/bias": np.full(5, 1e60)}))
    with pytest.raises(WriteError, match="beyond the range of float32"):
        formats.write(large, tmp_path / "b.nnet")
    assert (tmp_path / "b.nnet").read_text() == "there before"


# damage


def broken(lines, i, line):
    return [*lines[:i], *([line] if line is not None else []), *lines[i + 1 :]]


@pytest.mark.parametrize(
    ("at", "line", "words"),
    [
        (1, "3,3,2,99999999,", None),  # the widest layer is not used
        (1, "4,3,2,5,", "whose sizes are"),
        (1, "3,4,2,5,", "whose sizes are"),
        (2, "3,5,4,3,", "whose sizes are"),
        (2, "3,900000000,4,2,", "numbers in"),
        (2, "3,0,4,2,", "whose sizes are"),
        (4, "1,2,", "least values for 3 inputs"),
        (5, "1,2,nan,", "largest values for 3 inputs"),
        (6, "1,2,3,", "means for 3 inputs"),
        (7, "1,2,0,1,", "a range of zero"),
        (8, "1,2,", "has 2 numbers in line 9, and not 3"),
        (8, "1,2,x,", "line|numbers"),
        (13, "1,2,", "has 2 numbers in line 14, and not 1"),
        (13, None, "numbers in line"),
        (29, "5,\n6,", "goes on behind its last layer"),
    ],
)
def test_files_that_contradict_themselves(tmp_path, at, line, words):
    lines = text(layers()).splitlines()
    (tmp_path / "a.nnet").write_text("\n".join(broken(lines, at, line)) + "\n")
    if words is None:
        assert formats.read(tmp_path / "a.nnet").network.parameters == 54
        return
    tracemalloc.start()
    with pytest.raises(CanonError, match=words) as caught:
        formats.read(tmp_path / "a.nnet")
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    assert len(str(caught.value).splitlines()) <= 2
    assert main(["show", str(tmp_path / "a.nnet")]) == 2


def test_truncated_and_mutated_files_are_one_line(tmp_path):
    raw, rng, found = text(layers()).encode(), random.Random(0), []
    for i in range(300):
        made = bytearray(raw)
        if i % 3 == 0:
            made = made[: rng.randrange(len(raw))]
        for _ in range(rng.choice([1, 2, 5])):
            at = rng.randrange(max(len(made), 1))
            made[at : at + 1] = rng.choice([b"", b"9", b",", b"\n", b"-", b"\xff", b"e", b"//"])
        (tmp_path / "a.nnet").write_bytes(made)
        try:
            formats.read(tmp_path / "a.nnet")
        except CanonError as e:
            found.append(str(e))
    assert all(len(said.splitlines()) <= 2 for said in found)
    assert 100 < len(found) < 300


def test_text_that_is_none_of_it(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,3,4\n5,6,7\n8,9,10,11\n")
    with pytest.raises(UnknownFormat, match="a text file"):
        formats.read(tmp_path / "a.csv")
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    with pytest.raises(UnknownFormat, match=r"one numpy array \(\.npy\): a network has several, and they need names"):
        formats.read(tmp_path / "a.npy")


def test_a_line_without_end(tmp_path, monkeypatch):
    from canon.formats import nnet

    monkeypatch.setattr(nnet, "LONGEST", 64)
    path = write(tmp_path / "a.nnet", layers(), 17)
    with pytest.raises(CorruptFile, match="has more than 64 bytes"):
        formats.read(path)
