"""torch files against torch itself: what is read, what is chosen, what is written, and what real files are."""

import csv
import os
import sys
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from canon import formats
from canon.errors import CanonError, CorruptFile, MissingExtra, UsageError
from canon.formats import safetensors, torch_choice, torch_pickle
from canon.formats.common_zip import archive
from canon.formats.magic import container
from canon_cli.main import main

FILES = Path(os.environ.get("CANON_REAL_FILES") or "/nowhere")


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
    )


def same(run, wanted):
    """The run holds these tensors, by name and number by number."""
    same_arrays(run.network.tensors, wanted)


def same_arrays(found, wanted):
    assert list(found) == list(wanted)
    for name, t in wanted.items():
        np.testing.assert_array_equal(found[name], t.detach().float() if t.dtype == torch.bfloat16 else t.detach())


def saved(path, content, **how):
    torch.save(content, path, **how)
    return path


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_state_dict(tmp_path, zipped, dtype):
    wanted = net().to(dtype).state_dict()
    run = formats.read(saved(tmp_path / "a.bin", wanted, _use_new_zipfile_serialization=zipped))
    same(run, wanted)
    assert (run.format, run.graph) == ("torch" if zipped else "torch legacy", "chain")
    assert run.network.main_type == str(dtype).removeprefix("torch.")
    assert not any(t.flags.writeable for t in run.network.tensors.values()) or dtype == torch.bfloat16


def test_views_scalars_and_what_is_not_floating_point(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    wanted = {
        "a.weight": base.t(),
        "b.weight": base[1:3, ::2],
        "b.bias": torch.tensor(2.5).expand(2),
        "c.scale": torch.tensor(1.5),
    }
    other = {"a.ids": torch.arange(3), "a.mask": torch.ones(2, dtype=torch.bool), "a.z": torch.ones(2, dtype=torch.complex64)}
    run = formats.read(saved(tmp_path / "a.pt", {**wanted, **other}))
    assert set(run.network.tensors) == set(wanted)
    for name, t in wanted.items():
        np.testing.assert_array_equal(run.network.tensors[name], t)
    assert any("not floating point, and left as they are: a.ids, a.mask, a.z" in note for note in run.notes)


def test_names_in_any_ending_and_a_torch_file_called_safetensors(tmp_path):
    wanted = net().state_dict()
    for name in ("a.h5", "a.safetensors", "a"):
        same(formats.read(saved(tmp_path / name, wanted)), wanted)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_mapping_of_the_file_holds_its_place_when_the_file_is_replaced(tmp_path, zipped):
    path = saved(tmp_path / "a.pt", net().state_dict(), _use_new_zipfile_serialization=zipped)
    run = formats.read(path)
    moved = run.with_network(run.network.with_tensors({n: t + 1 for n, t in run.network.tensors.items()}))
    formats.write(moved, path)
    same(run, net().state_dict())
    same(formats.read(path), {n: t + 1 for n, t in net().state_dict().items()})


# which tensors


def checkpoint():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "best": torch.tensor(0.5),
        "ema": OrderedDict((f"module.{k}", v * 0.5) for k, v in model.state_dict().items()),
        "optimizer": optimizer.state_dict(),
        "state_dict": OrderedDict((f"module.{k}", v) for k, v in model.state_dict().items()),
    }


def test_a_checkpoint_of_several_parts(tmp_path):
    path, content = tmp_path / "c.pt", checkpoint()
    saved(path, content)
    run = formats.read(path)
    same(run, {k.removeprefix("module."): v for k, v in content["state_dict"].items()})
    assert (run.checkpoint, run.checkpoints) == ("state_dict", ("state_dict", "ema"))
    assert run.notes[:2] == ("of 2 sets of tensors 'state_dict' is read; the others: ema",
                             "every name begins with 'module.', which is left out")  # fmt: skip
    same(formats.read(path, "ema"), {k.removeprefix("module."): v for k, v in content["ema"].items()})
    with pytest.raises(UsageError, match=r"no checkpoint 'optimizer'\nIt holds state_dict, ema\."):
        formats.read(path, "optimizer")


