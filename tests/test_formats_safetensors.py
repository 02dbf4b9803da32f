"""safetensors against its own package and torch: what is read, what is written, and what is refused in one line."""

import json
import struct
import time
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import safe_open

from canon import formats
from canon.errors import CanonError, CorruptFile, UnknownFormat, WriteError
from canon_cli.main import main


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
    )


def tensors():
    """One of every type that holds numbers, in shapes of every kind."""
    torch.manual_seed(1)
    x = torch.randn(4, 3)
    return {
        "f32.weight": x, "f64.weight": x.double() / 3, "f16.weight": x.half(), "bf16.weight": x.bfloat16(),
        "scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "deep": torch.randn(2, 1, 3, 1),
        "odd.bias": torch.randn(3).half(),
    }  # fmt: skip


OTHERS = {"i64": torch.arange(3), "u8": torch.arange(3, dtype=torch.uint8), "i8": torch.arange(3, dtype=torch.int8),
          "bool": torch.ones(3, dtype=torch.bool), "c64": torch.ones(2, dtype=torch.complex64),
          "u16": torch.ones(2, dtype=torch.uint16)}  # fmt: skip


def saved(path, content, metadata=None):
    safetensors.torch.save_file(content, path, metadata)
    return path


def test_every_type_is_read_as_the_package_reads_it(tmp_path):
    path = saved(tmp_path / "a.bin", {**tensors(), **OTHERS})
    run = formats.read(path)
    assert run.format == "safetensors"
    found = safetensors.torch.load_file(path)
    assert set(run.network.tensors) == set(tensors())
    for name, t in run.network.tensors.items():
        assert not t.size or t.base is not None
        np.testing.assert_array_equal(t, found[name].float() if found[name].dtype == torch.bfloat16 else found[name])
        assert run.network.stored_type(name) == str(found[name].dtype).removeprefix("torch.")
    (note,) = [note for note in run.notes if note.startswith("not floating point, and left as they are: ")]
    assert set(note.split(": ")[1].removesuffix(" ...").split(", ")) <= set(OTHERS)


def test_torch_is_not_needed(tmp_path, monkeypatch):
    path = saved(tmp_path / "a", net().state_dict())
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    run = formats.read(path, activation="relu")
    assert run.graph == "chain"
    assert main(["teleport", str(path), "-o", str(tmp_path / "b"), "--activation", "relu", "--quiet"]) == 0
    assert main(["compare", str(path), str(tmp_path / "b"), "--activation", "relu", "--quiet"]) == 0


def test_values_are_views_of_the_file_and_stay_when_it_is_replaced(tmp_path):
    path = saved(tmp_path / "a", net().state_dict())
    run = formats.read(path)
    kept = {name: t.copy() for name, t in run.network.tensors.items()}
    for t in run.network.tensors.values():
        assert not t.flags.writeable
        assert t.flags.aligned
        assert not t.flags.owndata
    formats.write(run.with_network(run.network.with_tensors({n: t + 1 for n, t in kept.items()})), path)
    for name, t in kept.items():
        np.testing.assert_array_equal(run.network.tensors[name], t)
        np.testing.assert_array_equal(formats.read(path).network.tensors[name], t + 1)


def test_reading_takes_no_memory(tmp_path):
    path = saved(tmp_path / "a", {f"{i}.weight": torch.ones(512, 512) for i in range(16)})
    tracemalloc.start()
    run = formats.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.network.parameters == 16 * 512 * 512
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize("pad", [0, 1, 2, 3])
def test_tensors_at_any_place(tmp_path, pad):
    """The package aligns its header; the format does not ask for it."""
    values = np.arange(6, dtype="<f8")
    said = json.dumps(header(a=("F64", [2, 3], 0, 48))).encode()
    (tmp_path / "a").write_bytes(whole(said + b" " * (-len(said) % 8 + pad), values.tobytes()))
    found = formats.read(tmp_path / "a").network.tensors["a.weight"]
    np.testing.assert_array_equal(found, values.reshape(2, 3))
    assert found.flags.aligned


@pytest.mark.parametrize("length", [0x7B, 0x5B, 0x20, 0x0A])
def test_a_length_that_looks_like_json(tmp_path, length):
    said = json.dumps(header(a=("F32", [2], 0, 8))).encode()
    (tmp_path / "a").write_bytes(whole(said.ljust(length + 256 * (length < len(said))), bytes(8)))
    assert formats.read(tmp_path / "a").network.parameters == 2


