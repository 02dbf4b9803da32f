"""canon teleport: a random member of a network's orbit."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_reading, add_seed, add_writing

NAME = "teleport"
HELP = "write a random relabelled and rescaled copy of a network"

_ABOUT = """\
OUT computes what FILE computes, with its hidden units relabelled and rescaled
at random: for testing whether a tool sees through it. The outputs of both are
checked against each other before OUT is written."""

_EPILOG = """\
examples:
  canon teleport run.h5 -o disguised.h5 --seed 1
  canon compare run.h5 disguised.h5      says equivalent

exit status:
  0  written    2  trouble, OUT is as it was"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon teleport`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="FILE[:STEP]", help="the file to disguise")
    add_writing(parser)
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Write a random member of the orbit; 0."""
    from canon.transform import teleport

    from ..console import Messages
    from ..reading import read
    from ..writing import write_moved

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.file}") as tell:
        source = read(args.file, args, messages)
        moved = teleport(source.network, args.seed, folded=args.folded, tell=tell)
        notes = write_moved(moved, source, args, tell)
    for note in notes:
        messages.note(note)
    return 0
