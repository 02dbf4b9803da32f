"""canon convert: a run in another format."""

from __future__ import annotations

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import Parser, add_common, add_format, add_output, add_reading
from ..writing import by_ending

if TYPE_CHECKING:
    from canon.network import Network

NAME = "convert"
HELP = "write a run in another format"

_ABOUT = """\
Reads FILE and writes its network in another format. What that format cannot
keep is said on standard error. Where the graph is kept, OUT is read again and
the outputs of both are checked against each other before it takes its place."""

_EPILOG = """\
formats:
  canon       canon's own HDF5: graph, weights, any number of checkpoints
  keras       Keras's legacy HDF5, for every Keras since 2.4
  keras-zip   Keras 3's archive, .keras
  npz         arrays by name, for numpy: no graph
  safetensors tensors by name, as torch names them: no graph
  state-dict  arrays by name in HDF5, as torch names them: no graph
  torch       a state dict in torch's own format: no graph
Without --to the ending of OUT tells: .npz, .safetensors, .keras, .pt, ...

examples:
  canon convert old.h5 -o new.keras --to keras-zip
  canon convert run.canon --checkpoint 100 -o step100.h5 --to keras
  canon convert run.canon --all-checkpoints -o copy.canon

exit status:
  0  written    2  trouble, OUT is as it was"""
_NO_GRAPH = ("npz", "safetensors", "state-dict", "torch")
_FAR = 1e-5
"""Of the largest output: more than any rounding of a weight on the way."""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon convert`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="FILE[:STEP]", help="the file to convert")
    add_output(parser)
    add_format(parser, "by the ending of OUT, else canon")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--checkpoint", metavar="STEP", help="which checkpoint, where there are several (default: the last)")
    which.add_argument("--all-checkpoints", action="store_true", help="all of them (canon's own format only)")
    add_reading(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Convert; 0."""
    from canon.formats import write
    from canon.formats.common_write import replacing

    from ..console import Messages
    from ..reading import read
    from ..text import write_json

    messages = Messages(args.quiet)
    to, told = (args.to, []) if args.to else _by_ending(args.output)
    told = [] if args.all_checkpoints else told  # one format alone holds them
    word = args.file if args.checkpoint is None else f"{args.file}:{args.checkpoint}"
    with messages.step(f"reading {word}") as tell, tempfile.TemporaryDirectory(prefix="canon-") as folder:
        source = read(word, args, messages)
        steps = source.checkpoints if args.all_checkpoints and source.checkpoints else ()
        others = [read(f"{args.file}:{step}", args) for step in steps if step != source.checkpoint]
        made = Path(folder) / "out"
        tell(f"writing {args.output}")
        with _named(made, args.output):
            notes = [*told, *write(source, made, to, checkpoints=others)]
            far, why = _compared(source.network, made) if to not in _NO_GRAPH else (None, "no graph is kept")
        with _named(made, args.output), replacing(Path(args.output)) as target:
            shutil.copyfile(made, target)
    for note in (*notes, *([f"the outputs are not compared: {why}"] if far is None else [])):
        messages.note(f"canon: {args.output}: {note}")
    if args.json:
        value = {
            "schema": "canon.convert/1",
            "output": args.output,
            "to": to,
            "checkpoints": list(steps) or [source.checkpoint],
            "outputs": far,
            "notes": [*source.notes, *notes],
        }
        write_json(value, args.json)
    return 0


def _by_ending(output: str) -> tuple[str, list[str]]:
    """The format that the name of OUT asks for, canon's own where it asks for none; what to say of it."""
    form = by_ending(output)
    if form is None:
        return "canon", ["written in canon's own format (--to names another)"]
    return form, [] if form == "canon" else [f"written as {form}, by its ending (--to names another)"]


@contextmanager
def _named(made: Path, output: str) -> Iterator[None]:
    """Errors about a file made on the way speak of the one that was asked for."""
    from canon.errors import CanonError

    try:
        yield
    except CanonError as e:
        where = output if e.where in ("", str(made)) else e.where.replace(f"{made}: ", f"{output}: ", 1)
        raise type(e)(where, e.what, e.hint) from e


def _compared(network: Network, made: Path) -> tuple[float | None, str]:
    """The largest difference of outputs between a network and the file made of it, over the largest output.

    None, and why, where they cannot be run. Raises WriteError where they are not the same function.
    """
    import numpy as np

    from canon.errors import ShapeConflict, UnsupportedOp, WriteError
    from canon.formats import read
    from canon.forward import forward, probe_inputs

    again = read(made).network
    try:
        probes = probe_inputs(network, np.random.default_rng(0), 2, 1.0)
        for op in network.ops:
            if op.kind == "embedding" and op.inputs[0] in probes:
                probes[op.inputs[0]] = np.abs(probes[op.inputs[0]]).round()
        outputs = forward(network, probes)
        others = forward(again, dict(zip(again.inputs, probes.values(), strict=True)))
    except (UnsupportedOp, ShapeConflict) as e:
        return None, e.what
    far = 0.0
    for a, b in zip(network.outputs, again.outputs, strict=True):
        largest = float(np.abs(outputs[a]).max(initial=0.0)) or 1.0
        far = max(far, float(np.abs(outputs[a] - others[b]).max(initial=0.0)) / largest)
    if not far <= _FAR:
        raise WriteError(str(made), f"does not compute what it was made of: outputs differ by {far:.1e} of the largest",
                         "Please report it; canon's own format holds every network.")  # fmt: skip
    return far, ""
