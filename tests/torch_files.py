"""Torch files made by hand, byte by byte, so that they may be hostile."""

import io
import struct
import zipfile

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def word(text):
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(n):
    raw = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def call(name, *args):
    """A global, called."""
    module, _, last = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + last.encode() + b"\n" + b"(" + b"".join(args) + b"tR"


def storage(size, key="0", kind="FloatStorage", view=None):
    saved = word("storage") + b"ctorch\n" + kind.encode() + b"\n" + word(key) + word("cpu") + number(size)
    return b"(" + saved + (b"" if view is None else view) + b"tQ"


def tensor(stored, shape, stride=None, offset=0):
    """By default in C order."""
    if stride is None:
        stride = [1]
        for n in reversed(shape[1:]):
            stride.insert(0, stride[0] * n)
        stride = stride[: len(shape)]
    hooks = call("collections.OrderedDict")
    return call("torch._utils._rebuild_tensor_v2", stored, number(offset), numbers(shape), numbers(stride), b"\x89", hooks)


def state(**tensors):
    return b"\x80\x02}(" + b"".join(word(name) + t for name, t in tensors.items()) + b"u."


def archive(pickled, members=(), packed=False, root="archive", more=()):
    """members: bytes of data/0, data/1 and so on."""
    out = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", how) as z:
        z.writestr(f"{root}/data.pkl", pickled)
        for i, raw in enumerate(members):
            z.writestr(f"{root}/data/{i}", raw)
        z.writestr(f"{root}/version", b"3\n")
        for name, raw in more:
            z.writestr(f"{root}/{name}", raw)
    return out.getvalue()


def legacy(pickled, keys=(), storages=()):
    """The format before torch 1.6. storages: (numbers, bytes)."""
    told = b"\x80\x02}(" + word("little_endian") + b"\x88u."
    listed = b"\x80\x02](" + b"".join(map(word, keys)) + b"e."
    raw = b"".join(struct.pack("<q", n) + data for n, data in storages)
    return MAGIC + b"\x80\x02M\xe9\x03." + told + pickled + listed + raw
