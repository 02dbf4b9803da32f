"""Weight norm: the kernel that torch computes with is what is compared and moved, and files keep their two arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from canon.compare import compare
from canon.formats import read, write
from canon.formats.common_norm import lengths_of, pairs
from canon.run import Run
from canon.transform import align, canonicalize, teleport

Arrays = dict[str, NDArray[Any]]
Norm = Callable[..., nn.Module]


def old(layer: nn.Module, **more: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer, **more)


def new(layer: nn.Module, **more: Any) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(layer, **more)


BOTH = pytest.mark.parametrize("norm", [old, new])
KEYS = {old: ("weight_g", "weight_v"), new: ("parametrizations.weight.original0", "parametrizations.weight.original1")}


def dense(norm: Norm, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(norm(nn.Linear(5, 9)), nn.ReLU(), norm(nn.Linear(9, 7)), nn.ReLU(), norm(nn.Linear(7, 3)))
    return off_length(net, norm, seed)


def images(norm: Norm, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(norm(nn.Conv2d(3, 6, 3, padding=1)), nn.ReLU(), norm(nn.Conv2d(6, 4, 3, padding=1)))
    return off_length(net, norm, seed)


def off_length(net: nn.Sequential, norm: Norm, seed: int) -> nn.Sequential:
    """Directions that are not as long as the lengths say: as after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, t in net.named_parameters():
            if name.endswith(KEYS[norm][1]):
                t.mul_(0.5 + 2 * torch.rand(len(t), *[1] * (t.ndim - 1), generator=generator))
    return net


def saved(net: nn.Module, path: Path) -> Path:
    torch.save(net.state_dict(), path)
    return path


def copied(net: nn.Sequential, norm: Norm, seed: int = 5) -> nn.Sequential:
    """The same function: units relabelled and rescaled, and a length of its own for each direction."""
    rng = np.random.default_rng(seed)
    g, v = KEYS[norm]
    state = {name: t.detach().double().numpy() for name, t in net.state_dict().items()}
    names = [name.removesuffix(v) for name in state if name.endswith(v)]
    before, factor = np.arange(state[names[0] + v].shape[1]), 1.0
    for i, name in enumerate(names):
        w = state[name + v] / np.sqrt((state[name + v] ** 2).sum(axis=tuple(range(1, state[name + v].ndim)), keepdims=True))
        w = w * state[name + g]
        along = [1] * (w.ndim - 2)
        out, scale = np.arange(len(w)), np.ones(len(w))
        if i < len(names) - 1:
            out, scale = rng.permutation(len(w)), np.exp(rng.normal(0, 0.7, len(w)))
        w = (w / np.reshape(factor, (1, -1, *along)))[:, before][out] * scale.reshape(-1, 1, *along)
        state[name + "bias"] = state[name + "bias"][out] * scale
        state[name + g] = np.sqrt((w**2).sum(axis=tuple(range(1, w.ndim)), keepdims=True))
        state[name + v] = w * np.exp(rng.normal(0, 1.0, len(w))).reshape(-1, 1, *along)
        before, factor = out, scale[np.argsort(out)]
    made = (dense if isinstance(net[0], nn.Linear) else images)(norm)
    made.load_state_dict({name: torch.from_numpy(t).float() for name, t in state.items()})
    return made


def told(path: Path) -> Run:
    return read(path, activation="relu")