SHADOW = "of 2 sets of tensors 'net' is read; the others: shadow"


@pytest.mark.parametrize(
    ("content", "names", "notes"),
    [
        (lambda w: {"model": w, "step": 1}, ["0.weight"], ("the tensors are read from 'model'",)),
        (lambda w: {"a": {"net": w}}, ["0.weight"], ("the tensors are read from 'a.net'",)),
        (
            lambda w: {"shadow": [w["0.weight"]], "net": w},
            ["0.weight"],
            ("of 2 sets of tensors 'net' is read; the others: shadow",),
        ),
        (lambda w: [w["0.weight"], 3], ["0"], ()),
        (lambda w: w["0.weight"], ["tensor"], ()),
        (lambda w: torch.nn.Parameter(w["0.weight"]), ["tensor"], ()),
        (lambda w: {1: w["0.weight"]}, ["1"], ()),
    ],
)
def test_where_tensors_may_lie(tmp_path, content, names, notes):
    weight = torch.arange(6.0).reshape(2, 3)
    run = formats.read(saved(tmp_path / "a.pt", content({"0.weight": weight})))
    assert list(run.network.tensors) == names
    assert run.notes[: len(notes)] == notes
    np.testing.assert_array_equal(run.network.tensors[names[0]], weight)


OPTIMIZER = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        3,
        {"epoch": 1, "best": torch.tensor(0.5)},
        {"ids": torch.arange(4)},
        {"adam": OPTIMIZER},
        {"optim": [torch.ones(3)]},
    ],
)
def test_files_without_a_network(tmp_path, content):
    with pytest.raises(CorruptFile, match="a torch file without a tensor of a network"):
        formats.read(saved(tmp_path / "a.pt", content))


def test_a_step_is_asked_of_a_plain_state_dict(tmp_path):
    path = saved(tmp_path / "a.pt", net().state_dict())
    with pytest.raises(UsageError, match="no checkpoint '7'\nIt holds one state dict, under no key"):
        formats.read(path, "7")


def test_tied_tensors_are_said(tmp_path):
    weight = torch.rand(4, 3)
    content = {"in.weight": weight, "out.weight": weight, "copy.weight": weight.clone(), "half.weight": weight[:2]}
    run = formats.read(saved(tmp_path / "a.pt", content))
    assert run.notes[0] == "tied, one tensor under several names: in.weight = out.weight"
    assert "tied" not in "".join(formats.read(saved(tmp_path / "b.pt", {k: v.clone() for k, v in content.items()})).notes)


def test_a_nest_of_shared_lists_is_walked_once():
    level = [torch.ones(2)]
    for _ in range(torch_choice.DEEPEST):
        level = [level] * 1000
    assert list(torch_choice.choose(level, None).tensors) == ["0"]


# writing


@pytest.mark.parametrize("zipped", [True, False])
def test_a_copy_keeps_the_nest_and_the_order_and_drops_the_optimizer(tmp_path, zipped):
    path, out = tmp_path / "c.pt", tmp_path / "o.pt"
    content = checkpoint()
    content["state_dict"]._metadata = {"": {"version": 2}}
    saved(path, content, _use_new_zipfile_serialization=zipped)
    run = formats.read(path)
    moved = run.with_network(run.network.with_tensors({n: t * 2 for n, t in run.network.tensors.items()}))
    said = formats.write(moved, out, drop_optimizer=True)
    old = [] if zipped else ["written as torch does since 1.6, a zip archive"]
    assert list(said) == [*old, "left as they were: ema", "left out, since it no longer fits: optimizer"]
    made = torch.load(out, weights_only=True)
    assert list(made) == ["epoch", "best", "ema", "state_dict"]
    assert made["epoch"] == 3
    assert made["state_dict"]._metadata == {"": {"version": 2}}
    assert list(made["state_dict"]) == list(content["state_dict"])
    for name, t in content["state_dict"].items():
        assert torch.equal(made["state_dict"][name], t * 2)
        assert torch.equal(made["ema"][name], content["ema"][name])
    assert formats.read(out).format == "torch"
    formats.write(moved, tmp_path / "again.pt", drop_optimizer=True)
    assert out.read_bytes() == (tmp_path / "again.pt").read_bytes()


