"""canon dedup: groups of files that hold one network, each member proved; and links in the place of copies."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import Parser, add_common, one_of

if TYPE_CHECKING:
    from canon.zoo import Pool

NAME = "dedup"
HELP = "find files that hold the same network, and link them"

_ABOUT = """\
Reads every file once, finds those whose fingerprints lie within rounding of
each other, and compares each of these element by element with the one to keep:
of the finer type, with its graph recorded, with more checkpoints, larger,
older. Nothing is called a copy without that proof.

  identical          the same graph, and the same bytes in every tensor
  equivalent         one is the other, relabelled and rescaled
  same-to-precision  the same, up to the rounding of a coarser type
  same-function      equal outputs, though no relabelling or rescaling is found"""

_EPILOG = """\
files:
  PATH is a file, a folder (all files below it, but for names that begin with a
  dot), a pattern in quotes, or a URL such as s3://bucket/zoo (needs
  canonform[fsspec]). What cannot be read is listed, and the rest goes on.
  Several names of one file are one file.

index:
  --index FILE keeps what was found: a scan that was interrupted goes on where
  it stopped, only new and changed files are read, and canon query answers from
  it. Two scans may use it at once.

links:
  --action hardlink shows what it would do; with --yes it does it: each copy is
  compared once more and replaced by a hard link to the file kept. Only
  identical files, unless --equivalent (other bytes, same function: they move
  beside the log) or --accept-precision says more. --undo LOG takes it back.

examples:
  canon dedup runs/
  canon dedup 'zoo/**/*.h5' old/ --index zoo.canon
  canon dedup runs/ --relatives 2
  canon dedup runs/ --action hardlink --yes
  canon dedup --undo canon-dedup.log

exit status:
  0  no copies, or undone    1  copies found    2  trouble, or nothing readable"""


def _count(word: str) -> int:
    if not word.isdigit() or len(word) > 6:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0")
    return int(word)


def add_work(parser: Parser) -> None:
    """Who does the work: --jobs, --scheduler."""
    text = "processes that read and compare (default: one a processor)"
    parser.add_argument("--jobs", metavar="N", type=_count, help=text)
    text = "hand the work to a Dask cluster, tcp://host:8786 (needs canonform[dask])"
    parser.add_argument("--scheduler", metavar="ADDRESS", help=text)


def add_relatives(parser: Parser, default: int, text: str) -> None:
    """Whether common descent is looked for: --relatives."""
    parser.add_argument("--relatives", metavar="N", type=_count, default=default, help=text)


def configure(parser: Parser) -> None:
    """Add the arguments of `canon dedup`."""
    parser.tell(NAME, HELP, _ABOUT, _EPILOG)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files, folders, patterns, URLs")
    parser.add_argument("--index", metavar="FILE", help="keep what is found in this file, and go on from it")
    parser.add_argument("--rescan", action="store_true", help="read all files again, unchanged ones too")
    text = "run all networks on probes; else only those that cost little, and same-function is looked for among these"
    parser.add_argument("--run-all", action="store_true", help=text)
    add_relatives(parser, 0, "compare each file with its N nearest ones too, for a common descent (default 0)")
    add_work(parser)
    text = "report (the default), or hardlink"
    parser.add_argument("--action", metavar="WHAT", type=one_of("report", "hardlink"), default="report", help=text)
    parser.add_argument("--equivalent", action="store_true", help="link equivalent files too")
    parser.add_argument("--accept-precision", action="store_true", help="link files that are the same to precision too")
    parser.add_argument("--yes", action="store_true", help="do what the plan says")
    parser.add_argument("--log", metavar="FILE", default="canon-dedup.log", help="where links are logged (default %(default)s)")
    parser.add_argument("--undo", metavar="LOG", help="turn the links of a log into files of their own again")
    add_common(parser)


def run(args: Namespace) -> int:
    """Find copies, or act on them; 0 none, 1 some, 2 nothing could be read."""
    from canon.errors import UsageError

    if args.undo is not None:
        return _undo(args)
    if not args.paths:
        raise UsageError(NAME, "no PATH is given", "See canon dedup --help.")
    from canon.zoo import Index, dedup, scan
    from canon.zoo.reading import Asked
    from canon.zoo.result import action_dict, dedup_dict, shown

    from ..console import Messages
    from ..text import write_json
    from ..zoo_report import print_done, print_groups, print_plan

    messages = Messages(args.quiet)
    with Index(args.index) as index:
        with messages.step("looking for files") as tell, work(args) as pool:
            asked = Asked(True if args.run_all else None)
            scan(args.paths, index, pool, asked, args.rescan, lambda progress: tell(str(progress)))
            tell("looking for copies")
            found = dedup(index, pool, args.relatives, tell)
        result = dedup_dict(found, index, shown(args.paths))
        names = index.names()
    if args.json != "-":
        print_groups(result)
    if args.action == "hardlink":
        from canon.zoo.links import act, plan

        planned = plan(found.groups, names, args.equivalent, args.accept_precision)
        result["action"] = action_dict(planned, None, None, shown(args.paths))
        if args.json != "-":
            print_plan(result["action"], will=args.yes)
        if args.yes and planned.steps:
            with messages.step("linking") as tell:
                done = act(planned, Path(args.log), tell)
            result["action"] = action_dict(planned, done, args.log, shown(args.paths))
            if args.json != "-":
                print_done(result["action"])
    if args.json:
        write_json(result, args.json)
    if result["files"] and result["files"] == len(result["unreadable"]):
        return 2
    return 1 if found.groups else 0


@contextmanager
def work(args: Namespace) -> Iterator[Pool]:
    """Who does the work that the arguments ask for."""
    from canon.zoo import Cluster, Here, Processes
    from canon.zoo.pool import processors

    if args.scheduler is not None:
        cluster = Cluster(args.scheduler)
        try:
            yield cluster
        finally:
            cluster.close()
    elif args.jobs == 0:
        yield Here()
    else:
        yield Processes(args.jobs or processors())


def _undo(args: Namespace) -> int:
    from canon.zoo.links import undo

    from ..console import Messages
    from ..text import write_json
    from ..zoo_report import print_undone

    with Messages(args.quiet).step(f"undoing {args.undo}"):
        undone = undo(Path(args.undo))
    result = {"schema": "canon.undo/1", "log": args.undo, "undone": [{"path": p, "why": w or None} for p, w in undone]}
    if args.json:
        write_json(result, args.json)
    if args.json != "-":
        print_undone(result)
    return 2 if any(why for _, why in undone) else 0