def outputs(net: nn.Module, conv: bool = False) -> NDArray[Any]:
    x = torch.randn(8, *((3, 6, 6) if conv else (5,)), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: NDArray[Any] = net(x).numpy()
    return found


@BOTH
@pytest.mark.parametrize("build", [dense, images])
def test_the_kernel_is_the_one_torch_computes_with(tmp_path: Path, norm: Norm, build: Callable[..., Any]) -> None:
    net = build(norm)
    net(torch.zeros(1, *((5,) if build is dense else (3, 6, 6))))  # the older way computes the weight when it is called
    run = told(saved(net, tmp_path / "net.pt"))
    assert run.graph == "chain"
    for i in range(0, len(net), 2):
        want = net[i].weight.detach().numpy()
        np.testing.assert_allclose(run.network.tensors[f"{i}.weight"], want, rtol=4e-7, atol=0)
        assert run.network.tensors[f"{i}.weight"].dtype == np.float32
    assert any(note.startswith("weight norm: 0.weight and") for note in run.notes)


@BOTH
def test_other_axes(tmp_path: Path, norm: Norm) -> None:
    torch.manual_seed(0)
    for dim in (1, None):
        net = nn.Sequential(norm(nn.Linear(5, 4), dim=dim))
        net(torch.zeros(1, 5))
        run = read(saved(net, tmp_path / "net.pt"))
        np.testing.assert_allclose(run.network.tensors["0.weight"], net[0].weight.detach().numpy(), rtol=4e-7)


@BOTH
@pytest.mark.parametrize("build", [dense, images])
def test_copies_are_equivalent(tmp_path: Path, norm: Norm, build: Callable[..., Any]) -> None:
    net = build(norm)
    copy = copied(net, norm)
    want = outputs(net, build is images)
    np.testing.assert_allclose(outputs(copy, build is images), want, rtol=0, atol=1e-5 * np.abs(want).max())
    result = compare(told(saved(net, tmp_path / "a.pt")), told(saved(copy, tmp_path / "b.pt")))
    assert result.verdict == "equivalent"
    assert result.distance["matched"] < 1e-6
    assert {t.status for t in result.tensors} >= {"differs"}
    names = {t.a for t in result.tensors}
    assert {f"0.{key}" for key in KEYS[norm]} <= names
    assert "0.weight" not in names


@BOTH
@pytest.mark.parametrize("which", [0, 1])
def test_one_entry_off(tmp_path: Path, norm: Norm, which: int) -> None:
    net = dense(norm)
    copy = copied(net, norm)
    with torch.no_grad():
        copy.get_parameter(f"2.{KEYS[norm][which]}")[2, 0] *= 1.01
    result = compare(told(saved(net, tmp_path / "a.pt")), told(saved(copy, tmp_path / "b.pt")))
    assert result.verdict not in ("identical", "equivalent")


@BOTH
def test_identical_means_the_bytes_of_the_file(tmp_path: Path, norm: Norm) -> None:
    net = dense(norm)
    a = told(saved(net, tmp_path / "a.pt"))
    assert compare(a, told(saved(net, tmp_path / "b.pt"))).verdict == "identical"
    with torch.no_grad():
        net.get_parameter(f"0.{KEYS[norm][1]}").mul_(2.0)  # the kernel stays as it is, to the last bit
    b = told(saved(net, tmp_path / "b.pt"))
    np.testing.assert_array_equal(a.network.tensors["0.weight"], b.network.tensors["0.weight"])
    result = compare(a, b)
    assert result.verdict == "equivalent"
    assert {t.a: t.status for t in result.tensors}[f"0.{KEYS[norm][1]}"] == "differs"
    assert {t.a: t.status for t in result.tensors}[f"0.{KEYS[norm][0]}"] == "same"


def test_both_ways_and_none_hold_one_network(tmp_path: Path) -> None:
    net = dense(old)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = told(saved(net, tmp_path / "a.pt"))
        for i in (0, 2, 4):
            nn.utils.remove_weight_norm(net[i])
    plain = told(saved(net, tmp_path / "b.pt"))
    assert not plain.lengths
    assert compare(first, plain).verdict == "equivalent"
    for i in (0, 2, 4):
        new(net[i])
    assert compare(first, told(saved(net, tmp_path / "c.pt"))).verdict == "equivalent"


@BOTH
@pytest.mark.parametrize("verb", ["align", "canonicalize", "exact", "teleport"])
@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_written_files_compute_the_same(tmp_path: Path, norm: Norm, verb: str, suffix: str) -> None:
    net = dense(norm)
    copy = copied(net, norm)
    a, b = told(saved(net, tmp_path / "a.pt")), told(stored(copy, tmp_path / f"b{suffix}"))
    moves = {
        "align": lambda: align(a.network, b.network),
        "canonicalize": lambda: canonicalize(b.network),
        "exact": lambda: canonicalize(b.network, gauge="exact"),
        "teleport": lambda: teleport(b.network, seed=3),
    }
    made = b.with_network(moves[verb]().network)
    assert not set(made.kept) - {t for t in b.kept if made.network.tensors[t] is b.network.tensors[t]}
    write(made, tmp_path / f"c{suffix}")
    state = keys_of(tmp_path / f"c{suffix}")
    assert set(state) >= set(net.state_dict())
    load = dense(norm, seed=9)
    load.load_state_dict({name: torch.from_numpy(np.array(state[name])) for name in load.state_dict()})
    want = outputs(net)
    np.testing.assert_allclose(outputs(load), want, rtol=0, atol=2e-5 * np.abs(want).max())
    g, v = KEYS[norm]
    for i in (0, 2, 4):
        w = state[f"{i}.{v}"]
        np.testing.assert_allclose(state[f"{i}.{g}"], np.linalg.norm(w, axis=1, keepdims=True), rtol=1e-6)
        if verb == "align":
            net[i].eval()
            np.testing.assert_allclose(w, a.network.tensors[f"{i}.weight"], rtol=0, atol=1e-5)
    assert compare(a, told(tmp_path / f"c{suffix}")).verdict == "equivalent"


def stored(net: nn.Module, path: Path) -> Path:
    state = {name: t.detach().numpy() for name, t in net.state_dict().items()}
    if path.suffix == ".npz":
        np.savez(path, **state)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(state, path)
    else:
        saved(net, path)
    return path


def keys_of(path: Path) -> Arrays:
    if path.suffix == ".npz":
        with np.load(path) as f:
            return {name: f[name] for name in f.files}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(path))
    return {name: t.numpy() for name, t in torch.load(path, weights_only=True).items()}


