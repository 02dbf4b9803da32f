"""An operation that canon does not know, anywhere in a graph, never makes a wrong claim: only what holds is moved.

The unknown operation is, in truth, a fixed function of its input that lets nothing through; canon is told its shape alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from canon.action import random_action
from canon.compare import compare
from canon.forward import forward
from canon.network import Network
from canon.ops import Op
from canon.run import Run
from canon.symmetry import derive

KINDS = ("selu", "tanh", "gelu")


def drawn(seed: int) -> tuple[Network, dict[str, np.ndarray]]:
    """A network with opaque ops, and for each of them the kernel of what it truly is: tanh of a fixed dense map."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    truth: dict[str, np.ndarray] = {}
    ops: list[Op] = []
    values = [("x", 5)]
    for i in range(int(rng.integers(4, 8))):
        value, n = values[-1]
        width = int(rng.integers(3, 7))
        kernel, bias = f"{i}.w", f"{i}.b"
        tensors[kernel] = rng.standard_normal((width, n)).astype(np.float32)
        tensors[bias] = rng.standard_normal(width).astype(np.float32)
        ops.append(Op("dense", f"{i}.d", (value,), f"{i}.d", {"kernel": kernel, "bias": bias}))
        ops.append(Op(str(rng.choice(KINDS)), f"{i}.a", (f"{i}.d",), f"{i}.a"))
        here = f"{i}.a"
        if i == 1 or rng.random() < 0.4:
            truth[f"{i}.o"] = rng.standard_normal((width, width))
            ops.append(Op("opaque", f"{i}.o", (here,), f"{i}.o", {}, {"class_name": "Secret", "shape": [width]}))
            here = f"{i}.o"
        same = [v for v, m in values if m == width and v != "x"]
        if same and rng.random() < 0.5:
            ops.append(Op("add", f"{i}.s", (here, same[-1]), f"{i}.s"))
            here = f"{i}.s"
        values.append((here, width))
    value, n = values[-1]
    tensors["last"] = rng.standard_normal((2, n)).astype(np.float32)
    ops.append(Op("dense", "last", (value,), "last", {"kernel": "last"}))
    return Network(tensors, tuple(ops), {"x": (5,)}, ("last",)), truth


def revealed(network: Network, truth: dict[str, np.ndarray]) -> Network:
    """The same tensors in the graph that has what the opaque operations truly are."""
    ops: list[Op] = []
    for op in network.ops:
        if op.kind == "opaque":
            ops.append(Op("dense", f"{op.name}/d", op.inputs, f"{op.name}/d", {"kernel": f"{op.name}/w"}))
            ops.append(replace(op, kind="tanh", inputs=(f"{op.name}/d",), attrs={}))
        else:
            ops.append(op)
    kernels = {f"{name}/w": t for name, t in truth.items()}
    return Network({**network.tensors, **kernels}, tuple(ops), network.inputs, network.outputs)


def outputs(network: Network) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((6, 5))
    return forward(network, {"x": x})[network.outputs[0]]


def run(network: Network) -> Run:
    return Run("net", "test", network)


@pytest.mark.parametrize("seed", range(30))
def test_only_what_holds_is_moved(seed: int) -> None:
    net, truth = drawn(seed)
    symmetry = derive(net)
    moved = random_action(symmetry, net, np.random.default_rng(seed), 0.7)(net)
    want = outputs(revealed(net, truth))
    np.testing.assert_allclose(outputs(revealed(moved, truth)), want, rtol=0, atol=1e-10 * np.abs(want).max())
    named = " ".join(symmetry.fixed.values())
    for name in truth:
        assert f"{name} (Secret) is opaque" in named
    single = moved.with_tensors({n: np.asarray(t, np.float32) for n, t in moved.tensors.items()})
    if symmetry.spaces:
        assert compare(run(net), run(single)).verdict == "equivalent"


@pytest.mark.parametrize("seed", range(30))
def test_what_is_relabelled_across_the_unknown_is_no_copy(seed: int) -> None:
    net, truth = drawn(seed)
    op = next(op for op in net.ops if op.kind == "opaque")
    dense = net.writer[net.writer[op.inputs[0]].inputs[0]]
    perm = np.roll(np.arange(net.shapes[op.output][-1] or 0), 1)
    changed = {t: net.tensors[t][perm] for t in dense.params.values()}
    # and back behind it, as if it were elementwise
    for reader in net.readers[op.output]:
        if reader.kind == "dense":
            changed[reader.params["kernel"]] = net.tensors[reader.params["kernel"]][:, perm]
    other = net.with_tensors(changed)
    assert np.abs(outputs(revealed(other, truth)) - outputs(revealed(net, truth))).max() > 1e-3
    assert compare(run(net), run(other)).verdict not in ("identical", "equivalent", "same-function")
