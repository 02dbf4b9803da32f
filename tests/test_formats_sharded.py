"""Sets of files under an index, and folders: which file is meant, what a set holds, and what does not fit together."""

import json
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from canon import formats
from canon.errors import CorruptFile, ReadError, UnknownFormat, UsageError
from canon_cli.main import main

SAFE, BIN = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def layers(dtype=torch.float32):
    """A chain whose layers' order is not that of the alphabet."""
    torch.manual_seed(0)
    widths = [5, 7, 6, 4, 3]
    made = {}
    for i, name in enumerate(["stem", "mid", "body", "head"]):
        made[f"{name}.weight"] = torch.randn(widths[i + 1], widths[i]).to(dtype)
        made[f"{name}.bias"] = torch.randn(widths[i + 1]).to(dtype)
    return made


def sharded(folder, index=SAFE, parts=3, dtype=torch.float32):
    """A set as transformers writes it; the index."""
    folder.mkdir(exist_ok=True)
    tensors = layers(dtype)
    stem, ending = index.removesuffix(".index.json").rsplit(".", 1)
    where = {}
    for k in range(parts):
        name = f"{stem}-{k + 1:05}-of-{parts:05}.{ending}"
        mine = {key: t for i, (key, t) in enumerate(tensors.items()) if i * parts // len(tensors) == k}
        if ending == "bin":
            torch.save(mine, folder / name)
        else:
            safetensors.torch.save_file(mine, folder / name, {"format": "pt"})
        where.update(dict.fromkeys(mine, name))
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    (folder / index).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": where}))
    return folder / index


def remap(index, change):
    """The index, with its map changed in place."""
    said = json.loads(index.read_text())
    change(said["weight_map"])
    index.write_text(json.dumps(said))


@pytest.mark.parametrize("index", [SAFE, BIN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_set_is_one_network(tmp_path, index, dtype):
    path = sharded(tmp_path / "set", index, dtype=dtype)
    for given in (path, path.parent):
        run = formats.read(given)
        assert run.format == ("sharded safetensors" if index == SAFE else "sharded torch")
        assert (run.graph, run.path) == ("chain", str(path))
        assert list(run.network.tensors) == list(layers())
        assert run.network.main_type == str(dtype).removeprefix("torch.")
        for name, t in layers(dtype).items():
            np.testing.assert_array_equal(run.network.tensors[name], t.float())
    assert run.notes[-1] == f"of the folder, {index} is read"


def test_a_set_compares_with_one_file_and_is_written_as_one(tmp_path, capsys, monkeypatch):
    path = sharded(tmp_path / "set")
    safetensors.torch.save_file(layers(), tmp_path / "one.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["convert", str(path.parent), "-o", str(tmp_path / "b.safetensors"), "--quiet"]) == 0
    assert main(["compare", str(path), str(tmp_path / "b.safetensors"), "--quiet"]) == 0
    assert "identical" in capsys.readouterr().out
    words = ["teleport", str(path), "-o", str(tmp_path / "c.safetensors"), "--activation", "relu", "--quiet"]
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(f"{SAFE} is an index of several files, and no copy of it can be one file")
    assert said[1] == "Write it with --to safetensors."
    assert not (tmp_path / "c.safetensors").exists()
    assert main([*words, "--to", "safetensors"]) == 0
    assert main(["compare", str(path), str(tmp_path / "c.safetensors"), "--activation", "relu", "--quiet"]) == 0
    assert "equivalent" in capsys.readouterr().out


def test_shards_may_be_links_out_of_the_folder(tmp_path):
    """As the hub's cache keeps them."""
    path = sharded(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in path.parent.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert formats.read(snapshot).network.parameters == sum(t.numel() for t in layers().values())


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "a//b", "..", "", "c:\\x", "x/../../y", "a\0b"])
def test_names_that_leave_the_folder(tmp_path, name):
    path = sharded(tmp_path / "set")
    remap(path, lambda where: where.update({"stem.weight": name}))
    with pytest.raises(CorruptFile, match="weight_map: names a file outside the folder"):
        formats.read(path)


FIRST, LAST = (f"model-0000{k}-of-00003.safetensors" for k in (1, 3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda where: where.update(more="gone.safetensors"), "shard gone.safetensors is not there: 3 of 4 are"),
        (lambda where: where.update({"a": "x", "b": "y"}), "shard x is not there, and 1 more: 3 of 5 are"),
        (lambda where: where.pop("stem.bias"), f"{FIRST}: holds 'stem.bias', and the index has no such tensor"),
        (lambda where: where.update({"stem.bias": LAST}), f"{FIRST}: holds 'stem.bias', and the index puts it in {LAST}"),
        (lambda where: where.update({"more.bias": LAST}), f"{LAST}: has no 'more.bias', which the index puts there"),
        (lambda where: where.clear(), "weight_map: is no object of file names"),
        (lambda where: where.update(a=1), "weight_map: is no object of file names"),
    ],
)  # fmt: skip
def test_an_index_that_disagrees_with_its_shards(tmp_path, capsys, change, said):
    path = sharded(tmp_path / "set")
    remap(path, change)
    with pytest.raises(CorruptFile, match=said):
        formats.read(path)
    assert main(["show", str(path), "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_a_shard_that_is_damaged_is_named(tmp_path):
    path = sharded(tmp_path / "set")
    (path.parent / LAST).write_bytes((path.parent / LAST).read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=f"{SAFE}: {LAST}: .*: lies outside the file"):
        formats.read(path)
    (path.parent / LAST).write_bytes(b"hello")
    with pytest.raises(ReadError, match=f"{SAFE}: {LAST}: a text file"):
        formats.read(path)
    np.savez(path.parent / "a.npz", a=np.ones(3))
    (path.parent / "a.npz").replace(path.parent / LAST)
    with pytest.raises(UnknownFormat, match=f"{LAST}: is no safetensors and no torch file"):
        formats.read(path)


def test_hostile_indices(tmp_path, monkeypatch):
    path = tmp_path / SAFE
    for said in ("{", "[" * 200_000, '{"weight_map": []}', '{"weight_map": {}}'):
        path.write_text(said)
        with pytest.raises(CorruptFile):
            formats.read(path)
    path.write_text('{"weights": {}}')
    with pytest.raises(UnknownFormat, match="a JSON file"):
        formats.read(path)
    monkeypatch.setattr("canon.formats.sharded.LARGEST", 100)
    with pytest.raises(CorruptFile, match=r"is an index of [\d,]+ bytes"):
        formats.read(sharded(tmp_path / "set"))


# folders


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "policy.pth", "a.npz"])
def test_the_only_model_of_a_folder(tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    for other in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth", "tokenizer.json", ".hidden.bin"):
        (folder / other).write_bytes(b"x")
    if name.endswith("safetensors"):
        safetensors.torch.save_file(layers(), folder / name)
    elif name.endswith("npz"):
        np.savez(folder / name, **{key: t.numpy() for key, t in layers().items()})
    else:
        torch.save(layers(), folder / name)
    run = formats.read(folder)
    assert run.path == str(folder / name)
    assert run.notes[-1] == f"of the folder, {name} is read"
    assert run.network.parameters == sum(t.numel() for t in layers().values())


def test_folders_in_which_several_or_no_files_are_models(tmp_path, capsys):
    folder = sharded(tmp_path / "set").parent
    torch.save(layers(), folder / "pytorch_model.bin")
    with pytest.raises(UnknownFormat, match=rf"a folder with 2 files that may be meant: {SAFE}, pytorch_model\.bin"):
        formats.read(folder)
    for k in range(5):
        (folder / f"{k}.pt").write_bytes(b"x")
    with pytest.raises(UnknownFormat, match=r"with 7 files that may be meant: .* and 3 more"):
        formats.read(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_bytes(b"x")
    assert main(["show", str(empty), "--quiet"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"canon: {empty}: is a folder of 1 files: no model file among them"
    (empty / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(UnknownFormat, match="a TensorFlow SavedModel"):
        formats.read(empty)


def test_a_folder_has_no_steps_and_lends_its_graph(tmp_path):
    path = sharded(tmp_path / "set")
    with pytest.raises(UsageError, match="no checkpoint '7'"):
        formats.read(path, "7")
    torch.save({f"x.{k}": t for k, t in layers().items()}, tmp_path / "a.pt")
    for lender in (path, path.parent):
        assert formats.read(tmp_path / "a.pt", architecture=lender).graph == "borrowed"
