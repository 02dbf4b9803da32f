"""Reading what the command line names: FILE[:STEP] with --architecture and --activation."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from .options import split_step

if TYPE_CHECKING:
    from canon.run import Run


def read(word: str, args: Namespace) -> Run:
    """The run that a word of the command line names."""
    from canon.formats import read as read_file

    path, step = split_step(word)
    return read_file(path, checkpoint=step or None, architecture=args.architecture, activation=args.activation)
