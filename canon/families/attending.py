"""Steps of transformers: tokens and positions, attention, gated layers, experts, and heads whose weights may be tied."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from canon.errors import ShapeConflict
from canon.families.draft import Draft
from canon.families.steps import Act, Affine, Norm, Steps, affine, follow, label, number, spelled


@dataclass(frozen=True)
class Tokens:
    """The input: numbers of tokens, at any number of positions."""

    name: str = "tokens"

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.input(self.name, (None,))


@dataclass(frozen=True)
class Embed:
    """Rows of a table by their tokens; heads find it as the table "embedding". factor: what they are multiplied by, a setting;
    copies: names of tables that are the same one.
    """

    name: str
    factor: str = ""
    copies: tuple[str, ...] = ()

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        name = spelled(d, at, self.name)
        table = d.memory["embedding"] = d.tensor(f"{name}.weight")
        for copy in (f"{at}{copy}.weight" for copy in self.copies):
            if copy != table and d.has(copy):
                d.copies[d.tensor(copy)] = table
        y = d.add("embedding", name, [x], {"table": table})
        return scaled(d, y, number(d, self.factor)) if self.factor else y


def scaled(d: Draft, x: str, factor: float) -> str:
    """A value times a number."""
    return x if factor == 1 else d.add("rescale", f"{x}/scale", [x], factor=factor)


@dataclass(frozen=True)
class AddEmbedding:
    """The rows of a second table, by numbers that are an input of their own, added; left out where there is no such table."""

    name: str
    input: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        name = at + self.name
        if not d.has(f"{name}.weight"):
            return x
        y = d.add("embedding", name, [d.input(self.input, (None,))], {"table": d.tensor(f"{name}.weight")})
        return d.add("add", label(at, "add"), [x, y])


@dataclass(frozen=True)
class Positions:
    """A learned table of positions, added. ending: of its key; offset: the row of the first position."""

    name: str
    ending: str = ".weight"
    offset: int | str = 0

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        key = at + self.name + self.ending
        table = d.tensor(key, shape=d.shape(key)[-2:])
        first = int(number(d, self.offset))
        return d.add("add_positions", at + self.name, [x], {"table": table}, **({"offset": first} if first else {}))


@dataclass(frozen=True)
class Prepend:
    """A learned token in front of all others."""

    key: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        key = at + self.key
        return d.add("prepend_tokens", key, [x], {"tokens": d.tensor(key, shape=(1, d.shape(key)[-1]))})


@dataclass(frozen=True)
class First:
    """The units of the first position."""

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.add("take", f"{x}/first", [x], axis=0, index=0)


@dataclass(frozen=True)
class Attend:
    """Attention with its projections. q, k, v, o: their names; or qkv: that of the three in one, and o.

    norms: of the heads' queries and keys, left out where the file has none; causal: whether positions see only what comes
    before (or the setting that says so); scale: the setting that gives the factor of the scores by the width of a head and the
    number of the block (None: one over the root of the width); windows, softcap: settings of those names; rotary: whether
    queries and keys turn with their positions (setting "rotary", one a block); memory: the value whose keys and values are
    attended to, and bias: that which is added to the scores, as other steps left them; transposed, joint: see Affine.
    """

    o: str
    q: str = ""
    k: str = ""
    v: str = ""
    qkv: str = ""
    norms: tuple[str, str] = ("", "")
    causal: bool | str = False
    scale: str | None = None
    rotary: bool = False
    memory: str = ""
    bias: str = ""
    transposed: bool = False
    joint: str = "."

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        other = d.memory[self.memory] if self.memory else x
        if self.qkv:
            q, k, v = self._fused(d, x, at)
        else:
            reads = ((self.q, x), (self.k, other), (self.v, other))
            q, k, v = (Affine(name, transposed=self.transposed).run(d, y, at) for name, y in reads)
        heads, groups = heads_of(d, q, k, at + self.norms[0])
        q, k = (self._turned(d, y, n, name, at) for y, n, name in ((q, heads, self.norms[0]), (k, groups, self.norms[1])))
        attrs: dict[str, Any] = {"heads": heads}
        causal = d.told[self.causal] if isinstance(self.causal, str) else self.causal
        scale = d.told.get(self.scale) if self.scale is not None else None
        window = d.told["windows"](d.index) if "windows" in d.told else None
        said = {
            "kv_heads": groups if groups != heads else None,
            "causal": causal,
            "scale": scale(d.width(q) // heads, d.index) if scale is not None else None,
            "window": window,
            "softcap": d.told.get("softcap"),
        }
        attrs |= {name: value for name, value in said.items() if value}
        bias = [d.memory[self.bias]] if self.bias else []
        y = d.add("attention", label(at, f"{self.o.split('.')[0]}/attention"), [q, k, v, *bias], **attrs)
        return Affine(self.o, transposed=self.transposed).run(d, y, at)

    def _fused(self, d: Draft, x: str, at: str) -> list[str]:
        y = Affine(self.qkv, transposed=self.transposed, joint=self.joint).run(d, x, at)
        n = d.width(y)
        if n % 3:
            raise ShapeConflict(y, f"a width of {n} is not three times that of queries, keys and values")
        at_three = zip("qkv", range(0, n, n // 3), strict=True)
        return [d.add("slice", f"{y}/{part}", [y], start=start, stop=start + n // 3) for part, start in at_three]

    def _turned(self, d: Draft, x: str, heads: int, norm: str, at: str) -> str:
        """Queries or keys after their norm and with their positions."""
        if norm and d.has(f"{at}{norm}.weight"):
            gamma = d.tensor(f"{at}{norm}.weight")
            offset = number(d, d.told.get("offset", 0.0))
            attrs = {"heads": heads, "eps": number(d, "eps"), **({"offset": offset} if offset else {})}
            x = d.add("head_norm", at + norm, [x], {"gamma": gamma}, **attrs)
        if self.rotary:
            turns = d.told["rotary"](d.width(x) // heads, d.index)
            x = d.add("rotary", f"{x}/rotary", [x], heads=heads, **turns)
        return x


def heads_of(d: Draft, q: str, k: str, norm: str) -> tuple[int, int]:
    """How many heads queries and keys have: as told, or by the width of their norm. ShapeConflict where widths do not split."""
    width = d.width(q)
    if d.has(f"{norm}.weight"):
        (size,) = d.shape(f"{norm}.weight")
        heads = width // max(size, 1)
    else:
        heads = int(d.told["heads"]) or width // gcd(width, d.width(k))
    if not heads or width % heads or d.width(k) % (width // heads):
        raise ShapeConflict(q, f"a width of {width}, and {d.width(k)} of the keys, does not split into {heads} heads")
    groups = d.width(k) // (width // heads)
    for name, told, found in (("heads", d.told.get("heads"), heads), ("kv heads", d.told.get("kv_heads"), groups)):
        if told and told != found:
            raise ShapeConflict(q, f"has {found} {name} by its width, and {told} are told")
    return heads, groups


@dataclass(frozen=True)
class Gated:
    """A gated layer: down(act(gate(x)) * up(x)). act: see Act."""

    gate: str
    up: str
    down: str
    act: str = "activation"

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        gate = Act(self.act).run(d, Affine(self.gate).run(d, x, at), at)
        hidden = d.add("multiply", label(at, "multiply"), [gate, Affine(self.up).run(d, x, at)])
        return Affine(self.down).run(d, hidden, at)


@dataclass(frozen=True)
class Experts:
    """A mixture of gated layers, of which a router chooses a few at each position.

    Their gates are stacked into one layer, as are what goes up, and what comes down lies side by side.
    router: its name; gate, up, down: keys with {} for the expert; or, all experts in one array, fused: the keys of gates with
    what goes up, (experts, 2 h, units), and of what comes down, (experts, units, h). Settings: experts_used, act.
    """

    router: str
    gate: str = ""
    up: str = ""
    down: str = ""
    fused: tuple[str, str] = ("", "")
    act: str = "activation"

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        scores = Affine(self.router).run(d, x, at)
        n, units = d.width(scores), d.width(x)
        if self.fused[0]:
            gate, up, down = self._fused(d, at, n, units)
        else:
            each = [tuple(at + key.format(i) for i in range(n)) for key in (self.gate, self.up, self.down)]
            stacked = [at + key.format("*") for key in (self.gate, self.up, self.down)]
            along = (0, 0, 1)
            gate, up, down = (d.tensor(*keys, name=s, along=a) for keys, s, a in zip(each, stacked, along, strict=True))
        layers = [tensor.removesuffix(".weight") for tensor in (gate, up, down)]
        gated = Act(self.act).run(d, affine(d, layers[0], x, {"kernel": gate}), at)
        hidden = d.add("multiply", label(at, "multiply"), [gated, affine(d, layers[1], x, {"kernel": up})])
        used = int(d.told["experts_used"])
        weights = d.add("top_weights", label(at, "experts/weights"), [scores], k=used, renormalize=True)
        routed = d.add("route", label(at, "experts/route"), [hidden, weights])
        return affine(d, layers[2], routed, {"kernel": down})

    def _fused(self, d: Draft, at: str, n: int, units: int) -> tuple[str, str, str]:
        up, down = (at + key for key in self.fused)
        if len(d.shape(up)) != 3 or d.shape(up)[0] != n or len(d.shape(down)) != 3:
            raise d.unfit(up, f"{n} experts are expected")
        h = d.shape(up)[1] // 2
        halves = [
            d.tensor(up, name=f"{up}[{part}]", cut=(1, start, start + h), shape=(n * h, units))
            for part, start in (("gate", 0), ("up", h))
        ]
        # (experts, units, h) -> (units, experts * h)
        return halves[0], halves[1], d.tensor(down, axes=(1, 0, 2), shape=(units, n * h))


@dataclass(frozen=True)
class Head:
    """What a network gives out: for each head that is there, a key of the file or a setting that is true, the value of its
    steps. Heads are in the order in which they are looked for; where none is there, the value itself is given out.
    """

    heads: tuple[tuple[str, Steps], ...]

    def __init__(self, *heads: tuple[str, Steps]) -> None:
        object.__setattr__(self, "heads", heads)

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        found = [steps for key, steps in self.heads if d.has(at + key) or d.told.get(key)]
        for steps in found:
            d.output(follow(d, x, at, steps))
        if not found:
            d.output(x)
        return x


@dataclass(frozen=True)
class Keep:
    """Keeps a value under a name."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        d.memory[self.name] = x
        return x


