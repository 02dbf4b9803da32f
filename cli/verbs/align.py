"""canon align: one network moved into the labelling, signs and scales of another."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_reading, add_seed, add_writing

NAME = "align"
HELP = "write B moved into A's labelling, signs and scales"

_ABOUT = """\
OUT computes what B computes, with its units where their partners stand in A: a
plain diff, an average or an interpolation of A and OUT then makes sense. OUT
is a copy of B with its weights replaced."""

_EPILOG = """\
examples:
  canon align a.h5 b.h5 -o b-aligned.h5
  canon align run.h5:100 run.h5:200 -o aligned.h5 --to canon

exit status:
  0  written    2  trouble, OUT is as it was"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon align`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("a", metavar="A[:STEP]", help="the file to align to")
    parser.add_argument("b", metavar="B[:STEP]", help="the file to move")
    add_writing(parser)
    add_reading(parser)
    add_seed(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Write B aligned to A; 0."""
    from canon.transform import align

    from ..console import Messages
    from ..reading import read_pair
    from ..writing import write_moved

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.a}") as tell:
        a, b = read_pair(args, messages)
        moved = align(a.network, b.network, args.folded, args.seed, tell)
        notes = write_moved(moved, b, args, tell)
    for note in notes:
        messages.note(note)
    return 0
