"""canon query: one network's copies, and relatives, among all files of an index."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ..options import Parser, add_common
from .dedup import add_relatives, add_work

NAME = "query"
HELP = "find one network's copies in an index"

_ABOUT = """\
Looks a network up in the index that canon dedup --index made. Its copies are
found by their fingerprints, however many files the index holds, and each is
proved by comparing it with FILE. Which files are no copies is certain; of
relatives only the nearest are looked at, and how many were not is said."""

_EPILOG = """\
examples:
  canon dedup zoo/ --index zoo.canon
  canon query new.h5 --index zoo.canon
  canon query new.h5 --index zoo.canon --relatives 100

exit status:
  0  nothing found    1  copies or relatives found    2  trouble"""


def configure(parser: Parser) -> None:
    """Add the arguments of `canon query`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("file", metavar="FILE", help="the network to look for")
    parser.add_argument("--index", metavar="FILE", required=True, help="an index made by canon dedup --index")
    text = "compare it with the N nearest too, by fingerprint and by the order of units (default 0)"
    add_relatives(parser, 0, text)
    add_work(parser)
    add_common(parser)


def run(args: Namespace) -> int:
    """Look a file up; 1 where something was found."""
    from canon.errors import ReadError
    from canon.zoo import Here, Index, query
    from canon.zoo.result import query_dict, shown

    from ..console import Messages
    from ..text import write_json
    from ..zoo_report import print_answer
    from .dedup import work

    if not Path(args.index).is_file():
        raise ReadError(args.index, "no such index", "Make it with canon dedup PATH --index FILE.")
    messages = Messages(args.quiet)
    few = not args.relatives and args.jobs is None and args.scheduler is None
    with Index(args.index) as index, messages.step(f"reading {args.file}") as tell, work(args) as pool:
        # a few copies are compared sooner than other processes are started
        answer = query(args.file, index, args.relatives, Here() if few else pool, tell)
    result = query_dict(answer, args.file, args.index, shown([args.file]))
    if args.json:
        write_json(result, args.json)
    if args.json != "-":
        print_answer(result)
    return 1 if answer.copies or answer.related else 0