def test_ties_views_types_and_parameters_of_a_copy(tmp_path):
    weight, half = torch.rand(4, 3), torch.rand(3, 4).bfloat16()
    content = OrderedDict([("a.weight", weight), ("ids", torch.arange(3)), ("b.weight", weight), ("c.weight", half.t()),
                           ("d.weight", torch.nn.Parameter(weight[1:]))])  # fmt: skip
    run = formats.read(saved(tmp_path / "a.pt", content))
    formats.write(
        run.with_network(run.network.with_tensors({n: t * 3 for n, t in run.network.tensors.items()})), tmp_path / "b.pt"
    )
    made = torch.load(tmp_path / "b.pt", weights_only=True)
    assert list(made) == list(content)
    assert made["a.weight"].data_ptr() == made["b.weight"].data_ptr()
    assert made["c.weight"].dtype == torch.bfloat16
    assert isinstance(made["d.weight"], torch.nn.Parameter)
    assert torch.equal(made["ids"], content["ids"])
    for name in ("a.weight", "b.weight", "c.weight", "d.weight"):
        assert torch.equal(made[name], (content[name].detach().float() * 3).to(content[name].dtype))


def test_a_value_beyond_the_type_of_the_source_is_not_written(tmp_path):
    run = formats.read(saved(tmp_path / "a.pt", net().half().state_dict()))
    large = {n: t.astype(np.float64) * 1e6 for n, t in run.network.tensors.items()}
    with pytest.raises(CanonError, match="holds values beyond the range of float16"):
        formats.write(run.with_network(run.network.with_tensors(large)), tmp_path / "b.pt")
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.parametrize("fmt", ["torch", "safetensors", "canon", "npz"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_new_file_of_each_kind_holds_the_same_numbers(tmp_path, fmt, dtype):
    wanted = net().to(dtype).state_dict()
    run = formats.read(saved(tmp_path / "a.pt", wanted), activation="relu")
    said = formats.write(run, tmp_path / "b", fmt)
    again = formats.read(tmp_path / "b")
    same(again, wanted)
    widened = fmt == "npz" and dtype == torch.bfloat16
    assert any("bfloat16 is written in float32" in note for note in said) == widened
    assert again.network.main_type == ("float32" if widened else run.network.main_type)


# torch itself


def test_without_torch_the_extra_is_named(tmp_path, capsys, monkeypatch):
    path = saved(tmp_path / "a.pt", net().state_dict())
    run = formats.read(path)
    formats.write(run, tmp_path / "a.npz", "npz")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"torch is not installed\nInstall it with: pip install 'canonform\[torch\]'"):
        formats.read(path)
    assert main(["compare", str(path), str(path)]) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"canon: {path}: a torch file, and torch is not installed",
        "Install it with: pip install 'canonform[torch]'",
    ]
    assert main(["convert", str(tmp_path / "a.npz"), "-o", str(tmp_path / "b.pt")]) == 2
    assert "canonform[torch]" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "a.npz"), "-o", str(tmp_path / "b.safetensors")]) == 0


def test_the_variable_that_turns_weights_only_off_changes_nothing(tmp_path, monkeypatch):
    seen = {}
    load = torch.load
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setattr(torch, "load", lambda *args, **how: seen.update(how) or load(*args, **how))
    formats.read(saved(tmp_path / "a.pt", net().state_dict()))
    assert seen["weights_only"] is True
    assert seen["map_location"] == "cpu"


# real files

PICKLED = "ReadError: its pickle asks for builtins.getattr, which weights_only refuses: loading it could run code"
ARS = {"CartPole-v1": 8, "HalfCheetah-v3": 102, "Hopper-v3": 33, "LunarLanderContinuous-v2": 178, "MountainCar-v0": 99,
       "MountainCarContinuous-v0": 65}  # fmt: skip
A2C = {"BipedalWalker-v3": 12101, "CartPole-v1": 9155, "HalfCheetah-v3": 11085, "Hopper-v3": 10119,
       "LunarLander-v2": 9797, "LunarLanderContinuous-v2": 9795, "MountainCar-v0": 8964, "MountainCarContinuous-v0": 8898,
       "Swimmer-v3": 9669}  # fmt: skip