@BOTH
def test_an_architecture_that_is_lent(tmp_path: Path, norm: Norm) -> None:
    net = dense(norm)
    lender = told(saved(net, tmp_path / "a.pt"))
    write(lender, tmp_path / "lender.h5", "canon")
    a = read(tmp_path / "a.pt", architecture=tmp_path / "lender.h5")
    b = read(saved(copied(net, norm), tmp_path / "b.pt"), architecture=tmp_path / "lender.h5")
    assert a.graph == b.graph == "borrowed"
    assert compare(a, b).verdict == "equivalent"
    write(b.with_network(align(a.network, b.network).network), tmp_path / "c.pt")
    load = dense(norm, seed=9)
    load.load_state_dict(torch.load(tmp_path / "c.pt", weights_only=True))
    np.testing.assert_allclose(outputs(load), outputs(net), rtol=0, atol=2e-5 * np.abs(outputs(net)).max())


@BOTH
def test_a_known_family(tmp_path: Path, norm: Norm) -> None:
    torch.manual_seed(0)
    net = nn.Module()
    net.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
    net.classifier = nn.Sequential(nn.Linear(6 * 49, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 7), nn.ReLU(), nn.Dropout(),
                                   nn.Linear(7, 4))  # fmt: skip
    want = read(saved(net, tmp_path / "plain.pt"))
    assert want.graph == "family"
    for module in [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]:
        norm(module)
    run = read(saved(net, tmp_path / "net.pt"))
    assert run.graph == "family"
    assert compare(want, run).verdict == "equivalent"
    moved = run.with_network(teleport(run.network, seed=2).network)
    for target, fmt in (("moved.npz", "npz"), ("moved.pt", None)):
        write(moved, tmp_path / target, fmt)
        assert set(keys_of(tmp_path / target)) == set(net.state_dict())
        assert compare(want, read(tmp_path / target)).verdict == "equivalent"


def test_what_is_no_weight_norm_stays_as_it_is() -> None:
    assert pairs({"a.weight_g": (3, 1), "a.weight_v": (3, 4)}) == {"a.weight_v": ("a.weight", "a.weight_g", "a.weight_v")}
    assert not pairs({"a.weight_g": (3,), "a.weight_v": (3, 4)})  # of another rank
    assert not pairs({"a.weight_g": (2, 1), "a.weight_v": (3, 4)})
    assert not pairs({"a.weight_v": (3, 4)})
    assert not pairs({"a.weight_g": (3, 1), "a.weight_v": (3, 4), "a.weight": (3, 4)})
    assert not pairs({"a.my_weight_g": (3, 1), "a.my_weight_v": (3, 4)})
    assert not pairs({"a.parametrizations.weight.original0": (4, 4), "a.parametrizations.weight.original1": (3, 4)})


def test_lengths_keep_their_range() -> None:
    w = np.array([[3e-200, 4e-200], [3e200, 4e200], [0.0, 0.0]])
    np.testing.assert_allclose(lengths_of(w, (3, 1)), [[5e-200], [5e200], [0.0]], rtol=1e-15)
    np.testing.assert_allclose(lengths_of(np.ones((2, 2)), ()), 2.0)
