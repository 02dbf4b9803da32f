"""Reading what the command line names: FILE[:STEP] with --architecture and --activation."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from .options import split_step

if TYPE_CHECKING:
    from canon.run import Run

    from .console import Messages


def read(word: str, args: Namespace, messages: Messages | None = None) -> Run:
    """The run that a word of the command line names; what its reader found worth telling goes to `messages`."""
    from canon.formats import read as read_file

    path, step = split_step(word)
    run = read_file(path, checkpoint=step or None, architecture=args.architecture, activation=args.activation)
    if messages is not None:
        for note in run.notes:
            messages.note(f"canon: {word}: {note}")
    return run
