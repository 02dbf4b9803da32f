"""canon record: what a network gives on probes, stored with it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import Parser, add_common, add_output, add_reading, one_of
from .similarity import add_layers

if TYPE_CHECKING:
    from canon.run import Run

NAME = "record"
HELP = "store what a network gives on probes, with the network"

_ABOUT = """\
Runs a network on samples and writes it in canon's own HDF5 together with the
samples and the activations they give; of a file of canon's own, with all else
that it holds. The file read is never written to. Activations have their units
on axis 1, and the samples' names (sample_ids) beside them where the probes
carry any, so that a later canon similarity can check that it compares like
with like."""

_EPILOG = """\
probes:
  A dataset of HDF5 or an array of .npz, samples first, with the names in an
  attribute or array sample_ids; or a .csv table, with a column sample_id.
  Without --probes, those that the run stores itself are taken.

examples:
  canon record run.h5 --probes images.npz -o recorded.h5
  canon record run.h5:100 --probes data.h5:test/x -o recorded.h5
  canon record run.h5 --all-checkpoints --probes x.csv -o recorded.h5
  canon similarity recorded-a.h5 recorded-b.h5

exit status:
  0  written    2  trouble, OUT is as it was"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon record`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="RUN[:STEP]", help="the network to run; the last checkpoint unless a step is named")
    parser.add_argument("--probes", metavar="FILE[:DATASET]", help="the samples to run it on")
    add_output(parser)
    add_layers(parser)
    parser.add_argument("--name", metavar="NAME", help="what the probes are called in OUT (default: as their dataset)")
    parser.add_argument("--all-checkpoints", action="store_true", help="record every checkpoint, not only one")
    text = "float32 or float64 (default: float32, of float64 networks float64)"
    parser.add_argument("--dtype", metavar="TYPE", type=one_of("float32", "float64"), help=text)
    add_reading(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Record; 0."""
    from canon.errors import UsageError
    from canon.similarity.probes import from_file, stored
    from canon.similarity.recording import record

    from ..console import Messages
    from ..options import split_step
    from ..reading import read
    from ..text import write_json

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.file}") as tell:
        last = read(args.file, args, messages)
        _spare(args.output, last.path, args.probes)
        if args.probes is not None:
            probes = from_file(args.probes)
        else:
            known = stored(last)
            if len(known) != 1:
                what = f"stores several probes: {', '.join(known)}" if known else "stores no probes"
                raise UsageError(last.path, what, f"Name some: --probes {f'{last.path}:NAME' if known else 'FILE'}.")
            probes = next(iter(known.values()))
        path, step = split_step(args.file)
        runs: list[Run] = [last]
        if args.all_checkpoints:
            if step:
                raise UsageError(NAME, f"a step ({step}) and --all-checkpoints", "Give one of the two.")
            runs = [*(read(f"{path}:{s}", args) for s in last.checkpoints[:-1]), last]
        shapes = record(runs, probes, Path(args.output), name=args.name, patterns=args.layers, dtype=args.dtype, tell=tell)
    if args.json:
        value = {
            "schema": "canon.record/1",
            "output": args.output,
            "probes": args.name or probes.name,
            "samples": probes.samples,
            "sample_ids": probes.ids is not None,
            "checkpoints": [r.checkpoint or "0" for r in runs],
            "values": {name: list(shape) for name, shape in shapes.items()},
        }
        write_json(value, args.json)
    if args.json != "-":
        messages.note(f"canon: {args.output}: {', '.join(shapes)} on {probes.samples:,} samples")
    return 0


def _spare(output: str, run: str, probes: str | None) -> None:
    """Raise UsageError where OUT would take the place of what is read."""
    from canon.errors import UsageError

    from ..options import split_step

    for path in (run, *([probes, split_step(probes)[0]] if probes else [])):
        if Path(path).exists() and Path(output).exists() and Path(path).samefile(output):
            raise UsageError(NAME, f"{output} would take the place of {path}, which is read", "Name another file: -o OUT.")
