"""Writing a moved network where the command line says."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from .text import write_json

if TYPE_CHECKING:
    from canon.run import Run
    from canon.transform import Moved


ENDINGS = {".canon": "canon", ".keras": "keras-zip", ".npz": "npz", ".safetensors": "safetensors", ".pt": "torch",
           ".pth": "torch", ".bin": "torch", ".onnx": "onnx", ".nnet": "nnet"}  # fmt: skip
"""Formats that the ending of a name speaks for."""
FAMILY = {"keras-zip": "archive", **{name: name for name in ENDINGS.values() if name != "keras-zip"}}
"""A word in what a run calls the format it was read from."""


def by_ending(output: str) -> str | None:
    """The format that the ending of a file's name speaks for, or None."""
    return next((form for ending, form in ENDINGS.items() if output.lower().endswith(ending)), None)


def write_moved(moved: Moved, source: Run, args: Namespace, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Write OUT, in the format of the source unless told otherwise, and the JSON object if asked for; all there is to note."""
    from canon.formats import WRITES, write

    tell(f"writing {args.output}")
    ending = by_ending(args.output)
    form = args.to or ("canon" if args.folded else None)  # a folded graph has no place in a copy of the source
    run = source.with_network(moved.network)
    notes = (*moved.notes, *write(run, args.output, form, actions=moved.actions, drop_optimizer=True))
    if form is None and ending in WRITES and FAMILY[ending] not in source.format:
        said = f"is written as its source is ({source.format}), whatever its ending: --to {ending} names another"
        notes = (*notes, f"{args.output} {said}")
    if args.json:
        check = {"probes": moved.check.probes, "outputs": moved.check.deviation, "why": moved.check.why or None}
        write_json({"schema": "canon.write/1", "output": args.output, "check": check, "notes": list(notes)}, args.json)
    return notes