BEST = ("HalfCheetah-v3", "Hopper-v3", "Swimmer-v3")
OUTCOMES = {
    "pt-alphazero/model.pth": "torch, 41475",
    "pt-alphazero/model_0.pth": "torch, 248680",
    "pt-alphazero/model_confused_dragon_34.pth": "torch, 30544",
    "pt-alphazero/model_drawn_sunset_42.pth": "torch, 30544",
    "pt-alphazero/model_ethereal_bee_36.pth": "torch, 30544",
    "pt-gradcam/mnist_10_05-08-23_16-09.pt": "torch, 62346",
    "pt-gradcam/mnist_10_es_09-08-23_14-17.pt": "torch, 62346",
    "pt-gradcam/mnist_run_1.pt": "torch, 62346",
    "pt-gradcam/run_1.pt": PICKLED,
    "pypi-attacut/attacut__artifacts__attacut-c__model.pth": "torch legacy, 173533",
    "pypi-facenet/pnet.pt": "torch legacy, 6632",
    "pypi-facenet/rnet.pt": "torch legacy, 100178",
    "pypi-lpips/lpips__weights__v0.0__alex.pth": "torch legacy, 1152",
    "pypi-lpips/lpips__weights__v0.0__squeeze.pth": "torch legacy, 2240",
    "pypi-lpips/lpips__weights__v0.0__vgg.pth": "torch legacy, 1472",
    "pypi-mtcnn/pnet.lz4": "UnknownFormat: a file compressed with lz4",
    "pypi-mtcnn/rnet.lz4": "UnknownFormat: a file compressed with lz4",
    "pypi-silero/silero_vad_16k.safetensors": "safetensors, 309633",
    **{f"rl-agents/a2c__{g}_1__{g}.policy.pth": f"torch, {n}" for g, n in A2C.items()},
    **{f"rl-agents/ars__{g}_1__{g}.policy.pth": f"torch, {n}" for g, n in ARS.items()},
    **{
        f"rl-agents/a2c__{g}_1__best_model.policy.pth": f"torch, {A2C[g]}"
        for g in ("HalfCheetah-v3", "Hopper-v3", "Swimmer-v3")
    },
    **{f"rl-agents/ars__{g}_1__best_model.policy.pth": f"torch, {n}" for g, n in ARS.items()},
}


@pytest.fixture
def real():
    if not (FILES / "MANIFEST.tsv").is_file():
        pytest.skip("CANON_REAL_FILES is not set")
    return FILES


def test_every_real_file_of_these_formats_is_pinned(real):
    with (real / "MANIFEST.tsv").open(encoding="utf-8") as f:
        rows = [
            row["path"]
            for row in csv.DictReader(f, delimiter="\t")
            if row["format"].startswith(("torch", "safetensors", "lz4"))
        ]
    assert set(rows) == set(OUTCOMES)


def held(path):
    """The floating point tensors of a file, whatever network they make."""
    kind = container(path)
    with archive(path) if kind == "zip" else nullcontext() as f:
        found = safetensors.named(path) if kind == "safetensors" else torch_pickle.named(f, path)
    return {name: d for name, d in found.items() if d.dtype.kind == "f"}


def outcome(path):
    """What the table says, and how many lines a refusal has."""
    try:
        run = formats.read(path)
    except CanonError as e:
        return f"{type(e).__name__}: {e.what}", len(str(e).splitlines())
    return f"{run.format}, {sum(d.load().size for d in held(path).values())}", 0


@pytest.mark.parametrize("path", OUTCOMES)
def test_real_file(real, path):
    found, lines = outcome(real / path)
    assert found == OUTCOMES[path]
    assert lines <= 2
    if found.startswith("torch"):
        wanted = torch.load(real / path, map_location="cpu", weights_only=True)
        same_arrays(
            {n: d.load() for n, d in held(real / path).items()}, {n: t for n, t in wanted.items() if t.is_floating_point()}
        )
