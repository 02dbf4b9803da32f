"""What a torch pickle asks for, found out before torch is given the file: nothing is imported, called or allocated.

torch's own weights_only loader runs no code, but it believes sizes: a tensor may claim more numbers than its storage has,
and memory for them is taken. Here the few opcodes that loader knows are followed with placeholders; names outside its list
are refused, and every tensor is held against the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, Protocol

from canon.errors import CorruptFile, ReadError, UnknownFormat

MOST_STEPS = 5_000_000
LONGEST = 1 << 26
"""Opcodes and bytes that one pickle may have: what 150,000 tensors need."""
FREELY = 1 << 20
"""Numbers that a tensor may have more than its storage, which shows them several times over."""
LARGEST, DEEPEST = 1 << 50, 32
"""Numbers and axes that no tensor has."""
MARK = object()

ITEMSIZE = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8, "UntypedStorage": 1,
}  # fmt: skip
"""Bytes of a number in each kind of storage."""
DTYPES = {"float64": 8, "double": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "int64": 8,
          "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
          "complex128": 16, "complex64": 8, "complex32": 4, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1,
          "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}  # fmt: skip
STRANGE = {
    "torch._utils._rebuild_qtensor": "quantised tensors",
    "torch._utils._rebuild_sparse_tensor": "sparse tensors",
    "torch._utils._rebuild_sparse_csr_tensor": "sparse tensors",
    "torch._utils._rebuild_nested_tensor": "nested tensors",
    "torch._utils._rebuild_meta_tensor_no_storage": "tensors without values (of the meta device)",
    "torch._utils._rebuild_wrapper_subclass": "tensors of a class of their own",
    "torch._utils._rebuild_device_tensor_from_numpy": "tensors of a device of their own",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "tensors of a device of their own",
}
"""What weights_only loads and canon does not."""


class Source(Protocol):
    """Where bytes come from."""

    def read(self, n: int, /) -> bytes:
        """At most n bytes."""

    def readline(self, n: int, /) -> bytes:
        """A line of at most n bytes."""


@dataclass(frozen=True)
class Global:
    """A name that a pickle would import."""

    name: str


@dataclass(frozen=True)
class Storage:
    """size: how many numbers; itemsize: bytes of one."""

    size: int
    itemsize: int


@dataclass(frozen=True)
class Tensor:
    """A tensor that fits its storage."""

    shape: tuple[int, ...]


class Other:
    """Any object without a meaning here."""


OTHER = Other()
Persistent = Callable[[tuple[Any, ...]], Storage]
"""What a persistent id stands for; it raises where the file has no such thing."""


def refused(name: str) -> ReadError:
    """The refusal of a name that a pickle asks for."""
    shown = name if name.isprintable() else repr(name)
    return ReadError("", f"its pickle asks for {shown}, which weights_only refuses: loading it could run code",
                     "Where you trust it, load it yourself and save its state_dict().")  # fmt: skip


def scan(source: Source, persistent: Persistent) -> Any:
    """What one pickle holds, with placeholders for tensors. Raises ReadError naming a refused global, CorruptFile."""
    try:
        return _Machine(source, persistent).run()
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, EOFError, StopIteration) as e:
        raise CorruptFile("", f"a damaged torch pickle ({type(e).__name__})", "Fetch the file again.") from e


class _Machine:
    """The opcodes of protocol 2 that weights_only knows."""

    def __init__(self, source: Source, persistent: Persistent) -> None:
        self.source, self.persistent = source, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = LONGEST

    def run(self) -> Any:
        for _ in range(MOST_STEPS):
            code = self.read(1)
            if code == b".":
                (found,) = self.tuple_(1)
                return found
            step = STEPS.get(code)
            if step is None:
                raise CorruptFile("", f"a pickle that weights_only does not read (opcode {code!r})", RESAVE)
            step(self)
        raise CorruptFile("", f"a pickle of more than {MOST_STEPS:,} steps", "No state dict needs as many.")

    def read(self, n: int) -> bytes:
        self.left -= n
        if self.left < 0:
            raise CorruptFile("", f"a pickle of more than {LONGEST:,} bytes", "No state dict needs as many.")
        found = self.source.read(n)
        if len(found) < n:
            raise EOFError
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.read(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        at = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is MARK)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def global_(self) -> None:
        words = [self.source.readline(1024) for _ in range(2)]
        if not all(word.endswith(b"\n") for word in words):
            raise EOFError
        self.left -= sum(map(len, words))
        module, name = (word[:-1].decode("utf-8") for word in words)
        full = f"{RENAMED.get(module, module)}.{name}"
        if full in STRANGE:
            raise UnknownFormat("", f"holds {STRANGE[full]}, which canon does not read", "Save it with plain tensors.")
        if full not in CALLS and not _is_type(full):
            raise refused(full)
        self.push(Global(full))

    def reduce(self) -> None:
        args, what = self.stack.pop(), self.stack.pop()
        if not isinstance(what, Global) or not isinstance(args, tuple):
            raise TypeError
        if what.name not in CALLS:
            raise refused(f"{what.name}()")
        self.push(CALLS[what.name](*args))

    def new(self) -> None:
        args, what = self.stack.pop(), self.stack.pop()
        if what != Global(PARAMETER) or not isinstance(args, tuple):
            raise refused("an object of another class than tensors and dicts")
        self.push(_parameter(*args))

    def build(self) -> None:
        """Attributes of an ordered dict: a module's versions. A tensor's state could stretch it, and torch writes none."""
        state = self.stack.pop()
        if not isinstance(state, dict) or not isinstance(self.stack[-1], dict):
            raise CorruptFile("", "a pickle that sets the state of something that is no dict", RESAVE)

    def persist(self) -> None:
        saved = self.stack.pop()
        if not isinstance(saved, tuple) or len(saved) < 5 or saved[0] not in ("storage", b"storage"):
            raise refused("a persistent object that is no storage")
        self.push(self.persistent(saved))

    def append(self) -> None:
        value = self.stack.pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self.marked()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        found = self.stack[-1]
        if type(found) is not list:
            raise TypeError
        return found

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def set_items(self) -> None:
        self._set(self.marked())

    def _set(self, items: Sequence[Any]) -> None:
        found = self.stack[-1]
        if type(found) is not dict or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            found[_key(key)] = value

    def get(self, form: str) -> None:
        self.push(self.memo[self.number(form)])

    def put(self, form: str) -> None:
        self.memo[self.number(form)] = self.stack[-1]

    def tuple_(self, n: int) -> tuple[Any, ...]:
        items = tuple(self.stack[-n:])
        if len(items) < n or any(item is MARK for item in items):
            raise IndexError
        self.stack[-n:] = [items]
        return items


def _key(key: Any) -> Any:
    """A key of a dict: a word or number, for hashing a nest of tuples may go deeper than the machine's stack."""
    parts = key if type(key) is tuple and len(key) <= 8 else (key,)
    if not all(part is None or type(part) in (str, bytes, int, float, bool) for part in parts):
        raise CorruptFile("", "a pickle with a dict whose keys are neither words nor numbers", RESAVE)
    return key


