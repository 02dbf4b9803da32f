"""Copies planted in networks of known families by a random member of their whole group, told from names and shapes alone.

Relabelled (streams, heads, hidden units, experts), rescaled, flipped and turned: found again to the last unit; and moved by
anything that is no member of the group: not found.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_nets import read_state
from test_families_torchvision import RECORDED, run_of, unpacked
from test_families_transformers import CASES, configuration, made

from canon.action import random_action
from canon.compare import compare
from canon.compare.comparing import make_pair
from canon.forward import forward, probe_inputs
from canon.network import Network
from canon.run import Run
from canon.symmetry import derive

SOME = ("gpt2", "bert, masked", "llama", "llama, tied", "mixtral", "qwen 3", "gemma 2", "t5", "t5 1.1", "distilbert")


def single(network: Network) -> Network:
    """The network stored in float32."""
    return network.with_tensors(
        {n: np.asarray(t, np.float32) if t.dtype.kind == "f" else t for n, t in network.tensors.items()}
    )


def check_copy(run: Run, sigma: float = 0.7) -> None:
    net = single(run.network)
    rng = np.random.default_rng(3)
    g = random_action(derive(net), net, rng, sigma)
    moved = g(net)
    inputs = probe_inputs(net, rng, 2, 1.0)
    before, after = forward(net, inputs), forward(moved, inputs)
    for name, y in before.items():
        np.testing.assert_allclose(after[name], y, rtol=0, atol=1e-11 * max(float(np.abs(y).max()), 1e-300))
    result = compare(run.with_network(net), run.with_network(single(moved)))
    assert result.verdict == "equivalent", result.worst
    assert result.distance["matched"] < 1e-6
    pair = make_pair(net, single(moved))[0]
    state = next(s for make in pair.candidates() if (s := make()) is not None and pair.prove(s)[1].deviation <= 1)
    back = ~g
    for name, space in pair.symmetry.spaces.items():
        if name in back.perms and pair.symmetry.spaces[name].size == back.symmetry.spaces[name].size and not space.linear:
            live = ~pair.a.dead[name] if space.over is None else slice(None)
            np.testing.assert_array_equal(state.perms[name][live], back.perms[name][live], name)


def check_no_copy(run: Run) -> None:
    """A column of a kernel in the middle scaled without what writes it: no member of the group."""
    net = single(run.network)
    moved = single(random_action(derive(net), net, np.random.default_rng(4), 0.3)(net))
    op = [op for op in net.ops if op.kind in ("dense", "conv") and net.tensors[op.params["kernel"]].shape[1] > 2][1]
    kernel = moved.tensors[op.params["kernel"]].copy()
    kernel[:, 1] *= 1.01
    pair = make_pair(net, moved.with_tensors({op.params["kernel"]: kernel}))[0]
    for make in pair.candidates()[:3]:  # by sketches, as stored, from the inputs: what finds copies
        state = make()
        assert state is None or pair.prove(state)[1].deviation > 1, op.name


@pytest.mark.parametrize("name", SOME)
def test_transformers(name: str, tmp_path: Path) -> None:
    model = made(CASES[name])
    run = read_state(tmp_path, model.state_dict(), configuration(model))
    check_copy(run)
    check_no_copy(run)


@pytest.mark.parametrize("name", [n for n in RECORDED["small"] if n != "alexnet"])
def test_torchvision(name: str) -> None:
    said = RECORDED["small"][name]
    run = run_of(unpacked(said["shapes"]), **said["told"])
    check_copy(run)
    check_no_copy(run)