def test_layers_whose_order_the_file_does_not_keep(tmp_path):
    """The package sorts names: the order is the one in which widths fit, where there is only one."""
    widths, names = [5, 7, 6, 4, 3], ["stem", "mid", "body", "head"]
    content = {f"{name}.weight": torch.randn(widths[i + 1], widths[i]) for i, name in enumerate(names)}
    run = formats.read(saved(tmp_path / "a", content))
    assert run.graph == "chain"
    assert [op.name for op in run.network.ops if op.kind == "dense"] == names
    assert "the file does not keep the order of layers: it is the only one in which their widths fit" in run.notes
    content["mid.weight"], content["more.weight"] = torch.randn(7, 7), torch.randn(6, 7)  # now two orders fit
    content["next.weight"] = torch.randn(7, 7)
    assert formats.read(saved(tmp_path / "b", content)).graph == "none"


# writing


def test_a_copy_keeps_names_order_types_metadata_and_the_rest(tmp_path):
    path, out = tmp_path / "a", tmp_path / "b"
    saved(path, {**tensors(), **OTHERS}, {"format": "pt", "by": "größe"})
    run = formats.read(path)
    assert formats.write(run, out) == ()
    assert out.read_bytes() == path.read_bytes()
    thirds = run.network.with_tensors({n: t.astype(np.float64) / 3 for n, t in run.network.tensors.items()})
    formats.write(run.with_network(thirds), out)
    old, new = safetensors.torch.load_file(path), safetensors.torch.load_file(out)
    with safe_open(path, "pt") as a, safe_open(out, "pt") as b:
        assert list(a.keys()) == list(b.keys())
        assert b.metadata() == {"format": "pt", "by": "größe"}
    for name, t in old.items():
        wanted = (t.double() / 3).to(t.dtype) if name in tensors() else t
        assert new[name].dtype == t.dtype
        assert torch.equal(new[name], wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_new_file_is_read_by_the_package(tmp_path, dtype):
    wanted = {k.replace(".", ".layer."): v.to(dtype) for k, v in net().state_dict().items()}
    saved(tmp_path / "a", wanted)
    run = formats.read(tmp_path / "a")
    said = formats.write(run, tmp_path / "b", "safetensors")
    assert said[0].startswith("arrays alone are kept")
    found = safetensors.torch.load_file(tmp_path / "b")
    assert set(found) == set(wanted)
    for name, t in wanted.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], t)
    with safe_open(tmp_path / "b", "pt") as f:
        assert f.metadata() == {"format": "pt"}
    formats.write(run, tmp_path / "c", "safetensors")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_types_of_several_sizes_lie_where_they_may(tmp_path):
    path = saved(
        tmp_path / "a", {"a.bias": torch.ones(3).half(), "b.weight": torch.ones(2, 2).double(), "c.bias": torch.ones(1)}
    )
    formats.write(formats.read(path), tmp_path / "b", "safetensors")
    raw = (tmp_path / "b").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % {"F16": 2, "F32": 4, "F64": 8}[entry["dtype"]] == 0


def test_a_value_beyond_the_type_is_not_written(tmp_path):
    for dtype, large in ((torch.float16, 1e6), (torch.bfloat16, 1e39)):
        run = formats.read(saved(tmp_path / "a", {"a.weight": torch.ones(2, 3).to(dtype)}))
        moved = run.with_network(run.network.with_tensors({"a.weight": np.full((2, 3), large)}))
        with pytest.raises(WriteError, match=f"holds values beyond the range of {str(dtype)[6:]}"):
            formats.write(moved, tmp_path / "b")
    assert not (tmp_path / "b").exists()


# hostile headers


