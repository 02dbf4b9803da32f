"""Networks of real implementations with random weights, as files that canon reads: for the tests of families."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from canon.formats import read
from canon.forward import forward
from canon.run import Run

Arrays = dict[str, NDArray[Any]]
FAR = 1e-9
"""Of the largest output, between a real implementation and canon, both in float64."""


def randomised(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The module in evaluation mode with random parameters and statistics, of a size that keeps values of order one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, t in module.state_dict().items():
            if not t.is_floating_point():
                continue
            if name.endswith("running_var"):
                t.copy_(0.5 + torch.rand(t.shape, generator=generator, dtype=t.dtype))
                continue
            noise = torch.randn(t.shape, generator=generator, dtype=t.dtype)
            t.copy_(0.3 * noise + float("weight" in name) if t.ndim < 2 else 1.3 * noise / max(t[0].numel(), 1) ** 0.5)
    return module.eval()


@contextmanager
def double() -> Iterator[None]:
    """Implementations that compute some steps in float32 on purpose take float64 instead, inside this block."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept  # type: ignore[method-assign]
        torch.set_default_dtype(kept[0])


def arrays(state: Mapping[str, torch.Tensor]) -> Arrays:
    """A state dict as numpy arrays."""
    return {name: t.detach().numpy() for name, t in state.items()}


def stored(folder: Path, found: Mapping[str, NDArray[Any]], config: Mapping[str, Any] | None = None) -> Path:
    """A file of these tensors, with a config.json beside it if there is one."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "net.npz", **found)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "net.npz"


def read_state(folder: Path, state: Mapping[str, torch.Tensor], config: Any = None, **told: Any) -> Run:
    """The run that canon reads from a state dict."""
    activation = told.pop("activation", None)
    return read(stored(folder, arrays(state), config), activation=activation, options=told)


def outputs(run: Run, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What the run's network gives out, in order."""
    found = forward(run.network, {name: x for name, x in inputs.items() if name in run.network.inputs})
    return [found[name] for name in run.network.outputs]


def assert_same(found: Sequence[NDArray[Any]], wanted: Sequence[Any], far: float = FAR, varied: float = 1e-3) -> None:
    """Every output is no further from what is wanted than rounding brings it, and not the same for all inputs (varied)."""
    assert len(found) == len(wanted)
    for y, w in zip(found, wanted, strict=True):
        w = np.asarray(w)
        assert y.shape == w.shape
        assert w.std() > varied * np.abs(w).max()
        np.testing.assert_allclose(y, w, rtol=0, atol=far * np.abs(w).max())


def distance(found: NDArray[Any], wanted: Any) -> float:
    """The largest deviation, of the largest output."""
    w = np.asarray(wanted)
    return float(np.abs(found - w).max() / np.abs(w).max())
