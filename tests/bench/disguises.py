"""What other tools say of one network in five disguises, beside canon. Not part of the test run.

    python tests/bench/disguises.py [--rebasin PYTHON]

Prints a row a tool: canon, cmp (bytes), h5diff where it is installed, and with --rebasin the PyPI package of that name in
another interpreter (it needs torch): the distance of the weights that is left after its matching, and the change of the
outputs. The disguises are made from data/mlp-seed0.h5.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

DATA = Path(__file__).parents[2] / "data"

REBASIN = """
import sys, numpy as np, h5py, torch
from rebasin import PermutationCoordinateDescent
def load(path):
    with h5py.File(path) as f:
        w = f["model_weights"]
        layers = []
        for name in [n.decode() if isinstance(n, bytes) else n for n in w.attrs["layer_names"]]:
            found = {}
            w[name].visititems(lambda k, d: found.__setitem__(k.split("/")[-1], d[()]) if isinstance(d, h5py.Dataset) else None)
            kernel = next((v for k, v in found.items() if k.startswith("kernel")), None)
            if kernel is None:
                continue
            layer = torch.nn.Linear(*kernel.shape)
            layer.weight.data = torch.tensor(kernel.T.copy())
            layer.bias.data = torch.tensor(next(v for k, v in found.items() if k.startswith("bias")))
            layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])
a, b = map(load, sys.argv[1:3])
x = torch.randn(8, a[0].in_features)
before = b(x)
PCD = PermutationCoordinateDescent(a, b, x)
PCD.rebasin()
gap = sum(float(((p - q) ** 2).sum()) for p, q in zip(a.parameters(), b.parameters()))
size = sum(float((p ** 2).sum() + (q ** 2).sum()) for p, q in zip(a.parameters(), b.parameters()))
moved = float((b(x) - before).abs().max() / before.abs().max())
print(f"{(gap / size) ** 0.5:.2g} (outputs moved by {moved:.1g})")
"""


def disguises(folder: Path) -> dict[str, Path]:
    """The five files beside data/mlp-seed0.h5."""
    source = DATA / "mlp-seed0.h5"
    saved = folder / "saved-again.h5"
    shutil.copy(source, saved)
    with h5py.File(saved, "a") as f:
        f.attrs["note"] = "saved again"
    permuted = folder / "permuted.h5"
    shutil.copy(source, permuted)
    rng = np.random.default_rng(0)
    with h5py.File(permuted, "a") as f:
        kernels: list[h5py.Dataset] = []
        biases: list[h5py.Dataset] = []
        names = [n.decode() if isinstance(n, bytes) else n for n in f["model_weights"].attrs["layer_names"]]
        for name in names:

            def keep(_: str, d: object) -> None:
                if isinstance(d, h5py.Dataset):
                    (kernels if d.ndim == 2 else biases).append(d)

            f["model_weights"][name].visititems(keep)
        for i in range(len(kernels) - 1):
            p = rng.permutation(kernels[i].shape[1])
            kernels[i][...] = kernels[i][()][:, p]
            biases[i][...] = biases[i][()][p]
            kernels[i + 1][...] = kernels[i + 1][()][p]
    return {
        "saved again": saved,
        "permuted": permuted,
        "permuted and rescaled": DATA / "mlp-seed0-disguised.h5",
        "fine-tuned, disguised": DATA / "mlp-seed0-tuned.h5",
        "another seed": DATA / "mlp-seed1.h5",
    }


def said(tool: str, a: Path, b: Path, rebasin: str) -> str:
    """What a tool says of two files, in a few words."""
    if tool == "canon":
        out = subprocess.run(["canon", "compare", a, b, "--json", "-", "--quiet"], capture_output=True, text=True, check=False)
        found = json.loads(out.stdout)
        return f"{found['verdict']} {found['distance']['matched']:.2g}"
    if tool == "rebasin":
        done = subprocess.run([rebasin, "-c", REBASIN, str(a), str(b)], capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1][:60]
    words = {"cmp": ["cmp", "-s"], "h5diff": ["h5diff", "-q"]}[tool]
    status = subprocess.run([*words, str(a), str(b)], capture_output=True, check=False).returncode
    return {0: "same", 1: "differ"}.get(status, f"exit {status}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebasin", default="", help="a Python with torch and rebasin")
    args = parser.parse_args()
    tools = ["canon", "cmp", *(["h5diff"] if shutil.which("h5diff") else []), *(["rebasin"] if args.rebasin else [])]
    with tempfile.TemporaryDirectory() as tmp:
        files = disguises(Path(tmp))
        print("tool\t" + "\t".join(files))
        for tool in tools:
            print(tool + "\t" + "\t".join(said(tool, DATA / "mlp-seed0.h5", f, args.rebasin) for f in files.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