# what the allowed names give


def _dict(*args: Any) -> dict[Any, Any]:
    if not args:
        return {}
    (items,) = args
    if isinstance(items, dict):
        return dict(items)
    return {_key(key): value for key, value in items}


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, itemsize: int = 0) -> Tensor:
    """A tensor, held against its storage. itemsize: bytes of a number where the storage counts bytes."""
    sizes = (offset, *shape, *stride)
    if not isinstance(storage, Storage) or not len(shape) == len(stride) <= DEEPEST:
        raise TypeError
    if not all(type(n) is int and 0 <= n < LARGEST for n in sizes):
        raise ValueError
    there = storage.size * storage.itemsize // (itemsize or storage.itemsize)
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
    if last >= there + (not all(shape)) or prod(shape) > max(there, FREELY) or prod(n or 1 for n in shape) >= LARGEST:
        raise CorruptFile("", f"a tensor of shape {tuple(shape)} in a storage of {there:,} numbers",
                          "The file is damaged or made to harm.")  # fmt: skip
    return Tensor(tuple(shape))


def _tensor_v2(storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, told: Any = None) -> Tensor:
    return _tensor(storage, offset, shape, stride)


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, told: Any = None
) -> Tensor:
    return _tensor(storage, offset, shape, stride, DTYPES[dtype.name.removeprefix("torch.")])


def _parameter(data: Any, *_: Any) -> Tensor:
    if not isinstance(data, Tensor):
        raise TypeError
    return data


def _typed(function: Any, kind: Any, args: Any, state: Any) -> Tensor:
    """A tensor with attributes. A class of its own is refused where it is named."""
    found = CALLS[function.name](*args)
    if not isinstance(found, Tensor) or kind not in (Global("torch.Tensor"), Global(PARAMETER)):
        raise TypeError
    return found


def _numbers(*args: Any) -> Any:
    """A plain value of words and numbers; nothing that asks for memory or hashes a nest."""
    for arg in args:
        for part in arg if isinstance(arg, list | tuple) else (arg,):
            _key(part)
    return OTHER


def _bytes(value: Any = b"", *encoding: Any) -> Any:
    if not isinstance(value, str | bytes | Other) or any(e not in ("latin1", "utf-8", "ascii") for e in encoding):
        raise TypeError
    return OTHER


def _not_called(*args: Any) -> NoReturn:
    raise TypeError


PARAMETER = "torch.nn.parameter.Parameter"
CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _typed,
    PARAMETER: _parameter,
    "torch.Size": _numbers,
    "torch.device": _numbers,
    "builtins.set": _numbers,
    "builtins.complex": _numbers,
    "torch.serialization._get_layout": _numbers,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
    "torch.Tensor": _not_called,
}
"""Names that weights_only allows, with what calling them gives here."""
RENAMED = {"__builtin__": "builtins", "torch.tensor": "torch._tensor"}
RESAVE = "Load it where you trust it, and save its state_dict()."


def _is_type(name: str) -> bool:
    """Whether a name is a type of numbers: a storage's or a tensor's."""
    module, _, last = name.rpartition(".")
    return (module in ("torch", "torch.cuda", "torch.storage") and last in ITEMSIZE) or (module == "torch" and last in DTYPES)


STEPS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.number("B"),
    b"c": _Machine.global_,
    b"R": _Machine.reduce,
    b"\x81": _Machine.new,
    b"b": _Machine.build,
    b"Q": _Machine.persist,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"(": lambda m: m.push(MARK),
    b"t": lambda m: m.push(tuple(m.marked())),
    b"\x85": lambda m: m.tuple_(1),
    b"\x86": lambda m: m.tuple_(2),
    b"\x87": lambda m: m.tuple_(3),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b")": lambda m: m.push(()),
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b"\x8f": lambda m: m.push(OTHER),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"G": lambda m: m.push(m.number(">d")),
    b"X": lambda m: m.push(str(m.read(m.number("<I")), "utf-8", "surrogatepass")),
    b"U": lambda m: m.push(str(m.read(m.number("B")), "utf-8")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.read(m.number("B")), "little", signed=True)),
    b"h": lambda m: m.get("B"),
    b"j": lambda m: m.get("<I"),
    b"q": lambda m: m.put("B"),
    b"r": lambda m: m.put("<I"),
}
