"""canon show: what is in a file, its spaces, its gauges and the size of its symmetry."""

from __future__ import annotations

from argparse import Namespace

from ..options import Parser, add_common, add_reading

NAME = "show"
HELP = "what is in a file, its spaces and the size of its symmetry"

_ABOUT = """\
Spaces are the sets of units that may be relabelled together; the group says
by what factors each unit may be rescaled without changing what the network
computes, and why says what allows it. Axes that nothing may move are listed
as fixed, each with its reason. What folds away is no freedom of the function:
batch norms, biases that the next layer takes, dead units."""

_EPILOG = """\
files:
  Found by content, whatever their names: Keras HDF5 models and weights,
  tensors dumped by name into HDF5, canon's own HDF5. FILE:STEP picks a
  checkpoint where a file holds several; the last one is shown otherwise.

examples:
  canon show run.h5
  canon show run.h5:100                  checkpoint 100
  canon show weights.h5 --architecture model.json
  canon show run.h5 --json - | jq .symmetry

exit status:
  0  shown    2  trouble"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon show`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="FILE[:STEP]", help="the file to look at")
    add_reading(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Show one file; 0."""
    from canon.describe import describe

    from ..console import Messages
    from ..description import print_description
    from ..reading import read
    from ..text import write_json

    messages = Messages(args.quiet)
    with messages.step(f"reading {args.file}") as tell:
        run = read(args.file, args, messages)
        tell("deriving the symmetry")
        found = describe(run)
    if args.json:
        write_json(found.as_dict(), args.json)
    if args.json != "-":
        print_description(found, told=run.notes)
    return 0
