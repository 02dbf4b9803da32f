"""Reading what the command line names: FILE[:STEP] with --architecture and --activation."""

from __future__ import annotations

import contextlib
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


def read_pair(args: Namespace, messages: Messages) -> tuple[Run, Run]:
    """Both runs that `args.a` and `args.b` name; one without a graph of its own is read by the other's, where that fits."""
    from canon.errors import CanonError

    words = [args.a, args.b]
    runs = [read(word, args) for word in words]
    for i, other in ((0, 1), (1, 0)):
        if args.architecture is None and runs[i].graph in ("chain", "none") and runs[other].graph == "config":
            with contextlib.suppress(CanonError):  # it does not fit: the two are compared as they are
                runs[i] = read(words[i], Namespace(architecture=runs[other].path, activation=args.activation))
    for word, run in zip(words, runs, strict=True):
        for note in run.notes:
            messages.note(f"canon: {word}: {note}")
    return runs[0], runs[1]