@dataclass(frozen=True)
class Recall:
    """The value that was kept under a name; the present one where none was."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.memory.get(self.name, x)


@dataclass(frozen=True)
class Spare:
    """Gives out the value that was kept under a name, if no op reads it."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        kept = d.memory.get(self.name)
        if kept is not None and not any(kept in op.inputs for op in d.ops):
            d.output(kept)
        return x


@dataclass(frozen=True)
class Tied:
    """A dense layer to the tokens, whose kernel may be the table of their embedding.

    The table is taken where the file has no kernel; where it has one, the two are one tensor if they are equal, unless the
    setting "tied" is False. bias: keys in several spellings, of which the file may have copies.
    """

    name: str
    bias: tuple[str, ...] = ()

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        name = at + self.name
        table, key = d.memory["embedding"], f"{name}.weight"
        params = {"kernel": d.tensor(key) if d.has(key) else table}
        if d.has(key):
            if d.sizes[key] == d.sizes[table] and d.told.get("tied") is not False:
                d.copies[key] = table
        else:
            d.notes.append(f"{key} is not in the file: it is tied to {table}, one tensor with two uses")
        keys = [at + b for b in self.bias if d.has(at + b)]
        if keys:
            params["bias"] = d.tensor(keys[0])
            for other in keys[1:]:
                d.copies[d.tensor(other)] = keys[0]
        return d.add("dense", name, [x], params)


@dataclass(frozen=True)
class Softcap:
    """c tanh(x / c), c a setting (None: nothing is done)."""

    setting: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        cap = d.told.get(self.setting)
        if not cap:
            return x
        y = d.add("tanh", f"{x}/tanh", [scaled(d, x, 1.0 / float(cap))])
        return scaled(d, y, float(cap))


RMS, LAYER = "rms_norm", "layer_norm"


def rms(name: str, offset: float | str = 0.0) -> Norm:
    """An RMS norm with the setting "eps"; offset: see Norm."""
    return Norm(name, RMS, "eps", offset)


def layer_norm(name: str, eps: float | str = "eps") -> Norm:
    """A layer norm, by default with the setting "eps"."""
    return Norm(name, LAYER, eps)