def header(**entries):
    """name -> (dtype, shape, begin, end), each under <name>.weight."""
    return {
        f"{name}.weight": {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        for name, (code, shape, begin, end) in entries.items()
    }


def whole(said, data=b"", length=None):
    raw = said if isinstance(said, bytes) else json.dumps(said).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


A = ("F32", [2, 3], 0, 24)
TWICE = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
HOSTILE = [
    (whole(header(a=A), bytes(24), 10**10), "a safetensors header of 10,000,000,000 bytes in a file of"),
    (whole(header(a=A), bytes(24), 100_000_001), "a safetensors header of 100,000,001 bytes"),
    (whole(header(a=A), bytes(24), 5000), "a safetensors header of 5,000 bytes in a file of"),
    (whole(header(a=A), bytes(23)), "a.weight: lies outside the file: bytes 0 to 24 of 23"),
    (whole(header(a=("F32", [10**9], 0, 4 * 10**9)), bytes(24)), "lies outside the file"),
    (whole(header(a=A), bytes(25)), "holds 1 bytes more than its safetensors header declares"),
    (whole(header(a=A, b=A), bytes(24)), "b.weight: overlaps the tensor before it"),
    (whole(header(a=A, b=("F32", [2], 20, 28)), bytes(28)), "b.weight: overlaps the tensor before it"),
    (whole(header(a=A, b=("F32", [2], 28, 36)), bytes(36)), "b.weight: follows bytes that belong to no tensor"),
    (whole(header(a=("F32", [2, 3], 4, 28)), bytes(28)), "a.weight: follows bytes that belong to no tensor"),
    (whole(header(a=("F32", [2, 4], 0, 24)), bytes(24)), r"a.weight: declares shape \(2, 4\) of F32 in 24 bytes"),
    (whole(header(a=("F32", [2, 3], 24, 0)), bytes(24)), "declares shape"),
    (whole(header(a=("F32", [-2, -3], 0, 24)), bytes(24)), "that are no sizes"),
    (whole(header(a=("F32", [2.0, 3], 0, 24)), bytes(24)), "that are no sizes"),
    (whole(header(a=("F32", [True, 6], 0, 24)), bytes(24)), "that are no sizes"),
    (whole(header(a=("F32", [2, 3], -24, 0)), bytes(24)), "that are no sizes"),
    (whole(header(a=("F32", [1] * 40, 0, 4)), bytes(4)), "that are no sizes"),
    (whole(header(a=("F32", [0, 2**49, 2**49], 0, 0))), "that are no sizes"),
    (whole(header(a=("F99", [2, 3], 0, 24)), bytes(24)), "is of a type that safetensors has not: 'F99'"),
    (whole(header(a=(3, [2, 3], 0, 24)), bytes(24)), "is of a type that safetensors has not"),
    (whole({"a": [1, 2]}), "a: is not declared by its dtype, shape and data_offsets"),
    (whole({"a": {"dtype": "F32", "shape": []}}), "is not declared by"),
    (whole({"__metadata__": {"a": 1}}), "__metadata__: is no object of strings"),
    (whole(TWICE, bytes(8)), "a: is in the safetensors header twice"),
    (whole(b'{"a": '), r"is not JSON \(JSONDecodeError\)"),
    (whole(b'{"a\xff": 1}'), r"is not JSON \(UnicodeDecodeError\)"),
    (whole(b'{"a":' + b"[" * 200_000), r"is not JSON"),
    (whole(b'{"a":[' + b"[]," * 3_000_000), "of more tensors than any network has"),
    (whole({}), "holds no floating point tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "said"), HOSTILE, ids=range(len(HOSTILE)))
def test_headers_made_to_harm(tmp_path, capsys, raw, said):
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(CorruptFile, match=said):
        formats.read(path)
    assert time.perf_counter() - begin < 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20
    assert main(["show", str(path)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith(f"canon: {path}: ")


@pytest.mark.parametrize("code", ["F8_E4M3", "F8_E5M2", "F4"])
def test_numbers_that_need_their_scales(tmp_path, code):
    size = 3 if code == "F4" else 6
    (tmp_path / "a").write_bytes(whole(header(a=(code, [2, 3], 0, size)), bytes(size)))
    with pytest.raises(
        UnknownFormat, match=f"a.weight: is stored as {code}: such numbers mean something only with their scales"
    ):
        formats.read(tmp_path / "a")


# damage


def attempt(path):
    """Whether a file was read; no more than a line and a hint where it was not."""
    try:
        formats.read(path)
    except CanonError as e:
        said = str(e)
    else:
        return True
    assert len(said.splitlines()) <= 2
    return False


def test_truncated_anywhere(tmp_path):
    raw = saved(tmp_path / "a", {**tensors(), **OTHERS}).read_bytes()
    for size in range(0, len(raw), 7):
        (tmp_path / "b").write_bytes(raw[:size])
        assert not attempt(tmp_path / "b")


def test_bytes_changed_anywhere(tmp_path):
    raw, read = saved(tmp_path / "a", net().state_dict()).read_bytes(), 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        damaged = bytearray(raw)
        for at in rng.integers(len(raw) if seed % 2 else 8 + raw[0] + 256 * raw[1], size=rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        (tmp_path / "b").write_bytes(damaged)
        read += attempt(tmp_path / "b")
    assert 0 < read < 400
