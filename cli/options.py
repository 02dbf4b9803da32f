"""Arguments that verbs share, and the parser that answers "did you mean"."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from canon.errors import UsageError

from .text import did_you_mean

_STEP = re.compile(r"(?P<path>.+):(?P<step>[^:/\\]+)")


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError with a hint, where argparse prints its usage and exits."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def tell(self, name: str, what: str, about: str, sections: str) -> None:
        """The text of a verb's help, at most 79 columns wide: a line on what it does, a paragraph, and sections."""
        self.description = f"canon {name} - {what}\n\n{about}"
        self.epilog = sections

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words. Raises UsageError; SystemExit(0) after --help or --version."""
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                hint = did_you_mean(name, self._option_string_actions)
                raise UsageError(self._where, f"unknown option {name!r}", f"{hint} {self._help}".lstrip())
        args, extra = self.parse_known_args(_lone_units(words))
        if extra:
            raise UsageError(self._where, f"unexpected argument {extra[0]!r}", self._help)
        _spare_files(args)
        return args

    def error(self, message: str) -> NoReturn:
        """Called by argparse for whatever it cannot parse."""
        fact, _, hint = message.partition("\n")
        raise UsageError(self._where, fact, hint or self._help)

    @property
    def _where(self) -> str:
        return self.prog.partition(" ")[2]

    @property
    def _help(self) -> str:
        return f"See {self.prog} --help."


def _spare_files(args: argparse.Namespace) -> None:
    """Raise UsageError where the result as JSON would take the place of a file that another argument names."""
    target = getattr(args, "json", None)
    if target in (None, "-"):
        return
    for name, value in vars(args).items():
        for word in value if isinstance(value, list) else [value]:
            if name != "json" and isinstance(word, str) and _is(word, target, made=name in ("output", "units")):
                raise UsageError("--json", f"{target} would take the place of {word}", "Name another file for the result.")


def _is(word: str, target: str, *, made: bool) -> bool:
    """Whether a word of the command line names the target, or a folder with the target in it that is no result of canon's.

    made: the word names a file that need not be there yet.
    """
    path, _ = split_step(word)
    if made and os.path.realpath(path) == os.path.realpath(target):
        return True
    if not (os.path.isfile(target) and os.path.exists(path)):
        return False
    if not os.path.isdir(path):
        return os.path.samefile(path, target)
    with open(target, "rb") as file:
        start = file.read(64)
    inside = Path(os.path.realpath(target)).is_relative_to(os.path.realpath(path))
    return inside and start != b"" and b'"schema": "canon.' not in start


def _lone_units(words: Sequence[str]) -> list[str]:
    """`--units` takes a file only when the next word is a .csv file, so that `--units A B` does not swallow A."""
    following = [*words[1:], ""]
    return [
        "--units=-" if word == "--units" and not after.lower().endswith(".csv") else word
        for word, after in zip(words, following, strict=False)
    ]


def one_of(*names: str) -> Callable[[str], str]:
    """An argument type: one of these names, with a suggestion for a misspelt one."""

    def check(word: str) -> str:
        if word not in names:
            fact = f"{word!r} is not one of {', '.join(names)}"
            raise argparse.ArgumentTypeError(f"{fact}\n{did_you_mean(word, names)}".rstrip())
        return word

    return check


def _seed(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0")
    return int(word)


def split_step(word: str) -> tuple[str, str]:
    """Split FILE:STEP into file and step ("" for none).

    A file of the whole name wins: "run.h5:100" is a file where one of that name exists. A drive letter is no file.
    """
    found = _STEP.fullmatch(word)
    if not found or Path(word).exists() or (len(found["path"]) == 1 and found["path"].isalpha()):
        return word, ""
    return found["path"], found["step"]


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options of every verb: --json, --quiet."""
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress, warnings or notes on standard error")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """How files are read that do not say everything: --architecture, --activation, and what state dicts leave out."""
    parser.add_argument(
        "--architecture",
        metavar="FILE",
        help="for a file that holds weights alone: a Keras JSON, or another run to take the architecture from",
    )
    parser.add_argument(
        "--activation",
        metavar="NAME",
        help="the activation of hidden layers where the file does not record it (relu, tanh, ...)",
    )
    known = parser.add_argument_group("what no state dict tells, without a config.json beside it")
    known.add_argument("--heads", metavar="N", type=_count, help="attention heads of queries")
    known.add_argument("--kv-heads", metavar="N", type=_count, help="attention heads of keys and values")
    known.add_argument("--eps", metavar="X", type=_number, help="epsilon of its norms")
    known.add_argument("--rope-theta", metavar="X", type=_number, help="base of rotary positions")
    known.add_argument(
        "--rope-layout",
        metavar="NAME",
        type=one_of("half", "interleaved"),
        help="which units turn together: half (as transformers has them) or interleaved",
    )
    known.add_argument("--model-type", metavar="NAME", help="model_type where names fit several (llama, gemma, bert, ...)")


TOLD = ("heads", "kv_heads", "eps", "rope_theta", "rope_layout", "model_type")
"""What these options tell, by the names that reading takes them under."""


def _count(word: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", word):
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 1")
    return int(word)


def _number(word: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,2})?", word):
        raise argparse.ArgumentTypeError(f"{word!r} is not a number")
    return float(word)


def add_seed(parser: argparse.ArgumentParser) -> None:
    """--seed, for everything that is drawn at random."""
    text = "seed of everything drawn at random (default 0): same seed, same bytes"
    parser.add_argument("--seed", metavar="N", type=_seed, default=0, help=text)


def add_gauge(parser: argparse.ArgumentParser, *names: str) -> None:
    """--gauge, one of these names, the first by default."""
    parser.add_argument(
        "--gauge",
        metavar="NAME",
        type=one_of(*names),
        default=names[0],
        help=f"how the scale of a unit is fixed: {', '.join(names)} (default {names[0]})",
    )


def _writable(word: str) -> str:
    """An argument type: a format that canon writes. Asked for only where the option is used: the library is heavy."""
    from canon.formats import WRITES

    return one_of(*WRITES)(word)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where a network is written: -o."""
    text = "the file to write; replaced whole or not at all"
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help=text)


def add_format(parser: argparse.ArgumentParser, default: str) -> None:
    """In what format: --to; default: what is taken without it, in words."""
    text = f"canon, keras, keras-zip, npz, safetensors, state-dict or torch (default: {default})"
    parser.add_argument("--to", metavar="FORMAT", type=_writable, help=text)


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Where and how a moved network is written: -o, --to, --folded."""
    add_output(parser)
    add_format(parser, "that of the input")
    parser.add_argument(
        "--folded", action="store_true", help="write the folded network, batch norms in their layers, not the one read"
    )
