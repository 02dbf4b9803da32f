"""What names and shapes cannot tell: from the config.json beside a file, or told by an option; else asked for, by name.

Never guessed: what neither says is collected, and one UsageError asks for all of it. Where a config.json is there and has no
such key, what transformers takes then is taken: that is how the file is meant to be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from canon.errors import UnsupportedOp, UsageError
from canon.families.draft import Shapes

T = TypeVar("T")
ASK = object()
"""The default of what has none: it is asked for."""
OPTIONS = {
    "heads": "--heads N",
    "kv_heads": "--kv-heads N",
    "eps": "--eps X",
    "activation": "--activation NAME",
    "rope_theta": "--rope-theta X",
    "rope_layout": "--rope-layout half|interleaved",
    "model_type": "--model-type NAME",
}
"""How each is told on the command line."""
_PLACEHOLDERS: dict[type, Any] = {int: 0, float: 1.0, str: "", bool: False}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


class Told:
    """config: the content of config.json, None where there is none; options: what was told, by name."""

    def __init__(self, config: Mapping[str, Any] | None, options: Mapping[str, Any]) -> None:
        self.config, self.options = config, options
        self.missing: dict[str, tuple[str, ...]] = {}
        self.taken: set[str] = set()
        self.assumed: dict[str, Any] = {}

    def get(self, name: str, kind: type, *keys: str, default: Any = ASK, least: int = 0) -> Any:
        """A setting: the option of this name, else the first of these keys of config.json, else `default`.

        kind: int, float, str or bool; a placeholder of that kind where it has to be asked for. Raises UsageError for a value of
        another kind, or a number below `least`.
        """
        if self.options.get(name) is not None:
            self.taken.add(name)
            return self._checked(f"option {OPTIONS.get(name, name).split()[0]}", self.options[name], kind, least)
        for key in keys:
            if self.config is not None and self.config.get(key) is not None:
                return self._checked(f"config.json: {key}", self.config[key], kind, least)
        if default is ASK:
            self.missing[name] = keys
            return _PLACEHOLDERS[kind]
        if self.config is None:
            self.assumed[name] = default
        return default

    def option(self, name: str, kind: type) -> Any:
        """What was told under a name, None where nothing was: for what shapes tell as well."""
        if self.options.get(name) is None:
            return None
        return self.get(name, kind, least=1)

    def raw(self, key: str) -> Any:
        """What config.json says under a key, whatever it is; None where it says nothing."""
        return None if self.config is None else self.config.get(key)

    def known(self, *keys: str) -> str:
        """The activation that is told, or that config.json names under one of these keys; "" where neither says it."""
        told = self.options.get("activation")
        if told is not None:
            self.taken.add("activation")
            return str(told)
        found = next((self.raw(key) for key in keys if self.raw(key) is not None), "")
        if not isinstance(found, str):
            raise UsageError(f"config.json: {keys[0]}", f"is {str(found)[:40]!r}, where the name of an activation belongs")
        return found

    def one_of(self, name: str, value: str, known: Mapping[str, T]) -> T | None:
        """What a word means; None for "". Raises UsageError for one that was told and is not known, UnsupportedOp for one that
        config.json has.
        """
        if not value or value in known:
            return known.get(value)
        what = f"{value[:40]!r} is none of {', '.join(known)}"
        if self.options.get(name) is not None:
            raise UsageError(OPTIONS[name].split()[0], what)
        raise UnsupportedOp(f"config.json: {name}", what)

    def expect(self, *kinds: str) -> None:
        """Raise UnsupportedOp where config.json speaks of another model_type."""
        kind = self.raw("model_type")
        if kind is not None and kind not in kinds:
            raise UnsupportedOp("config.json: model_type", f"{str(kind)[:40]!r} is none of {', '.join(kinds)}")

    def tied(self) -> bool | None:
        """Whether config.json says that the table of tokens and the last kernel are one tensor."""
        said = self.raw("tie_word_embeddings")
        return said if isinstance(said, bool) else None

    def language_model(self, shapes: Shapes, front: str) -> bool:
        """Whether a file holds a language model, with a head to the tokens, not the network in front of it alone.

        By its lm_head, else by the architecture that config.json names, else by the front of names that a head is beside of.
        """
        if "lm_head.weight" in shapes:
            return True
        named = self.raw("architectures")
        if self.tied() is False:
            return False
        if isinstance(named, list) and named:
            return any(word in str(named[0]) for word in ("CausalLM", "LMHead", "ConditionalGeneration"))
        return any(key.startswith(front) for key in shapes)

    @staticmethod
    def _checked(where: str, value: Any, kind: type, least: int) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, int | float) and not least <= value < 1e12):
            words = f"{_WORDS[kind]} from {least}" if kind is int else _WORDS[kind]
            raise UsageError(where, f"is {str(value)[:40]!r}, where a {words} belongs")
        return value

    def ask(self, family: str, unknown: bool = False) -> None:
        """Raise UsageError where something is missing; unknown: whether the activation is, which is asked for along with it."""
        if not self.missing:
            return
        missing = {**self.missing, **({"activation": ()} if unknown else {})}
        *others, final = [name.replace("_", " ") for name in missing]
        words = f"{', '.join(others)} and {final}" if others else final
        options = [OPTIONS[name] for name in missing if name in OPTIONS]
        keys = [keys[0] for keys in missing.values() if keys]
        beside = "Put its config.json beside it" if self.config is None else f"config.json has no {' and no '.join(keys)}"
        told = f", or tell {' '.join(options)}" if options else ""
        raise UsageError("", f"{family}: names and shapes do not tell {words}", f"{beside}{told}.")
